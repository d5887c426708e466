"""Which tasks are measured to learn unknown runtimes, and what their outcomes say."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.task import Outcome, Status
from bursar.report.tables import amount, span

# Decisions without a clock or a disk: which tasks are measured, and what their outcomes say.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeChoice:
    """
    Tasks that are run to learn runtimes, by number.

    Parameters
    ----------
    whole
        Tasks all of whose parents are among them: their results are those of the campaign.
    partial
        Tasks that gather what many others make, by order alone and not by file: they run on what
        the tasks of ``whole`` have made, so that only their time counts.
    """

    whole: tuple[int, ...]
    partial: tuple[int, ...]


def choose_probes(
    workflow: Workflow, each: int, left: Collection[int] | None = None
) -> ProbeChoice:
    """
    Choose up to ``each`` tasks of each kind whose runtime is unknown, spread over the kind.

    A kind is what tasks have in common by name. Kinds whose parents' files are not there when the
    chosen tasks have run are left out.

    Parameters
    ----------
    left
        Tasks without a result; those of the others are there. None: all.
    """
    wanted = set(range(len(workflow.tasks))) if left is None else set(left)
    kinds: dict[str, list[int]] = {}
    for number in workflow.order:
        task = workflow.tasks[number]
        if task.runtime is None and number in wanted:
            kinds.setdefault(task.name, []).append(number)
    there = set(range(len(workflow.tasks))) - wanted
    whole: set[int] = set()
    partial: list[int] = []
    makers = {file.name: n for n, task in enumerate(workflow.tasks) for file in task.outputs}
    for numbers in kinds.values():
        ready = [n for n in numbers if whole.issuperset(set(workflow.parents[n]) - there)]
        if ready:
            whole.update(spread(ready, each))
            continue
        gathering = [
            n
            for n in numbers
            if not (whole | there).isdisjoint(workflow.parents[n])
            and all(makers.get(f.name, n) in {*whole, *there, n} for f in workflow.tasks[n].inputs)
            and not workflow.tasks[n].data
        ]
        partial += spread(gathering, each)
    return ProbeChoice(whole=tuple(sorted(whole)), partial=tuple(sorted(partial)))


_GOLDEN = (math.sqrt(5) - 1) / 2


def spread(numbers: Sequence[int], count: int) -> list[int]:
    """
    Return up to ``count`` of the numbers, one of each of as many equal parts of the sequence.

    The place within a part moves from part to part by the golden ratio: at a fixed place, a sweep
    whose last parameters repeat with the length of a part would show the same values each time.
    """
    parts = min(count, len(numbers))
    length = len(numbers) / max(parts, 1)
    return [numbers[int((part + part * _GOLDEN % 1) * length)] for part in range(parts)]


_WARM = 4
"""Successes on each processor beside the first from which the first does not count."""


def warm_outcomes(
    workflow: Workflow, outcomes: Mapping[int, Outcome], processors: int
) -> dict[int, Outcome]:
    """
    Return the outcomes without those of the first tasks of each kind, one for each processor.

    The first ones read programs and libraries from disk, and the others find them in memory. Where
    few others succeeded, all count: a mean of few is farther off than one with cold ones in it.
    """
    kinds: dict[str, list[int]] = {}
    for number in sorted(outcomes, key=lambda n: outcomes[n].start):
        kinds.setdefault(workflow.tasks[number].name, []).append(number)
    warm: list[int] = []
    for numbers in kinds.values():
        rest = numbers[processors:]
        good = sum(outcomes[n].status is Status.SUCCEEDED for n in rest)
        warm += rest if good >= _WARM * processors else numbers
    return {number: outcomes[number] for number in warm}


def overhead_of(outcomes: Sequence[Outcome], processors: int) -> float:
    """
    Return the median time between a task's end and the begin of the next on its processor.

    Parameters
    ----------
    outcomes
        Attempts of tasks of one processor each that ran one after the other.
    processors
        Number of processors that took them.

    Returns
    -------
    float
        Seconds, not negative; 0 when no processor ran two tasks.
    """
    starts = sorted(one.start for one in outcomes)[processors:]
    ends = sorted(one.end for one in outcomes)
    gaps = [max(0.0, start - end) for start, end in zip(starts, ends, strict=False)]
    return median(gaps) if gaps else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredKind:
    """
    Findings of a probe about tasks of one kind.

    Parameters
    ----------
    name
        Name that the tasks have in common.
    tasks
        Number of the tasks without a runtime of their own.
    measured
        Number of those that ran to a good end.
    runtime
        Estimate of each at speed 1, seconds, with the overhead of a task; None: none is known.
    reason
        Why the first of them that failed did; empty: none failed.
    """

    name: str
    tasks: int
    measured: int
    runtime: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSummary:
    """
    Measurements and cost of a probe.

    Parameters
    ----------
    kinds
        Kinds of tasks whose runtime was unknown.
    overhead
        Time between two tasks on a processor, seconds.
    startup
        Time from the begin of the probe to that of its first task, seconds.
    seconds
        Time that the probe took.
    cost
        Currency units; None where the site has no price.
    kept
        Number of tasks whose results the run keeps.
    again
        Number of measured tasks that run anew with the campaign.
    cold
        Number of measured tasks that do not count, since they were the first on their processors.
    """

    kinds: tuple[MeasuredKind, ...]
    overhead: float
    startup: float
    seconds: float
    cost: float | None
    currency: str
    kept: int = 0
    again: int = 0
    cold: int = 0

    @property
    def measured(self) -> int:
        """Number of tasks whose time counts."""
        return sum(kind.measured for kind in self.kinds)

    def words(self) -> list[str]:
        """Return lines for people."""
        several = "" if self.measured == 1 else "s"
        parts = [
            f"{kind.name or 'task'} {span(kind.runtime)}" + f" ({kind.measured} of {kind.tasks})"
            for kind in self.kinds
            if kind.measured
        ]
        cost = "" if not self.cost else f" and {amount(self.cost, self.currency)}"
        told = [
            f"runtimes measured on {self.measured} task{several}: {', '.join(parts)}; "
            f"{span(self.overhead)} of it between two tasks; the probe took "
            f"{span(self.seconds)}{cost}"
        ]
        for kind in self.kinds:
            if not kind.measured and kind.runtime is not None:
                why = kind.reason or "its parents' files were not there"
                told.append(
                    f"not measured: {kind.name or 'task'}, taken to run {span(kind.runtime)} "
                    f"as the others: {why}"
                )
        if self.cold:
            told.append(
                f"{self.cold} more task{'' if self.cold == 1 else 's'} ran first and do not count: "
                "they read programs from disk"
            )
        again = self.again
        if self.kept:
            told.append(f"the run keeps the results of {self.kept} of the measured tasks")
        if again:
            told.append(
                f"{again} measured task{'' if again == 1 else 's'} ran in a folder that is "
                "deleted again, and run anew with the campaign"
            )
        return told

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints; the keys are in the documentation."""
        return {
            "measured": self.measured,
            "kept": self.kept,
            "cold": self.cold,
            "seconds": self.seconds,
            "cost": self.cost,
            "overhead_s": self.overhead,
            "startup_s": self.startup,
            "kinds": [
                {
                    "name": kind.name,
                    "tasks": kind.tasks,
                    "measured": kind.measured,
                    "runtime_s": kind.runtime,
                    "reason": kind.reason,
                }
                for kind in self.kinds
            ],
        }


def learn_runtimes(
    workflow: Workflow,
    ends: Mapping[int, Outcome],
    overhead: float,
    speed: float,
    left: Collection[int] | None = None,
) -> tuple[Workflow, tuple[MeasuredKind, ...]]:
    """
    Return the workflow with a runtime for each task that had none, and what is known by kind.

    Parameters
    ----------
    ends
        Outcomes of the measured tasks, by number.
    overhead
        Seconds that each task takes beside its own time.
    speed
        Speed of the site that ran them.

    Raises
    ------
    InputError
        When no measured task succeeded.
    """
    numbers: dict[str, list[int]] = {}
    for number in range(len(workflow.tasks)) if left is None else left:
        task = workflow.tasks[number]
        if task.runtime is None:
            numbers.setdefault(task.name, []).append(number)
    good = {
        n: (one.end - one.start + overhead) * speed
        for n, one in ends.items()
        if one.status is Status.SUCCEEDED
    }
    if numbers and not good:
        why = next((one.reason for one in ends.values() if one.reason), "no task can run alone")
        raise InputError(f"no task could be measured: {why}", where="probe")
    # A kind that could not be measured counts as the others: with nothing, time and cost of the
    # whole campaign would stay unknown.
    usual = fmean(good.values()) if good else 0.0
    kinds = []
    for name, members in numbers.items():
        times = [good[n] for n in members if n in good]
        kinds.append(
            MeasuredKind(
                name=name,
                tasks=len(members),
                measured=len(times),
                # The mean and not the median: what many tasks take on few processors is their sum.
                runtime=fmean(times) if times else usual,
                reason=next((ends[n].reason for n in members if n in ends and ends[n].reason), ""),
            )
        )
    known = {kind.name: kind.runtime for kind in kinds}
    tasks = tuple(
        replace(task, runtime=known.get(task.name), learned=task.name in known)
        if task.runtime is None
        else task
        for task in workflow.tasks
    )
    return Workflow(tasks), tuple(kinds)
