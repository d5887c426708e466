"""Tracks which of an owner's processors are sold or set aside, and when."""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from bursar.model.resource_profile import ResourceProfile


@dataclass(frozen=True, slots=True)
class Commitment:
    """
    Processors that an owner has promised for a time.

    Parameters
    ----------
    processors
        Number of processors, at least 1.
    start, end
        Seconds since the epoch.
    until
        When an offer lapses, seconds since the epoch; infinite once sold.
    """

    processors: int
    start: float
    end: float
    until: float = math.inf


class CommittedCapacity:
    """
    Never commits more processors than there are.

    Parameters
    ----------
    processors
        Number of processors of the owner, at least 1.
    """

    def __init__(self, processors: int) -> None:
        if processors < 1:
            raise ValueError(f"processors must be at least 1, got {processors}")
        self.processors = processors
        self._commitments: dict[Hashable, Commitment] = {}
        self._free = ResourceProfile(processors)

    @property
    def commitments(self) -> tuple[Commitment, ...]:
        """Commitments that have not been forgotten."""
        return tuple(self._commitments.values())

    @property
    def by_key(self) -> Mapping[Hashable, Commitment]:
        """Commitments that have not been forgotten, by key."""
        return MappingProxyType(self._commitments)

    def set_commitments(self, commitments: Mapping[Hashable, Commitment]) -> None:
        """Replace all commitments, without a check against the number of processors."""
        self._commitments = dict(commitments)
        self._free = ResourceProfile.summed(
            ((c.start, c.end, -c.processors) for c in commitments.values()), self.processors
        )

    def forget(self, now: float, begun: float) -> None:
        """
        Drop commitments that have expired or that ended before the earliest start still on sale.

        Parameters
        ----------
        begun
            Earliest start that is still sold, which may have passed already.
        """
        for key, commitment in list(self._commitments.items()):
            if commitment.end <= begun or commitment.until <= now:
                self.release(key)

    def free(self, start: float, end: float) -> int:
        """Return the processors that are free from start to end throughout."""
        return self._free.least_free(start, end)

    def used(self, moment: float) -> int:
        """Return the processors that are committed at a moment."""
        return self.processors - self.free(moment, moment)

    def utilisation(self, start: float, end: float) -> float:
        """Return the share of processors committed from start to end, on average."""
        taken = 0.0 - self._free.integral(start, end, above=self.processors)
        return min(1.0, taken / (self.processors * (end - start)))

    def first_fit(
        self, processors: int, seconds: float, earliest: float, latest: float
    ) -> float | None:
        """
        Return the earliest start with so many processors free for so long; None for none.

        Parameters
        ----------
        earliest, latest
            Bounds of the start, seconds since the epoch.
        """
        start = self._free.earliest_start(earliest, seconds, processors)
        return start if start <= latest and start < math.inf else None

    def commit(
        self, key: Hashable, processors: int, start: float, end: float, until: float = math.inf
    ) -> bool:
        """Commit free processors under an unused key; False, changing nothing, if not free."""
        if key in self._commitments or processors > self.free(start, end):
            return False
        self._set(key, Commitment(processors, start, end, until))
        return True

    def restore(self, key: Hashable, processors: int, start: float, end: float) -> None:
        """Commit processors promised earlier, without checking that enough are free."""
        self.release(key)
        self._set(key, Commitment(processors, start, end))

    def shorten(self, key: Hashable, end: float) -> None:
        """End the commitment of a key, if there is one, at ``end`` at the latest."""
        known = self.release(key)
        if known is not None and end > known.start:
            self._set(key, replace(known, end=min(known.end, end)))

    def release(self, key: Hashable) -> Commitment | None:
        """Free the processors committed under a key, and return the commitment, if any."""
        known = self._commitments.pop(key, None)
        if known is not None:
            self._free.change(known.start, known.end, known.processors)
        return known

    def _set(self, key: Hashable, made: Commitment) -> None:
        """Commit processors under an unused key."""
        self._commitments[key] = made
        self._free.change(made.start, made.end, -made.processors)
