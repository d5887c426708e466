"""
The profile of a machine: how many processors are free, and when.

``free[i]`` processors are free from ``times[i]`` to ``times[i + 1]``; the last step never
ends, and neighbouring steps differ. The part of the arrays that counts is from ``k[K_LOW]``
to ``k[K_HIGH]``, ``k`` being the integers of :mod:`bursar.cluster.kernels`.
"""

import math

import numpy as np
import numpy.typing as npt

from bursar.compiling import compiled

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

K_NEXT, K_FRONT, K_QUEUE, K_HEAP, K_PUSHED, K_LOW, K_HIGH, K_RESERVATIONS, K_AGAIN = range(9)
K_SIZE = 9


@compiled
def trim(k: IntArray, times: FloatArray, free: IntArray, now: float) -> None:
    """Drop the profile before ``now``; the first step then begins at ``now``."""
    low, high = k[K_LOW], k[K_HIGH]
    while low + 1 < high and times[low + 1] <= now:
        low += 1
    # The first step is made to begin now, so that `free[low]` is what is free at this moment.
    if times[low] < now:
        times[low] = now
    k[K_LOW] = low


@compiled
def split(k: IntArray, times: FloatArray, free: IntArray, time: float) -> int:
    """Return the index of the step that begins at ``time``; make one where there is none."""
    low, high = k[K_LOW], k[K_HIGH]
    left, right = low, high
    while left < right:  # the first step that begins at or after the time
        middle = (left + right) // 2
        if times[middle] < time:
            left = middle + 1
        else:
            right = middle
    if left < high and times[left] == time:
        return int(left)
    if high == len(times):  # the arrays are long enough, so that trimmed steps left room in front
        count = high - low
        for i in range(count):
            times[i] = times[low + i]
            free[i] = free[low + i]
        k[K_LOW] = 0
        k[K_HIGH] = count
        left -= low
        low, high = 0, count
    for i in range(high, left, -1):
        times[i] = times[i - 1]
        free[i] = free[i - 1]
    times[left] = time
    free[left] = free[left - 1]
    k[K_HIGH] = high + 1
    return int(left)


@compiled
def merge(k: IntArray, times: FloatArray, free: IntArray, index: int) -> None:
    """Join a step to the one before where both have the same number free."""
    if index <= k[K_LOW] or index >= k[K_HIGH] or free[index] != free[index - 1]:
        return
    high = k[K_HIGH]
    for i in range(index, high - 1):
        times[i] = times[i + 1]
        free[i] = free[i + 1]
    k[K_HIGH] = high - 1


@compiled
def change(
    k: IntArray, times: FloatArray, free: IntArray, begin: float, end: float, amount: int
) -> None:
    """
    Add ``amount`` to the free processors from ``begin`` to ``end``; negative: take them.

    ``begin`` must not lie before the profile. An infinite ``end`` changes all steps from
    ``begin`` on; with an ``end`` not after ``begin`` nothing changes.
    """
    if end <= begin:
        return
    split(k, times, free, begin)
    if end == math.inf:
        last = k[K_HIGH]
    else:
        split(k, times, free, end)
        last = -1
    # Splitting may have moved the whole profile: look the begin up again.
    first = split(k, times, free, begin)
    i = first
    while i < k[K_HIGH] and (last >= 0 or times[i] < end):
        free[i] += amount
        i += 1
    merge(k, times, free, i)
    merge(k, times, free, first)


@compiled
def least_free(k: IntArray, times: FloatArray, free: IntArray, begin: float, end: float) -> int:
    """The least number free at any moment of ``[begin, end)``."""
    low, high = k[K_LOW], k[K_HIGH]
    left, right = low, high
    while left < right:  # the last step that begins at or before the begin
        middle = (left + right) // 2
        if times[middle] <= begin:
            left = middle + 1
        else:
            right = middle
    i = max(left - 1, low)
    least = free[i]
    i += 1
    while i < high and times[i] < end:
        least = min(least, free[i])
        i += 1
    return int(least)


@compiled
def earliest(
    k: IntArray,
    times: FloatArray,
    free: IntArray,
    width: int,
    length: float,
    begin: float,
    guaranteed: float,
) -> float:
    """
    Return the earliest start, from ``begin`` on, of a window with room for a job.

    Parameters
    ----------
    width
        Processors that the job needs throughout.
    length
        Seconds that the window lasts.
    guaranteed
        From here on for ``length`` there is room anyhow (a promise that would
        be given up), so this is the answer where nothing earlier is; infinite
        for none. Infinite as an answer: there is never room.
    """
    high = k[K_HIGH]
    i = k[K_LOW]
    while i + 1 < high and times[i + 1] <= begin:
        i += 1
    start = max(begin, float(times[i]))
    while start < guaranteed:
        # What lies behind the guaranteed start is room of the job's own, which the profile shows
        # as taken.
        end = min(start + length, guaranteed)
        clear = True
        while i < high and times[i] < end:
            if free[i] < width:
                clear = False
                break
            i += 1
        if clear:
            return start
        while i < high and free[i] < width:
            i += 1
        if i == high:
            return guaranteed
        start = float(times[i])
    return guaranteed
