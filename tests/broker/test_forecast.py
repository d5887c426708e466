"""The predicted end follows what really happens."""

import pytest

from bursar.broker.feasibility import PaceEstimate
from bursar.model.campaign import Workflow
from bursar.model.plan import Plan, Purchase
from bursar.model.slot import Slot
from bursar.model.task import File, Outcome, Status, Task


def plan(processors: int, utilisation: float | None = None) -> Plan:
    """A purchase of so many processors."""
    slot = Slot(
        site="here",
        start=0.0,
        duration=100.0,
        processors=processors,
        unit_price=0.0,
        fixed_price=0.0,
    )
    return Plan(
        purchases=(Purchase(slot=slot),),
        placements=(),
        makespan=None,
        cost=0.0,
        currency="SU",
        utilisation=utilisation,
        algorithm="heft",
    )


def ended(task: int, seconds: float, status: Status = Status.SUCCEEDED) -> Outcome:
    """An attempt that took so long."""
    return Outcome(task=task, attempt=1, status=status, start=10.0, end=10.0 + seconds)


def bag(*runtimes: float | None) -> Workflow:
    """Independent tasks."""
    return Workflow(tuple(Task(id=str(i), runtime=r) for i, r in enumerate(runtimes)))


def test_before_anything_has_ended_the_estimates_count() -> None:
    """Work left over processors, and over the share of their time that can be used."""
    assert PaceEstimate(bag(4, 4, 4, 4), plan(2)).finish(0.0) == 8
    assert PaceEstimate(bag(4, 4, 4, 4), plan(2, 0.5)).finish(1.0) == 17


def test_estimates_that_are_off_stretch_what_is_left() -> None:
    """Twice as long so far: twice as long from here; only by the last try of a task."""
    forecast = PaceEstimate(bag(4, 4, 4, 4), plan(1))
    forecast.learn(ended(0, 50.0, Status.LOST), final=False)
    forecast.learn(ended(0, 8.0), final=True)

    assert forecast.stretch == 2
    assert forecast.finish(8.0) == pytest.approx(8 + 24)


def test_wide_tasks_count_by_processor_seconds() -> None:
    """One of two processors that took twice its estimate says no more than a narrow one does."""
    forecast = PaceEstimate(
        Workflow(tuple(Task(id=i, runtime=4, processors=2) for i in "abc")), plan(2)
    )
    forecast.learn(ended(0, 8.0), final=True)

    assert forecast.stretch == 2
    assert forecast.finish(8.0) == pytest.approx(8 + 16)


def test_tasks_without_an_estimate_take_what_others_of_them_took() -> None:
    """Unknown until the first has ended."""
    forecast = PaceEstimate(bag(None, None, None, 6), plan(1))

    assert forecast.finish(0.0) is None
    forecast.learn(ended(0, 2.0), final=True)
    assert forecast.finish(2.0) == pytest.approx(2 + 2 * 2 + 6)


def test_what_a_failure_skips_is_not_waited_for() -> None:
    """A chain and a task beside it: when the chain breaks, only the other is left."""
    made = [File(f"f{i}") for i in range(3)]
    workflow = Workflow(
        (
            Task(id="a", runtime=1, outputs=(made[0],)),
            Task(id="b", runtime=5, inputs=(made[0],), outputs=(made[1],)),
            Task(id="c", runtime=5, inputs=(made[0], made[1])),
            Task(id="other", runtime=3),
        )
    )
    forecast = PaceEstimate(workflow, plan(1))
    forecast.learn(ended(0, 1.0, Status.FAILED), final=True)

    assert forecast.finish(1.0) == 4
    forecast.learn(ended(3, 3.0), final=True)
    assert forecast.finish(4.0) == 4
