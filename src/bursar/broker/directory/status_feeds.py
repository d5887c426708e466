"""Brings the status of sites to an index by polling them."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping

from bursar.broker.directory.information_index import InformationIndex
from bursar.model.errors import BursarError, InputError
from bursar.supervisor import TaskSupervisor

EVERY = 60.0
"""Seconds between two questions to a site, where nothing else is said."""

PATIENCE = 10.0
"""Seconds that an answer may take."""

Ask = Callable[[], Awaitable[object] | object]
"""Asks a site for its status, either at once or as an awaitable."""


class StatusPoller:
    """
    Polls each site at regular intervals, and passes the answers to a directory.

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
            # A grid of times that missed rounds do not shift: a slow site is not asked in bursts
            # afterwards.
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


def _shown(error: Exception) -> str:
    """Format an error in one line."""
    text = (str(error).splitlines() or [""])[0]
    return text if isinstance(error, BursarError) else f"{type(error).__name__}: {text}"


def _check(**seconds: float) -> None:
    for name, value in seconds.items():
        if not 0 < value < math.inf:
            raise InputError(f"must be positive, got {value:g}", where=name)
