"""After a failure: what the command says, lists, prints, and runs again."""

import csv
import io
from typing import Any

import pytest

from bursar.worker.memory_enforcement import memory_groups

SWEEP = """\
[campaign]
name = "fit"
command = "test {n} -ne 2 -a {n} -ne 4 || test -e %s/mended-{n} || { echo bad {n} >&2; exit 3; }"
[parameters]
n = { from = 1, to = 6, step = 1 }
[retry]
attempts = 1
"""


@pytest.fixture
def failed(folder: Any) -> Any:
    """A folder with a run of which two tasks failed alike."""
    folder.write("c.toml", SWEEP.replace("%s", str(folder.path)).replace("{ echo", "{{ echo"))
    text = (folder.path / "c.toml").read_text().replace("exit 3; }", "exit 3; }}")
    folder.write("c.toml", text)
    folder.told = folder.bursar("run", "c.toml", status=1).stdout
    return folder


def test_the_summary_groups_them_and_says_what_to_type(failed: Any) -> None:
    run = failed.run.name

    assert "2 x bad 2" in failed.told
    assert "fit-1 (n=2)" in failed.told
    assert f"bursar logs {run} fit-1" in failed.told
    assert f"bursar retry {run}" in failed.told
    (group,) = failed.json("report", run)["failures"]
    assert (group["count"], group["tasks"]) == (2, ["fit-1", "fit-3"])
    assert group["first"]["parameters"] == {"n": 2}
    assert group["first"]["stderr"] == "bad 2"
    assert "2 -ne 2" in group["first"]["command"]


def test_tasks_are_listed_filtered_and_read(failed: Any) -> None:
    """By state, by time, by a condition; as lines, JSON and CSV; runs and tasks by short names."""
    everything = failed.json("tasks", "last")["tasks"]
    assert [row["task"] for row in everything] == [f"fit-{n}" for n in range(6)]
    assert [r["task"] for r in failed.json("tasks", "fit-", "--failed")["tasks"]] == [
        "fit-1",
        "fit-3",
    ]
    slow = failed.json("tasks", "last", "--slow")["tasks"]
    assert [r["runtime_s"] for r in slow] == sorted((r["runtime_s"] for r in slow), reverse=True)
    where = failed.json("tasks", "last", "--where", 'n > 3 && status == "failed"')["tasks"]
    assert [row["task"] for row in where] == ["fit-3"]
    table = failed.bursar("tasks", "last", "--where", "n <= 2", "--csv").stdout
    assert [row["n"] for row in csv.DictReader(io.StringIO(table))] == ["1", "2"]
    told = failed.bursar("tasks", "last", "--failed").stdout
    assert "n=2" in told
    assert "2 of 6 tasks" in told
    assert failed.bursar("logs", "last", "1").stderr == "bad 2\n"
    assert failed.bursar("logs", "fit", "fit-3").stderr == "bad 4\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tasks", "last", "--where", "secs > 2"), 'no column "secs"'),
        (("tasks", "last", "--where", "seconds >"), "--where:1:10"),
        (("tasks", "last", "--csv", "--json"), "--csv"),
        (("tasks", "lost"), 'no run "lost"'),
        (("logs", "last", "fit-"), "6 tasks in run"),
        (("logs", "last", "7"), 'no task "7"'),
        (("retry", "last", "fit-0"), '"fit-0" has succeeded'),
        (("retry", "last", "none"), 'no task "none"'),
    ],
)
def test_bad_input_is_one_line(failed: Any, words: tuple[str, ...], said: str) -> None:
    done = failed.bursar(*words, status=2)

    assert said in done.stderr
    assert done.stderr.startswith("bursar: ")


def test_what_failed_is_run_again_all_of_it_or_some(failed: Any) -> None:
    """A task that succeeds then is no failure any more, in the summary and on the page."""
    for n in (2, 4):
        (failed.path / f"mended-{n}").touch()
    one = failed.json("retry", "last", "fit-3", status=1)
    assert (one["succeeded"], one["failed"], one["attempts"]) == (5, 1, 7)
    rest = failed.json("retry", "last")
    assert (rest["succeeded"], rest["failed"], rest["attempts"]) == (6, 0, 8)
    assert rest["failures"] == []
    page = (failed.run / "report.html").read_text()
    assert '"tried_again":2' in page.replace(" ", "")


@pytest.mark.ci
def test_a_program_that_is_not_there_is_found_before_anything_runs(folder: Any) -> None:
    folder.write("c.toml", '[tasks.a]\ncommand = "no-such-program --x"\n')
    told = folder.bursar("run", "c.toml", status=2).stderr

    assert 'task "a" runs "no-such-program", which is not on PATH' in told
    assert not list(folder.path.glob("runs/*"))
    assert "127" in folder.bursar("run", "c.toml", "--anyway", status=1).stdout


def test_a_name_that_begins_two_runs_is_refused(failed: Any) -> None:
    failed.bursar("run", "c.toml", status=1)

    assert '2 runs under runs begin with "fit-"' in failed.bursar("tasks", "fit-", status=2).stderr


def test_a_task_that_uses_too_much_memory_says_what_to_state(folder: Any) -> None:
    """The plan says how memory is enforced, the failure what was used and what may mend it."""
    folder.write(
        "c.toml",
        """\
[campaign]
name = "hog"
[task]
memory = "100 MB"
retries = 0
[tasks.large]
command = ["python3", "-c", "import time; held = b'x' * 300_000_000; time.sleep(30)"]
[tasks.small]
command = "echo small"
""",
    )
    planned = folder.bursar("plan", "c.toml", "--runtime", "1s")
    told = folder.bursar("run", "c.toml", status=1)

    if memory_groups() is None:
        assert "memory of tasks is watched" in planned.stderr
        assert "memory of tasks is watched" in told.stderr
    (group,) = folder.json("report", folder.run.name)["failures"]
    assert group["tasks"] == ["large"]
    assert group["first"]["reason"].endswith("memory allows 100 MB")
    assert "killed for its memory: state what it needs, more than" in group["first"]["meaning"]
