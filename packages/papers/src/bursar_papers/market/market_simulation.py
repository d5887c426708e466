"""
The simulated market: owners, customers and a book of accounts on a clock of events.

Time goes by periods, each as long as a job. In the minute before a period its processors
are traded. What is agreed is held at once, paid when it begins, and refunded when it ends
where the owner did not deliver; jobs that were lost wait again.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count

import numpy as np

from bursar.market.account_records import LedgerAccount
from bursar.market.accounts import Accounts
from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import MessageExchange, TradeMessage, TradingParty
from bursar.market.trade_server import BargainingRules, TradeServer
from bursar.model.money import Micros, Pricing, Refusal, Rule, to_micros
from bursar_papers.market.customer import MarketCustomer, draw_values
from bursar_papers.market.double_auction import DoubleAuctionParty

BEGIN = 1_772_434_800.0 - 990.0
"""Half a campaign before six in the evening in Melbourne, seconds since the epoch."""

TRADING_LEAD = 60.0
"""Seconds before a period in which it is traded."""

COST_SHARE = 0.8
"""What a processor costs its owner, as a share of the base price: no deal goes below."""

AVOIDANCE = 450.0
"""Seconds for which a customer avoids an owner that failed it."""

FIRST_GROUP = "physics"
"""The group of the first customer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarketScenario:
    """
    Describes the parties of a market and the traded goods.

    Parameters
    ----------
    customers, jobs
        How many customers, and jobs of each.
    seconds
        That each job takes on one processor.
    deadline
        Seconds from the begin.
    budget
        Of each customer, currency units.
    prices
        Base price of each owner, per processor-second.
    processors
        Of each owner.
    rules
        Of every owner's pricing.
    pooled
        The owners sell as one.
    ahead, block
        Where not 0: quotes are also asked for so many periods later, and for so many
        jobs in a row.
    outage
        From when to when the cheapest owner delivers nothing, seconds from the begin.
    counted_on
        Share of all processors on which each customer counts until the deadline.
    seed
        Of values and arrivals.
    """

    customers: int
    jobs: int
    seconds: float
    deadline: float
    budget: float
    prices: tuple[float, ...]
    processors: int = 1
    rules: tuple[Rule, ...] = ()
    pooled: bool = False
    ahead: int = 0
    block: int = 0
    outage: tuple[float, float] | None = None
    counted_on: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class JobAgreement:
    """An agreement and the jobs that run under the agreement."""

    agreement: Agreement
    customer: MarketCustomer
    jobs: tuple[int, ...]


class MarketSimulation:
    """
    The market of a setting; :meth:`run` applies a trading procedure to each period.

    Attributes
    ----------
    owners, customers
        By name; owners from the cheapest on.
    costs
        Of one job at each owner, micro-units.
    deals, refunds
        What was agreed, and what was given back of it by agreement; micro-units.
    """

    def __init__(self, setting: MarketScenario) -> None:
        self.setting = setting
        self.rng = np.random.default_rng([setting.seed, 0])
        budget = to_micros(setting.budget)
        prices = {f"owner-{price:g}": price for price in sorted(setting.prices)}
        processors = setting.processors
        if setting.pooled:
            prices = {"pool": sum(prices.values()) / len(prices)}
            processors *= len(setting.prices)
        self.processors = setting.processors * len(setting.prices)
        self.owners = {name: self._owner(name, p, processors) for name, p in prices.items()}
        self.costs = {n: to_micros(COST_SHARE * p * setting.seconds) for n, p in prices.items()}
        self.customers: dict[str, MarketCustomer] = {}
        for i in range(1, setting.customers + 1):
            values = draw_values(setting.seed, i, setting.jobs, budget)
            self.customers[f"user-{i}"] = MarketCustomer(TradeManager(f"user-{i}"), budget, values)
        managers = [customer.manager for customer in self.customers.values()]
        parties: list[TradingParty] = [*self.owners.values(), *managers]
        self.desks = {party.name: DoubleAuctionParty(party.name, party) for party in parties}
        self.floor = DoubleAuctionParty("floor")
        self.exchange = MessageExchange([*self.desks.values(), self.floor])
        self.accounts = open_customer_accounts(self)
        self.deals: list[JobAgreement] = []
        self.refunds: dict[str, Micros] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()

    # Time.

    def at(self, moment: float, action: Callable[[float], None]) -> None:
        """Schedule an action; actions of equal times run in the order of scheduling."""
        # The running number decides between equal times, as functions cannot be compared, and keeps
        # equal seeds equal.
        heapq.heappush(self._events, (moment, next(self._order), action))

    def run(self, trade: "TradingProcedure") -> None:
        """Trade every period, and run until no event is left."""
        for start in self.periods():
            self.at(start - TRADING_LEAD, partial(trade, self, start))
            self.at(start, self.exchange.tick)
        while self._events:
            now, _, action = heapq.heappop(self._events)
            action(now)

    def periods(self) -> list[float]:
        """Return the start of each period, seconds since the epoch."""
        seconds = self.setting.seconds
        return [BEGIN + i * seconds for i in range(int(self.setting.deadline // seconds))]

    @property
    def end(self) -> float:
        """The deadline, seconds since the epoch."""
        return BEGIN + self.setting.deadline

    # Trade.

    def carry(self, messages: Iterable[TradeMessage], now: float) -> list[TradeMessage]:
        """Deliver messages and their answers; return all that were delivered."""
        before = len(self.exchange.delivered)
        self.exchange.deliver(messages, now)
        return self.exchange.delivered[before:]

    def lot(self, start: float, jobs: int = 1, processors: int = 1) -> DealTemplate:
        """Return a template for processors from a time on, for ``jobs`` jobs in sequence."""
        seconds = jobs * self.setting.seconds
        return DealTemplate(
            processors=processors, seconds=seconds, earliest=start, latest=start + seconds
        )

    def limits(self, customer: MarketCustomer, now: float) -> dict[int, Micros]:
        """
        Return the most that a customer pays now for each of its next jobs, micro-units by job.

        There are at most as many jobs as processors. Limits rise with urgency: the share of the
        processors on which the customer counts that its waiting jobs need until the deadline, 1 at
        most.

        Parameters
        ----------
        now
            Seconds since the epoch.
        """
        left = max(self.setting.seconds, self.end - now)
        processors = self.processors * self.setting.counted_on
        needed = len(customer.waiting) * self.setting.seconds / (processors * left)
        money = self.accounts.balance(f"user:{customer.name}")
        return dict(customer.limits(money, min(1.0, needed), self.processors))

    def visits(self, start: float) -> Iterator[tuple[float, MarketCustomer, int]]:
        """Yield random times in the minute before a period, each with a buyer and a job."""
        for customer in self.customers.values():
            jobs = customer.waiting[: self.processors]
            moments = np.sort(
                self.rng.uniform(start - TRADING_LEAD, start - TRADING_LEAD / 10, len(jobs))
            )
            for moment, job in zip(moments, jobs, strict=True):
                yield float(moment), customer, job

    def hold(self, customer: MarketCustomer, order: str, amount: Micros, now: float) -> bool:
        """Set aside the most an order may cost; False when the customer lacks the money."""
        answer = self.accounts.hold(now, f"{order} ordered", customer.name, order, amount)
        return not isinstance(answer, Refusal)

    def drop(self, order: str, now: float) -> None:
        """Release the money that an order still holds."""
        left = self.accounts.balance(f"held:{order}")
        if left:
            _require_booked(self.accounts.release(now, f"{order} over", order, left))

    def agree(
        self,
        customer: MarketCustomer,
        order: str,
        jobs: Iterable[int],
        agreement: Agreement,
        now: float,
    ) -> None:
        """Turn an order into a deal: hold the price, and schedule payment and delivery."""
        # First: the customer need not have the money for the order and for the deal at once.
        self.drop(order, now)
        deal = JobAgreement(agreement, customer, tuple(jobs))
        amount, name = agreement.terms.amount, agreement.id
        _require_booked(self.accounts.hold(now, f"{name} agreed", customer.name, name, amount))
        self.deals.append(deal)
        for job in deal.jobs:
            customer.waiting.remove(job)
        self.at(agreement.start, lambda moment: self._pay(deal, moment))
        self.at(agreement.terms.end, lambda moment: self._deliver(deal, moment))

    # Inside.

    def _owner(self, name: str, price: float, processors: int) -> TradeServer:
        return TradeServer(
            name,
            processors=processors,
            pricing=Pricing(price, self.setting.rules),
            validity=TRADING_LEAD,
            bargaining=BargainingRules(floor=COST_SHARE),
            groups={"user-1": frozenset({FIRST_GROUP})},
        )

    def _pay(self, deal: JobAgreement, now: float) -> None:
        agreement, amount = deal.agreement, deal.agreement.terms.amount
        name, owner = agreement.id, agreement.owner
        _require_booked(self.accounts.settle(now, paid_key(name), name, owner, amount))
        self.owners[owner].note_payment(deal.customer.name, amount)

    def _deliver(self, deal: JobAgreement, now: float) -> None:
        agreement, customer = deal.agreement, deal.customer
        lost = []
        for i, job in enumerate(deal.jobs):
            begin = agreement.start + (i // agreement.processors) * self.setting.seconds
            if self.is_out(agreement.owner, begin):
                lost.append(job)
            else:
                customer.ended[job] = begin + self.setting.seconds
        if lost:
            # To the front again: jobs are bought for in their order.
            customer.waiting[:0] = lost
            customer.avoided[agreement.owner] = now + AVOIDANCE
            amount = agreement.terms.amount * len(lost) // len(deal.jobs)
            self.refunds[agreement.id] = amount
            name = agreement.id
            _require_booked(self.accounts.refund(now, refund_key(name), name, amount))

    def is_out(self, owner: str, begin: float) -> bool:
        """Whether an owner breaks down during a job that begins at a moment."""
        if self.setting.outage is None or owner != next(iter(self.owners)):
            return False
        first, last = (BEGIN + moment for moment in self.setting.outage)
        return begin < last and begin + self.setting.seconds > first


TradingProcedure = Callable[[MarketSimulation, float, float], None]
"""Trades one period: from the market, the begin of the period and now."""


def open_customer_accounts(place: MarketSimulation) -> Accounts:
    """Return a book in which every customer is granted a budget."""
    accounts = Accounts()
    for owner in place.owners:
        _require_booked(accounts.open_account(LedgerAccount(name=owner, kind="provider")))
    for customer in place.customers.values():
        _require_booked(accounts.open_account(LedgerAccount(name=customer.name)))
        _require_booked(
            accounts.grant(BEGIN, f"{customer.name} granted", customer.name, customer.budget)
        )
    return accounts


def paid_key(agreement: str) -> str:
    """Key under which both sides book the payment."""
    return f"{agreement} paid"


def refund_key(agreement: str) -> str:
    """Key under which both sides book the refund."""
    return f"{agreement} refunded"


def _require_booked(answer: object) -> None:
    """Raise RuntimeError when the book refused an entry of the market."""
    if isinstance(answer, Refusal):
        raise RuntimeError(f"the book refuses: {answer.reason}")
