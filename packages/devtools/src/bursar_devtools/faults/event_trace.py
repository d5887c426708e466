"""Records the events of a simulation: the last lines for people, and a digest of all of them."""

import hashlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

KEPT = 400
"""Number of last lines that are kept, unless all are requested."""


class EventTrace:
    """
    Collects the trace lines of one simulation and counts the faults.

    Parameters
    ----------
    now
        Returns virtual seconds; may be set later.
    keep_all
        Whether every line is kept, instead of the last :data:`KEPT`.
    """

    def __init__(self, now: Callable[[], float] = float, *, keep_all: bool = False) -> None:
        self.now = now
        self._lines: deque[tuple[float, str, str]] = deque(maxlen=None if keep_all else KEPT)
        self._digest = hashlib.blake2b(digest_size=16)
        self.events = 0
        self.faults: Counter[str] = Counter()

    def note(self, party: str, event: str) -> None:
        """Record an event at a party, in trace and digest."""
        self.events += 1
        now = self.now()
        self._lines.append((now, party, event))
        self._digest.update(f"{now!r} {party} {event}\n".encode())

    def tell(self, party: str, line: str) -> None:
        """Add a line outside the digest, for text that may differ between equal simulations."""
        self._lines.append((self.now(), party, line))

    def fault(self, kind: str, party: str, event: str) -> None:
        """Record an injected fault, and count the faults by kind."""
        self.faults[kind] += 1
        self.note(party, f"!! {kind}: {event}")

    @property
    def digest(self) -> str:
        """Digest of all recorded events; equal exactly when two simulations were equal."""
        return self._digest.hexdigest()

    def lines(self) -> list[str]:
        """Return the kept lines: virtual seconds, party, event."""
        width = max((len(party) for _, party, _ in self._lines), default=0)
        return [f"{now:12.6f}  {party:<{width}}  {event}" for now, party, event in self._lines]


class _TraceHandler(logging.Handler):
    """Records log messages in a trace."""

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
    """Redirect a logger to the trace, under a party's name, while the context lasts."""
    log = logging.getLogger(logger)
    before = log.handlers, log.propagate, log.level
    log.handlers, log.propagate = [_TraceHandler(trace, party)], False
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.handlers, log.propagate = before[0], before[1]
        log.setLevel(before[2])
