"""Explain why sites do not match a job."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bursar.broker.matchmaking.ads import CHANGING_KEYS, MEGABYTE
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.broker.matchmaking.job_classes import JobClass
from bursar.broker.matchmaking.matchmaker import MatchedSites, Matchmaker
from bursar.broker.matchmaking.site_registry import Mask
from bursar.classad import Expression, clauses, references
from bursar.model.money import Refusal

_MOST_NAMED = 3
"""Sites that a refusal names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchReason:
    """
    A reason against some sites.

    Parameters
    ----------
    sites
        Mask of the sites excluded for this reason.
    one, many
        Text about one site, and about several.
    lasts
        Whether the mismatch holds however the sites' status may change.
    clause
        Clause of the job's requirements that the sites fail.
    """

    sites: Mask
    one: str
    many: str
    lasts: bool
    clause: Expression | None = None


def mismatch_reasons(maker: Matchmaker, job: BrokerJob, kind: JobClass) -> Iterator[MismatchReason]:
    """
    Yield the reasons against sites, by the sites' facts and by the index.

    Parameters
    ----------
    maker
        Matchmaker that knows the sites.
    job, kind
        Job, and its class, whose requirements are tested.
    """
    registry, statuses = maker.registry, maker.statuses
    narrow = registry.processors < job.processors
    what = f"fewer than {job.processors} processors"
    yield MismatchReason(sites=narrow, one=f"has {what}", many=f"have {what}", lasts=True)
    what = f"less memory than {(job.memory or 0) / MEGABYTE:.6g} MiB"
    small = registry.memory < (job.memory or 0)
    yield MismatchReason(sites=small, one=f"has {what}", many=f"have {what}", lasts=True)
    for clause in clauses(kind.requirements) if kind.requirements is not None else ():
        read = references(clause, kind.my)
        yield MismatchReason(
            sites=~statuses.table(read).holds(clause, kind.my),
            one=f"fails {clause}",
            many=f"fail {clause}",
            lasts=read.isdisjoint(CHANGING_KEYS) and not statuses.stamp(read),
            clause=clause,
        )
    if registry.requirements:
        yield MismatchReason(
            sites=~maker.taken(kind),
            one="does not take it by its own requirements",
            many="do not take it by their own requirements",
            lasts=not registry.asks_by_status,
        )
    has_status = np.isfinite(statuses.published.at)
    yield MismatchReason(
        sites=~has_status, one="is not in the index", many="are not in the index", lasts=False
    )
    closed = has_status & ~statuses.is_open
    yield MismatchReason(
        sites=closed, one="is not in production", many="are not in production", lasts=False
    )


def refusal(maker: Matchmaker, job: BrokerJob, matched: MatchedSites) -> Refusal:
    """
    Return the answer to a job that no site matches, in one line.

    A refusal is final where every site has a lasting reason against the job.
    """
    registry = maker.registry
    if not len(registry):
        return Refusal("there is no site", final=True)
    if matched.silent:
        silent = sorted(matched.silent.items())
        reasons = "; ".join(f'"{registry.names[i]}" {why}' for i, why in silent[:_MOST_NAMED])
        more = f"; {len(silent) - _MOST_NAMED} more" if len(silent) > _MOST_NAMED else ""
        return Refusal(f"no site that matches takes jobs: {reasons}{more}", final=False)
    found = [fault for fault in mismatch_reasons(maker, job, matched.kind) if fault.sites.any()]
    left = np.flatnonzero(~_any(found, len(registry)))
    if len(left):
        return Refusal(_unreached(maker, job, left.tolist()), final=False)
    # Final only if each site has a lasting reason of its own: another site may become able.
    permanent = _any([fault for fault in found if fault.lasts], len(registry))
    return Refusal(_sentence(found, len(registry)), final=bool(permanent.all()))


def _any(found: list[MismatchReason], sites: int) -> Mask:
    against = np.zeros(sites, dtype=np.bool_)
    for fault in found:
        against |= fault.sites
    return against


def _unreached(maker: Matchmaker, job: BrokerJob, sites: list[int]) -> str:
    name = maker.unreached(job, sites)
    where = f"the {len(sites)} sites that match" if len(sites) > 1 else "the site that matches"
    if name is None:
        return f"no site that matches can be reached from copies of all its {len(job.data)} files"
    return f'no copy of "{name}" can be brought to {where}'


def _sentence(found: list[MismatchReason], sites: int) -> str:
    """Name the clause that all sites fail, or else each reason with its number of sites."""
    counts = [int(np.count_nonzero(fault.sites)) for fault in found]
    for fault, count in zip(found, counts, strict=True):
        if count == sites and fault.clause is not None:
            return f"no site satisfies {fault.clause} ({_counted(fault, count, short=True)})"
    parts = [_counted(fault, count) for fault, count in zip(found, counts, strict=True)]
    return f"no site matches: {', '.join(parts)}"


def _counted(fault: MismatchReason, count: int, *, short: bool = False) -> str:
    if short:
        return f"{count} {'fails' if count == 1 else 'fail'} it"
    return f"{count} {fault.one if count == 1 else fault.many}"
