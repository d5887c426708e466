"""
What a history knows of a campaign's tasks, as the arrays that run times are learned from.

A kind of task is a name and a command before values are put in: another command under the same
name is another kind. Names that differ in their numbers only (``align chr1``, ``align chr2``) are
one kind, unless they took very different times. Kinds of other campaigns say how much executions
differ in general, and how wrong this user's estimates are.
"""

import re
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
"""Families of kinds of other campaigns that are looked at."""

OF_FAMILY = 5
"""Kinds of each of these families."""

MOST_APART = 0.7
"""Deviation of the usual run times of kinds (logarithm), at most, that are taken as one family."""


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
        Names of the campaign's kinds by number; ``#`` stands for numbers where names that differ
        in them are taken together.
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
        total = len(self.tasks.kind)
        return all(
            # Where nobody has seen how many of the kind there were, all kinds together tell.
            0.8 <= (count / own.tasks if own.tasks else total / np.exp(own.size)) <= 1.25
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
        """
        Word for what the run times are known from, by which forecasts are scored apart.

        Of a probe and of a run that was stopped only a part was observed. Forecasts from these miss
        as those from campaigns of another size do, rather than as those from whole executions.
        """
        if self.executions:
            own = self.model.kinds[: len(self.kinds)]
            whole = all(one.tasks > 0 for one in own if one.executions)
            return "history" if whole and self.same_size else "other size"
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
    own = source.observations_of(names, newest=NEWEST, parameters=True)
    rows = _of_campaign(own, names, campaign.templates, without)
    every = source.kinds()
    # Jobs of which another program knows the times have kinds by these times already.
    related = () if campaign.earlier else names
    groups = _families(related, _usual_times(own, rows), every, campaign.templates)
    labels = {name: groups.labels.get(name, name) for name in names}
    kinds = tuple(dict.fromkeys(labels.values()))
    place = {label: kind for kind, label in enumerate(kinds)}
    of_name = np.array([place[labels[name]] for name in names], dtype=np.int64)
    number = dict(zip(names, of_name.tolist(), strict=True))
    kind = np.array([number[task.name] for task in tasks], dtype=np.int64)
    siblings = source.observations_of(groups.alike, newest=NEWEST_OF_OTHERS)
    taken = {*names, *groups.alike}
    foreign = _foreign([name for name in every if name not in taken])
    others = source.observations_of(list(foreign), newest=NEWEST_OF_OTHERS)
    site_numbers = {name: at for at, name in enumerate(sites)}
    for name in (*own.sites, *siblings.sites, *others.sites):
        site_numbers.setdefault(name, len(site_numbers))
    together = dict.fromkeys((*own.executions, *siblings.executions, *others.executions))
    executions = {name: at for at, name in enumerate(together)}
    part = _arrays(own, rows, executions, site_numbers, of_name[own.kind[rows]])
    seen, wanted = _features(own, rows, tasks, kind, of_name, campaign.root)
    near, near_kind = groups.rows_of(siblings, place, without)
    rest = np.flatnonzero(others.seconds > 0)
    of_foreign = np.array(list(foreign.values()), dtype=np.int64) + len(kinds)
    columns = _joined(
        part,
        seen,
        _arrays(siblings, near, executions, site_numbers, near_kind),
        _arrays(others, rest, executions, site_numbers, of_foreign[others.kind[rest]]),
    )
    sizes = {at: own.sizes[name] for name, at in executions.items() if name in own.sizes}
    model = learn_runtimes(columns, len(kinds) + OTHERS, len(site_numbers), sizes)
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
        kinds=kinds,
        sites=site_numbers,
        observed=len(rows) + len(near),
    )


_DIGITS = re.compile(r"\d+")


def family_of(name: str) -> str:
    """Return a name, or a command, with ``#`` in place of each number."""
    return _DIGITS.sub("#", name)


def _foreign(names: Sequence[str]) -> dict[str, int]:
    """Return some kinds of each of some families, evenly chosen, and the family's number."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(family_of(name), []).append(name)
    chosen = [list(families.values())[at] for at in _even(len(families), OTHERS)]
    return {
        members[at]: number
        for number, members in enumerate(chosen)
        for at in _even(len(members), OF_FAMILY)
    }


def _even(count: int, most: int) -> list[int]:
    """Return at most so many places, evenly spread."""
    return [at * count // min(count, most) for at in range(min(count, most))]


@dataclass(frozen=True, slots=True)
class _Families:
    """
    Kinds that are one but for numbers in their names and commands.

    Tasks of such kinds are slow together. Kinds that ran and took very different times stay apart.

    Parameters
    ----------
    labels
        Name of the family of each kind of the campaign that has one.
    commands
        Family by name and command, numbers as ``#``.
    alike
        Names of other observed kinds that may be of a family.
    """

    labels: Mapping[str, str]
    commands: Mapping[tuple[str, str], str]
    alike: Sequence[str]

    def rows_of(
        self, siblings: ObservationColumns, place: Mapping[str, int], without: str
    ) -> tuple[IntArray, IntArray]:
        """Return the rows of families in an execution other than this one, and their kinds."""
        of_pair = np.full((len(siblings.kinds), max(len(siblings.templates), 1)), -1)
        for at, name in enumerate(siblings.kinds):
            for number, text in enumerate(siblings.templates):
                label = self.commands.get((family_of(name), family_of(text)))
                if label is not None:
                    of_pair[at, number] = place[label]
        kind = of_pair[siblings.kind, siblings.template]
        kept = (siblings.seconds > 0) & (kind >= 0)
        if without in siblings.executions:
            kept &= siblings.execution != siblings.executions.index(without)
        rows = np.flatnonzero(kept)[::-1]
        return rows, kind[rows]


def _usual_times(own: ObservationColumns, rows: IntArray) -> dict[str, float]:
    """Return the median of the logarithms of the run times of each kind that ran."""
    found = {}
    for kind in np.unique(own.kind[rows]):
        seconds = own.seconds[rows[own.kind[rows] == kind]]
        found[own.kinds[kind]] = float(np.median(np.log(seconds)))
    return found


def _families(
    names: Sequence[str],
    usual: Mapping[str, float],
    every: Sequence[str],
    templates: Mapping[str, str],
) -> _Families:
    """
    Return the families of a campaign's kinds that have several members.

    Parameters
    ----------
    names
        The campaign's kinds.
    usual
        Logarithm of the usual run time of those that ran.
    every
        All kinds that ran.
    """
    members: dict[tuple[str, str], list[str]] = {}
    for name in names:
        key = family_of(name), family_of(templates.get(name, ""))
        if key[0] != name:
            members.setdefault(key, []).append(name)
    for key, found in members.items():
        levels = [usual[name] for name in found if name in usual]
        if len(levels) > 1 and float(np.std(levels)) > MOST_APART:
            members[key] = [name for name in found if name not in usual]
    together = {name for found in members.values() for name in found}
    wanted = {family for (family, _), found in members.items() if found}
    alike = [name for name in every if name not in together and family_of(name) in wanted]
    observed = {family_of(name) for name in alike}
    labels: dict[str, str] = {}
    commands: dict[tuple[str, str], str] = {}
    for (family, command), found in members.items():
        if not found or (len(found) == 1 and family not in observed):
            continue
        # Two commands may share their names but for numbers: each is a family.
        label = family if family not in labels.values() else found[0]
        labels |= dict.fromkeys(found, label)
        commands[family, command] = label
        # An observation without a command, such as an imported one, is known by its name alone.
        commands.setdefault((family, ""), label)
    return _Families(labels, commands, alike)


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
    kind: IntArray,
) -> RuntimeColumns:
    of_execution = np.array([executions[name] for name in seen.executions], dtype=np.int64)
    of_site = np.array([sites[name] for name in seen.sites], dtype=np.int64)
    held = np.maximum(seen.seconds[rows] * seen.processors[rows], 1e-9)
    return RuntimeColumns(
        kind=kind,
        execution=of_execution[seen.execution[rows]] if len(rows) else rows,
        site=of_site[seen.site[rows]] if len(rows) else rows,
        work=seen.seconds[rows] * seen.speed[rows],
        whole=~seen.is_censored[rows],
        failed=~seen.has_succeeded[rows] & ~seen.is_censored[rows],
        busy=seen.processor_seconds[rows] / held,
        estimate=seen.estimate[rows],
        features=np.empty((len(rows), 0)),
    )


def _joined(own: RuntimeColumns, features: FloatArray, *others: RuntimeColumns) -> RuntimeColumns:
    """Return all rows as one; only the campaign's own have features."""
    blank = np.full((sum(len(part.kind) for part in others), features.shape[1]), np.nan)
    pairs: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in (own, *others)])
        for name in RuntimeColumns.__slots__
        if name != "features"
    }
    return RuntimeColumns(**pairs, features=np.concatenate([features, blank]))


def _features(
    own: ObservationColumns,
    rows: IntArray,
    tasks: Sequence[Task],
    kind: IntArray,
    kinds: IntArray,
    root: Path,
) -> tuple[FloatArray, FloatArray]:
    """Return the features of observed rows and of the tasks; their meaning differs by kind."""
    assert own.parameters is not None
    found: list[tuple[IntArray, IntArray, list[FloatArray]]] = []
    observed_kind = kinds[own.kind[rows]] if len(rows) else rows
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
            held = [tasks[int(at)].processors for at in wanted]
            columns.append(np.log(np.concatenate([own.processors[rows[seen]], held]).clip(1)))
            names = [tasks[int(at)].name for at in wanted]
            if len(set(names)) > 1:
                columns.append(_of_name(own, rows[seen], names))
        found.append((seen, wanted, columns))
    width = max((len(columns) for _, _, columns in found), default=0)
    of_rows = np.full((len(rows), width), np.nan)
    of_tasks = np.full((len(tasks), width), np.nan)
    for seen, wanted, columns in found:
        for at, column in enumerate(columns):
            of_rows[seen, at] = column[: len(seen)]
            of_tasks[wanted, at] = column[len(seen) :]
    return of_rows, of_tasks


def _of_name(own: ObservationColumns, rows: IntArray, names: Sequence[str]) -> FloatArray:
    """
    Return by how much tasks of each name took longer than their family in other executions.

    For the rows and then for the named tasks; 0 where there is no other execution.
    """
    y, execution, name = np.log(own.seconds[rows]), own.execution[rows], own.kind[rows]
    for number in np.unique(execution):
        y[execution == number] -= np.median(y[execution == number])
    total = np.bincount(name, weights=y, minlength=len(own.kinds))
    count = np.bincount(name, minlength=len(own.kinds))
    pair = name * len(own.executions) + execution
    _, place = np.unique(pair, return_inverse=True)
    here, times = np.bincount(place, weights=y)[place], np.bincount(place)[place]
    number_of = {text: at for at, text in enumerate(own.kinds)}
    at = np.array([number_of[text] for text in names])
    # A name that was seen once is half believed.
    return np.concatenate(
        [(total[name] - here) / (count[name] - times + 1), total[at] / (count[at] + 1)]
    )


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
