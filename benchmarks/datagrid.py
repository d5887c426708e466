"""
The jobs of a production grid, brokered: 188,041 jobs of the LCG log over its 170 sites.

Each job of the log is submitted to the broker at its time, which chooses among all sites; the
job runs there for its recorded time, first come, first served. The log says neither how many
processors a site had nor how long jobs waited: a site has as many as jobs of its own would have
run there at a time, had none waited (9,856 in all), or a quarter of that (``--scarce``), so that
there are queues. The index is refreshed each 300 s.

Aims: all of it under 60 s; the last tenth of the jobs costs as much as the first.

Use::

    python benchmarks/datagrid.py [--data FOLDER] [--choice NAME ...] [--scarce] [--jobs N]

The folder of reference data may also be named by ``BURSAR_DATA``.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from figures import Benchmark

from bursar.broker.status_feeds import IndexLevel
from bursar.model.matching import RankWeights
from bursar.model.site import SiteFacts
from bursar.simulation.datagrid.grid_outcome import GridOutcome
from bursar.simulation.datagrid.grid_simulation import DataGridSimulation, simulate
from bursar.simulation.datagrid.scenario import (
    BrokerPolicy,
    DataGrid,
    GridJobClass,
    GridServices,
    GridWorkload,
)

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
LOG = "swf/LCG-2005-1.swf.gz"
SUBMIT, RUNTIME, PARTITION = 1, 3, 15
"""Columns of the format, from 0."""

REFRESH = 300.0
SECONDS = 60.0
"""Aim for all jobs."""
DRIFT = 1.25
"""Aim for the last tenth's cost over the first's."""


def read(path: Path, jobs: int | None) -> tuple[GridWorkload, dict[int, int]]:
    """Submissions of the log, and the most jobs of each site that would run at a time."""
    table = np.loadtxt(path, comments=";", usecols=(SUBMIT, RUNTIME, PARTITION))[:jobs]
    submit, runtime, site = table[:, 0], table[:, 1], table[:, 2].astype(int)
    peaks = {number: peak(submit[site == number], runtime[site == number]) for number in set(site)}
    load = GridWorkload(
        kinds=(GridJobClass(runtime=float(runtime.mean())),),
        at=submit,
        kind=np.zeros(len(submit), dtype=np.int64),
        work=runtime,
    )
    return load, peaks


def peak(submit: np.ndarray, runtime: np.ndarray) -> int:
    """The most that would run at a time if none waited; one that ends as another begins counts."""
    moments = np.concatenate((submit, submit + runtime))
    steps = np.repeat((1, -1), len(submit))
    return max(1, int(np.cumsum(steps[np.lexsort((-steps, moments))]).max()))


class Clock:
    """Notes the real time at each tenth of the submissions."""

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.marks = [time.perf_counter()]

    def __call__(self, world: DataGridSimulation) -> None:
        if world.submitted >= self.jobs * len(self.marks) / 10:
            self.marks.append(time.perf_counter())


def run(
    load: GridWorkload, peaks: dict[int, int], choice: str, *, share: float
) -> tuple[GridOutcome, Clock]:
    """Everything once."""
    sites = tuple(
        SiteFacts(name=f"site-{number}", kind="simulated", processors=max(1, round(most * share)))
        for number, most in sorted(peaks.items())
    )
    clock = Clock(len(load))
    outcome = simulate(
        DataGrid(sites=sites),
        load,
        policy=BrokerPolicy(choice=choice, weights=RankWeights(alpha=1.0, beta=0.0)),
        services=GridServices(levels=(IndexLevel(every=REFRESH),)),
        watch=clock,
    )
    return outcome, clock


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BURSAR_DATA", DATA)))
    parser.add_argument("--choice", nargs="+", default=["completion", "best", "stochastic"])
    parser.add_argument("--scarce", action="store_true", help="a quarter of the processors")
    parser.add_argument("--jobs", type=int, help="only so many, the first")


def main() -> None:
    """Read the command line, simulate, write the table."""
    bench = Benchmark(__file__, __doc__, _options)
    given = bench.given
    path = given.data / LOG
    if not path.is_file():
        bench.skip(f"the log of the grid: no reference data at {path}")
        bench.write()
        return
    load, peaks = read(path, given.jobs or bench.of(None, 20_000, 300))
    share = 0.25 if given.scarce else 1.0
    processors = sum(max(1, round(p * share)) for p in peaks.values())
    table = bench.table(
        f"{len(load):,} jobs, {len(peaks)} sites, {processors:,} processors",
        *("choice", "s", "us a job", "last/first tenth", "mean wait, s", "95 % wait, s", "events"),
        "met",
    )
    for choice in given.choice:
        outcome, clock = run(load, peaks, choice, share=share)
        took = time.perf_counter() - clock.marks[0]
        tenths = np.diff(clock.marks)
        drift = float(tenths[-1] / tenths[0])
        table.add(
            choice,
            took,
            took / len(load) * 1e6,
            drift,
            float(outcome.waits.mean()),
            float(np.quantile(outcome.waits, 0.95)),
            int(outcome.events),
            took < SECONDS and drift < DRIFT,
        )
    bench.write()


if __name__ == "__main__":
    main()
