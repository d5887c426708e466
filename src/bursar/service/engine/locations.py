"""Where records lie in the journal."""

from collections.abc import Iterator
from dataclasses import dataclass

from bursar.service.interfaces import ServiceJournal


@dataclass(slots=True, eq=False)
class RecordLocation:
    """Where a record lies; it may move."""

    position: int


class RecordLocations:
    """
    All records of a participant, by position.

    Parameters
    ----------
    journal
        In which they lie.
    """

    def __init__(self, journal: ServiceJournal) -> None:
        self._journal = journal
        self._locations: dict[int, RecordLocation] = {}

    def append(self, kind: int, payload: bytes, *, essential: bool) -> RecordLocation:
        """
        Adds a record.

        Raises
        ------
        ServiceError
            507, when the disk is full for it.
        """
        return self.found(self._journal.append(kind, payload, essential=essential))

    def found(self, position: int) -> RecordLocation:
        """A record is there."""
        location = self._locations[position] = RecordLocation(position)
        return location

    def kill(self, location: RecordLocation) -> None:
        """A record is not needed any more."""
        if self._locations.pop(location.position, None) is not None:
            self._journal.kill(location.position)

    def moved(self, old: int, new: int) -> None:
        """A record lies elsewhere now."""
        location = self._locations.pop(old, None)
        if location is not None:
            location.position = new
            self._locations[new] = location

    def __contains__(self, position: int) -> bool:
        return position in self._locations

    def __iter__(self) -> Iterator[int]:
        return iter(self._locations)
