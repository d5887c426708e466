"""What owners, buyers and the budget's guard answer in fixed worlds is what was recorded."""

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.market.trading import NOW, UNITS
from tests.recording import assert_recorded, pick

from bursar.market.agreement import DealTemplate
from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.market.negotiation.auction import Auctioneer
from bursar.market.negotiation.auctioneers import (
    DutchAuctioneer,
    EnglishAuctioneer,
    SealedAuctioneer,
    ShareAuctioneer,
)
from bursar.market.negotiation.bilateral import Concession
from bursar.market.trade_manager import TradeManager
from bursar.market.trade_messages import MessageExchange, TradeMessage, encode
from bursar.market.trade_server import BargainingRules, TradeServer
from bursar.model.money import Adjusting, Advance, Demand, ForGroup, Loyalty, Pricing, Transfer
from bursar.model.task import Outcome, Status

FOLDER = Path(__file__).parent / "traces"
OWNERS = ("u0", "u1", "u2")
BUYERS = ("ann", "bob")


class Market:
    """Three owners of different kinds and two buyers, to whom things happen at random."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(f"market {seed}")
        rules = (
            Demand(points=((0.0, 1.0), (1.0, 2.0))),
            ForGroup(groups=frozenset({"lab"}), factor=0.5),
            Advance(steps=((1_000.0, 0.9), (4_000.0, 0.75))),
            Loyalty(steps=((400 * UNITS, 0.8),)),
            Adjusting(target=0.5, gain=0.2, least=0.6, most=2.0, every=600.0),
        )
        self.owners = {
            name: TradeServer(
                name,
                processors=pick(chance, 4, 6, 8),
                pricing=Pricing(
                    pick(chance, 0.5, 1.0, 2.0), tuple(r for r in rules if chance.random() < 0.5)
                ),
                fixed_price=pick(chance, 0.0, 3.0),
                holds=chance.random() < 0.5,
                bargaining=BargainingRules(
                    floor=pick(chance, 0.5, 0.8, 1.0),
                    rounds=pick(chance, 3, 10),
                    beta=pick(chance, 0.5, 1.0, 2.0),
                ),
                groups={"ann": frozenset({"lab"})},
                customers=pick(chance, None, None, {"bob"}),
            )
            for name in OWNERS
        }
        self.buyers = {name: TradeManager(name) for name in BUYERS}
        self.exchange = MessageExchange([*self.owners.values(), *self.buyers.values()])
        self.now = NOW
        self.deals: list[tuple[str, str]] = []
        self.lines = [f"world {seed}"]
        self._told = 0

    def template(self) -> DealTemplate:
        chance = self.chance
        start = self.now + pick(chance, 0.0, 500.0, 5_000.0)
        seconds = pick(chance, 100.0, 400.0)
        return DealTemplate(
            processors=pick(chance, 1, 3, 4, 7),
            seconds=seconds,
            earliest=start,
            latest=start + seconds + pick(chance, 0.0, 300.0, 4_000.0),
            currency=pick(chance, *["SU"] * 9, "EUR"),
        )

    def auctioneer(self, me: str, deal: str, others: tuple[str, ...], reverse: bool) -> Auctioneer:
        chance = self.chance
        lot = msgspec.structs.replace(self.template(), processors=3, currency="SU")
        lot = msgspec.structs.replace(lot, latest=lot.earliest + lot.seconds)
        reserve = pick(chance, 0, 200, 900) * UNITS
        close = {"closes": self.now + 60}
        kind = pick(chance, "sealed", "vickrey", "english", "dutch", "share")
        if kind == "english":
            return EnglishAuctioneer(
                me, deal, others, lot, reserve=reserve or 900 * UNITS,
                increment=pick(chance, 30, 70) * UNITS, quiet=20.0, opened=self.now,
                reverse=reverse,
            )  # fmt: skip
        if kind == "dutch":
            ends = (100, 900) if reverse else (900, 100)
            return DutchAuctioneer(
                me, deal, others, lot, first=ends[0] * UNITS, reserve=ends[1] * UNITS,
                step=150 * UNITS, every=10.0, opened=self.now, reverse=reverse,
            )  # fmt: skip
        if kind == "share" and not reverse:
            return ShareAuctioneer(me, deal, others, lot, **close)
        return SealedAuctioneer(
            me, deal, others, lot, reserve=reserve or 900 * UNITS, second_price=kind == "vickrey",
            reverse=reverse, **close,
        )  # fmt: skip

    def event(self, number: int) -> None:
        """Something happens; all that is said because of it is written down."""
        chance, deal = self.chance, f"d{number}"
        buyer = self.buyers[pick(chance, *BUYERS)]
        owner = self.owners[pick(chance, *OWNERS)]
        what = pick(
            chance, "ask", "ask", "accept", "accept", "bargain", "bargain", "call", "sale",
            "wanted", "time", "time", "time", "stray", "stray", "cancel", "again", "paid", "forget",
        )  # fmt: skip
        said: Any = ()
        if what == "ask":
            said = buyer.ask(deal, OWNERS, self.template(), self.now, limit=None)
        elif what == "accept":
            quotes = [q for d, _ in self.deals for q in buyer.quotes(d, self.now)]
            said = buyer.accept(pick(chance, *quotes), self.now) if quotes else ()
        elif what == "bargain":
            first, most = pick(chance, 50, 200) * UNITS, pick(chance, 150, 400, 900) * UNITS
            concession = Concession(
                first=min(first, most), reserve=most, rounds=pick(chance, 2, 4, 9), beta=1.0
            )
            said = buyer.bargain(deal, owner.name, self.template(), concession, self.now,
                                 until=self.now + pick(chance, 0.0, 60.0))  # fmt: skip
        elif what == "call":
            said = buyer.call(deal, OWNERS, self.template(), self.now + 60, self.now,
                              limit=pick(chance, None, 300 * UNITS))  # fmt: skip
        elif what == "sale":
            for each in self.buyers.values():
                each.join(deal, owner.name, pick(chance, 80, 350, 700) * UNITS)
            said = owner.auction(self.auctioneer(owner.name, deal, BUYERS, False), self.now)
        elif what == "wanted":
            said = buyer.auction(self.auctioneer(buyer.name, deal, OWNERS, True), self.now)
        elif what == "time":
            self.now += pick(chance, 5.0, 30.0, 61.0, 700.0)
            self.exchange.tick(self.now)
        elif what == "stray" and self.exchange.delivered:
            old = pick(chance, *self.exchange.delivered[-12:])
            said = (self.altered(old),)
        elif what == "cancel" and self.deals:
            d, _ = pick(chance, *self.deals)
            said = [m for party in OWNERS for m in buyer.cancel(d, party, self.now)]
        elif what == "again" and self.deals:
            said = buyer.again(pick(chance, *self.deals)[0])
        elif what == "paid":
            owner.note_payment(buyer.name, pick(chance, 100, 400) * UNITS)
            owner.reprice(Pricing(pick(chance, 0.5, 1.5)))
        elif what == "forget" and self.deals:
            self.lines.append(f"  {buyer.forget(pick(chance, *self.deals)[0])}")
        self.deals.append((deal, buyer.name))
        self.lines.append(f"{self.now} {what} {buyer.name} {owner.name}")
        if isinstance(said, tuple | list):
            self.exchange.deliver(said, self.now)
        else:
            self.lines.append(f"  {said}")
        fresh = self.exchange.delivered[self._told :]
        self._told += len(fresh)
        self.lines += [f"  {encode(message).decode()}" for message in fresh]
        self.lines.append(f"  {self.state()}")

    def altered(self, old: TradeMessage) -> TradeMessage:
        """A message that was said before, the same or with something wrong about it."""
        how: Any = pick(
            self.chance,
            {},
            {"number": old.number + 1},
            {"number": old.number + 2},
            {"sender": "eve"},
            {"deal": "nothing"},
        )
        if hasattr(old, "amount") and old.amount and self.chance.random() < 0.5:
            how = {"number": old.number + 1, "amount": old.amount * 2}
        try:
            return msgspec.structs.replace(old, **how)
        except ValueError:  # no such message can be written
            return old

    def state(self) -> str:
        """Where everything stands, in one line."""
        last = self.deals[-4:]
        where = [self.buyers[b].states(d) for d, b in last]
        sold = {n: [a.id for a in o.agreements] for n, o in self.owners.items()}
        bought = {n: len(b.agreements) for n, b in self.buyers.items()}
        parties = [*self.owners.values(), *self.buyers.values()]
        return f"{where} {sold} {bought} {[p.next_tick() for p in parties]}"


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_is_what_was_recorded(seed: int) -> None:
    market = Market(seed)
    for number in range(40):
        market.event(number)
    for _ in range(3):
        market.now += 1_000.0
        market.exchange.tick(market.now)
    market.lines.append(market.state())
    for name, owner in market.owners.items():
        market.lines.append(f"{name} {owner.state} {owner.agreements}")
    assert_recorded(FOLDER / f"market-{seed}.txt", market.lines)


class Budget:
    """A guard over leases of every kind, to which things happen at random."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(f"guard {seed}")
        self.limits = {i: pick(chance, None, 4.0, 12.0) for i in range(60)}
        budget = pick(chance, None, 40, 90, 250)
        self.guard = BudgetGuard(
            None if budget is None else budget * UNITS,
            limit_of=self.limits.get,
            on_budget=pick(chance, {}, {0.004: "warn", 0.3: "warn", 0.6: "drain", 0.9: "stop"}),
        )
        self.now = 0.0
        self.leases: list[str] = []
        self.tasks: list[int] = []
        self.rows: list[Any] = []
        self.lines = [f"world {seed} {budget} {self.limits}"]

    def lease(self, number: int) -> Lease:
        chance = self.chance
        start = self.now + pick(chance, 0.0, 0.0, 6.0)
        return Lease(
            id=f"lease-{number}",
            site=pick(chance, "a", "b"),
            processors=pick(chance, 1, 2, 3),
            unit_price=pick(chance, 0.5, 1.0, 1.0, 0.0, None),
            fixed_price=pick(chance, 0.0, 0.5),
            start=start,
            until=pick(chance, None, None, None, start + 9.0),
            asked=chance.random() < 0.15,
            unwatched=pick(chance, 0.0, 0.0, 3.0),
        )

    def event(self, number: int) -> None:
        """Something happens; the answer, and all that the guard knows, are written down."""
        chance, guard, now = self.chance, self.guard, self.now
        which = pick(chance, *(self.leases or ["lease-x"]))
        there = which in guard.leases
        what = pick(
            chance, "open", "open", "admit", "admit", "admit", "settle", "time", "time", "time",
            "close", "end", "pay", "amend", "moved", "restore", "lost", "withdraw", "encumber",
        )  # fmt: skip
        told: Any = ""
        if what == "open":
            told = guard.open(lease := self.lease(number), pick(chance, None, now))
            if told is None:
                self.leases.append(lease.id)
        elif what == "admit":
            told = guard.admit(number, which, now)
            self.tasks.append(number)
        elif what == "settle" and self.tasks:
            task = self.tasks.pop(int(chance.random() * len(self.tasks)))
            self.rows += guard.settle([Outcome(task=task, attempt=1, status=Status.SUCCEEDED)], now)
        elif what == "time":
            self.now += pick(chance, 0.2, 1.0, 4.0)
            told = guard.tick(self.now)
        elif what in ("close", "end") and there:
            told = getattr(guard.charges, what)(which, now)
        elif what == "pay" and guard.charges.unsettled:
            whose = pick(chance, *guard.charges.unsettled)
            held = pick(chance, None, (now - 3.0, now), (now, now), (now - 9.0, now - 2.0))
            told = guard.charges.pay(whose, held, now, pick(chance, "record", "bound"))
        elif what == "amend":
            told = guard.amend(pick(chance, None, 60, 150, 300) and 150 * UNITS, now)
        elif what == "moved" and there:
            told = guard.end_at(which, now + pick(chance, 1.0, 5.0, 30.0), now)
        elif what == "restore":
            guard.charges.restore(lease := self.lease(number), now)
            told = lease
        elif what == "lost":
            told = guard.charges.close_lost(self.lease(number), now + pick(chance, 0.0, 4.0))
        elif what == "withdraw" and self.tasks:
            guard.withdraw(pick(chance, *self.tasks), now)
        elif what == "encumber" and there:
            guard.encumber(number, which, now + 6.0)
        self.lines.append(f"{now} {what} {which}: {told}")
        self.rows += guard.transfers()
        self.lines.append(f"  {self.state()}")

    def state(self) -> str:
        guard, now = self.guard, self.now
        least = {
            lease: (guard.affordable(lease), guard.least_budget(1, lease, now, 3.0),
                    guard.least_budget(0, lease, now, 20.0))
            for lease in guard.leases
        }  # fmt: skip
        return (
            f"{guard.ledger.held} {guard.ledger.free} {guard.spent(now)} {guard.spent_at('a', now)}"
            f" {guard.rate(now)} {guard._holds.out_of_money(now)} {guard.next_tick(now)}"
            f" {guard.charges.unsettled} {least}"
        )


def told(row: Transfer) -> str:
    """Return a row in the words in which it was recorded."""
    return (
        f"Transfer(time={row.time}, source={row.source!r}, target={row.target!r}, "
        f"amount={row.amount}, kind={row.kind!r}, lease={row.agreement!r}, memo={row.memo!r})"
    )


@pytest.mark.parametrize("seed", range(10))
def test_what_the_guard_allows_is_what_was_recorded(seed: int) -> None:
    budget = Budget(seed)
    budget.guard.begin(0.0)
    for number in range(40):
        budget.event(number)
    budget.lines += [told(row) for row in budget.rows]
    assert sum(Ledger(budget.rows).balances.values()) == 0
    assert_recorded(FOLDER / f"guard-{seed}.txt", budget.lines)
