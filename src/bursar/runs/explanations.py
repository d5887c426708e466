"""Explanations of a run from its journal: its requests to sites, and the placement of its tasks."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from bursar.broker.decision_reasons import DECISION, PlacementDecision, SiteDecision
from bursar.dispatch.journal_records import (
    AttemptRecord,
    CopyPurchase,
    CopyStart,
    copies_of,
    purchases_for_copies,
)
from bursar.market.lease import Lease
from bursar.market.purchasing import TRADE, DealRecord
from bursar.model.campaign import odds_in_words
from bursar.model.errors import InputError, spelling_hint
from bursar.provisioning.accounting import (
    AllocationUsage,
    PilotUsage,
    ProcessorSpan,
    account_of,
    agree,
)
from bursar.report.tables import span
from bursar.runs.folder import find_task
from bursar.runs.pool_controller import ASKED, BOUNDS, AllocationStep
from bursar.runs.run_record import RunRecord

# Reports on a run's requests to sites: each request, what was done with it, and the record of the
# site's scheduler beside it.


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationReport:
    """
    One request of a run for processors of a site, and what became of the request.

    Parameters
    ----------
    asked
        Time of the request, seconds since the run's begin; None where it was not journalled.
    began, ended
        Times at which processors were granted and given back; None: never, or not yet.
    processors
        Processors requested; once begun, processors granted.
    account
        Processor time of the allocation.
    record
        Accounting record of the site's scheduler; None where there is none.
    fate
        How the request ended, in words.
    """

    name: str
    site: str
    asked: float | None
    began: float | None
    ended: float | None
    processors: int
    account: AllocationUsage
    record: PilotUsage | None
    fate: str

    @property
    def wait(self) -> float | None:
        """Seconds from request to begin."""
        return None if self.asked is None or self.began is None else self.began - self.asked

    @property
    def recorded(self) -> float | None:
        """Processor-seconds that the allocation held, by the scheduler's record."""
        return None if self.record is None else self.record.processors * self.record.seconds

    @property
    def difference(self) -> float | None:
        """Processor-seconds that the scheduler's record has more than ours."""
        return None if self.recorded is None else self.recorded - self.account.acquired

    @property
    def agrees(self) -> bool | None:
        """Whether that is a matter of rounding; None where there is nothing to compare."""
        record, theirs = self.record, self.recorded
        if record is None or theirs is None:
            return None
        width = max(self.account.processors, record.processors)
        return agree(self.account.acquired, theirs, width)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "name": self.name,
            "site": self.site,
            "job": None if self.record is None else self.record.job,
            "asked_s": self.asked,
            "began_s": self.began,
            "ended_s": self.ended,
            "wait_s": self.wait,
            "processors": self.processors,
            "acquired_cpu_s": self.account.acquired,
            "used_cpu_s": self.account.used,
            "idle_cpu_s": self.account.idle,
            "recorded_cpu_s": self.recorded,
            "difference_cpu_s": self.difference,
            "agrees": self.agrees,
            "fate": self.fate,
        }


def allocation_reports(record: RunRecord) -> list[AllocationReport]:
    """Return a report on every request of a run, in the order of the requests."""
    begin = record.incarnations[0][0] if record.incarnations else 0.0
    last = record.journal.last_seen
    leases = {lease.id: lease for lease in record.leases}
    steps: dict[str, list[tuple[float, AllocationStep]]] = defaultdict(list)
    for event in record.journal.events:
        if event.kind == ASKED:
            step = msgspec.json.decode(event.text, type=AllocationStep)
            steps[step.name].append((event.time - begin, step))
    tasks = _tasks(record)
    recorded = record.recorded
    return [
        _one(
            name,
            steps.get(name, ()),
            leases.get(name),
            tasks.get(name, ()),
            recorded.get(name),
            begin,
            last,
        )
        for name in dict.fromkeys([*steps, *leases])
    ]


def bounds(record: RunRecord) -> dict[str, tuple[int, int]]:
    """Return, by site, how many bounds on waits had been given by the run's end, and held."""
    stated: dict[str, tuple[int, int]] = {}
    for event in record.journal.events:
        if event.kind == BOUNDS:
            stated = msgspec.json.decode(event.text, type=dict[str, tuple[int, int]])
    return stated


def _one(
    name: str,
    steps: Sequence[tuple[float, AllocationStep]],
    lease: Lease | None,
    tasks: Sequence[ProcessorSpan],
    usage: PilotUsage | None,
    begin: float,
    last: float,
) -> AllocationReport:
    steps_made = [step for _, step in steps]
    site = lease.site if lease is not None else steps_made[0].site
    began = ended = None
    # A lease that ends before it begins was withdrawn: nothing is owed for it.
    if lease is None or (lease.end is not None and lease.end < lease.start):
        processors = steps_made[0].processors if steps_made else 0
        account = AllocationUsage(
            name=name, site=site, processors=processors, acquired=0.0, starting=0.0, used=0.0
        )
    else:
        end = last if lease.end is None else lease.end
        began, ended = lease.start - begin, end - begin
        whole = ProcessorSpan(start=lease.start, end=end, processors=lease.processors)
        account = account_of(lease, [whole], tasks, last)
    return AllocationReport(
        name=name,
        site=site,
        asked=steps[0][0] if steps else None,
        began=began,
        ended=ended,
        processors=account.processors,
        account=account,
        record=usage,
        fate=_fate(steps_made, lease),
    )


def _fate(steps: Sequence[AllocationStep], lease: Lease | None) -> str:
    """Return in words how a request ended, or the present state."""
    given_back = next((step for step in steps if step.step == "given back"), None)
    if given_back is not None:
        return f"given back: {given_back.reason}"
    last = steps[-1] if steps else None
    if last is not None and last.step in ("refused", "unreachable", "lost"):
        return f"{last.step}: {last.reason}" if last.reason else last.step
    if lease is None:
        return "waits" if last is not None and last.step == "asked" else "withdrawn"
    return "held" if lease.end is None else "ended"


def _tasks(record: RunRecord) -> dict[str, list[ProcessorSpan]]:
    """Return the spans in which tasks held processors, whatever their outcome; by lease."""
    tasks = record.campaign.workflow.tasks
    held: dict[str, list[ProcessorSpan]] = defaultdict(list)
    for one in record.attempts:
        outcome = one.outcome
        span = ProcessorSpan(
            start=outcome.start, end=outcome.end, processors=tasks[outcome.task].processors
        )
        held[one.lease].append(span)
    return held


# Reasons for the placement of tasks and the load of sites, from the journal and the plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementReason:
    """
    One placement of a task, and the reason.

    Parameters
    ----------
    attempt
        Number of the attempt, from 1.
    at
        Seconds since the run's begin.
    why
        Reason in one line.
    others
        The strategy's assessment of every site at that time.
    status
        Status at the end of the attempt; None before.
    """

    attempt: int
    site: str
    lease: str
    at: float
    why: str
    others: tuple[SiteDecision, ...] = ()
    status: str | None = None
    deals: tuple[DealRecord, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the decision as a JSON object."""
        return {
            "attempt": self.attempt,
            "site": self.site,
            "lease": self.lease,
            "at_s": self.at,
            "why": self.why,
            "status": self.status,
            "sites": [msgspec.structs.asdict(weighed) for weighed in self.others],
            "deals": [deal.to_dict() for deal in self.deals],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteReason:
    """
    A time during which one reason held for a site.

    Parameters
    ----------
    begin, end
        Seconds since the run's begin.
    price
        Currency units per processor-second; None when unknown.
    given
        Number of jobs that the site was to get, at the begin.
    reason
        Reason in one line.
    """

    begin: float
    end: float
    price: float | None
    given: int
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the reason as a JSON object."""
        return {
            "begin_s": self.begin,
            "end_s": self.end,
            "price": self.price,
            "given": self.given,
            "reason": self.reason,
        }


def why(record: RunRecord, task: str) -> list[PlacementReason]:
    """
    Return each placement of a task, with the reason.

    Raises
    ------
    InputError
        When there is no such task.
    """
    ids = [t.id for t in record.campaign.workflow.tasks]
    number = find_task(ids, task, f"run {record.folder.name}")
    attempts = [r for r in record.journal.records if r.outcome.task == number]
    if number in record.reused:
        return [_taken(record.reused[number], attempts[0])]
    deals = _deals_of(record, number)
    begin = record.incarnations[0][0] if record.incarnations else 0.0
    if not _is_decided(record):
        reason = _planned(record, number)
        copies = {c.attempt: c for c in copies_of(record.journal.events) if c.task == number}
        bought = purchases_for_copies(record.journal.events)
        return [
            PlacementReason(
                attempt=r.outcome.attempt,
                site=r.site,
                lease=r.lease,
                at=r.outcome.start - begin,
                why=_copied(copies[r.outcome.attempt], bought)
                if r.outcome.attempt in copies
                else reason,
                status=str(r.outcome.status),
                deals=tuple(deals.get(r.lease, ())),
            )
            for r in attempts
        ]
    ended: dict[str, list[str]] = defaultdict(list)
    for r in attempts:
        ended[r.lease].append(str(r.outcome.status))
    placed: list[PlacementReason] = []
    for decision, sites in _decisions(record):
        for sent, site, lease in decision.sent:
            if sent == number:
                reason = next((w.reason for w in sites if w.site == site), "")
                # Attempts of a task on one lease end in the order in which they were sent.
                status = ended[lease].pop(0) if ended[lease] else None
                placed.append(
                    PlacementReason(
                        attempt=len(placed) + 1,
                        site=site,
                        lease=lease,
                        at=decision.at,
                        why=f"{decision.strategy}: {reason}{_limits(decision)}",
                        others=tuple(sites),
                        status=status,
                        deals=tuple(deals.get(lease, ())),
                    )
                )
    return placed


def _copied(copy: CopyStart, bought: Mapping[str, CopyPurchase]) -> str:
    """Say why a task got a second attempt at the same time."""
    purchase, where = bought.get(copy.lease), "a copy on a free processor"
    if purchase is not None:
        what = "a processor" if purchase.processors == 1 else f"{purchase.processors} processors"
        where = f"a copy on {what} bought for it ({_gain(purchase)})"
    return (
        f"{where}: attempt {copy.of} had run for {span(copy.elapsed)}, and "
        f"{span(copy.left)} more were expected; of the copy {span(copy.fresh)}"
    )


def _gain(purchase: CopyPurchase) -> str:
    """Say what was expected of a copy when its processors were bought."""
    if purchase.odds is None or purchase.odds_with is None:
        return f"an end after {span(purchase.end_with)} was expected, not {span(purchase.end)}"
    before, after = odds_in_words(purchase.odds), odds_in_words(purchase.odds_with)
    return f"odds of the deadline {after}, not {before}"


def _taken(origin: str, record: AttemptRecord) -> PlacementReason:
    """Return the explanation of a result that was taken from an earlier run."""
    return PlacementReason(
        attempt=1,
        site="",
        lease="",
        at=0.0,
        why=f"reused from {origin}: command, inputs, code, environment and outputs are the same",
        status=str(record.outcome.status),
    )


def _deals_of(record: RunRecord, task: int) -> dict[str, list[DealRecord]]:
    """Return the negotiations that brought a task's processors, by lease."""
    found: dict[str, list[DealRecord]] = defaultdict(list)
    for event in record.journal.events:
        if event.kind == TRADE:
            deal = msgspec.json.decode(event.text, type=DealRecord)
            if deal.task in (None, task):
                found[deal.lease].append(deal)
    return found


def why_not(record: RunRecord, site: str) -> list[SiteReason]:
    """
    Return the reasons for and against a site in the course of a run.

    Raises
    ------
    InputError
        When there is no such site.
    """
    names = [facts.name for facts in record.info.sites]
    if site not in names:
        raise InputError(f'no site "{site}" in this run', hint=spelling_hint(site, names))
    end = record.makespan or 0.0
    facts = next(facts for facts in record.info.sites if facts.name == site)
    if not _is_decided(record):
        reason = _unplanned(record, site)
        return [SiteReason(begin=0.0, end=end, price=facts.unit_price, given=0, reason=reason)]
    reasons: list[SiteReason] = []
    for decision, sites in _decisions(record):
        # Most decisions only send the next jobs; sites are journalled when they were weighed anew.
        if not decision.sites and reasons:
            continue
        weighed = next((w for w in sites if w.site == site), None)
        reason = _absent(record) if weighed is None else weighed.reason
        held = SiteReason(
            begin=decision.at,
            end=end,
            price=facts.unit_price if weighed is None else weighed.price,
            given=0 if weighed is None else weighed.given,
            reason=reason,
        )
        # Reasons that differ in figures only are one to a reader: else each job would begin
        # another.
        if reasons and _alike(reasons[-1].reason, reason):
            continue
        if reasons:
            reasons[-1] = replace(reasons[-1], end=decision.at)
        reasons.append(held)
    return reasons


def _absent(record: RunRecord) -> str:
    """Return why a decision does not mention a site."""
    if record.info.brokering is not None:
        return "it did not match, or others were better"
    return "it was left out: it did not work"


def ran_at(record: RunRecord, site: str) -> int:
    """Return the number of tasks that ended at a site."""
    return sum(1 for r in record.final.values() if r.site == site)


def _is_decided(record: RunRecord) -> bool:
    """Whether the run's jobs were sent one by one, with a decision for each."""
    return record.info.strategy is not None or record.info.brokering is not None


def _decisions(record: RunRecord) -> Iterator[tuple[PlacementDecision, Sequence[SiteDecision]]]:
    """Yield each decision with the last assessment of the sites."""
    sites: Sequence[SiteDecision] = ()
    for event in record.journal.events:
        if event.kind == DECISION:
            decision = msgspec.json.decode(event.text, type=PlacementDecision)
            sites = decision.sites or sites
            yield decision, sites


def _limits(decision: PlacementDecision) -> str:
    parts = [f"{decision.left} jobs were left"]
    if decision.time_left is not None:
        parts.append(f"{decision.time_left:.4g} s")
    if decision.money_left is not None:
        parts.append(f"{decision.money_left:.6g} of the budget")
    return f"; {', '.join(parts)}"


def _planned(record: RunRecord, task: int) -> str:
    proposal, plan = record.planned
    placement = next((p for p in plan.placements if p.task == task), None)
    if placement is None:
        return "sent to the queue where it was expected to end first"
    words = proposal.get("reason") or "the plan that was picked"
    return (
        f"planned there from {placement.start:.4g} to {placement.finish:.4g} s "
        f"by {plan.algorithm} ({words})"
    )


def _unplanned(record: RunRecord, site: str) -> str:
    proposal, plan = record.planned
    bought = [p for p in plan.purchases if p.slot.site == site]
    if bought:
        processors = sum(p.slot.processors for p in bought)
        return f"it was bought: {len(bought)} times, {processors} processors in all"
    using = [
        option
        for option in proposal.get("front", [])
        if any(slot["site"] == site for slot in option["slots"])
    ]
    picked = proposal.get("reason", "")
    if not using:
        return f"no plan of the trade-off curve buys there ({picked})"
    # The fastest is the strongest case for the site.
    option = min(using, key=lambda option: (option["makespan_s"] or 0.0, option["cost"] or 0.0))
    return (
        f"plans that buy there were not picked ({picked}); the fastest takes "
        f"{option['makespan_s']:.6g} s and costs {option['cost'] or 0.0:.6g}, the one picked "
        f"{plan.makespan or 0.0:.6g} s and {plan.cost or 0.0:.6g}"
    )


def _alike(one: str, other: str) -> bool:
    """Whether two reasons differ in numbers only."""
    return _without_numbers(one) == _without_numbers(other)


def _without_numbers(text: str) -> str:
    return " ".join(word for word in text.split() if not any(c.isdigit() for c in word))
