"""``bursar map`` beside GNU parallel, and what it does in addition."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.conftest import Folder

PARALLEL = shutil.which("parallel")


def theirs(folder: Folder, *words: str, input: str = "") -> subprocess.CompletedProcess[str]:
    """Run GNU parallel on the same words."""
    if PARALLEL is None:
        pytest.skip("GNU parallel is not installed: the package parallel brings it")
    return subprocess.run(
        [PARALLEL, "--will-cite", *words],
        cwd=folder.path,
        input=input,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PARALLEL_SHELL": "/bin/sh"},
    )


def columns(log: Path) -> list[list[str]]:
    """Return a job log without its times, by the jobs' numbers."""
    rows = [line.split("\t") for line in log.read_text().splitlines()]
    return sorted(row[:2] + row[4:] for row in rows)


@pytest.mark.parametrize(
    ("words", "input"),
    [
        (["-k", "echo {}; echo no >&2; exit {}", ":::", "0", "3", "1"], ""),
        (["-k"], "echo 1\n\nfalse\necho 'a  b' | wc -c\n"),
        (["-k", "echo"], "a b\nc\n"),
        (["-k", "--tag", "printf 'x\\ny\\n'; echo {}", ":::", "a b", "c"], ""),
        (["-k", "-j1", "pwd; echo $PARALLEL_SEQ {1} {2}", ":::", "a", "b", ":::", "c"], ""),
        (["-k", "--colsep", ",", "echo {2} {1}"], "a,b\nc,d\n"),
        (["-k", "-r", "echo"], "a\n\nb\n"),
        (["-k", "-0", "echo"], "a\0b"),
        (["-k", "-n2", "echo", ":::", "a", "b", "c"], ""),
        (["-k", "kill -9 $$", ":::", "1"], ""),
        (["-j3", "sleep {}; echo {}", ":::", ".9", ".1", ".5"], ""),
        (["-k", "head -c 3000000 /dev/zero | tr '\\0' {}", ":::", "x", "y"], ""),
        (["-k", "--dry-run", "echo {.}", ":::", "a.b", "c d"], ""),
    ],
)
def test_output_and_job_log_are_those_of_parallel(
    folder: Folder, words: list[str], input: str
) -> None:
    """
    The same standard output in the same order, the same standard error of jobs, the same log.
    """
    wanted = theirs(folder, "--joblog", "theirs.log", *words, input=input)
    env = {**os.environ, "PARALLEL_SHELL": "/bin/sh"}

    found = folder.bursar("map", "--joblog", "ours.log", *words, input=input, env=env, status=None)

    assert found.stdout == wanted.stdout
    told = [line for line in found.stderr.splitlines() if not line.startswith("bursar map: ")]
    assert told == wanted.stderr.splitlines()
    assert bool(found.returncode) == bool(wanted.returncode)
    if "--dry-run" not in words:
        ours = columns(folder.path / "ours.log")
        assert ours == columns(folder.path / "theirs.log")
    else:
        assert not (folder.path / "ours.log").exists()


@pytest.mark.parametrize(
    ("rule", "values", "stopped"),
    [
        ("now,fail=1", "0 3 1", "job 2 failed: echo 3; exit 3"),
        ("soon,fail=1", "0 3 1", "job 2 failed"),
        ("soon,fail=50%", "1 0 1 0 1 0 1 1 1 1", "job 8 failed"),
        ("now,success=1", "1 0 1", "job 2 succeeded"),
        ("now,done=2", "0 0 1", "job 2 succeeded"),
        ("never", "0 3 1", ""),
    ],
)
def test_a_list_stops_where_parallel_stops(
    folder: Folder, rule: str, values: str, stopped: str
) -> None:
    """
    No job begins that parallel would not have begun, and the reason is said.
    """
    words = ["--halt", rule, "-j1", "-k", "echo {}; exit {}", ":::", *values.split()]

    wanted = theirs(folder, *words)
    found = folder.bursar("map", *words, status=None)

    assert found.stdout == wanted.stdout
    assert stopped in found.stderr
    assert found.returncode == (0 if rule == "now,success=1" or rule == "now,done=2" else 1)


def test_running_jobs_are_ended_or_not(folder: Folder) -> None:
    """
    At once by ``now``; with ``soon`` they end by themselves.
    """
    words = ["-j2", "-k", "sleep {}; echo {}; [ {} = 1.5 ]", ":::", ".2", "1.5"]

    assert folder.bursar("map", "--halt", "soon,fail=1", *words, status=1).stdout == ".2\n1.5\n"
    assert folder.bursar("map", "--halt", "now,fail=1", *words, status=1).stdout == ".2\n"


def test_a_list_is_resumed_by_its_log(folder: Folder) -> None:
    """
    Jobs in the log do not run again; failed ones do where that is asked for.
    """
    words = ["--joblog", "log", "-k", "echo {} >> ran; echo {}; exit {}", ":::"]

    folder.bursar("map", *words, "0", "1", "2", status=1)
    resumed = folder.bursar("map", "--resume", *words, "0", "1", "2", "0", status=0)
    again = folder.bursar("map", "--resume-failed", *words, "0", "1", "2", "0", status=1)

    assert resumed.stdout == "0\n"
    assert again.stdout == "1\n2\n"
    assert sorted((folder.path / "ran").read_text().split()) == list("001122")
    wanted = theirs(folder, "--resume", *words, "0", "1", "2", "0", "0")
    assert wanted.stdout == "0\n"  # it takes our log for its own


@pytest.mark.ci
def test_after_a_kill_no_job_of_the_log_runs_again(folder: Folder) -> None:
    """
    The log has each job once its outcome is durable, so that ``kill -9`` loses none of it.
    """
    words = ["--joblog", "log", "-j1", "echo {} >> ran; sleep .2", ":::", *map(str, range(20))]
    running = subprocess.Popen(
        [sys.executable, "-m", "bursar", "map", *words], cwd=folder.path, start_new_session=True
    )
    log = folder.path / "log"
    end = time.monotonic() + 60
    while not (log.exists() and log.read_text().count("\n") > 4):
        assert time.monotonic() < end
        time.sleep(0.02)
    running.send_signal(signal.SIGKILL)
    running.wait()
    logged = [line.split("\t")[0] for line in log.read_text().splitlines()[1:]]

    folder.bursar("map", "--resume", *words)

    ran = (folder.path / "ran").read_text().split()
    assert set(ran) == set(map(str, range(20)))
    assert all(ran.count(str(int(number) - 1)) == 1 for number in logged)
    assert len(log.read_text().splitlines()) == 21


def test_files_are_taken_along_and_brought_back(folder: Folder) -> None:
    """
    Jobs that state their files run in folders of their own; what they make is in the run.
    """
    folder.write("a.txt", "one")
    folder.write("b.txt", "two")

    folder.bursar(
        "map", "--name", "up", "--transferfile", "{}", "--return", "{.}.up",
        "tr a-z A-Z < {} > {.}.up; ls", ":::", "a.txt", "b.txt",
    )  # fmt: skip

    assert (folder.path / "runs/up/files/a.up").read_text() == "ONE"
    assert (folder.path / "runs/up/files/b.up").read_text() == "TWO"
    assert not (folder.path / "a.up").exists()


def test_a_list_has_a_goal_and_is_a_run(folder: Folder) -> None:
    """
    A budget that is too small is refused before anything runs; else there are bill and tasks.
    """
    words = ["--runtime", "1 s", "touch {}", ":::", "a", "b", "c"]

    refused = folder.bursar("map", "--budget", "0.0001 SU", *words, status=3)
    assert not (folder.path / "a").exists()
    assert "no plan" in refused.stdout.lower() + refused.stderr.lower()
    folder.bursar("map", "--budget", "1 SU", "--deadline", "1 h", "--name", "list", *words)
    assert (folder.path / "c").exists()
    (run,) = folder.json("runs")["runs"]
    assert (run["run"], run["succeeded"]) == ("list", 3)


@pytest.mark.ci
def test_jobs_have_limits(folder: Folder) -> None:
    """
    A job past its time is killed and logged as parallel does; tries are counted in all.
    """
    told = folder.bursar(
        "map", "--timeout", "0.5", "--joblog", "log", "-k", "sleep {}; echo {}", ":::", "30", "0",
        status=1,
    )  # fmt: skip
    assert told.stdout == "0\n"
    assert "job 1: killed at its wall-time limit of 0.5 s" in told.stderr
    assert "1 of 2 jobs failed" in told.stderr
    assert [row[4:6] for row in columns(folder.path / "log")[:2]] == [["-1", "15"], ["0", "0"]]

    folder.bursar("map", "--retries", "3", "echo x >> tries; exit {}", ":::", "1", status=1)
    assert (folder.path / "tries").read_text() == "x\nx\nx\n"


def test_a_reader_that_goes_away_ends_the_list(folder: Folder) -> None:
    """
    As soon as nothing more can be printed, no further job begins.
    """
    words = "map -j1 'echo {} >> ran; seq 50000; sleep .1' ::: $(seq 200)"
    line = f"{sys.executable} -m bursar {words} | head -1"
    done = subprocess.run(
        line, shell=True, cwd=folder.path, capture_output=True, text=True, check=False
    )

    assert done.stdout == "1\n"
    assert "Broken pipe" in done.stderr
    assert "Traceback" not in done.stderr
    assert len((folder.path / "ran").read_text().split()) < 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-S", "host", "echo"], "-S: has no counterpart here: machines are described in a sites"),
        (["--pipe", "wc"], "--pipe: has no counterpart here: jobs read no standard input"),
        (["--results", "d", "echo", ":::", "a"], "--results: has no counterpart here"),
        (["--fooo", "echo"], "--fooo: is no option of bursar map"),
        (["--colsep", "[", "echo", ":::", "a"], '--colsep: "[": unterminated character set'),
        (["--colsep", "(a)", "echo", ":::", "a"], '--colsep: "(a)" has groups'),
        (["--trim", "x", "echo", ":::", "a"], '--trim: expected n, l, r or lr, got "x"'),
        (["--header", "a", "echo", ":::", "a"], '--header: expected ":"'),
        (["--halt", "later", "echo", ":::", "a"], "--halt: expected never, or soon or now"),
        (["-j", "many", "echo", ":::", "a"], '--jobs: expected a number, +N, -N or N%, got "many"'),
        (["--timeout", "soon", "echo", ":::", "a"], "--timeout: expected a time"),
        (["--timeout", "0", "echo", ":::", "a"], "--timeout: must be positive"),
        (["--memory", "much", "echo", ":::", "a"], "--memory: expected a size"),
        (["--resume", "echo", ":::", "a"], "--resume: goes with --joblog FILE"),
        (["--resume", "--joblog", "bad", "echo", ":::", "a"], "bad:2: expected 9 columns, got 1"),
        (["--joblog", "no/such/log", "echo", ":::", "a"], "no/such/log: No such file"),
        (["echo", "::::", "none"], "none: cannot be read: No such file"),
        (["-a", "latin", "echo"], "latin:2: is not UTF-8 at byte 1"),
        (
            ["--transferfile", "/{}", "cat {}", ":::", "a"],
            "--transferfile: file name must be",
        ),
        (["-0", "-d", ";", "echo"], "--delimiter: goes without --null"),
        (["echo {%}", ":::", "a"], "command: the number of the job's slot"),
        (["--sites", "none.toml", "echo", ":::", "a"], "none.toml: no such file"),
    ],
)
def test_what_is_wrong_is_one_line(folder: Folder, words: list[str], message: str) -> None:
    """
    Status 2, one line with the place, and at most a hint; nothing has run.
    """
    (folder.path / "bad").write_text(
        "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\nx\n"
    )
    (folder.path / "latin").write_bytes(b"a\n\xe4\n")

    said = folder.bursar("map", *words, status=2)

    lines = said.stderr.splitlines()
    assert message in lines[0]
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert not said.stdout
    assert not (folder.path / "runs").exists()


def test_a_file_of_commands_runs(folder: Folder) -> None:
    """
    By ``bursar run``, as a campaign, in the folder of the file; each run runs all of them.
    """
    folder.write("list.txt", "# two\necho one > one\necho two >> two\n")

    for _ in range(2):
        told = folder.json("run", "list.txt")
        assert (told["succeeded"], told["reused"]) == (2, 0)

    assert (folder.path / "two").read_text() == "two\ntwo\n"
    bad = folder.bursar("run", "bad.txt", status=2, input="")
    assert "bad.txt" in bad.stderr
