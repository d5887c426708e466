"""
Run times that another program keeps of a workflow's jobs, learned from beside the history.

A job that ran before tells more than other jobs of its rule. Where each job to run of a rule was
measured, and the jobs differ, each is therefore a kind of its own; else the rule is the kind, and
wildcards, threads and sizes of inputs may explain the differences. A job that gathers more inputs
than it did then, such as those of further samples, is expected to take longer in proportion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from bursar.formats.file_text import read_bytes
from bursar.history.columns import ObservationColumns, columns_of, joined_columns
from bursar.history.importing.imported_log import fingerprint
from bursar.history.importing.snakemake import read_snakemake_benchmark
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.model.campaign import Campaign, EarlierJob, Workflow
from bursar.model.errors import InputError

APART = 1.15
"""Ratio of the longest to the shortest job of a rule from which on each is a kind of its own."""

START = 1.0
"""Seconds of a job that do not grow with the number of its inputs: its programs start."""

MOST_KINDS = 2000
"""Kinds of their own that are made of the jobs of one workflow, at most."""


def observe_earlier(campaign: Campaign) -> tuple[Campaign, list[TaskObservation]]:
    """
    Return the campaign, with kinds by what is known of its jobs, and the observations of these.

    A benchmark file that is absent or cannot be read is passed over.
    """
    execution = f"snakemake-{campaign.root.name or 'project'}@{fingerprint(str(campaign.root))}"
    found = (_observed(job, execution) for job in campaign.earlier)
    seen = [observation for observation in found if observation is not None]
    held = {task.id: task.processors for task in campaign.workflow.tasks}
    # With other threads it took another time.
    same = [one for one in seen if held.get(one.task) == one.processors]
    own = _jobs_as_kinds(campaign, {one.task: one.seconds for one in same})
    templates = dict(campaign.templates)
    tasks = []
    for task in campaign.workflow.tasks:
        if task.id in own:
            templates[task.id] = templates.get(task.name, "")
            task = replace(task, name=task.id)
        tasks.append(task)
    changed = replace(campaign, workflow=Workflow(tuple(tasks)), templates=templates)
    return changed, [
        msgspec.structs.replace(one, kind=one.task) if one.task in own else one for one in seen
    ]


def _observed(job: EarlierJob, execution: str) -> TaskObservation | None:
    measured = _benchmark(job)
    seconds, began = job.seconds, job.began
    if seconds is None and measured:
        # Repetitions of a benchmark run one after another, in one job.
        seconds = sum(one.seconds for one in measured)
        began = max(0.0, measured[0].start + measured[0].seconds - seconds)
    if seconds is None:
        return None
    seconds += (job.growth - 1) * max(0.0, seconds - START)
    sizes = [one.max_rss for one in measured if one.max_rss is not None]
    busy = [one.user_seconds for one in measured if one.user_seconds is not None]
    try:
        return TaskObservation(
            execution=execution,
            task=job.task,
            kind=job.kind,
            template=job.template,
            parameters=job.parameters,
            input_bytes=job.input_bytes,
            processors=job.processors,
            start=began or 0.0,
            seconds=seconds,
            max_rss=max(sizes, default=None),
            user_seconds=sum(busy) if busy and len(busy) == len(measured) else None,
            source="snakemake",
        )
    except ValueError:  # a clock that was wrong, or a damaged file
        return None


def _benchmark(job: EarlierJob) -> list[TaskObservation]:
    if job.benchmark is None:
        return []
    path = Path(job.benchmark)
    try:
        modified = path.stat().st_mtime
        text = read_bytes(path).decode(errors="replace")
        log = read_snakemake_benchmark(text, str(path), modified=modified, rule=job.kind)
    except (OSError, InputError):
        return []
    return log.observations


def _jobs_as_kinds(campaign: Campaign, seconds: Mapping[str, float]) -> set[str]:
    """Return the tasks that are kinds of their own."""
    of_rule: dict[str, list[str]] = {}
    for task in campaign.workflow.tasks:
        of_rule.setdefault(task.name, []).append(task.id)
    own: set[str] = set()
    for ids in of_rule.values():
        times = [seconds[task] for task in ids if seconds.get(task)]
        whole = len(times) == len(ids) and len(ids) > 1
        if whole and max(times) > APART * min(times) and len(own) + len(ids) <= MOST_KINDS:
            own.update(ids)
    return own


class ObservationsBeside:
    """
    Observations beside those of a history, as one source.

    Parameters
    ----------
    history
        The history; None: there is none.
    observations
        Observations of one execution, in place of those that the history has of this execution.
    """

    def __init__(self, history: History | None, observations: Sequence[TaskObservation]) -> None:
        self.history = history
        self._observations = observations

    def kinds(self) -> list[str]:
        """Return the names of all kinds."""
        known = [] if self.history is None else self.history.kinds()
        return list(dict.fromkeys([*(one.kind for one in self._observations), *known]))

    def observations_of(
        self, kinds: Sequence[str], *, newest: int | None = None, parameters: bool = False
    ) -> ObservationColumns:
        """Return the observations of some kinds, those of the history last."""
        wanted = set(kinds)
        chosen = [one for one in self._observations if one.kind in wanted]
        beside = columns_of(kinds, sorted(chosen, key=lambda one: -one.start), parameters)
        if self.history is None:
            return beside
        known = self.history.observations_of(kinds, newest=newest, parameters=parameters)
        names = {one.execution for one in self._observations}
        same = [at for at, name in enumerate(known.executions) if name in names]
        # Imported by hand as well: the same jobs once more.
        return joined_columns(beside, known.rows(np.flatnonzero(~np.isin(known.execution, same))))
