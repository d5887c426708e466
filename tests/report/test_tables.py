"""Small tables: what a person reads after a run, and of all runs."""

import doctest
import io
from typing import Any

import pytest
from rich.console import Console

from bursar.report import tables
from bursar.report.run_tables import print_runs, print_summary

SUMMARY: dict[str, Any] = {
    "run": "sweep-1",
    "state": "finished",
    "folder": "runs/sweep-1",
    "tasks": 10,
    "succeeded": 7,
    "failed": 1,
    "skipped": 2,
    "not_run": 0,
    "makespan_s": 75.2,
    "predicted_makespan_s": 60.0,
    "processors": 4,
    "cost": 1.23456,
    "predicted_cost": 1.0,
    "currency": "EUR",
    "budget": 2.0,
    "deadline_s": 60.0,
    "deadline_met": False,
}


def summary(**changes: object) -> str:
    """The table, in a wide terminal."""
    text = io.StringIO()
    print_summary({**SUMMARY, **changes}, Console(file=text, width=200))
    return text.getvalue()


def test_a_summary_tells_tasks_time_money_and_where() -> None:
    """Actual beside planned; what did not go well is counted, what did not happen is not."""
    lines = [line.rstrip() for line in summary().splitlines()]

    assert lines == [
        "run       sweep-1  (finished)",
        "tasks     7 of 10 succeeded, 1 failed, 2 skipped",
        "makespan  1 min 15 s  (planned 1 min 0 s)",
        "cost      1.235 EUR  (planned 1, budget 2)",
        "deadline  1 min 0 s  (missed)",
        "folder    runs/sweep-1",
    ]


def test_a_summary_makes_nothing_up() -> None:
    """Unknown cost and time are called so; a goal that was not set is not shown."""
    text = summary(
        makespan_s=None,
        predicted_makespan_s=None,
        cost=None,
        predicted_cost=None,
        budget=None,
        deadline_s=None,
        deadline_met=None,
    )

    assert text.count("unknown") == 4
    assert "deadline" not in text
    assert "budget" not in text


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        ("interrupted", "go on with: bursar run --resume sweep-1\n"),
        ("budget-stopped", "go on with: bursar run --resume sweep-1 --budget AMOUNT\n"),
        ("finished", ""),
    ],
)
def test_a_stopped_run_says_how_to_go_on(state: str, hint: str) -> None:
    """The very command, whole on its line; nothing where there is nothing to do."""
    text = summary(state=state)

    assert text.endswith(hint)
    assert ("go on" in text) == bool(hint)


def test_runs_are_listed_with_what_was_done() -> None:
    """One row each; without any, a word."""
    text = io.StringIO()
    console = Console(file=text, width=120)
    row: dict[str, Any] = {
        "run": "a",
        "state": "failed",
        "succeeded": 3,
        "failed": 2,
        "tasks": 9,
        "created": 0.0,
    }
    row["tags"] = []
    print_runs([row, {**row, "run": "b"}], console)
    lines = text.getvalue().splitlines()
    print_runs([], console)

    assert [line.split()[:5] for line in lines[1:]] == [
        ["a", "failed", "3", "2", "9"],
        ["b", "failed", "3", "2", "9"],
    ]
    assert text.getvalue().endswith("no runs\n")


def test_the_examples_of_words_are_true() -> None:
    """Its documentation prints what it says."""
    failed, tried = doctest.testmod(tables)

    assert tried > 0
    assert failed == 0
