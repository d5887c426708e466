"""Readers of other tools' logs: their notations, what they pass over, and bad rows."""

import base64
import gzip
import json
import lzma
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.formats.trace_files import read_swf
from bursar.formats.wfformat import read_wfformat
from bursar.history.importing.exported import read_exported, to_csv, to_json_lines
from bursar.history.importing.formats import TEXT_READERS, guess_format
from bursar.history.importing.hyperqueue import read_hyperqueue
from bursar.history.importing.imported_log import ImportedLog, program_of, without_numbering
from bursar.history.importing.nextflow import read_nextflow
from bursar.history.importing.parallel import read_parallel
from bursar.history.importing.recorded import observe_trace, observe_workflow
from bursar.history.importing.sacct import read_slurm
from bursar.history.importing.snakemake import read_snakemake_benchmark, read_snakemake_metadata
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.model.errors import InputError
from bursar.model.task import Status
from bursar.runs.recording.imports import ImportTerms, add_log, read_all


def local(text: str) -> float:
    """Return a date of this machine as seconds since the epoch."""
    return datetime.fromisoformat(text).timestamp()


# Nextflow.

NEXTFLOW = (
    "task_id\thash\tname\tstatus\texit\tsubmit\tduration\trealtime\t%cpu\tpeak_rss\n"
    "1\te6/33\tsay (one two)\tCOMPLETED\t0\t2018-11-02 16:09:13.353\t5.8s\t866ms\t50.0%\t4.5 MB\n"
    "2\te6/34\tsay (x)\tCACHED\t0\t2018-11-02 16:09:13.353\t5.8s\t866ms\t3.8%\t4.1 MB\n"
    "3\te6/35\tmap\tFAILED\t1\t2018-11-02 16:09:14.000\t1d 2h 3m 4s\t1h 1s\t-\t1.5 GB\n"
    "4\te6/36\tmap\tABORTED\t-\t2018-11-02 16:09:14.000\t-\t-\t-\t-\n"
    "5\te6/37\tmap\tRUNNING\t-\t2018-11-02 16:09:14.000\t-\t-\t-\t-\n"
)


def test_nextflow_durations_memory_and_statuses() -> None:
    """What Nextflow prints for people is read to the unit."""
    log = read_nextflow(NEXTFLOW, "runs/trace.txt")

    first, second = log.observations
    assert (first.kind, first.parameters) == ("say", {"tag": "one two"})
    assert first.seconds == 0.866
    assert first.waited == pytest.approx(5.8 - 0.866)
    assert first.start == pytest.approx(local("2018-11-02 16:09:13.353") + 5.8 - 0.866)
    assert first.max_rss == round(4.5 * 2**20)
    assert first.user_seconds == 0.433
    assert second.status is Status.FAILED
    assert second.seconds == 3601
    assert second.max_rss == 3 * 2**29
    assert second.waited == 86400 + 2 * 3600 + 184 - 3601
    assert log.passed_over == {
        "cached by an earlier execution": 1, "no run time": 1, "not ended": 1
    }  # fmt: skip
    assert log.problems == []


def test_nextflow_raw_fields() -> None:
    """With trace.raw, durations and dates are milliseconds and memory is bytes."""
    text = (
        "task_id\tprocess\ttag\tstatus\tcpus\tattempt\tsubmit\tstart\tcomplete\trealtime\tpeak_rss\n"
        "7\tNF:ALIGN\ts1\tCOMPLETED\t4\t2\t1700000000000\t1700000002500\t1700000012500\t9900\t1048576\n"
    )

    (one,) = read_nextflow(text, "trace.txt").observations

    assert (one.kind, one.attempt, one.processors) == ("NF:ALIGN", 2, 4)
    assert (one.start, one.seconds, one.waited) == (1700000002.5, 9.9, 2.5)
    assert one.max_rss == 2**20


def test_a_trace_that_has_grown_is_of_the_same_execution() -> None:
    """The first row names the execution, not the length of the file."""
    lines = NEXTFLOW.splitlines(keepends=True)

    names = {
        one.execution
        for n in (2, 4, 6)
        for one in read_nextflow("".join(lines[:n]), "trace.txt").observations
    }

    assert len(names) == 1


# Snakemake.

BENCHMARK = (
    "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"
    "1.25\t0:00:01\t4.50\t7.11\t0.45\t0.94\t0.05\t0.57\t0.00\t0.75\n"
    "1.50\t0:00:01\tNA\tNA\tNA\tNA\tNA\tNA\tNA\tNA\n"
)


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("/p/benchmarks/align/s1.tsv", "align"),
        ("/p/benchmarks/s1.align.tsv", "align"),
        ("/p/benchmark/s1.align.benchmark.txt", "align"),
        ("/p/bench/align.tsv", "align"),
        ("/p/results/align_12.txt", "align"),
    ],
)
def test_snakemake_benchmarks(path: str, rule: str) -> None:
    """Each repetition is an observation; the rule comes from the path."""
    first, second = read_snakemake_benchmark(BENCHMARK, path, modified=1e9).observations

    assert (first.kind, first.attempt, second.attempt) == (rule, 1, 2)
    assert (first.seconds, first.start) == (1.25, 1e9 - 1.25)
    assert (first.max_rss, first.user_seconds) == (round(4.5 * 2**20), 0.75)
    assert (second.max_rss, second.user_seconds) == (None, None)


def test_snakemake_extended_benchmarks() -> None:
    """With --benchmark-extended the file names rule, wildcards, threads and sizes of inputs."""
    text = (
        "s\th:m:s\tmax_rss\tjobid\trule_name\twildcards\tparams\tthreads\tinput_size_mb\n"
        "0.30\t0:00:00\t3.09\t1\tcount\t{'s': 'a'}\t{'k': 3}\t2\t{'raw/a.txt': 0.5, 'b': 1.0}\n"
    )

    (one,) = read_snakemake_benchmark(text, "/p/benchmarks/x.tsv", modified=1e9).observations

    assert (one.kind, one.processors) == ("count", 2)
    assert one.parameters == {"s": "a", "k": 3}
    assert one.input_bytes == 3 * 2**19


def test_snakemake_metadata() -> None:
    """Outputs of one job are one observation, with the shell template and sizes of inputs."""
    record = {
        "rule": "count", "input": ["raw/a.txt"], "shellcmd": "wc raw/a.txt > a",
        "params": ["3"], "code": "wc {input} > {output}", "starttime": 100.0, "endtime": 101.5,
        "incomplete": False, "record_format_version": 6,
    }  # fmt: skip
    long = base64.b64encode(b"out/" + b"x" * 300).decode()
    files = [
        (base64.b64encode(b"out/a.sum").decode(), json.dumps(record).encode()),
        (f"@{long[:200]}/{long[200:]}", json.dumps(record).encode()),
        (base64.b64encode(b"c").decode(), json.dumps({**record, "incomplete": True}).encode()),
        (base64.b64encode(b"d").decode(), json.dumps({**record, "starttime": None}).encode()),
        (base64.b64encode(b"e").decode(), b'{"rule": "cou'),
    ]

    log = read_snakemake_metadata(files, "/p", {"raw/a.txt": 42}.get)

    (one,) = log.observations
    assert (one.kind, one.template) == ("count", "wc {input} > {output}")
    assert (one.start, one.seconds, one.input_bytes) == (100.0, 1.5, 42)
    assert one.parameters == {"params[0]": 3}
    assert log.passed_over == {
        "another output of the same job": 1, "no times, or not completed": 2
    }  # fmt: skip
    assert len(log.problems) == 1
    assert ".snakemake/metadata/" in str(log.problems[0])


# Slurm.

SACCT = (
    "JobID|JobName|State|Elapsed|Submit|Start|End|AllocCPUS|MaxRSS|TotalCPU|Timelimit|Cluster\n"
    "12|fit-3|COMPLETED|1-00:00:10|2026-11-20T10:00:00|2026-11-20T10:05:00|2026-11-21T10:05:10"
    "|4||00:01.500|2-00:00:00|c1\n"
    "12.batch|batch|COMPLETED|1-00:00:10|2026-11-20T10:05:00|2026-11-20T10:05:00"
    "|2026-11-21T10:05:10|4|1500K|00:01.500||c1\n"
    "12.0|step|COMPLETED|00:10:00|2026-11-20T10:05:00|2026-11-20T10:05:00|2026-11-20T10:15:00"
    "|4|2.50M|00:01.500||c1\n"
    "13_4|arr|CANCELLED by 1000|00:00:10|2026-11-20T10:00:00|2026-11-20T10:05:00"
    "|2026-11-20T10:05:10|1|||UNLIMITED|c1\n"
    "14|x|PENDING|00:00:00|2026-11-20T10:00:00|Unknown|Unknown|0|||1:00:00|c1\n"
    "15|x|CANCELLED|00:00:00|2026-11-20T10:00:00|None|2026-11-20T10:00:01|0|||1:00:00|c1\n"
    "16|x|TIMEOUT|01:00:20|2026-11-20T10:00:00|2026-11-20T10:05:00|2026-11-20T11:05:20"
    "|1|||01:00:00|c1\n"
    "17|x|NODE_FAIL|00:00:20|2026-11-20T10:00:00|2026-11-20T10:05:00|2026-11-20T10:05:20"
    "|1|||01:00:00|c1\n"
    "99.batch|batch|COMPLETED|00:00:20|||||1K|||c1\n"
)


@pytest.mark.parametrize("ending", ["", "|"])
def test_sacct(ending: str) -> None:
    """Jobs get the memory of their steps; states, times and limits are Slurm's."""
    text = "".join(line + ending + "\n" for line in SACCT.splitlines())

    log = read_slurm(text, "jobs.txt")

    job, element, late, lost = log.observations
    assert (job.task, job.kind, job.processors, job.site) == ("12", "fit", 4, "c1")
    assert (job.seconds, job.waited, job.estimate) == (86410, 300, 172800)
    assert job.start == local("2026-11-20T10:05:00")
    assert (job.max_rss, job.user_seconds) == (round(2.5 * 2**20), 1.5)
    assert (element.status, element.execution) == (Status.CANCELLED, "slurm-c1-13")
    assert element.estimate is None
    assert (late.status, lost.status) == (Status.TIMED_OUT, Status.LOST)
    assert late.is_censored
    assert log.passed_over == {"not ended": 1, "never began": 1, "a step without its job": 1}
    assert log.problems == []


# GNU parallel.

JOBLOG = (
    "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n"
    "1\t:\t1795764176.382\t     0.101\t0\t0\t0\t0\tpython fit.py --x 0.5\n"
    "2\tn2\t1795764176.385\t     0.203\t0\t0\t1\t0\tpython fit.py --x 2\n"
    "2\tn2\t1795764180.385\t     0.204\t0\t0\t0\t0\tpython fit.py --x 2\n"
    "3\t:\t1795764176.487\t     1.000\t0\t0\t-1\t15\tpython fit.py --x a\n"
)


def test_job_log_of_gnu_parallel() -> None:
    """Words that differ are parameters; a try again is an attempt; a killed job is censored."""
    one, failed, again, killed = read_parallel(JOBLOG, "joblog").observations

    assert (one.kind, one.template) == ("python fit.py", "python fit.py --x {3}")
    assert [o.parameters["3"] for o in (one, failed, again, killed)] == [0.5, 2, 2, "a"]
    assert (failed.status, failed.host, failed.attempt) == (Status.FAILED, "n2", 1)
    assert (again.status, again.attempt) == (Status.SUCCEEDED, 2)
    assert killed.is_censored


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("A=1 B=2 /usr/bin/blastn -q x", "blastn"),
        ("python3.11 -u dir/fit.py 3", "python3.11 fit.py"),
        ("bash run.sh; echo", "bash run.sh"),
        ("echo 'open", "echo"),
        ("", "command"),
    ],
)
def test_program_of_a_command(command: str, program: str) -> None:
    """A kind is the program, and with an interpreter its script."""
    assert program_of(command) == program


@pytest.mark.parametrize(
    ("name", "kind"),
    [("align_ID0000012", "align"), ("align-3", "align"), ("fit[12]", "fit"), ("12", "12")],
)
def test_numbering_is_removed(name: str, kind: str) -> None:
    """Tasks that differ by number are of one kind."""
    assert without_numbering(name) == kind


# HyperQueue.

JOURNAL = """\
{"time":"2024-01-01T10:00:00Z","event":{"type":"server-start","server_uid":"abc"}}
{"time":"2024-01-01T10:00:01Z","event":{"type":"worker-connected","id":1,"configuration":{"hostname":"n1"}}}
{"time":"2024-01-01T10:00:02Z","event":{"type":"job-created","job":1,"job_desc":{"name":"fit-2"}}}
{"time":"2024-01-01T10:00:03Z","event":{"type":"task-started","job":1,"task":0,"instance":0,"worker":1}}
{"time":"2024-01-01T10:00:04Z","event":{"type":"task-started","job":1,"task":1,"instance":0,"worker":1}}
{"time":"2024-01-01T10:00:05Z","event":{"type":"worker-lost","id":1,"reason":"ConnectionLost"}}
{"time":"2024-01-01T10:00:06Z","event":{"type":"task-started","job":1,"task":0,"instance":1,"workers":[1,2]}}
{"time":"2024-01-01T10:00:08.500Z","event":{"type":"task-finished","job":1,"task":0}}
{"time":"2024-01-01T10:00:09Z","event":{"type":"task-canceled","tasks":[{"job_id":1,"job_task_id":1},"1@7"]}}
"""


def test_journal_of_hyperqueue() -> None:
    """A lost attempt, the next one, and a cancellation in a list are told apart."""
    lost, done, cancelled = read_hyperqueue(JOURNAL, "hq.json").observations

    assert (lost.status, lost.seconds, lost.attempt) == (Status.LOST, 3, 1)
    assert (done.status, done.seconds, done.attempt) == (Status.SUCCEEDED, 2.5, 2)
    assert (done.kind, done.host, done.waited) == ("fit", "n1", 4)
    assert (cancelled.task, cancelled.status) == ("1", Status.CANCELLED)


def test_jobs_of_hyperqueue() -> None:
    """``hq job info --output-mode json`` has tasks; ``hq job list`` has none, and is told so."""
    job = {
        "info": {"id": 1, "name": "echo"},
        "started_at": "2024-01-01T10:00:00Z",
        "task-desc": {
            "array": {"resources": [{"resources": [
                {"resource": "cpus", "request": {"Compact": 20000}}
            ]}]}
        },
        "tasks": [
            {"id": 0, "state": "finished", "started_at": "2024-01-01T10:00:01Z",
             "finished_at": "2024-01-01T10:00:02.5Z", "worker": 1},
            {"id": 1, "state": "waiting"},
        ],
    }  # fmt: skip

    log = read_hyperqueue(json.dumps([job], indent=1), "jobs.json")

    (one,) = log.observations
    assert (one.kind, one.seconds, one.waited, one.processors) == ("echo", 1.5, 1, 2)
    assert log.passed_over == {"not ended": 1}
    listed = read_hyperqueue('[{"id": 1, "name": "x", "task_stats": {}}]', "jobs.json")
    assert "is no job of HyperQueue" in str(listed.problems[0])


# Recordings.


def test_real_recorded_workflows(data: Path) -> None:
    """Kinds are programs, executions differ, and each has the date that it began."""
    names = set()
    for path in sorted((data / "executions").glob("blast-*.json.xz")):
        log = observe_workflow(read_wfformat(path), str(path), path.name[-10:-8])
        assert {one.kind for one in log.observations} == {
            "split_fasta", "blastall", "cat", "cat_blast"
        }  # fmt: skip
        assert len(log.observations) == 43
        assert log.executions[0].begun > 1.6e9
        names.add(log.executions[0].name)
    assert len(names) == 5


def test_real_logs_of_clusters(data: Path) -> None:
    """Jobs are of the kind of their user and program, with the estimate of the user."""
    path = data / "swf" / "NASA-iPSC-1993-3.1-cln.swf.gz"
    log = observe_trace(read_swf(path), str(path))

    assert len(log.observations) > 10_000
    assert all(one.kind.startswith("user ") for one in log.observations)
    assert log.problems == []


def test_status_and_program_of_jobs(tmp_path: Path) -> None:
    """Failed and cancelled jobs of a log are no successes."""
    path = tmp_path / "log.swf"
    rows = [(1, 1, 7), (2, 0, 7), (3, 5, -1)]
    path.write_text(
        "; UnixStartTime: 1000000\n"
        + "".join(f"{n} 0 5 10 2 -1 -1 2 60 -1 {s} 4 1 {p} 1 1 -1 -1\n" for n, s, p in rows)
    )

    done, failed, cancelled = observe_trace(read_swf(path), str(path)).observations

    assert (done.kind, done.start, done.waited, done.estimate) == (
        "user 4 program 7", 1000005, 5, 60
    )  # fmt: skip
    assert [o.status for o in (done, failed, cancelled)] == [
        Status.SUCCEEDED, Status.FAILED, Status.CANCELLED
    ]  # fmt: skip
    assert cancelled.kind == "user 4"


# Exports, guesses, and bad input.


@pytest.mark.parametrize("write", [to_csv, to_json_lines])
def test_exports_are_read_back(write: object) -> None:
    """What is exported is imported as it was, with commas, quotes and lines in texts."""
    seen = [
        TaskObservation(
            execution="e", task='a,"b"\nc', kind="k", seconds=1.5, status=Status.TIMED_OUT,
            parameters={"x": 1, "y": 0.5, "z": "é,", "b": True}, estimate=3.0, site="s",
        ),
        TaskObservation(execution="e", task="2", kind="k", seconds=0.0),
    ]  # fmt: skip

    text = "\n".join(write(seen)) + "\n"  # type: ignore[operator]

    assert read_exported(text, "e").observations == seen


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("trace.txt", NEXTFLOW, "nextflow"),
        ("a.tsv", BENCHMARK, "snakemake"),
        ("jobs", SACCT, "slurm"),
        ("joblog", JOBLOG, "parallel"),
        ("j", JOURNAL, "hyperqueue"),
        ("j.json", '[\n {"info": {"task_stats": {}}}]', "hyperqueue"),
        ("w.json", '{"name": "x", "schemaVersion": "1.5"}', "wfformat"),
        ("x.swf.gz", "", "swf"),
        ("x", "; Version: 2.2\n", "swf"),
        ("e.jsonl", '{"execution":"e","task":"1","kind":"k","seconds":1.0}', "bursar"),
        ("e.csv", "execution,task,attempt\n", "bursar"),
        ("x", "some text", None),
        ("x", "", None),
    ],
)
def test_formats_are_recognised(name: str, text: str, expected: str | None) -> None:
    """Each format is told by its first lines."""
    assert guess_format(name, text) == expected


@pytest.mark.parametrize(
    ("read", "text", "old", "new", "expected"),
    [
        ("nextflow", NEXTFLOW, "866ms\t50", "fast\t50", 'log:2: realtime: expected a time such as'),
        ("nextflow", NEXTFLOW, "4.5 MB", "4.5 XB", "log:2: peak_rss: expected a size"),
        ("nextflow", NEXTFLOW, "COMPLETED", "GONE", "log:2: status: expected one of"),
        ("nextflow", NEXTFLOW, "\te6/33", "", "log:2: expected 10 fields, got 9"),
        ("slurm", SACCT, "1-00:00:10|2026", "-5|2026", "log:2: Elapsed"),
        ("slurm", SACCT, "1500K", "much", "log:2: log:3: MaxRSS"),
        ("slurm", SACCT, "TIMEOUT", "WEIRD", "log:8: State: expected one of"),
        ("parallel", JOBLOG, "     0.101", "-1", "log:2: seconds must be between 0"),
        ("parallel", JOBLOG, "1795764176.382", "soon", "log:2: Starttime: expected a number"),
        ("parallel", JOBLOG, "1795764176.382", "1795764176382", "log:2: start must be between"),
        ("hyperqueue", JOURNAL, "2024-01-01T10:00:03Z", "then", "log:4: time: expected a date"),
        ("hyperqueue", JOURNAL, '"worker":1}}\n{"time":"2024-01-01T10:00:04Z"', "", "log:4: is no"),
        ("bursar", '{"execution":"e","task":"1","kind":"k","seconds":1}', "1}", "-1}", "log:1: "),
    ],
)  # fmt: skip
def test_a_bad_row_names_file_line_and_field(
    read: str, text: str, old: str, new: str, expected: str
) -> None:
    """One bad row is one problem, in one line; the others are read."""
    assert old in text
    whole = TEXT_READERS[read](text, "log")  # type: ignore[index]

    log = TEXT_READERS[read](text.replace(old, new, 1), "log")  # type: ignore[index]

    assert whole.problems == []
    assert str(log.problems[0]).startswith(expected)
    assert "\n" not in str(log.problems[0])
    assert len(log.observations) >= len(whole.observations) - 2


@pytest.mark.parametrize("read", TEXT_READERS.values(), ids=TEXT_READERS)
@given(
    text=st.text(st.characters(exclude_categories=("Cs",)))
    | st.sampled_from([NEXTFLOW, SACCT, JOBLOG, JOURNAL, BENCHMARK]),
    cut=st.integers(0, 400),
    junk=st.sampled_from(["", "\t", "|", "\0", "nan", "9" * 400, "{", '"']),
)
def test_no_text_breaks_a_reader(read: object, text: str, cut: int, junk: str) -> None:
    """Whatever stands there, a reader returns a log or refuses it in one line."""
    log, refused = None, ""
    try:
        log = read(text[:cut] + junk + text[cut:], "log")  # type: ignore[operator]
    except InputError as error:
        refused = str(error)
    assert isinstance(log, ImportedLog) or "log" in refused


# Files.


def test_compressed_files_are_read_and_imported_once(tmp_path: Path) -> None:
    """Packed logs are read; importing the same again adds nothing."""
    (tmp_path / "joblog.gz").write_bytes(gzip.compress(JOBLOG.encode()))
    (tmp_path / "trace.txt.xz").write_bytes(lzma.compress(NEXTFLOW.encode()))
    history = History(tmp_path / "h.sqlite")
    paths = [tmp_path / "joblog.gz", tmp_path / "trace.txt.xz"]

    for expected in ([4, 2], [0, 0]):
        logs = read_all(paths, ImportTerms(site="here", speed=2.0), skip_bad=False)
        assert [add_log(history, log) for _, _, log in logs] == expected

    assert {(one.site, one.speed) for one in history.rows()} == {("here", 2.0)}


def test_nothing_of_bad_files_is_imported_unless_asked(tmp_path: Path) -> None:
    """The first bad row is named with the number of others; --skip-bad counts them."""
    bad = tmp_path / "joblog"
    bad.write_text(JOBLOG.replace("0.101", "x").replace("0.203", "y"))

    with pytest.raises(InputError, match=r'joblog:2: JobRuntime: .*, got "x" \(and 1 more\)'):
        read_all([bad], ImportTerms(), skip_bad=False)
    ((_, form, log),) = read_all([bad], ImportTerms(), skip_bad=True)

    assert (form, len(log.observations), len(log.problems)) == ("parallel", 2, 2)
