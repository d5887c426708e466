"""Failures are grouped by what they have in common, and explained."""

import io

import pytest
from rich.console import Console

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.task import Exec, Outcome, Shell, Status, Task
from bursar.report.failures import failures_to_dict, group_failures, print_failures


def ended(number: int, **how: object) -> AttemptRecord:
    """Return the final attempt of a task."""
    outcome = Outcome(task=number, attempt=1, status=Status.FAILED, start=0.0, end=1.0)
    for name, value in how.items():
        outcome = Outcome(
            **{field: getattr(outcome, field) for field in outcome.__struct_fields__}
            | {name: value}
        )
    return AttemptRecord(outcome=outcome, site="here", lease="l", final=True)


def tasks(count: int) -> list[Task]:
    """Return tasks of a sweep over n."""
    return [
        Task(id=f"t{n}", steps=(Shell(f"./fit --n {n}"),), parameters={"n": n})
        for n in range(count)
    ]


def stderr(record: AttemptRecord) -> bytes:
    """Return all that an attempt wrote."""
    return record.outcome.stderr


def test_alike_failures_are_one_group_and_the_largest_comes_first() -> None:
    """Numbers in a message make no other failure; a status that differs does."""
    ends = [
        ended(0, exit_code=1, stderr=b"Trace\nValueError: singular matrix at 17\n"),
        ended(1, status=Status.TIMED_OUT, exit_code=-15, reason="killed at its limit of 5 s"),
        ended(2, exit_code=1, stderr=b"ValueError: singular matrix at 3.5\n\n"),
        ended(3, status=Status.SUCCEEDED, exit_code=0),
        ended(4, exit_code=1, stderr=b"KeyError: 'x'\n"),
        ended(5, exit_code=1, stderr=b"ValueError: singular matrix at 4\n"),
    ]

    groups = group_failures(tasks(6), ends, stderr)

    assert [(g.count, g.what, g.tasks) for g in groups] == [
        (3, "ValueError: singular matrix at 17", ["t0", "t2", "t5"]),
        (1, "killed at its limit of 5 s", ["t1"]),
        (1, "KeyError: 'x'", ["t4"]),
    ]
    first = groups[0].first
    assert (first.command, first.parameters, first.exit_code) == ("./fit --n 0", {"n": 0}, 1)
    assert first.stderr == "Trace\nValueError: singular matrix at 17"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"exit_code": 127, "stderr": b"/bin/sh: 1: fitt: not found\n"}, 'no program "fitt"'),
        ({"exit_code": 127, "stderr": b"bash: fitt: command not found\n"}, 'no program "fitt"'),
        ({"exit_code": 126, "stderr": b"sh: 1: ./a.sh: Permission denied\n"}, "chmod +x ./a.sh"),
        ({"reason": 'exec: "./a.sh" Permission denied'}, "chmod +x ./a.sh"),
        ({"reason": 'exec: "fit" is not on PATH'}, "list it in inputs"),
        ({"exit_code": -9, "max_rss": 2_000_000_000}, "memory runs out; it held 2000 MB"),
        ({"exit_code": 137}, "SIGKILL"),
        ({"exit_code": 139}, "SIGSEGV"),
        ({"exit_code": -15}, "SIGTERM"),
        ({"exit_code": 0, "reason": 'output "x" was not made'}, "declared output"),
        ({"status": Status.TIMED_OUT}, "wall_limit"),
        ({"status": Status.LOST}, "machine went away"),
        ({"exit_code": 3}, ""),
        ({"exit_code": 250}, ""),
    ],
)
def test_what_an_end_means(how: dict[str, object], said: str) -> None:
    """Well-known statuses and signals are explained, with what may mend them."""
    (group,) = group_failures(tasks(1), [ended(0, **how)], stderr)

    assert said in group.first.meaning
    assert bool(group.first.meaning) == bool(said)


def test_commands_are_shown_as_a_shell_takes_them() -> None:
    task = Task(id="t", steps=(Exec(("echo", "two words")), Shell("exit 1")))
    (group,) = group_failures([task], [ended(0, exit_code=1)], stderr)

    assert group.first.command == "echo 'two words'; exit 1"


def test_the_summary_says_what_to_type_and_stays_short() -> None:
    """Five groups, lines that a task's text cannot break, and the next commands."""
    ends = [
        ended(n, exit_code=1, stderr=f"{chr(97 + n) * 9}: \x1b[31m[red]bad[/red]\n".encode())
        for n in range(7)
    ]
    text = io.StringIO()
    groups = failures_to_dict(group_failures(tasks(7), ends, stderr))
    print_failures(groups, "run-1", Console(file=text, width=80))
    lines = text.getvalue().splitlines()

    assert sum(line.startswith("1 x ") for line in lines) == 5
    assert "and 2 that failed in other ways: bursar tasks run-1 --failed" in text.getvalue()
    assert "bursar logs run-1 t0" in text.getvalue()
    assert "bursar retry run-1" in text.getvalue()
    assert "[red]bad" in text.getvalue()
    assert "\x1b" not in text.getvalue()
