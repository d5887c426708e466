"""Slots, which are processors on offer, and free processors over time as a step function."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

# Free processors over time, as a step function in plain Python.


class ResourceProfile:
    """
    Tells how many processors are free at each moment, and changes that.

    The numbers may be negative: where processors are promised twice, or where a profile counts
    the processors that something adds and takes. Intervals contain their begin and not their
    end, so that one may follow another on the same processors. Times are compared exactly.

    :mod:`bursar.profile_kernel` does the same in compiled code, for callers with many changes.

    Parameters
    ----------
    free
        Processors free at all times.
    """

    def __init__(self, free: int = 0) -> None:
        self._times = [-math.inf]
        self._free = [free]

    @classmethod
    def summed(cls, changes: Iterable[tuple[float, float, int]], free: int = 0) -> Self:
        """Return the profile after many changes of so many free processors, in one sweep."""
        steps: Counter[float] = Counter()
        for begin, end, amount in changes:
            if end > begin:
                steps[begin] += amount
                steps[end] -= amount
        profile = cls(free)
        for moment in sorted(steps):
            # What begins and ends at the same moment cancels out.
            if steps[moment] and moment < math.inf:
                free += steps[moment]
                profile._times.append(moment)
                profile._free.append(free)
        return profile

    def change(self, begin: float, end: float, amount: int) -> None:
        """Add ``amount`` to the free processors from ``begin`` to ``end``, if that is later."""
        if not end > begin:
            return
        first, last = self._split(begin), len(self._times)
        if end < math.inf:
            last = self._split(end)
        for i in range(first, last):
            self._free[i] += amount
        self._merge(last)  # the later one first: it moves nothing before it
        self._merge(first)

    def least_free(self, begin: float, end: float) -> int:
        """Return the fewest free at once in ``[begin, end)``; without a length, at ``begin``."""
        first = bisect_right(self._times, begin) - 1
        last = bisect_left(self._times, end, lo=first + 1)
        return min(self._free[first:last])

    def earliest_start(
        self,
        ready: float,
        duration: float,
        width: int,
        *,
        give_up: float = math.inf,
        promised: float = math.inf,
    ) -> float:
        """
        Return the earliest moment from ``ready`` on with ``width`` free for ``duration``.

        Parameters
        ----------
        give_up
            Latest end of the interval.
        promised
            From here on there is room anyway; this is the answer where nothing earlier is found.
        """
        i = bisect_right(self._times, ready) - 1
        start = ready
        while start < promised and start + duration <= give_up:
            end = min(start + duration, promised)
            while self._free[i] >= width:
                i += 1
                if i == len(self._times) or self._times[i] >= end:
                    return start
            while self._free[i] < width:
                i += 1
                if i == len(self._times):
                    return promised
            start = self._times[i]
        return promised

    def integral(self, begin: float, end: float, *, above: int = 0) -> float:
        """Return the processor-seconds free, beyond so many processors, in a finite interval."""
        return math.fsum(
            (free - above) * (min(until, end) - since)
            for since, until, free in self.steps(begin)
            if since < end
        )

    def steps(self, begin: float = -math.inf) -> Iterator[tuple[float, float, int]]:
        """
        Yield start, end and free processors of each step, the first from ``begin`` on.

        The last step ends at infinity.
        """
        first = bisect_right(self._times, begin) - 1
        times = [begin, *self._times[first + 1 :], math.inf]
        for (since, until), free in zip(pairwise(times), self._free[first:], strict=True):
            yield since, until, free

    def layers(self, begin: float) -> list[tuple[float, float, int]]:
        """
        Cut what is free from ``begin`` on into long intervals: start, end and processors.

        What is always free is one interval without an end; what is free besides, between two
        times at which it is not, lies above it. Intervals overlap in time and share no processor.
        They come by start, lower ones first.
        """
        steps = list(self.steps(begin))
        levels = sorted({free for _, _, free in steps if free > 0})
        found = []
        # The number of free processors never lies between two neighbouring levels, so that each
        # layer is free or not: an interval goes on for as long as it is.
        for low, high in pairwise([0, *levels]):
            since: float | None = None
            for start, end, free in steps:
                if free >= high and since is None:
                    since = start
                if since is not None and (free < high or end == math.inf):
                    found.append((since, start if free < high else math.inf, high - low))
                    since = None
        return sorted(found, key=lambda layer: layer[0])

    def _split(self, moment: float) -> int:
        """Make a step begin at a moment; return its index."""
        i = bisect_right(self._times, moment) - 1
        if self._times[i] == moment:
            return i
        self._times.insert(i + 1, moment)
        self._free.insert(i + 1, self._free[i])
        return i + 1

    def _merge(self, i: int) -> None:
        """Join a step to the one before where both have as much free."""
        if 0 < i < len(self._times) and self._free[i] == self._free[i - 1]:
            del self._times[i], self._free[i]


# Slots, which are processors on offer, and how many processors several slots offer together.


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """
    Processors that are free for one interval, and on offer where a price is set.

    This is the one record of free processors: what a site offers and a plan buys (HPDC'07
    section 2), what the schedule of a batch cluster leaves free, and what a pool may request by
    backfilling.

    Parameters
    ----------
    site
        Name of the site; empty where only one is meant.
    start
        First second, on the clock of whoever offers it: seconds from now, from the campaign's
        start, or since the epoch.
    duration
        Length, seconds. Positive; infinite when the site sets no end.
    processors
        How many. Positive.
    unit_price
        Currency units per processor-second; None when unknown.
    fixed_price
        Currency units charged once if any of it is bought; None when unknown.
    divisible
        True when a part may be bought: just the processors and times that are used.
    extensible
        True when it may be used, and is paid, past its end.
    leased
        True when what is bought of it is one rectangle: the most processors in use at once, from
        the slot's start to the last use, idle or not. A divisible slot's other way to be paid.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    site: str = ""
    start: float
    duration: float
    processors: int
    unit_price: float | None = None
    fixed_price: float | None = 0.0
    divisible: bool = True
    extensible: bool = False
    leased: bool = False

    def __post_init__(self) -> None:
        if not self.duration > 0:
            raise ValueError(f"duration must be positive, got {self.duration}")
        if not -math.inf < self.start < math.inf:
            raise ValueError(f"start must be finite, got {self.start}")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if self.leased and not self.divisible:
            raise ValueError("a leased slot is divisible")
        if self.duration == math.inf and not self.divisible:
            raise ValueError("a slot without an end is divisible")
        # One after the other, not in a loop: a busy cluster offers hundreds of slots at a time.
        if self.unit_price is not None and not 0 <= self.unit_price < math.inf:
            raise ValueError(f"unit_price must not be negative, got {self.unit_price}")
        if self.fixed_price is not None and not 0 <= self.fixed_price < math.inf:
            raise ValueError(f"fixed_price must not be negative, got {self.fixed_price}")

    @property
    def end(self) -> float:
        """First second after the slot; infinite when the site sets no end."""
        return self.start + self.duration


TOLERANCE = 1e-9
"""Relative. A slot that ends so little after another starts makes way for it."""


def peak_offered_processors(slots: Iterable[Slot]) -> int:
    """Return the most processors that slots of a site offer at the same moment; 0 without any."""
    return -_unoffered(slots).least_free(-math.inf, math.inf)


def find_oversubscription(slots: Sequence[Slot], processors: int) -> tuple[float, list[int]] | None:
    """
    Return where slots of a site are more together than the site has.

    An extensible slot counts to no end: its processors may be in use then.

    Returns
    -------
    tuple or None
        The first such moment, seconds, and the indices of the slots that are open
        then; None when there is no such moment.
    """
    for moment, _, left in _unoffered(slots, processors).steps():
        if left < 0:
            return moment, [i for i, slot in enumerate(slots) if slot.start <= moment < _last(slot)]
    return None


def _unoffered(slots: Iterable[Slot], processors: int = 0) -> ResourceProfile:
    """Return the processors of a site that slots leave, negative where they are more together."""
    return ResourceProfile.summed(
        ((slot.start, _last(slot), -slot.processors) for slot in slots), processors
    )


def limit_offers(offers: Iterable[Slot], most: int) -> list[Slot]:
    """
    Return slots that are at no moment more than ``most`` processors together.

    Earlier ones of the sequence keep their processors; later ones have what is left during all
    of their time, or are left out.
    """
    left = ResourceProfile(most)
    kept = []
    for slot in offers:
        processors = min(slot.processors, left.least_free(slot.start, slot.end))
        if processors > 0:
            left.change(slot.start, slot.end, -processors)
            fits = processors == slot.processors
            kept.append(slot if fits else replace(slot, processors=processors))
    return kept


def _last(slot: Slot) -> float:
    """Last moment of use, seconds, or a little before."""
    if slot.extensible:
        return math.inf
    return max(slot.start, slot.end - TOLERANCE * max(1.0, abs(slot.end)))
