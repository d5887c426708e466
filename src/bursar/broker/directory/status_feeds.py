"""Bring the status of sites to an index: it polls them, or they publish changes."""

import asyncio
import contextlib
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping

from bursar.broker.directory.information_index import InformationIndex
from bursar.model.errors import BursarError, InputError
from bursar.model.status import SiteStatus
from bursar.supervisor import TaskSupervisor

EVERY = 60.0
"""Seconds between two questions to a site, or two of its messages, where nothing else is said."""

PATIENCE = 10.0
"""Seconds that an answer may take."""

LEAST = 1.0
"""Seconds between two messages of a site that has much to tell."""

THRESHOLD = 0.1
"""Share by which a number has to change to be news."""

Ask = Callable[[], Awaitable[object] | object]
"""Asks a site how it is; what is awaited may take its time."""


class StatusPoller:
    """
    Asks each site for its status at its own intervals, and passes the answers to a directory.

    A site that is slow holds up nobody else. One that does not answer in time, fails, or says
    what cannot be true keeps its entry in the directory until that expires.

    Parameters
    ----------
    directory
        Index that takes in the answers.
    sites
        Function that asks each site, by its name.
    every
        Seconds between two questions to a site; a question that is still open is not asked
        again.
    patience
        Seconds that an answer may take.
    on_round
        Called whenever each site has answered, or failed to, once more.

    Raises
    ------
    InputError
        When a time is not positive.
    """

    def __init__(
        self,
        directory: InformationIndex,
        sites: Mapping[str, Ask],
        *,
        every: float = EVERY,
        patience: float = PATIENCE,
        on_round: Callable[[], None] | None = None,
    ) -> None:
        _check(every=every, patience=patience)
        self._directory = directory
        self._sites = sites
        self._every = every
        self._patience = patience
        self._on_round = on_round
        self._open = set(sites)  # not asked yet in this round
        self._first_round = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks = TaskSupervisor(self._on_failure)

    async def __aenter__(self) -> "StatusPoller":
        """Begin to ask."""
        for site in self._sites:
            self._tasks.start(self._go_on(site))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop asking; raise what kept a site from being asked further."""
        await self._tasks.close()
        if self._failure is not None:
            raise self._failure

    async def wait_for_all(self) -> None:
        """
        Wait until each site has answered, or failed to, for the first time.

        A fault of ours that keeps a site from being asked further is raised.
        """
        if self._sites:
            await self._first_round.wait()
        if self._failure is not None:
            raise self._failure

    def _on_failure(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._first_round.set()

    async def _go_on(self, site: str) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._ask(site)
            self._count(site)
            missed = math.floor(max(0.0, loop.time() - due) / self._every)
            due += self._every * (missed + 1)
            await asyncio.sleep(due - loop.time())

    def _count(self, site: str) -> None:
        self._open.discard(site)
        if not self._open:
            self._open = set(self._sites)
            if self._on_round is not None:
                self._on_round()
            self._first_round.set()  # not before: who waits for it hears that the report failed

    async def _ask(self, site: str) -> None:
        try:
            async with asyncio.timeout(self._patience):
                status = self._sites[site]()
                if inspect.isawaitable(status):
                    status = await status
            self._directory.receive_status(site, status)
        except TimeoutError:
            self._directory.failed(site, f"does not answer within {self._patience:g} s")
        except Exception as error:  # whatever it is, others go on
            self._directory.failed(site, _shown(error))


class StatusPublisher:
    """
    Sends a site's status to an index: at intervals, and when it has changed by much.

    A message that cannot be sent is not lost for long: the next one says how it is then.

    Parameters
    ----------
    status
        Returns the site's present status.
    send
        Sends a status; may be asynchronous.
    every
        Seconds between two messages when nothing changes.
    least
        Seconds between two messages when much does.
    threshold
        Share by which a number has to change to be news, see :func:`is_significant_change`.
    patience
        Seconds that sending may take.
    on_fault
        Called when a message could not be sent, once until sending works again.

    Raises
    ------
    InputError
        When a time is not positive, or the threshold is negative.
    """

    def __init__(
        self,
        status: Callable[[], SiteStatus],
        send: Callable[[SiteStatus], Awaitable[object] | object],
        *,
        every: float = EVERY,
        least: float = LEAST,
        threshold: float = THRESHOLD,
        patience: float = PATIENCE,
        on_fault: Callable[[str], None] | None = None,
    ) -> None:
        _check(every=every, least=least, patience=patience)
        if not threshold >= 0:
            raise InputError(f"must not be negative, got {threshold:g}", where="threshold")
        self._status = status
        self._send = send
        self._every = every
        self._least = least
        self._threshold = threshold
        self._patience = patience
        self._on_fault = on_fault
        self._published: SiteStatus | None = None  # or being told
        self._is_failing = False
        self._changed = asyncio.Event()
        self._tasks = TaskSupervisor()

    async def __aenter__(self) -> "StatusPublisher":
        """Begin with a message."""
        self._tasks.start(self._go_on())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop sending; raise what kept the status from being sent further."""
        await self._tasks.close()

    def poll(self) -> None:
        """Something has happened at the site: if that is news, it is sent."""
        if self._published is None or is_significant_change(
            self._published, self._status(), self._threshold
        ):
            self._changed.set()

    async def _go_on(self) -> None:
        least = min(self._least, self._every)
        while True:
            self._changed.clear()
            await self._publish()
            await asyncio.sleep(least)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._every - least):
                    await self._changed.wait()

    async def _publish(self) -> None:
        try:
            async with asyncio.timeout(self._patience):
                self._published = self._status()
                sent = self._send(self._published)
                if inspect.isawaitable(sent):
                    await sent
        except Exception as error:
            self._published = None
            if not self._is_failing and self._on_fault is not None:
                self._on_fault(_shown(error))
            self._is_failing = True
        else:
            self._is_failing = False


def is_significant_change(before: SiteStatus, now: SiteStatus, threshold: float) -> bool:
    """
    Whether a status differs so much from the last published one that it should be sent.

    It is when its state or another fact changed, a number is known that was not, or the other
    way round, or one changed by more than so large a share of the greater of the two. Jobs,
    processors and seconds that differ by less than one do not count.
    """
    if (before.state, before.attributes) != (now.state, now.attributes):
        return True
    pairs = (
        (before.free_processors, now.free_processors),
        (before.running, now.running),
        (before.waiting, now.waiting),
        (before.traversal_time, now.traversal_time),
        (before.free_memory, now.free_memory),
    )
    return any(_differs(a, b, threshold) for a, b in pairs)


def _differs(a: float | None, b: float | None, threshold: float) -> bool:
    if a is None or b is None:
        return a is not b
    return abs(a - b) >= 1 and abs(a - b) > threshold * max(a, b)


def _shown(error: Exception) -> str:
    """Format an error in one line."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, BursarError) else f"{type(error).__name__}: {text}"


def _check(**seconds: float) -> None:
    for name, value in seconds.items():
        if not 0 < value < math.inf:
            raise InputError(f"must be positive, got {value:g}", where=name)
