"""Where records lie in the journal."""

from collections.abc import Iterator
from dataclasses import dataclass

from bursar.service.parties import Journal


@dataclass(slots=True, eq=False)
class Spot:
    """Where a record lies; it may move."""

    position: int


class Spots:
    """
    All records of a participant, by position.

    Parameters
    ----------
    journal
        In which they lie.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._spots: dict[int, Spot] = {}

    def append(self, kind: int, payload: bytes, *, essential: bool) -> Spot:
        """
        Adds a record.

        Raises
        ------
        ServiceError
            507, when the disk is full for it.
        """
        return self.found(self._journal.append(kind, payload, essential=essential))

    def found(self, position: int) -> Spot:
        """A record is there."""
        spot = self._spots[position] = Spot(position)
        return spot

    def kill(self, spot: Spot) -> None:
        """A record is not needed any more."""
        if self._spots.pop(spot.position, None) is not None:
            self._journal.kill(spot.position)

    def moved(self, old: int, new: int) -> None:
        """A record lies elsewhere now."""
        spot = self._spots.pop(old, None)
        if spot is not None:
            spot.position = new
            self._spots[new] = spot

    def __contains__(self, position: int) -> bool:
        return position in self._spots

    def __iter__(self) -> Iterator[int]:
        return iter(self._spots)
