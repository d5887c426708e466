"""Models real execution: how long the attempts of tasks take, and which fail."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionUncertainty:
    """
    Describes how far execution differs from estimates.

    Parameters
    ----------
    spread
        Standard deviation of a runtime over its estimate, which is its mean; log-normal.
    failures
        Share of attempts that fail, at a uniformly drawn part of their time.
    stragglers
        Share of attempts that take two to four times as long.
    seed
        Seed of all draws, which depend only on it, the task and the attempt.
    hidden
        Whether schedulers get no estimates of runtimes.

    Raises
    ------
    InputError
        When one is out of range.
    """

    spread: float = 0.0
    failures: float = 0.0
    stragglers: float = 0.0
    seed: int = 0
    hidden: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.spread < math.inf:
            raise InputError(f"must not be negative, got {self.spread:g}", where="spread")
        if not 0 <= self.failures < 1:
            raise InputError(f"a share from 0 to below 1, got {self.failures:g}", where="failures")
        if not 0 <= self.stragglers <= 1:
            raise InputError(f"a share from 0 to 1, got {self.stragglers:g}", where="stragglers")
        if self.seed < 0:
            raise InputError(f"must not be negative, got {self.seed}", where="seed")


@dataclass(frozen=True, slots=True)
class PilotOverhead:
    """
    Holds the seconds for which processors are paid while no task can run.

    Parameters
    ----------
    starting
        Seconds from when a pilot has processors until the worker takes the first task.
    stopping
        Seconds from the release of a pilot until its processors are no longer paid.
    """

    starting: float = 0.0
    stopping: float = 0.0


class ExecutionModel:
    """
    Gives workers the durations and failures of attempts, and the arrival times of data.

    Parameters
    ----------
    workflow
        Workflow whose tasks run; every runtime must be known.
    work
        Seconds at speed 1 that tasks really take, where that is known; else what was estimated.
    overheads
        Overheads of pilots by site name, in order of begin; further pilots have the mean. None:
        workers start and stop in no time.

    Raises
    ------
    InputError
        When a runtime is unknown.
    """

    def __init__(
        self,
        workflow: Workflow,
        sites: Sequence[SiteFacts],
        chance: ExecutionUncertainty | None = None,
        work: Mapping[int, float] | None = None,
        overheads: Mapping[str, Sequence[PilotOverhead]] | None = None,
    ) -> None:
        self._overheads = {site: iter(of) for site, of in (overheads or {}).items()}
        self._usual = {site: _mean_overhead(of) for site, of in (overheads or {}).items()}
        self._work = work or {}
        unknown = [
            task.id
            for number, task in enumerate(workflow.tasks)
            if task.runtime is None and number not in self._work
        ]
        if unknown:
            raise InputError(
                f'the runtime of task "{unknown[0]}"'
                + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "")
                + " is unknown: it cannot be simulated",
                hint="give it a runtime, or one for all with --runtime",
            )
        self._workflow = workflow
        self._sites: Mapping[str, SiteFacts] = {site.name: site for site in sites}
        self._chance = chance or ExecutionUncertainty()
        self._ended: dict[int, tuple[str, float]] = {}
        self._linked = any(site.links for site in sites)

    def overhead(self, site: str) -> PilotOverhead:
        """Return the overhead of the next pilot at a site."""
        return next(self._overheads.get(site, _NOBODY), self._usual.get(site, PilotOverhead()))

    def attempt(self, task: int, number: int, site: str) -> tuple[float, bool]:
        """Return the seconds that an attempt takes at a site, and whether the attempt succeeds."""
        work = self._work.get(task, self._workflow.tasks[task].runtime or 0.0)
        seconds = work / self._sites[site].speed
        chance = self._chance
        if not (chance.spread or chance.failures or chance.stragglers):
            return seconds, True
        if chance.spread:  # of the task: cut short, it takes as long the next time
            stretch = float(np.random.default_rng([chance.seed, task]).standard_normal())
            # So chosen that the mean of the log-normal factor is 1 and its standard deviation the
            # spread.
            variance = math.log1p(chance.spread**2)
            seconds *= math.exp(math.sqrt(variance) * stretch - variance / 2)
        if chance.stragglers:  # of the attempt: another one may be as fast as usual
            slow, factor = np.random.default_rng([chance.seed, task, number, 1]).random(2).tolist()
            seconds *= 2 + 2 * factor if slow < chance.stragglers else 1
        # From seed, task and attempt alone, never from a stream: an attempt goes the same way
        # whichever strategy runs it, and whenever, so that strategies are compared on the same
        # luck.
        draw, part = np.random.default_rng([chance.seed, task, number]).random(2).tolist()
        return (seconds * part, False) if draw < chance.failures else (seconds, True)

    def succeeded(self, task: int, site: str, moment: float) -> None:
        """Record where and when a task's outputs were made."""
        self._ended[task] = (site, moment)

    def data_at(self, task: int, site: str) -> float:
        """Return the latest arrival of a task's inputs at a site."""
        if not self._linked:
            return -math.inf
        tasks = self._workflow.tasks
        latest = -math.inf
        for parent in self._workflow.parents[task]:
            if parent in self._ended:
                source, moment = self._ended[parent]
                delay = self._sites[source].delay_to(site, tasks[parent], tasks[task])
                latest = max(latest, moment + delay)
        return latest


def _mean_overhead(overheads: Sequence[PilotOverhead]) -> PilotOverhead:
    return PilotOverhead(
        fmean(one.starting for one in overheads), fmean(one.stopping for one in overheads)
    )


_NOBODY: Iterator[PilotOverhead] = iter(())
