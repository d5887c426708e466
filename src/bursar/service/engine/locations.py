"""Positions of records in the journal."""

from collections.abc import Iterator
from dataclasses import dataclass

from bursar.service.interfaces import ServiceJournal


@dataclass(slots=True, eq=False)
class RecordLocation:
    """Position of one record, kept up to date when compaction moves the record."""

    position: int


class RecordLocations:
    """
    Positions of all records of a journal participant.

    Parameters
    ----------
    journal
        Journal in which the records lie.
    """

    def __init__(self, journal: ServiceJournal) -> None:
        self._journal = journal
        self._locations: dict[int, RecordLocation] = {}

    def append(self, kind: int, payload: bytes, *, essential: bool) -> RecordLocation:
        """
        Append a record to the journal, and return the location of the record.

        Raises
        ------
        ServiceError
            507, when the disk is full for it.
        """
        return self.found(self._journal.append(kind, payload, essential=essential))

    def found(self, position: int) -> RecordLocation:
        """Note the location of a record."""
        location = self._locations[position] = RecordLocation(position)
        return location

    def kill(self, location: RecordLocation) -> None:
        """Kill a record that is no longer needed."""
        # Killing twice changes nothing: a record may be killed by its owner and by the destruction
        # of the instance.
        if self._locations.pop(location.position, None) is not None:
            self._journal.kill(location.position)

    def moved(self, old: int, new: int) -> None:
        """Note the new position of a record."""
        location = self._locations.pop(old, None)
        if location is not None:
            location.position = new
            self._locations[new] = location

    def __contains__(self, position: int) -> bool:
        return position in self._locations

    def __iter__(self) -> Iterator[int]:
        return iter(self._locations)
