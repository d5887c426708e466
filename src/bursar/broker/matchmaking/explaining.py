"""Explain to people how each site fares with a job, and why some do not match."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bursar.broker.matchmaking.ads import CHANGING_KEYS, MEGABYTE, REQUIREMENTS
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.broker.matchmaking.choice import DEFAULT_RANK, probabilities
from bursar.broker.matchmaking.matchmaker import JobClass, MatchedSites, Matchmaker
from bursar.broker.matchmaking.scoring import RankColumns, RankTerms
from bursar.broker.matchmaking.status_table import Mask
from bursar.classad import ERROR, UNDEFINED, Ad, Expression, clauses, evaluate, references
from bursar.classad.evaluation import EVERYTHING
from bursar.classad.operators import lower
from bursar.model.matching import RankWeights
from bursar.model.money import Refusal

# Explain why sites do not match a job.

_MOST_NAMED = 3
"""Sites that a refusal names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MismatchReason:
    """
    A reason against some sites.

    Parameters
    ----------
    one, many
        Text about one site, and about several.
    lasts
        Whether the mismatch holds however the sites' status may change.
    """

    sites: Mask
    one: str
    many: str
    lasts: bool
    clause: Expression | None = None


def mismatch_reasons(maker: Matchmaker, job: BrokerJob, kind: JobClass) -> Iterator[MismatchReason]:
    """Yield the reasons against sites, by the sites' facts and by the index."""
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


# Explain to people how each site fares with a job.


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSite:
    """
    A site that matches.

    Parameters
    ----------
    probability
        Probability of the site being chosen, 0 to 1.
    age
        Age of the status used for the rank, seconds.
    """

    site: str
    probability: float
    terms: RankTerms
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedSite:
    """
    A site that does not match.

    Parameters
    ----------
    age
        Seconds since it said what the index knows; None when that is nothing.
    """

    site: str
    reasons: tuple[str, ...]
    age: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchExplanation:
    """
    Explanation of how the sites fare with a job.

    Parameters
    ----------
    requirements, rank
        Expressions; the rank is the default one where the job has none.
    named
        Site that the job names, which replaces matching.
    assumed_runtime
        Seconds at speed 1 that the job is taken to run, because it does not say; None: it does.
    fresh
        Whether the sites that match were asked themselves.
    candidates
        Matching sites, best choice first.
    outsiders
        The others, in their order.
    refusal
        Why no site matches; None when one does.
    """

    requirements: str | None
    rank: str
    named: str | None
    choice: str
    weights: RankWeights
    assumed_runtime: float | None
    fresh: bool
    candidates: tuple[CandidateSite, ...]
    outsiders: tuple[RejectedSite, ...]
    refusal: Refusal | None

    def of_named(self, refused: Refusal | None) -> "MatchExplanation":
        """Return the explanation for a job that names a site, chosen without comparison."""
        certain = tuple(
            replace(one, probability=float(one.site == self.named)) for one in self.candidates
        )
        return replace(self, candidates=certain, refusal=refused)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types; the keys are in the documentation."""
        return {
            "requirements": self.requirements,
            "rank": self.rank,
            "site": self.named,
            "choice": self.choice,
            "alpha": self.weights.alpha,
            "beta": self.weights.beta,
            "assumed_runtime_s": self.assumed_runtime,
            "fresh": self.fresh,
            "matches": [_candidate_to_dict(candidate) for candidate in self.candidates],
            "fails": [
                {"site": one.site, "reasons": list(one.reasons), "age_s": one.age}
                for one in self.outsiders
            ],
            "reason": None if self.refusal is None else self.refusal.reason,
        }


def explain_match(
    maker: Matchmaker,
    job: BrokerJob,
    matched: MatchedSites,
    weighing: RankColumns,
    rule: str,
    usual: float,
    now: float,
) -> MatchExplanation:
    """
    Explain how each site matches a job.

    Parameters
    ----------
    usual
        Seconds at speed 1 that a job is taken to run which does not say.
    now
        Seconds.
    """
    registry, matching = maker.registry, job.matching
    chances = probabilities(rule, weighing.scores)
    order = (-weighing.scores).argsort(kind="stable")  # undefined ones come last
    candidates = tuple(
        CandidateSite(
            site=registry.names[weighing.sites[place]],
            probability=float(chances[place]),
            terms=weighing.terms(int(place)),
            age=now - float(matched.statuses.published.at[weighing.sites[place]]),
        )
        for place in order
    )
    inside = set(matched.sites.tolist())
    against = [fault for fault in mismatch_reasons(maker, job, matched.kind) if fault.sites.any()]
    outsiders = tuple(
        RejectedSite(
            site=name,
            reasons=tuple(_reasons(maker, job, matched, against, i)),
            age=None if status is None else now - status.at,
        )
        for i, (name, status) in enumerate(
            zip(registry.names, maker.statuses.statuses, strict=True)
        )
        if i not in inside
    )
    return MatchExplanation(
        requirements=matching.requirements,
        rank=matching.rank or DEFAULT_RANK,
        named=matching.site,
        choice=rule,
        weights=weighing.weights,
        assumed_runtime=usual if job.runtime is None else None,
        fresh=matched.fresh,
        candidates=candidates,
        outsiders=outsiders,
        refusal=None if candidates else refusal(maker, job, matched),
    )


def _reasons(
    maker: Matchmaker,
    job: BrokerJob,
    matched: MatchedSites,
    against: list[MismatchReason],
    site: int,
) -> list[str]:
    """All that is against a site."""
    found = []
    for fault in against:
        if not fault.sites[site]:
            continue
        seen = ""
        if fault.clause is not None:
            seen = _seen(fault.clause, matched.kind.my, maker.statuses.ad(site))
        found.append(fault.one + seen)
    if site in matched.silent:
        found.append(matched.silent[site])
    if not found:
        name = maker.unreached(job, [site])
        found.append(f'no copy of "{name}" can be brought there')
    return found


def _seen(clause: Expression, my: Ad, site: Ad) -> str:
    """Return the value of a clause at a site, with the attribute values that the clause read."""
    read = references(clause, my) - {EVERYTHING, REQUIREMENTS}
    spelt = {lower(word): word for word in re.findall(r"\w+", str(clause))}
    names = [spelt.get(name, name) for name in sorted(read)]
    missing = [name for name in names if name not in site]
    value = evaluate(clause, my, site)
    there = ", ".join(f"{name} = {site.expression(name)}" for name in names if name in site)
    if value is UNDEFINED and missing:
        attributes = "attributes" if len(missing) > 1 else "attribute"
        there = f"undefined: {attributes} {', '.join(missing)} missing" + (there and f"; {there}")
    elif value is ERROR:
        there = "error" + (there and f"; {there}")
    return f" ({there})" if there else ""


def _candidate_to_dict(candidate: CandidateSite) -> dict[str, Any]:
    terms = candidate.terms
    return {
        "site": candidate.site,
        "probability": candidate.probability,
        "age_s": candidate.age,
        "rank": terms.rank,
        "rank_expr": terms.expression,
        "access_s": terms.access,
        "transfer_s": terms.transfer,
        "wait_s": terms.wait,
        "own_processors": terms.ours,
        "execution_s": terms.execution,
        "completion_s": terms.completion,
        "toll_s": terms.toll,
    }
