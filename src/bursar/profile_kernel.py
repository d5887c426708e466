"""
Free processors over time, as a step function in arrays: the compiled operations.

``free[i]`` processors are free from ``times[i]`` until the next step begins; the last step
never ends, and neighbouring steps differ. A profile is the part ``low`` to ``high`` of two
arrays, so that one pair of arrays can hold many profiles, or room in front of one. Planning
keeps a profile for each slot and site, a batch cluster keeps one for its machine.

Two contiguous arrays and insertion by moving what follows beat lists and trees here, because
profiles stay short: at most some hundred steps in the logs of real machines.

:class:`bursar.model.slot.ResourceProfile` does the same in plain Python, for
callers with few changes; tests compare the two.

Times are floats and compared exactly.
"""

import numpy as np
import numpy.typing as npt

from bursar.compiling import compiled, compiled_part

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@compiled_part
def step_at(times: FloatArray, low: int, high: int, moment: float) -> int:
    """Return the index of the step that holds ``moment``; the first step where none does."""
    # The first step is what callers with a trimmed profile ask for most of the time.
    if low + 1 == high or times[low + 1] > moment:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if times[middle] <= moment:
            low = middle
        else:
            high = middle
    return low


@compiled
def least_free(
    times: FloatArray, free: IntArray, low: int, high: int, begin: float, end: float
) -> tuple[int, float]:
    """
    Return the fewest processors free at once in ``[begin, end)``, and when that is over.

    The second is the earliest later begin at which there may be more, infinite where there is
    none. An interval without a length is the moment ``begin``.
    """
    i = step_at(times, low, high, begin)
    least = free[i]
    at = i
    while i + 1 < high and times[i + 1] < end:
        i += 1
        # The last of several equal ones: until it is over, a later start finds no more.
        if free[i] <= least:
            least = free[i]
            at = i
    return least, times[at + 1] if at + 1 < high else np.inf


@compiled
def earliest_start(
    times: FloatArray,
    free: IntArray,
    low: int,
    high: int,
    ready: float,
    duration: float,
    width: int,
    give_up: float = np.inf,
    promised: float = np.inf,
) -> float:
    """
    Return the earliest moment from ``ready`` on with ``width`` processors free for ``duration``.

    Parameters
    ----------
    ready
        First moment that counts, not before the first step.
    give_up
        Latest end of the interval; infinite for none.
    promised
        From here on there is room anyway (a promise that would be given up, whose processors the
        profile shows as taken). This is the answer where nothing earlier is found; infinite for
        no such promise, and so as an answer: there is never room.
    """
    i = step_at(times, low, high, ready)
    start = ready
    while start < promised and start + duration <= give_up:
        # What lies behind the promised start is room of the job's own, which the profile shows
        # as taken.
        end = min(start + duration, promised)
        while free[i] >= width:
            i += 1
            if i == high or times[i] >= end:
                return start
        # An interval that meets a step with too little free can begin after that step at the
        # earliest: so one pass over the steps is enough.
        while free[i] < width:
            i += 1
            if i == high:
                return promised
        start = times[i]
    return promised


@compiled_part
def split_at(
    times: FloatArray, free: IntArray, low: int, high: int, moment: float
) -> tuple[int, int]:
    """
    Make a step begin at ``moment``, which is not before the first step.

    Return the step's index and the new ``high``. The arrays have room at ``high``.
    """
    i = step_at(times, low, high, moment)
    if times[i] == moment:
        return i, high
    for k in range(high, i + 1, -1):
        times[k] = times[k - 1]
        free[k] = free[k - 1]
    times[i + 1] = moment
    free[i + 1] = free[i]
    return i + 1, high + 1


@compiled_part
def merge_at(times: FloatArray, free: IntArray, low: int, high: int, i: int) -> int:
    """Join step ``i`` to the step before if both have as much free; return the new ``high``."""
    if not low < i < high or free[i] != free[i - 1]:
        return high
    for k in range(i, high - 1):
        times[k] = times[k + 1]
        free[k] = free[k + 1]
    return high - 1


@compiled
def change(
    times: FloatArray, free: IntArray, low: int, high: int, begin: float, end: float, amount: int
) -> tuple[int, int]:
    """
    Add ``amount`` to the free processors from ``begin`` to ``end``; a negative one takes them.

    Nothing changes where ``end`` is not after ``begin``; an infinite ``end`` changes all steps
    from ``begin`` on.

    Parameters
    ----------
    high
        End of the profile's part; the arrays have room for two more steps there.
    begin
        Not before the first step.

    Returns
    -------
    high, least : int
        The new end of the profile's part, and the fewest free at once in the interval afterwards.
    """
    if not end > begin:
        return high, free[step_at(times, low, high, begin)]
    first, high = split_at(times, free, low, high, begin)
    last = high
    if end < np.inf:
        # In this order: a step made at the end lies behind `first` and does not move it.
        last, high = split_at(times, free, low, high, end)
    free[first] += amount
    least = free[first]
    for i in range(first + 1, last):
        free[i] += amount
        least = min(least, free[i])
    high = merge_at(times, free, low, high, last)  # the later one first: it moves nothing before it
    high = merge_at(times, free, low, high, first)
    return high, least


def summed(begin: FloatArray, end: FloatArray, amounts: IntArray) -> tuple[FloatArray, IntArray]:
    """
    Return the sum of rectangles as a step function.

    Parameters
    ----------
    begin, end
        Seconds, shape ``(n,)``; an end may be infinite.
    amounts
        Heights of the rectangles, shape ``(n,)``, or ``(n, k)`` for ``k`` sums at once.

    Returns
    -------
    times, heights : ndarray
        Moments at which a rectangle begins or ends, ascending, and the sum from each of them on,
        shape ``(m,)`` or ``(m, k)``. Neighbouring steps may be equal.
    """
    moments = np.concatenate((begin, end))
    order = np.argsort(moments, kind="stable")
    times = moments[order]
    heights = np.cumsum(np.concatenate((amounts, -amounts))[order], axis=0)
    last = times < np.inf
    last[:-1] &= times[1:] != times[:-1]  # after the last change of a moment, all are counted
    return times[last], heights[last]


def merged(times: FloatArray, heights: IntArray) -> tuple[FloatArray, IntArray]:
    """Return a step function without the steps that equal the step before."""
    kept = np.concatenate((np.ones(len(times[:1]), dtype=np.bool_), np.diff(heights) != 0))
    return times[kept], heights[kept]


def integral_until(
    times: FloatArray, heights: npt.NDArray[np.int64] | FloatArray, instants: FloatArray
) -> FloatArray:
    """
    Return the integrals of a step function from its begin until each of some instants.

    Before the first step the function is 0.
    """
    if not len(times):
        return np.zeros(len(instants))
    done = np.concatenate(([0.0], np.cumsum(heights[:-1] * np.diff(times))))
    step = np.maximum(np.searchsorted(times, instants, side="right") - 1, 0)
    return np.asarray(done[step] + heights[step] * np.maximum(instants - times[step], 0.0))
