"""How a run stands, as another process reads it in the run's folder."""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bursar.broker.estimates import worker_starts
from bursar.broker.pilot_plan import plan_pilots
from bursar.dispatch.journal import JournalPosition, read_additions
from bursar.dispatch.journal_records import AttemptStart
from bursar.market.lease import Lease
from bursar.model.campaign import Goal
from bursar.model.plan import Purchase
from bursar.model.slot import Slot
from bursar.runs.forecasting.standing import (
    QueuedRequest,
    RunningAttempt,
    RunStanding,
    StandingReader,
)
from bursar.runs.incarnations import leases_of
from bursar.runs.run_record import RunRecord

if TYPE_CHECKING:  # arrays
    from bursar.provisioning.wait_forecast import WaitForecast

ExpectedWaits = Callable[[str, int, float], "WaitForecast | None"]
"""How long a request waits at a site, for so many processors and seconds; None: unknown."""


def recorded_standing(record: RunRecord, goal: Goal, elapsed: float, spent: float) -> RunStanding:
    """
    Return how far a run's tasks have come, without its processors.

    Parameters
    ----------
    goal
        Goal by which the run is to be judged.
    elapsed
        Seconds since the run's begin.
    spent
        Currency units, what open leases have accrued included.
    """
    now = record.incarnations[0][0] + elapsed
    reader = StandingReader([task.processors for task in record.campaign.workflow.tasks], {})
    for attempt in record.attempts:
        reader.take_in(attempt)
    return RunStanding(
        now=elapsed,
        moment=now,
        ended=frozenset(record.final) | record.skipped,
        running=_running(record, now),
        attempts=reader.attempts,
        spent=spent,
        leases={},
        queued={},
        opening={},
        held={},
        lease_of={},
        plan=None,
        goal=goal,
    )


def with_processors(
    record: RunRecord, standing: RunStanding, expected_wait: ExpectedWaits
) -> RunStanding:
    """
    Return the same with the processors of a run by a plan or a pool that goes on.

    Leases that are open are held; those of the plan that are to come begin as planned. A pool may
    ask for what its sites have left.

    Parameters
    ----------
    expected_wait
        Tells how long requests wait that still queue. One of which nothing is known is left out.
    """
    sites = {site.name: site for site in record.info.sites}
    first = standing.moment - standing.now
    journalled = leases_of(record.journal.events)
    plan = record.planned[1]
    pilots = {
        pilot.name: pilot for pilot in plan_pilots(plan, record.campaign.workflow.tasks)
    }  # none of a pool
    if not journalled.keys() <= pilots.keys():
        pilots = {}  # planned again on the way: other names, and other tasks
    leases: dict[str, Purchase] = {}
    queued: dict[str, QueuedRequest] = {}
    held: Counter[str] = Counter()
    for name, lease in journalled.items():
        if lease.end is not None:
            continue
        held[lease.site] += lease.processors
        if lease.asked:
            seconds = math.inf if lease.until is None else lease.until - lease.start
            wait = partial(expected_wait, lease.site, lease.processors, seconds)
            if wait() is None:
                continue
            # The question is put now, and its answer counts from now.
            queued[name] = QueuedRequest(standing.now, wait)
        is_whole = name in pilots and pilots[name].whole
        leases[name] = _purchase(lease, first, standing.moment, is_whole=is_whole)
    for name, pilot in pilots.items():
        if name not in journalled and pilot.start is not None and pilot.works:
            slot = Slot(
                site=pilot.site,
                start=max(pilot.start, standing.now),
                duration=pilot.duration,
                processors=pilot.processors,
                unit_price=pilot.unit_price,
                fixed_price=pilot.fixed_price,
                divisible=math.isinf(pilot.duration) or not pilot.whole,
                leased=math.isinf(pilot.duration),
            )
            leases[name] = Purchase(slot=slot)
    is_pool = record.info.policy.kind == "pool"
    return replace(
        standing,
        leases=leases,
        queued=queued,
        opening={name: worker_starts(sites[one.slot.site]) for name, one in leases.items()},
        held=held,
        lease_of={task: pilot.name for pilot in pilots.values() for task in pilot.tasks},
        plan=plan if plan.placements and not is_pool else None,
        spare=_spare(record, held) if is_pool else {},
    )


def _spare(record: RunRecord, held: Mapping[str, int]) -> dict[str, int]:
    return {
        site.name: max(site.processors - held.get(site.name, 0), 0) for site in record.info.sites
    }


def _purchase(lease: Lease, first: float, now: float, *, is_whole: bool) -> Purchase:
    """Return an open lease as a purchase from a start on the clock of the run."""
    # Open before now: its fixed price is paid.
    start = lease.start if lease.asked else min(lease.start, math.nextafter(now, -math.inf))
    endless = lease.until is None
    slot = Slot(
        site=lease.site,
        start=start - first,
        duration=math.inf if lease.until is None else max(lease.until - start, 1e-3),
        processors=lease.processors,
        unit_price=lease.unit_price,
        fixed_price=lease.fixed_price,
        divisible=endless or not is_whole,
        leased=endless,
    )
    return Purchase(slot=slot)


def _running(record: RunRecord, now: float) -> list[RunningAttempt]:
    """Return the attempts that were handed out and have not ended."""
    position = JournalPosition(None, None, None, 0)
    going: dict[tuple[int, int], AttemptStart] = {}
    for start in read_additions(record.folder.journal_file, position).starts:
        going.pop((start.task, start.attempt), None)
        if start.room:  # otherwise it was given back
            going[start.task, start.attempt] = start
    for ended in record.attempts:
        going.pop((ended.outcome.task, ended.outcome.attempt), None)
    return [
        RunningAttempt(one.task, one.site, one.lease, max(now - one.time, 0.0))
        for one in going.values()
        if one.task not in record.final
    ]
