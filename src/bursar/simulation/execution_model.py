"""What really happens to tasks that are simulated: how long they take, and which fail."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.workflow import Workflow


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionUncertainty:
    """
    How far what happens differs from what was estimated.

    Parameters
    ----------
    spread
        Standard deviation of a runtime over its estimate, which is its mean; log-normal.
    failures
        Share of attempts that fail, at a uniformly drawn part of their time.
    seed
        Of all draws: the same for a task, or its same attempt, whatever else happens.
    hidden
        Whether runtimes are kept from whoever decides: nothing is estimated then.

    Raises
    ------
    InputError
        When one is out of range.
    """

    spread: float = 0.0
    failures: float = 0.0
    seed: int = 0
    hidden: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.spread < math.inf:
            raise InputError(f"must not be negative, got {self.spread:g}", where="spread")
        if not 0 <= self.failures < 1:
            raise InputError(f"a share from 0 to below 1, got {self.failures:g}", where="failures")
        if self.seed < 0:
            raise InputError(f"must not be negative, got {self.seed}", where="seed")


@dataclass(frozen=True, slots=True)
class PilotOverhead:
    """
    Seconds for which processors are paid besides those in which tasks run.

    Parameters
    ----------
    starting
        From when a pilot has its processors until its worker takes the first task.
    stopping
        From when a pilot goes back until its processors are paid no more.
    """

    starting: float = 0.0
    stopping: float = 0.0


class ExecutionModel:
    """
    Tells workers what becomes of their attempts, and when data have arrived.

    Parameters
    ----------
    workflow
        Whose tasks run. Every runtime must be known.
    sites
        Their speeds and links.
    work
        Seconds at speed 1 that tasks really take, where that is known; else what was
        estimated.
    overheads
        Of the pilots at each site, by its name, in the order in which they begin; more pilots
        than these have their mean. None: workers start and stop in no time.

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
        """Seconds that the next pilot at a site is paid for besides its tasks'."""
        return next(self._overheads.get(site, _NOBODY), self._usual.get(site, PilotOverhead()))

    def attempt(self, task: int, number: int, site: str) -> tuple[float, bool]:
        """Seconds that an attempt takes at a site, and whether it succeeds."""
        work = self._work.get(task, self._workflow.tasks[task].runtime or 0.0)
        seconds = work / self._sites[site].speed
        chance = self._chance
        if not chance.spread and not chance.failures:
            return seconds, True
        if chance.spread:  # of the task: cut short, it takes as long the next time
            stretch = float(np.random.default_rng([chance.seed, task]).standard_normal())
            variance = math.log1p(chance.spread**2)
            seconds *= math.exp(math.sqrt(variance) * stretch - variance / 2)
        fate, part = np.random.default_rng([chance.seed, task, number]).random(2).tolist()
        return (seconds * part, False) if fate < chance.failures else (seconds, True)

    def succeeded(self, task: int, site: str, moment: float) -> None:
        """Where and when a task's outputs came to be."""
        self._ended[task] = (site, moment)

    def data_at(self, task: int, site: str) -> float:
        """When what a task needs of others has arrived at a site; at the latest."""
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
