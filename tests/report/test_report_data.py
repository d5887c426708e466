"""What the page is told about a run: complete, consistent, harmless."""

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.report.run_report import (
    MOST_FAILURES,
    ReportContent,
    RunClock,
    render,
    write_report,
)

MakeUp = Callable[..., ReportContent]

TASKS = tuple(
    bursar.Task(id=f"t{i}", name=f"kind-{i % 3}", runtime=10.0 + i % 7, processors=1 + i % 2)
    for i in range(60)
)
SITES = (
    bursar.SiteFacts(name="near", processors=6, unit_price=1.0, fixed_price=2.0),
    bursar.SiteFacts(name="far", processors=4, unit_price=3.0, fixed_price=0.0),
)


@pytest.fixture(scope="module")
def paused(made_up_run: MakeUp) -> ReportContent:
    """A run of sixty tasks, stopped for an hour; two of them fail."""
    return made_up_run(SITES, TASKS, fails=(3, 30), pause=(20.0, 3600.0))


@pytest.fixture(scope="module")
def shown(paused: ReportContent) -> dict[str, Any]:
    """What its page holds, as a browser reads it."""
    return read_back(render(paused))


def read_back(page: str) -> dict[str, Any]:
    """The data block of a page."""
    (block,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.DOTALL)
    data: dict[str, Any] = json.loads(block)
    return data


def test_time_between_two_lives_does_not_pass() -> None:
    """Stopped at 110 and resumed at 500, the clock goes on from 10."""
    clock = RunClock([(100.0, 110.0), (500.0, math.inf)])

    assert [clock.at(t) for t in (90, 100, 105, 110, 300, 500, 503)] == [0, 0, 5, 10, 10, 10, 13]
    assert clock.pauses == [(10.0, 390.0)]
    assert RunClock([]).pauses == []


def test_each_task_is_drawn_in_both_schedules(shown: dict[str, Any]) -> None:
    """Its bars are as wide as its processors and as long as its runtime."""
    for source in ("planned", "actual"):
        area = dict.fromkeys(range(60), 0.0)
        for bars in shown[source].values():
            for _, start, end, width, kind, _, task in bars:
                area[task] += width * (end - start)
                assert shown["kinds"][kind] == f"kind-{task % 3}"
        for number, task in enumerate(TASKS):
            assert area[number] == pytest.approx(task.runtime * task.processors, abs=0.01)


def test_no_two_bars_lie_on_each_other(shown: dict[str, Any]) -> None:
    """A processor does one thing at a time, as planned and as it was."""
    for source in ("planned", "actual"):
        for bars in shown[source].values():
            lanes: dict[int, list[tuple[float, float]]] = {}
            for first, start, end, width, *_ in bars:
                for lane in range(first, first + width):
                    lanes.setdefault(lane, []).append((start, end))
            for spans in lanes.values():
                spans.sort()
                for (_, end), (start, _) in itertools.pairwise(spans):
                    assert start >= end - 1e-3


def test_money_ends_where_the_bill_does(paused: ReportContent, shown: dict[str, Any]) -> None:
    """Spent, accrued and billed are one amount; nothing stays held."""
    _, spent, held = shown["money"][-1]
    accrued = sum(fixed + rate * (end - start) for start, end, rate, fixed, *_ in shown["leases"])

    assert spent == pytest.approx(paused.bill.total / 1e6) == pytest.approx(accrued)
    assert held == 0
    assert shown["bill"]["total"] == sum(row[6] for row in shown["bill"]["leases"])
    moments = [t for t, _, _ in shown["money"]]
    assert moments == sorted(moments)
    assert moments[-1] == shown["end"]


def test_an_hour_of_standstill_is_a_mark_and_not_an_hour(shown: dict[str, Any]) -> None:
    """The schedule is as long as the work took, with one pause told in seconds."""
    ((at, seconds),) = shown["pauses"]

    assert 3500 < seconds < 3600
    assert 20 < at < shown["end"] < 300
    assert max(bar[2] for bars in shown["actual"].values() for bar in bars) <= shown["end"]


def test_what_was_given_up_is_told(shown: dict[str, Any]) -> None:
    """Every failed task has a row with the last of its stderr, attempts before that a number."""
    rows = shown["failures"]["rows"]

    assert [(row[0], row[1]) for row in rows] == [("t3", 2), ("t30", 2)]
    assert shown["failures"]["count"] == shown["failures"]["tried_again"] == 2
    assert all(row[4].endswith("the end") and len(row[4]) == 2000 for row in rows)


def test_many_failures_keep_the_page_small(made_up_run: MakeUp) -> None:
    """So many rows and no more; the count says how many there were."""
    tasks = [bursar.Task(id=str(i), runtime=1.0) for i in range(MOST_FAILURES + 20)]
    page = made_up_run(SITES, tasks, fails=range(len(tasks))).to_page()

    assert page["failures"]["count"] == len(tasks)
    assert len(page["failures"]["rows"]) == MOST_FAILURES


def test_kinds_add_up_to_what_succeeded(shown: dict[str, Any]) -> None:
    """Each kind's count, total, median and longest; the longest tasks come first."""
    assert sum(row[1] for row in shown["by_kind"]) == 58
    for _, count, total, median, longest, *_ in shown["by_kind"]:
        assert median <= longest
        assert count * 10 <= total <= count * longest
    took = [row[2] for row in shown["slowest"]]
    assert took == sorted(took, reverse=True)


def test_a_task_named_by_its_number_belongs_to_a_kind(made_up_run: MakeUp) -> None:
    """Recorded workflows name each task by its id: twelve tasks are not twelve kinds."""
    names = [f"mProject_ID{i:07}" for i in range(6)] + [f"mAdd-{i}" for i in range(6)] + ["7"]
    tasks = [bursar.Task(id=name, name=name, runtime=1.0) for name in names]

    assert made_up_run(SITES, tasks).to_page()["kinds"] == ["mProject", "mAdd", "task"]


@pytest.mark.parametrize("name", ["</script><b>", "<!--", "{{data}} {{style}}", "\u2028'\"&\\"])
def test_a_name_is_nothing_but_a_name(made_up_run: MakeUp, name: str) -> None:
    """Whatever a task is called, it comes out as it was and ends no part of the page."""
    tasks = [bursar.Task(id=name, name="k", runtime=1.0)]
    data = made_up_run(SITES, tasks)
    page = render(data)

    assert read_back(page)["ids"] == [name]
    assert page.count("</script>") == 3
    assert page.count("<!--") == 0


def test_a_report_that_cannot_be_written_leaves_nothing(
    paused: ReportContent, tmp_path: Path
) -> None:
    """One line that names the file, and the folder as it was."""
    (tmp_path / "report.html").mkdir()

    with pytest.raises(bursar.BursarError, match=r"report\.html: cannot be written"):
        write_report(tmp_path / "report.html", paused)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
