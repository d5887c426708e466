"""Keys, certificates and a book of tokens, with a clock that the tests turn."""

import asyncio
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from bursar.remote.admin_messages import NewToken
from bursar.service.identity.authentication import JournalTokenStore
from bursar.service.interfaces import TOKEN_KINDS, ServiceError
from bursar.store import Position, RecordOwner

T = TypeVar("T")

NOW = 1.8e9
DAY = 86_400.0


class Turned:
    """A clock."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Notebook:
    """A journal in memory, with what tests look at: living records by position."""

    def __init__(self) -> None:
        self.living: dict[Position, tuple[int, bytes]] = {}
        self.is_full = False
        self._next = 0

    def register(self, kinds: range, participant: RecordOwner) -> None:
        """Whose records are written here."""
        assert kinds == TOKEN_KINDS
        self.participant = participant

    def append(self, kind: int, payload: bytes, *, essential: bool) -> Position:
        """Adds a record."""
        if self.is_full and not essential:
            raise ServiceError("disk-full", 507, "the disk is full")
        self._next += 1
        self.living[self._next] = (kind, payload)
        return self._next

    def kill(self, position: Position) -> None:
        """A record is not needed any more."""
        del self.living[position]

    async def durable(self) -> None:
        """At once."""

    def restored(self, clock: Turned) -> JournalTokenStore:
        """A book of the next life, made of what is here."""
        book = JournalTokenStore(self, clock=clock, entropy=random.Random(1).randbytes)  # type: ignore[arg-type]
        for position, (kind, payload) in self.living.items():
            book.restore(kind, position, payload)
        return book


def new(user: str = "ann", *scopes: Any, seconds: float | None = None) -> NewToken:
    """What is asked for."""
    return NewToken(user=user, scopes=list(scopes or ("read",)), seconds=seconds)


def run(work: Coroutine[Any, Any, T]) -> T:
    """To its end."""
    return asyncio.run(work)


def mode(path: Path) -> int:
    """Who may do what with a file."""
    return path.stat().st_mode & 0o777
