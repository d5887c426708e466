"""Measures of a simulated market whose books were found in order."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, get_args

from bursar.market.accounts import Accounts
from bursar.market.statements import reconcile, rows_between
from bursar.market.trade_messages import PriceQuote
from bursar.model.money import MICROS, from_micros
from bursar.model.slot import ResourceProfile
from bursar_papers.market import buying, selling
from bursar_papers.market.customer import MarketCustomer
from bursar_papers.market.market_simulation import (
    BEGIN,
    COST_SHARE,
    TRADING_LEAD,
    JobAgreement,
    MarketScenario,
    MarketSimulation,
    TradingProcedure,
    open_customer_accounts,
    paid_key,
    refund_key,
)

MarketProtocol = Literal[
    "posted",
    "tender",
    "bargaining",
    "english",
    "vickrey",
    "dutch",
    "first-price",
    "double",
    "share",
]
PROTOCOLS: tuple[MarketProtocol, ...] = get_args(MarketProtocol)

_TRADES: MappingProxyType[MarketProtocol, TradingProcedure] = MappingProxyType(
    {
        "posted": buying.posted,
        "tender": buying.tender,
        "bargaining": buying.bargaining,
        "english": selling.english,
        "vickrey": selling.vickrey,
        "dutch": selling.dutch,
        "first-price": selling.first_price,
        "double": selling.double,
        "share": selling.share,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketMeasures:
    """
    Figures by which the study compares protocols and pricing policies.

    Parameters
    ----------
    completed
        Jobs done, per cent of all; none ends after the deadline.
    paid
        Net of refunds, for each job done, currency units; None where none was.
    paid_first, paid_others
        The same for the first customer and for the others.
    completed_first, completed_others
        Their jobs done, per cent of theirs.
    level
        What was paid in per cent of the base prices of what was bought.
    opening
        What the trade of the first period came to, currency units.
    earned
        By all owners, net of refunds, currency units.
    utilisation
        Of all processors by jobs done until the last end, per cent.
    makespan
        Last end, seconds from the begin.
    messages
        For each deal.
    welfare
        Values of the jobs done less what the processors sold cost their owners,
        currency units.
    efficiency
        The welfare in per cent of the largest there can be.
    variation
        Of jobs among owners: standard deviation over mean.
    early, ahead, blocks
        Jobs done that end in the first half of the time, that were bought before the
        minute of their period, and that were bought with others; per cent.
    refunded
        Currency units.
    """

    completed: float
    paid: float | None
    paid_first: float | None
    paid_others: float | None
    completed_first: float
    completed_others: float | None
    level: float
    opening: float
    earned: float
    utilisation: float
    makespan: float
    messages: float
    welfare: float
    efficiency: float
    variation: float
    early: float
    ahead: float
    blocks: float
    refunded: float


def simulate_market(setting: MarketScenario, protocol: MarketProtocol) -> MarketSimulation:
    """
    Simulate the market of a setting under a protocol.

    Raises
    ------
    RuntimeError
        When money was lost or made, a processor sold twice, or books differ.
    """
    place = MarketSimulation(replace(setting, pooled=protocol == "share"))
    place.run(_TRADES[protocol])
    found = find_violations(place, told=protocol != "double")
    if found:
        raise RuntimeError(f"{protocol}: {'; '.join(found)}")
    return place


def find_violations(place: MarketSimulation, *, told: bool = True) -> list[str]:
    """
    Return errors in the accounts and processors; always empty unless our code has a bug.

    Parameters
    ----------
    told
        Whether customers hear of their agreements by messages.
    """
    found = place.accounts.faults()
    found += [f"{a} still holds {b}" for a, b in place.accounts.balances.items()
              if a.startswith("held:") and b]  # fmt: skip
    # The rows alone must give the balances, and must agree with what the owners signed: money that
    # appears in one of three places only is an error in one of them.
    replayed = Accounts(opened=place.accounts.accounts.values(), rows=place.accounts.rows)
    if replayed.balances != place.accounts.balances:
        found.append("the rows do not give the balances")
    found += [
        str(difference)
        for difference in reconcile(
            rows_between(place.accounts), rows_between(owners_payments(place))
        )
    ]
    for owner in place.owners:
        found += _oversold(place, owner)
    for customer in place.customers.values():
        kept = {d.agreement.id: d.agreement for d in place.deals if d.customer is customer}
        if told and kept != {a.id: a for a in customer.manager.agreements}:
            found.append(f"{customer.name} holds other agreements than its owners")
        if len(customer.ended) + len(customer.waiting) != len(customer.values):
            found.append(f"{customer.name} has lost a job")
    return found


def owners_payments(place: MarketSimulation) -> Accounts:
    """Return the payments and refunds by the agreements that the owners signed."""
    book = open_customer_accounts(place)
    for name, owner in place.owners.items():
        for agreement in owner.agreements:
            key, amount, begin = agreement.id, agreement.terms.amount, agreement.start
            book.hold(begin, f"{key} held", agreement.customer, key, amount)
            book.settle(begin, paid_key(key), key, name, amount)
            back = place.refunds.get(key, 0)
            if back:
                book.refund(agreement.terms.end, refund_key(key), key, back)
    return book


def measure(place: MarketSimulation) -> MarketMeasures:
    """Return the measures of a market that has been traded out."""
    setting = place.setting
    customers = list(place.customers.values())
    done = sum(len(c.ended) for c in customers)
    last = max((end for c in customers for end in c.ended.values()), default=BEGIN)
    area = place.processors * (last - BEGIN)
    earned = sum(place.accounts.balance(f"provider:{owner}") for owner in place.owners)
    values = sum(c.values[job] for c in customers for job in c.ended)
    sold = [d.agreement for d in place.deals]
    costs = sum(place.costs[a.owner] * a.processors * a.seconds / setting.seconds for a in sold)
    best = max_welfare(place)
    return MarketMeasures(
        completed=100 * done / (setting.customers * setting.jobs),
        paid=_paid(place, lambda c: True),
        paid_first=_paid(place, lambda c: c is customers[0]),
        paid_others=_paid(place, lambda c: c is not customers[0]),
        completed_first=_completed(customers[:1]) or 0.0,
        completed_others=_completed(customers[1:]),
        level=100 * COST_SHARE * sum(a.terms.amount for a in sold) / costs if costs else 0.0,
        opening=sum(a.terms.amount for a in sold if a.start == BEGIN) / MICROS,
        earned=from_micros(earned),
        utilisation=100 * done * setting.seconds / area if area else 0.0,
        makespan=last - BEGIN,
        messages=len(place.exchange.delivered) / max(1, len(sold)),
        welfare=(values - costs) / MICROS,
        efficiency=100 * (values - costs) / best if best else 0.0,
        variation=_variation(place),
        early=_share(place, lambda deal, end: end <= BEGIN + setting.deadline / 2),
        ahead=_share(
            place, lambda deal, end: deal.agreement.start - deal.agreement.signed_at > TRADING_LEAD
        ),
        blocks=_share(place, lambda deal, end: deal.agreement.seconds > setting.seconds),
        refunded=from_micros(sum(place.refunds.values())),
    )


def max_welfare(place: MarketSimulation) -> float:
    """
    Return the greatest possible sum of values less costs, micro-units.

    The most valuable jobs run on the cheapest processors, while a job's value exceeds the cost.
    """
    setting = place.setting
    values = sorted((v for c in place.customers.values() for v in c.values), reverse=True)
    each = len(place.periods()) * setting.processors
    costs = sorted(
        COST_SHARE * p * setting.seconds * MICROS for p in setting.prices for _ in range(each)
    )
    return sum(max(0.0, v - c) for v, c in zip(values, costs, strict=False))


def sold_twice(place: MarketSimulation) -> float:
    """Return the processor-seconds that owners have sold beyond what they have."""
    return float(
        sum(
            (used - place.owners[owner].capacity.processors) * (end - begin)
            for owner in place.owners
            for begin, end, used in _sold(place, owner).steps()
            if used > place.owners[owner].capacity.processors
        )
    )


def mean_quotes(place: MarketSimulation) -> dict[tuple[float, str], float]:
    """Mean unit price of what each owner quoted in each trade, by seconds from the begin."""
    found: dict[tuple[float, str], list[float]] = defaultdict(list)
    seconds = place.setting.seconds
    for message in place.exchange.delivered:
        if isinstance(message, PriceQuote):
            # A quote does not say when it was made; it expires a fixed time later.
            asked = message.expires - place.owners[message.sender].validity - BEGIN
            found[asked // seconds * seconds + seconds, message.sender].append(
                message.terms.unit_price
            )
    return {key: sum(prices) / len(prices) for key, prices in sorted(found.items())}


def _paid(place: MarketSimulation, of: Callable[[MarketCustomer], bool]) -> float | None:
    customers = [c for c in place.customers.values() if of(c)]
    jobs = sum(len(c.ended) for c in customers)
    left = sum(place.accounts.balance(f"user:{c.name}") for c in customers)
    spent = sum(c.budget for c in customers) - left
    return from_micros(spent) / jobs if jobs else None


def _completed(customers: list[MarketCustomer]) -> float | None:
    jobs = sum(len(c.values) for c in customers)
    return 100 * sum(len(c.ended) for c in customers) / jobs if jobs else None


def _share(place: MarketSimulation, of: Callable[[JobAgreement, float], bool]) -> float:
    """Return the per cent of the jobs done for which a predicate of deal and end holds."""
    found = [
        of(deal, deal.customer.ended[job])
        for deal in place.deals
        if deal.agreement.id not in place.refunds
        for job in deal.jobs
    ]
    return 100 * sum(found) / len(found) if found else 0.0


def _variation(place: MarketSimulation) -> float:
    counts = dict.fromkeys(place.owners, 0)
    for deal in place.deals:
        counts[deal.agreement.owner] += len(deal.jobs)
    mean = sum(counts.values()) / len(counts)
    squares = sum((n - mean) ** 2 for n in counts.values()) / len(counts)
    return float(squares**0.5 / mean) if mean else 0.0


def _oversold(place: MarketSimulation, owner: str) -> list[str]:
    """Report times at which an owner has sold more processors than the owner has."""
    return [
        f"{owner} has sold {used} processors at {moment}"
        for moment, _, used in _sold(place, owner).steps()
        if used > place.owners[owner].capacity.processors
    ]


def _sold(place: MarketSimulation, owner: str) -> ResourceProfile:
    """Return how many processors of an owner are sold, over time."""
    return ResourceProfile.summed(
        (deal.agreement.start, deal.agreement.terms.end, deal.agreement.processors)
        for deal in place.deals
        if deal.agreement.owner == owner
    )
