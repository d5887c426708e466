"""Two runs side by side: figures, tasks that both have, and what differs in how they were asked."""

import statistics
from typing import Any

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.task import Status
from bursar.runs.run_record import RunRecord, summarise

FIGURES = (
    "campaign",
    "state",
    "tasks",
    "succeeded",
    "failed",
    "skipped",
    "attempts",
    "makespan_s",
    "predicted_makespan_s",
    "processors",
    "cost",
    "predicted_cost",
    "currency",
    "budget",
    "deadline_s",
    "deadline_met",
)
"""Figures of a run that are compared."""


def compare_runs(first: RunRecord, second: RunRecord) -> dict[str, Any]:
    """
    Compare two runs.

    Returns
    -------
    dict
        ``runs``, the two names; ``figures``, a row for each of :data:`FIGURES` with both values
        and, of numbers, the second over the first; ``tasks``, how many both have, only the first,
        only the second; ``runtimes``, of tasks that succeeded in both: number, ratio of the second
        to the first (``median``, ``least``, ``most``), and the rows (``task``, seconds, seconds);
        ``failures``, ids that failed only in the first, only in the second, in both;
        ``parameters``, values that only one of them has, by name.
    """
    summaries = [summarise(record) for record in (first, second)]
    ends = [_ends(record) for record in (first, second)]
    both = [task for task in ends[0] if task in ends[1]]
    rows = [
        (task, _seconds(ends[0][task]), _seconds(ends[1][task]))
        for task in both
        if all(_succeeded(end[task]) for end in ends)
    ]
    ratios = [after / before for _, before, after in rows if before > 0]
    failed = [{task for task, end in one.items() if not _succeeded(end)} for one in ends]
    values = [_values(record) for record in (first, second)]
    return {
        "runs": [first.folder.name, second.folder.name],
        "figures": [_figure(name, *(one[name] for one in summaries)) for name in FIGURES],
        "tasks": {
            "both": len(both),
            "first_only": len(ends[0]) - len(both),
            "second_only": len(ends[1]) - len(both),
        },
        "runtimes": {
            "tasks": len(rows),
            "median": statistics.median(ratios) if ratios else None,
            "least": min(ratios, default=None),
            "most": max(ratios, default=None),
            "rows": [list(row) for row in rows],
        },
        "failures": {
            "first_only": sorted(failed[0] - failed[1]),
            "second_only": sorted(failed[1] - failed[0]),
            "both": sorted(failed[0] & failed[1]),
        },
        "parameters": {
            name: {
                "first_only": _sorted(values[0].get(name, set()) - values[1].get(name, set())),
                "second_only": _sorted(values[1].get(name, set()) - values[0].get(name, set())),
            }
            for name in sorted(values[0].keys() | values[1].keys())
            if values[0].get(name, set()) != values[1].get(name, set())
        },
    }


def _ends(record: RunRecord) -> dict[str, AttemptRecord]:
    """Return the final attempt of each task that has one, by the task's id."""
    tasks = record.campaign.workflow.tasks
    return {tasks[number].id: record.final[number] for number in sorted(record.final)}


def _succeeded(end: AttemptRecord) -> bool:
    return end.outcome.status is Status.SUCCEEDED


def _seconds(end: AttemptRecord) -> float:
    return end.outcome.end - end.outcome.start


def _figure(name: str, before: Any, after: Any) -> dict[str, Any]:
    numbers = all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in (before, after)
    )
    ratio = after / before if numbers and before else None
    return {"name": name, "first": before, "second": after, "ratio": ratio}


def _values(record: RunRecord) -> dict[str, set[Any]]:
    found: dict[str, set[Any]] = {}
    for task in record.campaign.workflow.tasks:
        for name, value in task.parameters.items():
            found.setdefault(name, set()).add(value)
    return found


def _sorted(values: set[Any]) -> list[Any]:
    return sorted(values, key=lambda value: (str(type(value)), value))
