"""Projects a real queue onto our model of a batch-scheduled cluster to see what will be free."""

import math
from dataclasses import replace

from bursar.cluster.machine import Machine
from bursar.cluster.slots import offered_slots
from bursar.model.errors import InputError
from bursar.model.slot import Slot, limit_offers
from bursar.provisioning.lrm.resource_manager import QueuedJob, QueueState

UNLIMITED = 30 * 86_400.0
"""Seconds that a job without a known limit is taken to last."""

SHORTEST = 60.0
"""Seconds of the shortest slot worth advertising."""


def project_queue(state: QueueState) -> Machine:
    """
    Return the queue on a simulated machine whose clock reads 0 now.

    Running jobs last to their limits, waiting ones start by EASY backfilling, which is what
    Slurm and its like do with the default priorities; held ones do not. Reservations are
    kept from all.

    Raises
    ------
    InputError
        When no node is up.
    """
    if not state.processors:
        raise InputError("no node is up")
    machine = Machine(state.processors, "easy", overrun="extend")
    left = machine.processors
    for job in state.jobs:
        width = min(_on_nodes_that_are_up(job, state), left) if job.running else 0
        if width:
            left -= width
            machine.submit(width, _remaining(job.began, job.seconds, state.at))
    # Held by jobs that this user does not see.
    held = sum(min(node.allocated, node.processors) for node in state.nodes if node.up)
    # Sites may hide other users' jobs, but their nodes show that processors are taken.
    hidden = min(held - (machine.processors - left), left)
    if hidden > 0:
        machine.submit(hidden, UNLIMITED)
    machine.advance(machine.now)
    for window in state.windows:
        start = max(0.0, window.start - state.at)
        _keep(machine, start, window.start + window.seconds - state.at, window.processors)
    for job in state.jobs:
        # Wider ones than the nodes that are up can never start, and the model would refuse them.
        if not job.running and not job.held and 1 <= job.processors <= machine.processors:
            machine.submit(job.processors, _asked(job.seconds))
    machine.advance(machine.now)
    return machine


def _on_nodes_that_are_up(job: QueuedJob, state: QueueState) -> int:
    """Count processors of a running job on nodes that are up; draining nodes offer nothing."""
    if not job.nodes:
        return job.processors
    up = {node.name for node in state.nodes if node.up}
    there = sum(name in up for name in job.nodes)
    # Schedulers list nodes, not processors on each: an even share, rounded up to promise too
    # little.
    return -(-job.processors * there // len(job.nodes))


def _keep(machine: Machine, start: float, end: float, processors: int) -> None:
    """
    Keep processors from jobs for a window, as many at each time as are free then.

    Jobs hold the others: jobs of the reservation itself, or jobs that overrun its start.
    """
    if not end > start:
        return
    times, free = machine.profile()
    ends = [*times[1:].tolist(), math.inf]
    for begin, until, count in zip(times.tolist(), ends, free.tolist(), strict=True):
        first, last = max(begin, start), min(until, end)
        width = min(processors, count)
        if last > first and width > 0:
            machine.reserve(first, last - first, width)


def slots_of(
    machine: Machine,
    site: str,
    *,
    most: int,
    longest: float,
    unit_price: float | None,
    fixed_price: float | None,
) -> tuple[Slot, ...]:
    """
    Return slots that a projected queue leaves free; starts are seconds from now.

    Parameters
    ----------
    most
        Processors that may be held at a time.
    longest
        Longest duration of one slot, seconds.
    """
    # Early and long first, since these take their share of the processors that may be held at all.
    free = sorted(offered_slots(machine), key=lambda slot: (slot.start, -slot.duration))
    offers = (
        replace(
            slot,
            site=site,
            duration=min(slot.duration, longest),
            unit_price=unit_price,
            fixed_price=fixed_price,
            divisible=True,
            extensible=False,
        )
        for slot in free
        if min(slot.duration, longest) >= SHORTEST
    )
    return tuple(limit_offers(offers, most))


def backfill_windows_of(machine: Machine) -> tuple[Slot, ...]:
    """Return the free slots as a pool's backfill windows; starts are seconds from now."""
    return tuple(offered_slots(machine, since=machine.now))


def _remaining(began: float | None, seconds: float | None, now: float) -> float:
    if began is None:
        return _asked(seconds)
    # A job past its limit is being killed: it holds its processors a little longer, never less.
    return max(began + _asked(seconds) - now, 1.0)


def _asked(seconds: float | None) -> float:
    return seconds if seconds is not None and 0 < seconds < math.inf else UNLIMITED
