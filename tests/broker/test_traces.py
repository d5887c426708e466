"""What the economy does in fixed worlds, step by step, is what was recorded."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.broker.supply_rig import World
from tests.recording import assert_recorded, pick

from bursar.broker.economy import EconomyScheduler
from bursar.broker.strategies import Named
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal, Retry
from bursar.model.provisioning import BatchScheduler
from bursar.model.site import SiteFacts
from bursar.model.task import Status, Task

FOLDER = Path(__file__).parent / "traces"
STRATEGIES: tuple[Named, ...] = (
    "time",
    "cost",
    "none",
    "cost-time",
    "conservative-time",
    "adaptive",
)
WORLDS = 8
"""Of each strategy, with seeds from 0 on."""


class Traced(World):
    """A world that writes down what the economy says and asks for."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.log: list[str] = []

    def listen(self) -> None:
        """From now on all that the economy tells is written down."""
        events = self.economy.take_events

        def told() -> list[tuple[str, str]]:
            found = events()
            self.log += [f"  {kind} {text}" for kind, text in found]
            return found

        self.economy.take_events = told  # type: ignore[method-assign]

    def _take_in(self, pilots: Sequence[Allocation]) -> None:
        for p in pilots:
            self.log.append(
                f"  pilot {p.name} at {p.site}: {p.tasks} for {p.duration} at {p.unit_price},"
                f" extensible {p.extensible}"
            )
        super()._take_in(pilots)
        self.log.append(f"  wake {self.economy.wake} verdict {self.economy.verdict!r}")

    # The other tests' checks are of worlds without shared sites, limits and waits.

    def _hear(self, pilots: Sequence[Allocation]) -> None:
        self.economy.take_events()

    def _check(self, pilot: Allocation) -> None:
        assert pilot.tasks

    def _check_places(self) -> None:
        pass


def made(strategy: Named, seed: int) -> tuple[Traced, random.Random]:
    """Sites, jobs and a goal at random; every other world has prices that change."""
    chance = random.Random(f"{strategy} {seed}")
    sites = [
        SiteFacts(
            name=f"s{i}",
            kind="simulated",
            processors=pick(chance, 1, 2, 3),
            speed=pick(chance, 0.5, 1.0, 2.0),
            unit_price=pick(chance, 0.0, 1.0, 2.0, 5.0),
            fixed_price=pick(chance, 0.0, 0.0, 2.0),
            batch=BatchScheduler(manager="slurm") if seed % 3 == 2 and i == 0 else None,
        )
        for i in range(pick(chance, 2, 3))
    ]
    lengths = pick(chance, (1.0, 2.0, 5.0), (0.01, 0.1), (None,), (None, 2.0))
    runtimes = [pick(chance, *lengths) for _ in range(pick(chance, 6, 10, 14))]
    goal = Goal(
        deadline=pick(chance, None, 6.0, 12.0, 40.0),
        budget=pick(chance, None, 15.0, 30.0, 60.0),
        trade_off=pick(chance, None, 0.0, 0.5, 1.0),
    )
    changes = {
        site.name: [(begin, pick(chance, 0.5, 1.0, 4.0)) for begin in (4.0, 10.0)]
        for site in sites
        if chance.random() < 0.6
    }
    world = Traced(runtimes, sites, goal, strategy, changes=changes if seed % 2 else None)
    tasks = [
        Task(id=f"t{i}", runtime=runtime, wall_limit=pick(chance, None, None, 7.0))
        for i, runtime in enumerate(runtimes)
    ]
    world.economy = EconomyScheduler(
        tasks,
        sites,
        goal,
        strategy,
        trading=world.bazaar,
        retry=Retry(attempts=3, backoff=pick(chance, 0.0, 1.5)),
    )
    world.listen()
    world.log.append(f"{[vars_of(site) for site in sites]}, {runtimes}, {goal}, {changes}")
    return world, chance


def vars_of(site: SiteFacts) -> tuple[Any, ...]:
    return (site.name, site.processors, site.speed, site.unit_price, site.fixed_price)


def happens(world: Traced, chance: random.Random) -> None:
    """One event at random."""
    what = pick(chance, "ends", "ends", "next", "next", "lost", "refused", "amended", "waits")
    if what in ("ends", "next", "lost") and not world.held:
        what = "waits"
    world.log.append(f"{world.now}: {what}")
    if what == "ends":
        name = pick(chance, *sorted(world.held))
        status = pick(chance, *[Status.SUCCEEDED] * 3, Status.FAILED, Status.LOST, Status.CANCELLED)
        world.end(name, status, pick(chance, 0.5, 2.0, 5.0))
    elif what == "next":
        world.end_next()
    elif what == "lost":
        world.lose(pick(chance, *sorted(world.held)))
    elif what == "refused":
        world.refusals = pick(chance, 1, 2)
    elif what == "amended":
        world.amend(
            Goal(deadline=pick(chance, None, 12.0, 50.0), budget=pick(chance, None, 40.0, 90.0))
        )
    else:
        world.wait(world.now + pick(chance, 1.0, 6.0))


def trace(strategy: Named, seed: int) -> list[str]:
    """Lines on everything that was decided in one world."""
    world, chance = made(strategy, seed)
    world.begin()
    for _ in range(14):
        if world.is_over:
            break
        happens(world, chance)
    world.log.append("runs out")
    if not world.is_over:
        world.run_out()
    ended = {task: str(status) for task, status in sorted(world.finished.items())}
    world.log.append(f"{world.now}: spent {world.spent}, {ended}")
    return world.log


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_decisions_are_those_that_were_recorded(strategy: Named) -> None:
    found = [line for seed in range(WORLDS) for line in (f"world {seed}", *trace(strategy, seed))]
    assert_recorded(FOLDER / f"{strategy}.txt", found)
