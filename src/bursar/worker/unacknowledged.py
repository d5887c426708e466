"""
A worker's unacknowledged work: unfinished tasks, and outcomes that are not durable yet.

Over one connection the dispatcher counts outcomes in the order they come, and says how many of
them are durable. A new connection begins a new count: outcomes that are not durable are sent
again, the oldest first, so that an outcome may come twice and is never lost.

The module does no input or output: real and simulated workers share it.
"""

from collections import deque
from collections.abc import Iterator

from bursar.dispatch.wire import BATCH_SIZE
from bursar.model.task import Outcome

MOST_BYTES = 64 * 1024 * 1024
MOST_OUTCOMES = 16_384
"""Outcomes that are not durable; with so many, or so many bytes, a worker begins nothing more."""

_FIXED = 512  # bytes of memory, about, that an outcome takes beside what was printed


class UnacknowledgedWork:
    """
    Jobs and outcomes that a worker keeps until the dispatcher acknowledges them.

    Attributes
    ----------
    size
        Bytes, about, of all outcomes that are not durable.
    unsent_size
        Bytes, about, of the outcomes among these that were not sent over this connection.
    """

    __slots__ = ("_held", "_sent", "_unsent", "size", "unsent_size")

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], None] = {}  # in the order in which they came
        self._sent: deque[Outcome] = deque()  # over this connection; the oldest first
        self._unsent: deque[Outcome] = deque()
        self.size = 0
        self.unsent_size = 0

    @property
    def unsent(self) -> int:
        """Number of outcomes that were not sent over this connection."""
        return len(self._unsent)

    @property
    def unrecorded(self) -> int:
        """Number of outcomes that are not durable."""
        return len(self._sent) + len(self._unsent)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should begin before some outcomes are durable."""
        return self.size > MOST_BYTES or self.unrecorded >= MOST_OUTCOMES

    def took(self, task: int, attempt: int) -> bool:
        """
        Note a job that has arrived.

        Returns
        -------
        bool
            False when the worker has that very attempt already and must not run it twice.
        """
        if (task, attempt) in self._held:
            return False
        self._held[task, attempt] = None
        return True

    def returned(self, task: int, attempt: int) -> None:
        """Forget a job that was given back unbegun."""
        self._held.pop((task, attempt), None)

    def finished(self, outcome: Outcome) -> None:
        """Note the outcome of an attempt that has ended."""
        size = size_of(outcome)
        self._unsent.append(outcome)
        self.size += size
        self.unsent_size += size

    def take_unsent(self) -> Iterator[list[Outcome]]:
        """
        Yield outcomes not yet sent over this connection, in pieces that fit a frame each.

        A piece counts as sent once it is taken.
        """
        while self._unsent:
            piece, size = self._piece()
            self._sent.extend(piece)
            self.unsent_size -= size
            yield piece

    def recorded(self, count: int) -> None:
        """
        Drop the oldest sent outcomes, because these are durable now.

        Raises
        ------
        ValueError
            When fewer were sent.
        """
        if not 0 <= count <= len(self._sent):
            raise ValueError(f"{count} outcomes are durable, but {len(self._sent)} were said")
        for _ in range(count):
            outcome = self._sent.popleft()
            self._held.pop((outcome.task, outcome.attempt), None)
            self.size -= size_of(outcome)

    def lost_connection(self) -> None:
        """Have outcomes that were sent and not acknowledged sent again, before the rest."""
        # In the order of their ends: the dispatcher counts from the first one sent.
        self._sent.extend(self._unsent)
        self._sent, self._unsent = deque(), self._sent
        self.unsent_size = self.size

    def holds(self) -> tuple[tuple[int, int], ...]:
        """
        Return task and attempt of all work: waiting, running, or ended and not durable.

        They are in the order in which they came, and in which the worker begins them: a dispatcher
        that was restarted learns from it which of them run.
        """
        return tuple(self._held)

    def _piece(self) -> tuple[list[Outcome], int]:
        """Return the next outcomes to send, at least one, and their size."""
        if self.unsent_size <= BATCH_SIZE:
            piece, self._unsent = list(self._unsent), deque()
            return piece, self.unsent_size
        # One at least, however large: else it would never be sent.
        piece = [self._unsent.popleft()]
        size = size_of(piece[0])
        while self._unsent and size + size_of(self._unsent[0]) <= BATCH_SIZE:
            size += size_of(self._unsent[0])
            piece.append(self._unsent.popleft())
        return piece, size


def size_of(outcome: Outcome) -> int:
    """Bytes, about, that an outcome takes in memory and on the wire."""
    printed = len(outcome.stdout) + len(outcome.stderr) + len(outcome.reason)
    return _FIXED + printed + len(outcome.value) + len(outcome.sealed)
