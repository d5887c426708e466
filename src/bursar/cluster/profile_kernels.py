"""
The profile of a machine: how many processors are free, and when.

The profile is the part from ``k[K_LOW]`` to ``k[K_HIGH]`` of its arrays, ``k`` being the
integers of :mod:`bursar.cluster.kernels`; :mod:`bursar.profile_kernel` looks into it. What is
over falls away in front, so that changes need room now and then.
"""

import numpy as np
import numpy.typing as npt

from bursar.compiling import compiled
from bursar.profile_kernel import change as change_profile
from bursar.profile_kernel import earliest_start
from bursar.profile_kernel import least_free as least_free_in_profile

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
def change(
    k: IntArray, times: FloatArray, free: IntArray, begin: float, end: float, amount: int
) -> None:
    """Add ``amount`` to the free processors; see :func:`bursar.profile_kernel.change`."""
    low, high = k[K_LOW], k[K_HIGH]
    if high + 2 > len(
        times
    ):  # the arrays are long enough, so that trimmed steps left room in front
        for i in range(high - low):
            times[i] = times[low + i]
            free[i] = free[low + i]
        low, high = 0, high - low
        k[K_LOW] = low
    k[K_HIGH], _ = change_profile(times, free, low, high, begin, end, amount)


@compiled
def least_free(k: IntArray, times: FloatArray, free: IntArray, begin: float, end: float) -> int:
    """Return the fewest processors free at any moment of ``[begin, end)``."""
    least, _ = least_free_in_profile(times, free, k[K_LOW], k[K_HIGH], begin, end)
    return least


@compiled
def earliest(
    k: IntArray,
    times: FloatArray,
    free: IntArray,
    width: int,
    length: float,
    begin: float,
    promised: float,
) -> float:
    """Return the earliest start; see :func:`bursar.profile_kernel.earliest_start`."""
    return earliest_start(times, free, k[K_LOW], k[K_HIGH], begin, length, width, np.inf, promised)
