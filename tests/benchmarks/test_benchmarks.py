"""Every benchmark runs, if only at its smallest size; its JSON and the README's tables agree."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.job_records import gridengine_jobs, slurm_jobs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
LIBRARIES = {
    "binomial_bounds",
    "figures",
    "job_records",
    "page_in_browser",
    "run_lives",
    "score_prior",
    "tables",
}
"""Modules that are no benchmarks themselves."""

PROGRAMS = sorted({path.stem for path in FOLDER.glob("*.py")} - LIBRARIES)

SHORTEST = ("classad", "flows", "ledger")
"""Those that take about a second; the others run in `make test-ci`."""


def run(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FOLDER / f"{program}.py"), *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def check(found: dict[str, Any], program: str, size: str) -> None:
    """Hold the JSON of a benchmark to its form."""
    assert (found["program"], found["size"]) == (program, size)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert re.fullmatch(r"[0-9a-f]{10,}\*?|unknown", found["commit"])
    assert found["machine"]["processors"] >= 1
    assert found["tables"] or found["skipped"]
    for table in found["tables"]:
        assert table["rows"], table["title"]
        for row in table["rows"]:
            assert len(row) == len(table["columns"]), table["title"]
            assert any(isinstance(cell, int | float) for cell in row), (table["title"], row)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "program",
    [pytest.param(name, marks=[] if name in SHORTEST else pytest.mark.ci) for name in PROGRAMS],
)
def test_a_benchmark_runs_at_its_smallest_size(program: str, tmp_path: Path) -> None:
    """Peers and data that are not there are left out, and named; all else is measured."""
    file = tmp_path / "found.json"
    done = run(program, "--smallest", "--json", str(file))

    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    check(found, program, "smallest")
    for what in found["skipped"]:
        assert f"*** LEFT OUT: {what} ***" in done.stdout


def test_make_bench_runs_every_benchmark() -> None:
    """None is forgotten in the Makefile, in its table in the README, or among the regions."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    (listed,) = re.findall(r"^BENCHMARKS \?= (.*)$", makefile, re.MULTILINE)
    assert sorted(listed.split()) == PROGRAMS
    text = (FOLDER / "README.md").read_text()
    assert sorted(re.findall(r"<!-- results: (\w+) -->", text)) == PROGRAMS
    assert sorted(re.findall(r"^python benchmarks/(\w+)\.py", text, re.MULTILINE)) == PROGRAMS


def test_the_tables_are_those_of_the_results() -> None:
    """As ``python benchmarks/tables.py`` writes them; nobody has changed a figure by hand."""
    done = run("tables", "--check")
    assert done.returncode == 0, "run: python benchmarks/tables.py"


def test_results_that_are_kept_are_whole() -> None:
    """Of known programs, and never of the smallest size."""
    kept = sorted((FOLDER / "results").glob("*.json"))
    assert kept
    for path in kept:
        found = json.loads(path.read_text())
        assert found["size"] in ("full", "quick")
        assert path.stem in PROGRAMS
        check(found, path.stem, found["size"])


def test_tables_that_were_not_measured_again_are_kept_with_their_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A long benchmark may be measured in parts; titles may differ in their figures."""
    from figures import Benchmark
    from tables import region

    file = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["b", "--json", str(file)])
    first = Benchmark("b.py", "B.")
    first.table("One, 3 rounds", "what", "figure").add("a", 1.0)
    first.table("Two", "what", "figure").add("a", 2.0)
    first.write()
    earlier = json.loads(file.read_text()) | {"commit": "0123456789"}
    again = Benchmark("b.py", "B.")
    again.table("One, 5 rounds", "what", "figure").add("a", 1.5)
    again.keep_others(earlier)
    again.write()

    found = json.loads(file.read_text())
    assert [one["title"] for one in found["tables"]] == ["One, 5 rounds", "Two"]
    assert [one["rows"][0][1] for one in found["tables"]] == [1.5, 2.0]
    assert found["kept"] == {"Two": "0123456789"}
    said = region("b", found)
    assert "**Two**\n\n*Measured earlier, at commit `0123456789`.*\n" in said
    assert said.count("Measured earlier") == 1


def figures_quoted(text: str) -> list[tuple[str, str, str]]:
    """Return program, row and figure of each ``figure<!-- benchmark program: row -->``."""
    return [
        (program, row, figure)
        for figure, program, row in re.findall(r"(\S+)<!-- benchmark ([a-z_]+): ([^>]+?) -->", text)
    ]


def test_a_quoted_figure_is_found_and_compared() -> None:
    """Known answer; a figure that is not the table's differs from it."""
    text = "is 0.1<!-- benchmark dispatch: echo, dispatched / bare --> of, 7 <!-- findings: x -->"

    ((program, row, figure),) = figures_quoted(text)

    assert (program, row, figure) == ("dispatch", "echo, dispatched / bare", "0.1")
    assert figure_of(program, row) != figure


def figure_of(program: str, row: str) -> str:
    """Return a figure as the README's table has it."""
    from tables import written

    found = json.loads((FOLDER / "results" / f"{program}.json").read_text())
    (cells,) = [cells for table in found["tables"] for cells in table["rows"] if cells[0] == row]
    return written(cells[1])


def test_figures_that_other_documents_quote_are_those_of_the_tables() -> None:
    """Each bears a comment that names its program and row."""
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for program, row, figure in figures_quoted(path.read_text()):
            assert figure == figure_of(program, row), (path.name, program, row)


def test_a_table_is_written_as_it_was_measured(tmp_path: Path) -> None:
    """Known answer: numbers to three digits, aims as words, what was left out, and the machine."""
    from tables import filled

    found = {
        "program": "flows",
        "size": "quick",
        "date": "2026-11-23",
        "commit": "0123456789",
        "machine": {
            "processors": 2, "model": "M", "system": "Linux 6", "python": "3.11.7",
            "load_before": 0.5,
        },
        "skipped": ["a peer"],
        "tables": [
            {"title": "T", "columns": ["what", "s", "met"],
             "rows": [["one", 12345.6, True], ["two", 0.01234, False], ["three", 7, None]]},
        ],
    }  # fmt: skip
    (tmp_path / "flows.json").write_text(json.dumps(found))
    text = "a\n<!-- results: flows -->\nold\n<!-- end of results -->\nb\n"

    assert filled(text, tmp_path) == (
        "a\n<!-- results: flows -->\n"
        "*Measured on 2026-11-23 at commit `0123456789`, with `--quick`: 2 processors (M), Linux 6,"
        " Python 3.11.7; load before: 0.5.*\n\n"
        "**T**\n\n| what | s | met |\n| --- | --- | --- |\n"
        "| one | 12,346 | met |\n| two | 0.0123 | MISSED |\n| three | 7 |  |\n\n"
        "*Left out: a peer.*\n\n<!-- end of results -->\nb\n"
    )


def test_records_of_schedulers_are_read(tmp_path: Path) -> None:
    """
    Lines that Slurm 22.05 and Grid Engine 8.1.9 wrote: jobs that held nothing count nothing, and
    of two records of one begin, as a killed controller writes them, the last counts.
    """
    slurm = tmp_path / "completions"
    line = (
        "JobId={} UserId=root(0) Name={} JobState={} StartTime={} EndTime={} NodeCnt={} ProcCnt=4"
    )
    slurm.write_text(
        "\n".join(
            (
                line.format(1, "bursar-1-a", "COMPLETED", "2026-11-23T06:00:00",
                            "2026-11-23T06:00:06", 1),
                line.format(1, "bursar-1-a", "COMPLETED", "2026-11-23T06:00:00",
                            "2026-11-23T06:00:07", 1),
                line.format(1, "bursar-1-a", "CANCELLED", "2026-11-23T06:00:09",
                            "2026-11-23T06:00:10", 1),
                line.format(2, "bursar-1-b", "CANCELLED", "Unknown", "2026-11-23T06:00:07", 0),
                line.format(3, "other", "COMPLETED", "2026-11-23T06:00:00",
                            "2026-11-23T06:00:07", 1),
            )
        )
    )  # fmt: skip
    engine = tmp_path / "accounting"
    engine.write_text(
        "# Version: 8.1.9\n"
        "all.q:localhost:root:root:bursar-1-a:2:sge:0:1795417014:1795417014:1795417019:0:0:1:0.13:"
        "0.02:21772.0:0:0:0:0:10024:0:0:0.0:112:0:0:0:175:81:NONE:defaultdepartment:smp:6:0:0.15\n"
    )

    assert slurm_jobs(slurm, "bursar-1-") == [(4, 7.0), (4, 1.0)]
    assert slurm_jobs(tmp_path / "absent", "bursar-1-") == []
    assert gridengine_jobs(engine, "bursar-1-") == [(6, 5.0)]
    assert gridengine_jobs(engine, "bursar-2-") == []
