"""The bill of runs on a real Slurm is Slurm's own record, whatever happens to runs and pilots."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.settlement import (
    FAULTS,
    POLICIES,
    Held,
    Scene,
    controller_gone,
    killed,
    killed_while_handing_in,
    random_kills,
)

from bursar.provisioning.accounting import agree
from bursar_devtools.testgrid.slurm import SlurmCluster


@pytest.fixture
def scenes(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Makes runs on the session's cluster, and leaves nothing of them there."""
    made: list[Scene] = []

    def make(**how: Any) -> Scene:
        scene = Scene(tmp_path / f"{len(made)}", slurm, **how)
        made.append(scene)
        return scene

    try:
        yield make
    finally:
        for scene in made:
            scene.close()


def check(held: Held) -> None:
    """The bill is the record, but for a second a job; and that is within the budget."""
    assert held.unsettled == 0
    assert held.agrees is True
    assert held.jobs > 0
    assert agree(held.billed, held.recorded, held.jobs), held
    if held.budget is not None:
        assert held.worth <= held.budget + 1e-6
        assert held.paid <= held.budget


@pytest.mark.ci
def test_a_killed_run_pays_what_its_pilots_held_until_they_were_ended(
    scenes: Callable[..., Scene],
) -> None:
    """What they held after the kill is paid, too; tasks that ran twice have two attempts."""
    scene = scenes()
    killed(scene)
    held = scene.held()
    check(held)
    assert held.attempts == 2


def test_a_request_that_was_cut_off_while_it_was_handed_in_is_paid(
    scenes: Callable[..., Scene],
) -> None:
    """Killed when the request is written down, and its job is not; there was no lease yet."""
    scene = scenes(count=16, seconds=0.5)
    killed_while_handing_in(scene)
    check(scene.held())


@pytest.mark.ci
@pytest.mark.parametrize("policy", ["adaptive", "exponential"])
def test_random_kills_leave_the_bill_what_slurm_recorded(
    scenes: Callable[..., Scene], policy: str
) -> None:
    """Two rounds of a kill and a resume at random moments; more of them by ``make test-long``."""
    scene = scenes(policy=policy, budget=2.0, count=32, seconds=0.5)
    random_kills(scene, random.Random(f"2 {policy}"), 2)
    check(scene.held())


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_thirty_random_kills(scenes: Callable[..., Scene], policy: str) -> None:
    """Thirty rounds, six to a run, under a budget that the record never passes."""
    rng = random.Random(f"1 {policy}")
    left = 30
    while left > 0:
        scene = scenes(policy=policy, budget=2.0, count=200, seconds=1.0)
        left -= max(1, random_kills(scene, rng, min(left, 6)))
        check(scene.held())


@pytest.mark.long
@pytest.mark.parametrize(("fault", "how"), FAULTS, ids=lambda one: getattr(one, "__name__", ""))
def test_every_fault(
    scenes: Callable[..., Scene], fault: Callable[[Scene], None], how: dict[str, Any]
) -> None:
    """Each of those in the documentation's table."""
    scene = scenes(**how)
    fault(scene)
    check(scene.held())


@pytest.mark.long
def test_a_controller_that_is_gone_at_the_end_leaves_a_settlement_to_resume(
    scenes: Callable[..., Scene],
) -> None:
    """The run waits, says so, and ends with status 6; resumed, everything is paid."""
    scene = scenes(seconds=4.0, count=16)
    controller_gone(scene)
    assert scene.statuses == [6, 0]
    assert "waits up to" in scene.said
    check(scene.held())
