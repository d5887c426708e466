"""Sites, an index of them, and a broker, without a clock that goes on by itself."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bursar.broker.matchmaking.broker import ResourceBroker
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.model.errors import SiteError
from bursar.model.matching import Matching, SiteStatus, StatusReading
from bursar.model.site import SiteFacts


class Clock:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class ToldIndex:
    """An index that knows what it was told, and reads the same until it is told more."""

    def __init__(self, clock: Clock) -> None:
        self.version = 0
        self._clock = clock
        self._statuses: dict[str, SiteStatus] = {}

    def tell(self, *statuses: SiteStatus) -> None:
        """What sites say now."""
        self.version += 1
        self._statuses.update({status.site: status for status in statuses})

    def forget(self, site: str) -> None:
        """The entry of a site expires."""
        self.version += 1
        del self._statuses[site]

    def read(self) -> Mapping[str, StatusReading]:
        """All of it, with ages."""
        return {
            name: StatusReading(status, self._clock() - status.at)
            for name, status in self._statuses.items()
        }


class Asked:
    """Sites that answer what they are given to answer, whatever that is."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def status(self, site: str) -> Any:
        """The answer; a SiteError among them is raised."""
        self.asked.append(site)
        answer = self.answers.get(site)
        if isinstance(answer, SiteError):
            raise answer
        return answer


def site(name: str, processors: int = 4, **facts: Any) -> SiteFacts:
    """A site."""
    return SiteFacts(name=name, processors=processors, **facts)


def status(
    name: str, wait: float | None = 0.0, free: int = 0, at: float = 0.0, **more: Any
) -> SiteStatus:
    """What it says."""
    return SiteStatus(site=name, at=at, free_processors=free, traversal_time=wait, **more)


def job(
    number: int = 0,
    *,
    processors: int = 1,
    runtime: float | None = 60.0,
    memory: int | None = None,
    data: tuple[str, ...] = (),
    **asked: Any,
) -> BrokerJob:
    """A job and what it asks for."""
    return BrokerJob(
        number=number,
        matching=Matching(**asked),
        processors=processors,
        runtime=runtime,
        memory=memory,
        data=data,
    )


class Grid:
    """
    Sites with an index and a broker.

    Parameters
    ----------
    sites
        Each in production, with all its processors free, unless said otherwise.
    statuses
        What they say instead; a site that is not among them says nothing if there are any.
    seed
        Of the broker.
    settings
        Of the broker.
    """

    def __init__(
        self,
        sites: Sequence[SiteFacts],
        statuses: Sequence[SiteStatus] | None = None,
        *,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.clock = Clock()
        self.index = ToldIndex(self.clock)
        if statuses is None:
            statuses = [status(one.name, free=one.processors) for one in sites]
        self.index.tell(*statuses)
        self.broker = ResourceBroker(
            sites,
            index=self.index,
            rng=np.random.default_rng(seed),
            clock=self.clock,
            **settings,
        )

    def send(self, one: BrokerJob) -> str:
        """Chooses a job's site, sends it, and it arrives at once; where."""
        match = self.broker.choose(one)
        self.broker.sent(one, match.site)
        self.broker.arrived(one.number)
        return match.site
