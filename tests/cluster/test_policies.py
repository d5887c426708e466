"""The engine decides as the plain twin does, job for job; and what each policy promises holds."""

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.cluster.machine import Machine
from bursar.cluster.slots import offered_slots
from bursar.model.errors import InputError
from bursar.model.money import Refusal

_spec = importlib.util.spec_from_file_location(
    "cluster_oracle", Path(__file__).with_name("oracle.py")
)
assert _spec is not None
assert _spec.loader is not None
oracle = importlib.util.module_from_spec(_spec)
sys.modules["cluster_oracle"] = oracle
_spec.loader.exec_module(oracle)

LENGTH = st.integers(1, 12)
JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), LENGTH, LENGTH), max_size=16)
POLICY = st.sampled_from(["fcfs", "easy", "conservative"])
EARLY = st.sampled_from(["compress", "keep"])
WAYS = st.sampled_from([("batch", "kill"), ("batch", "extend"), ("pyss", "kill")])
WINDOWS = st.lists(st.tuples(st.integers(0, 30), LENGTH, st.integers(1, 8)), max_size=3)


def jobs_of(rows: list[tuple[int, int, int, int]], processors: int) -> list[Any]:
    """In order of submission, none wider than the machine."""
    return [
        oracle.Job(i, float(submit), min(width, processors), float(estimate), float(runtime))
        for i, (submit, width, estimate, runtime) in enumerate(sorted(rows, key=lambda r: r[0]))
    ]


def machine_with(jobs: list[Any], processors: int, policy: str, **options: Any) -> Machine:
    """One to which all of them will be submitted."""
    machine = Machine(processors, policy, **options)  # type: ignore[arg-type]
    for job in jobs:
        machine.submit(job.width, job.estimate, runtime=job.runtime, at=job.submit)
    return machine


@given(JOBS, st.integers(1, 8), POLICY, WAYS, EARLY, WINDOWS)
@settings(max_examples=examples(400))
def test_every_job_starts_and_ends_as_in_the_plain_twin(
    rows: list[tuple[int, int, int, int]],
    processors: int,
    policy: str,
    ways: tuple[str, str],
    early: str,
    windows: list[tuple[int, int, int]],
) -> None:
    """Many ties, estimates too long and too short, reservations in the way."""
    jobs = jobs_of(rows, processors)
    semantics, overrun = ways
    options = {"semantics": semantics, "early": early, "overrun": overrun}
    machine = machine_with(jobs, processors, policy, **options)
    twin = oracle.Oracle(processors, policy, **options)
    for begin, length, width in windows:
        answer = machine.reserve(float(begin), float(length), min(width, processors))
        if not isinstance(answer, Refusal):
            twin.windows.append((answer.start, answer.end, answer.processors))

    machine.run()
    twin.run(jobs)

    start, finish, killed, promised = machine.jobs.outcome()
    assert start.tolist() == [job.start for job in jobs]
    assert finish.tolist() == [job.finish for job in jobs]
    assert killed.tolist() == [job.killed for job in jobs]
    if policy == "conservative":
        assert promised.tolist() == [job.promise for job in jobs]


@given(JOBS, st.integers(1, 8), POLICY, WAYS, EARLY, WINDOWS)
@settings(max_examples=examples(150))
def test_what_every_policy_promises(
    rows: list[tuple[int, int, int, int]],
    processors: int,
    policy: str,
    ways: tuple[str, str],
    early: str,
    windows: list[tuple[int, int, int]],
) -> None:
    """
    Capacity is never exceeded, no job starts early, FCFS never overtakes, and
    conservative never starts a job after the start it was promised first.
    """
    jobs = jobs_of(rows, processors)
    semantics, overrun = ways
    machine = machine_with(
        jobs, processors, policy, semantics=semantics, early=early, overrun=overrun
    )
    kept = [
        answer
        for begin, length, width in windows
        if not isinstance(
            answer := machine.reserve(float(begin), float(length), min(width, processors)), Refusal
        )
    ]

    machine.run()

    start, finish, killed, promised = machine.jobs.outcome()
    assert not np.isnan(finish).any()
    if overrun == "extend" and not kept:
        assert not killed.any()
    for moment in [*start.tolist(), *(r.start for r in kept)]:
        held = sum(j.width for j, s, f in zip(jobs, start, finish, strict=True) if s <= moment < f)
        held += sum(r.processors for r in kept if r.start <= moment < r.end)
        assert held <= processors
    assert all(s >= job.submit for job, s in zip(jobs, start.tolist(), strict=True))
    if policy == "fcfs":
        assert start.tolist() == sorted(start.tolist())
    if policy == "conservative" and overrun == "kill":
        assert (start <= promised).all()


@given(JOBS, st.integers(1, 8), st.integers(0, 40))
@settings(max_examples=examples(150))
def test_an_early_end_makes_no_start_later(
    rows: list[tuple[int, int, int, int]], processors: int, moment: int
) -> None:
    """Compression moves waiting jobs forward or not at all."""
    jobs = jobs_of(rows, processors)
    machine = machine_with(jobs, processors, "conservative")
    machine.advance(float(moment))
    for job in machine.running.tolist():
        before = dict(zip(machine.waiting.tolist(), machine.expected_starts(), strict=True))
        machine.cancel(job)
        after = dict(zip(machine.waiting.tolist(), machine.expected_starts(), strict=True))
        assert all(after.get(number, machine.now) <= begin for number, begin in before.items())


@given(
    JOBS, st.integers(1, 8), POLICY, WAYS, EARLY,
    st.lists(st.integers(0, 60), max_size=8),
)  # fmt: skip
@settings(max_examples=examples(200))
def test_step_by_step_is_all_at_once(
    rows: list[tuple[int, int, int, int]],
    processors: int,
    policy: str,
    ways: tuple[str, str],
    early: str,
    moments: list[int],
) -> None:
    """A machine looked at and moved on in any steps ends as one that ran through."""
    jobs = jobs_of(rows, processors)
    semantics, overrun = ways
    options = {"semantics": semantics, "early": early, "overrun": overrun}
    whole = machine_with(jobs, processors, policy, **options)
    whole.run()
    stepped = Machine(processors, policy, **options)  # type: ignore[arg-type]
    coming = list(jobs)
    for moment in sorted(moments):
        while coming and coming[0].submit <= moment:
            job = coming.pop(0)
            stepped.submit(job.width, job.estimate, runtime=job.runtime, at=job.submit)
        stepped.advance(float(moment))
        offered_slots(stepped)
        stepped.expected_starts()
    for job in coming:
        stepped.submit(job.width, job.estimate, runtime=job.runtime, at=job.submit)
    stepped.run()

    for ours, theirs in zip(stepped.jobs.outcome(), whole.jobs.outcome(), strict=True):
        assert np.array_equal(ours, theirs, equal_nan=True)


def test_a_job_is_only_known_as_far_as_it_has_happened() -> None:
    """Its true end is nobody's to see before it comes; its promise is."""
    machine = Machine(4, "conservative")
    first = machine.submit(3, 10.0, runtime=4.0)
    second = machine.submit(2, 5.0)
    machine.advance(1.0)

    running, waiting = machine.job(first), machine.job(second)
    assert (running.start, running.finish, running.expected) == (0.0, None, 10.0)
    assert (waiting.start, waiting.promise) == (None, 10.0)
    assert machine.free == 1
    machine.advance(4.0)
    assert machine.job(first).finish == 4.0
    assert machine.job(second).start == 4.0
    assert machine.jobs.times(first, machine.now) == (machine.job(first).start, 4.0)
    assert machine.jobs.times(second, machine.now) == (4.0, None)
    assert math.isclose(machine.now, 4.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.submit(5, 1.0), "between 1 and 4 processors"),
        (lambda m: m.submit(1, 0.0), "must be positive"),
        (lambda m: m.submit(1, 1.0, at=1.0), "in order, from 5 on"),
        (lambda m: m.advance(1.0), "does not go back"),
        (lambda m: m.reserve(1.0, 1.0, 1), "begins at 5 or later"),
        (lambda m: m.reserve(9.0, 0.0, 1), "lasts"),
        (lambda m: m.job(3), "there is no job 3"),
        (lambda m: Machine(0), "at least 1"),
        (lambda m: Machine(4, "esay"), 'unknown policy "esay"'),
        (lambda m: Machine(4, semantics="x"), "unknown semantics"),
        (lambda m: Machine(4, semantics="pyss", overrun="extend"), "no further than"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, message: str) -> None:
    """One line, and nothing has changed."""
    machine = Machine(4, now=5.0)

    with pytest.raises(InputError, match=message):
        call(machine)
    assert machine.now == 5.0
