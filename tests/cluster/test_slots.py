"""Reservations, cancellations, and the free slots that a schedule leaves."""

import math
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.cluster.machine import Machine, Reservation
from bursar.cluster.slots import DAY, free_area, free_slots, offered_slots, slot_horizon
from bursar.model.money import Refusal
from bursar.model.slot import Slot

LENGTH = st.integers(1, 12)
JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), LENGTH, LENGTH), max_size=14)
WINDOWS = st.lists(st.tuples(st.integers(0, 30), LENGTH, st.integers(1, 8)), max_size=4)
POLICIES = ("fcfs", "easy", "conservative")


def busy(
    rows: list[tuple[int, int, int, int]], processors: int, policy: str, moment: float
) -> Machine:
    """A machine in the middle of its work."""
    machine = Machine(processors, policy)  # type: ignore[arg-type]
    for submit, width, estimate, runtime in sorted(rows):
        machine.submit(min(width, processors), float(estimate), runtime=float(runtime),
                       at=float(submit))  # fmt: skip
    machine.advance(moment)
    return machine


def test_figure_4_three_reservations_leave_six_slots() -> None:
    """
    HPDC'07 figure 4: five nodes, reservations A, B and C, the last end (of C) at
    4, the horizon at 6, six slots.

    The figure's text does not say when A and B are; these are times that have
    all it does say.
    """
    begin, end, width = [0.0, 1.0, 3.0], [2.0, 3.0, 4.0], [2, 2, 1]

    slots = free_slots(5, 0.0, 6.0, np.array(begin), np.array(end), np.array(width))

    assert list(slots) == [
        (0.0, 1.0, 2),  # before B
        (0.0, 6.0, 1),  # a node that nobody reserved
        (2.0, 3.0, 1),  # between A and C
        (2.0, 6.0, 1),  # after A
        (3.0, 6.0, 2),  # after B
        (4.0, 6.0, 1),  # after C
    ]


@given(JOBS, st.integers(1, 8), st.sampled_from(POLICIES), st.integers(0, 30), WINDOWS)
@settings(max_examples=examples(200))
def test_slots_are_the_free_area_cut_into_pieces(
    rows: list[tuple[int, int, int, int]],
    processors: int,
    policy: str,
    moment: int,
    windows: list[tuple[int, int, int]],
) -> None:
    """
    At every moment as many processors are in slots as are free; of those that
    end before the horizon, something planned follows; each can be reserved.
    """
    machine = busy(rows, processors, policy, float(moment))
    for begin, length, width in windows:
        machine.reserve(machine.now + begin, float(length), min(width, processors))

    slots = offered_slots(machine)

    begins, ends, widths = machine.schedule()
    horizon = slot_horizon(machine)
    assert (horizon - machine.now) % DAY == 0
    assert horizon > max(ends.tolist(), default=machine.now)
    for instant in {machine.now, *begins.tolist(), *ends.tolist()}:
        if instant < machine.now:
            continue
        held = int(widths[(begins <= instant) & (ends > instant)].sum())
        offered = sum(s.processors for s in slots if s.start <= instant < s.end)
        assert held + offered == processors
    assert slots == sorted(slots, key=lambda s: (s.start, s.end))
    assert len({(s.start, s.end) for s in slots}) == len(slots)
    for slot in slots:
        assert slot.divisible == slot.extensible == (slot.end == horizon)
        twin = machine.copy()
        answer = twin.reserve(slot.start, slot.duration, slot.processors)
        assert isinstance(answer, Reservation), (slot, answer)
        if policy == "conservative":
            assert np.array_equal(twin.expected_starts(), machine.expected_starts())


@given(JOBS, st.integers(1, 8), st.integers(0, 20), WINDOWS)
@settings(max_examples=examples(200))
def test_a_reservation_breaks_no_promise_and_is_kept(
    rows: list[tuple[int, int, int, int]],
    processors: int,
    moment: int,
    windows: list[tuple[int, int, int]],
) -> None:
    """
    Accepted, no promised start moves; refused, too few are free at some moment
    of the window; given back, everything is as if it had never been.
    """
    machine = busy(rows, processors, "conservative", float(moment))
    for begin, length, width in windows:
        before = machine.expected_starts()
        times, free = _all_free(machine)
        at = machine.now + begin
        answer = machine.reserve(at, float(length), width)
        least = min(
            n
            for i, (t, n) in enumerate(zip(times, free, strict=True))
            if t < at + length and (i + 1 == len(times) or times[i + 1] > at)
        )
        assert isinstance(answer, Refusal) == (least < width)
        assert np.array_equal(machine.expected_starts(), before)

    untouched = busy(rows, processors, "conservative", float(moment))
    for reservation in machine.reservations:
        machine.release(reservation)
    machine.run()
    untouched.run()
    if not windows:
        assert np.array_equal(machine.jobs.outcome()[0], untouched.jobs.outcome()[0])
    assert machine.reservations == ()


def _all_free(machine: Machine) -> tuple[list[float], list[int]]:
    """Free of all that is planned, waiting jobs included."""
    begin, end, width = machine.schedule()
    times = sorted({machine.now, *(t for t in [*begin, *end] if t > machine.now)})
    free = [machine.processors - int(width[(begin <= t) & (end > t)].sum()) for t in times]
    return times, free


@given(JOBS, st.integers(1, 8), st.sampled_from(POLICIES), st.integers(0, 30), WINDOWS)
@settings(max_examples=examples(200))
def test_what_is_expected_happens_when_estimates_are_right(
    rows: list[tuple[int, int, int, int]],
    processors: int,
    policy: str,
    moment: int,
    windows: list[tuple[int, int, int]],
) -> None:
    """And nobody submits any more: every waiting job starts when it was said to."""
    known = [(s, w, e, e) for s, w, e, _ in rows if s <= moment]
    machine = busy(known, processors, policy, float(moment))
    for begin, length, width in windows:
        machine.reserve(machine.now + begin, float(length), min(width, processors))
    waiting, expected = machine.waiting, machine.expected_starts()

    machine.run()

    assert np.array_equal(machine.jobs.outcome()[0][waiting], expected)


def test_jobs_are_planned_around_a_reservation_under_every_policy() -> None:
    """A job that would run into it waits until it is over; a short one goes before."""
    for policy in POLICIES:
        machine = Machine(4, policy)  # type: ignore[arg-type]
        machine.reserve(10.0, 5.0, 3)
        long = machine.submit(2, 11.0)
        machine.advance(0.0)
        short = machine.submit(2, 10.0)
        machine.run()
        start = machine.jobs.outcome()[0]
        assert start[long] == 15.0, policy
        assert start[short] == (15.0 if policy == "fcfs" else 0.0), policy


def test_cancelling_gives_the_room_back() -> None:
    """Of a waiting job, of a running one, and of a reservation."""
    machine = Machine(2, "conservative")
    running = machine.submit(2, 10.0)
    waiting = machine.submit(2, 10.0)
    last = machine.submit(1, 1.0)
    machine.advance(1.0)
    held = machine.reserve(30.0, 5.0, 2)
    assert isinstance(held, Reservation)
    assert machine.expected_starts().tolist() == [10.0, 20.0]

    assert machine.cancel(waiting)
    assert machine.expected_starts().tolist() == [10.0]
    assert machine.cancel(running)
    assert machine.job(last).start == 1.0
    assert not machine.cancel(running)
    machine.release(held)
    assert machine.reservations == ()
    assert machine.job(waiting).start is None
    assert machine.job(waiting).killed
    machine.run()
    assert machine.now == 2.0


def test_an_extension_never_enters_a_reservation() -> None:
    """A job that outlives its estimate goes on, until somebody else's window."""
    machine = Machine(2, "easy", overrun="extend")
    machine.reserve(15.0, 5.0, 1)
    job = machine.submit(2, 10.0, runtime=100.0)
    other = machine.submit(1, 10.0, runtime=100.0)
    machine.run()

    start, finish, killed, _ = machine.jobs.outcome()
    assert (start[job], finish[job], killed[job]) == (0.0, 10.0, True)
    assert (start[other], killed[other]) == (10.0, False)
    assert finish[other] == 110.0


def test_the_free_area_of_an_fcfs_schedule_ends_with_it() -> None:
    """
    e-Science 2006 figure 4: the total area less what is scheduled, queued jobs included.
    """
    machine = Machine(4, "fcfs")
    for width, length in ((3, 4.0), (2, 2.0), (4, 1.0)):
        machine.submit(width, length)
    machine.advance(0.0)

    area = free_area(machine)

    assert [(s.start, s.end, s.processors) for s in area] == [(0.0, 6.0, 1), (4.0, 6.0, 1)]
    assert sum(s.processors * s.duration for s in area) == 4 * 7 - (3 * 4 + 2 * 2 + 4 * 1)
    assert not any(s.divisible or s.extensible for s in area)
    assert free_area(Machine(4, "fcfs")) == []


def test_nothing_running_is_one_slot() -> None:
    """All processors for a day, divisible and extensible."""
    assert offered_slots(Machine(7)) == [
        Slot(start=0.0, duration=DAY, processors=7, divisible=True, extensible=True)
    ]
    full: Any = Machine(2, now=5.0)
    full.submit(2, 10.0)
    full.advance(5.0)
    (slot,) = offered_slots(full)
    assert (slot.start, slot.end) == (15.0, 5.0 + DAY)
    assert not math.isinf(slot_horizon(full))
