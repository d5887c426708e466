"""Computes longest paths through the workflow, and the bounds that follow from the paths."""

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
    Return the longest remaining path of each task, the task's own run time included.

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
def heads_and_tails(
    shortest: FloatArray, order: IntArray, parent_start: IntArray, parent_index: IntArray
) -> tuple[FloatArray, FloatArray]:
    """
    Return the least time before each task can start, and the least time after the task's end.

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
        Least time before and after each task, seconds, shape ``(n_tasks,)``.
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
        # By falling tail: each task added makes the least tail of those counted, so every t is
        # tried in one pass.
        for task in by_tail:
            if heads[task] >= head:
                total += work[task]
                for k in range(len(capacities)):
                    bound = head + total / capacities[k] + tails[task]
                    bounds[k] = max(bounds[k], bound)
    return bounds


@compiled
def after_others(
    keys: FloatArray, order: IntArray, parent_start: IntArray, parent_index: IntArray
) -> FloatArray:
    """
    Return the keys, raised where a task's key is less than a parent's, shape ``(n_tasks,)``.

    Sorted by them, with ties in ``order``, parents come before children.

    Parameters
    ----------
    order, parent_start, parent_index
        As in :func:`upward_ranks`.
    """
    raised = keys.copy()
    for task in order:
        for edge in range(parent_start[task], parent_start[task + 1]):
            raised[task] = max(raised[task], raised[parent_index[edge]])
    return raised
