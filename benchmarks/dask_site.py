"""
Our own workers, the same jobs carried by a Dask cluster, and Dask's bare futures, side by side.

All have two processors of this machine. The first two are the same dispatcher, whose outcomes are
on disk before they count, with its own workers or with the workers of a Dask cluster; the third
is the same cluster without us, one future for each command, results in memory.

Contenders take turns, so that whatever else the machine does meets all alike. The ratios are the
figures to trust.

    python benchmarks/dask_site.py [--quick] [--tasks N] [--rounds N]

Needs the extra ``dask``.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import distributed
from figures import Benchmark

from bursar.dispatch.journal import RunJournal
from bursar.engine.core import RunPaths
from bursar.engine.dispatcher import Dispatcher
from bursar.model.allocation import Allocation
from bursar.model.campaign import Retry
from bursar.model.site import DaskEndpoint, SiteFacts
from bursar.model.task import Exec, Step, Task
from bursar.sites.dask.dask_site import DaskSite
from bursar.sites.local import LocalSite
from bursar.worker.launch import Endpoint
from bursar_devtools.unlimited_spending import UnlimitedSpending

PROCESSORS = 2
COMMANDS, ROUNDS = 10_000, 5
QUICK_COMMANDS, QUICK_ROUNDS = 1_000, 3
WARM_UP = 200
ONE_BY_ONE = 50
"""Commands whose round trips are taken."""

ECHO: tuple[Step, ...] = (Exec(("/bin/echo", "hello")),)
DASK = Path(sys.executable).with_name("dask")

Carry = Callable[[int, tuple[Step, ...]], Awaitable[None]]
"""Runs so many tasks of these steps."""


@contextlib.contextmanager
def dask_cluster(folder: Path) -> Iterator[str]:
    """Address of a scheduler with two workers of one thread."""
    told = folder / "scheduler.json"
    log = (folder / "log").open("ab")
    quiet = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    scheduler = subprocess.Popen(
        [
            *(str(DASK), "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"),
            *("--scheduler-file", str(told)),
        ],
        **quiet,  # type: ignore[call-overload]
    )
    while not told.exists():
        time.sleep(0.05)
    time.sleep(0.1)
    address = json.loads(told.read_text())["address"]
    workers = subprocess.Popen(
        [
            *(str(DASK), "worker", address, "--nworkers", str(PROCESSORS), "--nthreads", "1"),
            *("--no-dashboard", "--host", "127.0.0.1", "--local-directory", str(folder)),
        ],
        **quiet,  # type: ignore[call-overload]
    )
    try:
        yield address
    finally:
        for process in (workers, scheduler):
            process.terminate()
            process.wait()
        log.close()


@asynccontextmanager
async def dispatching(folder: Path, site: LocalSite | DaskSite) -> AsyncIterator[Carry]:
    """A dispatcher with its journal and a pilot at a site."""
    folders = RunPaths(
        root=folder, files=folder / "files", work=folder / "work", logs=folder / "logs"
    )
    for path in (folders.files, folders.work, folders.logs):
        path.mkdir(parents=True)
    run = f"benchmark-{folder.name}-{os.getpid()}"
    pilot = Allocation(
        name="lease-1",
        site=site.facts.name,
        processors=PROCESSORS,
        start=0.0,
        duration=float("inf"),
        unit_price=None,
        fixed_price=None,
    )
    with closing(RunJournal(folder / "journal.sqlite")) as journal:
        dispatcher = Dispatcher(
            (), journal=journal, guard=UnlimitedSpending(), retry=Retry(), folders=folders, run=run
        )
        await dispatcher.start()

        async def carry(count: int, steps: tuple[Step, ...]) -> None:
            for i in range(count):
                dispatcher.submit([Task(id=str(i), steps=steps)])
            await dispatcher.wait()

        held = await site.acquire(
            pilot,
            Endpoint(
                address=dispatcher.address,
                token=dispatcher.token,
                run=run,
                entrance=dispatcher,
            ),
            rigid=False,
            begin=lambda processors=None, seconds=None: None,
            on_event=print,
        )
        try:
            yield carry
        finally:
            dispatcher.dismiss(pilot.name)
            await held.release()
            await dispatcher.close()


def bare(client: Any) -> Carry:
    """One future for each task."""

    async def carry(count: int, steps: tuple[Step, ...]) -> None:
        call = printed_by_echo if steps else nothing
        futures = client.map(call, range(count), pure=False)
        await client.gather(futures)

    return carry


def printed_by_echo(number: int) -> bytes:
    """Of one command."""
    done = subprocess.run(("/bin/echo", "hello"), capture_output=True, check=True)
    return done.stdout


def nothing(number: int) -> None:
    """Does it."""


async def race(
    contenders: dict[str, Carry], tasks: int, rounds: int, steps: tuple[Step, ...]
) -> dict[str, list[float]]:
    """Rates by contender; each round begins with the next one."""
    names = list(contenders)
    rates: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        await contenders[name](WARM_UP, steps)
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            began = time.perf_counter()
            await contenders[name](tasks, steps)
            rates[name].append(tasks / (time.perf_counter() - began))
    return rates


async def round_trips(contenders: dict[str, Carry], times: int) -> dict[str, float]:
    """Median milliseconds of one command, by contender."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(times):
        for name, carry in contenders.items():
            began = time.perf_counter()
            await carry(1, ECHO)
            found[name].append(1e3 * (time.perf_counter() - began))
    return {name: statistics.median(times) for name, times in found.items()}


async def measure(bench: Benchmark, folder: Path, address: str, tasks: int, rounds: int) -> None:
    """Runs the rounds and prints the table."""
    here = SiteFacts(name="here", processors=PROCESSORS)
    there = SiteFacts(
        name="dask", kind="dask", processors=PROCESSORS, dask=DaskEndpoint(scheduler=address)
    )
    site = DaskSite(there, "benchmark", folder)
    async with (
        distributed.Client(  # type: ignore[no-untyped-call]
            address, asynchronous=True, set_as_default=False
        ) as client,
    ):
        await client.wait_for_workers(PROCESSORS)
        async with (
            site.opened(),
            dispatching(folder / "here", LocalSite(here)) as ours,
            dispatching(folder / "there", site) as on_dask,
        ):
            contenders = {"our workers": ours, "dask site": on_dask, "bare futures": bare(client)}
            echo = await race(contenders, tasks, rounds, ECHO)
            no_op = await race(contenders, tasks, rounds, ())
            trips = await round_trips(contenders, bench.of(ONE_BY_ONE, ONE_BY_ONE, 3))
    table = bench.table(
        f"{tasks:,} tasks, {PROCESSORS} processors, medians of {rounds} rounds",
        *("contender", "echo/s", "of ours", "no-op/s", "of ours", "one echo, ms"),
    )
    for name in contenders:
        table.add(
            name,
            statistics.median(echo[name]),
            share(echo, name),
            statistics.median(no_op[name]),
            share(no_op, name),
            trips[name],
        )


def share(rates: dict[str, list[float]], name: str) -> float:
    """Median over rounds of a contender's rate over that of our own workers."""
    pairs = zip(rates[name], rates["our workers"], strict=True)
    return statistics.median(one / ours for one, ours in pairs)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", type=int, help=f"in each round; default {COMMANDS:,}")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")


def main() -> None:
    """Read the command line, bring the cluster up and measure."""
    bench = Benchmark(__file__, __doc__, _options)
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    tasks = bench.given.tasks or bench.of(COMMANDS, QUICK_COMMANDS, 20)
    rounds = bench.given.rounds or bench.of(ROUNDS, QUICK_ROUNDS, 1)
    with tempfile.TemporaryDirectory(prefix="bursar-benchmark-") as name:
        folder = Path(name)
        with dask_cluster(folder) as address:
            asyncio.run(measure(bench, folder, address, tasks, rounds))
    bench.write()


if __name__ == "__main__":
    main()
