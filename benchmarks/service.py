"""
What the execution service costs: rates, latency, security, a crowd of workers, long queues.

The service is ``bursar serve`` in a process of its own, with its journal on disk; this process
is its client, through the typed client over HTTP. The bare loop is the limit to compare with: as
many processes as there are workers, each starting ``/bin/echo`` and reading its pipe, and nothing
else. What is compared takes turns, so that whatever else the machine does meets both alike; the
ratio is the figure to trust, the rates are this machine's.

    python benchmarks/service.py [--quick | --smallest] [--only PART ...] [--json FILE]
"""

import asyncio
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from figures import Benchmark, Figure, at_least, at_most

from bursar.dispatch.credential import (
    PilotTerms,
    client_context,
    decode_credential,
    make_certificate,
)
from bursar.dispatch.linux_processes import workers_of
from bursar.dispatch.wire import Hello, frame
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.messages import TaskSpec
from bursar_papers.drp.phases import ECHO, NOTHING, PIECE, measure_phases
from bursar_papers.drp.serving import Level, MeasuredService, measured_service
from dispatch import CLOCK_TICKS, WORKERS, BareLoops

FEW = 1_000
"""Programs of one submission: the workers begin with the first one while others come."""

ECHOED: tuple[Level, Level] = ("mutual", "none")

CROWD = 1_000
"""Idle workers that are connected."""


def carry_out(service: MeasuredService, spec: TaskSpec, count: int) -> float:
    """Seconds from the first submission to the last result in the client's hands."""
    piece = PIECE if spec is NOTHING else FEW
    return asyncio.run(measure_phases(service, spec, count, piece=piece)).seconds


def processor_seconds(pid: int, *, children: bool = False) -> float:
    """User and system time of a process, and perhaps of those it has started that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if children else 13])) / CLOCK_TICKS


def resident(pid: int) -> float:
    """MiB of a process in memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# Rates.


@dataclass(slots=True)
class Contender:
    """
    One of those that take turns.

    Parameters
    ----------
    carry_out
        Does a turn; its seconds.
    pids
        Of the processes that have a part in it.
    seconds, busy
        Of each turn: how long it took, and the processor time that went into it.
    """

    carry_out: Callable[[], float]
    pids: Sequence[int]
    seconds: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)

    def take_turn(self) -> None:
        """Once more."""
        before = self._busy()
        self.seconds.append(self.carry_out())
        self.busy.append(self._busy() - before)

    def _busy(self) -> float:
        return sum(processor_seconds(pid, children=True) for pid in self.pids)


def measure_echo(commands: int, turns: int) -> list[Figure]:
    """Programs with their output captured, against the bare loop, in turns; mutual TLS."""
    share = commands // turns
    with ExitStack() as stack:
        loops = stack.enter_context(closing(BareLoops()))
        bare = Contender(lambda: loops.carry_out(share), loops.pids)
        ours, clear = (
            _echoing(stack.enter_context(measured_service(level, WORKERS)), share)
            for level in ECHOED
        )
        loops.carry_out(500)
        for turn in range(turns):
            for which in range(3):
                (bare, ours, clear)[(turn + which) % 3].take_turn()
    return [
        Figure("echo, bare posix_spawn loop", share / statistics.median(bare.seconds), "/s"),
        Figure("echo, mutual TLS", share / statistics.median(ours.seconds), "/s"),
        at_least("echo, mutual TLS / bare", _median_ratio(bare.seconds, ours.seconds), 0.85),
        Figure("the same, of processor time", _median_ratio(bare.busy, ours.busy), ""),
        at_least("echo, mutual TLS / in clear", _median_ratio(clear.seconds, ours.seconds), 0.9),
    ]


def _echoing(service: MeasuredService, share: int) -> Contender:
    carry_out(service, ECHO, 500)
    pids = (service.pid, os.getpid(), *workers_of(service.run).values())
    return Contender(lambda: carry_out(service, ECHO, share), pids)


def measure_nothing(tasks: int, turns: int) -> list[Figure]:
    """Tasks without steps: what remains is client, HTTP, journal, wire and worker."""
    levels: tuple[Level, ...] = ("none", "tls", "mutual")
    seconds: dict[Level, list[float]] = {level: [] for level in levels}
    with ExitStack() as stack:
        services = [stack.enter_context(measured_service(level, WORKERS)) for level in levels]
        for service in services:
            carry_out(service, NOTHING, 5_000)
        for turn in range(turns):
            for which in range(len(services)):
                service = services[(turn + which) % len(services)]
                seconds[service.level].append(carry_out(service, NOTHING, tasks))
    clear = seconds["none"]
    return [
        at_least(
            "no-op tasks, mutual TLS", tasks / statistics.median(seconds["mutual"]), 2e4, "/s"
        ),
        Figure("no-op tasks, TLS and token", tasks / statistics.median(seconds["tls"]), "/s"),
        Figure("no-op tasks, in clear", tasks / statistics.median(clear), "/s"),
        at_least("no-op, TLS / in clear", _median_ratio(clear, seconds["tls"]), 0.9),
        at_least("no-op, mutual TLS / in clear", _median_ratio(clear, seconds["mutual"]), 0.9),
    ]


def _median_ratio(few: Sequence[float], many: Sequence[float]) -> float:
    return statistics.median(f / m for f, m in zip(few, many, strict=True))


# Latency.


def measure_latency(times: int) -> list[Figure]:
    """One ``/bin/echo`` from its submission to its result, one after the other, mutual TLS."""
    with measured_service("mutual", WORKERS) as service:
        seconds = sorted(asyncio.run(_round_trips(service, times)))
    return [
        at_most("one echo, median", 1e3 * statistics.median(seconds), 10, "ms"),
        at_most("one echo, 99 of 100", 1e3 * seconds[int(0.99 * times)], 30, "ms"),
    ]


async def _round_trips(service: MeasuredService, times: int) -> list[float]:
    seconds = []
    async with AsyncServiceClient(service.access) as client, client.session() as session:
        for number in range(times + 20):
            began = time.perf_counter()
            await session.submit([ECHO])
            page = await client.page(session.handle, number, wait=20.0)
            if number >= 20:  # the first ones make connections
                seconds.append(time.perf_counter() - began)
            assert [result.task for result in page.results] == [number]
    return seconds


# A crowd.


def measure_crowd(workers: int, seconds: float) -> list[Figure]:
    """What idle workers cost that are connected from elsewhere, each by TLS of its own."""
    with tempfile.TemporaryDirectory(prefix="bursar-benchmark-") as folder:
        command = [sys.executable, __file__, "--part", "house", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as house:
            assert house.stdout is not None
            told = decode_credential(house.stdout.readline().encode(), "the house")
            with ExitStack() as stack:
                time.sleep(1.0)
                before = resident(house.pid)
                context = client_context(told.certificate)
                for number in range(workers):
                    line = socket.create_connection((told.host, told.port))
                    line = stack.enter_context(context.wrap_socket(line))
                    name = f"here-{told.lease}-{number}"
                    hello = Hello(told.token, name, told.site, 1, told.lease, "far", ())
                    line.sendall(frame(hello))
                    if not line.recv(4096):
                        raise RuntimeError("a worker was not let in")
                time.sleep(1.0)
                began = processor_seconds(house.pid)
                time.sleep(seconds)
                busy = 100 * (processor_seconds(house.pid) - began) / seconds
                grown = resident(house.pid) - before
            house.terminate()
    return [
        at_most(f"{workers} idle workers, share of a core", busy, 2.0, "%"),
        at_most(f"{workers} idle workers, memory", grown, 100.0, "MiB"),
    ]


async def keep_house(folder: Path) -> None:
    """A service that expects workers which it did not start, and says how they come in."""
    from bursar.dispatch.journal_records import epoch_of
    from bursar.model.site import SiteFacts
    from bursar.service.config import MarketSettings, ServiceConfig
    from bursar.service.execution_service import ExecutionService
    from bursar.service.startup import load_identity, make_site_provider
    from bursar.store import RealDisk

    loop = asyncio.get_running_loop()
    epoch = epoch_of(loop)
    config = ServiceConfig(
        name="here",
        folder=folder,
        site=SiteFacts(name="here", kind="local", processors=CROWD),
        selling=MarketSettings(must_buy=True),  # so it starts no workers of its own
    )
    disk = RealDisk(folder / "journal")
    identity = await load_identity(disk, os.urandom)
    house = ExecutionService(
        config,
        identity=identity,
        disk=disk,
        clock=lambda: epoch + loop.time(),
        entropy=os.urandom,
        sites=make_site_provider(config, identity, lambda line: None),
        address=("127.0.0.1", 0),
    )
    await house.open()
    certificate, key = make_certificate()
    house.worker_server.open_listener("127.0.0.1", 0, certificate, key)
    lease = "lease-crowd"
    house.worker_server.expect(lease, pool="shared", site="here", processors=CROWD)
    terms = PilotTerms(lease=lease, site="here", host="127.0.0.1", processors=CROWD)
    told = await house.worker_server.credential(terms)
    print(told.decode(), flush=True)
    await house.failed()


# A long queue.


def measure_queue(tasks: int) -> list[Figure]:
    """Tasks that wait behind a long one, submitted a hundredth at a time."""
    share = tasks // 100
    with measured_service("mutual", 1) as service:
        before = resident(service.pid)
        seconds = asyncio.run(_queue_up(service, share))
        grown = resident(service.pid) - before
        size = sum(f.stat().st_size for f in (service.folder / "state/journal").iterdir()) / 2**20
    first, last = (share / statistics.median(part) for part in (seconds[:10], seconds[-10:]))
    return [
        at_most(f"{tasks:,} queued tasks, memory", grown + before, 1024, "MiB"),
        Figure(f"{tasks:,} queued tasks, on disk", size, "MiB"),
        Figure("submission, the first tenth", first, "/s"),
        at_least("submission, the last tenth / the first", last / first, 0.9),
    ]


async def _queue_up(service: MeasuredService, share: int) -> list[float]:
    seconds = []
    async with AsyncServiceClient(service.access) as client, client.session() as session:
        await session.submit([TaskSpec(command=("/bin/sleep", "3600"))])
        await session.submit([ECHO] * 1_000)
        for _ in range(100):
            began = time.perf_counter()
            await session.submit([ECHO] * share)
            seconds.append(time.perf_counter() - began)
    return seconds


# A peer.


def measure_dask(commands: int) -> list[Figure]:
    """Dask distributed, TLS with certificates on both sides, as many workers of one thread."""
    command = [sys.executable, __file__, "--part", "dask", str(commands)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    rates = json.loads(said.splitlines()[-1])
    return [
        Figure("echo, Dask distributed over TLS", rates["echo"], "/s"),
        Figure("no-op, Dask distributed over TLS", rates["nothing"], "/s"),
        Figure("one echo, Dask over TLS, median", 1e3 * rates["latency"], "ms"),
    ]


def run_dask(commands: int) -> dict[str, float]:
    """Tasks a second, and seconds of a single one."""
    import logging

    from distributed import Client, LocalCluster
    from distributed.security import Security

    def echo(number: int) -> bytes:
        return subprocess.run(["/bin/echo", "hello"], capture_output=True, check=True).stdout

    def nothing(number: int) -> None:
        return None

    security = Security.temporary()
    with (
        LocalCluster(
            n_workers=WORKERS,
            threads_per_worker=1,
            protocol="tls://",
            security=security,
            dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster, security=security) as client,
    ):
        client.gather(client.map(echo, range(100), pure=False))
        rates = {}
        for name, work in (("echo", echo), ("nothing", nothing)):
            began = time.perf_counter()
            client.gather(client.map(work, range(commands), pure=False))
            rates[name] = commands / (time.perf_counter() - began)
        seconds = []
        for number in range(100):
            began = time.perf_counter()
            client.submit(echo, number, pure=False).result()
            seconds.append(time.perf_counter() - began)
    return {**rates, "latency": statistics.median(seconds)}


def main() -> None:
    """Measure one thing after the other."""
    if "--part" in sys.argv:
        part, given = sys.argv[sys.argv.index("--part") + 1 :][:2]
        if part == "house":
            asyncio.run(keep_house(Path(given)))
        else:
            print(json.dumps(run_dask(int(given))))
        return
    names = ("echo", "nothing", "latency", "crowd", "queue", "dask")
    bench = Benchmark(
        __file__,
        __doc__,
        lambda parser: parser.add_argument("--only", nargs="+", choices=names, help="these parts"),
    )
    commands, turns = bench.of((100_000, 5), (10_000, 5), (20, 1))
    tasks, rounds = bench.of((100_000, 5), (100_000, 2), (200, 1))
    trips = bench.of(1_000, 300, 10)
    workers, seconds = bench.of((CROWD, 20.0), (CROWD, 5.0), (3, 0.2))
    queued = bench.of(1_000_000, 100_000, 1_000)
    futures = bench.of(5_000, 500, 5)
    parts: dict[str, tuple[str, Callable[[], list[Figure]]]] = {
        "echo": (
            f"{commands:,} /bin/echo, {WORKERS} workers",
            lambda: measure_echo(commands, turns),
        ),
        "nothing": (
            f"{tasks:,} tasks without a program",
            lambda: measure_nothing(tasks, rounds),
        ),
        "latency": (f"one /bin/echo, {trips:,} times", lambda: measure_latency(trips)),
        "crowd": ("idle workers over TLS", lambda: measure_crowd(workers, seconds)),
        "queue": ("a long queue", lambda: measure_queue(queued)),
        "dask": ("Dask distributed over TLS", lambda: measure_dask(futures)),
    }
    for name in bench.given.only or names:
        if name == "dask" and importlib.util.find_spec("distributed") is None:
            bench.skip("Dask distributed is not installed (pip install 'bursar[dask]')")
            continue
        title, measure = parts[name]
        bench.figures(title, measure())
    bench.write()


if __name__ == "__main__":
    main()
