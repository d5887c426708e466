"""Traces of Nextflow as campaigns: columns, times, and which task waits for which."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from heapq import heapify, heappop, heappush
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bursar
from bursar.formats.campaign_file import read_campaign
from bursar.formats.job_files.nextflow_trace import TimedTask, infer_parents
from bursar.model.errors import InputError

SAMPLES = ("a", "b", "c", "d")
PIPELINE: dict[str, tuple[str, ...]] = {
    "QC": (),
    "TRIM": ("QC",),
    "ALIGN": ("TRIM",),
    "SORT": ("ALIGN",),
    "REPORT": ("QC", "SORT"),
}
"""Processes, and those that feed them; REPORT has one task, the others one for each sample."""


def executed(seed: int, delay: float = 0.2) -> tuple[list[TimedTask], dict[str, set[str]]]:
    """
    Return what Nextflow would have recorded of the pipeline, and what waited for what.

    Every task is submitted when its inputs are there, ``delay`` seconds later at the most, and runs
    for 1 to 60 seconds.
    """
    chance = random.Random(seed)
    found: dict[str, TimedTask] = {}
    truth: dict[str, set[str]] = {}
    for kind, feeding in PIPELINE.items():
        for tag in ("",) if kind == "REPORT" else SAMPLES:
            name = f"{kind} ({tag})"
            parents = {
                one.id for one in found.values()
                if one.kind in feeding and (kind == "REPORT" or one.tag == tag)
            }  # fmt: skip
            ready = max((found[one].end for one in parents), default=1e9)
            submit = ready + chance.uniform(0.01, delay)
            end = submit + 0.5 + chance.uniform(1, 60)
            found[name] = TimedTask(id=name, kind=kind, tag=tag, submit=submit, end=end)
            truth[name] = parents
    return list(found.values()), truth


@pytest.mark.parametrize("seed", range(20))
def test_what_waited_for_what_is_found(seed: int) -> None:
    """
    A task of a sample waits for that of the process before; the report for all that set it going.

    The report also reads what QC made, long before, which does not change when it can begin.
    """
    tasks, truth = executed(seed)
    found = infer_parents(tasks)
    for task in tasks:
        wanted = truth[task.id]
        if task.kind == "REPORT":
            wanted = {one for one in wanted if one.startswith("SORT")}
        assert set(found[task.id]) == wanted


@given(
    st.lists(
        st.tuples(
            st.sampled_from("PQR"), st.sampled_from(("", "a", "b")),
            st.floats(0, 50), st.floats(0, 50),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_parents_have_ended_before_and_there_is_no_cycle(
    rows: list[tuple[str, str, float, float]],
) -> None:
    """Whatever the times are, also tasks of no length at one moment."""
    tasks = {
        str(n): TimedTask(id=str(n), kind=kind, tag=tag, submit=at, end=at + length)
        for n, (kind, tag, at, length) in enumerate(rows)
    }
    found = infer_parents(list(tasks.values()))
    for task, parents in found.items():
        for parent in parents:
            assert tasks[parent].submit < tasks[task].submit
            assert tasks[parent].end <= tasks[task].submit + 0.05


COLUMNS = ("task_id", "hash", "native_id", "name", "status", "exit", "submit", "start", "duration",
           "realtime", "%cpu", "peak_rss", "cpus")  # fmt: skip


def trace(folder: Path, tasks: Sequence[TimedTask], columns: Sequence[str] = COLUMNS) -> Path:
    """Write a trace as Nextflow prints it for people."""

    def moment(seconds: float) -> str:
        return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

    rows = ["\t".join(columns)]
    for number, task in enumerate(tasks, 1):
        start = task.submit + 0.5
        values = {
            "task_id": str(number), "hash": f"ab/{number:06}", "native_id": "77", "exit": "0",
            "name": f"{task.kind} ({task.tag})" if task.tag else task.kind, "status": "COMPLETED",
            "submit": moment(task.submit), "start": moment(start),
            "duration": f"{1000 * (task.end - task.submit):.0f}ms",
            "realtime": f"{task.end - start:.1f}s", "%cpu": "95.0%", "peak_rss": "4.5 MB",
            "cpus": "2",
        }  # fmt: skip
        rows.append("\t".join(values[column] for column in columns))
    path = folder / "trace.txt"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[::-1], ("name", "status", "realtime")])
def test_columns_may_stand_in_any_order(tmp_path: Path, columns: Sequence[str]) -> None:
    tasks, _ = executed(1)
    campaign = read_campaign(trace(tmp_path, tasks, columns))
    found = campaign.workflow.tasks
    assert campaign.recorded
    assert [task.name for task in found][:5] == ["QC"] * 4 + ["TRIM"]
    assert found[0].runtime == pytest.approx(tasks[0].end - tasks[0].submit - 0.5, abs=0.06)
    if "submit" in columns:
        assert (found[0].processors, found[0].memory) == (2, round(4.5 * 2**20))
        assert "is inferred from the times" in campaign.remarks[0]
        assert any(campaign.workflow.parents)
    else:
        assert "all tasks are taken to be independent" in campaign.remarks[0]


def test_a_trace_is_planned(tmp_path: Path) -> None:
    """On plenty of processors the plan takes as long as the pipeline would have without waits."""
    tasks, truth = executed(3)
    path = trace(tmp_path, tasks)
    sites = tmp_path / "sites.toml"
    sites.write_text('[site.big]\nkind = "local"\nprocessors = 64\nunit_price = 1\n')
    ends: dict[str, float] = {}
    for task in tasks:
        begin = max((ends[one] for one in truth[task.id]), default=0.0)
        ends[task.id] = begin + task.end - task.submit - 0.5
    # Without a goal the fastest plan is quoted.
    assert bursar.plan(path, sites).makespan == pytest.approx(max(ends.values()), rel=0.02)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("realtime", "realtme", 'has no column "realtime"'),
        ("COMPLETED", "DONE", "trace.txt:2: status: expected one of"),
        ("95.0%", "95.x%", "trace.txt:2: %cpu: "),
        ("4.5 MB", "4.5 XB", "trace.txt:2: peak_rss: expected a size"),
        ("COMPLETED", "FAILED", "holds no task that succeeded"),
    ],
)
def test_a_faulty_trace_is_refused_at_its_line(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    """A trace of which a row cannot be read would be planned too short."""
    tasks, _ = executed(1)
    columns = tuple(c for c in COLUMNS if c not in ("submit", "start", "duration"))
    path = trace(tmp_path, tasks, columns)
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(InputError) as caught:
        read_campaign(path)
    assert said in str(caught.value)


@given(st.binary(max_size=200))
def test_any_bytes_behind_the_head_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-trace.txt"
    path.write_bytes(b"task_id\tname\tstatus\trealtime\n" + data)
    try:
        campaign = read_campaign(path)
    except InputError as error:
        said = error.where or ""
    else:
        said = str(campaign.source)
    assert "any-trace.txt" in said


RECORDED = {
    "bacass-dirt02-001.json": 0.02,
    "fetchngs-dirt02-001.json": 0.25,
    "rnaseq-dirt02-001.json.xz": 0.05,
    "sarek-dirt02-001.json": 0.02,
}
"""Pipelines, and by which share the end may differ when the order is inferred."""


def scheduled(
    runtimes: Sequence[float],
    parents: Sequence[Sequence[int]],
    processors: int,
    delay: Callable[[], float] = lambda: 0.0,
) -> tuple[list[float], list[float]]:
    """
    Return when tasks of one processor are submitted and end, first come, first served.

    Parameters
    ----------
    delay
        Returns the seconds from the end of a task's last parent to its submission.
    """
    children: list[list[int]] = [[] for _ in runtimes]
    for child, before in enumerate(parents):
        for parent in before:
            children[parent].append(child)
    left = [len(before) for before in parents]
    submit, end = [0.0] * len(left), [0.0] * len(left)
    ahead = [(0.0, "submit", task) for task, count in enumerate(left) if not count]
    heapify(ahead)
    waiting: deque[int] = deque()
    while ahead:
        now, what, task = heappop(ahead)
        if what == "submit":
            submit[task] = now
            waiting.append(task)
        else:
            processors, end[task] = processors + 1, now
            for child in children[task]:
                left[child] -= 1
                if not left[child]:
                    heappush(ahead, (now + delay(), "submit", child))
        while waiting and processors:
            processors -= 1
            begun = waiting.popleft()
            heappush(ahead, (now + runtimes[begun], "end", begun))
    return submit, end


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("traced_on", [8, 10_000])
def test_recorded_pipelines_end_as_by_their_own_order(
    data: Path, name: str, traced_on: int
) -> None:
    """
    Traces made by simulation, without tags, on few processors and on as many as there are tasks.
    """
    workflow = read_campaign(data / "workflows" / "wfformat" / name).workflow
    runtimes = [task.runtime or 0.0 for task in workflow.tasks]
    chance = random.Random(1)
    submit, end = scheduled(
        runtimes, workflow.parents, traced_on, lambda: chance.uniform(0.05, 1.0)
    )
    traced = [
        TimedTask(id=str(n), kind=task.name, tag="", submit=1e9 + submit[n], end=1e9 + end[n])
        for n, task in enumerate(workflow.tasks)
    ]
    found = infer_parents(traced)
    inferred = [[int(parent) for parent in found[str(n)]] for n in range(len(traced))]
    for processors in (4, 16, 64):
        truth = max(scheduled(runtimes, workflow.parents, processors)[1])
        ends = max(scheduled(runtimes, inferred, processors)[1])
        assert ends == pytest.approx(truth, rel=RECORDED[name])
