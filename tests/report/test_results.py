"""Results as lines and as a table: each task once, whatever became of it."""

import csv
import itertools
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.errors import BursarError
from bursar.model.task import Outcome, Status, Task
from bursar.report.result_files import COLUMNS, MOST_TEXT, table_columns, write_results


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
        AttemptRecord(Outcome(task=0, attempt=1, status=Status.FAILED, start=1, end=2, exit_code=3),
               False, "here", "l"),
        AttemptRecord(Outcome(task=0, attempt=2, status=Status.SUCCEEDED, start=3, end=5,
                              exit_code=0, stdout=b"caf\xc3\xa9 \xff\n", stdout_size=7),
               True, "here", "l"),
        AttemptRecord(Outcome(task=1, attempt=1, status=Status.TIMED_OUT, start=1, end=2,
                       reason="slow, \"very\"\nslow", stdout_size=99999), True, "there", "l"),
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


def test_results_that_cannot_be_written_leave_what_was_there(tmp_path: Path) -> None:
    """A full disk or a folder in the way: one line, the old file, and no half of a new one."""
    (tmp_path / "r.csv").mkdir()
    (tmp_path / "r.jsonl").write_text("old\n")

    with pytest.raises(BursarError, match=r"r\.csv: cannot be written"):
        write_results(
            tmp_path / "r.jsonl",
            tmp_path / "r.csv",
            [Task(id="a")],
            [],
            skipped=(),
            log_files=lambda _: (None, None),
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.csv", "r.jsonl"]
    assert json.loads((tmp_path / "r.jsonl").read_text())["status"] == "not-run"


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=12)


@given(
    ids=st.lists(TEXT.filter(bool), min_size=1, max_size=5, unique=True),
    parameters=st.lists(st.dictionaries(TEXT.filter(bool), TEXT, max_size=3), max_size=5),
    printed=st.lists(st.binary(max_size=20), max_size=5),
)
def test_both_files_are_read_back_as_they_were(
    ids: list[str], parameters: list[dict[str, str]], printed: list[bytes]
) -> None:
    """Line breaks, quotes and commas in names or output stay within their cell and their line."""
    tasks = [
        Task(id=name, parameters=values)
        for name, values in itertools.zip_longest(ids, parameters[: len(ids)], fillvalue={})
        if isinstance(name, str)
    ]
    records = [
        AttemptRecord(
            Outcome(
                task=i,
                attempt=1,
                status=Status.SUCCEEDED,
                start=1.5,
                end=2.25,
                stdout=out,
                stdout_size=len(out),
            ),
            True,
            "s",
            "l",
        )
        for i, out in enumerate(printed[: len(tasks)])
    ]
    with tempfile.TemporaryDirectory() as folder:
        jsonl, table = Path(folder, "r.jsonl"), Path(folder, "r.csv")
        write_results(jsonl, table, tasks, records, skipped=(), log_files=lambda _: (None, None))
        lines = [json.loads(line) for line in jsonl.read_text("utf-8").split("\n")[:-1]]
        with table.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))

    assert [line["task"] for line in lines] == [row["task"] for row in rows] == ids
    assert [line.get("parameters", {}) for line in lines] == [dict(t.parameters) for t in tasks]
    for task, row in zip(tasks, rows, strict=True):
        for name, value in task.parameters.items():
            assert row[f"parameter_{name}" if name in COLUMNS else name] == value
    for record, line, row in zip(records, lines, rows, strict=False):
        assert line["stdout"] == record.outcome.stdout.decode(errors="replace")
        assert float(row["runtime_s"]) == line["runtime_s"] == 0.75


def test_the_table_of_a_page_is_short_and_whole() -> None:
    """
    Columns without a value are left out, texts that repeat stand once, and long ones are cut.
    """
    tasks = [Task(id=f"t{i}", parameters={"x": i, "text": "long" * 100}) for i in range(9)]
    records = [
        AttemptRecord(
            Outcome(task=i, attempt=1, status=Status.SUCCEEDED, start=10 + i, end=12.0000001 + i),
            True, "here", "l",
        )
        for i in range(5)
    ]  # fmt: skip
    columns = table_columns(tasks, records, skipped={5}, reused={}, begin=10.0, most=8)
    texts, at = columns["status"]

    assert [texts[i] for i in at] == ["succeeded"] * 5 + ["skipped"] + ["not-run"] * 2
    assert columns["number"] == [list(range(8))]
    assert columns["start_s"] == [[0.0, 1.0, 2.0, 3.0, 4.0, None, None, None]]
    assert columns["runtime_s"] == [[2.0] * 5 + [None] * 3]
    assert columns["parameters.x"] == [list(range(8))]
    assert columns["parameters.text"] == [[("long" * 100)[:MOST_TEXT] + "…"], [0] * 8]
    assert "reason" not in columns
    assert "reused_from" not in columns
