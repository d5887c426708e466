"""
Ends of a campaign under many draws of its run times, as its tasks would be given out.

The kernel gives tasks to processors as a run's engine does: a task may start when its parents have
ended, in the plan's order, on the first processors of its lease that are free. It has no slots that
end: a run prolongs a lease as far as the money goes, and what that costs is what is forecast.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bursar.compiling import compiled, compiled_part

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

ANYWHERE = -1
"""Lease of a task that runs wherever processors are free first."""


class DispatchProblem(NamedTuple):
    """
    Tasks that have not ended, in the order in which they are given out, and their leases.

    Parameters
    ----------
    lease
        Number of the lease of each task; :data:`ANYWHERE`: whichever has room. Shape ``(n,)``.
    width
        Processors that each task holds.
    parents
        Number of tasks that must have ended before each one, and have not.
    first_child, children
        Those that wait for task ``i`` are ``children[first_child[i]:first_child[i + 1]]``.
    processors
        Processors of each lease, shape ``(leases,)``.
    """

    lease: IntArray
    width: IntArray
    parents: IntArray
    first_child: IntArray
    children: IntArray
    processors: IntArray


class DispatchReplay(NamedTuple):
    """
    End, and use of the leases, in each draw.

    Parameters
    ----------
    end
        When the last task ended, seconds, shape ``(draws,)``; infinite where some task can never
        start, because its lease is too narrow.
    last_use
        When the last task of each lease ended; 0 for one that nothing used. ``(draws, leases)``.
    busy
        Processor-seconds that tasks used of each lease. ``(draws, leases)``.
    """

    end: FloatArray
    last_use: FloatArray
    busy: FloatArray


@compiled_part
def _push(keys: FloatArray, items: IntArray, size: int, key: float, item: int) -> None:
    """Add an item to a heap of ``size`` items, the least key (then the least item) first."""
    k = size
    while k > 0:
        above = (k - 1) // 2
        if keys[above] < key or (keys[above] == key and items[above] <= item):
            break
        keys[k] = keys[above]
        items[k] = items[above]
        k = above
    keys[k] = key
    items[k] = item


@compiled_part
def _join(waiting: IntArray, size: int, task: int) -> None:
    """Add a task to a heap of ``size`` waiting tasks, the lowest number first."""
    k = size
    while k > 0:
        above = (k - 1) // 2
        if waiting[above] <= task:
            break
        waiting[k] = waiting[above]
        k = above
    waiting[k] = task


@compiled_part
def _leave(waiting: IntArray, size: int) -> None:
    """Remove the first of a heap of ``size`` waiting tasks."""
    size -= 1
    task = waiting[size]
    k = 0
    below = 1
    while below < size:
        below += below + 1 < size and waiting[below + 1] < waiting[below]
        if task <= waiting[below]:
            break
        waiting[k] = waiting[below]
        k = below
        below = 2 * k + 1
    waiting[k] = task


@compiled_part
def _pop(keys: FloatArray, items: IntArray, size: int) -> None:
    """Remove the first item of a heap of ``size`` items."""
    size -= 1
    key, item = keys[size], items[size]
    k = 0
    below = 1
    while below < size:
        right = below + 1
        if right < size and (
            keys[right] < keys[below]
            or (keys[right] == keys[below] and items[right] < items[below])
        ):
            below = right
        if key < keys[below] or (key == keys[below] and item <= items[below]):
            break
        keys[k] = keys[below]
        items[k] = items[below]
        k = below
        below = 2 * k + 1
    keys[k] = key
    items[k] = item


@compiled
def replay_dispatch(
    problem: DispatchProblem,
    runtimes: FloatArray,
    opening: FloatArray,
    slowness: FloatArray,
) -> DispatchReplay:
    """
    Return what comes of each draw of run times.

    Parameters
    ----------
    runtimes
        Seconds that each task takes at a lease of slowness 1, shape ``(draws, n)``.
    opening
        When each lease has its processors, seconds, shape ``(draws, leases)``; infinite: never.
    slowness
        Factor of the run times at each lease, shape ``(draws, leases)``.
    """
    lease, width = problem.lease, problem.width
    first_child, children = problem.first_child, problem.children
    draws, n = runtimes.shape
    leases = len(problem.processors)
    result_end = np.zeros(draws)
    last_use = np.zeros((draws, leases))
    busy = np.zeros((draws, leases))
    # A heap of waiting tasks for each lease, and one for those that may run anywhere: a lease's
    # first task is that of the lower number, which is given out earlier.
    room = np.zeros(leases + 1, dtype=np.int64)
    for task in range(n):
        room[lease[task] if lease[task] >= 0 else leases] += 1
    base = np.zeros(leases + 2, dtype=np.int64)
    for queue in range(leases + 1):
        base[queue + 1] = base[queue] + room[queue]
    waiting = np.empty(n, dtype=np.int64)
    ends = np.empty(n + leases)
    ended = np.empty(n + leases, dtype=np.int64)
    place = np.empty(n, dtype=np.int64)
    for draw in range(draws):
        awaited = problem.parents.copy()
        free = np.zeros(leases, dtype=np.int64)
        count = np.zeros(leases + 1, dtype=np.int64)
        running = 0
        left = n
        # Openings are events like ends: numbers from n on.
        for number in range(leases):
            if opening[draw, number] < np.inf:
                _push(ends, ended, running, opening[draw, number], n + number)
                running += 1
        for task in range(n):
            if awaited[task] == 0:
                queue = lease[task] if lease[task] >= 0 else leases
                at = base[queue]
                _join(waiting[at : at + room[queue]], count[queue], task)
                count[queue] += 1
        now = 0.0
        while running > 0:
            now = ends[0]
            while running > 0 and ends[0] == now:
                event = ended[0]
                _pop(ends, ended, running)
                running -= 1
                if event >= n:
                    free[event - n] = problem.processors[event - n]
                    continue
                left -= 1
                free[place[event]] += width[event]
                for at in range(first_child[event], first_child[event + 1]):
                    child = children[at]
                    awaited[child] -= 1
                    if awaited[child] == 0:
                        queue = lease[child] if lease[child] >= 0 else leases
                        low = base[queue]
                        _join(waiting[low : low + room[queue]], count[queue], child)
                        count[queue] += 1
            for queue in range(leases + 1):
                while count[queue] > 0:
                    low = base[queue]
                    task = waiting[low]
                    chosen = -1
                    if queue < leases:
                        if free[queue] >= width[task]:
                            chosen = queue
                    else:
                        for number in range(leases):
                            if free[number] >= width[task] and (
                                chosen < 0 or slowness[draw, number] < slowness[draw, chosen]
                            ):
                                chosen = number
                    if chosen < 0:
                        break
                    _leave(waiting[low : low + room[queue]], count[queue])
                    count[queue] -= 1
                    place[task] = chosen
                    free[chosen] -= width[task]
                    seconds = runtimes[draw, task] * slowness[draw, chosen]
                    busy[draw, chosen] += seconds * width[task]
                    last_use[draw, chosen] = max(last_use[draw, chosen], now + seconds)
                    _push(ends, ended, running, now + seconds, task)
                    running += 1
        # The last opening of a lease that nothing uses is no end of the campaign.
        if left > 0:
            result_end[draw] = np.inf
        else:
            for number in range(leases):
                result_end[draw] = max(result_end[draw], last_use[draw, number])
    return DispatchReplay(result_end, last_use, busy)
