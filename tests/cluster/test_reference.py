"""Schedules that others have published or computed, reproduced to the second."""

import math
from pathlib import Path

import numpy as np
import pytest

from bursar.cluster.machine import Machine
from bursar.cluster.simulation import SimulatedSchedule, simulate
from bursar.formats.trace_files import read_swf
from bursar.model.trace import Trace

COVERS = {
    "basic": ("fcfs", "easy", "conservative"),
    "extreme": ("fcfs", "easy", "conservative"),
    "fcfs": ("fcfs",),
    "bf": ("easy", "conservative"),
    "cons": ("conservative",),
    "easy": ("easy",),
}
"""Policies that a family of hand-made cases was computed for."""


def hand_made(path: Path) -> tuple[list[tuple[float, int, float, float]], list[int]]:
    """Submit, processors, estimate and run time of each job, and when it should end."""
    jobs, ends = [], []
    for line in path.read_text().splitlines():
        fields = line.split("#")[0].split()
        if fields:
            submit, name, estimate, processors, runtime = fields[:5]
            jobs.append((float(submit), int(processors), float(estimate), float(runtime)))
            ends.append(int(name.split(".")[0]))
    return jobs, ends


def cases(data: Path) -> list[Path]:
    """Every hand-made case."""
    return sorted((data / "reference" / "pyss-unit").iterdir())


def test_every_hand_made_case_ends_as_expected(data: Path) -> None:
    """Under each policy that its name covers, on 100 processors."""
    checked = 0
    for path in cases(data):
        jobs, ends = hand_made(path)
        for policy in COVERS[path.name.split("_")[0]]:
            machine = Machine(100, policy)  # type: ignore[arg-type]
            for submit, processors, estimate, runtime in sorted(jobs, key=lambda job: job[0]):
                machine.submit(processors, estimate, runtime=runtime, at=submit)
            machine.run()
            order = sorted(range(len(jobs)), key=lambda i: jobs[i][0])
            finish = machine.jobs.outcome()[1].tolist()
            assert [ends[i] for i in order] == finish, (path.name, policy)
            checked += 1
    assert checked > 60


def bounded_slowdown(trace: Trace, result: SimulatedSchedule, tau: float = 10.0) -> float:
    """Mean over the jobs of max(1, response / max(run, tau))."""
    run = result.finish - result.start
    response = result.finish - trace.submit
    return float(np.maximum(1.0, response / np.maximum(run, tau)).mean())


@pytest.mark.parametrize(
    ("log", "peer", "processors", "slowdown", "wait"),
    [
        ("KTH-SP2-predictsim-filtered.swf.xz", "KTH-SP2", 100, 92.5765, 6836.9),
        ("CTC-SP2-1996-predictsim.swf.xz", "CTC-SP2", 338, 49.5713, 14272.6),
    ],
)
def test_easy_starts_every_job_when_the_peer_does(
    log: str, peer: str, processors: int, slowdown: float, wait: float, data: Path
) -> None:
    """
    All 28,481 and all 77,199, in the peer's order of events of one second.
    """
    trace = read_swf(data / "swf" / log)
    theirs = read_swf(
        data / "reference" / "predictsim" / f"{peer}__easy_backfill_scheduler_None_None.swf.gz"
    )
    start = dict(zip(theirs.number.tolist(), (theirs.submit + theirs.wait).tolist(), strict=True))

    result = simulate(trace, processors=processors, policy="easy", semantics="pyss")

    assert [start[number] for number in trace.number.tolist()] == result.start.tolist()
    assert bounded_slowdown(trace, result) == pytest.approx(slowdown, abs=5e-5)
    assert (result.start - trace.submit).mean() == pytest.approx(wait, abs=0.05)


def test_fcfs_on_the_ctc_log(data: Path) -> None:
    """On 512 processors: average wait and makespan as independently computed."""
    trace = read_swf(data / "swf" / "CTC-SP2-1996-predictsim.swf.xz")

    result = simulate(trace, processors=512, policy="fcfs")

    assert (result.start - trace.submit).mean() == pytest.approx(6101.6, abs=0.05)
    assert result.finish.max() - trace.submit[0] == 29_306_682
    assert math.isnan(result.promised[0])
