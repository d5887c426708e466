"""A participant that keeps payloads, and what it should have kept."""

from bursar.service.interfaces import Position
from bursar.service.journal import SegmentedJournal

KIND = 7


class Keeper:
    """Payloads by position, as they live in the journal."""

    def __init__(self) -> None:
        self.living: dict[Position, bytes] = {}

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        assert kind == KIND
        assert position not in self.living
        self.living[position] = payload

    def rewrite(self, kind: int, position: Position, payload: bytes) -> bytes:
        assert self.living[position] == payload
        return payload

    def moved(self, old: Position, new: Position) -> None:
        self.living[new] = self.living.pop(old)

    def add(self, journal: SegmentedJournal, payload: bytes, *, essential: bool = False) -> None:
        self.living[journal.append(KIND, payload, essential=essential)] = payload

    def drop(self, journal: SegmentedJournal, index: int) -> None:
        if self.living:
            position = sorted(self.living)[index % len(self.living)]
            del self.living[position]
            journal.kill(position)

    @property
    def contents(self) -> list[bytes]:
        return sorted(self.living.values())
