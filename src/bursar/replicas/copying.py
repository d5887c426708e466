"""
Copies one file from one source in the calling thread, and verifies copies by their checksums.

Sizes and checksums are compared with the catalogue's; nothing is read twice, except when the kept
part of an earlier attempt proves wrong.
"""

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from bursar.model.replica import Replica
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import (
    LogicalFileContent,
    checksum_of,
    content_of,
    new_digest,
    redact_url,
)
from bursar.replicas.failures import CancellationToken, SourceFailed, TargetFailed
from bursar.replicas.parts import CopyOrigin, CopySink
from bursar.replicas.schemes import open_source
from bursar.replicas.schemes.source import ReplicaSource

# A limit on the bytes per second of a link, shared by all transfers.

_SMALLEST, _LARGEST = 16 * 1024, 1024 * 1024
_SPREAD = 0.1  # seconds of the rate that one turn takes
_BURST = 0.1  # seconds that an idle link may have saved


class TransferRateLimiter:
    """
    A token bucket of a link; users that take equal sizes in turn get equal shares.

    Parameters
    ----------
    bandwidth
        Bytes per second. Positive and finite.
    clock
        Tells seconds.
    """

    def __init__(self, bandwidth: float, clock: Callable[[], float] = time.monotonic) -> None:
        if not 0 < bandwidth < math.inf:
            raise ValueError(f"bandwidth must be positive and finite, got {bandwidth}")
        self._bandwidth = bandwidth
        self._clock = clock
        self._lock = threading.Lock()
        self._free = clock()

    @property
    def grain(self) -> int:
        """Bytes to take at a time, so that other transfers need not wait long."""
        return round(min(max(self._bandwidth * _SPREAD, _SMALLEST), _LARGEST))

    def take(self, size: int) -> float:
        """
        Count bytes that are transferred.

        Returns
        -------
        float
            Seconds to wait now, so that no more pass than may.
        """
        with self._lock:
            now = self._clock()
            # Bytes are counted first and waited for afterwards: turns are given in the order of
            # asking, and a piece of any size passes in the end.
            self._free = max(self._free, now - _BURST) + size / self._bandwidth
            return max(0.0, self._free - now)


# Copies one file from one source in the calling thread, with verification on the way.

OnBytes = Callable[[int, int | None], None]
"""Told bytes that are there and bytes in all, in the thread that copies."""

PATIENCE = 30.0
"""Seconds to wait for a source that says nothing."""


def copy(
    url: str,
    content: LogicalFileContent,
    sink: CopySink,
    *,
    rate: TransferRateLimiter | None = None,
    stop: CancellationToken,
    patience: float = PATIENCE,
    on_bytes: OnBytes | None = None,
) -> LogicalFileContent:
    """
    Write the missing bytes of a file and verify the whole.

    Parameters
    ----------
    url
        URL or path of the source.
    content
        Expected size and checksum, as far as they are known.
    sink
        Target, which may hold the beginning already. After a failure its bytes may be continued
        from this source or another.
    rate
        Limit of the link; None: no limit.

    Returns
    -------
    LogicalFileContent
        Size and checksum of the file.

    Raises
    ------
    SourceFailed
        When the source does not give it.
    TargetFailed
        When the sink does not take it.
    CopyCancelled
        When it was asked to stop.
    """
    stop.check()
    began = sink.length
    try:
        got = _copied(url, content, sink, rate, stop, patience, on_bytes)
        if not got.agrees_with(content) and began and sink.length:
            # What was there before may be to blame.
            sink.begin_anew()
            got = _copied(url, content, sink, rate, stop, patience, on_bytes)
    except OSError as error:  # sources raise failures
        raise TargetFailed(f"cannot be written: {error.strerror or error}") from None
    if not got.agrees_with(content):
        sink.begin_anew()
        raise SourceFailed(f"holds {got}, not {content}", bad=True)
    return got


def read_content(
    url: str,
    *,
    stop: CancellationToken,
    patience: float = PATIENCE,
    on_bytes: OnBytes | None = None,
) -> LogicalFileContent:
    """
    Read a whole copy and return size and checksum.

    Raises
    ------
    SourceFailed
        When it cannot be read.
    CopyCancelled
        When it was asked to stop.
    """
    digest, length = new_digest(), 0
    with closing(open_source(url, patience=patience, stop=stop)) as source:
        while data := source.read(source.chunk):
            stop.check()
            digest.update(data)
            length += len(data)
            if on_bytes is not None:
                on_bytes(length, source.size)
    if source.size is not None and length < source.size:
        raise SourceFailed(f"ended after {length} of {source.size} bytes", transient=True)
    return LogicalFileContent(length, checksum_of(digest))


def _copied(
    url: str,
    content: LogicalFileContent,
    sink: CopySink,
    rate: TransferRateLimiter | None,
    stop: CancellationToken,
    patience: float,
    on_bytes: OnBytes | None,
) -> LogicalFileContent:
    with closing(_opened(url, content, sink, stop, patience)) as source:
        in_all = source.size if content.size is None else content.size
        sink.set_origin(CopyOrigin(redact_url(url), source.tag))
        if on_bytes is not None:
            on_bytes(sink.length, in_all)
        size = source.chunk if rate is None else min(source.chunk, rate.grain)
        while data := source.read(size):
            # Only the catalogue's size makes a copy bad; what a server states of itself may be what
            # is wrong.
            if in_all is not None and sink.length + len(data) > in_all:
                raise SourceFailed(f"is longer than {in_all} bytes", bad=content.size is not None)
            # Waits for the rate of the link, but ends at once when the copy is cancelled.
            stop.wait(0.0 if rate is None else rate.take(len(data)))
            sink.write(data)
            if on_bytes is not None:
                on_bytes(sink.length, in_all)
        # A connection that is closed early looks like the end of the file.
        if in_all is not None and sink.length < in_all:
            raise SourceFailed(f"ended after {sink.length} of {in_all} bytes", transient=True)
    return LogicalFileContent(sink.length, sink.checksum)


def _opened(
    url: str, content: LogicalFileContent, sink: CopySink, stop: CancellationToken, patience: float
) -> ReplicaSource:
    """
    Open the source so that reading goes on where the sink ends.

    A sink whose bytes may be of another version of the file is emptied first, and the source is
    then read from its beginning.

    Parameters
    ----------
    content
        Expected size and checksum, as far as they are known.
    patience
        Seconds to wait for an answer.
    """
    before = sink.origin
    same = before.url == redact_url(url)
    # Halves of two versions would make a file that nothing shows to be wrong, unless a checksum or
    # an unchanged tag of the same source does.
    if sink.length and content.checksum is None and not (same and before.tag):
        sink.begin_anew()
    source = open_source(
        url,
        offset=sink.length,
        tag=before.tag if same else "",
        patience=patience,
        stop=stop,
    )
    try:
        # A copy of another size is refused before a byte of it is moved.
        if None not in (content.size, source.size) and source.size != content.size:
            raise SourceFailed(f"has {source.size} bytes, not {content.size}", bad=True)
        changed = same and source.tag != before.tag
        # The server has ignored the offset, or has another version by now.
        if sink.length and (source.start != sink.length or changed):
            sink.begin_anew()
            if source.start:
                source.close()
                source = open_source(url, patience=patience, stop=stop)
    except BaseException:
        source.close()
        raise
    return source


# Verifies copies against their sizes and checksums in the catalogue.


@dataclass(frozen=True, slots=True)
class CopyCheck:
    """
    The result of reading a copy.

    Parameters
    ----------
    fault
        What is wrong with the copy; None: nothing.
    bad
        Whether the content is wrong; otherwise the copy could not be read now.
    """

    replica: Replica
    fault: str | None = None
    bad: bool = False


def check_copy(
    catalogue: Catalogue,
    replica: Replica,
    *,
    patience: float = PATIENCE,
    on_bytes: OnBytes | None = None,
) -> CopyCheck:
    """
    Read a copy and mark the copy in the catalogue as good or bad.

    An unknown size or checksum is registered.
    """
    wanted = content_of(replica)
    try:
        found = read_content(
            replica.url, stop=CancellationToken(), patience=patience, on_bytes=on_bytes
        )
        if not found.agrees_with(wanted):
            raise SourceFailed(f"holds {found}, not {wanted}", bad=True)
    except SourceFailed as failure:
        if failure.bad:
            catalogue.report_bad(replica.name, replica.url, failure.reason)
        return CopyCheck(replica, failure.reason, failure.bad)
    catalogue.register(
        Replica(
            name=replica.name,
            site=replica.site,
            url=replica.url,
            size=found.size,
            checksum=found.checksum,
        )
    )
    return CopyCheck(replica)
