"""Brings the status of sites to indexes: by polling of the sites, or from other indexes."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bursar.broker.information_index import EXPIRY, InformationIndex, Source
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
    sites
        Function that asks each site, by its name.
    every
        Seconds between two questions to a site; a question that is still open is not asked again.
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


# Indexes read indexes, from the sites up to the one that all consumers may read.


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexLevel:
    """
    Settings of the indexes on one level of a hierarchy.

    Parameters
    ----------
    every
        Seconds between two rounds of asking the level below, the time to live of values.
    delay
        Seconds from the publication of a status below to its availability here.
    first
        When the first round is, seconds.
    """

    every: float
    delay: float = 0.0
    first: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexHierarchy:
    """
    Indexes by level, from the lowest up, and by name.

    Parameters
    ----------
    levels
        Levels from the lowest up; the last has one index, which covers all sites.
    """

    levels: tuple[Mapping[str, InformationIndex], ...]

    @property
    def top(self) -> InformationIndex:
        """Index that covers all sites."""
        return next(iter(self.levels[-1].values()))


def build_hierarchy(
    levels: Sequence[IndexLevel],
    sources: Mapping[str, Source],
    *,
    clock: Callable[[], float],
    places: Mapping[str, Sequence[str]] | None = None,
    expiry: float = EXPIRY,
    on_fault: Callable[[str, str], None] | None = None,
) -> IndexHierarchy:
    """
    Build a tree of indexes: resource, site, country or organisation, and so on to the top.

    To keep the tree up to date, refresh the top whenever it is due; the levels below follow.

    Parameters
    ----------
    levels
        Levels from the lowest up. The last has one index, which has no name.
    clock
        The present time, seconds.
    places
        For each site, the index that it belongs to on each level but the last, from the
        lowest up; None: there is one on every level.
    expiry, on_fault
        See :class:`bursar.broker.information_index.InformationIndex`.

    Raises
    ------
    InputError
        When there is no level, a site has no place or one of another depth, an index would
        belong to two, or what answers all the time would expire on a level.
    """
    if not levels or not sources:
        raise InputError("a hierarchy has at least one level, and one site")
    paths = {site: _path(site, places, len(levels) - 1) for site in sources}
    below: dict[str, list[InformationIndex]] = {}
    made: list[dict[str, InformationIndex]] = []
    for height, level in enumerate(levels):
        asked: dict[str, dict[str, Source]] = {}
        if not height:
            for site, path in paths.items():
                asked.setdefault(path[0], {})[site] = sources[site]
        made.append(
            {
                name: InformationIndex(
                    clock=clock,
                    expiry=expiry,
                    sources=asked.get(name),
                    below=below.get(name, ()),
                    every=level.every,
                    delay=level.delay,
                    first=level.first,
                    on_fault=on_fault,
                )
                for name in asked or below
            }
        )
        below = _by_parent(made[-1], paths, height)
    return IndexHierarchy(levels=tuple(made))


def _path(site: str, places: Mapping[str, Sequence[str]] | None, depth: int) -> tuple[str, ...]:
    """Names of the indexes over a site, from the lowest to the top."""
    if places is None:
        return ("",) * (depth + 1)
    if site not in places:
        raise InputError("has no place in the hierarchy", where=site)
    place = tuple(places[site])
    if len(place) != depth:
        raise InputError(f"expected a place on {depth} levels, got {len(place)}", where=site)
    return (*place, "")


def _by_parent(
    indexes: Mapping[str, InformationIndex], paths: Mapping[str, tuple[str, ...]], height: int
) -> dict[str, list[InformationIndex]]:
    """Indexes of one level by the name of the one above."""
    parents: dict[str, str] = {}
    for site, path in paths.items():
        if height + 1 == len(path):
            return {}
        name, above = path[height], path[height + 1]
        if parents.setdefault(name, above) != above:
            raise InputError(f'"{name}" belongs to "{parents[name]}" and "{above}"', where=site)
    found: dict[str, list[InformationIndex]] = {}
    for name, above in parents.items():
        found.setdefault(above, []).append(indexes[name])
    return found
