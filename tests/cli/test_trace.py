"""`bursar trace` as its user runs it."""

import csv
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

JOB = "{} {} 0 {} {} -1 -1 {} {} -1 1 1 -1 -1 -1 -1 -1 -1"
LOG = "\n".join(
    [
        "; MaxProcs: 4",
        JOB.format(1, 0, 10, 4, 4, 20),
        JOB.format(2, 1, 5, 3, 3, 5),
        JOB.format(3, 2, 5, 1, 1, 5),
        JOB.format(4, 3, 0, 1, 1, 5),
    ]
)


def test_a_log_is_simulated_and_written(folder: Any) -> None:
    """Figures, Batsim's table, a log with the waits filled in, a picture."""
    folder.write("log.swf", LOG)

    found = folder.json(
        "trace", "simulate", "log.swf", "--policy", "easy", "--csv", "jobs.csv",
        "--swf", "out.swf", "--gantt", "plan.png",
    )  # fmt: skip

    assert (found["jobs"], found["processors"], found["policy"]) == (3, 4, "easy")
    assert found["average_wait_s"] == pytest.approx((0 + 9 + 8) / 3)
    assert found["cleaning"] == [
        {"reason": "run time unknown or not positive", "jobs": 1, "dropped": True, "line": 5}
    ]
    with (folder.path / "jobs.csv").open(newline="") as file:
        assert [row["starting_time"] for row in csv.DictReader(file)] == ["0", "10", "10"]
    lines = (folder.path / "out.swf").read_text().splitlines()
    assert [line.split()[2] for line in lines if not line.startswith(";")] == ["0", "9", "8"]
    assert (folder.path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_a_killed_job_is_written_as_failed(folder: Any) -> None:
    """With the time that it was given, and no more."""
    late = [JOB.format(1, 0, 10, 4, 4, 6), JOB.format(2, 1, 5, 3, 3, 5)]
    folder.write("late.swf", "\n".join(late))

    folder.bursar("trace", "simulate", "late.swf", "-p", "4", "--swf", "out.swf")

    rows = [line.split() for line in (folder.path / "out.swf").read_text().splitlines()]
    assert [(row[3], row[10]) for row in rows if row[0] != ";"] == [("6", "0"), ("5", "1")]


@pytest.mark.ci
def test_policies_are_compared(folder: Any) -> None:
    """Side by side, with the machine's size in the table."""
    (folder.path / "log.swf.xz").write_bytes(lzma.compress(LOG.encode()))

    text = folder.bursar("trace", "compare", "log.swf.xz", "--chart", "c.html").stdout
    rows = folder.json("trace", "compare", "log.swf.xz", "--policies", "fcfs,easy")["results"]

    assert "3 jobs on 4 processors" in text
    assert all(policy in text for policy in ("fcfs", "easy", "conservative"))
    assert "1 jobs dropped: run time unknown" in text
    assert [row["policy"] for row in rows] == ["fcfs", "easy"]
    assert (folder.path / "c.html").stat().st_size > 1000


def test_a_log_is_looked_into(folder: Any) -> None:
    """Jobs, load, widths, and what was dropped; unknown where the machine is unknown."""
    folder.write("log.swf", LOG)
    folder.write("small.swf", LOG.partition("\n")[2])

    found = folder.json("trace", "info", "log.swf")
    bare = folder.json("trace", "info", "small.swf")

    assert found["load_by_week"] == [pytest.approx((40 + 15 + 5) / (4 * 7 * 86400))]
    assert (found["widest"], found["users"]) == (4, 1)
    assert bare["processors"] is None
    assert bare["load"] is None
    assert "unknown" in folder.bursar("trace", "info", "small.swf").stdout


def test_workloads_are_made_up_and_made_heavier(folder: Any) -> None:
    """Equal seeds, equal logs; the load is what was asked for."""
    for name in ("one.swf", "two.swf"):
        folder.bursar("trace", "generate", "lublin", name, "--jobs", "500", "--seed", "3")
    folder.bursar("trace", "generate", "poisson", "p.swf", "-p", "40", "--until", "14d")
    own = folder.json("trace", "info", "p.swf")["load"]
    wanted = own * 1.1
    folder.bursar("trace", "load", "p.swf", "heavy.swf", "--utilisation", f"{wanted:.6f}")

    assert (folder.path / "one.swf").read_text() == (folder.path / "two.swf").read_text()
    assert folder.json("trace", "info", "one.swf")["jobs"] == 500
    light, heavy = (
        sum(folder.json("trace", "info", f"{name}.swf")["load_by_week"][:2])
        for name in ("p", "heavy")
    )
    assert heavy / light == pytest.approx(1.1, rel=0.02)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("simulate nowhere.swf", "nowhere.swf"),
        ("simulate bad.swf", "bad.swf:1"),
        ("simulate empty.swf", "no job"),
        ("simulate cut.swf.xz", "damaged"),
        ("simulate plain.swf", "--processors"),
        ("simulate log.swf --processors 0", "--processors"),
        ("simulate log.swf --processors 2.5", "--processors"),
        ("simulate log.swf --policy esay", "esay"),
        ("simulate log.swf --estimates none", "none"),
        ("simulate log.swf --semantics none", "none"),
        ("simulate log.swf --early none", "none"),
        ("simulate log.swf --overrun none", "none"),
        ("simulate log.swf --width none", "none"),
        ("simulate log.swf --tau 0", "--tau"),
        ("simulate log.swf --gantt g.pdf", ".pdf"),
        ("simulate log.swf --gantt g.png --from 9 --until 3", "--until"),
        ("compare log.swf --policies easy,esay", "esay"),
        ("compare log.swf --policies ,", "--policies"),
        ("compare log.swf --chart c.gif", ".gif"),
        ("info bad.swf", "bad.swf:1"),
        ("generate lubin new.swf", "lublin"),
        ("generate lublin new.swf --processors 1", "processors"),
        ("generate lublin new.swf --jobs 0", "jobs"),
        ("generate poisson new.swf --until soon", "--until"),
        ("generate poisson new.swf --seed -1", "--seed"),
        ("load log.swf new.swf --utilisation lots", "--utilisation"),
        ("load log.swf new.swf --utilisation 1%", "got 1.0%"),
        ("load plain.swf new.swf --utilisation 80%", "--processors"),
        ("frobnicate log.swf", "frobnicate"),
    ],
)
def test_what_is_wrong_gets_one_line(folder: Any, words: str, expected: str) -> None:
    """Status 2, the place named, nothing left behind."""
    folder.write("log.swf", LOG)
    folder.write("plain.swf", LOG.partition("\n")[2])
    folder.write("bad.swf", "1 2 three\n")
    folder.write("empty.swf", "; nothing\n")
    (folder.path / "cut.swf.xz").write_bytes(lzma.compress(LOG.encode())[:40])
    before = {path.name for path in folder.path.iterdir()}

    refused = folder.bursar("trace", *words.split(), status=2)

    assert expected in refused.stderr
    assert len([line for line in refused.stderr.splitlines() if "hint:" not in line]) == 1
    assert refused.stdout == ""
    assert {path.name for path in folder.path.iterdir()} == before


def test_every_key_is_documented(folder: Any) -> None:
    """A reader of the page knows all there is."""
    folder.write("log.swf", LOG)
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "trace.md").read_text()
    for words in ("simulate log.swf", "info log.swf"):
        for key in folder.json("trace", *words.split()):
            assert f"`{key}`" in page, key
    assert json.dumps(folder.json("trace", "compare", "log.swf"))
