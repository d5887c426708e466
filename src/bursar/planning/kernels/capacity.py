"""Computes when empty slots could host tasks, and how much work the slots can do by when."""

import numpy as np

from bursar.compiling import compiled, compiled_part
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray


@compiled_part
def earliest_host(
    begin: FloatArray,
    last: FloatArray,
    opening: IntArray,
    closing: IntArray,
    processors: IntArray,
    low: int,
    high: int,
    ready: float,
    runtime: float,
    width: int,
    slack: float,
) -> float:
    """
    First start from ``ready`` on with ``width`` processors that stay for ``runtime``.

    Infinite when there is none. The slots are ``opening[low:high]`` by ``begin``,
    and ``closing[low:high]`` by ``last``, with nothing in them; one that misses
    the end by no more than ``slack`` counts.
    """
    found = 0
    opened, closed = low, low
    start = ready
    while True:
        while closed < high and last[closing[closed]] - runtime < start - slack:
            slot = closing[closed]
            # Whether it was counted: it had begun, and was long enough then.
            if begin[slot] < start and last[slot] - runtime >= max(begin[slot], ready) - slack:
                found -= processors[slot]
            closed += 1
        while opened < high and begin[opening[opened]] <= start:
            slot = opening[opened]
            if last[slot] - runtime >= start - slack:
                found += processors[slot]
            opened += 1
        if found >= width:
            return start
        if opened == high:
            return np.inf
        start = begin[opening[opened]]


@compiled
def earliest_starts(
    runtimes: FloatArray,
    widths: IntArray,
    order: IntArray,
    parent_start: IntArray,
    parent_index: IntArray,
    parent_bytes: FloatArray,
    latency: FloatArray,
    pace: FloatArray,
    first: IntArray,
    begin: FloatArray,
    last: FloatArray,
    opening: IntArray,
    closing: IntArray,
    processors: IntArray,
    origin: float,
    slack: float,
) -> FloatArray:
    """
    Return the earliest start of each task on each site, with no tasks but the ancestors.

    Each ancestor may run on another site for each of its descendants. The same
    with time, edges and transfers turned around gives latest finishes.

    Parameters
    ----------
    runtimes, widths, parent_start, parent_index, parent_bytes, latency, pace
        As in :class:`bursar.planning.kernels.placing.TaskArrays`.
    order
        Tasks, parents before children, shape ``(n_tasks,)``.
    first
        Slots of site ``s`` are ``opening[first[s]:first[s + 1]]``, by ``begin``,
        and the same part of ``closing``, by ``last``.
    begin, last
        First and last moment of use, seconds, shape ``(n_slots,)``.
    processors
        Of each slot, shape ``(n_slots,)``.
    origin
        Moment before which nothing starts, seconds.
    slack
        A slot that ends so much too early is long enough, seconds.

    Returns
    -------
    ndarray
        Seconds, shape ``(n_tasks, n_sites)``; infinite where it cannot run.
    """
    n_sites = runtimes.shape[1]
    starts = np.full(runtimes.shape, np.inf)
    for task in order:
        for s in range(n_sites):
            if runtimes[task, s] == np.inf:
                continue
            ready = origin
            for edge in range(parent_start[task], parent_start[task + 1]):
                parent = parent_index[edge]
                arrival = starts[parent, s] + runtimes[parent, s]
                for o in range(n_sites):
                    if o != s:
                        transfer = latency[o, s] + parent_bytes[edge] * pace[o, s]
                        arrival = min(arrival, starts[parent, o] + runtimes[parent, o] + transfer)
                ready = max(ready, arrival)
            if ready < np.inf and runtimes[task, s] > 0:
                ready = earliest_host(
                    begin,
                    last,
                    opening,
                    closing,
                    processors,
                    first[s],
                    first[s + 1],
                    ready,
                    runtimes[task, s],
                    widths[task],
                    slack,
                )
            starts[task, s] = ready
    return starts


@compiled
def starts_in_slots(
    tasks: IntArray,
    slots: IntArray,
    site: IntArray,
    runtimes: FloatArray,
    widths: IntArray,
    ready: FloatArray,
    first: IntArray,
    begin: FloatArray,
    last: FloatArray,
    opening: IntArray,
    closing: IntArray,
    processors: IntArray,
    slack: float,
) -> FloatArray:
    """
    Earliest start of tasks that take processors from given slots, among others.

    Parameters
    ----------
    tasks, slots
        Pairs, shape ``(n,)``.
    site
        Of each slot, shape ``(n_slots,)``.
    ready
        Earliest start of each task on each site, shape ``(n_tasks, n_sites)``.

    Returns
    -------
    ndarray
        Seconds, shape ``(n,)``; infinite where there is none. The other
        parameters are those of :func:`earliest_starts`.
    """
    starts = np.empty(len(tasks))
    for k in range(len(tasks)):
        s = site[slots[k]]
        runtime = runtimes[tasks[k], s]
        start = max(ready[tasks[k], s], begin[slots[k]])
        if start < np.inf and start <= last[slots[k]] - runtime + slack:
            start = earliest_host(
                begin,
                last,
                opening,
                closing,
                processors,
                first[s],
                first[s + 1],
                start,
                runtime,
                widths[tasks[k]],
                slack,
            )
        starts[k] = start if start <= last[slots[k]] - runtime + slack else np.inf
    return starts


@compiled
def is_overfull(
    work: FloatArray,
    by_head: IntArray,
    by_deadline: IntArray,
    done_by_head: FloatArray,
    done_by_deadline: FloatArray,
    tolerance: float,
) -> bool:
    """
    Whether the work between some head and some deadline is more than what fits.

    Parameters
    ----------
    work
        Least work of each task, shape ``(n_tasks,)``.
    by_head, by_deadline
        Tasks by earliest start and by latest finish, shape ``(n_tasks,)``.
    done_by_head, done_by_deadline
        Most work all slots can have done by each task's earliest start and latest
        finish, shape ``(n_tasks,)``.
    tolerance
        Share by which work may be more.

    References
    ----------
    .. [1] Vilim (2009). Max energy filtering algorithm for discrete cumulative
       resources. CPAIOR, LNCS 5547: 294-308, section 3: a tree over the heads
       keeps the greatest of done_by_head + work of the tasks from there on.
    """
    # A complete binary tree in an array: children of node `i` are `2 * i` and `2 * i + 1`, so
    # that each task changes only the nodes above its leaf.
    leaves = 1
    while leaves < len(work):
        leaves *= 2
    leaf = np.empty(len(work), dtype=np.int64)
    for k in range(len(work)):
        leaf[by_head[k]] = leaves + k
    total = np.zeros(2 * leaves)
    envelope = np.full(2 * leaves, -np.inf)
    for task in by_deadline:
        node = leaf[task]
        total[node] = work[task]
        envelope[node] = done_by_head[task] + work[task]
        while node > 1:
            node //= 2
            left, right = 2 * node, 2 * node + 1
            total[node] = total[left] + total[right]
            # Greatest over all heads of what is done by that head and the tasks from there on:
            # either the head lies on the right, or on the left with all of the right added.
            envelope[node] = max(envelope[right], envelope[left] + total[right])
        # In the tree are the tasks with deadlines up to this one, which must all be done by then.
        if envelope[1] > done_by_deadline[task] * (1 + tolerance):
            return True
    return False


@compiled
def window_demands(
    opens: FloatArray,
    closes: FloatArray,
    starts: FloatArray,
    finishes: FloatArray,
    runtimes: FloatArray,
    rates: FloatArray,
    possible: BoolArray,
) -> FloatArray:
    """
    Least work done within each window, wherever in their own windows tasks run.

    Parameters
    ----------
    opens, closes
        Where windows begin and end, seconds, shape ``(n_opens,)`` and ``(n_closes,)``.
    starts, finishes
        Earliest start and latest finish, seconds, shape ``(n_tasks, n_sites)``.
    runtimes
        Seconds, shape ``(n_tasks, n_sites)``.
    rates
        Work per second while the task runs, shape ``(n_tasks, n_sites)``.
    possible
        Whether the task can run there, shape ``(n_tasks, n_sites)``.

    Returns
    -------
    ndarray
        Shape ``(n_opens, n_closes)``.
    """
    n_tasks, n_sites = runtimes.shape
    demands = np.zeros((len(opens), len(closes)))
    for task in range(n_tasks):
        for i in range(len(opens)):
            for j in range(len(closes)):
                least = np.inf
                for s in range(n_sites):
                    if possible[task, s]:
                        runtime = runtimes[task, s]
                        # Least overlap with the window (energetic reasoning): the task is pushed
                        # as early, then as late, as it may run.
                        inside = min(
                            min(runtime, closes[j] - opens[i]),
                            min(
                                starts[task, s] + runtime - opens[i],
                                closes[j] - (finishes[task, s] - runtime),
                            ),
                        )
                        least = min(least, rates[task, s] * max(inside, 0.0))
                demands[i, j] += least
    return demands


@compiled
def window_supplies(
    opens: FloatArray,
    closes: FloatArray,
    begin: FloatArray,
    end: FloatArray,
    part_begin: FloatArray,
    part_end: FloatArray,
    part_from: FloatArray,
    rates: FloatArray,
    bought: FloatArray,
    paid: FloatArray,
) -> FloatArray:
    """
    Most work that a purchase does within each window.

    Parameters
    ----------
    opens, closes
        As in :func:`window_demands`.
    begin, end
        Time of each slot that is bought whole, seconds, shape ``(n_slots,)``.
    part_begin, part_end
        Time of which a part is paid, seconds, shape ``(n_slots,)``.
    part_from
        Since when that payment is for a rectangle, seconds; minus infinite where
        just what is used is paid, shape ``(n_slots,)``.
    rates
        Work per second of all the slot's processors, shape ``(n_slots,)``.
    bought
        Share of the slot bought, shape ``(n_slots,)``.
    paid
        Work that the paid part could do, shape ``(n_slots,)``.

    Returns
    -------
    ndarray
        Shape ``(n_opens, n_closes)``.
    """
    supplies = np.zeros((len(opens), len(closes)))
    for slot in range(len(begin)):
        if bought[slot] <= 0:
            continue
        for i in range(len(opens)):
            for j in range(len(closes)):
                whole = min(closes[j], end[slot]) - max(opens[i], begin[slot])
                if whole > 0:
                    supplies[i, j] += bought[slot] * rates[slot] * whole
                close = min(closes[j], part_end[slot])
                part = close - max(opens[i], part_begin[slot])
                if part > 0 and paid[slot] > 0:
                    share = 1.0
                    if part_from[slot] > -np.inf:
                        # A rectangle that is paid since `part_from` does only the later part of
                        # its work within the window.
                        share = part / (close - part_from[slot])
                    supplies[i, j] += min(share * paid[slot], bought[slot] * rates[slot] * part)
    return supplies
