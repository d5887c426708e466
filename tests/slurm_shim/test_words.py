"""What command lines mean and what answers look like, without a service."""

import json
import signal
import socket
import subprocess
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bursar.model.errors import InputError
from bursar.remote.messages import Result, TaskSpec
from bursar.slurm_shim.accounting import job_record, parse_sacct_format, sacct_lines
from bursar.slurm_shim.dependencies import depending_on, placed
from bursar.slurm_shim.job_book import JobBook
from bursar.slurm_shim.job_documents import job_documents
from bursar.slurm_shim.jobs import COMPACT, JobElement, JobFacts, Prerequisite, state_of
from bursar.slurm_shim.listing import (
    SHORT,
    ListedElement,
    listed,
    long_span,
    parse_squeue_format,
    parse_squeue_names,
    sorted_elements,
    span,
    squeue_lines,
)
from bursar.slurm_shim.running_jobs import parse_signal_number, read_running
from bursar.slurm_shim.selecting import parse_jobs, parse_moment, parse_states
from bursar.slurm_shim.submitting import (
    SubmittedScript,
    facts_of,
    pattern_path,
    read_submission,
    specs_of_job,
)

FACTS = JobFacts(name="fit", user="ann", folder="/w", command="/w/fit.sh", output="%x-%A_%3a.out")


def element(**more: Any) -> JobElement:
    usual = {"job": 7, "position": 0, "index": None, "facts": FACTS, "submitted": 1e9}
    return JobElement(**{**usual, **more})


def submission(tmp_path: Path, *words: str, text: str = "#!/bin/sh\ntrue\n") -> SubmittedScript:
    return read_submission(words, {"MINE": "1", "SLURM_JOB_ID": "3"}, tmp_path, lambda: text)


def test_a_queue_looks_as_slurms_own() -> None:
    """
    The line that squeue of Slurm 24.05 prints for such a job, but for partition and node.
    """
    one = element(state="RUNNING", start=1e9, host="n1")
    lines = squeue_lines(parse_squeue_format(SHORT), listed([one], 1e9 + 65, 0), header=True)
    assert lines == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "                 7    bursar      fit      ann  R       1:05      1 n1",
    ]


def test_jobs_in_json_have_states_as_lists_and_numbers_that_may_be_unset() -> None:
    """The form of Slurm 24.05, which jq scripts read."""
    facts = replace(FACTS, limit=90.0, memory=2**30)
    lines = listed([element(facts=facts, state="FAILED", exit_code=-9, index=3)], 1e9, 5)
    document = json.loads(job_documents(lines, "24.05.0"))
    (job,) = document["jobs"]
    assert (job["job_id"], job["job_state"], job["user_id"]) == (7, ["FAILED"], 5)
    assert job["array_task_id"] == {"set": True, "infinite": False, "number": 3}
    assert job["time_limit"] == {"set": True, "infinite": False, "number": 2}
    assert job["memory_per_node"]["number"] == 1024
    assert job["exit_code"]["signal"]["id"]["number"] == 9
    (other,) = json.loads(job_documents(listed([element()], 1e9, 5), "24.05.0"))["jobs"]
    assert other["time_limit"] == {"set": False, "infinite": True, "number": 0}
    assert other["array_task_id"]["set"] is False


@pytest.mark.parametrize(
    ("order", "numbers"),
    [("i", [1, 2, 3]), ("-i", [3, 2, 1]), ("t,-i", [3, 1, 2]), ("-t,i", [2, 1, 3])],
)
def test_elements_are_sorted_as_asked_for(order: str, numbers: list[int]) -> None:
    """2 has ended, 1 and 3 wait."""
    known = [element(job=n, state="COMPLETED" if n == 2 else "PENDING") for n in (2, 3, 1)]
    assert [one.job for one in sorted_elements(known, order)] == numbers


@pytest.mark.parametrize("text", ["", "host", "host x 1 /p", "host 1 1", "\0", "a b c d"])
def test_a_file_that_says_nothing_of_a_running_job_is_passed_over(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "7"
    assert read_running(path) is None
    path.write_text(text)
    assert read_running(path) is None


def test_a_signal_reaches_the_process_and_no_later_one_of_its_number(tmp_path: Path) -> None:
    """The moment of its start tells them apart."""
    with subprocess.Popen(["sleep", "100"]) as process:
        begun = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        path = tmp_path / "7"
        for when, ends in ((f"{int(begun) - 1}", False), (begun, True)):
            path.write_text(f"{socket.gethostname()} {process.pid} {when} {tmp_path}\n")
            job = read_running(path)
            assert job is not None
            assert job.is_here
            job.send(signal.SIGTERM, to="script")
            if ends:
                assert process.wait(20) == -signal.SIGTERM
            else:
                time.sleep(0.05)
                assert process.poll() is None


def test_elements_that_wait_share_a_line() -> None:
    waiting = [element(position=i, index=i + 1) for i in (0, 1, 2, 5)]
    running = element(position=3, index=4, state="RUNNING")
    ids = [line.id for line in listed([*waiting[:3], running, waiting[3]], 0, 0)]
    assert ids == ["7_[1-3,6]", "7_4"]
    assert len(listed([*waiting, running], 0, 0, gather=False)) == 5


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [
        (0, "0:00", "00:00:00"),
        (65, "1:05", "00:01:05"),
        (3661, "1:01:01", "01:01:01"),
        (90061, "1-01:01:01", "1-01:01:01"),
        (None, "UNLIMITED", "UNLIMITED"),
    ],
)
def test_times_are_written_as_slurm_does(seconds: float | None, short: str, long: str) -> None:
    assert (span(seconds), long_span(seconds)) == (short, long)


def test_accounting_is_cut_and_marked() -> None:
    fields = parse_sacct_format("JobID,State,JobName%4,ExitCode%-6")
    lines = listed([element(state="CANCELLED", exit_code=-15)], 0, 1000)
    assert sacct_lines(fields, lines, header=True, parsable=False) == [
        "JobID             State JobN ExitCo ",
        "------------ ---------- ---- ------ ",
        "7            CANCELLED+  fit 0:15   ",
    ]
    parsable = sacct_lines(fields, lines, header=False, parsable=True, trailing=True)
    assert parsable == ["7|CANCELLED by 1000|fit|0:15|"]


def test_a_job_is_shown_on_one_line() -> None:
    text = job_record(
        ListedElement(element=element(state="FAILED", exit_code=3), now=0), one_line=True
    )
    pairs = dict(word.split("=", 1) for word in text.split())
    assert pairs["JobId"] == "7"
    assert pairs["JobState"] == "FAILED"
    assert pairs["ExitCode"] == "3:0"
    assert pairs["StdOut"] == "/w/fit-7_4294967294.out"


def test_patterns_of_files_are_filled_in() -> None:
    """%3a pads the index with zeros; an unknown sign stays as it is."""
    one = element(position=2, index=5)
    assert pattern_path(one, "%x-%A_%3a.%j.%N.%q", "n1") == "/w/fit-7_005.9.n1.%q"


@pytest.mark.parametrize(
    ("result", "state"),
    [
        (Result(cursor=1, task=0, state="succeeded"), "COMPLETED"),
        (Result(cursor=1, task=0, state="failed", exit_code=2), "FAILED"),
        (Result(cursor=1, task=0, state="failed", lost=True), "NODE_FAIL"),
        (
            Result(
                cursor=1, task=0, state="failed", reason="used more than 1 MB, memory allows 1 MB"
            ),
            "OUT_OF_MEMORY",
        ),
        (Result(cursor=1, task=0, state="timed-out"), "TIMEOUT"),
        (Result(cursor=1, task=0, state="cancelled"), "CANCELLED"),
        (Result(cursor=1, task=0, state="skipped"), "CANCELLED"),
    ],
)
def test_ends_are_said_in_slurms_words(result: Result, state: str) -> None:
    assert state_of(result)[0] == state
    assert state in COMPACT


def test_numbers_of_jobs_are_read() -> None:
    one, some, all_of = parse_jobs("7_4,8_[1-3,5%2],9.batch", "-j")
    assert one.holds(element(position=3, index=4))
    assert not one.holds(element(position=4, index=5))
    assert some.indices == {1, 2, 3, 5}
    assert (all_of.job, all_of.indices) == (9, frozenset())
    assert parse_jobs("9", "-j")[0].holds(element(position=2, index=0))  # the element's own number


def test_moments_are_read() -> None:
    now = datetime(2026, 11, 27, 12, 30).timestamp()
    read = {
        word: datetime.fromtimestamp(parse_moment(word, "-S", now)).isoformat()
        for word in ("now", "now-2days", "now+1hour", "midnight", "2026-01-02", "2026-01-02T03:04")
    }
    assert list(read.values()) == [
        "2026-11-27T12:30:00",
        "2026-11-25T12:30:00",
        "2026-11-27T13:30:00",
        "2026-11-27T00:00:00",
        "2026-01-02T00:00:00",
        "2026-01-02T03:04:00",
    ]
    assert datetime.fromtimestamp(parse_moment("09:15", "-S", now)).hour == 9


@given(st.text(max_size=20))
@example("1_[")
@example("1_[5-1]")
@example("9999-99-99")
@example("%")
@example("%.5")
@example("--array=1-2 x")
def test_any_word_is_read_or_refused(text: str) -> None:
    """Whatever stands where a number, a state, a time or a format is expected."""
    for read in (
        lambda: parse_jobs(text, "-j"),
        lambda: parse_states(text, "-t"),
        lambda: parse_moment(text, "-S", 1e9),
        lambda: parse_squeue_format(text),
        lambda: parse_squeue_names(text),
        lambda: parse_sacct_format(text),
        lambda: parse_signal_number(text),
        lambda: sorted_elements([element()], text),
    ):
        try:
            found = read()
        except InputError as error:
            found = error.message
        assert found is not None


@given(
    st.lists(
        st.one_of(
            st.sampled_from(
                ("-a", "1-3%2", "-c", "2", "--mem=1G", "-d", "afterok:1", "singleton", "--wrap",
                 "true", "-t", "1:00", "--export=NONE", "--nice", "-N", "job.sh", "--signal=B:9@1",
                 "--", "-J", "x", "--exclusive", "-o", "%j")
            ),
            st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=5),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_any_command_line_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    """sbatch never shows a traceback, and what it takes becomes tasks."""
    folder = tmp_path_factory.getbasetemp()
    try:
        script = read_submission(words, {"A": "b"}, folder, lambda: "#!/bin/sh\ntrue\n")
        facts_of(script, "ann", lambda _: [element()])
        found = len(specs_of_job(script, 5))
    except InputError as error:
        found = len(error.message)
    assert found


def test_a_job_gets_the_variables_of_its_caller_but_not_those_of_another_job(
    tmp_path: Path,
) -> None:
    script = submission(tmp_path, "--wrap", "true")
    (spec,) = specs_of_job(script, 5)
    assert spec.environment == {"MINE": "1"}


def test_options_of_the_command_line_are_stronger(tmp_path: Path) -> None:
    text = "#!/bin/sh\n#SBATCH -c 2 -J inside\ntrue\n"
    script = submission(tmp_path, "-J", "outside", text=text)
    facts = facts_of(script, "ann", lambda _: [])
    assert (facts.name, facts.processors) == ("outside", 2)


def test_elements_of_an_array_with_a_limit_are_a_group(tmp_path: Path) -> None:
    """The service lets two of them run at a time; those of the other job do not count."""
    script = submission(tmp_path, "-a", "0-3%2")
    book = JobBook(tmp_path / "jobs.sqlite")
    facts = facts_of(script, "ann", book.elements)
    for _ in range(2):
        book.add(facts, range(4), lambda n: specs_of_job(script, n), 1e9)
    groups = [[(t.group, t.at_once) for t in job.specs] for job in book.undelivered()]
    book.close()
    assert groups == [[("1", 2)] * 4, [("5", 2)] * 4]
    assert facts.at_once == 2


def linked(
    tmp_path: Path, dependency: str, count: int = 1
) -> tuple[list[TaskSpec], list[TaskSpec]]:
    """Return gates and tasks of a job behind elements 3 and 4 of job 7, whose tasks are 3 and 4."""
    known = [element(position=n, index=n) for n in (3, 4)]
    words = ("-d", dependency) if count == 1 else ("-d", dependency, "-a", f"0-{count - 1}")
    script = submission(tmp_path, *words, "-J", "fit")
    facts = facts_of(script, "ann", lambda _: known)
    return placed(
        facts,
        specs_of_job(script, 20),
        10,
        [(one.kind, one.position) for one in facts.after],
        tmp_path,
        positions=range(count),
    )


@pytest.mark.parametrize(
    ("dependency", "gates", "after", "needs"),
    [
        ("afterok:7", [], (3, 4), None),
        ("afterany:7_3", [], (3,), "ended"),
        ("singleton", [], (3, 4), "ended"),
        ("afternotok:7_3", [(3,)], (10,), None),
        ("afterok:7_3,afterany:7_4", [(4,)], (3, 10), None),
        ("afterok:7_3,singleton,afternotok:7_4", [(3, 4), (4,)], (3, 10, 11), None),
    ],
)
def test_jobs_wait_for_tasks_or_for_gates(
    tmp_path: Path, dependency: str, gates: list[Any], after: Any, needs: Any
) -> None:
    """
    A service knows "all succeeded" and "all ended"; the rest goes through gates, tasks 10 and 11.
    """
    made, (task,) = linked(tmp_path, dependency)
    assert [gate.after for gate in made] == gates
    assert all(gate.needs == "ended" for gate in made)
    assert (task.after, task.needs) == (after, needs)


def test_elements_wait_for_their_own_with_aftercorr(tmp_path: Path) -> None:
    _, tasks = linked(tmp_path, "aftercorr:7", 2)
    assert [task.after for task in tasks] == [(3,), (4,)]


def test_many_elements_wait_for_many_through_one_gate(tmp_path: Path) -> None:
    """Edges grow with the sum of both arrays and not with their product."""
    (gate,), tasks = linked(tmp_path, "afterok:7", 5001)
    assert (gate.after, gate.needs) == ((3, 4), None)
    assert {task.after for task in tasks} == {(10,)}


def test_what_waits_for_an_element_is_found_through_others() -> None:
    """7 is waited for by 20, which 30 waits for; 40 waits for another, and 50 has begun."""
    after = {20: ("afterok", 7), 30: ("afternotok", 20), 40: ("afterany", 8), 50: ("afterok", 7)}
    known = [
        element(
            job=job,
            facts=replace(FACTS, after=(Prerequisite(kind, parent, 0),)),  # type: ignore[arg-type]
            state="RUNNING" if job == 50 else "PENDING",
        )
        for job, (kind, parent) in after.items()
    ]
    first = element(state="RUNNING")
    assert [one.job for one in depending_on(first, [first, *known])] == [20, 30]


def test_ends_are_recorded_once_and_numbers_never_given_twice(tmp_path: Path) -> None:
    """The book is read again as it was written."""
    script = submission(tmp_path, "-a", "0-1")
    book = JobBook(tmp_path / "jobs.sqlite")
    jobs = [book.add(FACTS, (0, 1), lambda n: specs_of_job(script, n), 1e9) for _ in range(2)]
    assert jobs == [1, 3]
    book.add_instance("i")
    for job, first in zip(jobs, (0, 2), strict=True):
        book.deliver(job, "i", first)
    end = Result(cursor=5, task=2, state="failed", exit_code=4, start=1e9, end=1e9 + 3, host="n")
    book.record("i", [end, Result(cursor=6, task=99, state="succeeded")], 1e9 + 9)
    book.record_states("i", [(0, "running"), (2, "running")], 1e9 + 1)
    book.close()
    book = JobBook(tmp_path / "jobs.sqlite")
    found = {one.number: one for one in book.elements()}
    assert [found[n].state for n in (1, 2, 3, 4)] == ["RUNNING", "PENDING", "FAILED", "PENDING"]
    assert (found[3].elapsed(0), found[3].exit_pair) == (3.0, "4:0")
    assert (book.cursor("i"), book.tasks("i"), book.first_unended("i")) == (6, 4, 0)
    assert [one.number for one in book.elements([3])] == [3, 4]
    book.lose("i", 1e9 + 20)
    assert book.elements([1])[0].state == "NODE_FAIL"
    assert book.instance() is None
    book.close()


def test_an_element_that_is_put_back_is_another_task(tmp_path: Path) -> None:
    """
    Two elements, tasks 0 and 1, the second after the first. The first begins anew as task 2 and the
    second waits for that as task 3: ends of tasks 0 and 1 say nothing any more.
    """
    script = submission(tmp_path, "-a", "0-1%1")
    book = JobBook(tmp_path / "jobs.sqlite")
    facts = facts_of(script, "ann", book.elements)
    job = book.add(facts, (0, 1), lambda n: specs_of_job(script, n), 1e9)
    book.add_instance("i")
    book.deliver(job, "i", 0)
    book.record_states("i", [(0, "running")], 1e9 + 1)
    book.changes.put_back([job, job + 1], again=job)
    book.close()

    book = JobBook(tmp_path / "jobs.sqlite")  # whoever put it back was killed
    first, second = book.changes.reruns()
    assert (first.again, first.replaces, first.restarts) == (True, 0, 1)
    assert (second.again, second.replaces, second.restarts) == (False, 1, 0)
    assert (book.task(job, 0), book.tasks("i")) == (None, 2)
    for rerun, task in ((first, 2), (second, 3)):
        book.changes.deliver_rerun(rerun.id, task)
    assert book.changes.reruns() == []
    assert (book.task(job, 0), book.task(job, 1), book.tasks("i")) == (("i", 2), ("i", 3), 4)
    late = [Result(cursor=n + 1, task=n, state="cancelled", end=1e9 + 2) for n in (0, 1)]
    assert book.record("i", late, 1e9 + 2) == []
    assert [one.state for one in book.elements()] == ["PENDING", "PENDING"]
    end = Result(cursor=3, task=2, state="succeeded", start=1e9 + 3, end=1e9 + 4)
    assert book.record("i", [end], 1e9 + 4) == [job]
    ended, waiting = book.elements()
    assert (ended.state, ended.restarts, waiting.state) == ("COMPLETED", 1, "PENDING")
    assert book.first_unended("i") == 3
    book.close()


def test_tasks_of_a_job_are_kept_while_it_may_begin_anew(tmp_path: Path) -> None:
    """Slurm forgets a job five minutes after its end, and so does the book."""
    script = submission(tmp_path)
    book = JobBook(tmp_path / "jobs.sqlite")

    def add(now: float) -> int:
        return book.add(FACTS, (None,), lambda n: specs_of_job(script, n), now)

    first = add(1e9)
    book.add_instance("i")
    book.deliver(first, "i", 0)
    book.record("i", [Result(cursor=1, task=0, state="failed", start=1e9, end=1e9 + 1)], 1e9 + 1)
    add(1e9 + 200)
    assert book.has_specs(first)
    add(1e9 + 400)
    assert not book.has_specs(first)
    assert len(book.undelivered()) == 2
    book.close()
