"""Transfers a file from the first readable copy, with retries."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from bursar.model.errors import InputError
from bursar.model.replica import Replica
from bursar.replicas.content import LogicalFileContent, redact_url
from bursar.replicas.copying import PATIENCE, OnBytes, TransferRateLimiter, copy
from bursar.replicas.failures import CancellationToken, FileUnreachable, SourceFailed
from bursar.replicas.parts import CopySink

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
    replica
        The copy.
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
