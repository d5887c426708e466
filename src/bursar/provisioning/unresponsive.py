"""
Count processors of unresponsive workers, which cost money but run no tasks.

A worker is connected to the run; the connection breaks when its machine has not answered for the
heartbeat (:data:`bursar.dispatch.credential.SILENCE`), or at once when its process ends. From
then on its processors count as lost, although its pilot may be said to run for minutes: Slurm
waits for ``SlurmdTimeout``, usually 300 s, before it calls a node dead.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from bursar.model.allocation import Allocation
from bursar.model.provisioning import ProcessorDemand
from bursar.provisioning.pool_snapshot import AllocationRelease

STARTING = 120.0
"""Seconds after an allocation began for which processors without a worker count as starting."""

RETURNING = 1.0
"""Seconds to wait for a lost worker: a pilot replaces a dead worker within that time."""

PARTING = 10.0
"""
Seconds of silence after which an allocation without any worker is given back.

A pilot that has lost its connection tries to return at once and ever more rarely, so that six
attempts have failed by then.
"""

SILENCE = "its workers have gone silent"
"""Reason for releasing a silent allocation, for people and the journal."""

ROUNDING = 1e-9
"""Seconds by which the clock may be early."""


def responsive_allocation(allocation: Allocation, now: float) -> Allocation:
    """
    Reduce an allocation to the processors that tasks can count on.

    These are the ones with a connected worker, those whose worker may still be starting, and
    those whose worker went away just now and may be back in a moment.
    """
    a = allocation
    if a.granted is None or a.load.joined is None:
        return a
    count = a.load.ready
    if now < a.granted + STARTING - ROUNDING:
        count += a.processors - a.load.joined
    if a.load.silent_since is not None and now < a.load.silent_since + RETURNING - ROUNDING:
        count += a.load.joined - a.load.ready
    count = max(0, min(count, a.processors))
    return a if count == a.processors else replace(a, processors=count)


def is_unresponsive(allocation: Allocation) -> bool:
    """Whether an allocation had workers and has none left."""
    return bool(allocation.load.joined) and not allocation.load.ready


def release_unresponsive(
    allocations: Sequence[Allocation], demand: ProcessorDemand, now: float
) -> list[tuple[AllocationRelease, float]]:
    """
    Give back allocations that have been silent for too long.

    An allocation goes back as a whole: one of several nodes of which some still answer keeps
    working, and only its silent processors are replaced.

    Returns
    -------
    list of (AllocationRelease, float)
        Releases, each with the time since which the allocation is silent.
    """
    is_wanted = demand.tasks or demand.later
    found = []
    for a in allocations:
        if a.leaving or not is_unresponsive(a) or a.load.silent_since is None:
            continue
        # Without tasks there is nothing to wait for: silent processors only cost.
        if is_wanted and now < a.load.silent_since + PARTING - ROUNDING:
            continue
        found.append((AllocationRelease(name=a.name, reason=SILENCE), a.load.silent_since))
    return found


def next_silence_check(allocations: Iterable[Allocation], now: float) -> float:
    """Time at which silence or a slow start is next judged otherwise; infinite: never."""
    moments = []
    for a in allocations:
        if a.granted is None or a.load.joined is None or a.leaving:
            continue
        if a.load.joined < a.processors:
            moments.append(a.granted + STARTING)
        if a.load.silent_since is not None:
            moments.append(a.load.silent_since + RETURNING)
            if not a.load.ready:
                moments.append(a.load.silent_since + PARTING)
    return min((moment for moment in moments if moment > now + ROUNDING), default=math.inf)
