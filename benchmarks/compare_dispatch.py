"""
Dispatch side by side: Bursar, Dask distributed, Parsl, HyperQueue, and no system at all.

Everybody does the same: 20,000 times ``/bin/echo NUMBER`` on two workers,
with what it prints returned and checked. Dask and Parsl do it twice, once
with one command for each task and once with 20. ``bare`` is a
``posix_spawn`` loop in each of two processes: what the machine can do at most.

Use::

    python benchmarks/compare_dispatch.py [--quick | --smallest] [--json FILE]

Each peer gets a virtual environment of its own below ``benchmarks/.peers``,
made on first use with the versions in ``benchmarks/peers/*.txt``. Rounds are
interleaved (every contender once, then again, the order rotating), so that a
slow spell of the machine hits all alike. The table tells medians and the
range over rounds; ``of bare`` is the median of the ratios within a round,
which is steadier than any rate.

What this does not compare fairly
---------------------------------
- HyperQueue is measured as its wheel's in-process cluster, driven from Python.
  The ``hq`` program, which its authors recommend, is not on the package index.
  It writes what a task prints to a file, captures stdout only here, and has
  no journal in this setting.
- Bursar alone journals each result (synchronised to disk) before it reports
  it, keeps stdout and stderr apart, and measures each task's resources. The
  peers hold results in memory, with both streams in one pipe.
- Dask and Parsl run Python functions; starting a process is not what they
  are made for. With 20 commands for each task, results come 20 at a time and
  a failed command fails its 20.
- One machine, loopback only. It says nothing about many nodes.
- Start-up is not counted: each contender warms up with 200 commands first.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from figures import Benchmark

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
COMMANDS, ROUNDS = 20_000, 5
QUICK_COMMANDS, QUICK_ROUNDS = 2_000, 3
LIMIT = 900.0
"""Seconds after which a contender counts as hung."""


@dataclass(frozen=True, slots=True)
class Contender:
    """
    Who runs the job, and how.

    Parameters
    ----------
    name
        For the table.
    script
        In ``peers``.
    environment
        Name of its requirements file, without suffix; None: this interpreter.
    chunk
        Commands in one task.
    """

    name: str
    script: str
    environment: str | None = None
    chunk: int = 1


CONTENDERS = (
    Contender("bare", "run_bare.py"),
    Contender("bursar", "run_bursar.py"),
    Contender("dask", "run_dask.py", "dask"),
    Contender("dask x20", "run_dask.py", "dask", 20),
    Contender("parsl", "run_parsl.py", "parsl"),
    Contender("parsl x20", "run_parsl.py", "parsl", 20),
    Contender("hyperqueue", "run_hyperqueue.py", "hyperqueue"),
)


def is_installed(environment: str | None, cache: Path) -> bool:
    """Return whether a peer's environment is there, with the versions that are asked for."""
    if environment is None:
        return True
    made = cache / environment / "made-from.txt"
    return made.exists() and made.read_text() == (PEERS / f"{environment}.txt").read_text()


def interpreter(environment: str | None, cache: Path) -> Path:
    """
    The Python that has a peer installed; its environment is made on first use.
    """
    if environment is None:
        return Path(sys.executable)
    requirements = PEERS / f"{environment}.txt"
    folder = cache / environment
    python = folder / "bin" / "python"
    made = folder / "made-from.txt"
    if not is_installed(environment, cache):
        print(f"installing {environment} in {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "-r", str(requirements)]
        subprocess.run(install, check=True)
        made.write_text(requirements.read_text())
    return python


def rate(contender: Contender, commands: int, python: Path) -> float:
    """
    Commands per second of one run.

    Raises
    ------
    RuntimeError
        When it failed; with the end of what it said.
    """
    # Parsl looks for its own programs on PATH, and its workers import job.py.
    environment = {
        **os.environ,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PEERS),
    }
    argv = [str(python), str(PEERS / contender.script)]
    argv += ["--commands", str(commands), "--chunk", str(contender.chunk)]
    done = subprocess.run(
        argv, capture_output=True, text=True, env=environment, timeout=LIMIT, cwd=PEERS
    )
    if done.returncode:
        raise RuntimeError(f"{contender.name} failed:\n{done.stderr[-2000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return float(answer["commands"] / answer["seconds"])


def race(contenders: list[Contender], commands: int, rounds: int, cache: Path) -> list[list[float]]:
    """
    Rates, by contender and round. Each round begins with the next contender.
    """
    pythons = [interpreter(contender.environment, cache) for contender in contenders]
    rates: list[list[float]] = [[] for _ in contenders]
    for number in range(rounds):
        for place in range(len(contenders)):
            i = (place + number) % len(contenders)
            found = rate(contenders[i], commands, pythons[i])
            rates[i].append(found)
            line = f"round {number + 1} of {rounds}: {contenders[i].name:<11}{found:8,.0f}/s"
            print(line, file=sys.stderr)
    return rates


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--commands", type=int, help=f"default {COMMANDS}")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--only", nargs="+", choices=[c.name for c in CONTENDERS], metavar="NAME")
    parser.add_argument("--cache", type=Path, default=HERE / ".peers", help="environments go here")


def main() -> None:
    """Read the command line, run the rounds, write the table."""
    bench = Benchmark(__file__, __doc__, _options)
    given = bench.given
    commands = given.commands or bench.of(COMMANDS, QUICK_COMMANDS, 40)
    rounds = given.rounds or bench.of(ROUNDS, QUICK_ROUNDS, 1)
    cache = given.cache.resolve()
    chosen = []
    for contender in CONTENDERS:
        if given.only is not None and contender.name not in given.only:
            continue
        if bench.size == "smallest" and not is_installed(contender.environment, cache):
            bench.skip(f"{contender.name}: not installed in {cache.name}/{contender.environment}")
            continue
        chosen.append(contender)
    rates = race(chosen, commands, rounds, cache)
    bare = rates[0] if chosen[0].name == "bare" else None
    table = bench.table(
        f"{commands:,} x /bin/echo, 2 workers, {rounds} rounds",
        *("contender", "commands/s, median", "least", "most", "of bare, median"),
    )
    for contender, found in zip(chosen, rates, strict=True):
        share = None
        if bare is not None:
            share = statistics.median(r / b for r, b in zip(found, bare, strict=True))
        table.add(contender.name, statistics.median(found), min(found), max(found), share)
    bench.write()


if __name__ == "__main__":
    main()
