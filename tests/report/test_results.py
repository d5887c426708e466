"""Results as lines and as a table: each task once, whatever became of it."""

import csv
import json
from pathlib import Path

from bursar.dispatch.journal import Record
from bursar.model.outcome import Outcome, Status
from bursar.model.task import Task
from bursar.report.results import write_results


def test_each_task_is_one_line_of_both_files(tmp_path: Path) -> None:
    """
    Its last attempt, its parameters, its output or the file of it; skipped ones too.
    """
    tasks = [
        Task(id="ok", name="k", parameters={"x": 1, "status": "p"}),
        Task(id="long", name="k", parameters={"x": 2}),
        Task(id="skipped"),
        Task(id="waits"),
    ]
    records = [
        Record(Outcome(task=0, attempt=1, status=Status.FAILED, start=1, end=2, exit_code=3),
               False, "here"),
        Record(Outcome(task=0, attempt=2, status=Status.SUCCEEDED, start=3, end=5, exit_code=0,
                       stdout=b"caf\xc3\xa9 \xff\n", stdout_size=7), True, "here"),
        Record(Outcome(task=1, attempt=1, status=Status.TIMED_OUT, start=1, end=2,
                       reason="slow, \"very\"\nslow", stdout_size=99999), True, "there"),
    ]  # fmt: skip

    write_results(
        tmp_path / "r.jsonl",
        tmp_path / "r.csv",
        tasks,
        records,
        skipped={2},
        log_files=lambda r: (Path("logs/1.stdout") if r.outcome.task == 1 else None, None),
    )

    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["succeeded", "timed-out", "skipped", "not-run"]
    assert lines[0]["attempts"] == 2
    assert lines[0]["runtime_s"] == 2
    assert lines[0]["stdout"] == "café \ufffd\n"
    assert lines[0]["parameters"] == {"x": 1, "status": "p"}
    assert lines[1]["stdout_file"] == "1.stdout"
    assert "stdout" not in lines[1]
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["task"] for row in rows] == ["ok", "long", "skipped", "waits"]
    assert [row["x"] for row in rows] == ["1", "2", "", ""]
    assert rows[0]["parameter_status"] == "p"  # a parameter's name never hides a column
    assert rows[0]["status"] == "succeeded"
    assert rows[1]["reason"] == 'slow, "very"\nslow'
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.csv", "r.jsonl"]
