"""Observations for a history, made from the journalled ends of a run's attempts."""

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from bursar.dispatch.journal_records import AttemptRecord
from bursar.history.observation import TaskObservation
from bursar.model.site import SiteFacts
from bursar.model.task import File, Outcome, Task

MOST_A_SECOND = 1000
"""Attempts of a run that are observed in one second; of more, an even sample is."""

_STATED = 10_000
"""Sizes of initial files that are remembered, so that many tasks ask for them once."""

_NUMBERING = re.compile(r"[-_.#]?\d+$")


def kind_of(task: Task) -> str:
    """Return the kind of a task: its name, or its id without the number at the end."""
    return task.name or _NUMBERING.sub("", task.id) or task.id


def even_sample(
    records: Sequence[AttemptRecord], most: int, kinds: Callable[[int], str]
) -> Sequence[AttemptRecord]:
    """
    Return at most so many of some records, spread evenly over those of each kind of task.

    Parameters
    ----------
    most
        Number of records to return; one of each kind is returned in any case.
    kinds
        Kind of a task by its number.
    """
    if len(records) <= most:
        return records
    counts = Counter(kinds(record.outcome.task) for record in records)
    shares = {kind: max(1, most * count // len(records)) for kind, count in counts.items()}
    seen: Counter[str] = Counter()
    chosen = []
    for record in records:
        kind = kinds(record.outcome.task)
        position, share, count = seen[kind], shares[kind], counts[kind]
        seen[kind] += 1
        # Steps of the line from 0 to the share: as many as the share, evenly apart.
        if (position + 1) * share // count > position * share // count:
            chosen.append(record)
    return chosen


class RunObserver:
    """
    Makes observations of the attempts of one run, in the order in which they became durable.

    Parameters
    ----------
    execution
        Name of the execution in the history.
    tasks
        Tasks of the run, to which more may be added.
    sites
        Sites of the run.
    parents
        Numbers of each task's parents; None: the tasks are added as they come, and nobody knows
        since when they have been ready.
    templates
        Command of each kind of task before values are put in.
    folders
        Where input files are found whose sizes the campaign does not state, in the order of
        search; none: nowhere.
    """

    def __init__(
        self,
        execution: str,
        tasks: Sequence[Task],
        sites: Iterable[SiteFacts],
        *,
        parents: Sequence[Sequence[int]] | None,
        templates: Mapping[str, str],
        folders: Sequence[Path] = (),
    ) -> None:
        self._execution = execution
        self._tasks = tasks
        self._speeds = {site.name: site.speed for site in sites}
        self._parents = parents
        self._templates = templates
        self._begins: list[float] = []
        self._folders = folders
        # A million tasks take eight bytes each: a run goes on for days with this in memory.
        self._ends = array("d", bytes(0 if parents is None else 8 * len(tasks)))
        self._size = lru_cache(_STATED)(self._look_up)

    def kind(self, number: int) -> str:
        """Return the kind of a task."""
        return kind_of(self._tasks[number])

    def begin(self, moment: float) -> None:
        """Note that an incarnation of the run began, seconds since the epoch; in order."""
        self._begins.append(moment)

    def note_end(self, outcome: Outcome) -> None:
        """Note an attempt that is not observed, so that it is known when others became ready."""
        if self._parents is not None:
            self._ends[outcome.task] = outcome.end

    def observe_sample(self, records: Sequence[AttemptRecord], most: int) -> list[TaskObservation]:
        """Return what an even sample of attempts tells; all earlier ones were observed or noted."""
        chosen = {id(record) for record in even_sample(records, most, self.kind)}
        found = []
        for record in records:
            if id(record) in chosen:
                found.append(self.observe(record))
            else:
                self.note_end(record.outcome)
        return found

    def observe(self, record: AttemptRecord) -> TaskObservation:
        """Return what an attempt tells; all earlier attempts were observed or noted."""
        outcome = record.outcome
        task = self._tasks[outcome.task]
        name = kind_of(task)
        waited = self._waited(outcome)
        self.note_end(outcome)
        known = outcome.max_rss or outcome.user_seconds or outcome.system_seconds
        return TaskObservation(
            execution=self._execution,
            task=task.id,
            attempt=outcome.attempt,
            kind=name,
            template=self._templates.get(name, ""),
            parameters=task.parameters,
            input_bytes=self._input_bytes(task.inputs),
            site=record.site,
            host=getattr(record, "host", ""),
            processors=task.processors,
            speed=self._speeds.get(record.site, 1.0),
            start=max(0.0, outcome.start),
            seconds=max(0.0, outcome.end - outcome.start),
            waited=waited,
            max_rss=outcome.max_rss or None,
            user_seconds=outcome.user_seconds if known else None,
            system_seconds=outcome.system_seconds if known else None,
            status=outcome.status,
            # Estimates are kept to learn how wrong users are; what was learned says nothing of it.
            estimate=None if task.learned else task.runtime,
        )

    def _waited(self, outcome: Outcome) -> float | None:
        if self._parents is None:
            return None
        # What became ready before a break of the run has waited since its end.
        incarnation = bisect_right(self._begins, outcome.start) - 1
        ready = self._begins[incarnation] if incarnation >= 0 else outcome.start
        ends = self._ends
        before = ends[outcome.task] if outcome.attempt > 1 else 0.0
        ready = max(ready, before, *(ends[parent] for parent in self._parents[outcome.task]))
        return max(0.0, outcome.start - ready)

    def _input_bytes(self, files: Sequence[File]) -> int | None:
        total = 0
        for file in files:
            size = file.size if file.size is not None else self._size(file.name)
            if size is None:
                return None
            total += size
        return total

    def _look_up(self, name: str) -> int | None:
        for folder in self._folders:
            try:
                return (folder / name).stat().st_size
            except (OSError, ValueError):
                continue
        return None
