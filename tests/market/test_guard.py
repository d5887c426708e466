"""The guard never lets more be spent than the budget, whatever happens in whatever order."""

import math
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.thoroughness import examples

from bursar.market.guard import LEAD, BudgetDrain, BudgetGuard, BudgetHalt, BudgetWarning
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.model.money import Refusal, Transfer
from bursar.model.task import Outcome, Status

UNIT = 1_000_000
replace = msgspec.structs.replace


def _lease(
    number: int = 1,
    site: str = "here",
    price: float | None = 1.0,
    start: float = 0.0,
    until: float | None = None,
) -> Lease:
    return Lease(
        id=f"lease-{number}",
        site=site,
        processors=2,
        unit_price=price,
        fixed_price=0.5,
        start=start,
        until=until,
    )


def _guard(
    budget: float | None, limits: dict[int, float] | None = None, **more: object
) -> BudgetGuard:
    amount = None if budget is None else round(budget * UNIT)
    guard = BudgetGuard(amount, limit_of=(limits or {}).get, **more)  # type: ignore[arg-type]
    guard.begin(0.0)
    return guard


def _done(task: int) -> Outcome:
    return Outcome(task=task, attempt=1, status=Status.SUCCEEDED)


def test_a_task_with_a_limit_encumbers_its_worst_case() -> None:
    guard = _guard(100, {0: 20.0})
    assert guard.open(_lease()) is None

    assert guard.admit(0, "lease-1", 1.0) == 20.0

    # Two processors until second 21 at 1 a second each, and the fixed charge.
    assert guard.ledger.held >= round(42.5 * UNIT)


def test_a_task_whose_worst_case_is_not_covered_is_refused() -> None:
    guard = _guard(30, {0: 20.0, 1: 10.0})
    guard.open(_lease())

    refusal = guard.admit(0, "lease-1", 0.0)

    assert isinstance(refusal, Refusal)
    assert refusal.final  # nothing runs whose end could make room
    assert guard.admit(1, "lease-1", 0.0) == 10.0
    later = guard.admit(0, "lease-1", 0.0)
    assert isinstance(later, Refusal)
    assert not later.final


def test_a_task_without_a_limit_may_run_until_the_money_ends() -> None:
    guard = _guard(30.5)
    guard.open(_lease())

    assert guard.admit(0, "lease-1", 5.0) == pytest.approx(15 - 5 - LEAD)
    assert not guard.tick(14.4)
    assert [type(effect) for effect in guard.tick(14.6)] == [BudgetHalt]


def test_a_task_without_a_limit_may_run_for_ever_where_time_is_free() -> None:
    """Under a budget, too: only the fixed charge is held."""
    guard = _guard(30, {1: 20.0})
    assert guard.open(_lease(price=0.0)) is None

    assert guard.admit(0, "lease-1", 1.0) == math.inf
    assert guard.admit(1, "lease-1", 1.0) == 20.0
    assert guard.tick(1e6) == []
    assert guard.ledger.held == round(0.5 * UNIT)


def test_a_task_gets_no_time_where_none_is_left() -> None:
    """To the second: the money ends when the stop before it is due."""
    guard = _guard(0.5 + 2 * (LEAD + 4.0))
    guard.open(_lease())

    assert guard.admit(0, "lease-1", 3.0) == pytest.approx(1.0)
    assert isinstance(guard.admit(1, "lease-1", 4.0), Refusal)


def test_a_task_on_a_lease_that_is_about_to_begin_has_the_money_from_then_on() -> None:
    """30 SU are 15 s of two processors, counted from second 5; LEAD is kept for the stop."""
    guard = _guard(30.5)
    assert guard.open(_lease(start=5.0), 1.0) is None

    assert guard.admit(0, "lease-1", 1.0) == pytest.approx(5.0 + 15.0 - LEAD - 1.0)


def test_closing_pays_what_was_held_for_and_frees_the_rest() -> None:
    guard = _guard(100, {0: 20.0})
    guard.open(_lease())
    guard.admit(0, "lease-1", 0.0)
    guard.settle([_done(0)], 3.0)

    lease = guard.charges.close("lease-1", 4.0)

    assert lease.end == 4.0
    assert guard.ledger.spent == round(8.5 * UNIT)
    assert guard.ledger.held == 0
    assert guard.ledger.free == round(91.5 * UNIT)


def test_a_clock_that_ran_on_unseen_does_not_overspend() -> None:
    guard = _guard(10.5)
    guard.open(_lease())
    guard.admit(0, "lease-1", 0.0)
    # What is shown meanwhile is what a settlement would take.
    assert guard.spent(1000.0) == round(10.5 * UNIT)

    lease = guard.charges.close("lease-1", 1000.0)

    assert guard.ledger.spent == round(10.5 * UNIT)
    assert lease.end == pytest.approx(5.0)


@pytest.mark.parametrize(("until", "end"), [(None, 12.0), (20.0, 12.0), (10.0, 10.0)])
def test_a_lease_that_is_given_back_ends_then_or_when_it_would_have(
    until: float | None, end: float
) -> None:
    guard = _guard(100)
    guard.open(_lease(until=until))

    assert guard.charges.end("lease-1", 12.0).until == end


def test_what_is_free_goes_to_the_first_of_two_that_ran_on_unseen() -> None:
    """Nothing is left for the second one, which is paid what was held for it."""
    guard = _guard(10.5)
    for number in (1, 2):
        guard.open(_lease(number))

    leases = [guard.charges.close(f"lease-{number}", 1000.0) for number in (1, 2)]

    assert guard.ledger.spent == round(10.5 * UNIT)
    assert [lease.end for lease in leases] == [pytest.approx(9.5 / 2), 0.0]


def test_thresholds_are_due_once_each() -> None:
    guard = _guard(40.5, on_budget={0.5: "warn", 0.8: "drain"})
    guard.open(_lease())

    found = [type(effect) for now in range(1, 25) for effect in guard.tick(float(now))]

    assert found[:2] == [BudgetWarning, BudgetDrain]
    assert found[2] is BudgetHalt


def test_without_a_budget_nothing_is_refused_and_all_is_metered() -> None:
    guard = _guard(None)
    guard.open(_lease())
    assert guard.admit(0, "lease-1", 0.0) == math.inf
    for now in range(100):
        assert guard.tick(float(now)) == []
    guard.charges.close("lease-1", 100.0)

    assert guard.ledger.spent == round(200.5 * UNIT)
    assert guard.ledger.free == guard.ledger.held == 0


def test_an_unknown_price_moves_no_money() -> None:
    guard = _guard(5)
    guard.open(_lease(price=None))

    assert guard.admit(0, "lease-1", 0.0) == math.inf
    guard.charges.close("lease-1", 100.0)
    assert guard.ledger.spent == 0


def test_a_killed_life_is_paid_up_to_when_it_was_last_seen() -> None:
    first = _guard(100)
    first.open(_lease())
    first.tick(2.0)
    rows = list(first.transfers())

    second = BudgetGuard(120 * UNIT, limit_of=lambda _: None, rows=rows)
    second.begin(50.0)
    lease = second.charges.close_lost(_lease(), 7.0)

    assert lease.end == 7.0
    assert second.ledger.spent == round(14.5 * UNIT)
    assert second.ledger.funded == 120 * UNIT
    assert second.ledger.held == 0


class GuardMachine(RuleBasedStateMachine):
    """Leases, tasks and time in any order."""

    @initialize(budget=st.integers(0, 200))
    def start(self, budget: int) -> None:
        self.now = 0.0
        self.budget = budget * UNIT
        self.limits: dict[int, float] = {}
        self.running: dict[int, tuple[str, float]] = {}
        self.sites: dict[str, int] = {}
        self.stopped = False
        self.leases = 0
        self.guard = BudgetGuard(self.budget, limit_of=self.limits.get)
        self.guard.begin(0.0)

    @precondition(lambda self: not self.stopped and len(self.sites) < 2)
    @rule()
    def open_lease(self) -> None:
        self.leases += 1
        lease = _lease(self.leases, f"s{self.leases}", start=self.now)
        if self.guard.open(lease) is None:
            self.sites[lease.id] = self.leases

    @precondition(lambda self: not self.stopped and len(self.sites) < 3)
    @rule(wait=st.integers(0, 5), lasts=st.integers(1, 10))
    def agree(self, wait: int, lasts: int) -> None:
        self.leases += 1
        start = self.now + wait
        lease = _lease(self.leases, f"s{self.leases}", start=start, until=start + lasts)
        if self.guard.open(lease) is None:
            self.sites[lease.id] = self.leases
        for task, (site, end) in self.running.items():
            # Those without a limit may have less now, and are stopped with the run before that.
            entry = self.guard._holds.open[site]
            if entry.lease.until is None:
                assert entry.ends[task] == end or self.limits[task] is None
                self.running[task] = (site, min(end, entry.ends[task]))

    @precondition(lambda self: self.sites and not self.stopped)
    @rule(limit=st.none() | st.integers(1, 30), pick=st.integers(0, 5))
    def admit(self, limit: int | None, pick: int) -> None:
        task = len(self.limits)
        site = sorted(self.sites)[pick % len(self.sites)]
        self.limits[task] = limit  # type: ignore[assignment]
        answer = self.guard.admit(task, site, self.now)
        if not isinstance(answer, Refusal):
            assert answer > 0
            self.running[task] = (site, self.now + answer)

    @precondition(lambda self: self.running)
    @rule(pick=st.integers(0, 5))
    def finish(self, pick: int) -> None:
        task = sorted(self.running)[pick % len(self.running)]
        del self.running[task]
        self.guard.settle([_done(task)], self.now)

    @precondition(lambda self: self.sites)
    @rule(pick=st.integers(0, 5))
    def close(self, pick: int) -> None:
        site = sorted(self.sites)[pick % len(self.sites)]
        self.running = {t: r for t, r in self.running.items() if r[0] != site}
        del self.sites[site]
        self.guard.charges.close(site, self.now)

    @rule(seconds=st.sampled_from([0.1, 0.2, 0.2, 0.2, 3.0]))
    def wait(self, seconds: float) -> None:
        """Time goes on as the loop lets it: five looks a second."""
        until = self.now + seconds
        while self.now < until and not self.stopped:
            self.now += 0.2
            for effect in self.guard.tick(self.now):
                self.stopped = self.stopped or isinstance(effect, BudgetHalt)
            self.running = {t: r for t, r in self.running.items() if r[1] > self.now}
        if self.stopped:
            while self.sites:
                self.close(0)

    @invariant()
    def money_is_conserved(self) -> None:
        if not hasattr(self, "guard"):
            return
        ledger = self.guard.ledger
        assert sum(ledger.balances.values()) == 0
        assert all(b >= 0 for account, b in ledger.balances.items() if account != "owner")
        assert ledger.spent + ledger.held <= self.budget
        assert Ledger(ledger.rows).balances == ledger.balances
        if not self.sites:
            assert ledger.held == 0

    @invariant()
    def the_worst_case_is_held(self) -> None:
        if not hasattr(self, "guard"):
            return
        for site, number in self.sites.items():
            ends = [end for where, end in self.running.values() if where == site]
            lease = self.guard._holds.open[site].lease
            end = max([self.now, *ends]) if lease.until is None else lease.until
            worst = lease.charge(2 * (end - lease.start))
            if not self.stopped:
                assert self.guard.ledger.balance(f"held:lease-{number}") >= worst - 1


class RecordedMachine(RuleBasedStateMachine):
    """
    A run whose leases are settled by their provider's record, and that is killed at any moment.

    The provider holds what was asked for as it likes: a request begins late or never, a pilot
    goes on after its run was killed, or was told to end, for as long as ``unwatched`` says.
    """

    UNWATCHED = 5.0

    @initialize(budget=st.integers(0, 200))
    def start(self, budget: int) -> None:
        self.now = 0.0
        self.budget = budget * UNIT
        self.leases: dict[str, Lease] = {}  # as journalled last, such as are not settled
        self.began: dict[str, float] = {}  # by the provider
        self.ended: dict[str, float] = {}  # by the provider
        self.recorded = 0  # micro-units that the provider's records are worth
        self.count = 0
        self.stopped = False
        self.rows: list[Transfer] = []
        self.live()

    def live(self) -> None:
        """A life of the run begins, with what earlier ones journalled."""
        self.guard = BudgetGuard(self.budget, limit_of=lambda _: None, rows=self.rows)
        self.guard.begin(self.now)
        for lease in self.leases.values():
            self.guard.charges.restore(lease, self.now)

    def of(self, pick: int, what: Iterable[str]) -> str:
        names = sorted(what)
        return names[pick % len(names)]

    @property
    def asked(self) -> set[str]:
        return {name for name in self.guard.leases if self.leases[name].asked}

    @property
    def held(self) -> set[str]:
        return {name for name in self.guard.leases if not self.leases[name].asked}

    @precondition(lambda self: not self.stopped and len(self.leases) < 4)
    @rule(processors=st.integers(1, 3))
    def ask(self, processors: int) -> None:
        self.count += 1
        lease = Lease(
            id=f"lease-{self.count}",
            site="c",
            processors=processors,
            unit_price=1.0,
            fixed_price=0.5,
            start=self.now,
            asked=True,
            unwatched=self.UNWATCHED,
        )
        if self.guard.open(lease, self.now) is None:
            self.leases[lease.id] = lease

    @precondition(lambda self: self.asked)
    @rule(
        pick=st.integers(0, 5),
        late=st.floats(0.0, 2.0),
        lasts=st.none() | st.integers(1, 20),
    )
    def begin(self, pick: int, late: float, lasts: int | None) -> None:
        """The provider began it, and the run sees that a moment later: there is money, or not."""
        name = self.of(pick, self.asked)
        self.began[name] = max(self.leases[name].start, self.now - late)
        until = None if lasts is None else self.now + lasts
        lease = replace(self.leases[name], start=self.now, until=until, asked=False)
        if self.guard.open(lease, self.now) is None:
            self.leases[name] = lease
        else:
            self.give_back_one(name)

    @precondition(lambda self: self.guard.leases)
    @rule(pick=st.integers(0, 5), latency=st.floats(0.0, 3.0))
    def give_back(self, pick: int, latency: float) -> None:
        self.give_back_one(self.of(pick, self.guard.leases), latency)

    def give_back_one(self, name: str, latency: float = 3.0) -> None:
        """The provider ends it a while after it was told to."""
        self.leases[name] = self.guard.charges.end(name, self.now)
        if name in self.began:
            self.ended[name] = max(self.now, self.began[name]) + latency

    @precondition(lambda self: self.guard.charges.unsettled)
    @rule(pick=st.integers(0, 5))
    def settle(self, pick: int) -> None:
        """The provider says from when to when it was held."""
        name = self.of(pick, self.guard.charges.unsettled)
        lease = self.leases.pop(name)
        began = self.began.get(name)
        if began is None:
            self.guard.charges.pay(name, None, self.now)
            return
        end = self.ended[name]
        paid = self.guard.charges.pay(name, (began, end), self.now)
        worth = replace(lease, start=began, end=end).charge(lease.processors * (end - began))
        self.recorded += worth
        assert paid.end == pytest.approx(end)
        assert self.guard.ledger.settled()[name] == worth

    @rule(starts=st.booleans(), late=st.floats(0.0, 30.0), lost=st.floats(0.0, 3.0))
    def kill(self, starts: bool, late: float, lost: float) -> None:
        """Pilots go on for a while; requests may begin when nobody looks any more."""
        self.rows = list(self.guard.ledger.rows)
        for name in self.guard.leases:
            if name not in self.began and starts:
                self.began[name] = self.now + late
            if name in self.began:
                self.ended[name] = max(self.now, self.began[name]) + lost
        self.now += 40.0
        self.live()

    @rule(seconds=st.sampled_from([0.2, 0.2, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        """Time goes on as the loop lets it: five looks a second."""
        until = self.now + seconds
        while self.now < until and not self.stopped:
            self.now += 0.2
            for name in self.held:
                lease = self.leases[name]
                if lease.until is not None and self.now >= lease.until:
                    self.give_back_one(name)
            effects = self.guard.tick(self.now)
            if any(isinstance(effect, BudgetHalt) for effect in effects):
                self.stopped = True
                for name in self.guard.leases:
                    self.give_back_one(name)

    @invariant()
    def the_record_is_never_worth_more_than_the_budget(self) -> None:
        if not hasattr(self, "guard"):
            return
        ledger = self.guard.ledger
        assert sum(ledger.balances.values()) == 0
        assert ledger.spent == self.recorded <= self.budget
        assert ledger.spent + ledger.held <= self.budget
        if not self.leases:
            assert ledger.held == 0


TestGuardMachine = GuardMachine.TestCase
TestRecordedMachine = RecordedMachine.TestCase
TestRecordedMachine.settings = settings(max_examples=examples(100), stateful_step_count=30)
TestGuardMachine.settings = settings(max_examples=examples(100), stateful_step_count=30)


def test_a_lease_to_come_is_covered_and_not_paid_before_it_begins() -> None:
    guard = _guard(100)
    assert guard.open(_lease(start=10.0, until=20.0), 1.0) is None

    assert guard.transfers()[-1].time == 1.0
    assert guard.ledger.held == round(20.5 * UNIT)
    assert guard.spent(9.9) == 0
    assert guard.spent(12.0) == round(4.5 * UNIT)
    assert guard.spent(30.0) == round(20.5 * UNIT)
    assert guard.charges.close("lease-1", 9.0).end == 10.0
    assert guard.ledger.spent == guard.ledger.held == 0


def test_a_lease_to_come_that_the_budget_does_not_cover_is_refused() -> None:
    guard = _guard(20)

    assert isinstance(guard.open(_lease(start=10.0, until=20.0)), Refusal)
    assert guard.ledger.held == 0


def test_looking_only_when_there_is_something_to_do_is_enough() -> None:
    guard = _guard(1000.5, on_budget={0.25: "warn"})
    guard.open(_lease())
    now, seen, looks = 0.0, [], 0
    while not any(isinstance(effect, BudgetHalt) for _, effect in seen):
        now = guard.next_tick(now)
        seen += [(now, effect) for effect in guard.tick(now)]
        # Just before the end what is left is held piece by piece, and closing takes the rest.
        assert guard.ledger.balance("held:lease-1") >= guard.spent(now) - 0.5 * UNIT
        looks += 1

    (warned, _), (stopped, _), *_ = seen
    assert warned == pytest.approx((250.125 - 0.5) / 2, abs=0.2)
    assert stopped == pytest.approx(500 - LEAD, abs=0.2)
    assert looks < 200
    assert _guard(None).next_tick(5.0) == math.inf


def test_a_lowered_budget_that_is_all_spent_moves_nothing() -> None:
    """A run that used its budget up may be resumed with a lower one, to read what it came to."""
    first = _guard(10)
    first.open(_lease(until=4.75))
    first.charges.close("lease-1", 4.75)
    assert first.ledger.spent == 10 * UNIT

    second = BudgetGuard(5 * UNIT, limit_of=lambda _: None, rows=first.transfers())
    second.begin(50.0)

    assert second.ledger.rows == first.ledger.rows
    assert second.ledger.free == 0


def test_tasks_without_a_limit_yield_to_an_agreed_lease() -> None:
    """Such tasks have until the money is used up, and that comes sooner with another lease."""
    guard = _guard(100)
    assert guard.open(_lease()) is None
    # Two processors, 0.5 fixed: the money is used up after 49.75 s.
    assert guard.admit(0, "lease-1", 0.0) == pytest.approx(49.75 - LEAD)
    assert guard.ledger.free < 2 * UNIT

    # 20 for ten seconds, and 0.5.
    assert guard.open(_lease(2, until=10.0)) is None

    assert guard.ledger.balance("held:lease-2") == round(20.5 * UNIT)
    # 79.5 are left for the first lease: 39.5 s.
    halts = lambda now: [e for e in guard.tick(now) if isinstance(e, BudgetHalt)]  # noqa: E731
    assert not halts(38.0)
    assert halts(39.5 - LEAD)


def test_tasks_with_a_limit_do_not_yield() -> None:
    guard = _guard(100, {0: 40.0})
    assert guard.open(_lease()) is None
    assert guard.admit(0, "lease-1", 0.0) == 40.0

    refusal = guard.open(_lease(2, until=10.0))

    assert isinstance(refusal, Refusal)
    assert "short of the worst case" in refusal.reason
    assert guard.leases == ("lease-1",)
