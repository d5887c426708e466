"""Explain to people how each site fares with a job."""

import re
from dataclasses import dataclass, replace
from typing import Any

from bursar.broker.matchmaking.ads import REQUIREMENTS
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.broker.matchmaking.choice import probabilities
from bursar.broker.matchmaking.matchmaker import MatchedSites, Matchmaker
from bursar.broker.matchmaking.mismatch import MismatchReason, mismatch_reasons, refusal
from bursar.broker.matchmaking.ranking import DEFAULT_RANK
from bursar.broker.matchmaking.scoring import RankColumns, RankTerms
from bursar.classad import ERROR, UNDEFINED, Ad, Expression, evaluate, references
from bursar.classad.analysis import EVERYTHING
from bursar.classad.operators import lower
from bursar.model.matching import RankWeights
from bursar.model.money import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSite:
    """
    A site that matches.

    Parameters
    ----------
    site
        Name of the site.
    probability
        Probability of the site being chosen, 0 to 1.
    terms
        Terms of the site's rank.
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
    site
        Name of the site.
    reasons
        Reasons against the site, each in one line.
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
    choice
        Name of the rule by which a site is chosen.
    weights
        Weights of the ranks.
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
    maker
        Matchmaker of the sites.
    job, matched
        The job, and the sites that satisfy it.
    weighing
        Scores of these sites.
    rule
        Choice rule.
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
