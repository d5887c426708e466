"""Calls that need more than one processor, or memory, GPUs and the like: placed and held to it."""

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.api.executor import Executor, TaskFailed
from bursar.dispatch.journal import read_journal
from bursar.sites.local import this_machine
from bursar_devtools.testgrid.slurm import SlurmCluster


@pytest.fixture(scope="module")
def four() -> Iterator[Executor]:
    """An executor with four processors, two GPUs and a licence."""
    site = replace(this_machine(), processors=4, resources={"gpu": 2, "licence": 1})
    with Executor(4, sites=site, history="none") as executor:
        yield executor


def held(seconds: float) -> tuple[float, float, str, str | None]:
    """Return begin and end by the clock of the machine, and what the call was told."""
    began = time.monotonic()
    time.sleep(seconds)
    told = os.environ["BURSAR_PROCESSORS"], os.environ.get("CUDA_VISIBLE_DEVICES")
    return (began, time.monotonic(), *told)


def most_at_once(calls: list[tuple[float, float, int]]) -> int:
    """Return the most that calls of (begin, end, how many) hold at a time."""
    return max(sum(n for begin, end, n in calls if begin <= at < end) for at, _, _ in calls)


@pytest.mark.ci
def test_wide_calls_hold_their_processors(four: Executor) -> None:
    """
    Calls of three, two and one processors never hold more than four at a time.
    """
    wanted = [3, 2, 1, 1, 3, 2, 1]
    futures = [four.options(processors=n).submit(held, 0.1) for n in wanted]
    found = [future.result(30) for future in futures]

    assert [int(told) for _, _, told, _ in found] == wanted
    spans = [(begin, end, n) for (begin, end, _, _), n in zip(found, wanted, strict=True)]
    assert 3 <= most_at_once(spans) <= 4


@pytest.mark.parametrize(("words", "most"), [({"gpus": 1}, 2), ({"resources": {"licence": 1}}, 1)])
def test_counted_resources_are_shared(four: Executor, words: dict[str, Any], most: int) -> None:
    """
    As many calls run as there are GPUs or licences, each told of a GPU of its own.
    """
    calls = four.options(**words)
    found = [future.result(30) for future in [calls.submit(held, 0.1) for _ in range(4)]]

    assert most_at_once([(begin, end, 1) for begin, end, _, _ in found]) <= most
    if "gpus" in words:
        assert {devices for _, _, _, devices in found} <= {"0", "1"}
    else:
        assert {devices for _, _, _, devices in found} == {None}


def test_a_call_is_held_to_its_memory(four: Executor) -> None:
    """
    One that uses more is killed and says so; what earlier calls left in a process is not its.
    """

    def take(size: int) -> int:
        import builtins

        builtins.kept = bytearray(size)  # type: ignore[attr-defined]
        time.sleep(0.3)
        return len(builtins.kept)  # type: ignore[attr-defined]

    modest = four.options(memory="120 MB")
    assert [four.submit(take, 150_000_000).result(30) for _ in range(4)] == [150_000_000] * 4
    assert [modest.submit(take, 1000).result(30) for _ in range(4)] == [1000] * 4
    assert modest.submit(take, 40_000_000).result(30) == 40_000_000
    assert modest.submit(take, 50_000_000).result(30) == 50_000_000

    with pytest.raises(TaskFailed, match="memory allows 120 MB"):
        modest.submit(take, 250_000_000).result(30)


def test_options_add_up_and_are_the_same_executor(four: Executor) -> None:
    """
    Options that are not given stay; map and the limits work as on the executor itself.
    """
    wide = four.options(processors=2, wall_limit="0.3 s", name="wide")
    with pytest.raises(TaskFailed, match="timed-out"):
        wide.options(runtime=1).submit(time.sleep, 50).result(30)
    assert list(wide.options(wall_limit=None).map(abs, [-1, -2, -3], chunksize=2)) == [1, 2, 3]
    assert four.options(gpus=2).options(gpus=0).submit(held, 0).result(30)[3] is None


def test_options_reach_the_history_by_name_and_keep_the_executor(tmp_path: Path) -> None:
    """
    The executor is not shut down while only its options are referred to, and the bill names kinds.
    """
    calls = Executor(2, folder=tmp_path / "calls", history="none").options(name="sum")
    assert calls.submit(sum, [1, 2]).result(30) == 3
    calls.shutdown()

    assert '"sum"' in (tmp_path / "calls/bill.json").read_text()
    with pytest.raises(RuntimeError, match="after shutdown"):
        calls.submit(sum, [1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"processors": 5}, "processors: a call may hold 4 processors at most, .*, got 5"),
        ({"processors": 0}, "processors: must be at least 1, got 0"),
        ({"processors": "2"}, "processors: expected a whole number, got '2'"),
        ({"processors": True}, "processors: expected a whole number"),
        ({"memory": "1 PB"}, "memory: no site has 1 PB; the largest has"),
        ({"memory": "much"}, "memory: expected a size"),
        ({"memory": 0}, "memory: must be positive"),
        ({"gpus": 3}, 'gpus: no site has 3 of "gpu"; the most is 2'),
        ({"gpus": -1}, "gpus: must not be negative"),
        ({"resources": {"licences": 1}}, 'resources: no site has 1 of "licences"'),
        ({"resources": 3}, "resources: expected numbers by name"),
        ({"resources": {"licence": "one"}}, "resources: expected a whole number"),
        ({"runtime": "soon"}, "runtime: expected a time"),
        ({"wall_limit": 0}, "wall_limit: must be positive"),
        ({"retries": -1}, "retries: must not be negative"),
        ({"name": 3}, "name: expected a text"),
        ({"procesors": 3}, '"procesors" is no option of a call\nhint: did you mean "processors"'),
    ],
)
def test_options_out_of_range_are_refused(
    four: Executor, words: dict[str, Any], message: str
) -> None:
    """
    When they are stated, in one line that names the option, and not when the call would start.
    """
    with pytest.raises(bursar.InputError, match=message):
        four.options(**words)


def test_no_single_site_may_have_all() -> None:
    """
    Memory at one site and GPUs at another are of no use to one call.
    """
    site = this_machine()
    sites = [
        replace(site, name="gpus", processors=1, memory=10**6, resources={"gpu": 1}),
        replace(site, name="memory", processors=2, memory=10**9),
    ]
    with Executor(sites=sites, history="none") as executor:
        with pytest.raises(bursar.InputError, match="no single site has all"):
            executor.options(processors=2, gpus=1)
        assert executor.options(gpus=1, memory="900 kB") is not None


@pytest.mark.ci
def test_more_calls_at_a_time_than_one_worker_takes() -> None:
    """
    Hundreds of calls that wait run at once on this machine, and wide ones still find a worker.
    """
    with Executor(150, history="none") as executor:
        assert list(executor.map(time.sleep, [0.0] * 200)) == [None] * 200
        assert executor.options(processors=20).submit(held, 0).result(60)[2] == "20"
        with pytest.raises(bursar.InputError, match="a call may hold"):
            executor.options(processors=150)


def test_calls_run_on_a_batch_cluster(slurm: SlurmCluster, tmp_path: Path) -> None:
    """
    Narrow and wide ones, each at one node; nothing is left in the queue or in the folder.
    """
    table = f"""
    [site.cluster]
    kind = "slurm"
    processors = 16
    queue = "main"
    unit_price = "1 SU/core-hour"
    reach = "127.0.0.1"
    environment = {{ SLURM_CONF = "{slurm.environment["SLURM_CONF"]}" }}
    """
    (tmp_path / "sites.toml").write_text(table)

    def where(n: int) -> tuple[int, str, str]:
        return n, os.environ["BURSAR_PROCESSORS"], os.environ["SLURM_JOB_ID"]

    with Executor(
        sites=tmp_path / "sites.toml", folder=tmp_path / "runs/calls", history="none"
    ) as executor:
        wide = executor.options(processors=3, runtime="5 s")
        futures = [wide.submit(where, n) for n in range(3)]
        futures += [executor.submit(where, n) for n in range(3, 6)]
        found = [future.result(120) for future in futures]
        failed = executor.submit(divmod, 1, 0).exception(60)
        with pytest.raises(bursar.InputError, match="a call may hold 4 processors"):
            executor.options(processors=5)
        with pytest.raises(TaskFailed, match=r'cannot come back from site "cluster" as data'):
            executor.submit(os.stat, "/").result(60)

    assert [n for n, _, _ in found] == list(range(6))
    assert [told for _, told, _ in found] == ["3"] * 3 + ["1"] * 3
    assert isinstance(failed, ZeroDivisionError)
    # Jobs that have ended are listed for a moment while their node clears up.
    end = time.monotonic() + 60
    while slurm.run("squeue", "--noheader").strip():
        assert time.monotonic() < end, "jobs were left in the queue"
        time.sleep(0.1)
    records = read_journal(tmp_path / "runs/calls/journal.sqlite").records
    assert {record.site for record in records} == {"cluster"}
