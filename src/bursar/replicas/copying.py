"""
Copies one file from one source in the calling thread, with verification on the way.

Sizes and checksums are compared with the catalogue's; nothing is read twice, except when the kept
part of an earlier attempt proves wrong.
"""

from collections.abc import Callable
from contextlib import closing

from bursar.replicas.content import LogicalFileContent, checksum_of, new_digest
from bursar.replicas.failures import CancellationToken, SourceFailed, TargetFailed
from bursar.replicas.parts import CopyOrigin, CopySink
from bursar.replicas.rate_limiter import TransferRateLimiter
from bursar.replicas.schemes import open_source
from bursar.replicas.schemes.source import ReplicaSource
from bursar.replicas.urls import redact_url

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
