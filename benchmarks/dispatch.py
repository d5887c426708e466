"""
What dispatch costs: rates, latency, idle load, memory and resuming, in one run.

The bare loop is the limit to compare with: as many processes as there are
workers, each starting ``/bin/echo`` and reading its pipe, and nothing else. It
and the dispatcher take turns, so that whatever else the machine does meets
both alike; the ratio is the figure to trust, the rates are this machine's.

    python benchmarks/dispatch.py [--quick | --smallest] [--json FILE]
"""

import asyncio
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from figures import Benchmark, Figure, at_least, at_most

from bursar.dispatch.credential import PilotTerms
from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import AttemptRecord
from bursar.engine.core import RunPaths
from bursar.engine.dispatcher import Dispatcher
from bursar.model.campaign import Retry
from bursar.model.task import Exec, Outcome, Status, Step, Task
from bursar.worker.launch import Endpoint, LocalWorkers
from bursar_devtools.unlimited_spending import UnlimitedSpending

WORKERS = 2
RUN = f"benchmark-{os.getpid()}"
ECHO: tuple[Step, ...] = (Exec(("/bin/echo", "hello")),)
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


# The bare loop.


def spawn_loop(orders: Connection) -> None:
    """Starts as many programs as it is told, until it is told None."""
    environment = dict(os.environ)
    null = os.open(os.devnull, os.O_RDONLY)
    while (count := orders.recv()) is not None:
        for _ in range(count):
            reader, writer = os.pipe()
            pid = os.posix_spawn(
                "/bin/echo",
                ("/bin/echo", "hello"),
                environment,
                file_actions=(
                    (os.POSIX_SPAWN_DUP2, null, 0),
                    (os.POSIX_SPAWN_DUP2, writer, 1),
                    (os.POSIX_SPAWN_DUP2, writer, 2),
                ),
            )
            os.close(writer)
            while os.read(reader, 65536):
                pass
            os.close(reader)
            os.waitpid(pid, 0)
        orders.send(count)


class BareLoops:
    """As many of them as there are workers."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._lines = []
        self._processes = []
        for _ in range(WORKERS):
            ours, theirs = context.Pipe()
            process = context.Process(target=spawn_loop, args=(theirs,))
            process.start()
            self._lines.append(ours)
            self._processes.append(process)

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [process.pid for process in self._processes if process.pid is not None]

    def carry_out(self, count: int) -> float:
        """Seconds for so many programs."""
        began = time.perf_counter()
        for line in self._lines:
            line.send(count // WORKERS)
        for line in self._lines:
            line.recv()
        return time.perf_counter() - began

    def close(self) -> None:
        """Ends them."""
        for line, process in zip(self._lines, self._processes, strict=True):
            line.send(None)
            process.join()


# The dispatcher.


@asynccontextmanager
async def dispatching(
    tasks: Sequence[Task] = (), on_outcome: Callable[[AttemptRecord], None] | None = None
) -> AsyncIterator[tuple[Dispatcher, LocalWorkers]]:
    """One with its journal and workers, all of them there."""
    with tempfile.TemporaryDirectory(prefix="bursar-benchmark-") as name:
        folder = Path(name)
        journal = RunJournal(folder / "journal.sqlite")
        dispatcher = Dispatcher(
            tasks,
            journal=journal,
            guard=UnlimitedSpending(),
            retry=Retry(),
            folders=folders_in(folder),
            run=RUN,
            on_outcome=on_outcome,
        )
        await dispatcher.start()
        workers = LocalWorkers("local", "lease-1", WORKERS, rigid=False, on_event=print)
        await workers.start(Endpoint(address=dispatcher.address, token=dispatcher.token, run=RUN))
        try:
            yield dispatcher, workers
        finally:
            await dispatcher.close()
            await workers.release()
            journal.close()


@asynccontextmanager
async def dispatching_to_pilots(tasks: Sequence[Task]) -> AsyncIterator[Dispatcher]:
    """One whose workers are those of pilots, over TLS."""
    with tempfile.TemporaryDirectory(prefix="bursar-benchmark-") as name:
        folder = Path(name)
        with closing(RunJournal(folder / "journal.sqlite")) as journal:
            dispatcher = Dispatcher(
                tasks,
                journal=journal,
                guard=UnlimitedSpending(),
                retry=Retry(),
                folders=folders_in(folder),
                run=RUN,
            )
            await dispatcher.start()
            pilots = []
            for number in range(WORKERS):
                path = folder / f"{number}.json"
                path.touch(0o600)
                path.write_bytes(
                    await dispatcher.pilot_listener.credential(
                        PilotTerms(
                            lease=f"lease-{number}", site="far", host="127.0.0.1", processors=1
                        )
                    )
                )
                command = [sys.executable, "-P", "-m", "bursar.provisioning.pilot", str(path)]
                pilots.append(subprocess.Popen(command))
            try:
                yield dispatcher
            finally:
                await dispatcher.close()
                for pilot in pilots:
                    pilot.wait()


def folders_in(folder: Path) -> RunPaths:
    """A run's folders, made."""
    folders = RunPaths(
        root=folder, files=folder / "files", work=folder / "work", logs=folder / "logs"
    )
    for path in (folders.files, folders.work, folders.logs):
        path.mkdir()
    return folders


async def carry_out(dispatcher: Dispatcher, count: int, steps: tuple[Step, ...]) -> float:
    """Seconds from the first submission to the last durable outcome."""
    began = time.perf_counter()
    for i in range(count):
        dispatcher.submit([Task(id=str(i), steps=steps)])
    await dispatcher.wait()
    return time.perf_counter() - began


async def measure_echo(commands: int, rounds: int) -> list[Figure]:
    """Programs with their output captured, against the bare loop, in turns."""
    share = commands // rounds
    ours, bare = [], []
    loops = BareLoops()
    printed = 0

    def count(record: AttemptRecord) -> None:
        nonlocal printed
        printed += len(record.outcome.stdout)

    async with dispatching(on_outcome=count) as (dispatcher, _):
        loops.carry_out(200)
        await carry_out(dispatcher, 200, ECHO)
        printed = 0
        for turn in range(rounds):
            if turn % 2:
                ours.append(await carry_out(dispatcher, share, ECHO))
                bare.append(loops.carry_out(share))
            else:
                bare.append(loops.carry_out(share))
                ours.append(await carry_out(dispatcher, share, ECHO))
    loops.close()
    if printed != share * rounds * len("hello\n"):
        raise RuntimeError("output was lost")
    ratio = statistics.median(b / o for b, o in zip(bare, ours, strict=True))
    return [
        Figure("echo, bare posix_spawn loop", share / statistics.median(bare), "/s"),
        Figure("echo, dispatched", share / statistics.median(ours), "/s"),
        at_least("echo, dispatched / bare", ratio, 0.92),
    ]


async def measure_nothing(tasks: int, rounds: int) -> list[Figure]:
    """Tasks without steps: what remains is server, wire, worker and journal."""
    clear, secure = [], []
    for _ in range(rounds):
        queued = [Task(id=str(i)) for i in range(tasks)]
        async with dispatching(queued) as (dispatcher, _):
            clear.append(await seconds_of_all(dispatcher, tasks))
        async with dispatching_to_pilots(queued) as dispatcher:
            secure.append(await seconds_of_all(dispatcher, tasks))
    ratio = statistics.median(c / s for c, s in zip(clear, secure, strict=True))
    return [
        at_least("no-op tasks", tasks / statistics.median(clear), 100_000, "/s"),
        Figure("no-op tasks, over TLS", tasks / statistics.median(secure), "/s"),
        Figure("no-op tasks, over TLS / in clear", ratio, ""),
    ]


async def seconds_of_all(dispatcher: Dispatcher, tasks: int) -> float:
    """Of so many tasks without steps, as from the first that has ended."""
    while not dispatcher.figures.counts.succeeded:
        await asyncio.sleep(0.0005)
    began = time.perf_counter()
    done = dispatcher.figures.counts.succeeded
    await dispatcher.wait()
    return (time.perf_counter() - began) * tasks / (tasks - done)


async def measure_round_trip(times: int) -> list[Figure]:
    """One program from submission to durable outcome, a worker waiting."""
    async with dispatching() as (dispatcher, _):
        await carry_out(dispatcher, 50, ECHO)
        seconds = sorted([await carry_out(dispatcher, 1, ECHO) for _ in range(times)])
    return [
        at_most("echo round trip, median", 1e3 * statistics.median(seconds), 2.5, "ms"),
        Figure("echo round trip, 95 of 100", 1e3 * seconds[int(0.95 * times)], "ms"),
    ]


async def measure_idle(seconds: float) -> list[Figure]:
    """Processor time of dispatcher and workers while there is nothing to do."""
    async with dispatching() as (dispatcher, workers):
        await carry_out(dispatcher, 50, ECHO)
        await asyncio.sleep(0.2)
        before = time.process_time() + sum(map(processor_seconds, workers.pids.values()))
        await asyncio.sleep(seconds)
        after = time.process_time() + sum(map(processor_seconds, workers.pids.values()))
    return [at_most("idle, share of a core", 100 * (after - before) / seconds, 1.0, "%")]


def processor_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def measure_memory(tasks: int) -> list[Figure]:
    """Resident memory of a dispatcher beyond the tasks it was given, in a fresh process."""
    command = [sys.executable, __file__, "--part", str(tasks)]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return [at_most("memory of a queued task", grown / tasks, 500, "bytes")]


def grow(tasks: int) -> int:
    """Bytes by which this process grows when a dispatcher queues the tasks."""
    queued = [Task(id=f"task-{i}", steps=ECHO) for i in range(tasks)]
    with tempfile.TemporaryDirectory() as name, closing(RunJournal(Path(name) / "j")) as journal:
        gc.collect()
        before = resident()
        dispatcher = Dispatcher(
            queued,
            journal=journal,
            guard=UnlimitedSpending(),
            retry=Retry(),
            folders=folders_in(Path(name)),
            run=RUN,
        )
        grown = resident() - before
        assert dispatcher.figures.counts.waiting == tasks
    return grown


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def measure_resuming(tasks: int) -> list[Figure]:
    """From opening the journal of a nearly finished run to its last task's end."""
    queued = [Task(id=str(i), steps=ECHO) for i in range(tasks)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        journal = RunJournal(folder / "journal.sqlite")
        journal.commit(
            [
                AttemptRecord(
                    Outcome(task=i, attempt=1, status=Status.SUCCEEDED, stdout=b"hello\n"),
                    True,
                    "local",
                    "lease-1",
                )
                for i in range(tasks - 10)
            ]
        )
        journal.close()
        folders = folders_in(folder)
        began = time.perf_counter()
        journal = RunJournal(folder / "journal.sqlite")
        dispatcher = Dispatcher(
            queued,
            journal=journal,
            guard=UnlimitedSpending(),
            retry=Retry(),
            folders=folders,
            run=RUN,
            past=journal.load().attempts,
        )
        await dispatcher.start()
        workers = LocalWorkers("local", "lease-1", WORKERS, rigid=False, on_event=print)
        await workers.start(Endpoint(address=dispatcher.address, token=dispatcher.token, run=RUN))
        await dispatcher.wait()
        seconds = time.perf_counter() - began
        await dispatcher.close()
        await workers.release()
        journal.close()
    return [at_most(f"resuming a run of {tasks} tasks", seconds, 5.0, "s")]


def main() -> None:
    """Measure one thing after the other."""
    if "--part" in sys.argv:
        print(grow(int(sys.argv[-1])))
        return
    bench = Benchmark(__file__, __doc__)
    echoes, turns = bench.of((20_000, 10), (2_000, 10), (40, 2))
    tasks = bench.of(100_000, 100_000, 1_000)
    rounds = bench.of(5, 2, 1)
    trips = bench.of(500, 50, 5)
    idle = bench.of(11.0, 2.0, 0.2)
    for title, part in (
        (f"{echoes:,} /bin/echo, {WORKERS} workers, output captured",
         lambda: asyncio.run(measure_echo(echoes, turns))),
        (f"{tasks:,} tasks without a program", lambda: asyncio.run(measure_nothing(tasks, rounds))),
        (f"{trips:,} round trips", lambda: asyncio.run(measure_round_trip(trips))),
        ("nothing to do", lambda: asyncio.run(measure_idle(idle))),
        (f"{tasks:,} queued tasks", lambda: measure_memory(tasks)),
        ("resuming", lambda: asyncio.run(measure_resuming(tasks))),
    ):  # fmt: skip
        bench.figures(title, part())
    bench.write()


if __name__ == "__main__":
    main()
