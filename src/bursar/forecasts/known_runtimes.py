"""
What a history knows of a campaign's tasks, as the arrays that run times are learned from.

A kind of task is a name and a command before values are put in: another command under the same
name is another kind. Kinds of other campaigns say how much executions differ in general, and how
wrong this user's estimates are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bursar.forecasts.covariates import numeric_features
from bursar.forecasts.runtime_draws import CampaignTasks
from bursar.forecasts.runtime_model import RuntimeColumns, RuntimeModel, learn_runtimes
from bursar.history.columns import ObservationColumns
from bursar.model.campaign import Campaign
from bursar.model.task import Task

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NEWEST = 5000
"""Observations of each kind of the campaign that are looked at, the newest."""

NEWEST_OF_OTHERS = 200
"""Observations of each other kind."""

OTHERS = 60
"""Kinds of other campaigns that are looked at."""


class ObservationSource(Protocol):
    """Source of earlier tasks, such as :class:`bursar.history.store.History`."""

    def kinds(self) -> list[str]:
        """Return the names of all kinds."""

    def observations_of(
        self, kinds: Sequence[str], *, newest: int | None = None, parameters: bool = False
    ) -> ObservationColumns:
        """Return the observations of some kinds, each kind's newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRuntimes:
    """
    Run times of a campaign's kinds of tasks, and the arrays of its tasks.

    Parameters
    ----------
    model
        What was learned; kinds of the campaign come first.
    tasks
        Arrays of all tasks of the campaign, none of which has begun.
    kinds
        Names of the campaign's kinds by number.
    sites
        Number of each site by name.
    observed
        Earlier tasks of the campaign's kinds.
    """

    model: RuntimeModel
    tasks: CampaignTasks
    kinds: tuple[str, ...]
    sites: Mapping[str, int]
    observed: int = 0

    def of_part(self, rows: IntArray) -> "KnownRuntimes":
        """Return what is known of some of the tasks, by their places among all."""
        return replace(self, tasks=self.tasks.rows(rows))

    @property
    def executions(self) -> int:
        """Earlier executions of the campaign's kinds, the most of any kind."""
        return max(own.executions for own in self.model.kinds[: len(self.kinds)])

    @property
    def same_size(self) -> bool:
        """Whether the earlier executions had about as many tasks of each kind."""
        counts = np.bincount(self.tasks.kind, minlength=len(self.kinds))
        return all(
            0.8 <= count / own.tasks <= 1.25
            for count, own in zip(counts.tolist(), self.model.kinds, strict=False)
            if count and own.executions
        )

    def medians(self) -> FloatArray:
        """
        Return the median run time of each task, seconds at speed 1; NaN of kinds never observed.

        Failed attempts are in it as far as they are likely.
        """
        expected = np.full(len(self.tasks.kind), np.nan)
        for kind, own in enumerate(self.model.kinds[: len(self.kinds)]):
            rows = np.flatnonzero(self.tasks.kind == kind)
            if own.level is None or not len(rows):
                continue
            level = own.level + own.covariates.effect(self.tasks.features[rows])
            # A failed attempt takes half of a whole one, on average.
            expected[rows] = np.exp(level) * (1 + 0.5 * own.failures / (1 - own.failures))
        return expected

    @property
    def basis(self) -> str:
        """Word for what the run times are known from, by which forecasts are scored apart."""
        if self.executions:
            return "history" if self.same_size else "other size"
        return "estimates" if np.isfinite(self.tasks.estimate).any() else "nothing"


def known_runtimes(
    campaign: Campaign,
    sites: Sequence[str],
    source: ObservationSource,
    *,
    without: str = "",
) -> KnownRuntimes:
    """
    Learn what a history knows of a campaign's tasks.

    Parameters
    ----------
    sites
        Names of the sites that the campaign may run at.
    source
        The history.
    without
        Name of an execution that is left out: the campaign's own, which goes on.

    Raises
    ------
    InputError, BursarError
        When the history cannot be read.
    """
    tasks = campaign.workflow.tasks
    names = tuple(dict.fromkeys(task.name for task in tasks))
    number = {name: kind for kind, name in enumerate(names)}
    kind = np.array([number[task.name] for task in tasks], dtype=np.int64)
    own = source.observations_of(names, newest=NEWEST, parameters=True)
    foreign = [name for name in source.kinds() if name not in number][:OTHERS]
    others = source.observations_of(foreign, newest=NEWEST_OF_OTHERS)
    site_numbers = {name: at for at, name in enumerate(sites)}
    for name in (*own.sites, *others.sites):
        site_numbers.setdefault(name, len(site_numbers))
    executions = {
        name: at for at, name in enumerate(dict.fromkeys((*own.executions, *others.executions)))
    }
    rows = _of_campaign(own, names, campaign.templates, without)
    part = _arrays(own, rows, executions, site_numbers, 0)
    seen, wanted = _features(own, rows, tasks, kind, campaign.root)
    rest = np.flatnonzero(others.seconds > 0)
    second = _arrays(others, rest, executions, site_numbers, len(names))
    columns = _joined(part, seen, second)
    model = learn_runtimes(columns, len(names) + len(foreign), len(site_numbers))
    return KnownRuntimes(
        model=model,
        tasks=CampaignTasks(
            kind=kind,
            features=wanted,
            estimate=np.array([np.nan if task.runtime is None else task.runtime for task in tasks]),
            elapsed=np.zeros(len(tasks)),
            tries=np.array(
                [
                    campaign.retry.attempts if task.retries is None else task.retries + 1
                    for task in tasks
                ]
            ),
        ),
        kinds=names,
        sites=site_numbers,
        observed=len(rows),
    )


def _of_campaign(
    own: ObservationColumns, names: Sequence[str], templates: Mapping[str, str], without: str
) -> IntArray:
    """Return the rows that are of the campaign's kinds, and not of its present execution."""
    kept = own.seconds > 0
    if without in own.executions:
        kept &= own.execution != own.executions.index(without)
    for kind, name in enumerate(names):
        template = templates.get(name)
        # An observation without a command, such as an imported one, is known by its name alone.
        fitting = [at for at, text in enumerate(own.templates) if not text or text == template]
        if template:
            kept &= (own.kind != kind) | np.isin(own.template, fitting)
    # Oldest first, so that what is cut off later is old.
    return np.flatnonzero(kept)[::-1]


def _arrays(
    seen: ObservationColumns,
    rows: IntArray,
    executions: Mapping[str, int],
    sites: Mapping[str, int],
    offset: int,
) -> RuntimeColumns:
    of_execution = np.array([executions[name] for name in seen.executions], dtype=np.int64)
    of_site = np.array([sites[name] for name in seen.sites], dtype=np.int64)
    held = np.maximum(seen.seconds[rows] * seen.processors[rows], 1e-9)
    return RuntimeColumns(
        kind=seen.kind[rows] + offset,
        execution=of_execution[seen.execution[rows]] if len(rows) else rows,
        site=of_site[seen.site[rows]] if len(rows) else rows,
        work=seen.seconds[rows] * seen.speed[rows],
        whole=~seen.is_censored[rows],
        failed=~seen.has_succeeded[rows] & ~seen.is_censored[rows],
        busy=seen.processor_seconds[rows] / held,
        estimate=seen.estimate[rows],
        features=np.empty((len(rows), 0)),
    )


def _joined(own: RuntimeColumns, features: FloatArray, others: RuntimeColumns) -> RuntimeColumns:
    width = features.shape[1]
    blank = np.full((len(others.kind), width), np.nan)
    pairs: dict[str, Any] = {
        name: np.concatenate([getattr(own, name), getattr(others, name)])
        for name in RuntimeColumns.__slots__
        if name != "features"
    }
    return RuntimeColumns(**pairs, features=np.concatenate([features, blank]))


def _features(
    own: ObservationColumns,
    rows: IntArray,
    tasks: Sequence[Task],
    kind: IntArray,
    root: Path,
) -> tuple[FloatArray, FloatArray]:
    """Return the features of observed rows and of the tasks; their meaning differs by kind."""
    assert own.parameters is not None
    found: list[tuple[IntArray, IntArray, list[FloatArray]]] = []
    observed_kind = own.kind[rows]
    for number in range(int(kind.max()) + 1):
        seen = np.flatnonzero(observed_kind == number)
        wanted = np.flatnonzero(kind == number)
        columns: list[FloatArray] = []
        if len(seen):
            points: list[Mapping[str, Any]] = [own.parameters[row] for row in rows[seen]]
            points += [tasks[int(at)].parameters for at in wanted]
            for name in sorted({name for point in points[len(seen) :] for name in point}):
                values = [point.get(name) for point in points]
                if all(value is not None for value in values):
                    columns += numeric_features(values)
            total = own.input_bytes[rows[seen]]
            if np.isfinite(total).all() and (total > 0).all():
                sizes = np.array([_input_bytes(tasks[int(at)], root) for at in wanted])
                # A size that is not known yet has no effect.
                columns.append(np.log(np.concatenate([total, np.maximum(sizes, 1.0)])))
        found.append((seen, wanted, columns))
    width = max((len(columns) for _, _, columns in found), default=0)
    of_rows = np.full((len(rows), width), np.nan)
    of_tasks = np.full((len(tasks), width), np.nan)
    for seen, wanted, columns in found:
        for at, column in enumerate(columns):
            of_rows[seen, at] = column[: len(seen)]
            of_tasks[wanted, at] = column[len(seen) :]
    return of_rows, of_tasks


def _input_bytes(task: Task, root: Path) -> float:
    """Return the size of a task's inputs, NaN where one is unknown or not there yet."""
    total = 0
    for file in task.inputs:
        if file.size is not None:
            total += file.size
            continue
        try:
            total += (root / file.name).stat().st_size
        except OSError:
            return float("nan")
    return float(total) if task.inputs else float("nan")
