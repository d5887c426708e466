"""A clock that is turned, and sites that answer by it."""

from dataclasses import dataclass, field

from bursar.model.errors import SiteError
from bursar.model.matching import SiteStatus


@dataclass
class Clock:
    """Stands still until it is turned."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def said(site: str = "a", at: float = 0.0, free: int = 1) -> SiteStatus:
    """A status in which not much is said."""
    return SiteStatus(site=site, at=at, free_processors=free)


@dataclass
class Site:
    """Says what it is like now, unless it is dead."""

    name: str
    clock: Clock
    free: int = 1
    dead: bool = False
    asked: list[float] = field(default_factory=list)

    def __call__(self) -> SiteStatus:
        self.asked.append(self.clock.now)
        if self.dead:
            raise SiteError(f"{self.name}: is not there")
        return said(self.name, self.clock.now, self.free)
