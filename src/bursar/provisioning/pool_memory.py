"""A pool's memory from one decision to the next."""

import math
from dataclasses import dataclass, field

from bursar.provisioning.pool_snapshot import BackfillWindow
from bursar.provisioning.request_shaping import RequestShape
from bursar.provisioning.site_health import SiteHealth
from bursar.provisioning.wait_prediction import WaitPredictor


@dataclass(slots=True)
class PendingRequest:
    """
    A request that the pool made and that is not gone.

    Parameters
    ----------
    site
        Name of the site.
    asked
        Time of the request, on the pool's clock; None: unknown.
    fits
        Whether the request fitted the free processors and should have started at once.
    began
        Time at which processors were received, on the pool's clock; None: not yet.
    worked
        Whether any of the processors had a task.
    given_back
        Whether the release was decided.
    silent_since
        When its last worker went away, on the pool's clock, if it was given back for that.
    """

    site: str
    asked: float | None = None
    fits: bool = False
    began: float | None = None
    worked: bool = False
    given_back: bool = False
    silent_since: float | None = None


@dataclass(slots=True)
class SiteObservation:
    """Processors of a site that were claimed since the scheduler was last asked."""

    free: int | None
    backfill_windows: tuple[BackfillWindow, ...]
    claims: list[RequestShape] = field(default_factory=list)


@dataclass(slots=True)
class PoolMemory:
    """
    All that a pool remembers.

    Parameters
    ----------
    waits
        History of the user's queue waits.
    wake
        When a decision may be due though nothing has happened, on the pool's clock.
    health_by_site, observations
        Health and observation of each site, by name.
    known
        Pending requests, by name.
    is_hungry
        Whether tasks waited at the last decision.
    spare
        Since when at least so many processors are too many; None: there are none.
    tried
        Moves of requests since one last began, by site.
    labels
        Number of labels given to races and bundles so far.
    """

    waits: WaitPredictor
    wake: float = math.inf
    health_by_site: dict[str, SiteHealth] = field(default_factory=dict)
    observations: dict[str, SiteObservation] = field(default_factory=dict)
    known: dict[str, PendingRequest] = field(default_factory=dict)
    is_hungry: bool = False
    spare: tuple[float, int] | None = None
    tried: dict[str, int] = field(default_factory=dict)
    labels: int = 0

    def health(self, site: str) -> SiteHealth:
        """Return a site's health, initially good."""
        return self.health_by_site.setdefault(site, SiteHealth())

    def wake_at(self, moment: float) -> None:
        """Wake at a given time at the latest."""
        self.wake = min(self.wake, moment)

    def label(self, kind: str) -> str:
        """Return a label that was not given before."""
        self.labels += 1
        return f"{kind}-{self.labels}"
