"""Schedulers over slots of every kind, placement by placement against a plain twin."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.planning import reference_schedulers as plain
from tests.planning.random_problems import site_lists, workflows
from tests.thoroughness import examples

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.planning.evaluation import PurchaseEvaluator
from bursar.planning.methods.sweep import minmin_schedule
from bursar.planning.policy import SCHEDULERS, PlacementPolicy, Scheduler
from bursar.planning.problem import PlanningProblem, build_problem
from bursar.planning.schedule import Schedule
from bursar.planning.schedulers import schedule


def _problem(workflow: Workflow, sites: list[SiteFacts]) -> PlanningProblem:
    try:
        return build_problem(workflow, sites)
    except InputError:  # a task wider than any site
        assume(False)
        raise


def _same(made: Schedule, twin: plain.Plain, problem: PlanningProblem) -> None:
    placed = made.site >= 0
    assert made.site.tolist() == twin.site
    assert made.start[placed].tolist() == [s for s, p in zip(twin.start, placed, strict=True) if p]
    for task in np.flatnonzero(placed).tolist():
        at, n = made.held_first[task], made.held_count[task]
        shares = zip(made.held_slot[at : at + n], made.held_width[at : at + n], strict=True)
        assert {int(s): int(w) for s, w in shares} == twin.slots_of[task]
    arrays = problem.offers.arrays
    cost = (made.paid * arrays.unit_price + arrays.fixed_price)[made.used].sum()
    assert cost == pytest.approx(twin.price(), abs=1e-6)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@given(workflow=workflows(), sites=site_lists(), choice=st.randoms(use_true_random=False))
@settings(max_examples=examples(150))
def test_every_scheduler_places_as_its_plain_twin(
    scheduler: Scheduler, workflow: Workflow, sites: list[SiteFacts], choice: object
) -> None:
    problem = _problem(workflow, sites)
    caps = [
        slot.processors if not slot.divisible else choice.randint(0, slot.processors)  # type: ignore[attr-defined]
        for slot in problem.offers.slots
    ]
    policy = PlacementPolicy(scheduler=scheduler, weight=0.5, worth=2.0)

    made = schedule(problem, np.array(caps), policy)

    _same(made, plain.run(problem, caps, scheduler, 0.5, 2.0), problem)


@given(
    workflow=workflows(most=5),
    sites=site_lists(),
    weight=st.sampled_from([0.0, 0.25, 1.0]),
)
@settings(max_examples=examples(150))
def test_min_min_on_total_cost_is_what_its_figures_say(
    workflow: Workflow, sites: list[SiteFacts], weight: float
) -> None:
    problem = _problem(workflow, sites)

    made = minmin_schedule(problem, problem.everything, weight, 2.0)

    twin = plain.minmin_total(problem, problem.everything.tolist(), weight, 2.0)
    _same(made, twin, problem)


@given(workflow=workflows(), sites=site_lists(), seed=st.integers(0, 99))
@settings(max_examples=examples(50))
def test_threads_change_nothing(workflow: Workflow, sites: list[SiteFacts], seed: int) -> None:
    problem = _problem(workflow, sites)
    rng = np.random.default_rng(seed)
    caps = np.where(rng.random((7, problem.n_slots)) < 0.6, problem.everything, 0)

    one, many = (
        PurchaseEvaluator(problem, PlacementPolicy(), threads=n).evaluate(caps) for n in (1, 3)
    )

    for name in ("makespan", "cost", "used", "area"):
        assert getattr(one, name).tolist() == getattr(many, name).tolist()


def test_kernels_are_made_anew_when_a_module_beside_them_changes(tmp_path: Path) -> None:
    """Numba looks at the function's own file only."""
    import subprocess
    import sys

    (tmp_path / "inner.py").write_text(
        "from bursar.compiling import compiled\n@compiled\ndef one():\n    return 1\n"
    )
    (tmp_path / "outer.py").write_text(
        "from bursar.compiling import compiled\nfrom inner import one\n"
        "@compiled\ndef two():\n    return one() + 1\nprint(two())\n"
    )

    def said() -> str:
        command = [sys.executable, "outer.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout.strip()

    assert said() == "2"
    text = (tmp_path / "inner.py").read_text().replace("return 1", "return 10")
    (tmp_path / "inner.py").write_text(text)
    assert said() == "11"
