"""Processors that runs lend each other: each is paid once, to the micro-unit."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.sites.shared_leases import (
    TABLES,
    TICKS,
    PayingLease,
    SharedLeaseCharge,
    abandon,
    begin_lease,
    divide,
    divide_payment,
    end_lease,
    go_on,
    lent_seconds,
    price_of,
)
from bursar.sqlite_file import LockWaitingConnection, connect

SITE = "s.toml#here@x"
PRICE = 1 / 3600


def lease(processors: int, used: int, paid: int) -> PayingLease:
    return PayingLease(processors=processors, used=used, paid=paid)


def test_a_processor_that_was_given_back_is_paid_until_another_takes_it() -> None:
    """Four processors; the second run takes one, the first still pays for the one between them."""
    assert divide_payment(4, [lease(4, 4, 0), lease(4, 0, 0)]) == [4, 0]
    assert divide_payment(4, [lease(4, 2, 4), lease(4, 0, 0)]) == [4, 0]
    assert divide_payment(4, [lease(4, 2, 4), lease(4, 1, 0)]) == [3, 1]
    assert divide_payment(4, [lease(4, 2, 3), lease(4, 2, 1)]) == [2, 2]
    # The first has ended: the lease of the second covers its processors.
    assert divide_payment(4, [lease(4, 2, 2)]) == [4]


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6), st.integers(0, 6)), max_size=5),
)
def test_all_leases_pay_for_one_rectangle(
    machine: int, given_leases: list[tuple[int, int, int]]
) -> None:
    """Neither more than there is nor less than what the leases cover."""
    leases = []
    for processors, used, paid in given_leases:
        room = machine - sum(min(one.used, one.processors) for one in leases)
        leases.append(lease(processors, min(used, room), min(paid, processors)))

    found = divide_payment(machine, leases)

    assert sum(found) == min(machine, sum(one.processors for one in leases))
    for one, pays in zip(leases, found, strict=True):
        assert min(one.used, one.processors) <= pays <= one.processors


@dataclass
class World:
    """A machine whose runs take and give back processors at moments of a history."""

    machine: int
    now: int = 0
    held: dict[tuple[str, str], int] = field(default_factory=dict)
    open: dict[str, tuple[int, int]] = field(default_factory=dict)  # processors and begin
    settled: dict[str, SharedLeaseCharge] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.db: LockWaitingConnection = connect(":memory:", synchronous="OFF")
        for table in TABLES:
            self.db.execute(table)

    def wait(self, ticks: int) -> None:
        self.now += ticks

    def divide(self) -> None:
        divide(self.db, "x", self.machine, self.held, self.now)

    def begin(self, run: str, processors: int, late: int = 0) -> None:
        """Enter a lease, some ticks after it began."""
        begin_lease(
            *(self.db, SITE, run, "lease-1"),
            holder=run,
            processors=processors,
            price=PRICE,
            began=self.now - late,
            now=self.now,
        )
        self.open[run] = processors, self.now - late
        self.divide()

    def hold(self, run: str, processors: int) -> None:
        others = sum(n for (who, _), n in self.held.items() if who != run)
        self.held[run, SITE] = min(processors, self.machine - others)
        self.divide()

    def end(self, run: str, seconds: float | None = None) -> SharedLeaseCharge | None:
        _, began = self.open.pop(run)
        length = (self.now - began) / TICKS if seconds is None else seconds
        charge, then = end_lease(self.db, SITE, run, "lease-1", length, self.now)
        assert then == self.now
        self.held.pop((run, SITE), None)
        self.divide()
        if charge is not None:
            self.settled[run] = charge
        return charge


@pytest.fixture
def world() -> Iterator[World]:
    made = World(machine=4)
    yield made
    made.db.close()


def test_what_is_lent_is_credited_to_one_and_charged_to_the_other(world: World) -> None:
    """
    Two processors are lent for 10 of 40 s.

    The first pays 4 x 40 - 2 x 10 processor-seconds, the second these 20.
    """
    world.begin("a", 4)
    world.hold("a", 4)
    world.wait(10 * TICKS)
    world.begin("b", 4)
    world.hold("a", 2)
    world.hold("b", 2)
    world.wait(10 * TICKS)
    assert lent_seconds(world.db, SITE, "a", world.now) == {"lease-1": 20.0}
    assert lent_seconds(world.db, SITE, "b", world.now) == {"lease-1": 20.0}
    second = world.end("b")
    world.hold("a", 4)
    world.wait(20 * TICKS)
    first = world.end("a")

    assert second == SharedLeaseCharge(amount=price_of(20 * TICKS, PRICE), seconds=10.0)
    assert first is not None
    assert first.seconds == 40.0
    assert first.amount + second.amount == price_of(160 * TICKS, PRICE)


def test_a_lease_is_entered_a_little_after_it_began(world: World) -> None:
    """The first pays for the time before; a later one does not pay what the first has paid."""
    world.wait(5 * TICKS)
    world.begin("a", 4, late=2 * TICKS)
    world.begin("b", 4, late=1 * TICKS)
    world.hold("b", 3)
    world.wait(10 * TICKS)

    second, first = world.end("b"), world.end("a")

    assert second is not None
    assert first is not None
    assert second.amount == price_of(30 * TICKS, PRICE)
    assert first.amount + second.amount == price_of(48 * TICKS, PRICE)


def test_a_run_alone_pays_its_rectangle(world: World) -> None:
    """Also one that began after another had ended, and one that holds less than it leases."""
    world.begin("a", 4)
    world.hold("a", 1)
    world.wait(7)
    assert world.end("a") is None
    world.begin("b", 4)
    world.wait(7)
    assert world.end("b") is None


def test_processors_that_others_buy_job_by_job_are_not_paid_twice(world: World) -> None:
    """Three of four are held by a run by a strategy, which pays for them by itself."""
    world.begin("a", 4)
    world.hold("a", 1)
    divide(world.db, "x", 4, world.held, world.now, undivided=3)
    world.wait(10 * TICKS)

    charge = world.end("a")

    assert charge is not None
    assert charge.amount == price_of(10 * TICKS, PRICE)


def test_a_charge_is_the_same_however_often_it_is_asked_for(world: World) -> None:
    """A run that was killed between the book and its journal asks again, and later."""
    world.begin("a", 4)
    world.begin("b", 4)
    world.wait(3 * TICKS)
    first = world.end("a")
    world.wait(5 * TICKS)

    again, _ = end_lease(world.db, SITE, "a", "lease-1", 1.0, world.now)

    assert first is not None
    assert again == first


def test_a_dead_run_pays_until_it_was_seen_last(world: World) -> None:
    """It is settled when it is resumed; the other pays from when it found out."""
    world.begin("a", 4)
    world.hold("a", 4)
    world.begin("b", 4)
    world.wait(10 * TICKS)
    abandon(world.db, "a", world.now)
    world.held.pop(("a", SITE))
    world.divide()
    world.wait(10 * TICKS)

    charge, _ = end_lease(world.db, SITE, "a", "lease-1", 9.0, world.now)
    last, _ = end_lease(world.db, SITE, "b", "lease-1", 20.0, world.now)

    assert charge == SharedLeaseCharge(amount=price_of(36 * TICKS, PRICE), seconds=9.0)
    assert last is not None
    assert charge.amount + last.amount == price_of((36 + 40) * TICKS, PRICE)


def test_an_abandoned_lease_that_goes_on_is_not_paid_for_the_break(world: World) -> None:
    """Its workers had nothing to do: the other paid for all four processors meanwhile."""
    world.begin("a", 4)
    world.hold("a", 4)
    world.wait(5 * TICKS)
    abandon(world.db, "a", world.now)  # never shared until now
    world.held.pop(("a", SITE))
    world.begin("b", 4)
    world.wait(10 * TICKS)
    go_on(world.db, "a", ["lease-1"], holder="a", now=world.now)
    world.hold("a", 3)
    world.wait(10 * TICKS)

    first, second = world.end("a"), world.end("b")

    assert first == SharedLeaseCharge(amount=price_of((20 + 30) * TICKS, PRICE), seconds=25.0)
    assert second is not None
    assert first.amount + second.amount == price_of(100 * TICKS, PRICE)


def test_a_lease_begins_to_pay_when_a_killed_run_is_found_gone(world: World) -> None:
    """The killed run pays until then, since it goes on; no moment is paid by both."""
    world.begin("a", 4)
    world.hold("a", 4)
    world.wait(10 * TICKS + 200_000)
    abandon(world.db, "a", world.now)
    world.held.pop(("a", SITE))
    world.begin("b", 4, late=200_000)
    world.wait(5 * TICKS)
    go_on(world.db, "a", ["lease-1"], holder="a", now=world.now)
    world.hold("a", 2)
    world.wait(5 * TICKS)

    second, first = world.end("b"), world.end("a")

    assert second is not None
    assert second.amount == price_of((4 * 5 + 2 * 5) * TICKS, PRICE)
    assert first is not None
    assert first.amount + second.amount == price_of(4 * world.now, PRICE)


def test_what_has_been_paid_counts_while_a_killed_run_may_go_on(world: World) -> None:
    """Three leases, one after the other beside a killed run's: together the price of the sum."""
    world.begin("a", 4)
    world.begin("c", 4)
    world.hold("c", 3)
    world.wait(1_000_001)
    charges = [world.end("c")]
    abandon(world.db, "a", world.now)
    world.begin("b", 4)
    world.wait(1_000_001)
    go_on(world.db, "a", ["lease-1"], holder="a", now=world.now)
    world.hold("a", 1)
    world.wait(1_000_001)
    charges += [world.end("b"), world.end("a")]

    assert sum(one.amount for one in charges if one is not None) == price_of(4 * world.now, PRICE)


steps = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from(["begin", "hold", "end", "kill", "break"]),
        st.integers(1, 6),
        st.integers(0, 5_000_000),
    ),
    max_size=30,
)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(1, 6), steps)
def test_what_all_pay_is_the_price_of_the_rectangle(
    machine: int, history: list[tuple[str, str, int, int]]
) -> None:
    """
    One run leases the machine throughout; others come, take, give back, end and are killed.
    Some of those that were killed are found gone, and go on after a break.

    What all of them pay together is what the first would have paid alone, to the micro-unit, and
    none pays more than its own rectangle. Those that were killed are settled last.
    """
    world = World(machine)
    world.begin("throughout", machine)
    rectangles: dict[str, int] = {}
    runs: dict[str, str] = {}
    dead: dict[str, float] = {}
    for number, (who, what, processors, pause) in enumerate(history):
        world.wait(pause)
        run = runs.get(who)
        if what == "begin" and run is None:
            runs[who] = f"{who}{number}"
            world.begin(runs[who], processors)
        elif what == "hold" and (run is not None or who == "a"):
            world.hold(run or "throughout", processors)
        elif what == "break" and run is not None:
            abandon(world.db, run, world.now)
            world.held.pop((run, SITE), None)
            world.divide()
            world.wait(pause)
            go_on(world.db, run, ["lease-1"], holder=run, now=world.now)
            world.hold(run, processors)
        elif what in ("end", "kill") and run is not None:
            width, began = world.open[run]
            rectangles[run] = width * (world.now - began)
            del runs[who]
            if what == "end":
                world.end(run)
                continue
            abandon(world.db, run, world.now)
            world.held.pop((run, SITE), None)
            del world.open[run]
            world.divide()
            dead[run] = (world.now - began) / TICKS
    for run in list(runs.values()):
        width, began = world.open[run]
        rectangles[run] = width * (world.now - began)
        world.end(run)
    last = world.end("throughout")
    charges = {
        run: end_lease(world.db, SITE, run, "lease-1", seconds, world.now)[0]
        for run, seconds in dead.items()
    }

    if last is None:
        assert not rectangles  # nobody else has come
        return
    found = world.settled | {run: one for run, one in charges.items() if one is not None}
    assert found.keys() == {"throughout", *rectangles}
    assert sum(one.amount for one in found.values()) == price_of(machine * world.now, PRICE)
    for run, rectangle in rectangles.items():
        assert found[run].amount <= price_of(rectangle, PRICE)
    world.db.close()
