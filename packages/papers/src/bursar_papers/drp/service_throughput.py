"""Figure 5 and table 2: a real service on this machine, its throughput and what security costs."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.messages import TaskSpec
from bursar_papers import drawing
from bursar_papers.drp.phases import ECHO, PhaseTimes, measure_phases
from bursar_papers.drp.serving import LEVELS, Level, MeasuredService, measured_service
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.summary import selected

if TYPE_CHECKING:
    import altair

WORKERS = 4
TASKS: dict[Effort, int] = {"quick": 10_000, "normal": 100_000, "full": 100_000}
PIECE = 1_000
"""Tasks of one submission."""
WARM = 500
"""Tasks before, so that all workers have registered and know how long such tasks take."""
SINGLE: dict[Effort, int] = {"quick": 50, "normal": 300, "full": 300}
"""Tasks that go through it one by one."""
STEPS = 60
"""Samples over a run, about; at most one a second."""
SHOWN: tuple[Level, ...] = ("none", "mutual")
"""Levels of figure 5; the paper has the first."""

STATED_TASKS, STATED_SECONDS, STATED_SINGLE = 100_000, 159.75, 0.2

SLEEPS: dict[Effort, float] = {"quick": 1.0, "normal": 6.0, "full": 60.0}
"""Seconds of each task of table 2."""
SLEEPERS, MINUTE = 30, 60.0

STATED_TOTALS: dict[Level, tuple[tuple[str, float], ...]] = {
    "none": (("no security", 1806.16),),
    "tls": (("GSI transport, authentication", 1819.43),),
    "mutual": (("GSI transport, with encryption", 1820.64),),
    "conversation": (
        ("GSI secure conversation, authentication", 1825.56),
        ("GSI secure conversation, with encryption", 1829.38),
    ),
    "message": (
        ("GSI secure message, authentication", 1837.58),
        ("GSI secure message, with encryption", 1840.58),
    ),
}
"""Seconds for 30 tasks of 60 s, by the level of ours that comes closest."""

NAMES: dict[Level, str] = {
    "none": "no security",
    "tls": "TLS and a token",
    "mutual": "mutual TLS",
    "conversation": "mutual TLS, sealed by conversation",
    "message": "mutual TLS, sealed and signed one by one",
}


# Figure 5.


def _throughput_cells(effort: Effort) -> list[Cell]:
    return [{"tasks": TASKS[effort], "workers": WORKERS, "single": SINGLE[effort], "seed": 0}]


def _measure_throughput(cell: Cell, data: Path) -> list[Row]:
    rows: list[Row] = []
    for level in SHOWN:  # one after the other: each wants all of the machine
        with measured_service(level, cell["workers"]) as service:
            # Not measured: workers start and code is loaded with the first tasks.
            asyncio.run(measure_phases(service, ECHO, WARM))
            phases = asyncio.run(measure_phases(service, ECHO, cell["tasks"], piece=PIECE))
            single = asyncio.run(_one_by_one(service, cell["single"]))
        rows += _rates(level, phases)
        rows.append(
            {
                "level": level,
                "tasks": cell["tasks"],
                "seconds": phases.seconds,
                "submitted": phases.submitted[-1][0] - phases.began,
                "first": phases.delivered[0][0] - phases.began,
                "single": statistics.median(single),
                "single_most": max(single),
            }
        )
    return rows


def _rates(level: Level, phases: PhaseTimes) -> list[Row]:
    step = min(1.0, phases.seconds / STEPS)
    return [
        {"level": level, "time": at, "phase": phase, "rate": rate}
        for at, rates in phases.over_time(step)
        for phase, rate in rates.items()
    ]


async def _one_by_one(service: MeasuredService, count: int) -> list[float]:
    """Return the seconds from submission to result of single tasks on idle workers."""
    seconds = []
    async with AsyncServiceClient(service.access) as client, client.session() as session:
        for number in range(count):
            began = time.perf_counter()
            await session.submit([ECHO])
            await client.page(session.handle, number, wait=20.0)
            seconds.append(time.perf_counter() - began)
    return seconds


def _find_throughput(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for row in rows:
        if "seconds" not in row:
            continue
        paper = row["level"] == "none"
        name, tasks, seconds = NAMES[row["level"]], row["tasks"], row["seconds"]
        same = paper and tasks == STATED_TASKS
        per_task = STATED_SECONDS / STATED_TASKS
        found += [
            _told(f"{name}: {tasks:,} tasks, s", f"{STATED_SECONDS}" if same else "",
                  f"{seconds:.2f}"),
            _told(f"{name}: tasks/s", f"{1 / per_task:.0f}" if paper else "",
                  f"{tasks / seconds:,.0f}"),
            _told(f"{name}: a task, ms", f"{1e3 * per_task:.1f}" if paper else "",
                  f"{1e3 * seconds / tasks:.2f}"),
            _told(f"{name}: a single task, ms",
                  f"{1e3 * STATED_SINGLE:.0f}" if paper else "750 to 1900",
                  f"{1e3 * row['single']:.1f} (at most {1e3 * row['single_most']:.1f})"),
            _told(f"{name}: all submitted, and the first result, s", "",
                  f"{row['submitted']:.2f}, {row['first']:.2f}"),
        ]  # fmt: skip
    return found


def _told(what: str, paper: str, ours: str, remark: str = "") -> PaperFinding:
    """Return a finding without a comparison, as the paper measured on other machines."""
    return PaperFinding(what=what, paper=paper, ours=ours, remark=remark)


def _draw_throughput(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    titles = ("time (s)", "tasks/s")
    return {
        level: drawing.curves(
            [row for row in selected(rows, level=level) if "phase" in row],
            x="time", y="rate", by="phase", titles=titles, log=True,
        )
        for level in SHOWN
    }  # fmt: skip


# Table 2.


def _security_cells(effort: Effort) -> list[Cell]:
    return [{"tasks": SLEEPERS, "each": SLEEPS[effort], "seed": 0}]


def _measure_security(cell: Cell, data: Path) -> list[Row]:
    with ExitStack() as stack:
        services = [stack.enter_context(measured_service(level, 1)) for level in LEVELS]
        totals = asyncio.run(_sleep_on_all(services, cell["tasks"], cell["each"]))
    ideal = cell["tasks"] * cell["each"]
    return [
        {
            "level": level,
            "tasks": cell["tasks"],
            "each": cell["each"],
            "total": total,
            "overhead": total - ideal,
            "of_minute": (total - ideal) / (cell["tasks"] * MINUTE),
        }
        for level, total in zip(LEVELS, totals, strict=True)
    ]


async def _sleep_on_all(
    services: Sequence[MeasuredService], tasks: int, each: float
) -> list[float]:
    """Return the seconds of each service; all run at once, as sleeping tasks need no processor."""
    for service in services:
        await measure_phases(service, TaskSpec(command=("/bin/true",)), 1)
    sleep = TaskSpec(command=("/bin/sleep", f"{each:g}"))
    done = await asyncio.gather(*(measure_phases(service, sleep, tasks) for service in services))
    return [phases.seconds for phases in done]


def _find_security(rows: Sequence[Row]) -> list[PaperFinding]:
    found = []
    for row in rows:
        overhead = f"{1e3 * row['overhead'] / row['tasks']:.1f} ms a task"
        scaled = "" if row["each"] == MINUTE else f"; its tasks sleep {row['each']:g} s"
        stated = STATED_TOTALS[row["level"]]
        ideal = SLEEPERS * MINUTE
        found.append(
            PaperFinding(
                what=f"{NAMES[row['level']]}: overhead of {MINUTE:g} s a task",
                paper=", ".join(f"{total / ideal - 1:.2%}" for _, total in stated),
                ours=f"{row['of_minute']:.4%} ({overhead})",
                remark=f"beside: {', '.join(name for name, _ in stated)}{scaled}",
            )
        )
    return found


def _draw_security(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    ideal = SLEEPERS * MINUTE
    shares = [
        {"level": NAMES[row["level"]], "who": "ours", "share": 100 * row["of_minute"]}
        for row in rows
    ]
    shares += [
        {"level": NAMES[level], "who": "paper", "share": 100 * (stated[-1][1] / ideal - 1)}
        for level, stated in STATED_TOTALS.items()
    ]
    titles = ("level", "overhead of 30 tasks of 60 s (%)")
    return {"levels": drawing.bars(shares, x="level", y="share", by="who", titles=titles)}


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper="drp",
        figure="5",
        title="submission, processing and delivery of 100,000 tasks over time",
        about=f"/bin/echo through a service with {WORKERS} workers and a client, each a process "
        f"of this machine, {PIECE:,} tasks a submission; results are on disk before they are told. "
        "The paper had 48 workers on machines of their own, and no security.",
        cells=_throughput_cells,
        measure=_measure_throughput,
        findings=_find_throughput,
        charts=_draw_throughput,
        live=True,
    ),
    Experiment(
        paper="drp",
        figure="table-2",
        title="what each level of security costs",
        about=f"{SLEEPERS} tasks that sleep on one worker, from the first submission to the last "
        "result at the client; one service for each level, all at once. With --full they sleep "
        "60 s as in the paper; otherwise less, and what a task took beyond that is told as a "
        "share of 60 s.",
        cells=_security_cells,
        measure=_measure_security,
        findings=_find_security,
        charts=_draw_security,
        live=True,
    ),
)
"""Real services; they are run when they are asked for by name, or with the others that are live."""
