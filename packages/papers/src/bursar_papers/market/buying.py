"""Trade that customers begin: they come one job at a time, in random order."""

import math
from functools import partial

from bursar.market.agreement import Agreement
from bursar.market.negotiation.bilateral import Concession
from bursar.market.trade_messages import Confirm, PriceQuote, Reject, TradeMessage
from bursar.model.money import Micros
from bursar_papers.market.customer import MarketCustomer
from bursar_papers.market.market_simulation import COST_SHARE, MarketSimulation

OPENING = 0.5
"""First offer when bargaining, as a share of what the owner lists at."""

ROUNDS = 10

CLOSES = 5.0
"""Seconds for which tenders are taken."""


def posted(place: MarketSimulation, start: float, now: float) -> None:
    """Buy each job at the cheapest quote within the job's limit."""
    for moment, customer, job in place.visits(start):
        place.at(moment, partial(_take_quote, place, customer, job, start))


def bargaining(place: MarketSimulation, start: float, now: float) -> None:
    """For each job owners are bargained with in turn, from the cheapest on."""
    for moment, customer, job in place.visits(start):
        place.at(moment, partial(_bargain, place, customer, job, start))


def tender(place: MarketSimulation, start: float, now: float) -> None:
    """Each job is put out to tender."""
    for moment, customer, job in place.visits(start):
        place.at(moment, partial(_call, place, customer, job, start))


def confirmed_agreements(messages: list[TradeMessage], deal: str, customer: str) -> list[Agreement]:
    """Return the agreements that owners confirmed to a customer in a deal."""
    return [
        m.agreement
        for m in messages
        if isinstance(m, Confirm) and (m.deal, m.to) == (deal, customer)
    ]


def _take_quote(
    place: MarketSimulation, customer: MarketCustomer, job: int, start: float, now: float
) -> None:
    limit = _limit(place, customer, job, now)
    if not limit:
        return
    order = _order(customer, job, start)
    heard: list[TradeMessage] = []
    for name, begin, jobs in _options(place, customer, start):
        lot = f"{start:.0f} {begin:.0f} {jobs}"
        owners = _open(place, customer, lot, limit, now)
        template, most = place.lot(begin, jobs), limit * jobs
        asked = customer.manager.ask(f"{order} {name}", owners, template, now, limit=most)
        said = place.carry(asked, now)
        _note(place, customer, lot, said)
        heard += said
    quotes = [
        q
        for q in heard
        if isinstance(q, PriceQuote) and q.to == customer.name and _per_job(place, q) <= limit
    ]
    if not quotes:
        return
    # Of equal prices the earlier start, then the shorter deal: the choice must not depend on the
    # order in which owners are asked.
    best = min(quotes, key=lambda q: (_per_job(place, q), q.terms.start, q.terms.seconds))
    if place.hold(customer, order, best.terms.amount, now):
        said = place.carry(customer.manager.accept(best, now), now)
        jobs = round(best.terms.seconds / place.setting.seconds)
        wanted = [job, *(other for other in customer.waiting if other != job)][:jobs]
        _conclude(place, customer, order, best.deal, wanted, said, now)


def _options(
    place: MarketSimulation, customer: MarketCustomer, start: float
) -> list[tuple[str, float, int]]:
    """Return name, start and jobs of each option: the next period, a later one, a block."""
    setting = place.setting
    later = start + setting.ahead * setting.seconds
    found = [("next", start, 1)]
    if setting.ahead and later + setting.seconds <= place.end:
        found.append(("later", later, 1))
    long = start + setting.block * setting.seconds <= place.end
    if setting.block and long and setting.block <= len(customer.waiting):
        found.append(("block", start, setting.block))
    return found


def _per_job(place: MarketSimulation, quote: PriceQuote) -> float:
    return quote.terms.amount * place.setting.seconds / quote.terms.seconds


def _bargain(
    place: MarketSimulation, customer: MarketCustomer, job: int, start: float, now: float
) -> None:
    limit = _limit(place, customer, job, now)
    order = _order(customer, job, start)
    if not limit or not place.hold(customer, order, limit, now):
        return
    lot = f"{start:.0f}"
    for owner in _open(place, customer, lot, limit, now):
        listed = place.costs[owner] / COST_SHARE
        concession = Concession(
            first=min(limit, int(OPENING * listed)), reserve=limit, rounds=ROUNDS
        )
        offer = customer.manager.bargain(order, owner, place.lot(start), concession, now)
        said = place.carry(offer, now)
        _note(place, customer, lot, said)
        if _conclude(place, customer, order, order, [job], said, now):
            return
    place.drop(order, now)


def _call(
    place: MarketSimulation, customer: MarketCustomer, job: int, start: float, now: float
) -> None:
    limit = _limit(place, customer, job, now)
    order = _order(customer, job, start)
    if not limit or not place.hold(customer, order, limit, now):
        return
    lot, closes = f"{start:.0f}", now + CLOSES
    owners = _open(place, customer, lot, limit, now)
    called = customer.manager.call(order, owners, place.lot(start), closes, now, limit=limit)
    said = place.carry(called, now)
    _note(place, customer, lot, said)
    if not _conclude(place, customer, order, order, [job], said, now):
        # A bid that was too dear keeps the call open until it closes.
        place.at(closes, partial(_award, place, customer, job, order))


def _award(
    place: MarketSimulation, customer: MarketCustomer, job: int, order: str, now: float
) -> None:
    said = place.carry(customer.manager.tick(now), now)
    if not _conclude(place, customer, order, order, [job], said, now):
        place.drop(order, now)


def _conclude(
    place: MarketSimulation,
    customer: MarketCustomer,
    order: str,
    deal: str,
    jobs: list[int],
    said: list[TradeMessage],
    now: float,
) -> bool:
    """Conclude the deals among delivered messages; return whether there was one."""
    agreements = confirmed_agreements(said, deal, customer.name)
    for agreement in agreements:
        place.agree(customer, order, jobs, agreement, now)
    return bool(agreements)


def _limit(place: MarketSimulation, customer: MarketCustomer, job: int, now: float) -> Micros:
    """Return the most that a job may cost now; 0 when the job has an agreement by now."""
    return place.limits(customer, now).get(job, 0)


def _open(
    place: MarketSimulation, customer: MarketCustomer, lot: str, limit: Micros, now: float
) -> list[str]:
    """Return the owners that are worth asking."""
    return [
        owner
        for owner in place.owners
        if customer.avoided.get(owner, now) <= now and customer.heard.get((lot, owner), 0) <= limit
    ]


def _note(
    place: MarketSimulation, customer: MarketCustomer, lot: str, said: list[TradeMessage]
) -> None:
    """Record quoted prices, and owners that refuse: a sold lot stays sold."""
    for message in said:
        if isinstance(message, PriceQuote):
            customer.heard[lot, message.sender] = _per_job(place, message)
        elif isinstance(message, Reject) and message.to == customer.name and message.of == 1:
            # Above any limit, so that this owner is not asked again for this lot.
            customer.heard[lot, message.sender] = math.inf


def _order(customer: MarketCustomer, job: int, start: float) -> str:
    return f"{customer.name} {job} {start:.0f}"
