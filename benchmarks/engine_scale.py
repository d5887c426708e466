"""
The engine of a run, alone, with up to 100,000 workers and ten million queued tasks.

Workers are simulated: each holds a call for some seconds, reports it, and runs nothing. Four
questions are answered, each in a process of its own:

- ``virtual clock``: workers in the engine's process, without sockets and without a journal. What
  the same workers and timers take without an engine is measured too, and taken off; what is left
  is the engine's processor time a call. Each end has a moment of its own, so that nothing is done
  for several ends together: the most that a call can take.
- ``loopback``: workers behind sockets, all in another process, and a journal on disk. The engine's
  process is measured; the calls are so short that more are offered each second than one engine
  can carry.
- ``nodes``: the same over sockets, with 10,000 processors gathered in fewer workers, as where one
  worker or sub-dispatcher has a whole node: it gets its calls in batches, and reports what has
  ended every so many milliseconds. Reports that wait cost nothing but time: none are measured that
  wait for longer than a worker keeps in stock (``bursar.dispatch.prefetch.HORIZON``).
- ``queue``: memory of queued tasks, and the first calls with that many in the queue, as on the
  virtual clock.

    python benchmarks/engine_scale.py [--quick | --smallest] [--only PART ...] [--json FILE]

The order of ends is drawn anew for each worker: a call takes between 0.5 and 1.5 times the mean,
from ``random.Random(SEED)``. Sockets need a limit of open files (``ulimit -n``) above the number of
workers; a size that does not fit is left out, and named.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from figures import Benchmark

from bursar.dispatch.journal import RunJournal
from bursar.dispatch.wire import (
    FrameDecoder,
    FromServer,
    Hello,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    OutcomeReport,
    ReturnedJobs,
    Welcome,
    WireJob,
    frame,
)
from bursar.engine.core import RunPaths
from bursar.engine.dispatcher import Dispatcher
from bursar.model.campaign import Retry
from bursar.model.task import Outcome, Status, Task
from bursar.simulation.virtual_loop import VirtualLoop
from bursar_devtools.unlimited_spending import UnlimitedSpending

SEED = 22
OFFERED = 20_000
"""Calls a second for which the simulated workers have room: more than one engine carries."""

MiB = 1024 * 1024
PARTS = ("virtual", "loopback", "nodes", "queue")


class SimulatedNode:
    """
    Holds each call for some seconds, in the order of the orders, as its processors come free.

    Parameters
    ----------
    seconds
        Returns how long the next call takes.
    tell
        Reports outcomes.
    give_back
        Returns calls that have not begun, each a task and an attempt.
    interval
        Seconds for which ends are gathered before they are reported.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        processors: int,
        seconds: Callable[[], float],
        tell: Callable[[Sequence[Outcome]], None],
        give_back: Callable[[Sequence[tuple[int, int]]], None],
        interval: float = 0.0,
    ) -> None:
        self._interval = interval
        self._loop = loop
        self._free = processors
        self._seconds = seconds
        self._tell = tell
        self._give_back = give_back
        self._waiting: deque[tuple[int, int]] = deque()
        self._ended: list[Outcome] = []

    def take(self, jobs: Iterable[tuple[int, int]]) -> None:
        """Take calls, each a task and an attempt."""
        self._waiting.extend(jobs)
        self._begin()

    def recall(self, count: int) -> None:
        """Return calls that have not begun, the last first."""
        back = [self._waiting.pop() for _ in range(min(count, len(self._waiting)))]
        self._give_back(back)

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            job = self._waiting.popleft()
            self._loop.call_later(self._seconds(), self._end, job, self._loop.time())

    def _end(self, job: tuple[int, int], start: float) -> None:
        self._free += 1
        # One report for all that end in a turn of the loop, as a worker's.
        if not self._ended:
            if self._interval:
                self._loop.call_later(self._interval, self._report)
            else:
                self._loop.call_soon(self._report)
        task, attempt = job
        now = self._loop.time()
        self._ended.append(
            Outcome(task=task, attempt=attempt, status=Status.SUCCEEDED, start=start, end=now)
        )
        self._begin()

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        self._tell(ended)


class InProcessNode:
    """A simulated worker in the engine's process, to which it is a ``WorkerLink``."""

    def __init__(self, dispatcher: Dispatcher, name: str, seconds: Callable[[], float]) -> None:
        loop = asyncio.get_running_loop()
        self._node = SimulatedNode(loop, 1, seconds, self._tell, self._give_back)
        self._engine = dispatcher.connect(Hello("", name, "simulated", 1, "lease"), self)

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        self._engine.report(outcomes)

    def _give_back(self, jobs: Sequence[tuple[int, int]]) -> None:
        self._engine.hand_back(jobs)

    def welcome(self, welcome: Welcome) -> None:
        """Do nothing."""

    def give(self, jobs: Iterable[WireJob]) -> None:
        """Take calls."""
        self._node.take([(job.task, job.attempt) for job in jobs])

    def recall(self, count: int) -> None:
        """Return calls that have not begun."""
        self._node.recall(count)

    def leave(self) -> None:
        """Disconnect."""
        self._engine.lose()

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        """Do nothing: no call is cancelled here."""

    def acknowledge(self, count: int) -> None:
        """Do nothing."""

    def hang_up(self) -> None:
        """Disconnect."""
        self._engine.lose()

    abort = hang_up


class SocketNode(asyncio.Protocol):
    """A simulated worker behind a socket."""

    def __init__(
        self,
        hello: Hello,
        seconds: Callable[[], float],
        interval: float,
        on_welcome: Callable[[], None],
    ) -> None:
        self._hello = hello
        self._on_welcome = on_welcome
        self._frames = FrameDecoder()
        loop = asyncio.get_running_loop()
        self._node = SimulatedNode(
            loop, hello.processors, seconds, self._tell, self._give_back, interval
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the hello."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(frame(self._hello))

    def data_received(self, data: bytes) -> None:
        """Follow orders."""
        for body in self._frames.feed(data):
            match _from_server.decode(body):
                case JobAssignment(jobs):
                    decoded = [_job.decode(job) for job in jobs]
                    self._node.take([(job.task, job.attempt) for job in decoded])
                case JobRecall(count):
                    self._node.recall(count)
                case Welcome():
                    self._on_welcome()
                case LeaveOrder():
                    self._transport.close()

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        self._transport.write(frame(OutcomeReport(list(outcomes))))

    def _give_back(self, jobs: Sequence[tuple[int, int]]) -> None:
        self._transport.write(frame(ReturnedJobs(list(jobs))))


_from_server = msgspec.msgpack.Decoder(FromServer)
_job = msgspec.msgpack.Decoder(WireJob)


def durations(mean: float) -> Callable[[], float]:
    """Return a function that draws seconds of a call, between 0.5 and 1.5 times the mean."""
    draw = random.Random(SEED).random
    return lambda: mean * (0.5 + draw())


class NoJournal:
    """Keeps nothing: on the virtual clock each end would have a transaction of its own."""

    is_full = False

    def commit(self, *records: object) -> None:
        """Do nothing."""


@contextlib.contextmanager
def dispatcher_with(tasks: Sequence[Task], *, keeps: bool = False) -> Iterator[Dispatcher]:
    """A dispatcher; ``keeps``: with a journal on disk."""
    with tempfile.TemporaryDirectory(prefix="bursar-benchmark-") as name:
        folder = Path(name)
        folders = RunPaths(
            root=folder, files=folder / "files", work=folder / "work", logs=folder / "logs"
        )
        for path in (folders.files, folders.work, folders.logs):
            path.mkdir()
        with contextlib.ExitStack() as stack:
            journal: Any = NoJournal()
            if keeps:
                journal = stack.enter_context(closing(RunJournal(folder / "journal.sqlite")))
            yield Dispatcher(
                tasks,
                journal=journal,
                guard=UnlimitedSpending(),
                retry=Retry(),
                folders=folders,
                run=f"engine-scale-{os.getpid()}",
            )


def queued(count: int) -> list[Task]:
    """Return tasks without steps."""
    return [Task(id=f"t{i}") for i in range(count)]


class Stretch:
    """
    Measures a dispatcher between two numbers of calls that have ended.

    Attributes
    ----------
    busy, seconds, calls
        Processor time, wall-clock time, and calls that ended in between.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.busy = self.seconds = 0.0
        self.calls = 0

    async def measure(self, begin: int, end: int) -> None:
        """Wait until ``begin`` calls have ended, and measure until ``end`` have."""
        await self._reach(begin)
        busy, began, calls = time.process_time(), time.perf_counter(), self._ended()
        await self._reach(end)
        self.busy, self.seconds = time.process_time() - busy, time.perf_counter() - began
        self.calls = self._ended() - calls

    def _ended(self) -> int:
        return self._dispatcher._core.queue.counts.succeeded

    async def _reach(self, count: int) -> None:
        while self._ended() < count:
            await self._dispatcher.change()


def measure_virtual(workers: int, tasks: int) -> dict[str, float]:
    """
    Measure the engine on the virtual clock, its workers in the same process.

    Parameters
    ----------
    tasks
        Calls to measure, after each worker has had one.
    """
    seconds = durations(workers / OFFERED)
    loop = VirtualLoop()
    with dispatcher_with(queued(2 * workers + tasks)) as dispatcher:

        async def run() -> Stretch:
            await dispatcher.start()
            gc.collect()
            before = resident()
            for number in range(workers):
                InProcessNode(dispatcher, f"w{number}", seconds)
            nonlocal grown
            stretch = Stretch(dispatcher)
            measuring = stretch.measure(workers, workers + tasks)
            grown = resident() - before
            await measuring
            return stretch

        grown = 0
        try:
            stretch = loop.run_until_complete(run())
        finally:
            loop.close()
    bare = measure_bare(workers, min(tasks, 50_000))
    return {
        "calls": stretch.calls,
        "busy": 1e6 * stretch.busy / stretch.calls - bare,
        "bare": bare,
        "worker": grown / workers,
    }


def measure_bare(workers: int, calls: int) -> float:
    """Return microseconds a call of the simulated workers and the virtual clock, without engine."""
    seconds = durations(workers / OFFERED)
    loop = VirtualLoop()
    left = workers + calls
    done = loop.create_future()

    def start(number: int) -> None:
        def tell(outcomes: Sequence[Outcome]) -> None:
            nonlocal left
            left -= len(outcomes)
            if left <= 0 and not done.done():
                done.set_result(None)
            node.take([(outcome.task, outcome.attempt) for outcome in outcomes])

        node = SimulatedNode(loop, 1, seconds, tell, lambda jobs: None)
        node.take([(number, 1)])

    for number in range(workers):
        start(number)
    busy = time.process_time()
    try:
        loop.run_until_complete(done)
    finally:
        loop.close()
    return 1e6 * (time.process_time() - busy) / (workers + calls)


def measure_sockets(
    workers: int, processors: int, tasks: int, milliseconds: int
) -> dict[str, float]:
    """
    Measure the engine over loopback sockets, with all workers in another process.

    Parameters
    ----------
    processors
        Processors of each worker.
    tasks
        Calls to measure, after each processor has had one.
    milliseconds
        Time for which a worker gathers ends before it reports them.
    """
    stretch = asyncio.run(_over_sockets(workers, processors, tasks, milliseconds))
    return {
        "calls": stretch.calls,
        "busy": 1e6 * stretch.busy / stretch.calls,
        "rate": stretch.calls / stretch.seconds,
        "load": stretch.busy / stretch.seconds,
        "worker": stretch.grown / workers,
    }


async def _over_sockets(workers: int, processors: int, tasks: int, milliseconds: int) -> Any:
    first = workers * processors
    # A tail of tasks is left: what is measured is an engine with a queue.
    with dispatcher_with(queued(2 * first + tasks), keeps=True) as dispatcher:
        await dispatcher.start()
        gc.collect()
        before = resident()
        farm = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--part", "farm", str(workers), str(processors)),
            *(str(milliseconds), dispatcher.address[0], str(dispatcher.address[1])),
            dispatcher.token,
        )
        try:
            stretch: Any = Stretch(dispatcher)
            await stretch.measure(first, first + tasks)
            stretch.grown = resident() - before
        finally:
            farm.kill()
            await farm.wait()
        while dispatcher._core.workers:
            await asyncio.sleep(0.01)
        await dispatcher.close()
    return stretch


async def farm(
    workers: int, processors: int, interval: float, host: str, port: int, token: str
) -> None:
    """Connect simulated workers, let them begin together, and run until killed."""
    seconds = durations(workers * processors / OFFERED)
    loop = asyncio.get_running_loop()
    for number in range(workers):
        hello = Hello(token, f"w{number}", "simulated", processors, "lease")
        welcome = loop.create_future()
        await loop.create_connection(
            lambda hello=hello, welcome=welcome: SocketNode(
                hello, seconds, interval, lambda: welcome.set_result(None)
            ),
            host,
            port,
            # Each address of this machine has some 28,000 ports.
            local_addr=(f"127.0.0.{2 + number // 20_000}", 0),
        )
        if number % 64 == 63:  # the listener's queue is short
            await welcome
    await loop.create_future()


def measure_queue(tasks: int, calls: int) -> dict[str, float]:
    """Measure memory and time of queueing tasks, and of the first calls with them in the queue."""
    gc.collect()
    before = resident()
    listed = queued(tasks)
    given = resident()
    began = time.process_time()
    with dispatcher_with(listed) as dispatcher:
        seconds = time.process_time() - began
        grown = resident() - given
        loop = VirtualLoop()

        async def run() -> Stretch:
            await dispatcher.start()
            draw = durations(1000 / OFFERED)
            for number in range(1000):
                InProcessNode(dispatcher, f"w{number}", draw)
            stretch = Stretch(dispatcher)
            await stretch.measure(1000, 1000 + calls)
            return stretch

        try:
            stretch = loop.run_until_complete(run())
        finally:
            loop.close()
    return {
        "task": (given - before) / tasks,
        "queued": grown / tasks,
        "rate": tasks / seconds,
        "busy": 1e6 * stretch.busy / stretch.calls - measure_bare(1000, 50_000),
    }


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def allow_files(count: int) -> bool:
    """Raise the limit of open files, and return whether there are as many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (count, max(hard, count)))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= count


def part(name: str, *numbers: int) -> dict[str, float]:
    """Measure one thing in a fresh process."""
    command = [sys.executable, __file__, "--part", name, *map(str, numbers)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _part(name: str, words: Sequence[str]) -> None:
    if name == "farm":
        workers, processors, milliseconds, host, port, token = words
        interval = int(milliseconds) / 1e3
        asyncio.run(farm(int(workers), int(processors), interval, host, int(port), token))
        return
    measures: dict[str, Callable[..., dict[str, float]]] = {
        "virtual": measure_virtual,
        "sockets": measure_sockets,
        "queue": measure_queue,
    }
    print(json.dumps(measures[name](*map(int, words))))


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", default=PARTS)


def main() -> None:
    """Measure one part after the other."""
    if "--part" in sys.argv:
        at = sys.argv.index("--part")
        _part(sys.argv[at + 1], sys.argv[at + 2 :])
        return
    bench = Benchmark(__file__, __doc__, _options)
    sizes = bench.of((100, 1_000, 10_000, 100_000), (100, 1_000, 10_000), (20,))
    calls = bench.of(100_000, 20_000, 200)
    if "virtual" in bench.given.only:
        table = bench.table(
            f"virtual clock: {calls:,} calls on workers of one processor, without sockets",
            *("workers", "us a call, engine", "us a call, workers", "bytes a worker"),
        )
        for workers in sizes:
            found = part("virtual", workers, calls)
            table.add(f"{workers:,}", found["busy"], found["bare"], found["worker"])
    if "loopback" in bench.given.only:
        shapes = [(size, 1, 0) for size in sizes]
        sockets_table(bench, shapes, calls, "workers of one processor")
    if "nodes" in bench.given.only:
        nodes = ((10_000, 1, 0), (1_000, 10, 0), (100, 100, 0), (100, 100, 100), (10, 1_000, 100))
        shapes = bench.of(nodes, nodes[2:4], ((20, 1, 0), (2, 10, 20)))
        sockets_table(bench, shapes, bench.of(200_000, 40_000, 200), "workers with a node each")
    if "queue" in bench.given.only:
        table = bench.table(
            f"queued tasks; then {calls:,} calls on 1,000 workers, virtual clock",
            *("queued tasks", "bytes, the task", "bytes, the engine", "queued/s"),
            "us a call, engine",
        )
        for tasks in bench.of((100_000, 1_000_000, 10_000_000), (100_000, 1_000_000), (2_000,)):
            found = part("queue", tasks, min(calls, tasks // 4))
            table.add(f"{tasks:,}", found["task"], found["queued"], found["rate"], found["busy"])
    bench.write()


def sockets_table(
    bench: Benchmark, shapes: Iterable[tuple[int, int, int]], calls: int, title: str
) -> None:
    """Measure the engine over sockets with numbers of workers and processors of each."""
    table = bench.table(
        f"loopback sockets: {calls:,} calls, {title}",
        *("workers x processors, reports", "calls/s", "us a call, engine", "engine's load"),
        "bytes a worker",
    )
    for workers, processors, milliseconds in shapes:
        if not allow_files(workers + 100):
            bench.skip(f"{workers:,} sockets: the limit of open files is lower")
            continue
        found = part("sockets", workers, processors, calls, milliseconds)
        row = (found["rate"], found["busy"], found["load"], found["worker"])
        often = f"every {milliseconds} ms" if milliseconds else "at once"
        table.add(f"{workers:,} x {processors:,}, {often}", *row)


if __name__ == "__main__":
    main()
