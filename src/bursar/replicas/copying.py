"""
Copies one file from the first readable source, with retries, and verifies the copy.

Sizes and checksums are compared with the catalogue's; nothing is read twice, except when the kept
part of an earlier attempt proves wrong.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from bursar.model.errors import InputError
from bursar.model.matching import Replica
from bursar.replicas.catalogue import Catalogue
from bursar.replicas.content import (
    CancellationToken,
    FileUnreachable,
    LogicalFileContent,
    SourceFailed,
    TargetFailed,
    checksum_of,
    content_of,
    new_digest,
    redact_url,
)
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
    catalogue: Catalogue, replica: Replica, *, on_bytes: OnBytes | None = None
) -> CopyCheck:
    """
    Read a copy and mark the copy in the catalogue as good or bad.

    An unknown size or checksum is registered.
    """
    wanted = content_of(replica)
    try:
        found = read_content(
            replica.url, stop=CancellationToken(), patience=PATIENCE, on_bytes=on_bytes
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


# Transfers a file from the first readable copy, with retries.

P = ParamSpec("P")
T = TypeVar("T")

OnBad = Callable[[Replica, str], object]
"""Told a copy that is not what it should be, and why."""


@dataclass(frozen=True, slots=True)
class CandidateReplica:
    """
    A copy that a file may be brought from.

    Parameters
    ----------
    rate
        Rate limit of the link; None: no limit.
    gate
        Limits the transfers of the link, so that threads are left for others; None: no limit.
    """

    replica: Replica
    rate: TransferRateLimiter | None = None
    gate: asyncio.Semaphore | None = None


class TransferPool:
    """
    A pool of threads that copy files.

    Parameters
    ----------
    threads
        Number of copies at a time. Positive.
    rounds
        Number of times that all sources of a file are tried.
    pause
        Seconds before the second round; twice as many before each further one.
    patience
        Seconds to wait for a source that says nothing.
    """

    def __init__(
        self,
        *,
        threads: int = 8,
        rounds: int = 3,
        pause: float = 0.5,
        patience: float = PATIENCE,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="bursar-transfer")
        self._rounds = rounds
        self._pause = pause
        self._patience = patience

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """
        Run a function in a thread to its end, even if the caller is cancelled.

        The thread is not one of those that copy, all of which may be busy for hours.
        """
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(None, lambda: call(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await wait_until_ended(future)
            raise

    async def fetch(
        self,
        content: LogicalFileContent,
        candidates: Sequence[CandidateReplica],
        sink: CopySink,
        *,
        on_bytes: OnBytes | None = None,
        on_bad: OnBad | None = None,
    ) -> LogicalFileContent:
        """
        Bring a file from the first readable copy.

        Parameters
        ----------
        content
            Expected size and checksum, as far as they are known.
        candidates
            Copies, the best one first.
        sink
            Target of the bytes.
        on_bytes
            Called with the progress, in another thread.
        on_bad
            Called in this thread with copies whose content is wrong; none of them is tried again.

        Returns
        -------
        LogicalFileContent
            Size and checksum of the file.

        Raises
        ------
        FileUnreachable
            When none does: the line says why, for each.
        InputError
            When the only one cannot be asked, as an extra is missing.
        TargetFailed
            When it cannot be written.
        """
        left = list(candidates)
        reasons: dict[str, str] = {}
        fault: InputError | None = None
        for turn in range(self._rounds):
            if turn:
                await asyncio.sleep(self._pause * 2 ** (turn - 1))
            # Every copy has its turn before any is tried again, with pauses.
            for candidate in tuple(left):
                try:
                    async with candidate.gate or nullcontext():
                        return await self._copied(candidate, content, sink, on_bytes)
                except InputError as error:  # another one may do without what is missing
                    fault = error
                    reasons[redact_url(candidate.replica.url)] = f"cannot be read: {error.message}"
                    left.remove(candidate)
                except SourceFailed as failure:
                    reasons[redact_url(candidate.replica.url)] = failure.reason
                    if failure.bad and on_bad is not None:
                        on_bad(candidate.replica, failure.reason)
                    # A refusal lasts; only what may pass (no answer, a lost connection) is worth
                    # another round.
                    if failure.bad or not failure.transient:
                        left.remove(candidate)
            if not left:
                break
        if fault is not None and len(reasons) == 1:
            raise fault
        tried = "; ".join(f"{url} {reason}" for url, reason in reasons.items())
        raise FileUnreachable(tried or "the catalogue has no good copy", transient=bool(left))

    def close(self) -> None:
        """End the threads once their copies are done."""
        self._pool.shutdown()

    async def _copied(
        self,
        candidate: CandidateReplica,
        content: LogicalFileContent,
        sink: CopySink,
        on_bytes: OnBytes | None,
    ) -> LogicalFileContent:
        stop = CancellationToken()
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(
            self._pool,
            lambda: copy(
                candidate.replica.url,
                content,
                sink,
                rate=candidate.rate,
                stop=stop,
                patience=self._patience,
                on_bytes=on_bytes,
            ),
        )
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            stop.ask()
            await wait_until_ended(future)  # from here on no thread writes to the sink
            raise


async def wait_until_ended(future: "asyncio.Future[T]") -> None:
    """
    Wait until a future has ended, even when the waiting task is cancelled meanwhile.

    Neither that cancellation nor the future's exception is raised here.
    """
    # The exception is looked at so that asyncio does not log it as never retrieved.
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()
