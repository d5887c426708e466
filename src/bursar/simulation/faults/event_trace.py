"""What happened, line by line: the last of it for people, and a digest of all of it."""

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

KEPT = 400
"""Last lines that are kept, unless all are asked for."""


class EventTrace:
    """
    The lines of one simulation.

    Parameters
    ----------
    now
        Virtual seconds; may be given later.
    keep_all
        Whether every line is kept, not only the last.
    """

    def __init__(self, now: Callable[[], float] = float, *, keep_all: bool = False) -> None:
        self.now = now
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=None if keep_all else KEPT)
        self._digest = hashlib.blake2b(digest_size=16)
        self.events = 0
        self.faults: Counter[str] = Counter()

    def note(self, party: str, event: str) -> None:
        """Something happened at a party."""
        self.events += 1
        now = self.now()
        self._lines.append((now, party, event))
        self._digest.update(f"{now!r} {party} {event}\n".encode())

    def tell(self, party: str, line: str) -> None:
        """A line for people only: it may differ between two runs of one simulation."""
        self._lines.append((self.now(), party, line))

    def fault(self, kind: str, party: str, event: str) -> None:
        """Something went wrong there on purpose; kinds are counted."""
        self.faults[kind] += 1
        self.note(party, f"!! {kind}: {event}")

    @property
    def digest(self) -> str:
        """Of all lines: equal exactly when two simulations went the same way."""
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        """What is kept, for people: virtual seconds, party, event."""
        width = max((len(party) for _, party, _ in self._lines), default=0)
        return [f"{now:12.6f}  {party:<{width}}  {event}" for now, party, event in self._lines]


class _TraceHandler(logging.Handler):
    """Notes what is logged."""

    def __init__(self, trace: EventTrace, party: str) -> None:
        super().__init__()
        self._trace = trace
        self._party = party

    def emit(self, record: logging.LogRecord) -> None:
        self._trace.note(self._party, record.getMessage())
        if record.exc_info:
            for line in logging.Formatter().formatException(record.exc_info).splitlines():
                self._trace.tell(self._party, line)


@contextmanager
def tracing_logs(trace: EventTrace, logger: str, party: str) -> Iterator[None]:
    """While the context lasts, what a party logs is in the trace, and nowhere else."""
    log = logging.getLogger(logger)
    before = log.handlers, log.propagate, log.level
    log.handlers, log.propagate = [_TraceHandler(trace, party)], False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers, log.propagate = before[0], before[1]
        log.setLevel(before[2])
