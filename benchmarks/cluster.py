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

    python benchmarks/cluster.py [--data FOLDER] [--peer]

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

from bursar.cluster.machine import Machine
from bursar.cluster.simulation import simulate
from bursar.formats.swf import read_swf
from bursar.model.trace import Trace
from bursar.simulation.scaling import repeated

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


def show_policies(trace: Trace) -> None:
    """Each policy on the log and on ten times the log."""
    ten = repeated(trace, 10)
    print(f"{trace.name}: {len(trace):,} jobs, {CTC_PROCESSORS} processors, kernels warm")
    print(f"{'':14}{'seconds':>9}{'aim':>7}{'jobs/s':>12}{'x 10':>9}{'ratio':>8}   aim 15")
    for policy in POLICIES:
        run = partial(simulate, processors=CTC_PROCESSORS, policy=policy)
        run(trace)
        once, tenfold = least(partial(run, trace)), least(partial(run, ten), 1)
        verdict = "met" if once <= AIMS[policy] and tenfold <= 15 * once else "MISSED"
        print(
            f"{policy:14}{once:9.3f}{AIMS[policy]:7.1f}{len(trace) / once:12,.0f}"
            f"{tenfold:9.2f}{tenfold / once:8.1f}   {verdict}"
        )
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"most memory held, with ten times the log: {most:.0f} MB (aim 300)")


def show_command(log: Path) -> None:
    """The whole command, for each policy."""
    print("\nbursar trace simulate --csv, as a process")
    with tempfile.TemporaryDirectory() as folder:
        for policy in POLICIES:
            argv = [sys.executable, "-m", "bursar", "trace", "simulate", str(log)]
            argv += ["--policy", policy, "--csv", f"{folder}/jobs.csv"]
            seconds = least(
                lambda argv=argv: subprocess.run(argv, check=True, capture_output=True), 2
            )
            print(f"{policy:14}{seconds:9.2f} s (aim 2)")


def plain_seconds(data: Path) -> dict[str, float]:
    """Seconds of each policy on the first jobs of a log, as this process runs them."""
    trace = first_jobs(read_swf(data / KTH), PLAIN_JOBS)
    return {
        policy: least(lambda p=policy: simulate(trace, processors=KTH_PROCESSORS, policy=p))
        for policy in POLICIES
    }


def first_jobs(trace: Trace, count: int) -> Trace:
    """A log cut off after so many jobs."""
    from dataclasses import replace

    columns = ("number", "submit", "runtime", "estimate", "processors", "wait", "user")
    return replace(trace, **{name: getattr(trace, name)[:count] for name in columns})


def show_plain(data: Path) -> None:
    """Compiled against the same code as plain Python."""
    argv = [sys.executable, __file__, "--data", str(data), "--part", "plain"]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    plain = json.loads(
        subprocess.run(argv, env=environment, check=True, capture_output=True, text=True).stdout
    )
    compiled = plain_seconds(data)
    print(f"\nthe first {PLAIN_JOBS:,} jobs of the KTH log, compiled and as plain Python")
    for policy in POLICIES:
        ratio = plain[policy] / compiled[policy]
        print(f"{policy:14}{compiled[policy]:9.4f} s{plain[policy]:9.2f} s{ratio:8.0f} times")


def show_peer(data: Path) -> None:
    """AccaSim's own FCFS and EASY on the KTH log, beside ours."""
    from compare_dispatch import interpreter

    python = interpreter("accasim", HERE / ".peers")
    trace = read_swf(data / KTH)
    with tempfile.TemporaryDirectory() as folder:
        from bursar.formats.swf import write_swf

        log = Path(folder) / "kth.swf"
        write_swf(log, trace)
        argv = [str(python), str(HERE / "peers" / "run_accasim.py"), str(log), str(KTH_PROCESSORS)]
        done = subprocess.run(argv, capture_output=True, text=True, cwd=folder, check=False)
    if done.returncode:
        print(f"\nAccaSim failed:\n{done.stderr[-800:]}")
        return
    theirs = json.loads(done.stdout.splitlines()[-1])
    print(f"\nthe KTH log, {len(trace):,} jobs, {KTH_PROCESSORS} processors, beside AccaSim")
    for policy, seconds in theirs.items():
        ours = least(lambda p=policy: simulate(trace, processors=KTH_PROCESSORS, policy=p))
        print(f"{policy:14}{ours:9.3f} s{seconds:9.1f} s{seconds / ours:8.0f} times")


def show_slots() -> None:
    """Submit, advance, slots: on a machine with a long queue."""
    print("\nfree slots after each submission, 430 processors")
    for policy in POLICIES:
        machine = Machine(430, policy)
        rng = np.random.default_rng(1)
        at = 0.0
        while len(machine.waiting) < 100:
            at += np.ceil(rng.exponential(100.0))
            machine.submit(int(rng.integers(1, 60)), np.ceil(rng.exponential(4000.0)), at=at)
            machine.advance(at)
        machine.free_slots()
        seconds = []
        for _ in range(200):
            at += 1.0
            machine.submit(int(rng.integers(1, 60)), np.ceil(rng.exponential(4000.0)), at=at)
            machine.advance(at)
            began = time.perf_counter()
            slots = machine.free_slots()
            seconds.append(time.perf_counter() - began)
        middle = 1e3 * statistics.median(seconds)
        print(
            f"{policy:14}{middle:8.2f} ms (aim 1), {len(slots)} slots, "
            f"{len(machine.running)} run, {len(machine.waiting)} wait"
        )


def main() -> None:
    """Reads the command line and prints the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BURSAR_DATA", DATA)))
    parser.add_argument("--peer", action="store_true", help="AccaSim too; installs it")
    parser.add_argument("--part", choices=["plain"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.data.is_dir():
        sys.exit(f"no reference data at {given.data}")
    if given.part == "plain":
        print(json.dumps(plain_seconds(given.data)))
        return
    show_policies(read_swf(given.data / CTC))
    show_command(given.data / CTC)
    show_plain(given.data)
    show_slots()
    if given.peer:
        show_peer(given.data)


if __name__ == "__main__":
    main()
