"""The desk, through deals, crashes and time, beside a plain twin that counts second by second."""

import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.service.billing.billing_rig import MICROS, Shop
from tests.thoroughness import examples

from bursar.market.agreement import Agreement
from bursar.model.site import SiteFacts
from bursar.remote import messages as api
from bursar.service.config import MarketSettings

CREDIT = 100
PRICE = 0.25
FIXED = 1
USERS = st.sampled_from(("alice", "bob"))


@dataclass
class PlainDeal:
    """An agreement by its seconds: which of its processors were there in which."""

    user: str
    processors: int
    start: int
    end: int
    ready: int = 0
    unseen: int = 0
    delivered: int = 0
    paid: float | None = None

    @property
    def most(self) -> float:
        return self.processors * (self.end - self.start) * PRICE + FIXED

    def second(self, now: int) -> None:
        """What happens in the second that begins now."""
        if self.paid is None and self.ready and self.start <= now < self.end:
            self.delivered += self.ready
        self.unseen += 1
        if self.unseen == 60:
            self.unseen = 0
            self.seen = self.delivered

    seen: int = 0

    def settle(self) -> None:
        self.paid = self.delivered * PRICE + FIXED if self.delivered else 0.0


@dataclass
class Plain:
    """All that the desk should know."""

    deals: dict[str, PlainDeal] = field(default_factory=dict)
    given: dict[str, float] = field(default_factory=lambda: {"alice": CREDIT, "bob": CREDIT})
    keys: dict[tuple[str, str], int] = field(default_factory=dict)
    shared: dict[str, float] = field(default_factory=lambda: {"alice": 0.0, "bob": 0.0})

    def held(self, user: str) -> float:
        return sum(d.most for d in self.deals.values() if d.user == user and d.paid is None)

    def spent(self, user: str) -> float:
        paid = sum(d.paid or 0.0 for d in self.deals.values() if d.user == user)
        return paid + self.shared[user]

    def balance(self, user: str) -> float:
        return self.given[user] - self.held(user) - self.spent(user)

    def free(self, start: int, end: int) -> int:
        """Of four processors."""
        return 4 - max(
            sum(
                d.processors for d in self.deals.values() if d.paid is None and d.start <= t < d.end
            )
            for t in range(start, end)
        )


class Dealing(RuleBasedStateMachine):
    """All times are whole seconds, so that the twin can count them."""

    @initialize()
    def begin(self) -> None:
        self.shop = Shop(
            SiteFacts(name="uni", processors=4, unit_price=PRICE, fixed_price=FIXED),
            MarketSettings(credit=CREDIT, price_shared=True, validity=50.0),
        )
        self.plain = Plain()
        self.shop.journal.commit()
        self.durable = copy.deepcopy(self.plain)

    @property
    def now(self) -> int:
        return int(self.shop.now)

    @rule(
        user=USERS,
        processors=st.integers(1, 4),
        seconds=st.integers(1, 150),
        later=st.integers(0, 200),
    )
    def buy(self, user: str, processors: int, seconds: int, later: int) -> None:
        start, end = self.now + later, self.now + later + seconds
        deal = PlainDeal(user, processors, start, end)
        answer = self.shop.buy(user, processors, float(seconds), float(later))
        fits = self.plain.free(start, end) >= processors
        if not fits or deal.most > self.plain.balance(user):
            assert not isinstance(answer, Agreement)
            return
        assert isinstance(answer, Agreement)
        self.plain.deals[answer.id] = deal

    @rule(data=st.data(), processors=st.integers(0, 5))
    @precondition(lambda self: self.plain.deals)
    def ready(self, data: st.DataObject, processors: int) -> None:
        name = data.draw(st.sampled_from(list(self.plain.deals)))
        self.shop.billing.admission.ready(name, processors)
        deal = self.plain.deals[name]
        fresh = min(processors, deal.processors)
        if deal.paid is None and fresh != deal.ready:
            deal.ready, deal.unseen, deal.seen = fresh, 0, deal.delivered

    @rule(data=st.data(), user=USERS)
    @precondition(lambda self: self.plain.deals)
    def cancel(self, data: st.DataObject, user: str) -> None:
        name = data.draw(st.sampled_from(list(self.plain.deals)))
        deal = self.plain.deals[name]
        if deal.user == user:
            self.shop.billing.cancel(user, name)
            if deal.paid is None:
                deal.settle()

    @rule(user=USERS, amount=st.integers(1, 50), key=st.sampled_from("abc"))
    def deposit(self, user: str, amount: int, key: str) -> None:
        deposit = api.Deposit(amount=amount * MICROS, key=key)
        known = self.plain.keys.setdefault((user, key), amount)
        if known != amount:
            with pytest.raises(Exception, match="was used for something else"):
                self.shop.billing.accounts.deposit(user, deposit)
            return
        self.shop.billing.accounts.deposit(user, deposit)
        keyed = sum(a for (who, _), a in self.plain.keys.items() if who == user)
        self.plain.given[user] = CREDIT + keyed

    @rule(user=USERS, seconds=st.integers(1, 40), what=st.sampled_from("xy"))
    def share(self, user: str, seconds: int, what: str) -> None:
        cost = min(seconds * PRICE, max(0.0, self.plain.balance(user)))
        self.shop.billing.admission.used("shared", user, what, 1, float(seconds))
        self.plain.shared[user] += cost

    @rule(seconds=st.one_of(st.integers(0, 100), st.just(4_000)))
    def wait(self, seconds: int) -> None:
        for moment in range(self.now, self.now + seconds):
            self._end(moment)
            for deal in self.plain.deals.values():
                deal.second(moment)
        self.shop.wait(float(seconds))
        self._end(self.now)

    @rule()
    def commit(self) -> None:
        self.shop.journal.commit()
        self.durable = copy.deepcopy(self.plain)

    @rule(away=st.integers(0, 300))
    def crash(self, away: int) -> None:
        self.shop.crash(float(away))
        self.plain = copy.deepcopy(self.durable)
        for deal in self.plain.deals.values():
            if deal.paid is None:
                deal.ready, deal.delivered, deal.unseen = 0, deal.seen, 0
        self._end(self.now)

    def _end(self, now: int) -> None:
        for deal in self.plain.deals.values():
            if deal.paid is None and now >= deal.end:
                deal.settle()

    @invariant()
    def the_twin_says_the_same(self) -> None:
        desk = self.shop.billing
        assert desk.faults() == []
        for user in ("alice", "bob"):
            account = desk.accounts.account(user)
            assert account.held == round(self.plain.held(user) * MICROS)
            assert account.spent == round(self.plain.spent(user) * MICROS)
            assert account.balance == round(self.plain.balance(user) * MICROS)
            assert {info.id for info in desk.agreements(user).agreements} == {
                name for name, deal in self.plain.deals.items() if deal.user == user
            }
        for name, deal in self.plain.deals.items():
            may = desk.admission.may_run(name, deal.user, self.shop.now)
            running = deal.paid is None and deal.start <= self.now
            assert (may == deal.end - self.now) if running else not isinstance(may, float)


TestDealing = Dealing.TestCase
TestDealing.settings = settings(max_examples=examples(40), stateful_step_count=30)
