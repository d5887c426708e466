"""Quotas: the bytes on disk of instances and users, counted and limited."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from bursar.service.interfaces import ServiceError

_MOST_USAGES = 10_000
"""Greatest number of instances and users whose usage is kept in memory."""


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
    taken: int = 0  # bytes ever taken; shows what was written during a count
    aside: int = 0  # bytes outside of the counted folders


class DiskQuotas:
    """
    Usage of the disk by instances and users, compared with quotas.

    Between two counts the numbers only grow: deleted or broken-off files are not subtracted, as a
    task may remove files and put others in their place. Callers that find too little room count
    first. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usages: OrderedDict[str, _ByteUsage] = OrderedDict()  # the longest unused one first

    def lacking(self, quotas: Sequence[ByteQuota], size: int) -> ByteQuota | None:
        """Return the first quota that must be counted or has no room for ``size`` bytes more."""
        with self._lock:
            return next((quota for quota in quotas if not self._has_room(quota, size)), None)

    def begin_count(self, who: str) -> int:
        """Return a mark for :meth:`counted`."""
        with self._lock:
            return self._of(who).taken

    def counted(self, who: str, size: int, mark: int) -> None:
        """Record a count of ``size`` bytes; bytes taken since the mark are added."""
        with self._lock:
            usage = self._of(who)
            # Less than the mark: the usage was dropped meanwhile, and nothing was taken since.
            usage.found = size + max(0, usage.taken - mark)

    def take(self, quotas: Sequence[ByteQuota], size: int) -> None:
        """
        Add ``size`` bytes to all quotas, or to none.

        Raises
        ------
        ServiceError
            413, when one of them has no room.
        """
        with self._lock:
            # Check and addition under one lock: two threads that each find room for the last bytes
            # must not both take them.
            self._check(quotas, size)
            for quota in quotas:
                usage = self._of(quota.who)
                usage.taken += size
                usage.found = (usage.found or 0) + size

    def take_aside(self, quota: ByteQuota, size: int) -> None:
        """
        Add ``size`` bytes that lie outside of counted folders, until :meth:`give_back`.

        Raises
        ------
        ServiceError
            413, when there is no room.
        """
        with self._lock:
            self._check((quota,), size)
            self._of(quota.who).aside += size

    def give_back(self, quota: ByteQuota, size: int) -> None:
        """Subtract bytes that :meth:`take_aside` has added."""
        with self._lock:
            self._of(quota.who).aside -= size

    def room(self, quotas: Sequence[ByteQuota]) -> int:
        """Return the bytes for which all quotas have room."""
        with self._lock:
            return max(0, min(quota.most - self._held(quota) for quota in quotas))

    def _check(self, quotas: Sequence[ByteQuota], size: int) -> None:
        for quota in quotas:
            if not self._has_room(quota, size):
                raise quota.exceeded()

    def _has_room(self, quota: ByteQuota, size: int) -> bool:
        found = self._of(quota.who).found
        # Nothing was counted yet, after a start for one: then nobody knows, and a count is due.
        return found is not None and self._held(quota) + size <= quota.most

    def _held(self, quota: ByteQuota) -> int:
        usage = self._of(quota.who)
        return (usage.found or 0) + usage.aside

    def _of(self, who: str) -> _ByteUsage:
        usage = self._usages.get(who)
        if usage is None:
            if len(self._usages) >= _MOST_USAGES:
                # Not one with bytes aside, which no count would find again.
                old = next((key for key, held in self._usages.items() if not held.aside), None)
                if old is not None:
                    del self._usages[old]
            usage = self._usages[who] = _ByteUsage()
        # The longest unused is dropped first; it is counted again when it is needed.
        self._usages.move_to_end(who)
        return usage
