"""Which machines are bought, what they cost, and how likely they stay."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.model.allocation import Allocation
from bursar.model.cloud import BillingRules, CloudEndpoint, MachinePrice, MachineType, SpotTerms
from bursar.model.plan import Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.sites.cloud.machine_choice import (
    MachineOffer,
    cheapest_cover,
    free_offers,
    machine_for,
    machine_slots,
    mean_spot_price,
    odds_of_any,
    odds_of_interruption,
    planned_machines,
    sold,
    with_base_on_demand,
)
from bursar.sites.cloud.provider import SpotPrice


def kind(
    name: str, processors: int, hourly: float | None, most: int = 3, **more: object
) -> MachineType:
    price = None if hourly is None else MachinePrice(hourly=hourly)
    return MachineType(name=name, processors=processors, price=price, most=most, **more)  # type: ignore[arg-type]


def cover_cost(offers: list[MachineOffer]) -> tuple[int, float, int]:
    unknown = sum(offer.most_hourly is None for offer in offers)
    return unknown, math.fsum(offer.most_hourly or 0.0 for offer in offers), len(offers)


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.one_of(st.none(), st.integers(0, 8)), st.integers(1, 3)),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 12),
)
def test_a_cover_is_the_cheapest_of_all(
    kinds: list[tuple[int, int | None, int]], wanted: int
) -> None:
    """Every choice of machines is tried by hand; none that suffices is cheaper."""
    offers = [
        (MachineOffer(kind(f"m{i}", size, hourly)), count)
        for i, (size, hourly, count) in enumerate(kinds)
    ]

    found = cheapest_cover(wanted, offers)

    for i, (offer, count) in enumerate(offers):
        assert found.count(offer) <= count, i
    ways = []
    for counts in itertools.product(*(range(count + 1) for _, count in offers)):
        way = [offer for (offer, _), n in zip(offers, counts, strict=True) for _ in range(n)]
        if sum(offer.machine.processors for offer in way) >= wanted:
            ways.append(cover_cost(way))
    if ways:
        assert sum(offer.machine.processors for offer in found) >= wanted
        assert cover_cost(found) == min(ways)
    else:
        assert len(found) == sum(count for _, count in offers)


def test_a_pool_gets_the_largest_machine_of_the_cheapest_cover() -> None:
    """10 processors: 8 for 1.0 and 2 for 0.3 are cheaper than 16 for 1.5."""
    offers = [
        (MachineOffer(kind("small", 2, 0.3)), 3),
        (MachineOffer(kind("middle", 8, 1.0)), 3),
        (MachineOffer(kind("large", 16, 1.5)), 3),
    ]
    pilot = Allocation(name="a", processors=10)

    offer = machine_for(pilot, offers)

    assert offer is not None
    assert offer.machine.name == "middle"
    # By whole machines, at the price of one processor of it: 1 an hour for 8.
    bought = sold(pilot, offer)
    assert bought.processors == 8
    assert bought.unit_price == pytest.approx(1.0 / 3600 / 8)


def test_a_pool_gets_a_smaller_machine_where_the_money_is_short() -> None:
    """
    3 processors: 8 for 0.5 an hour are cheaper than two times 2 for 0.3. With 0.4 for the hour
    that is set aside, one small machine is bought; with less than 0.3 nothing can be.
    """
    large, small = MachineOffer(kind("large", 8, 0.5)), MachineOffer(kind("small", 2, 0.3))
    offers = [(large, 3), (small, 3)]
    pilot = Allocation(name="a", processors=3)

    assert machine_for(pilot, offers) == large
    assert machine_for(pilot, offers, 0.5, 3600.0) == large
    assert machine_for(pilot, offers, 0.4, 3600.0) == small
    # Refused for want of money then, with the amount that the cheapest choice is short of.
    assert machine_for(pilot, offers, 0.2, 3600.0) == large
    # An agreed time counts besides, and a spot machine by its ceiling.
    timed = replace(pilot, duration=3600.0)
    assert machine_for(timed, offers, 0.7, 3600.0) == small
    spot = MachineOffer(kind("spot", 8, None, spot=SpotTerms(ceiling=0.5)), is_spot=True)
    assert machine_for(pilot, [(spot, 1), (small, 3)], 0.4, 3600.0) == small
    # A plan's machine was paid for by the plan.
    assert machine_for(replace(pilot, start=0.0), offers, 0.4, 3600.0) == large


def test_a_plan_gets_the_machine_that_it_was_made_with() -> None:
    """A spot machine that is cheaper does not take the place of one on demand."""
    spot = SpotTerms(ceiling=0.2, price=MachinePrice(hourly=0.1))
    machine = kind("m", 4, 0.4, spot=spot)
    cloud = CloudEndpoint(provider="ec2", machines=(machine,))
    offers = [(MachineOffer(machine), 1), (MachineOffer(machine, is_spot=True), 2)]
    slots = machine_slots("aws", cloud)
    assert {slot.unit_price for slot in slots} == {0.1 / 3600 / 4}

    for hourly, is_spot in ((0.4, False), (0.1, True)):
        price = hourly / 3600 / 4
        pilot = Allocation(name="a", processors=4, start=90.0, unit_price=price, whole=True)
        offer = machine_for(pilot, offers)
        assert offer is not None
        assert offer.is_spot is is_spot
        # Money is set aside for the ceiling, which is the most that may be asked.
        most = sold(pilot, offer)
        assert most.unit_price == pytest.approx((0.2 if is_spot else 0.4) / 3600 / 4)
        assert math.isinf(most.duration)
        assert not most.whole


def test_the_base_is_bought_on_demand_and_the_rest_as_spot() -> None:
    """With a base of 2 of 5 machines, the first two are on demand, whatever is held besides."""
    machine = kind("m", 4, 0.4, most=5, spot=SpotTerms(ceiling=0.2, base=2))
    cloud = CloudEndpoint(provider="ec2", machines=(machine,))
    on_demand, as_spot = MachineOffer(machine), MachineOffer(machine, is_spot=True)

    assert free_offers(cloud, {}) == [(on_demand, 2), (as_spot, 3)]
    assert free_offers(cloud, {on_demand: 1, as_spot: 3}) == [(on_demand, 1)]
    assert free_offers(cloud, {on_demand: 2, as_spot: 1}) == [(as_spot, 2)]
    assert free_offers(cloud, {on_demand: 2, as_spot: 3}) == []
    assert free_offers(cloud, {}, barred=["m"]) == []


def test_a_plan_of_spot_machines_gets_its_base_on_demand() -> None:
    """
    Of two spot machines the one that is held longer is bought on demand instead.

    100 s and 200 s of use, after 90 s of start-up, at 0.36 an hour (0.0001 a second): 0.019 and
    0.029. On demand the longer one costs 290 s at 0.0002: 0.058, and both together 0.077.
    """
    spot = SpotTerms(ceiling=0.5, price=MachinePrice(hourly=0.36), odds=0.1, base=1)
    machine = kind("m", 4, 0.72, most=3, spot=spot)
    cloud = CloudEndpoint(provider="ec2", machines=(machine,))
    site = SiteFacts(name="aws", kind="cloud", processors=12, cloud=cloud)
    slot = next(slot for slot in machine_slots("aws", cloud) if slot.unit_price == 0.36 / 14400)
    purchases = tuple(Purchase(slot=replace(slot, duration=seconds)) for seconds in (100.0, 200.0))
    plan = Plan(
        purchases=purchases, placements=(), makespan=290.0, cost=0.048, currency="EUR",
        utilisation=1.0, algorithm="heft",
    )  # fmt: skip

    mixed = with_base_on_demand(plan, [site])

    assert mixed.cost == pytest.approx(0.077)
    assert [p.slot.duration for p in mixed.purchases] == [100.0, 200.0]
    as_spot, on_demand = planned_machines(mixed, [site])
    assert (as_spot.count, as_spot.offer.is_spot) == (1, True)
    # 190 s of odds of a tenth in an hour: 1 - 0.9 ** (190 / 3600).
    assert as_spot.odds == pytest.approx(1 - 0.9 ** (190 / 3600))
    assert on_demand.words("EUR") == (
        "aws: 1 m on demand, 0.0806 h at 0.72 EUR an hour (the sites file)"
    )
    assert as_spot.words("EUR").endswith("at most 0.5; odds of an interruption: 0.6%")
    assert with_base_on_demand(mixed, [site]) == mixed


def test_a_slot_is_a_machine_that_is_paid_from_its_purchase() -> None:
    """Start-up is a fixed price: 90 s at 3.6 an hour are 0.09; at least an hour is paid."""
    machine = kind("m", 4, 3.6, most=2)
    cloud = CloudEndpoint(
        provider="ec2", machines=(machine,), billing=BillingRules(minimum=60.0, unit=3600.0)
    )

    one, other = machine_slots("aws", cloud)

    assert one == other
    assert (one.site, one.start, one.processors) == ("aws", 90.0, 4)
    assert one.duration == 3600.0 - 90.0
    assert one.fixed_price == pytest.approx(0.09)
    assert (one.divisible, one.extensible, one.leased) == (False, True, False)


def test_a_mean_of_prices_is_weighted_by_time() -> None:
    """0.1 for 100 s, 0.3 for 300 s, 0.2 from then on: (10 + 90 + 20) / 500 = 0.24."""
    history = [SpotPrice(0.0, 0.1), SpotPrice(100.0, 0.3), SpotPrice(400.0, 0.2)]

    assert mean_spot_price(history, 0.0, 500.0) == pytest.approx(0.24)
    assert mean_spot_price(history, 150.0, 250.0) == pytest.approx(0.3)
    assert mean_spot_price(history, 900.0, 1000.0) == pytest.approx(0.2)
    assert mean_spot_price([], 0.0, 1.0) is None


def test_odds_follow_from_how_often_the_price_rose_above_the_ceiling() -> None:
    """
    Two rises in 10 hours below the ceiling: 1 - exp(-(2 + 1/2) / 10) = 0.2212.
    """
    hour = 3600.0
    history = [
        SpotPrice(0.0, 0.1),
        SpotPrice(4 * hour, 0.9),
        SpotPrice(5 * hour, 0.2),
        SpotPrice(8 * hour, 0.8),
        SpotPrice(9 * hour, 0.1),
    ]

    assert odds_of_interruption(history, 0.5, 12 * hour) == pytest.approx(0.2212, abs=1e-4)
    # Without a rise the odds are low and not 0: 1 - exp(-0.5 / 12).
    assert odds_of_interruption(history, 1.0, 12 * hour) == pytest.approx(0.0408, abs=1e-4)
    assert odds_of_interruption(history[:1], 0.5, 600.0) is None
    assert odds_of_any(0.1, 2.0) == pytest.approx(0.19)
