"""
Batch clusters: how fast logs are simulated, and what a look at a live state costs.

Tables:

policies
    The CTC log on 338 processors, kernels warm: FCFS, EASY, conservative; and
    ten times the log, with the ratio; the most memory held.
command
    ``bursar trace simulate`` with ``--csv`` as a process of its own, from
    reading the log to the last line.
plain
    The same kernels without compilation, on the first jobs of the KTH log, in a
    process of their own, with the ratio.
peer
    AccaSim from the package index on the KTH log, in an environment of its own
    (it needs a small patch to be imported at all), with ``--peer``.
slots
    Free slots of a busy machine of 430 processors after each submission.

Use::

    python benchmarks/cluster.py [--data FOLDER] [--peer] [--quick | --smallest] [--json FILE]

The folder of reference data may also be named by ``BURSAR_DATA``.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from figures import Benchmark, at_most

from bursar.cluster.machine import Machine
from bursar.cluster.simulation import simulate
from bursar.cluster.slots import offered_slots
from bursar.formats.trace_files import read_swf
from bursar.model.trace import Trace
from bursar.simulation.workloads import repeated

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
HERE = Path(__file__).resolve().parent
POLICIES = ("fcfs", "easy", "conservative")
CTC, CTC_PROCESSORS = "swf/CTC-SP2-1996-predictsim.swf.xz", 338
KTH, KTH_PROCESSORS = "swf/KTH-SP2-1996-2.1-cln.swf.xz", 100
PLAIN_JOBS = 3000
AIMS = {"fcfs": 0.1, "easy": 0.1, "conservative": 1.0}


def least(call: Callable[[], object], times: int = 3) -> float:
    """Least seconds of so many calls."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return min(found)


def show_policies(bench: Benchmark, trace: Trace, times: int) -> None:
    """Each policy on the log and on ten times the log."""
    ten = repeated(trace, times)
    table = bench.table(
        f"{trace.name}: {len(trace):,} jobs, {CTC_PROCESSORS} processors, kernels warm",
        *("policy", "s", "aim, s", "jobs/s", f"s, {times} times the log", "ratio", "met"),
    )
    for policy in POLICIES:
        run = partial(simulate, processors=CTC_PROCESSORS, policy=policy)
        run(trace)
        once, tenfold = least(partial(run, trace)), least(partial(run, ten), 1)
        met = once <= AIMS[policy] and tenfold <= 1.5 * times * once
        table.add(policy, once, AIMS[policy], len(trace) / once, tenfold, tenfold / once, met)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    bench.figures("memory", [at_most("most memory held", most, 300, "MB")])


def show_command(bench: Benchmark, log: Path, times: int) -> None:
    """The whole command, for each policy."""
    table = bench.table("bursar trace simulate --csv, as a process", "policy", "s", "aim, s", "met")
    with tempfile.TemporaryDirectory() as folder:
        for policy in POLICIES:
            argv = [sys.executable, "-m", "bursar", "trace", "simulate", str(log)]
            argv += ["--policy", policy, "--csv", f"{folder}/jobs.csv"]
            seconds = least(
                lambda argv=argv: subprocess.run(argv, check=True, capture_output=True), times
            )
            table.add(policy, seconds, 2.0, seconds <= 2.0)


def plain_seconds(data: Path, jobs: int) -> dict[str, float]:
    """Seconds of each policy on the first jobs of a log, as this process runs them."""
    trace = first_jobs(read_swf(data / KTH), jobs)
    return {
        policy: least(lambda p=policy: simulate(trace, processors=KTH_PROCESSORS, policy=p))
        for policy in POLICIES
    }


def first_jobs(trace: Trace, count: int) -> Trace:
    """A log cut off after so many jobs."""
    from dataclasses import replace

    columns = ("number", "submit", "runtime", "estimate", "processors", "wait", "user")
    return replace(trace, **{name: getattr(trace, name)[:count] for name in columns})


def show_plain(bench: Benchmark, data: Path, jobs: int) -> None:
    """Compiled against the same code as plain Python."""
    argv = [sys.executable, __file__, "--part", str(data), str(jobs)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    plain = json.loads(
        subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout
    )
    compiled = plain_seconds(data, jobs)
    table = bench.table(
        f"the first {jobs:,} jobs of the KTH log",
        *("policy", "compiled, s", "plain Python, s", "times"),
    )
    for policy in POLICIES:
        ratio = plain[policy] / compiled[policy]
        table.add(policy, compiled[policy], plain[policy], ratio)


def show_peer(bench: Benchmark, data: Path) -> None:
    """AccaSim's own FCFS and EASY on the KTH log, beside ours."""
    from compare_dispatch import interpreter

    python = interpreter("accasim", HERE / ".peers")
    trace = read_swf(data / KTH)
    with tempfile.TemporaryDirectory() as folder:
        from bursar.formats.trace_files import write_swf

        log = Path(folder) / "kth.swf"
        write_swf(log, trace)
        argv = [str(python), str(HERE / "peers" / "run_accasim.py"), str(log), str(KTH_PROCESSORS)]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode:
        bench.skip(f"AccaSim failed: {done.stderr[-800:]}")
        return
    theirs = json.loads(done.stdout.splitlines()[-1])
    table = bench.table(
        f"the KTH log, {len(trace):,} jobs, {KTH_PROCESSORS} processors",
        *("policy", "ours, s", "AccaSim, s", "times"),
    )
    for policy, seconds in theirs.items():
        ours = least(lambda p=policy: simulate(trace, processors=KTH_PROCESSORS, policy=p))
        table.add(policy, ours, seconds, seconds / ours)


def show_slots(bench: Benchmark, looks: int) -> None:
    """Submit, advance, slots: on a machine with a long queue."""
    table = bench.table(
        "free slots after each submission, 430 processors",
        *("policy", "ms, median", "aim, ms", "slots", "jobs that run", "jobs that wait", "met"),
    )
    for policy in POLICIES:
        machine = Machine(430, policy)
        rng = np.random.default_rng(1)
        at = 0.0
        while len(machine.waiting) < 100:
            at += np.ceil(rng.exponential(100.0))
            machine.submit(int(rng.integers(1, 60)), np.ceil(rng.exponential(4000.0)), at=at)
            machine.advance(at)
        offered_slots(machine)
        seconds = []
        for _ in range(looks):
            at += 1.0
            machine.submit(int(rng.integers(1, 60)), np.ceil(rng.exponential(4000.0)), at=at)
            machine.advance(at)
            began = time.perf_counter()
            slots = offered_slots(machine)
            seconds.append(time.perf_counter() - began)
        middle = 1e3 * statistics.median(seconds)
        run, wait = len(machine.running), len(machine.waiting)
        table.add(policy, middle, 1.0, len(slots), run, wait, middle <= 1.0)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BURSAR_DATA", DATA)))
    parser.add_argument("--peer", action="store_true", help="AccaSim too; installs it")


def main() -> None:
    """Read the command line and measure."""
    if "--part" in sys.argv:
        folder, jobs = sys.argv[-2:]
        print(json.dumps(plain_seconds(Path(folder), int(jobs))))
        return
    bench = Benchmark(__file__, __doc__, _options)
    data = bench.given.data
    show_slots(bench, bench.of(200, 50, 3))
    if data.is_dir():
        jobs, times = bench.of((10**9, 10), (10**9, 10), (300, 2))
        show_policies(bench, first_jobs(read_swf(data / CTC), jobs), times)
        if bench.size != "smallest":
            show_command(bench, data / CTC, bench.of(2, 1, 1))
        show_plain(bench, data, bench.of(PLAIN_JOBS, PLAIN_JOBS // 10, 20))
        if bench.given.peer:
            show_peer(bench, data)
    else:
        bench.skip(f"tables on real logs: no reference data at {data}")
    bench.write()


if __name__ == "__main__":
    main()
