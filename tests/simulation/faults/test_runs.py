"""The engine of a run under faults, with copies of tasks."""

from dataclasses import replace
from typing import Any

import pytest

from bursar.dispatch import journal_records
from bursar.engine import core, reactor
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.fault_plan import run_plan_of
from bursar_devtools.run_faults import simulate_run

SEEDS = 100
_MANY = 3_000
_BREAKING = 400


def _first_wrong(seeds: int) -> str:
    """Return what is wrong in the first of some seeds of many copies and kills that fails."""
    for seed in range(seeds):
        plan = replace(run_plan_of(seed), copies=3.0, kills=0.2, has_files=True)
        try:
            wrong = simulate_run(seed, plan)
        except Exception as error:  # an engine that cannot go on is found, too
            wrong = str(error)
        if wrong:
            return wrong
    return ""


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(_MANY, marks=pytest.mark.long)])
def test_each_task_has_one_result_and_no_acknowledged_success_is_lost(seeds: int) -> None:
    assert [(seed, wrong) for seed in range(seeds) if (wrong := simulate_run(seed))] == []


def test_a_seed_decides_everything() -> None:
    digests = []
    for _ in range(2):
        trace = EventTrace()
        simulate_run(7, replace(run_plan_of(7), copies=3.0, kills=0.2), trace)
        digests.append(trace.digest)

    assert digests[0] == digests[1]


def test_a_held_success_that_is_not_journalled_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberately broken: the worker hears that its success is recorded, and it is not."""
    monkeypatch.setattr(reactor.RunReactions, "keep", lambda self, claim, outcome: None)

    assert "acknowledged" in _first_wrong(_BREAKING)


def test_numbers_that_are_given_again_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberately broken: the next life does not know which numbers copies have had."""
    assert journal_records.last_numbers is core.last_numbers
    monkeypatch.setattr(core, "last_numbers", lambda journal: {})

    assert _first_wrong(_BREAKING) != ""


def _first_wrong_purchase(seeds: int) -> str:
    """Return what is wrong in the first of some seeds of many purchases that fails."""
    for seed in range(seeds):
        plan = replace(run_plan_of(seed), purchases=1.0, kills=0.2)
        if wrong := simulate_run(seed, plan):
            return wrong
    return ""


def test_tasks_on_processors_bought_for_copies_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberately broken: workers of what was bought for copies take tasks like any other."""
    joined = reactor.worker_joined

    def open_to_all(core: Any, *words: Any, **more: Any) -> Any:
        bought, core.for_copies = core.for_copies, set()
        worker = joined(core, *words, **more)
        core.for_copies = bought
        return worker

    monkeypatch.setattr(reactor, "worker_joined", open_to_all)

    assert "was bought for a copy, and runs" in _first_wrong_purchase(SEEDS)


def test_a_purchase_whose_end_is_not_recorded_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliberately broken: a lease is paid, and the journal does not say that it has ended."""

    def pay_only(life: Any, lease: str) -> None:
        if lease in life.guard.leases:
            life.guard.charges.close(lease, life.now())
            life.pending.transfers.extend(life.guard.transfers())
            life.commit_soon()

    monkeypatch.setattr("bursar_devtools.run_life.EngineLife.close_lease", pay_only)

    assert "copy-" in _first_wrong_purchase(SEEDS)
