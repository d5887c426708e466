"""Files that come to simulated sites, to the second."""

import asyncio
from collections.abc import Callable

from bursar.model.matching import Replica
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.task import File, Task
from bursar.replicas.stager import AT_ONCE
from bursar.simulation.data_staging import SimulatedDataStaging
from bursar.simulation.virtual_loop import VirtualLoop

LINK = Link(latency=1.0, bandwidth=100.0)
SITES = [
    SiteFacts(name="a", links={"b": LINK}),
    SiteFacts(name="b", links={"a": LINK}),
    SiteFacts(name="c"),
]


def at(site: str, *names: str, size: int = 1000) -> dict[str, list[Replica]]:
    """Copies at a site."""
    return {name: [Replica(name=name, site=site, url="", size=size)] for name in names}


def come(
    staging: SimulatedDataStaging, asked: list[tuple[int, str]], *, first: Callable[[], None] = list
) -> dict[tuple[int, str], tuple[float, str]]:
    """When what each task reads is at its site, and with what problem; all ask at once."""
    told: dict[tuple[int, str], tuple[float, str]] = {}

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        first()
        for task, site in asked:
            key = task, site

            def done(problem: str, key: tuple[int, str] = key) -> None:
                assert key not in told
                told[key] = (loop.time(), problem)

            staging.bring(task, site, done)
            assert key not in told, "from within the call"
        await asyncio.sleep(1000)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(ask())
    return told


def test_two_files_over_one_link_take_twice_as_long_as_one() -> None:
    """1000 bytes at 100 a second, after one of latency: 11 s; two share it: 21 s."""
    tasks = [Task(id="t", data=("f",)), Task(id="u", data=("g",))]

    assert come(SimulatedDataStaging(tasks, SITES, at("a", "f")), [(0, "b")]) == {
        (0, "b"): (11.0, "")
    }
    both = come(SimulatedDataStaging(tasks, SITES, at("a", "f", "g")), [(0, "b"), (1, "b")])
    assert both == {(0, "b"): (21.0, ""), (1, "b"): (21.0, "")}


def test_many_that_wait_for_a_file_bring_it_once() -> None:
    tasks = [Task(id=f"t{i}", data=("f",)) for i in range(5)]

    told = come(SimulatedDataStaging(tasks, SITES, at("a", "f")), [(i, "b") for i in range(5)])

    assert set(told.values()) == {(11.0, "")}


def test_what_has_come_stays_and_may_come_from_there() -> None:
    tasks = [Task(id="t", data=("f",))]
    staging = SimulatedDataStaging(tasks, SITES, at("a", "f"))
    come(staging, [(0, "b")])

    assert {copy.site for copy in staging.copies("f")} == {"a", "b"}
    assert come(staging, [(0, "b")]) == {(0, "b"): (0.0, "")}


def test_sites_without_a_link_share_their_files() -> None:
    staging = SimulatedDataStaging([Task(id="t", data=("f",))], SITES, at("a", "f"))

    assert come(staging, [(0, "c")]) == {(0, "c"): (0.0, "")}


def test_a_file_without_a_copy_is_told_with_the_others() -> None:
    """All that could come has come by then."""
    staging = SimulatedDataStaging([Task(id="t", data=("f", "g", "h"))], SITES, at("a", "f"))

    told = come(staging, [(0, "b")])

    assert told == {(0, "b"): (11.0, "g: no copy of it is known; h: no copy of it is known")}


def test_over_one_link_go_as_many_files_at_once_as_in_a_real_run() -> None:
    """One more than may: the first share the link, and the last has it to itself."""
    names = [f"f{i}" for i in range(AT_ONCE + 1)]
    tasks = [Task(id=name, data=(name,)) for name in names]

    told = come(SimulatedDataStaging(tasks, SITES, at("a", *names)), [(i, "b") for i in range(5)])

    first = 1.0 + 10.0 * AT_ONCE
    assert [told[i, "b"][0] for i in range(AT_ONCE)] == [first] * AT_ONCE
    assert told[AT_ONCE, "b"] == (first + 11.0, "")


def test_what_a_task_registers_is_at_its_site_with_its_size() -> None:
    made = Task(id="t", outputs=(File("o", size=300),), registers={"o": "made/o"})
    staging = SimulatedDataStaging([made, Task(id="u", data=("made/o",))], SITES, {})
    kept: list[str] = []

    told = come(staging, [], first=lambda: staging.keep(0, "a", kept.append))
    assert (told, kept) == ({}, [""])
    assert staging.copies("made/o") == [Replica(name="made/o", site="a", url="", size=300)]
    assert come(staging, [(1, "b")]) == {(1, "b"): (4.0, "")}
