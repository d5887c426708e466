"""
The loops that planning spends its time in: arrays and numbers only.

A site's free processors over time are a *profile*: ``times[i]`` is when step
``i`` begins, ``free[i]`` how many processors are free until the next step; the
first ``steps`` entries count, the last step never ends, and neighbours differ.
Processors of one site are interchangeable, so counts are enough here; which
processor a task holds is decided afterwards (:mod:`bursar.planning.numbering`).
"""

import numpy as np
import numpy.typing as npt

from bursar.compiling import compiled

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@compiled
def upward_ranks(
    runtimes: FloatArray,
    transfers: FloatArray,
    order: IntArray,
    parent_start: IntArray,
    parent_index: IntArray,
) -> FloatArray:
    """
    Longest remaining path of each task, its own run time included.

    Parameters
    ----------
    runtimes
        Mean run time, seconds, shape ``(n_tasks,)``.
    transfers
        Mean transfer time of each edge, seconds, shape ``(n_edges,)``.
    order
        Tasks, parents before children, shape ``(n_tasks,)``.
    parent_start, parent_index
        Parents of task ``i`` are ``parent_index[parent_start[i]:parent_start[i + 1]]``;
        an edge is a position in ``parent_index``.

    Returns
    -------
    ndarray
        Rank, seconds, shape ``(n_tasks,)``.

    References
    ----------
    .. [1] Topcuoglu, Hariri, Wu (2002). IEEE TPDS 13(3): 260-274, section 4.1.
    """
    below = np.zeros(len(order))
    ranks = np.empty(len(order))
    for task in order[::-1]:
        ranks[task] = runtimes[task] + below[task]
        for edge in range(parent_start[task], parent_start[task + 1]):
            parent = parent_index[edge]
            below[parent] = max(below[parent], transfers[edge] + ranks[task])
    return ranks


@compiled
def step_at(times: FloatArray, steps: int, moment: float) -> int:
    """Index of the step that holds ``moment``, which is not before the first."""
    low, high = 0, steps
    while high - low > 1:
        middle = (low + high) // 2
        if times[middle] <= moment:
            low = middle
        else:
            high = middle
    return low


@compiled
def earliest_start(
    times: FloatArray,
    free: IntArray,
    steps: int,
    ready: float,
    duration: float,
    width: int,
    give_up: float,
) -> float:
    """
    First moment from ``ready`` on with ``width`` processors free for ``duration``.

    Infinite when the task would not end before ``give_up``. ``width`` is not
    more than the site has.
    """
    start = ready
    for i in range(step_at(times, steps, ready), steps):
        if start + duration >= give_up:
            break
        if free[i] < width:
            start = times[i + 1]  # the last step is wholly free, so there is a next
        elif i + 1 == steps or times[i + 1] >= start + duration:
            return start
    return np.inf


@compiled
def split_at(times: FloatArray, free: IntArray, steps: int, moment: float) -> tuple[int, int]:
    """
    Makes a step begin at ``moment``; answers its index and the number of steps.
    """
    i = step_at(times, steps, moment)
    if times[i] == moment:
        return i, steps
    for k in range(steps, i + 1, -1):
        times[k] = times[k - 1]
        free[k] = free[k - 1]
    times[i + 1] = moment
    free[i + 1] = free[i]
    return i + 1, steps + 1


@compiled
def merge_at(times: FloatArray, free: IntArray, steps: int, i: int) -> int:
    """
    Drops step ``i`` if it equals the one before it; answers the number of steps.
    """
    if i == 0 or free[i] != free[i - 1]:
        return steps
    for k in range(i, steps - 1):
        times[k] = times[k + 1]
        free[k] = free[k + 1]
    return steps - 1


@compiled
def occupy(
    times: FloatArray, free: IntArray, steps: int, start: float, finish: float, width: int
) -> int:
    """
    Takes ``width`` processors from ``start`` to ``finish``; answers the number of steps.

    The arrays need room for two more steps.
    """
    first, steps = split_at(times, free, steps, start)
    last, steps = split_at(times, free, steps, finish)
    for i in range(first, last):
        free[i] -= width
    steps = merge_at(times, free, steps, last)  # the later one first: it moves nothing before it
    return merge_at(times, free, steps, first)


@compiled
def place(
    priority: IntArray,
    runtimes: FloatArray,
    widths: IntArray,
    bought: IntArray,
    parent_start: IntArray,
    parent_index: IntArray,
    parent_bytes: FloatArray,
    latency: FloatArray,
    seconds_per_byte: FloatArray,
) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """
    Gives each task, in turn, the site and moment at which it finishes earliest.

    A task may go into any gap that is long and wide enough. Sites that finish
    it at the same moment: the one named first. A task without duration starts
    when its data are there and holds nothing.

    Parameters
    ----------
    priority
        Tasks, parents before children, shape ``(n_tasks,)``.
    runtimes
        Seconds, shape ``(n_tasks, n_sites)``; infinite where a task cannot run.
    widths
        Processors a task holds, shape ``(n_tasks,)``.
    bought
        Processors of each site, shape ``(n_sites,)``; 0: none.
    parent_start, parent_index, parent_bytes
        Parents of each task as in :func:`upward_ranks`, and the bytes that pass
        along each edge.
    latency, seconds_per_byte
        Of a transfer from one site to another, shape ``(n_sites, n_sites)``;
        not used within a site.

    Returns
    -------
    site
        Index, shape ``(n_tasks,)``; -1 from the first task that fits nowhere on.
    start, finish
        Seconds, shape ``(n_tasks,)``.
    peak
        Processors that the tasks of each site need, shape ``(n_sites,)``: the
        most held at once, and no less than the widest.

    References
    ----------
    .. [1] Topcuoglu, Hariri, Wu (2002). IEEE TPDS 13(3): 260-274, section 4.2.
    """
    n_tasks, n_sites = runtimes.shape
    times = np.empty((n_sites, 2 * n_tasks + 3))
    free = np.empty((n_sites, 2 * n_tasks + 3), dtype=np.int64)
    steps = np.ones(n_sites, dtype=np.int64)
    for s in range(n_sites):
        times[s, 0] = 0.0
        free[s, 0] = bought[s]
    site = np.full(n_tasks, -1)
    start = np.zeros(n_tasks)
    finish = np.zeros(n_tasks)
    peak = np.zeros(n_sites, dtype=np.int64)

    for task in priority:
        width = widths[task]
        finish[task] = np.inf
        for s in range(n_sites):
            duration = runtimes[task, s]
            if width > bought[s] or duration == np.inf:
                continue
            begin = 0.0
            for edge in range(parent_start[task], parent_start[task + 1]):
                parent = parent_index[edge]
                arrival = finish[parent]
                if site[parent] != s:
                    pace = seconds_per_byte[site[parent], s]
                    arrival += latency[site[parent], s] + parent_bytes[edge] * pace
                begin = max(begin, arrival)
            if duration > 0:
                begin = earliest_start(
                    times[s], free[s], steps[s], begin, duration, width, finish[task]
                )
            if begin + duration < finish[task]:
                site[task], start[task], finish[task] = s, begin, begin + duration
        s = site[task]
        if s < 0:
            break
        peak[s] = max(peak[s], width)
        if finish[task] > start[task]:
            steps[s] = occupy(times[s], free[s], steps[s], start[task], finish[task], width)

    for s in range(n_sites):
        peak[s] = max(peak[s], bought[s] - free[s, : steps[s]].min())
    return site, start, finish, peak


@compiled
def replace_least(heap: FloatArray, size: int, value: float) -> None:
    """
    Puts ``value`` in the place of the least of the first ``size``, kept as a heap.
    """
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = value


@compiled
def place_bag(
    priority: IntArray, runtimes: FloatArray, bought: IntArray
) -> tuple[IntArray, FloatArray, FloatArray, IntArray]:
    """
    What :func:`place` answers for independent tasks of one processor, sooner.

    All are ready at once, so no gap is ever left: the earliest start on a site
    is when the first of its processors is done.

    Parameters
    ----------
    priority, runtimes, bought
        As in :func:`place`.

    Returns
    -------
    site, start, finish, peak
        As in :func:`place`.
    """
    n_tasks, n_sites = runtimes.shape
    done = np.zeros((n_sites, max(1, bought.max())))  # a heap for each site
    site = np.full(n_tasks, -1)
    start = np.zeros(n_tasks)
    finish = np.zeros(n_tasks)
    peak = np.zeros(n_sites, dtype=np.int64)

    for task in priority:
        finish[task] = np.inf
        for s in range(n_sites):
            duration = runtimes[task, s]
            if bought[s] == 0 or duration == np.inf:
                continue
            begin = done[s, 0] if duration > 0 else 0.0
            if begin + duration < finish[task]:
                site[task], start[task], finish[task] = s, begin, begin + duration
        s = site[task]
        if s < 0:
            break
        peak[s] = 1
        if finish[task] > start[task]:
            replace_least(done[s], bought[s], finish[task])

    for s in range(n_sites):
        peak[s] = max(peak[s], (done[s, : bought[s]] > 0).sum())
    return site, start, finish, peak


@compiled
def heads_and_tails(
    shortest: FloatArray, order: IntArray, parent_start: IntArray, parent_index: IntArray
) -> tuple[FloatArray, FloatArray]:
    """
    Least time before each task can start, and least time after its end.

    Parameters
    ----------
    shortest
        Least run time of each task on any site, seconds, shape ``(n_tasks,)``.
    order, parent_start, parent_index
        As in :func:`upward_ranks`.

    Returns
    -------
    heads, tails
        Seconds, shape ``(n_tasks,)``.
    """
    heads = np.zeros(len(order))
    tails = np.zeros(len(order))
    for task in order:
        for edge in range(parent_start[task], parent_start[task + 1]):
            parent = parent_index[edge]
            heads[task] = max(heads[task], heads[parent] + shortest[parent])
    for task in order[::-1]:
        for edge in range(parent_start[task], parent_start[task + 1]):
            parent = parent_index[edge]
            tails[parent] = max(tails[parent], tails[task] + shortest[task])
    return heads, tails


@compiled
def energetic_bounds(
    heads: FloatArray,
    tails: FloatArray,
    work: FloatArray,
    by_tail: IntArray,
    levels: FloatArray,
    capacities: FloatArray,
) -> FloatArray:
    """
    Least makespan for each capacity, from the work between a head and a tail.

    Tasks that cannot start before h and are followed by at least t must do all
    their work in the time from h to the makespan less t.

    Parameters
    ----------
    heads, tails
        Of each task, seconds, shape ``(n_tasks,)``.
    work
        Least work of each task, shape ``(n_tasks,)``.
    by_tail
        Tasks by falling tail, shape ``(n_tasks,)``.
    levels
        The heads h to try, seconds. Every t is tried.
    capacities
        Work done per second when everything is busy, shape ``(n,)``. Positive.

    Returns
    -------
    ndarray
        Seconds, shape ``(n,)``.
    """
    bounds = np.zeros(len(capacities))
    for head in levels:
        total = 0.0
        for task in by_tail:
            if heads[task] >= head:
                total += work[task]
                for k in range(len(capacities)):
                    bound = head + total / capacities[k] + tails[task]
                    bounds[k] = max(bounds[k], bound)
    return bounds
