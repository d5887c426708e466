"""
Many workers on one machine: Python calls that sleep, by Bursar, Parsl and Dask.

Everybody has as many worker processes as asked for, far more than processors, and makes the same
calls of 100 ms, which need no processor: what is possible is the number of workers divided by the
length of a call. Contenders run one after the other, the order rotating.

    python benchmarks/many_workers.py [--quick | --smallest] [--json FILE]

Peers have environments of their own below ``benchmarks/.peers``, as in ``compare_dispatch.py``.
Processor time and memory are those of all processes of a contender. A worker's memory is the
proportional set size (pages that processes share count in parts) of all of a contender's processes
but the one that makes the calls and, with Bursar, has the engine and the journal; peers have their
schedulers in processes of their own, which are counted among the workers' where they are.

Bursar alone journals each result before the caller has it. Peers get no more workers than ``MOST``
says: each takes some 40 MB, and a second of processor time to start.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import uuid
from pathlib import Path

from compare_dispatch import HERE, LIMIT, PEERS, interpreter, is_installed
from figures import Benchmark

SECONDS = 0.1
"""Length of a call."""

MOST = {"bursar": 512, "parsl": 128, "dask": 32}
"""Workers that each contender gets at most."""

CONTENDERS = ("bursar", "parsl", "dask")


def measured(name: str, python: Path, workers: int, calls: int) -> dict[str, float]:
    """
    Return the figures of one run of a contender.

    Raises
    ------
    RuntimeError
        When the run failed; with the end of what it said.
    """
    # Parsl looks for its own programs on PATH, and workers import calls.py.
    environment = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PEERS),
        "BURSAR_BENCHMARK": uuid.uuid4().hex,
    }
    argv = [str(python), str(PEERS / f"run_calls_{name}.py"), "--workers", str(workers)]
    argv += ["--calls", str(calls), "--seconds", str(SECONDS)]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=environment, timeout=LIMIT, cwd=PEERS
    )
    if done.returncode:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, metavar="NAME", default=CONTENDERS)
    parser.add_argument("--workers", nargs="+", type=int, help="numbers of workers, default all")
    parser.add_argument("--cache", type=Path, default=HERE / ".peers", help="environments go here")


def main() -> None:
    """Measure each number of workers, all contenders in turns."""
    bench = Benchmark(__file__, __doc__, _options)
    given = bench.given
    shapes = bench.of(
        ((32, 2_000, 3), (128, 5_000, 3), (512, 10_000, 1)), ((32, 1_000, 3),), ((2, 20, 1),)
    )
    cache = given.cache.resolve()
    pythons: dict[str, Path] = {}
    for name in given.only:
        environment = None if name == "bursar" else name
        if bench.size == "smallest" and not is_installed(environment, cache):
            bench.skip(f"{name}: not installed in {cache.name}/{environment}")
        else:
            pythons[name] = interpreter(environment, cache)
    for workers, calls, rounds in shapes:
        if given.workers is not None and workers not in given.workers:
            continue
        chosen = [name for name in pythons if workers <= MOST[name]]
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
        for number in range(rounds):
            for place in range(len(chosen)):
                name = chosen[(place + number) % len(chosen)]
                found = measured(name, pythons[name], workers, calls)
                runs[name].append(found)
                print(f"{workers} workers, {name}: {found}", file=sys.stderr)
        possible = workers / SECONDS
        table = bench.table(
            f"{workers} workers, {calls:,} calls of {SECONDS:g} s, {rounds} rounds; "
            f"{possible:,.0f}/s are possible",
            *("contender", "calls/s, median", "least", "most", "of possible", "ms a call"),
            *("MB a worker", "MB, caller", "processes"),
        )
        for name in chosen:
            rates = [calls / run["seconds"] for run in runs[name]]
            middle = {
                key: statistics.median(run[key] for run in runs[name]) for key in runs[name][0]
            }
            table.add(
                *(name, statistics.median(rates), min(rates), max(rates)),
                *(statistics.median(rates) / possible, 1e3 * middle["busy"]),
                *(middle["memory"] / 1e6, middle["own"] / 1e6, int(middle["processes"])),
            )
    bench.write()


if __name__ == "__main__":
    main()
