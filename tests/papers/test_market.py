"""The study of the market: its books, its processors and its prices, in small."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.papers.checking import check_findings

from bursar.market.accounts import Accounts
from bursar.market.trade_messages import Accept as Accepted
from bursar.market.trade_messages import Bid, Confirm, PriceQuote
from bursar_papers.catalogue import find
from bursar_papers.experiment import Experiment
from bursar_papers.market.customer import HIGHEST, LOWEST, MarketCustomer, draw_values
from bursar_papers.market.market_experiments import (
    BUYERS,
    BUYERS_PROTOCOLS,
    POLICIES,
    buyers_setting,
    setting,
)
from bursar_papers.market.market_findings import differences
from bursar_papers.market.market_measures import (
    PROTOCOLS,
    MarketProtocol,
    find_violations,
    measure,
    simulate_market,
    sold_twice,
)
from bursar_papers.market.market_simulation import BEGIN, COST_SHARE, MarketSimulation

SMALL = {"users": 2, "jobs": 15, "seed": 3}
UNITS = 1_000_000


def traded(protocol: MarketProtocol, **cell: object) -> MarketSimulation:
    return simulate_market(setting({**SMALL, **cell}), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_money_is_conserved(protocol: MarketProtocol) -> None:
    """What users have left and owners have earned is what was granted, to the micro-unit."""
    place = traded(protocol)

    accounts = place.accounts
    granted = sum(customer.budget for customer in place.customers.values())
    left = sum(accounts.balance(f"user:{name}") for name in place.customers)
    earned = sum(accounts.balance(f"provider:{name}") for name in place.owners)
    assert place.deals
    assert left + earned == granted
    assert earned == sum(deal.agreement.terms.amount for deal in place.deals)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nobody_is_oversold(protocol: MarketProtocol) -> None:
    """At no start of a deal are more of an owner's processors sold than there are."""
    place = traded(protocol, users=4)
    agreements = [deal.agreement for deal in place.deals]

    for mark in agreements:
        used = sum(
            a.processors
            for a in agreements
            if a.owner == mark.owner and a.start <= mark.start < a.terms.end
        )
        assert used <= place.owners[mark.owner].capacity.processors


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_job_is_done_once_and_in_time(protocol: MarketProtocol) -> None:
    place = traded(protocol)

    for customer in place.customers.values():
        bought = [job for d in place.deals if d.customer is customer for job in d.jobs]
        assert sorted(bought) == sorted(customer.ended)
        assert all(end <= place.end for end in customer.ended.values())


@pytest.mark.parametrize("policy", POLICIES)
def test_a_quoted_price_holds(policy: str) -> None:
    """What is paid for a deal is what was quoted for it, whatever prices did later."""
    place = traded("posted", policy=policy)

    quotes = {
        (m.deal, m.sender, m.number): m.terms
        for m in place.exchange.delivered
        if isinstance(m, PriceQuote)
    }
    accepted = [
        quotes[m.deal, m.to, m.of] for m in place.exchange.delivered if isinstance(m, Accepted)
    ]
    paid = {row.agreement: row.amount for row in place.accounts.rows if row.kind == "settle"}
    assert accepted == [deal.agreement.terms for deal in place.deals]
    assert paid == {d.agreement.id: d.agreement.terms.amount for d in place.deals}


@pytest.mark.parametrize("protocol", ["english", "vickrey", "dutch", "first-price", "share"])
def test_nobody_pays_more_than_it_bid(protocol: MarketProtocol) -> None:
    """The price is at most the winner's highest bid of that auction, and it is what was told."""
    place = traded(protocol)

    highest: dict[tuple[str, str], int] = {}
    for message in place.exchange.delivered:
        key = message.deal, message.sender
        if isinstance(message, Bid):
            highest[key] = max(highest.get(key, 0), message.amount)
    confirmed = [m for m in place.exchange.delivered if isinstance(m, Confirm)]
    assert len(confirmed) == len(place.deals)
    for message in confirmed:
        assert message.agreement.terms.amount <= highest[message.deal, message.to]


def test_bargaining_ends_between_cost_and_list() -> None:
    """No deal is below the owner's cost, 0.8 of its list price, nor above the list price."""
    place = traded("bargaining")

    for deal in place.deals:
        cost, amount = place.costs[deal.agreement.owner], deal.agreement.terms.amount
        assert cost <= amount <= cost / COST_SHARE


def test_an_owner_that_fails_gives_the_money_back() -> None:
    """Of the deals that ran into the outage nothing is earned, and their jobs wait again."""
    wanted = replace(setting({**SMALL, "jobs": 40}), outage=(90.0, 270.0))
    place = simulate_market(wanted, "posted")

    cheapest = next(iter(place.owners))
    lost = [
        deal.agreement
        for deal in place.deals
        if deal.agreement.owner == cheapest and BEGIN + 90 <= deal.agreement.start < BEGIN + 270
    ]
    assert lost
    assert place.refunds == {a.id: a.terms.amount for a in lost}
    assert measure(place).refunded == sum(a.terms.amount for a in lost) / UNITS


def test_a_lost_payment_is_found() -> None:
    """The owners' book has a payment that the customers' has not."""
    place = traded("posted")
    rows = list(place.accounts.rows)
    last = next(row for row in reversed(rows) if row.kind == "settle")
    place.accounts = Accounts(
        opened=place.accounts.accounts.values(),
        rows=[row for row in rows if row.number < last.number],
    )

    assert any("paid" in fault for fault in find_violations(place))


@pytest.mark.parametrize("figure", ["protocols", "policies", "prices", "breakdown", "buyers"])
def test_the_same_seed_gives_the_same_rows(figure: str, tmp_path: Path) -> None:
    (experiment,) = find("market", figure)
    cell = {**experiment.cells("quick")[-1], "jobs": 15}

    rows = experiment.measure(cell, tmp_path)

    assert rows == experiment.measure(cell, tmp_path)
    assert rows != experiment.measure({**cell, "seed": 99}, tmp_path)


@pytest.mark.parametrize("experiment", find("market", None), ids=lambda e: e.figure)
def test_small_cells_give_findings_and_charts(experiment: Experiment, tmp_path: Path) -> None:
    cells = [cell for cell in experiment.cells("quick") if cell["users"] != 2 or cell["seed"] < 1]
    rows = [r for cell in cells for r in experiment.measure({**cell, "jobs": 10}, tmp_path)]

    check_findings(experiment.findings(rows))
    assert experiment.charts(rows)


@pytest.mark.parametrize("owners", BUYERS_PROTOCOLS)
def test_many_buyers_have_the_jobs_and_the_money_of_few(owners: int) -> None:
    """200 jobs, ten processors and 342,000 in all, whoever competes for them."""
    for buyers in BUYERS:
        wanted = buyers_setting({"owners": owners, "users": buyers, "jobs": 200, "seed": 0})
        assert wanted.customers * wanted.jobs == 200
        assert wanted.customers * wanted.budget == pytest.approx(342_000.0)
        assert wanted.processors * len(wanted.prices) == 10
        assert wanted.deadline == 1_980.0


def test_what_is_sold_twice_is_counted() -> None:
    """A deal that is in the books a second time has its processors for its 90 s once too often."""
    wanted = buyers_setting({"owners": 10, "users": 5, "jobs": 20, "seed": 0})
    place = simulate_market(wanted, "posted")
    assert sold_twice(place) == 0
    place.deals.append(place.deals[0])
    assert sold_twice(place) == 90.0


def test_one_bidder_pays_the_reserve_in_every_auction() -> None:
    """Without rivals English and Vickrey end at the reserve, and a shaded bid is the reserve."""
    for protocol in ("english", "vickrey", "dutch", "first-price"):
        place = traded(protocol, users=1)
        for deal in place.deals:
            assert deal.agreement.terms.amount == place.costs[deal.agreement.owner]


def test_a_shaded_bid_is_the_equilibrium_bid() -> None:
    """
    Value 100 of 80 to 120. Two bidders, no reserve: 100 - (100 - 80) / 2 = 90. Three:
    100 - 20 / 3 = 93.3. Reserve 90, two bidders: 100 - (20^2 - 10^2) / (2 * 20) = 92.5.
    """
    customer = MarketCustomer(
        traded("share").customers["user-1"].manager, 100 * UNITS, (100 * UNITS,)
    )
    assert (LOWEST, HIGHEST) == (0.8, 1.2)

    assert customer.shaded(0, 100 * UNITS, 0, 1) == pytest.approx(90 * UNITS)
    assert customer.shaded(0, 100 * UNITS, 0, 2) == pytest.approx(100 * UNITS - 20 * UNITS / 3)
    assert customer.shaded(0, 100 * UNITS, 90 * UNITS, 1) == pytest.approx(92.5 * UNITS)
    assert customer.shaded(0, 100 * UNITS, 70 * UNITS, 0) == 70 * UNITS


def test_values_of_a_customer_do_not_depend_on_the_others() -> None:
    alone, among = traded("share", users=1), traded("share", users=4)
    assert alone.customers["user-1"].values == among.customers["user-1"].values
    assert draw_values(1, 1, 5, 100) != draw_values(1, 2, 5, 100)


def test_differences_are_taken_seed_by_seed() -> None:
    rows = [
        {"seed": seed, "kind": kind, "paid": paid}
        for kind, values in (("a", [1.0, 5.0]), ("b", [3.0, 4.0]))
        for seed, paid in enumerate(values)
    ]
    sample = differences(rows, "paid", {"kind": "a"}, {"kind": "b"})
    assert (sample.mean, sample.count) == (-0.5, 2)
