"""Figure 5 and table 2: how a run through a service is counted, and a small one for real."""

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import pytest

from bursar.model.errors import BursarError, InputError
from bursar.remote.messages import TaskSpec
from bursar_papers.catalogue import find
from bursar_papers.drp.phases import ECHO, PhaseTimes, measure_phases
from bursar_papers.drp.service_throughput import EXPERIMENTS
from bursar_papers.drp.serving import measured_service

THROUGHPUT, SECURITY = EXPERIMENTS


def test_every_task_is_counted_once_in_each_phase() -> None:
    """Also those at a step's edge, and one that a slow clock has end before the begin."""
    phases = PhaseTimes(
        began=100.0,
        submitted=[(100.5, 2), (101.0, 2)],
        ended=[99.9, 101.0, 101.9, 103.0],
        delivered=[(101.2, 1), (103.0, 3)],
    )
    samples = list(phases.over_time(1.0))
    assert [at for at, _ in samples] == [0.5, 1.5, 2.5, 3.5]
    assert [rates["submission"] for _, rates in samples] == [2, 2, 0, 0]
    assert [rates["processing"] for _, rates in samples] == [1, 2, 0, 1]
    assert [rates["delivery"] for _, rates in samples] == [0, 1, 0, 3]
    assert phases.seconds == 3.0


def test_rates_are_of_a_second_whatever_the_step_is() -> None:
    """Ten tasks in a quarter of a second are forty a second."""
    phases = PhaseTimes(0.0, [(0.1, 10)], [0.2] * 10, [(0.2, 10)])
    ((at, rates),) = phases.over_time(0.25)
    assert at == 0.125
    assert rates == {"submission": 40.0, "processing": 40.0, "delivery": 40.0}


def test_what_is_only_there_live_is_found_by_its_name() -> None:
    """Without a name it is left out, unless live ones are asked for; others go by their kind."""
    for live in (False, True):
        assert [e.figure for e in find("drp", "5", live=live)] == ["5"]
        assert [e.figure for e in find("drp", "table-2", live=live)] == ["table-2"]
    assert [e.figure for e in find("drp", "2")] == ["2"]
    assert [e.figure for e in find("drp", "2", live=True)] == ["2-live"]
    assert not {"5", "table-2"} & {e.figure for e in find("drp", None)}
    assert {"5", "table-2", "2-live"} <= {e.figure for e in find("drp", None, live=True)}
    with pytest.raises(InputError, match="expected one of"):
        find("drp", "overheads", live=True)


def rows_of_security(each: float) -> list[dict[str, Any]]:
    (cell,) = SECURITY.cells("full")
    total = cell["tasks"] * each + 0.9
    share = 0.9 / (cell["tasks"] * 60.0)
    return [
        {"level": level, "tasks": cell["tasks"], "each": each, "total": total,
         "overhead": 0.9, "of_minute": share}
        for level in ("none", "message")
    ]  # fmt: skip


def test_overhead_is_told_beside_the_papers_rows() -> None:
    """0.9 s over 30 tasks are 30 ms a task, and 0.05 % of a minute, however long they slept."""
    clear, sealed = SECURITY.findings(rows_of_security(60.0))
    assert (clear.paper, clear.ours) == ("0.34%", "0.0500% (30.0 ms a task)")
    assert sealed.paper == "2.09%, 2.25%"
    assert "sleep" not in clear.remark
    (scaled, _) = SECURITY.findings(rows_of_security(1.0))
    assert scaled.ours == clear.ours
    assert "sleep 1 s" in scaled.remark


def rows_of_throughput(tasks: int) -> list[dict[str, Any]]:
    return [
        {"level": level, "tasks": tasks, "seconds": tasks / 1000, "submitted": 1.0, "first": 0.1,
         "single": 0.004, "single_most": 0.009}
        for level in ("none", "mutual")
    ]  # fmt: skip


@pytest.mark.parametrize(("tasks", "stated"), [(100_000, "159.75"), (10_000, "")])
def test_only_as_many_tasks_are_held_against_the_papers_time(tasks: int, stated: str) -> None:
    """Rates are comparable in any case."""
    found = THROUGHPUT.findings(rows_of_throughput(tasks))
    assert found[0].paper == stated
    assert (found[1].paper, found[1].ours) == ("626", "1,000")
    assert (found[3].paper, found[3].ours) == ("200", "4.0 (at most 9.0)")


def test_tasks_go_through_a_real_service_sealed_and_signed() -> None:
    """All of them, each phase seen; nothing of the service is left. What fails is no figure."""
    with measured_service("message", 1) as service:
        phases = asyncio.run(measure_phases(service, ECHO, 30, piece=10))
        with pytest.raises(BursarError, match="failed"):
            asyncio.run(measure_phases(service, TaskSpec(command=("/bin/false",)), 2))
        folder, run = service.folder, service.run
    assert [count for _, count in phases.submitted] == [10, 10, 10]
    assert sum(count for _, count in phases.delivered) == len(phases.ended) == 30
    assert not folder.exists()
    assert not processes_of(run)


def processes_of(run: str) -> Sequence[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if run.encode() in file.read():
                    found.append(pid)
        except OSError:
            continue
    return found
