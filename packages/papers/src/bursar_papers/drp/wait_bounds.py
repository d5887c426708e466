"""
How often bounds on waits hold, in the queues of real logs.

The paper shows that waits decide which requests are best, and takes them as they come. Our pool
learns them, and says of each request how long it waits at most in nine of ten cases. Here these
bounds meet the waits of a log's own jobs, each told when it is submitted and when it begins.
"""

import heapq
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.job_table import Policy
from bursar.cluster.simulation import simulate
from bursar.provisioning.wait_prediction import QUANTILE, WaitPredictor
from bursar_papers import drawing
from bursar_papers.drp.log_traces import CALIBRATED, ON, QUEUES
from bursar_papers.equivalence import compare_with_bounds
from bursar_papers.experiment import Cell, Effort, Experiment, PaperFinding, Row
from bursar_papers.loads import LOGS, read_ctc_log
from bursar_papers.summary import Summary, selected

if TYPE_CHECKING:
    import altair

FloatArray = NDArray[np.float64]

JOBS = 2000
"""Consecutive jobs of a log from which one history is made."""
SEED = 90
"""Of where in the logs the histories begin."""
SIZES = ((1, 4), (4, 16), (16, 64), (64, 1024))
"""Processors from, and below which, requests are of one size."""
FEW = 30
"""Bounds of a size, below which a history says nothing of it."""

HISTORIES: dict[Effort, int] = {"quick": 5, "normal": 50, "full": 50}


@lru_cache(maxsize=6)
def starts(data: Path, name: str, queue: Policy) -> FloatArray:
    """Return when each job of a log begins under a policy, seconds on the log's clock."""
    trace = read_ctc_log(data, name)
    return simulate(trace, processors=LOGS[name][1], policy=queue, early="compress").start


def follow_waits(
    submit: FloatArray, begin: FloatArray, processors: Sequence[int], seconds: FloatArray
) -> Iterator[tuple[int, float, float]]:
    """
    Follow the waits of one history.

    Parameters
    ----------
    submit, begin
        Seconds of each job, shape ``(n,)``; the submissions ascend.
    processors, seconds
        That each job asks for, shape ``(n,)``.

    Yields
    ------
    tuple
        Processors, bound and wait of each job for which there was a bound; seconds.
    """
    waits = WaitPredictor()
    waiting: list[tuple[float, int]] = []
    for job in range(len(submit)):
        now = float(submit[job])
        while waiting and waiting[0][0] <= now:
            at, other = heapq.heappop(waiting)
            waits.began(str(other), at)
        bound = waits.bound("", processors[job], float(seconds[job]))
        waits.asked(str(job), "", processors[job], float(seconds[job]), now)
        heapq.heappush(waiting, (float(begin[job]), job))
        if bound is not None:
            yield processors[job], bound, float(begin[job]) - now


def _cells(effort: Effort) -> list[Cell]:
    return [
        {"log": name, "queue": queue, "seed": seed}
        for name in ON
        for queue in QUEUES
        for seed in range(HISTORIES[effort])
    ]


def _measure(cell: Cell, data: Path) -> list[Row]:
    trace = read_ctc_log(data, cell["log"])
    begin = starts(data, cell["log"], cell["queue"])
    first = int(np.random.default_rng([cell["seed"], SEED]).integers(len(trace) - JOBS))
    part = slice(first, first + JOBS)
    seen = list(
        follow_waits(
            trace.submit[part], begin[part], trace.processors[part].tolist(), trace.estimate[part]
        )
    )
    rows = []
    for low, high in ((1, 1024), *SIZES):
        of = [(bound, wait) for width, bound, wait in seen if low <= width < high]
        if len(of) < FEW:
            continue
        rows.append(
            dict(cell)
            | {
                "size": f"{low} to {high - 1}" if high - low < 1023 else "all",
                "bounds": len(of),
                "held": 100 * sum(wait <= bound for bound, wait in of) / len(of),
                "at_once": 100 * sum(wait <= 0 for _, wait in of) / len(of),
                "bound": float(np.median([bound for bound, _ in of])),
                "ninth": float(np.quantile([wait for _, wait in of], QUANTILE)),
            }
        )
    return rows


def _find(rows: Sequence[Row]) -> list[PaperFinding]:
    groups = {
        f"{name}, {queue}": selected(rows, log=name, queue=queue, size="all")
        for name, queue in dict.fromkeys((row["log"], row["queue"]) for row in rows)
    } | {
        f"requests for {size} processors": selected(rows, size=size)
        for size in dict.fromkeys(row["size"] for row in rows)
        if size != "all"
    }
    return [_held(what, of) for what, of in groups.items()]


def _held(what: str, rows: Sequence[Row]) -> PaperFinding:
    held = Summary.of([row["held"] for row in rows])
    median, ninth, at_once = (
        float(np.median([row[name] for row in rows])) for name in ("bound", "ninth", "at_once")
    )
    return PaperFinding(
        what=f"{what}: 90 % bounds that held (%)",
        paper="90",
        own=True,
        ours=f"{held}, of {sum(row['bounds'] for row in rows):,}",
        comparisons=(compare_with_bounds(held, *CALIBRATED),),
        remark=f"medians of the histories: {at_once:.0f} % wait for nothing, nine of ten at most "
        f"{ninth / 60:,.0f} min, the bound is {median / 60:,.0f} min",
    )


def _draw(rows: Sequence[Row]) -> "dict[str, altair.TopLevelMixin]":
    shown = [row | {"where": f"{row['log']}, {row['queue']}"} for row in rows]
    titles = ("log and queue", "90 % bounds that held (%)")
    return {"held": drawing.bars(shown, x="where", y="held", by="size", titles=titles)}


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper="drp",
        figure="waits",
        title="how often bounds on waits hold in the queues of real logs",
        about=f"Histories of {JOBS} consecutive jobs of a log, which begin anywhere in it, under "
        "EASY and conservative backfilling. Each job's bound is given when it is submitted, from "
        "the waits that have ended by then; a history begins without any.",
        cells=_cells,
        measure=_measure,
        findings=_find,
        charts=_draw,
    ),
)
