"""
Long tasks behind long ones: whether two of them run side by side, and what prefetching costs.

Two workers carry out one short task, then two long ones and many short ones at once. The short one
teaches that tasks are short, and both long ones may be given to one worker: where the second waits
for the first, half of the machine idles. Tasks are Python calls of an executor, programs of a run
and programs of a service, with estimates that are unknown, right, or the wrong way round. Each
trial is made with prefetching and without, in turns; Python's own ``ProcessPoolExecutor`` stands
beside the executor.

    python benchmarks/long_calls.py [--quick | --smallest] [--json FILE]
"""

import asyncio
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor as AnyExecutor
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from figures import Benchmark, at_most
from msgspec.structs import replace

import bursar
from bursar.dispatch import prefetch
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.messages import Hints, Result, TaskSpec
from bursar_papers.drp.serving import MeasuredService, measured_service

WORKERS = 2

ESTIMATES = ("unknown", "right", "the wrong way round")


@dataclass(frozen=True)
class Shape:
    """What a trial consists of: two tasks of ``long`` seconds, and ``short`` ones of none."""

    long: float
    short: int


@dataclass(frozen=True)
class Trial:
    """Seconds from the first submission to the last result, and whether the long tasks met."""

    seconds: float
    together: bool


@contextmanager
def without_service() -> Iterator[MeasuredService]:
    """Run a service that does not prefetch."""
    with tempfile.TemporaryDirectory() as folder:
        # Read by each interpreter as it starts, the service's own included.
        told = "from bursar.dispatch import prefetch\nprefetch.HORIZON = 0.0\n"
        Path(folder, "sitecustomize.py").write_text(told)
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, before]))
        try:
            with measured_service("none", WORKERS) as service:
                yield service
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before


def nap(seconds: float) -> tuple[float, float]:
    """Sleep, and return when that began and ended."""
    began = time.time()
    time.sleep(seconds)
    return began, time.time()


def met(spans: Sequence[tuple[float, float]]) -> bool:
    """Return whether spans of time have a moment in common."""
    return max(began for began, _ in spans) < min(ended for _, ended in spans)


@contextmanager
def without_prefetching() -> Iterator[None]:
    """Give tasks only to processors that are free."""
    horizon, prefetch.HORIZON = prefetch.HORIZON, 0.0
    try:
        yield
    finally:
        prefetch.HORIZON = horizon


def calls(executor: AnyExecutor, shape: Shape) -> Trial:
    """Make the calls with an executor."""
    with executor:
        for _ in range(WORKERS):  # started; the last call is the short one that teaches
            executor.submit(nap, 0.0).result()
        began = time.perf_counter()
        long = [executor.submit(nap, shape.long) for _ in range(2)]
        short = [executor.submit(nap, 0.0) for _ in range(shape.short)]
        spans = [call.result() for call in long]
        for call in short:
            call.result()
        return Trial(time.perf_counter() - began, met(spans))


def campaign(shape: Shape, estimates: str) -> Trial:
    """Carry the tasks out as a run; the short one comes first, the others when it has ended."""

    def task(name: str, seconds: float, other: float, **more: tuple[str, ...]) -> bursar.Task:
        told = {"unknown": None, "right": seconds, "the wrong way round": other}[estimates]
        runtime = told if told is None else max(told, 0.001)
        return bursar.Task(
            id=name, steps=(bursar.Exec(("sleep", str(seconds))),), runtime=runtime, **more
        )

    tasks = [task("first", 0.0, 0.0)]
    tasks += [task(f"long{i}", shape.long, 0.0, after=("first",)) for i in range(2)]
    tasks += [task(f"s{i}", 0.0, shape.long, after=("first",)) for i in range(shape.short)]
    site = bursar.SiteFacts(name="here", processors=WORKERS, unit_price=0.0, currency="EUR")
    work = bursar.Campaign(name="mixed", workflow=bursar.Workflow(tuple(tasks)))
    with tempfile.TemporaryDirectory() as folder:
        result = bursar.run(work, site, runs=Path(folder))
        ended = {outcome.task: outcome for outcome in result.outcomes()}
    first, spans = ended[0], [(ended[task].start, ended[task].end) for task in (1, 2)]
    return Trial(max(outcome.end for outcome in ended.values()) - first.end, met(spans))


def served(service: MeasuredService, shape: Shape, estimates: str) -> Trial:
    """Carry the tasks out as an instance of a service; the others follow the first, short one."""

    def spec(seconds: float, other: float) -> TaskSpec:
        told = {"unknown": None, "right": seconds, "the wrong way round": other}[estimates]
        hints = Hints() if told is None else Hints(runtime=max(told, 0.001))
        return TaskSpec(command=("sleep", str(seconds)), hints=hints)

    async def carried_out() -> Trial:
        async with AsyncServiceClient(service.access) as client, client.session() as session:
            first = spec(0.0, 0.0)
            others = [spec(shape.long, 0.0)] * 2 + [spec(0.0, shape.long)] * shape.short
            await session.submit([first, *[replace(other, after=(0,)) for other in others]])
            ended: dict[int, Result] = {}
            async for batch in session.batches(until="closed"):
                ended |= {result.task: result for result in batch}
                if len(ended) > len(others):
                    break
        spans = [(ended[task].start, ended[task].end) for task in (1, 2)]
        return Trial(max(result.end for result in ended.values()) - ended[0].end, met(spans))

    return asyncio.run(carried_out())


def compare(
    bench: Benchmark, title: str, trials: int, contenders: dict[str, Callable[[], Trial]]
) -> None:
    """Make trials of all contenders in turns, and add a table of them."""
    made: dict[str, list[Trial]] = {name: [] for name in contenders}
    for _ in range(trials):
        for name, carry_out in contenders.items():
            made[name].append(carry_out())
    columns = ("contender", "one after the other", "of trials", "s, median", "s, most")
    table = bench.table(title, *columns)
    for name, done in made.items():
        seconds = [trial.seconds for trial in done]
        apart = sum(not trial.together for trial in done)
        table.add(name, apart, len(done), statistics.median(seconds), max(seconds))
    ours, bare = made["bursar"], made["bursar, no prefetching"]
    ratios = [math.log(one.seconds / other.seconds) for one, other in zip(ours, bare, strict=True)]
    apart = sum(not trial.together for trial in ours)
    bench.figures(
        f"{title}: aims",
        [
            at_most("long tasks one after the other", apart, 0, f"of {trials}"),
            at_most("time / without prefetching", math.exp(statistics.mean(ratios)), 1.05),
        ],
    )


def main() -> None:
    """Compare executors, then a run, then a service."""
    bench = Benchmark(__file__, __doc__)
    trials = bench.of(100, 10, 1)
    few = bench.of(10, 3, 1)
    shape = bench.of(Shape(2.0, 2_000), Shape(2.0, 2_000), Shape(0.3, 50))
    fewer = bench.of(Shape(2.0, 1_000), Shape(1.0, 300), Shape(0.3, 20))

    def unprefetched(carry_out: Callable[[], Trial]) -> Trial:
        with without_prefetching():
            return carry_out()

    def bursar_calls() -> Trial:
        return calls(bursar.Executor(WORKERS), shape)

    compare(
        bench,
        f"an executor: two calls of {shape.long:g} s, {shape.short:,} of none",
        trials,
        {
            "bursar": bursar_calls,
            "bursar, no prefetching": partial(unprefetched, bursar_calls),
            "ProcessPoolExecutor": lambda: calls(
                ProcessPoolExecutor(WORKERS, mp_context=get_context("forkserver")), shape
            ),
        },
    )
    for estimates in ESTIMATES:
        carry_out = partial(campaign, fewer, estimates)
        compare(
            bench,
            f"a run: two programs of {fewer.long:g} s, {fewer.short:,} of none, "
            f"estimates {estimates}",
            few,
            {
                "bursar": carry_out,
                "bursar, no prefetching": partial(unprefetched, carry_out),
            },
        )
    with measured_service("none", WORKERS) as prefetching, without_service() as bare:
        for estimates in ESTIMATES:
            compare(
                bench,
                f"a service: two programs of {fewer.long:g} s, {fewer.short:,} of none, "
                f"estimates {estimates}",
                few,
                {
                    "bursar": partial(served, prefetching, fewer, estimates),
                    "bursar, no prefetching": partial(served, bare, fewer, estimates),
                },
            )
    bench.write()


if __name__ == "__main__":
    main()
