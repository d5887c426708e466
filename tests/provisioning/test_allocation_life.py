"""Laws of an allocation's life: each order of events, with restarts in between."""

import math
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.thoroughness import examples

from bursar.model.allocation import Allocation, AllocationLoss, AllocationState
from bursar.provisioning.allocation_life import LATE, AllocationLife, LifeAction

GRACE = 0.5
SECONDS = st.integers(0, 20).map(float)


def life(**terms: object) -> AllocationLife:
    """Return the life of two processors for 10 s that were asked for at 0."""
    usual: dict[str, object] = {"name": "lease-1", "site": "s", "processors": 2, "duration": 10.0}
    return AllocationLife(Allocation(**{**usual, **terms}), grace=GRACE)  # type: ignore[arg-type]


def held(**terms: object) -> AllocationLife:
    """Return the life of an allocation whose workers were started at 1."""
    one = life(**terms)
    assert one.ask()
    assert one.grant(1.0)
    assert one.man(1.0)
    return one


def test_an_uneventful_life_goes_through_all_stages() -> None:
    one = life()
    assert one.next_step(0.0).action is LifeAction.ASK
    one.ask()
    assert one.next_step(0.0) == (LifeAction.WAIT, math.inf)
    one.grant(1.0)
    assert (one.allocation.state, one.allocation.until) == (AllocationState.GRANTED, 11.0)
    one.man(2.0)
    assert one.next_step(2.0) == (LifeAction.WAIT, 11.0 + GRACE)
    assert one.next_step(11.0) == (LifeAction.WAIT, 11.0 + GRACE)
    assert one.next_step(11.0 + GRACE).action is LifeAction.EXPIRE
    one.expire(11.5)
    assert one.next_step(11.5).action is LifeAction.RELEASE
    one.released(12.0)
    assert one.next_step(12.0).action is LifeAction.SETTLE
    assert one.payable(is_metered=False) == 12.0
    assert one.payable(is_metered=True) is None
    assert one.settle(12.0)
    assert one.next_step(12.0).action is LifeAction.NONE
    assert one.allocation.state is AllocationState.SETTLED


def test_an_allocation_of_no_duration_is_kept_for_the_grace() -> None:
    """A plan may give no time to a task that takes none, and the task has to start all the same."""
    one = held(duration=0.0)
    assert one.allocation.until == 1.0
    assert one.next_step(1.0) == (LifeAction.WAIT, 1.0 + GRACE)
    assert one.next_step(1.0 + GRACE).action is LifeAction.EXPIRE


@pytest.mark.parametrize(
    ("granted", "paid_from", "until"), [(90.0, 100.0, 110.0), (100.0 + LATE, 100.0, 110.0)]
)
def test_time_counts_from_the_agreed_start_if_the_site_keeps_it(
    granted: float, paid_from: float, until: float
) -> None:
    one = life(start=100.0)
    one.ask()
    one.grant(granted)
    assert (one.allocation.paid_from, one.allocation.until) == (paid_from, until)


def test_a_late_site_is_paid_from_the_grant_and_a_late_buyer_from_the_agreed_start() -> None:
    late_site, late_buyer = life(start=100.0), life(start=100.0)
    late_buyer = AllocationLife(late_buyer.allocation, keeps_start=True)
    for one in (late_site, late_buyer):
        one.ask()
        one.grant(104.0)
    assert (late_site.allocation.paid_from, late_site.allocation.until) == (104.0, 114.0)
    assert (late_buyer.allocation.paid_from, late_buyer.allocation.until) == (100.0, 110.0)


def test_an_agreed_end_holds_however_late_the_grant() -> None:
    one = life(duration=math.inf, until=20.0)
    one.ask()
    one.grant(15.0, seconds=60.0)
    assert one.allocation.until == 20.0


def test_what_is_bought_as_a_whole_is_paid_to_its_end_and_a_booking_by_our_clock() -> None:
    whole, booked = held(start=0.0, whole=True), held(start=0.0, booked=True)
    for one in (whole, booked):
        one.finish(3.0, at_once=True)
        one.released(4.0)
    assert whole.payable(is_metered=True) == 10.0
    assert booked.payable(is_metered=True) == 4.0


def test_a_site_that_gives_fewer_processors_is_paid_for_these() -> None:
    one = life(unpaid=1)
    one.ask()
    one.grant(0.0, processors=1, seconds=5.0)
    assert (one.allocation.paid, one.allocation.until) == (1, 5.0)
    longer = life()
    longer.grant(0.0, seconds=15.0)
    assert longer.allocation.until == 10.0
    longest = life()
    longest.grant(0.0, seconds=15.0, may_be_longer=True)
    assert longest.allocation.until == 15.0


def test_workers_that_still_run_tasks_keep_what_nobody_needs_any_more() -> None:
    one = held()
    assert one.finish(2.0, at_once=False)
    assert one.next_step(2.0, present=1) == (LifeAction.WAIT, 11.0 + GRACE)
    assert not one.finish(3.0, at_once=False)
    assert one.finish(3.0, at_once=True)
    assert one.next_step(3.0, present=1).action is LifeAction.RELEASE


def test_workers_of_before_a_restart_are_awaited_before_what_nobody_needs_is_released() -> None:
    one = AllocationLife(held().allocation)
    one.allocation = replace(one.allocation, ready=None)
    assert one.adopt(5.0, awaited=8.0)
    one.finish(6.0, at_once=False)
    assert one.next_step(6.0) == (LifeAction.WAIT, 8.0)
    one.returned()
    assert one.next_step(6.0).action is LifeAction.RELEASE


class Lives(RuleBasedStateMachine):
    """
    A life, a twin that no restart touches, and what a site and a ledger saw of the life.

    The site answers when it likes, before or after it was told to stop; the process ends and
    comes back; nobody knows the order.
    """

    @initialize(
        start=st.none() | SECONDS,
        duration=SECONDS,
        until=st.just(math.inf) | SECONDS,
        whole=st.booleans(),
        booked=st.booleans(),
        metered=st.booleans(),
        keeps_start=st.booleans(),
        due=st.sampled_from((0.0, 0.0, 5.0)),
    )
    def begin(
        self,
        start: float | None,
        duration: float,
        until: float,
        whole: bool,
        booked: bool,
        metered: bool,
        keeps_start: bool,
        due: float,
    ) -> None:
        self.now = 0.0
        self.metered = metered
        self.whole = whole and start is not None
        self.late_buyer = keeps_start
        terms = Allocation(
            name="lease-1",
            processors=2,
            start=start,
            duration=duration,
            until=until,
            whole=self.whole,
            booked=booked and start is not None,
        )
        self.agreed = terms
        self.lives = [
            AllocationLife(terms, due=due, grace=GRACE, keeps_start=keeps_start) for _ in range(2)
        ]
        self.asked = self.releases = self.payments = 0
        self.at_site = False
        self.granted: float | None = None
        self.over: list[AllocationLoss] = []
        self.free_since: float | None = None
        self.paid: float | None = None

    @property
    def one(self) -> AllocationLife:
        """The life that restarts; the other one is the twin."""
        return self.lives[0]

    def tell(self, event: str, *values: object, **more: object) -> bool:
        """Report one event to both lives, which must say the same of it."""
        answers = {getattr(life, event)(*values, **more) for life in self.lives}
        assert len(answers) == 1
        return bool(answers.pop())

    @rule(seconds=SECONDS)
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(busy=st.booleans())
    def do_what_is_due(self, busy: bool) -> None:
        """The edge: it asks, releases and pays as it is told, whenever it comes to run."""
        match self.one.next_step(self.now, 1 if busy else 0).action:
            case LifeAction.ASK:
                assert not self.asked
                self.asked_out_of_turn()
            case LifeAction.RELEASE:
                assert self.at_site
                self.given_back_out_of_turn()
            case LifeAction.WITHDRAW:
                assert not self.is_gone
                self.request_is_withdrawn()
            case LifeAction.SETTLE:
                assert not self.payments
                self.settled_out_of_turn()

    @property
    def is_gone(self) -> bool:
        """Whether the world saw it end."""
        return bool(self.over) or self.releases > 0

    @rule()
    def asked_out_of_turn(self) -> None:
        """Another part of the program wants it, too."""
        is_new = not self.asked and not self.is_gone and not self.one.allocation.leaving
        assert self.tell("ask") == is_new
        self.asked += is_new

    @precondition(lambda self: self.asked)
    @rule(processors=st.integers(1, 3), seconds=st.none() | SECONDS, workers=st.booleans())
    def site_grants(self, processors: int, seconds: float | None, workers: bool) -> None:
        is_new = self.granted is None and not self.is_gone
        assert self.tell("grant", self.now, processors, seconds) == is_new
        if is_new:
            self.granted = self.now
        if workers:
            self.workers_start()

    @precondition(lambda self: self.granted is not None)
    @rule()
    def workers_start(self) -> None:
        is_new = not self.at_site and not self.is_gone
        assert self.tell("man", self.now) == is_new
        self.at_site = self.at_site or is_new

    @precondition(lambda self: self.asked)
    @rule(loss=st.sampled_from(("refused", "unreachable")))
    def site_refuses(self, loss: AllocationLoss) -> None:
        is_new = not self.at_site and not self.is_gone
        assert self.tell("refuse", self.now, loss, "no") == is_new
        if is_new:
            self.over.append(loss)
            self.free_since = self.now

    @rule()
    def request_is_withdrawn(self) -> None:
        is_new = not self.at_site and not self.is_gone
        assert self.tell("withdraw", self.now) == is_new
        if is_new:
            self.over.append("ended")
            self.free_since = self.now

    @rule()
    def given_back_out_of_turn(self) -> None:
        assert self.tell("released", self.now) == self.at_site
        if self.at_site:
            self.at_site = False
            self.releases += 1
            self.free_since = self.now

    @rule()
    def settled_out_of_turn(self) -> None:
        is_due = self.is_gone and not self.at_site and not self.payments
        if is_due:
            self.paid = self.one.payable(is_metered=self.metered)
        assert self.tell("settle", self.now) == is_due
        self.payments += is_due

    @rule(loss=st.sampled_from(("lost", "ended")))
    def site_takes_away(self, loss: AllocationLoss) -> None:
        is_new = self.at_site and not self.is_gone
        assert self.tell("lose", self.now, loss, "gone") == is_new
        if is_new:
            self.over.append(loss)

    @rule()
    def time_is_over(self) -> None:
        if self.one.next_step(self.now).action is LifeAction.EXPIRE and self.tell(
            "expire", self.now
        ):
            self.over.append("ended")

    @rule(seconds=SECONDS)
    def is_prolonged(self, seconds: float) -> None:
        self.tell("prolong", self.now + seconds)

    @rule(at_once=st.booleans())
    def is_not_needed(self, at_once: bool) -> None:
        if self.tell("finish", self.now, at_once=at_once) and not self.asked:
            self.over.append("ended")
            self.free_since = self.now

    @precondition(lambda self: self.at_site and self.one.allocation.settled is None)
    @rule()
    def process_restarts(self) -> None:
        """Read the allocation from disk, without what its holder wished; the site still has it."""
        a = self.one.allocation
        if a.is_over:
            return
        known = replace(a, ready=None, leaving=False, stopped=False)
        again = AllocationLife(known, grace=GRACE, keeps_start=self.late_buyer)
        assert again.adopt(a.ready or 0.0)
        assert again.next_step(self.now).action in (LifeAction.WAIT, LifeAction.EXPIRE)
        if a.leaving:  # whoever decides decides so again
            again.finish(self.now, at_once=a.stopped)
        self.lives[0] = again

    @invariant()
    def a_restart_changes_nothing(self) -> None:
        if hasattr(self, "lives"):
            one, twin = self.lives
            assert one.allocation == twin.allocation
            for present in (0, 1):
                assert one.next_step(self.now, present) == twin.next_step(self.now, present)
            assert one.payable(is_metered=self.metered) == twin.payable(is_metered=self.metered)

    @invariant()
    def everything_happens_once(self) -> None:
        if not hasattr(self, "lives"):
            return
        a = self.one.allocation
        assert self.asked <= 1
        assert self.releases <= 1
        assert self.payments <= 1
        assert self.one.holds == self.at_site
        assert a.lost is None or a.ended is None
        assert (a.granted, a.settled is not None) == (self.granted, self.payments == 1)
        if self.over:
            assert a.loss == self.over[0]
            assert (a.lost is not None) == (self.over[0] == "lost")
        # Nothing is paid while something is held, and nothing is held for ever after the end.
        assert not (self.payments and self.at_site)
        if a.is_over and self.at_site:
            assert self.one.next_step(self.now).action is LifeAction.RELEASE

    @invariant()
    def what_is_paid_is_what_the_rule_says(self) -> None:
        """Stated here a second time, from what the world saw."""
        if not hasattr(self, "lives") or not self.payments:
            return
        if self.whole:
            assert self.paid == (self.agreed.start or 0.0) + self.one.allocation.duration
        elif self.metered and self.asked and not self.agreed.booked:
            assert self.paid is None
        else:
            assert self.paid == self.free_since
        if self.granted is not None and self.agreed.start is not None:
            on_time = self.late_buyer or self.granted <= self.agreed.start + LATE
            expected = self.agreed.start if on_time else self.granted
            assert self.one.allocation.paid_from == expected
        elif self.granted is not None:
            assert self.one.allocation.paid_from == self.granted


class TestLives(Lives.TestCase):  # type: ignore[misc]
    """The laws, tried briefly."""

    settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


@pytest.mark.long
class TestManyLives(Lives.TestCase):  # type: ignore[misc]
    """The laws, tried at length."""

    settings = settings(max_examples=examples(3000), stateful_step_count=60, deadline=None)
