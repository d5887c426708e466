"""A pilot at a batch scheduler, from request to end, and pilots that are submitted together."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from bursar.model.allocation import Allocation, AllocationLoss
from bursar.provisioning.lrm.resource_manager import JobReport
from bursar.sites.protocol import PilotBeginListener

# Pilots that are submitted together are gathered until all of the bundle are ready.

TOGETHER = 0.05
"""Seconds within which the pilots of one bundle are asked for."""

T = TypeVar("T")


class _SubmissionBundle(Generic[T]):
    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.arrived = 0  # so far
        self.on_way = 0  # arrived, but not ready yet
        self.ready: list[T] = []
        self.is_late = False


class SubmissionBundles(Generic[T]):
    """
    Gathers the pilots of a bundle until all that arrived in time are ready.

    Parameters
    ----------
    hand_in
        Called with the ready pilots of a bundle when no more are to come.
    """

    def __init__(self, hand_in: Callable[[Sequence[T]], None]) -> None:
        self._hand_in = hand_in
        self._bundles: dict[str, _SubmissionBundle[T]] = {}

    def arrive(self, name: str, copies: int) -> None:
        """
        Announce a pilot of a bundle; :meth:`ready` or :meth:`withdraw` must follow.

        Parameters
        ----------
        copies
            Number of pilots expected; those later than 0.05 s after the first are not awaited.
        """
        bundle = self._bundles.get(name)
        if bundle is None:
            bundle = self._bundles[name] = _SubmissionBundle(copies)
            # A member may never come (its money was refused): the others go without it after a
            # moment.
            asyncio.get_running_loop().call_later(TOGETHER, self._waited, name, bundle)
        bundle.arrived += 1
        bundle.on_way += 1

    def ready(self, name: str, one: T) -> None:
        """Add an announced pilot that can be submitted."""
        bundle = self._bundles[name]
        bundle.ready.append(one)
        self._arrived(name, bundle)

    def withdraw(self, name: str) -> None:
        """Withdraw an announced pilot."""
        self._arrived(name, self._bundles[name])

    def _arrived(self, name: str, bundle: "_SubmissionBundle[T]") -> None:
        bundle.on_way -= 1
        self._submit_if_complete(name, bundle)

    def _waited(self, name: str, bundle: "_SubmissionBundle[T]") -> None:
        bundle.is_late = True
        if self._bundles.get(name) is bundle:
            self._submit_if_complete(name, bundle)

    def _submit_if_complete(self, name: str, bundle: "_SubmissionBundle[T]") -> None:
        # One that has arrived is waited for however long its credential takes to write.
        if bundle.on_way or not (bundle.is_late or bundle.arrived >= bundle.copies):
            return
        # Before the call, so that a pilot that arrives during it begins a new bundle.
        del self._bundles[name]
        if bundle.ready:
            self._hand_in(bundle.ready)


# A pilot at a batch scheduler, from request to end.


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class BatchPilot:
    """
    State of a pilot and of the pilot's job.

    Parameters
    ----------
    begin
        Called when the pilot has its processors, with those that differ from what was asked.
    notify
        Called with a line for people.
    together
        Whether the pilot is of no use with fewer processors than it asks for.
    credential
        File, at the site, that holds the pilot's credential.
    job
        Id of the pilot's job; empty until the scheduler has answered.
    seconds
        Time limit of the pilot's job, seconds.
    processors
        Processors of its job where these are not as many as were asked for; None: as many.
    has_run
        Whether the scheduler has said that the job runs.
    on_start
        Called with the seconds from the begin of the job until its first worker joined, once both
        are known.
    began, joined
        When these were, seconds since the epoch; None until they are known.
    submitted
        Done when the job is in the queue.
    begun
        Done when the pilot has its processors, or fails when it never will.
    lost
        Done when the job has ended by itself: how, and why in words.
    has_quit
        Whether the program of the job has ended by itself, and not with its node or time.
    """

    pilot: Allocation
    begin: PilotBeginListener
    notify: Callable[[str], None]
    together: bool
    credential: str
    job: str = ""
    seconds: float = math.inf
    processors: int | None = None
    has_begun: bool = False
    has_run: bool = False
    on_start: Callable[[float], None] | None = None
    began: float | None = None
    joined: float | None = None
    submitted: asyncio.Future[None] = field(default_factory=_future)
    begun: asyncio.Future[None] = field(default_factory=_future)
    lost: asyncio.Future[tuple[AllocationLoss, str]] = field(default_factory=_future)
    has_quit: bool = False

    @classmethod
    def adopted(
        cls, pilot: Allocation, notify: Callable[[str], None], *, credential: str, job: str
    ) -> "BatchPilot":
        """Return the state of a pilot that an earlier process of the run requested."""
        entry = cls(
            pilot,
            lambda processors=None, seconds=None: None,
            notify,
            together=False,
            credential=credential,
            job=job,
            has_begun=True,
        )
        for future in (entry.submitted, entry.begun):
            future.set_result(None)
        return entry

    def held(self, release: Callable[[], Awaitable[None]]) -> "HeldPilot":
        """Return the handle of the pilot, which ``release`` ends."""
        return HeldPilot(self.lost, release, lambda: self.has_quit)

    def granted(self, report: JobReport | None, now: float) -> tuple[int | None, float | None]:
        """
        Return the processors and seconds granted to the pilot; None where equal to the request.

        Parameters
        ----------
        report
            The scheduler's word of the running job; None where a worker reported first.
        now
            The present time by the scheduler's clock, seconds since the epoch.
        """
        pilot, processors = self.pilot, self.processors
        if report is not None and pilot.least_processors is not None:
            processors = report.processors
        if report is not None and pilot.least_duration is not None and report.until is not None:
            return processors, min(report.until - now, pilot.duration)
        return processors, None if self.seconds == pilot.duration else self.seconds

    def note_start(self, *, began: float | None = None, joined: float | None = None) -> None:
        """Note when the job began, or a worker joined; what is known already stays."""
        if None not in (self.began, self.joined):
            return
        self.began = began if self.began is None else self.began
        self.joined = joined if self.joined is None else self.joined
        if self.began is None or self.joined is None or self.on_start is None:
            return
        # Schedulers cut times to whole seconds: the job began half a second later on average.
        cut = 0.5 if self.began.is_integer() else 0.0
        self.on_start(max(self.joined - self.began - cut, 0.0))

    def fail(self, error: Exception) -> None:
        """Tell the pilot's waiters that the pilot will not begin."""
        for future in (self.submitted, self.begun):
            if not future.done():
                future.set_exception(error)

    def abandon(self) -> None:
        """End all waiting for the pilot to begin."""
        for future in (self.submitted, self.begun):
            if not future.done():
                future.cancel()  # a job that is just being handed in is ended then
            elif not future.cancelled():
                future.exception()  # is told elsewhere; asyncio warns of what nobody looked at


class HeldPilot:
    """
    Handle of a pilot whose job, or machine, may be lost as a whole.

    Parameters
    ----------
    lost
        Done when the job or machine is gone by itself: how, and why in words.
    release
        Coroutine function that ends the pilot.
    quit
        Returns whether the pilot's program has ended by itself while its node was there.
    """

    def __init__(
        self,
        lost: "asyncio.Future[tuple[AllocationLoss, str]]",
        release: Callable[[], Awaitable[None]],
        quit: Callable[[], bool] = lambda: False,
    ) -> None:
        self._lost = lost
        self._release = release
        self._quit = quit

    @property
    def has_quit(self) -> bool:
        """Whether the pilot's program has ended by itself while its node was there."""
        return self._quit()

    @property
    def workers(self) -> int:
        """One while the pilot's job is there, else zero."""
        return int(not self._lost.done())

    async def lost(self) -> tuple[AllocationLoss, str]:
        """
        Wait until the job that holds the processors ends on its own; return the loss and the
        reason.

        See :class:`bursar.sites.protocol.HeldProcessors`.
        """
        return await asyncio.shield(self._lost)

    async def release(self) -> None:
        """End the pilot's job."""
        await self._release()
