"""What the strategies advise in fixed situations, and what is then expected, is recorded."""

import math
import random
from pathlib import Path
from typing import Any

import pytest
from tests.recording import assert_recorded, pick

from bursar.broker.adaptive import AdaptiveScheduleAdviser
from bursar.broker.adviser import NimrodAdviser, SchedulingSnapshot, SiteSnapshot, price_intervals
from bursar.broker.estimates import RuntimeEstimates
from bursar.broker.feasibility import assess_feasibility
from bursar.broker.packing import JobSizeClasses
from bursar.model.campaign import Goal

FOLDER = Path(__file__).parent / "traces"
STATED: Any = ("time", "cost", "none", "cost-time", "conservative-time")


def priced(chance: random.Random) -> tuple[tuple[float, float, float], ...]:
    """One price for ever, or up to three in turn."""
    begins = [0.0, *sorted({pick(chance, 3.0, 7.0, 15.0) for _ in range(pick(chance, 0, 1, 2))})]
    return tuple(
        (begin, end, pick(chance, 0.0, 0.5, 1.0, 2.0, 5.0))
        for begin, end in zip(begins, [*begins[1:], math.inf], strict=True)
    )


def position(chance: random.Random, name: str) -> SiteSnapshot:
    """A site with any of what sites may have: prices ahead, bookings, jobs that run."""
    prices = priced(chance)
    lead = pick(chance, 2.0, 6.0)
    bookable = pick(
        chance,
        (),
        tuple((b, e, p * 0.5, lead) for b, e, p in prices if e > lead) or (),
    )
    processors = pick(chance, 1, 2, 3)
    return SiteSnapshot(
        name=name,
        processors=processors,
        prices=prices,
        bookable=tuple((max(b, lead), e, p, ahead) for b, e, p, ahead in bookable),
        booked=pick(chance, (), (), ((4.0, 6.0),), ((4.0, 6.0), (5.0, 9.0))),
        fixed=pick(chance, 0.0, 0.0, 1.5),
        running=tuple(
            (pick(chance, 1.0, 2.0), pick(chance, 0.0, 0.5, 3.0))
            for _ in range(pick(chance, 0, 1, processors))
        ),
        probed=chance.random() < 0.6,
        shared=chance.random() < 0.2,
    )


def situation(chance: random.Random) -> SchedulingSnapshot:
    names = [f"s{i}" for i in range(pick(chance, 1, 2, 3))]
    sites = [position(chance, name) for name in names]
    known = chance.random() < 0.7
    estimates = RuntimeEstimates({name: pick(chance, 0.5, 1.0, 2.0) for name in names}, known)
    for _ in range(pick(chance, 0, 2, 6)):
        name, ran = pick(chance, *names), pick(chance, 0.8, 1.0, 1.7, 3.0)
        if chance.random() < 0.15:
            estimates.failed(name)
        else:
            estimates.learn(name, 1.0, ran, ran + pick(chance, 0.0, 0.2))
    sizes = [pick(chance, 1.0, 2.0, 4.0) if known else 1.0 for _ in range(pick(chance, 3, 8, 20))]
    return SchedulingSnapshot(
        sites=sites,
        sizes=JobSizeClasses.of(sizes),
        jobs=len(sizes) + pick(chance, 0, 5),
        estimates=estimates,
        time_left=pick(chance, 4.0, 9.0, 20.0, 40.0, math.inf),
        money_left=pick(chance, 5.0, 12.0, 30.0, 80.0, math.inf),
        budget=pick(chance, 80.0, math.inf),
        probes=pick(chance, 0, 0, 1, 3),
    )


def lines_of(seed: int) -> list[str]:
    chance = random.Random(f"advice {seed}")
    at = situation(chance)
    lines = [f"situation {seed}", *map(str, at.sites), f"{at.time_left} {at.money_left}"]
    advisers = {
        f"adaptive {trade_off}": AdaptiveScheduleAdviser(
            Goal(
                deadline=None if math.isinf(at.time_left) else at.time_left,
                budget=None if math.isinf(at.money_left) else at.money_left,
                trade_off=trade_off,
            )
        )
        for trade_off in (None, 0.0, 0.4, 1.0)
    }
    advisers |= {name: NimrodAdviser(name) for name in STATED}
    for name, adviser in advisers.items():
        if adviser.by_size or not name.startswith("adaptive"):
            lines.append(f"{name}: {adviser.advise(at)}")
    for overdue in (0.0, 1.0) if at.estimates.is_known else ():
        lines += [str(part) for part in price_intervals(at, overdue=overdue)]
    lines.append(f"{assess_feasibility(at, 3.0, 7.0)}")
    return lines


@pytest.mark.parametrize("part", range(5))
def test_advice_is_what_was_recorded(part: int) -> None:
    lines = [line for seed in range(12 * part, 12 * part + 12) for line in lines_of(seed)]
    assert_recorded(FOLDER / f"advice-{part}.txt", lines)
