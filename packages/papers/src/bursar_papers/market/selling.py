"""Trade that owners begin: each period every processor is auctioned, or all are shared out."""

from collections.abc import Callable
from functools import partial

from bursar.market.agreement import Terms
from bursar.market.negotiation.auction import Auctioneer
from bursar.market.negotiation.auctioneers import (
    DutchAuctioneer,
    EnglishAuctioneer,
    SealedAuctioneer,
    ShareAuctioneer,
)
from bursar.market.trade_messages import Ask, Bid, TradeMessage
from bursar.model.money import Micros, Refusal, to_micros
from bursar_devtools.double_auction import DoubleAuctioneer
from bursar_papers.market.buying import confirmed_agreements
from bursar_papers.market.customer import MarketCustomer
from bursar_papers.market.double_auction import DoubleAuctionTrader
from bursar_papers.market.market_simulation import TRADING_LEAD, MarketSimulation

STEP = 0.5
"""Of English and Dutch auctions, currency units per processor-second."""

HIGH = 40.0
"""At which the Dutch clock opens, currency units per processor-second."""

CLOSES = TRADING_LEAD / 2
"""Seconds for which bids are taken."""

MakeAuctioneer = Callable[[MarketSimulation, str, str, list[str], float, float], Auctioneer]
"""From owner, deal, bidders, begin of the lot and now to the auction."""


def english(place: MarketSimulation, start: float, now: float) -> None:
    """Open and rising."""
    _auctions(place, start, now, _english, truthful=True)


def dutch(place: MarketSimulation, start: float, now: float) -> None:
    """The clock falls; customers wait as long as they would shade a bid."""
    _auctions(place, start, now, _dutch, truthful=False)


def first_price(place: MarketSimulation, start: float, now: float) -> None:
    """Sealed; customers shade their bids."""
    _auctions(place, start, now, partial(_sealed, second_price=False), truthful=False)


def vickrey(place: MarketSimulation, start: float, now: float) -> None:
    """Sell by sealed bids at the second price; customers bid a job's value."""
    _auctions(place, start, now, partial(_sealed, second_price=True), truthful=True)


def double(place: MarketSimulation, start: float, now: float) -> None:
    """
    One auction of all processors: each customer gives one order, at the mean of its jobs'
    limits, and each owner asks what a job costs it.
    """
    deal = f"double {start:.0f}"
    ordered: dict[str, list[int]] = {}
    for customer in _shuffled(place):
        limits = place.limits(customer, now)
        # An order has one price for all its processors: the mean of what the next jobs are worth.
        amount = sum(limits.values()) // max(1, len(limits))
        if amount and place.hold(customer, f"{deal} {customer.name}", amount * len(limits), now):
            ordered[customer.name] = list(limits)
            _order(place, customer.name, deal, Bid, len(limits), amount)
    if not ordered:
        return
    for name, owner in place.owners.items():
        _order(place, name, deal, Ask, owner.capacity.processors, place.costs[name])
    auction = DoubleAuctioneer(
        "floor", deal, ordered, place.owners, place.lot(start), closes=now + CLOSES
    )
    place.floor.sides[deal] = auction
    place.carry(auction.open(now), now)
    place.at(auction.closes, partial(_clear, place, auction, start, ordered))


def share(place: MarketSimulation, start: float, now: float) -> None:
    """
    Share out all processors in proportion to the customers' bids.

    A bid is the mean limit of the customer's next jobs, times the number of jobs that must run each
    period to finish in time.
    """
    (name,) = place.owners
    deal = f"share {start:.0f}"
    bidders = []
    for customer in _shuffled(place):
        limits = place.limits(customer, now)
        if not limits:
            continue
        needed = len(customer.waiting) * place.setting.seconds / (place.end - start)
        bid = int(sum(limits.values()) / len(limits) * needed)
        bid = min(bid, place.accounts.balance(f"user:{customer.name}"))
        if bid and place.hold(customer, f"{deal} {customer.name}", bid, now):
            bidders.append(customer.name)
            customer.manager.join(deal, name, bid)
    if not bidders:
        return
    lot = place.lot(start, processors=place.processors)
    auction = ShareAuctioneer(name, deal, bidders, lot, closes=now + CLOSES)
    _open(place, name, auction, {n: list(place.customers[n].waiting) for n in bidders}, now)


# Auctions of one processor.


def _auctions(
    place: MarketSimulation, start: float, now: float, make: MakeAuctioneer, *, truthful: bool
) -> None:
    """
    One auction at each owner, all at the same time.

    A customer bids with each of its next jobs at another owner, drawn at random.
    """
    jobs: dict[str, dict[str, int]] = {name: {} for name in place.owners}
    bids: dict[str, dict[str, Micros]] = {name: {} for name in place.owners}
    for customer in _shuffled(place):
        limits = place.limits(customer, now)
        owners = place.rng.permutation(list(place.owners))
        # One job at each owner at most: two of one customer would bid against each other.
        for owner, (job, limit) in zip(owners, limits.items(), strict=False):
            jobs[str(owner)][customer.name] = job
            bids[str(owner)][customer.name] = limit
    for owner in place.owners:
        deal = f"{owner} {start:.0f}"
        rivals = len(place.customers) - 1
        bidders = []
        for name, limit in bids[owner].items():
            customer, job = place.customers[name], jobs[owner][name]
            bid = limit
            if not truthful:
                bid = customer.shaded(job, limit, place.costs[owner], rivals)
            if bid and place.hold(customer, f"{deal} {name}", bid, now):
                bidders.append(name)
                customer.manager.join(deal, owner, bid)
        if bidders:
            auction = make(place, owner, deal, bidders, start, now)
            _open(place, owner, auction, {n: [jobs[owner][n]] for n in bidders}, now)


def _english(
    place: MarketSimulation, owner: str, deal: str, bidders: list[str], start: float, now: float
) -> Auctioneer:
    return EnglishAuctioneer(
        owner,
        deal,
        bidders,
        place.lot(start),
        reserve=place.costs[owner],
        increment=to_micros(STEP * place.setting.seconds),
        quiet=CLOSES,
        opened=now,
    )


def _dutch(
    place: MarketSimulation, owner: str, deal: str, bidders: list[str], start: float, now: float
) -> Auctioneer:
    reserve = place.costs[owner]
    first = max(reserve, to_micros(HIGH * place.setting.seconds))
    step = to_micros(STEP * place.setting.seconds)
    return DutchAuctioneer(
        owner,
        deal,
        bidders,
        place.lot(start),
        first=first,
        reserve=reserve,
        step=step,
        # The clock comes down to the reserve within half of the time before the period.
        every=TRADING_LEAD / 2 / (first // step + 2),
        opened=now,
    )


def _sealed(
    place: MarketSimulation,
    owner: str,
    deal: str,
    bidders: list[str],
    start: float,
    now: float,
    *,
    second_price: bool,
) -> Auctioneer:
    return SealedAuctioneer(
        owner,
        deal,
        bidders,
        place.lot(start),
        reserve=place.costs[owner],
        closes=now + CLOSES,
        second_price=second_price,
    )


def _open(
    place: MarketSimulation, owner: str, auction: Auctioneer, jobs: dict[str, list[int]], now: float
) -> None:
    opened = place.owners[owner].auction(auction, now)
    if isinstance(opened, Refusal):
        raise RuntimeError(f"{owner} cannot sell: {opened.reason}")
    _follow(place, owner, auction, jobs, place.carry(opened, now), now)


def _look(
    place: MarketSimulation, owner: str, auction: Auctioneer, jobs: dict[str, list[int]], now: float
) -> None:
    said = place.carry(place.owners[owner].tick(now), now)
    _follow(place, owner, auction, jobs, said, now)


def _follow(
    place: MarketSimulation,
    owner: str,
    auction: Auctioneer,
    jobs: dict[str, list[int]],
    said: list[TradeMessage],
    now: float,
) -> None:
    """Conclude the deals of a closed auction, or schedule the next look at an open one."""
    if not auction.is_over:
        place.at(auction.next_tick(), partial(_look, place, owner, auction, jobs))
        return
    for name, wanted in jobs.items():
        order = f"{auction.deal} {name}"
        for agreement in confirmed_agreements(said, auction.deal, name):
            run = wanted[: agreement.processors]
            place.agree(place.customers[name], order, run, agreement, now)
        place.drop(order, now)


# The double auction's floor.


def _order(
    place: MarketSimulation,
    party: str,
    deal: str,
    kind: type[Bid] | type[Ask],
    count: int,
    amount: Micros,
) -> None:
    place.desks[party].sides[deal] = DoubleAuctionTrader(
        party, deal, "floor", kind=kind, processors=count, amount=amount, currency="SU"
    )


def _clear(
    place: MarketSimulation,
    auction: DoubleAuctioneer,
    start: float,
    jobs: dict[str, list[int]],
    now: float,
) -> None:
    """Clear the double auction, and let each owner sell the traded processors."""
    place.carry(auction.tick(now), now)
    for trade in auction.clearing.trades if auction.clearing else ():
        terms = Terms.of_amount(place.lot(start, 1, trade.processors), start, trade.amount)
        sold = place.owners[trade.owner].sell(auction.deal, trade.buyer, terms, now)
        if isinstance(sold, Refusal):
            raise RuntimeError(f"{trade.owner} cannot sell: {sold.reason}")
        customer, wanted = place.customers[trade.buyer], jobs[trade.buyer]
        run, jobs[trade.buyer] = wanted[: trade.processors], wanted[trade.processors :]
        place.agree(customer, f"{auction.deal} {customer.name}", run, sold, now)
    for name in jobs:
        place.drop(f"{auction.deal} {name}", now)


def _shuffled(place: MarketSimulation) -> list[MarketCustomer]:
    """Return the customers in random order, as the first of equal bids wins."""
    customers = list(place.customers.values())
    return [customers[i] for i in place.rng.permutation(len(customers))]
