"""Exports of any run keep the rules of their formats, and lose nothing that the format can say."""

import csv
import io
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bursar.dispatch.journal_records import AttemptRecord
from bursar.formats.wfformat import read_wfformat
from bursar.model.campaign import Goal, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Exec, File, Outcome, Shell, Status, Task
from bursar.report.bill import Bill
from bursar.report.exports.attempt_tables import write_jobs
from bursar.report.exports.exported_run import ExportedAttempt, ExportedRun, safe_names
from bursar.report.exports.ro_crate import BILL, JOBS, README, WORKFLOW, crate_document
from bursar.report.exports.spans import trace_requests
from bursar.report.exports.wfformat_document import wfformat_document

NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1
).filter(lambda name: name not in (".", ".."))
ID = re.compile(r"[0-9a-zA-Z\-_.#]+")
FILE = re.compile(r"[0-9a-zA-Z\-_./:#]+")


def run_of(tasks: Sequence[Task], attempts: Sequence[ExportedAttempt] = ()) -> ExportedRun:
    """A run of these tasks, with these attempts."""
    ends = [one.record.outcome.end for one in attempts]
    return ExportedRun(
        name="r", identity="r", campaign="c", state="finished", created=1e9, goal=Goal(),
        workflow=Workflow(tuple(tasks)), attempts=attempts,
        final={one.number: one.record for one in attempts if one.record.final},
        skipped=frozenset(), reused={}, begun=min((a.ready for a in attempts), default=None),
        ended=max(ends, default=None), makespan=None,
        sites=[SiteFacts(name="s", processors=4)], leases={},
        bill=Bill(run="r", currency="SU", leases=[], tasks=[], total=0, granted=0, held=0,
                  unpriced=[]),
        sizes={}, places={},
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> ExportedRun:
    """Runs with odd names, several attempts for a task, and processors that overlap."""
    ids = draw(st.lists(NAMES, min_size=1, max_size=6, unique=True))
    made = draw(st.lists(NAMES, min_size=len(ids), max_size=len(ids), unique=True))
    tasks: list[Task] = []
    attempts: list[ExportedAttempt] = []
    for number, name in enumerate(ids):
        before = draw(st.sets(st.integers(0, number - 1))) if number else set()
        task = Task(
            id=name,
            name=draw(NAMES),
            steps=tuple(draw(st.lists(st.sampled_from([Shell("a b"), Exec(("c", "", "d"))])))),
            inputs=tuple(File(made[i]) for i in sorted(before)),
            outputs=(File(made[number], draw(st.none() | st.integers(0, 2**40))),),
            processors=draw(st.integers(1, 3)),
            parameters={"x": draw(st.integers() | st.text() | st.booleans())},
        )
        tasks.append(task)
        start = 1e9 + draw(st.floats(0, 1000))
        count = draw(st.integers(0, 3))
        for attempt in range(1, count + 1):
            end = start + draw(st.floats(0, 100))
            status = Status.SUCCEEDED if attempt == count else draw(st.sampled_from(list(Status)))
            outcome = Outcome(
                task=number, attempt=attempt, status=status, start=start, end=end,
                max_rss=draw(st.integers(0, 2**40)), reason=draw(st.text()),
            )  # fmt: skip
            record = AttemptRecord(outcome, attempt == count, "s", "lease-1")
            attempts.append(
                ExportedAttempt(record=record, number=number, task=task, ready=start, cost=7)
            )
            start = end
    return run_of(tasks, attempts)


@given(runs())
def test_wfformat_reads_back(run: ExportedRun) -> None:
    """Whatever tasks are called, the order, the times and the processors come back."""
    document = wfformat_document(run)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.json"
        path.write_bytes(msgspec.json.encode(document))
        found = read_wfformat(path)

    assert found.workflow.parents == run.workflow.parents
    for number, (task, before) in enumerate(
        zip(found.workflow.tasks, run.workflow.tasks, strict=True)
    ):
        record = run.last(number)
        if record is None:
            assert task.runtime is None
        else:
            assert task.runtime == record.outcome.end - record.outcome.start
            assert task.processors == before.processors
    specification = document["workflow"]["specification"]
    for one in specification["tasks"]:
        assert all(map(ID.fullmatch, [one["id"], *one["parents"], *one["children"]]))
        assert all(map(FILE.fullmatch, [*one["inputFiles"], *one["outputFiles"]]))


@given(st.lists(st.text("ab_#=", min_size=1)))
def test_names_stay_apart(names: list[str]) -> None:
    found = safe_names(names, re.compile("[^ab_]"))

    assert len(set(found.values())) == len(set(names))
    for name, safe in found.items():
        assert re.fullmatch("[ab_0-9]+", safe)
        if re.fullmatch("[ab_]+", name):
            assert safe == name


@given(runs())
def test_jobs_of_one_moment_share_no_processor(run: ExportedRun) -> None:
    text = io.StringIO()
    write_jobs(run, text)
    held: list[tuple[float, float, set[int]]] = []
    order = sorted(run.attempts, key=lambda one: one.record.outcome.end)
    rows = list(csv.DictReader(io.StringIO(text.getvalue(), newline="")))
    for one, row in zip(order, rows, strict=True):
        numbers: set[int] = set()
        for part in row["allocated_resources"].split():
            low, _, high = part.partition("-")
            numbers |= set(range(int(low), int(high or low) + 1))
        assert len(numbers) == one.task.processors
        start, end = one.record.outcome.start, one.record.outcome.end
        for began, ended, others in held:
            if min(end, ended) - max(start, began) > 1e-5:
                assert not numbers & others
        held.append((start, end, numbers))


@given(runs())
def test_a_crate_names_each_thing_once(run: ExportedRun) -> None:
    sizes = dict.fromkeys((WORKFLOW, BILL, JOBS, README), 1)
    graph = crate_document(run, sizes)["@graph"]
    known = {one["@id"] for one in graph}

    assert len(known) == len(graph)
    assert {one for one in _references(graph) if one not in known and "//" not in one} == set()
    assert all(" " not in one and "\n" not in one for one in known)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["@id"]] if value.keys() == {"@id"} else []
        return own + [one for inner in value.values() for one in _references(inner)]
    if isinstance(value, list):
        return [one for inner in value for one in _references(inner)]
    return []


@given(runs())
def test_a_trace_in_parts_has_the_spans_of_the_whole(run: ExportedRun) -> None:
    (whole,) = list(trace_requests(run)) or [None]
    parts = list(trace_requests(run, 2))
    if whole is None:
        assert parts == []
        return

    def spans(body: dict[str, Any]) -> list[Any]:
        return list(body["resourceSpans"][0]["scopeSpans"][0]["spans"])

    assert spans(whole) == [span for part in parts for span in spans(part)]
    assert all(len(spans(part)) <= 2 for part in parts)
    assert len({span["spanId"] for span in spans(whole)}) == 1 + len(run.attempts)
    json.dumps(whole)
