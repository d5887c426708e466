"""Jobs booked ahead at an owner's advance price."""

import math
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bursar
from bursar.api.simulating import simulate
from bursar.api.strategy_quotes import NOTHING_YET
from bursar.broker.decision_reasons import BOOKING, BOOKING_OVER, Booking
from bursar.broker.economy import EconomyScheduler
from bursar.broker.trading import MOST, CampaignTrader, advance_start_options
from bursar.dispatch.journal import read_journal
from bursar.market.agreement import Agreement
from bursar.market.ledger import Ledger
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.money import Advance, Calendar, Pricing, Refusal
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.runs.incarnations import leases_of
from bursar.simulation.execution_model import ExecutionUncertainty

HOUR = 3600.0
UNI = """\
[site.uni]
kind = "simulated"
processors = 1
unit_price = "1 SU/core-hour"
"""
ADVANCE = """\
[[site.uni.price]]
kind = "advance"
steps = [["30min", 0.5]]
"""
NOON = """\
[[site.uni.price]]
kind = "calendar"
zone = "UTC"
hours = "12:00-24:00"
factor = 0.99
"""


def campaign(jobs: int, hours: float, **goal: Any) -> Campaign:
    """Jobs of an hour, from midnight on."""
    tasks = tuple(Task(id=str(i), runtime=HOUR) for i in range(jobs))
    return Campaign(
        name="hours", workflow=Workflow(tasks), goal=Goal(deadline=hours * HOUR, **goal)
    )


def simulated(folder: Path, jobs: int, hours: float, *parts: str, **how: Any) -> dict[str, Any]:
    """What our own strategy comes to, and its leases as they ended."""
    file = folder / "sites.toml"
    file.write_text("\n".join(parts))
    goal = {key: how.pop(key) for key in ("budget",) if key in how}
    how = {"strategy": "adaptive", **how}
    told = simulate(campaign(jobs, hours, **goal), file, name="r", runs=folder, **how).to_dict()
    journal = read_journal(folder / "r" / "journal.sqlite")
    ledger = Ledger(journal.transfers)
    assert sum(ledger.balances.values()) == 0
    assert ledger.held == 0
    return {**told, "leases": list(leases_of(journal.events).values())}


@pytest.mark.ci
def test_a_price_for_booking_ahead_is_had_by_booking_ahead(tmp_path: Path) -> None:
    """
    Five jobs of an hour, a day of time: all are booked for the afternoon, 0.99 x 0.5 each.

    Who took the advance price for one that holds then waited for noon and paid 0.99.
    """
    told = simulated(tmp_path, 5, 24, UNI, ADVANCE, NOON)

    assert told["succeeded"] == 5
    assert told["cost"] == pytest.approx(5 * 0.99 * 0.5)
    assert told["makespan_s"] == pytest.approx(17 * HOUR)
    assert {lease.unit_price for lease in told["leases"]} == {0.495 / HOUR}


@pytest.mark.parametrize(
    ("hours", "cost"), [(5.0, 3.0), (5.4, 3.0), (5.5, 2.5), (7.0, 2.5)], ids=str
)
def test_what_can_be_booked_in_time_is_booked_and_the_rest_bought(
    tmp_path: Path, hours: float, cost: float
) -> None:
    """
    Five jobs on one processor, booked half an hour ahead at the least.

    In five and a half hours all five are booked from the first half hour on: 5 x 0.5. With
    less time the first is bought at once, and the other four are booked: 1 + 4 x 0.5.
    """
    told = simulated(tmp_path, 5, hours, UNI, ADVANCE)

    assert told["succeeded"] == 5
    assert told["deadline_met"]
    assert told["cost"] == pytest.approx(cost)


def test_a_booking_is_leased_from_its_begin(tmp_path: Path) -> None:
    """Nothing is paid for the half hour before it, and no more than was agreed after it."""
    told = simulated(tmp_path, 2, 24, UNI, ADVANCE)

    assert [round(lease.unit_price * HOUR, 9) for lease in told["leases"]] == [0.5, 0.5]
    first, second = told["leases"]
    assert first.start == pytest.approx(HOUR / 2)
    assert second.start == pytest.approx(1.5 * HOUR)
    assert second.end == pytest.approx(2.5 * HOUR)


@pytest.mark.parametrize("budget", [1.0, 1.5, 2.5, 4.0])
def test_bookings_are_held_in_the_budget(tmp_path: Path, budget: float) -> None:
    """As many jobs as the money covers at the price that was agreed, and no unit more."""
    told = simulated(tmp_path, 6, 48, UNI, ADVANCE, budget=budget, anyway=True)

    assert told["cost"] <= budget
    assert told["succeeded"] == min(6, int(budget / 0.5))


@pytest.mark.parametrize("seed", range(6))
def test_no_two_jobs_share_a_processor_where_jobs_take_longer(tmp_path: Path, seed: int) -> None:
    """A job that overruns into a booking of ours delays it; that time is paid once."""
    two = UNI.replace("processors = 1", "processors = 2")
    told = simulated(
        tmp_path,
        12,
        9,
        two,
        ADVANCE,
        chance=ExecutionUncertainty(spread=0.4, seed=seed),
        anyway=True,
    )
    leases = [lease for lease in told["leases"] if lease.end > lease.start]
    for lease in leases:
        there = [x for x in leases if x.start <= lease.start < x.end - 1e-6]
        assert len(there) <= 2
    assert told["cost"] == pytest.approx(
        sum((x.end - x.start) * x.unit_price for x in leases), abs=1e-4
    )


def test_the_rules_of_the_papers_do_not_book(tmp_path: Path) -> None:
    """They buy at the price of the moment, as they are stated."""
    told = simulated(tmp_path, 5, 24, UNI, ADVANCE, strategy="cost")

    assert told["cost"] == pytest.approx(5.0)


def test_a_dearer_price_ahead_is_never_paid(tmp_path: Path) -> None:
    """Where booking costs more than buying, jobs are bought."""
    told = simulated(tmp_path, 5, 24, UNI, ADVANCE.replace("0.5", "1.5"))

    assert told["cost"] == pytest.approx(5.0)
    assert told["makespan_s"] == pytest.approx(5 * HOUR)


@pytest.mark.parametrize(
    ("hours", "cost"),
    [
        pytest.param(5.0, 5.0, marks=pytest.mark.ci),
        (5.5, 2.5),
        pytest.param(24.0, 2.5, marks=pytest.mark.ci),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["simulated", pytest.param("local", marks=pytest.mark.ci)])
def test_a_plan_that_begins_later_has_the_price_of_a_booking(
    tmp_path: Path, kind: str, hours: float, cost: float
) -> None:
    """Agreed when the plan is signed; with too little time to wait, the plan begins now."""
    file = tmp_path / "sites.toml"
    file.write_text(UNI.replace("simulated", kind) + ADVANCE)

    chosen = bursar.plan(campaign(5, hours), file).chosen

    assert chosen is not None
    assert chosen.cost == pytest.approx(cost)
    begin = min(placement.start for placement in chosen.placements)
    assert begin == pytest.approx(0.0 if cost == 5.0 else HOUR / 2)


@pytest.mark.ci
def test_without_a_deadline_a_plan_does_not_wait(tmp_path: Path) -> None:
    """Nothing but time counts then."""
    file = tmp_path / "sites.toml"
    file.write_text(UNI + ADVANCE)
    wanted = campaign(5, 1)

    chosen = bursar.plan(Campaign(name="c", workflow=wanted.workflow), file).chosen

    assert chosen is not None
    assert chosen.makespan == pytest.approx(5 * HOUR)


@pytest.mark.ci
def test_a_planned_run_pays_what_its_bookings_cost(tmp_path: Path) -> None:
    """From the plan to the bill, the leases begin when they were booked for."""
    told = simulated(tmp_path, 5, 24, UNI, ADVANCE, strategy=None)

    assert (told["provisioning"], told["succeeded"]) == ("planned", 5)
    assert told["cost"] == pytest.approx(2.5)
    assert min(lease.start for lease in told["leases"]) == pytest.approx(HOUR / 2)


def economy(jobs: int, pricing: Pricing, hours: float) -> EconomyScheduler:
    """Our own strategy on a site of one processor."""
    site = SiteFacts(name="uni", unit_price=1 / HOUR, pricing=pricing)
    trading = CampaignTrader([site], epoch=1_000_000_000.0)
    tasks = [Task(id=str(i), runtime=HOUR) for i in range(jobs)]
    goal = Goal(deadline=hours * HOUR)
    return EconomyScheduler(tasks, [site], goal, "adaptive", trading=trading)


def test_what_was_booked_goes_back_when_the_deadline_comes_nearer() -> None:
    """Before its begin that costs nothing; its job is bought or booked elsewhere, or left."""
    pricing = Pricing(1 / HOUR, (Advance(steps=((HOUR, 0.5),)),))
    made = economy(1, pricing, 10)
    past = replace(NOTHING_YET, epoch=1_000_000_000.0)
    (pilot,) = made.begin(past)
    assert (pilot.booked, pilot.start, pilot.unit_price) == (True, HOUR, 0.5 / HOUR)
    (kind, text), *_ = made.take_events()
    assert kind == BOOKING
    assert msgspec.json.decode(text, type=Booking).lease == pilot.name

    (instead,) = made.amend(Goal(deadline=1.5 * HOUR))

    assert not made.holds(pilot.name)
    assert (instead.booked, instead.start, instead.unit_price) == (False, None, 1 / HOUR)
    assert (BOOKING_OVER, pilot.name) in made.take_events()


def test_an_owner_keeps_a_booked_processor_for_who_booked_it() -> None:
    """Nobody else gets it for that time; given back, anybody does."""
    site = SiteFacts(
        name="uni", unit_price=1.0, pricing=Pricing(1.0, (Advance(steps=((60.0, 0.5),)),))
    )
    trading = CampaignTrader([site], epoch=1_000_000_000.0)
    booked = trading.buy(site, 100.0, 0.0, math.inf, ahead=60.0)
    assert isinstance(booked, Agreement)
    assert (booked.start, booked.unit_price) == (1_000_000_060.0, 0.5)

    taken = trading.buy(site, 61.0, 0.0, math.inf)
    assert isinstance(taken, Refusal)
    assert not taken.final  # it may be had later: nothing is given up for it
    assert isinstance(trading.buy(site, 60.0, 0.0, math.inf), Agreement)
    trading.over("uni", booked.id, 0.0)
    assert isinstance(trading.buy(site, 10.0, 90.0, math.inf), Agreement)


def calendar(hours: int) -> Pricing:
    """A price that changes at every so many hours of the day."""
    rules = [
        Calendar(
            zone="UTC", days=frozenset(range(7)), begin=begin, end=begin + hours * 3600, factor=2
        )
        for begin in range(0, 86_400, 2 * hours * 3600)
    ]
    return Pricing(1.0, tuple(rules))


@pytest.mark.parametrize(("hours", "periods"), [(12, 17), (2, MOST)])
def test_prices_are_known_from_now_on_without_a_gap(hours: int, periods: int) -> None:
    """
    As many changes as are looked at, each at its hour; the last price is taken to stay.

    Eight days have 16 changes of a price that changes every twelve hours, and more than enough of
    one that does every two.
    """
    site = SiteFacts(name="uni", unit_price=1.0, pricing=calendar(hours))
    midnight = 86_400.0 * 11_000

    told = CampaignTrader([site], epoch=midnight).ahead(site, 600.0, 100.0)

    length = hours * HOUR
    begins = [0.0, *(length * i - 600.0 for i in range(1, periods))]
    assert told == tuple(
        (begin, end, 2.0 if i % 2 == 0 else 1.0)
        for i, (begin, end) in enumerate(pairwise([*begins, math.inf]))
    )


def test_no_more_is_paid_than_the_limit_however_small() -> None:
    """Half a second at 1 SU per second costs 0.5 SU."""
    site = SiteFacts(name="uni", unit_price=1.0, pricing=Pricing(1.0, ()))
    trading = CampaignTrader([site], epoch=1_000_000_000.0)

    assert isinstance(trading.buy(site, 0.5, 0.0, 0.4), Refusal)
    assert isinstance(trading.buy(site, 0.5, 0.0, 0.6), Agreement)


def steps(*counts: int) -> list[SiteFacts]:
    """Sites, each with so many steps of its price for booking, every ten seconds."""
    return [
        SiteFacts(
            name=f"s{i}",
            unit_price=1.0,
            pricing=Pricing(
                1.0, (Advance(steps=tuple((10.0 * k, 1.0 - k / 10) for k in range(1, count + 1))),)
            ),
        )
        for i, count in enumerate(counts)
    ]


def test_a_plan_tries_every_combination_of_bookings_where_they_are_few() -> None:
    ways = advance_start_options(steps(1, 1, 1))

    assert sorted(tuple(way.values()) for way in ways) == [*product((0.0, 10.0), repeat=3)]


def test_a_plan_books_alike_everywhere_where_combinations_are_many() -> None:
    """Each site at its first step, then at its second; one that has no other stays at its last."""
    assert advance_start_options(steps(1, 1, 2, 1)) == [
        {},
        {"s0": 10.0, "s1": 10.0, "s2": 10.0, "s3": 10.0},
        {"s0": 10.0, "s1": 10.0, "s2": 20.0, "s3": 10.0},
    ]


def test_an_agreement_of_an_earlier_life_holds_its_time() -> None:
    """And its name: another agreement gets another one."""
    site = SiteFacts(
        name="uni", unit_price=1.0, pricing=Pricing(1.0, (Advance(steps=((60.0, 0.5),)),))
    )
    first = CampaignTrader([site], epoch=1_000_000_000.0).buy(
        site, 100.0, 0.0, math.inf, ahead=60.0
    )
    assert isinstance(first, Agreement)
    again = CampaignTrader([site], epoch=1_000_000_000.0)
    again.restore("uni", first)

    assert isinstance(again.buy(site, 100.0, 0.0, math.inf), Refusal)
    other = again.buy(site, 100.0, 0.0, math.inf, ahead=200.0)
    assert isinstance(other, Agreement)
    assert other.id != first.id


@pytest.mark.parametrize("now", [0.25 * HOUR, 1.25 * HOUR], ids=["early", "late"])
def test_a_resumed_run_takes_its_bookings_up_as_they_were(now: float) -> None:
    """The same lease, begin, length and price, whether they are to begin or have begun."""
    pricing = Pricing(1 / HOUR, (Advance(steps=((HOUR, 0.5),)),))
    before = economy(2, pricing, 10)
    (pilot,) = before.begin(replace(NOTHING_YET, epoch=1_000_000_000.0))
    texts = [text for kind, text in before.take_events() if kind == BOOKING]
    after = economy(2, pricing, 10)

    again, *others = after.begin(
        replace(NOTHING_YET, epoch=1_000_000_000.0, clock=lambda: now, bookings=texts, pilots=1)
    )

    assert again == pilot
    assert after.holds(pilot.name)
    assert all(set(other.tasks).isdisjoint(pilot.tasks) for other in others)
