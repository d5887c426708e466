"""What the resource broker chooses in fixed grids, and why, is what was recorded."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.broker.matchmaking.broker_rig import Asked, Grid, job, site, status
from tests.recording import assert_recorded, pick

from bursar.broker.matchmaking.broker import SiteMatch
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.model.errors import SiteError
from bursar.model.matching import CHOICES, RankWeights, SiteStatus
from bursar.model.site import SiteFacts

FILE = Path(__file__).parent / "traces"
STEPS = 32
REQUIREMENTS = (
    None,
    None,
    None,
    "other.FreeCPUs > 1",
    "other.speed >= 1 && other.WaitingJobs < 5",
    'other.color == "red" || other.Processors > 4',
    "other.FreeMemory > 2",
)
RANKS = (
    None,
    None,
    None,
    "other.FreeCPUs",
    "-other.EstimatedTraversalTime - other.WaitingJobs",
    "other.speed * other.Processors",
    "other.nothing",
)


class Distances:
    """Seconds for files, by their names and those of sites."""

    def __init__(self, chance: random.Random, names: list[str]) -> None:
        self.transfer = {(f, s): pick(chance, 0.0, 5.0, 40.0) for f in "xy" for s in names}
        self.access = {(f, s): pick(chance, 0.0, 1.0, 9.0) for f in "xy" for s in names}

    def transfer_times(self, data: tuple[str, ...], sites: Any) -> list[float]:
        return [sum(self.transfer[f, s] for f in data) for s in sites]

    def access_times(self, data: tuple[str, ...], sites: Any) -> list[float]:
        return [sum(self.access[f, s] for f in data) for s in sites]


def said(chance: random.Random, one: SiteFacts, now: float) -> SiteStatus:
    return status(
        one.name,
        pick(chance, 0.0, 10.0, 100.0, 300.0, None),
        pick(chance, 0, 1, one.processors),
        now - pick(chance, 0.0, 5.0, 60.0),
        running=pick(chance, 0, 2),
        waiting=pick(chance, 0, 3, 9),
        free_memory=pick(chance, None, 1, 4),
        state=pick(chance, *["Production"] * 5, "Draining"),
    )


def asked(chance: random.Random, number: int, names: list[str]) -> BrokerJob:
    return job(
        number,
        processors=pick(chance, 1, 1, 2, 4),
        runtime=pick(chance, None, 30.0, 60.0, 200.0),
        memory=pick(chance, None, None, 3),
        data=pick(chance, (), (), ("x",), ("x", "y")),
        requirements=pick(chance, *REQUIREMENTS),
        rank=pick(chance, *RANKS),
        site=pick(chance, *[None] * 12, names[0], "s9"),
        alpha=pick(chance, None, 0.0, 0.7),
        beta=pick(chance, None, 1.0, 0.2),
        attributes=pick(chance, {}, {}, {"FuzzyRank": "true"}),
    )


def trace(choice: str, seed: int) -> list[str]:
    """Lines on each job's site, on how all were weighed, and on what was refused."""
    chance = random.Random(f"{choice} {seed}")
    sites = [
        site(
            f"s{i}",
            pick(chance, 1, 2, 4, 8),
            speed=pick(chance, 0.5, 1.0, 2.0),
            memory=pick(chance, None, 2, 10),
            attributes={"color": pick(chance, "red", "blue")}
            | pick(chance, {}, {}, {"requirements": "other.processors < 3"}),
        )
        for i in range(5)
    ]
    names = [one.name for one in sites]
    answers = Asked()
    grid = Grid(
        sites,
        [said(chance, one, 0.0) for one in sites[: pick(chance, 4, 5)]],
        seed=seed,
        choice=choice,
        files=Distances(chance, names) if seed % 2 else None,
        direct=answers if seed % 3 == 2 else None,
        weights=RankWeights(alpha=pick(chance, 0.5, 0.9), beta=pick(chance, 0.5, 0.1)),
        as_published=seed % 4 == 3,
    )
    lines: list[str] = [f"world {choice} {seed}"]
    there: list[int] = []
    for number in range(STEPS):
        now = grid.clock.now = grid.clock.now + pick(chance, 0.0, 1.0, 10.0, 50.0)
        what = pick(chance, "job", "job", "job", "arrived", "began", "ended", "failed", "told")
        if what == "told":
            one = pick(chance, *sites)
            grid.index.tell(said(chance, one, now))
            for each in sites:
                answers.answers[each.name] = (
                    SiteError("away") if chance.random() < 0.3 else said(chance, each, now)
                )
        elif what == "job":
            wanted = asked(chance, number, names)
            match = grid.broker.choose(wanted)
            lines.append(f"{now} {match}")
            if isinstance(match, SiteMatch):
                lines.append(f"  best {match.best(3)}")
                lines += [f"  {match.reason_of(name)}" for name in names]
                grid.broker.sent(wanted, match.site)
                there.append(number)
            if chance.random() < 0.15:
                lines.append(f"  {grid.broker.explain(wanted)}")
        elif there:
            which = pick(chance, *there)
            if what == "arrived":
                grid.broker.arrived(which)
            elif what == "began":
                grid.broker.began(which)
            else:
                there.remove(which)
                grid.broker.ended(which, well=what == "ended")
        lines.append(f"  {grid.broker.in_flight} under way, {grid.broker.evaluations} evaluations")
    return lines


@pytest.mark.parametrize("choice", CHOICES)
def test_choices_are_those_that_were_recorded(choice: str) -> None:
    lines = [line for seed in range(3) for line in trace(choice, seed)]
    assert_recorded(FILE / f"{choice}.txt", lines)
