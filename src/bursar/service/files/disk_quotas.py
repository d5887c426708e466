"""Counts the bytes that instances and users hold on disk, and limits them."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from bursar.service.interfaces import ServiceError

_MOST_KNOWN = 10_000
"""Instances and users of which it is remembered how much they hold."""


@dataclass(frozen=True, slots=True)
class ByteQuota:
    """
    A limit of the bytes that an instance or a user may hold.

    Parameters
    ----------
    who
        Key of the instance or user.
    most
        Greatest number of bytes.
    what
        Subject of the error message, such as "an instance's files".
    """

    who: str
    most: int
    what: str

    def exceeded(self, retry_after: float | None = None) -> ServiceError:
        """
        Return the error: 413, or 429 when a recount after ``retry_after`` seconds may allow it.
        """
        detail = f"{self.what} may have {self.most:,} bytes"
        status = 413 if retry_after is None else 429
        return ServiceError("over-quota", status, detail, retry_after=retry_after)


@dataclass(slots=True)
class _ByteUsage:
    found: int | None = None  # bytes of the last count, and taken since; None: to be counted
    taken: int = 0  # ever; tells what came while it was counted
    aside: int = 0  # where no count comes by


class DiskQuotas:
    """
    The bytes that instances and users hold, compared with their quotas.

    Between two counts the numbers only grow: deleted or broken-off files are not subtracted, as a
    task may remove files and put others in their place. Callers that find too little room count
    first. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _ByteUsage] = OrderedDict()  # the longest unused one first

    def lacking(self, bounds: Sequence[ByteQuota], size: int) -> ByteQuota | None:
        """Return the first quota that must be counted or has no room for ``size`` bytes more."""
        with self._lock:
            return next((bound for bound in bounds if not self._has_room(bound, size)), None)

    def begin_count(self, who: str) -> int:
        """Return a mark for :meth:`counted`."""
        with self._lock:
            return self._of(who).taken

    def counted(self, who: str, size: int, mark: int) -> None:
        """Record a count of ``size`` bytes; bytes taken since the mark are added."""
        with self._lock:
            holding = self._of(who)
            # Less than the mark: it was forgotten meanwhile, and has taken nothing since.
            holding.found = size + max(0, holding.taken - mark)

    def take(self, bounds: Sequence[ByteQuota], size: int) -> None:
        """
        Add ``size`` bytes to all quotas, or to none.

        Raises
        ------
        ServiceError
            413, when one of them has no room.
        """
        with self._lock:
            self._check(bounds, size)
            for bound in bounds:
                holding = self._of(bound.who)
                holding.taken += size
                holding.found = (holding.found or 0) + size

    def take_aside(self, bound: ByteQuota, size: int) -> None:
        """
        Add ``size`` bytes that lie outside of counted folders, until :meth:`give_back`.

        Raises
        ------
        ServiceError
            413, when there is no room.
        """
        with self._lock:
            self._check((bound,), size)
            self._of(bound.who).aside += size

    def give_back(self, bound: ByteQuota, size: int) -> None:
        """Subtract bytes that :meth:`take_aside` has added."""
        with self._lock:
            self._of(bound.who).aside -= size

    def room(self, bounds: Sequence[ByteQuota]) -> int:
        """Return the bytes for which all quotas have room."""
        with self._lock:
            return max(0, min(bound.most - self._held(bound) for bound in bounds))

    def _check(self, bounds: Sequence[ByteQuota], size: int) -> None:
        for bound in bounds:
            if not self._has_room(bound, size):
                raise bound.exceeded()

    def _has_room(self, bound: ByteQuota, size: int) -> bool:
        found = self._of(bound.who).found
        return found is not None and self._held(bound) + size <= bound.most

    def _held(self, bound: ByteQuota) -> int:
        holding = self._of(bound.who)
        return (holding.found or 0) + holding.aside

    def _of(self, who: str) -> _ByteUsage:
        holding = self._known.get(who)
        if holding is None:
            if len(self._known) >= _MOST_KNOWN:
                # Not one that holds something aside, which no count would bring back.
                old = next((key for key, held in self._known.items() if not held.aside), None)
                if old is not None:
                    del self._known[old]
            holding = self._known[who] = _ByteUsage()
        self._known.move_to_end(who)
        return holding
