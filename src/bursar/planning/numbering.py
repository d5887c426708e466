"""
Which processors each task holds.

A schedule counts processors. As those of one site are interchangeable and a
task may hold any of them, numbers can always be given afterwards: in order of
start, each task takes the lowest that are free.
"""

import heapq
from collections.abc import Sequence

Interval = tuple[float, float, int]
"""Start, finish and width of a task."""


def number_processors(intervals: Sequence[Interval]) -> list[tuple[int, ...]]:
    """
    Return processor numbers, ascending, for each of a site's tasks.

    Parameters
    ----------
    intervals
        Tasks of one site. An end frees processors before a start takes them.

    Returns
    -------
    list
        One tuple per interval. No two that overlap share a number, and the
        numbers stay below the most held at once. A task without duration takes
        the lowest, whoever holds them.
    """
    order = sorted(range(len(intervals)), key=lambda i: (intervals[i][:2], i))
    numbers: list[tuple[int, ...]] = [()] * len(intervals)
    free: list[int] = []
    used = 0  # numbers given so far are 0 .. used - 1
    running: list[tuple[float, int]] = []
    for i in order:
        start, finish, width = intervals[i]
        # Ends at a start's moment first, or two tasks that follow one another would need two
        # processors.
        while running and running[0][0] <= start:
            _, ended = heapq.heappop(running)
            for number in numbers[ended]:
                heapq.heappush(free, number)
        if finish <= start:
            numbers[i] = tuple(range(width))
            continue
        # The lowest free numbers, and a new one only when none is free: so no more numbers are
        # used than are held at once.
        taken = [heapq.heappop(free) for _ in range(min(width, len(free)))]
        taken += range(used, used + width - len(taken))
        used = max(used, max(taken) + 1)
        numbers[i] = tuple(taken)
        heapq.heappush(running, (finish, i))
    return numbers


def consecutive_runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return first number and length of each run of consecutive numbers."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and sum(found[-1]) == number:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((number, 1))
    return found
