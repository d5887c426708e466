"""Runs on simulated sites: the broker, the dispatcher and the ledger on virtual time."""

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.valid_plans import Instance, instances
from tests.simulation.test_loaded import trace
from tests.thoroughness import examples

import bursar
from bursar.api.simulating import Simulation, simulate
from bursar.cluster.job_table import Policy
from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import JournalState
from bursar.formats.trace_files import write_swf
from bursar.market.ledger import Ledger
from bursar.model.campaign import Campaign, Retry, Workflow
from bursar.model.network import Link
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import File, Task
from bursar.runs.campaign_run import execute_campaign
from bursar.runs.environment import RunEnvironment
from bursar.runs.folder import RunFolder
from bursar.runs.plan_file import write_plan
from bursar.runs.supply import PlannedSupply
from bursar.simulation.execution_model import ExecutionUncertainty
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar.simulation.simulated_grid import SimulatedGrid
from bursar.simulation.virtual_loop import VirtualLoop
from bursar_papers.workflows import layered


def _carried_out(instance: Instance, folder: Path) -> tuple[dict[str, Any], JournalState]:
    """A plan, whoever made it, carried out on sites as they are."""
    plan, workflow, facts = instance
    campaign = Campaign(name="any", workflow=workflow)
    sites = SimulatedGrid(tuple(bursar.SiteFacts(**_as_dict(site)) for site in facts))
    environment = RunEnvironment(
        sites=sites.open(workflow, ExecutionUncertainty()),
        supply=PlannedSupply(plan),
        loop=VirtualLoop,
        tick=math.inf,
        refresh=1e6,
        durable=False,
    )
    with RunFolder.create(folder, campaign, (), argv=[], name="run") as run:
        write_plan(run, {}, plan)
    summary = execute_campaign(run, campaign, plan, environment=environment)
    return summary, read_journal(run.journal_file)


def _as_dict(site: SiteFacts) -> dict[str, Any]:
    names = ("name", "processors", "speed", "slots", "links")
    return {"kind": "advertised", **{name: getattr(site, name) for name in names}}


@given(instances())
@settings(max_examples=examples(60))
def test_no_task_of_a_valid_plan_runs_later_than_planned(
    tmp_path_factory: pytest.TempPathFactory, instance: Instance
) -> None:
    """
    Each runs where the plan says, for its price: earlier where a slot that is paid whole
    has room. In a lease tasks go as they come, so that there some may be later.
    """
    plan, workflow, _ = instance
    summary, journal = _carried_out(instance, tmp_path_factory.mktemp("run"))

    assert summary["succeeded"] == len(workflow.tasks)
    assert Counter(r.outcome.task for r in journal.records) == Counter(range(len(workflow.tasks)))
    begin = next(event.time for event in journal.events if event.kind == "begin")
    ran = {r.outcome.task: r for r in journal.records}
    leased = any(purchase.slot.leased for purchase in plan.purchases)
    for placement in plan.placements:
        record = ran[placement.task]
        assert record.site == placement.site
        if not leased:
            assert record.outcome.start - begin <= placement.start + 1e-3
            assert record.outcome.end - begin <= placement.finish + 1e-3
    ledger = Ledger(journal.transfers)
    assert ledger.held == ledger.free == 0
    if not leased:
        assert ledger.spent / 1e6 == pytest.approx(plan.cost, abs=1e-2)


def _log(folder: Path, seed: int) -> str:
    path = folder / "log.swf"
    write_swf(path, trace(seed))
    return str(path)


def _cluster(log: str | None, at: float = 0.0, **more: Any) -> SiteFacts:
    background = BackgroundLoad(trace=log, at=at if log else None, **more)
    return SiteFacts(
        name="cluster", kind="simulated", processors=32, unit_price=1.0, background=background
    )


def _workflow(seed: int, tasks: int = 20) -> Workflow:
    """At times that add up without rounding."""
    rng = np.random.default_rng(seed)
    made = layered(rng, tasks=tasks, depth=4, mean_runtime=60.0, mean_processors=6.0)
    return Workflow(
        tuple(replace(t, runtime=max(1, round((t.runtime or 0) * 64)) / 64) for t in made.tasks)
    )


@pytest.mark.ci
@given(
    seed=st.integers(0, 50),
    at=st.integers(0, 9000),
    policy=st.sampled_from(["fcfs", "easy", "conservative"]),
)
@settings(max_examples=examples(20))
def test_best_effort_by_the_broker_is_best_effort_by_the_machine(
    tmp_path_factory: pytest.TempPathFactory, seed: int, at: int, policy: Policy
) -> None:
    """The same as the loaded cluster has it, which is held against the simulator of traces."""
    folder = tmp_path_factory.mktemp("run")
    work = _workflow(seed)
    site = _cluster(_log(folder, seed), float(at), policy=policy, looseness=1.0)

    run = simulate(
        Campaign(name="c", workflow=work), site, provisioning="best-effort", name="r", runs=folder
    )

    cluster = LoadedCluster(trace(seed), 32, at=float(at), policy=policy, looseness=1.0)
    expected = cluster.run(work)
    journal = read_journal(folder / "r" / "journal.sqlite")
    start = {r.outcome.task: r.outcome.start for r in journal.records}
    assert [start[i] for i in range(20)] == pytest.approx(expected.start.tolist(), abs=1e-6)
    assert run.makespan == pytest.approx(expected.makespan)
    held = sum((t.runtime or 0.0) * t.processors for t in work.tasks)
    assert run.cost == pytest.approx(held, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_on_a_cluster_comes_true(tmp_path: Path, seed: int) -> None:
    """Its makespan and its price are those of the plan, and the others wait for it."""
    campaign = Campaign(name="c", workflow=_workflow(seed), goal=bursar.Goal(trade_off=0.5))
    site = _cluster(_log(tmp_path, seed), 3000.0, looseness=1.0)

    told = simulate(campaign, site, method="heft").to_dict()

    assert told["state"] == "finished"
    assert told["makespan_s"] == pytest.approx(told["predicted_makespan_s"], abs=1e-3)
    assert told["cost"] == pytest.approx(told["predicted_cost"], abs=1e-3)
    assert told["others"]["cluster"]["jobs"] > 0
    assert not (tmp_path / "runs").exists()
    assert simulate(campaign, site, method="heft").to_dict() == told


@pytest.mark.parametrize(
    "seed",
    [pytest.param(one, marks=pytest.mark.ci if at else []) for at, one in enumerate(range(4))],
)
def test_what_takes_longer_than_planned_is_planned_again(tmp_path: Path, seed: int) -> None:
    """Windows end before their tasks: these run again in others, each once to success."""
    campaign = Campaign(name="c", workflow=_workflow(seed), goal=bursar.Goal(trade_off=0.5))
    site = _cluster(_log(tmp_path, seed), 3000.0, looseness=1.0)

    run = simulate(
        campaign,
        site,
        method="heft",
        chance=ExecutionUncertainty(spread=0.3, seed=seed),
        name="r",
        runs=tmp_path / "runs",
    )

    assert run.succeeded
    journal = read_journal(tmp_path / "runs" / "r" / "journal.sqlite")
    won = Counter(r.outcome.task for r in journal.records if r.outcome.status == "succeeded")
    assert won == Counter(range(20))
    assert any("planned again" in event.text for event in journal.events)
    ledger = Ledger(journal.transfers)
    assert ledger.held == ledger.free == 0
    assert sum(ledger.balances.values()) == 0


@pytest.mark.parametrize(
    "provisioning", [pytest.param("planned", marks=pytest.mark.ci), "best-effort"]
)
def test_failures_are_tried_again(tmp_path: Path, provisioning: Any) -> None:
    work = _workflow(1)
    campaign = Campaign(name="c", workflow=work, retry=Retry(attempts=20))
    site = _cluster(_log(tmp_path, 1), 3000.0)

    run = simulate(
        campaign,
        site,
        provisioning=provisioning,
        method="heft" if provisioning == "planned" else None,
        chance=ExecutionUncertainty(failures=0.4, seed=3),
    )

    told = run.to_dict()
    assert run.succeeded
    assert told["attempts"] > told["tasks"]


@pytest.mark.ci
def test_a_task_that_fails_for_good_takes_what_follows_with_it(tmp_path: Path) -> None:
    work = Workflow((Task(id="a", runtime=5.0), Task(id="b", runtime=5.0, after=("a",))))

    for provisioning in ("planned", "best-effort"):
        told = simulate(
            Campaign(name="c", workflow=work),
            _cluster(None),
            provisioning=provisioning,  # type: ignore[arg-type]
            chance=ExecutionUncertainty(failures=0.999, seed=1),
        ).to_dict()
        assert (told["failed"], told["skipped"], told["exit_status"]) == (1, 1, 1)


def test_a_budget_stops_a_simulated_run_as_a_real_one(tmp_path: Path) -> None:
    """Half of what twice the time costs: the run ends when the money does, to the unit."""
    work = Workflow(tuple(Task(id=str(i), runtime=100.0) for i in range(10)))
    site = SiteFacts(name="here", processors=1, unit_price=1.0)
    campaign = Campaign(name="c", workflow=work, goal=bursar.Goal(budget=1000.0))

    told = simulate(
        campaign, site, chance=ExecutionUncertainty(spread=0.5, seed=2), anyway=True
    ).to_dict()

    assert told["cost"] <= 1000.0
    assert told["exit_status"] in (0, 4)
    tight = replace(campaign, goal=bursar.Goal(budget=500.0))
    told = simulate(tight, site, anyway=True).to_dict()
    assert told["exit_status"] == 4
    assert told["state"] == "budget-stopped"
    assert 490 < told["cost"] <= 500
    assert told["succeeded"] == 4


def test_a_plan_that_the_budget_does_not_cover_costs_nothing(tmp_path: Path) -> None:
    """Half of its slots could be paid, fixed prices and all; none is."""
    slots = tuple(
        Slot(
            site="s",
            start=0.0,
            duration=10.0,
            processors=1,
            unit_price=1.0,
            fixed_price=5.0,
            divisible=False,
        )
        for _ in range(2)
    )
    site = SiteFacts(name="s", kind="advertised", processors=2, slots=slots)
    work = Workflow(tuple(Task(id=str(i), runtime=10.0) for i in range(2)))
    campaign = Campaign(name="c", workflow=work, goal=bursar.Goal(budget=20.0))

    with pytest.raises(bursar.BudgetStop, match="short of the worst case"):
        simulate(campaign, site, anyway=True, name="r", runs=tmp_path)

    journal = read_journal(tmp_path / "r" / "journal.sqlite")
    assert Ledger(journal.transfers).spent == 0
    assert Ledger(journal.transfers).held == 0
    assert all(math.isfinite(transfer.time) for transfer in journal.transfers)


def test_data_take_their_time_between_sites() -> None:
    """The child waits for the link where it is on another site than its parent."""
    link = {"far": Link(latency=7.0, bandwidth=2.0)}
    made = File("f", 10)
    work = Workflow(
        (
            Task(id="a", runtime=5.0, outputs=(made,)),
            Task(id="b", runtime=5.0, inputs=(made,), processors=4),
        )
    )
    sites = (
        SiteFacts(name="near", processors=1, unit_price=1.0, links=link, speed=2.0),
        SiteFacts(name="far", processors=4, unit_price=1.0),
    )

    run = simulate(Campaign(name="c", workflow=work), sites)

    planned = run.to_dict()["predicted_makespan_s"]
    assert run.makespan == pytest.approx(planned)


@pytest.mark.ci
def test_either_takes_what_promises_more(tmp_path: Path) -> None:
    """One of the three, whatever the goal."""
    work = _workflow(4)
    site = _cluster(_log(tmp_path, 4), 3000.0, looseness=1.0)
    for goal in (bursar.Goal(), bursar.Goal(trade_off=0.5), bursar.Goal(deadline=1e6)):
        campaign = Campaign(name="c", workflow=work, goal=goal)
        ways = [
            simulate(campaign, site, provisioning=how, method=method)  # type: ignore[arg-type]
            for how, method in (
                ("planned", "heft"),
                ("best-effort", None),
                ("queued", "heft"),
                ("either", "heft"),
            )
        ]
        *each, either = ((way.makespan, way.cost) for way in ways)
        assert either in each


@pytest.mark.parametrize("seed", range(4))
def test_what_is_queued_at_once_starts_as_best_effort_would_alone(
    tmp_path: Path, seed: int
) -> None:
    """And as it is reserved, it does so however many others come; it pays what it uses."""
    work = _workflow(seed)
    site = _cluster(_log(tmp_path, seed), 3000.0, looseness=1.0)

    run = simulate(Campaign(name="c", workflow=work), site, provisioning="queued")

    cluster = LoadedCluster(trace(seed), 32, at=3000.0, looseness=1.0).as_expected(0)
    assert run.to_dict()["provisioning"] == "queued"
    assert run.makespan == pytest.approx(cluster.run(work).makespan, abs=1e-3)
    held = sum((t.runtime or 0.0) * t.processors for t in work.tasks)
    assert run.cost == pytest.approx(held, rel=1e-6)


def test_an_unknown_runtime_cannot_be_simulated() -> None:
    work = Workflow((Task(id="a"), Task(id="b")))

    with pytest.raises(bursar.InputError, match='the runtime of task "a" and 1 more is unknown'):
        simulate(Campaign(name="c", workflow=work), _cluster(None))


def test_best_effort_needs_a_queue() -> None:
    work = Workflow((Task(id="a", runtime=1.0),))
    slot = Slot(site="s", start=0.0, duration=10.0, processors=1, unit_price=1.0)
    site = SiteFacts(name="s", kind="advertised", slots=(slot,))

    with pytest.raises(bursar.BursarError, match="no queue for best effort"):
        simulate(Campaign(name="c", workflow=work), site, provisioning="best-effort")


def test_several_clusters_share_best_effort() -> None:
    """Each task goes where it is expected to end first."""
    work = Workflow(tuple(Task(id=str(i), runtime=10.0) for i in range(6)))
    sites = tuple(
        SiteFacts(name=n, kind="simulated", processors=1, unit_price=1.0, speed=v)
        for n, v in (("slow", 1.0), ("fast", 2.0))
    )

    run = simulate(Campaign(name="c", workflow=work), sites, provisioning="best-effort")

    assert run.makespan == 20.0  # four on the fast one, two on the slow one
    assert isinstance(run, Simulation)
