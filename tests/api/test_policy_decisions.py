"""What decides where jobs run, for every kind of campaign, sites and options, in run and simulate."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.recording import assert_recorded

from bursar.api import running, simulating
from bursar.model.brokering import Brokering
from bursar.model.campaign import Campaign
from bursar.model.errors import Infeasible, InputError
from bursar.model.goal import Goal
from bursar.model.matching import Matching
from bursar.model.plan import Plan
from bursar.model.provisioning import BatchScheduler
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.step import Exec
from bursar.model.task import Task
from bursar.model.workflow import Workflow

LINUX = Matching(requirements='other.OpSys == "LINUX"')
IRIX = Matching(requirements='other.OpSys == "IRIX"')


def task(name: str, matching: Matching | None = None, **more: Any) -> Task:
    asked = matching or Matching()
    return Task(id=name, steps=(Exec(("true",)),), runtime=10.0, matching=asked, **more)


def campaign(*tasks: Task, goal: Goal | None = None) -> Campaign:
    return Campaign(name="c", workflow=Workflow(tasks), goal=goal or Goal())


LIMIT = Goal(deadline=3600.0)
CAMPAIGNS = {
    "bag": campaign(task("a"), task("b")),
    "bag with a deadline": campaign(task("a"), task("b"), goal=LIMIT),
    "workflow": campaign(task("a"), task("b", after=("a",))),
    "ranked": campaign(task("a", Matching(rank="1")), task("b")),
    "one requirement": campaign(task("a", LINUX), task("b", LINUX)),
    "one requirement, deadline": campaign(task("a", LINUX), task("b", LINUX), goal=LIMIT),
    "two requirements, deadline": campaign(task("a", LINUX), task("b", IRIX), goal=LIMIT),
}


def local(name: str, system: str) -> SiteFacts:
    return SiteFacts(name=name, unit_price=1e-3, processors=2, attributes={"OpSys": system})


SLOT = Slot(
    site="batch", start=0.0, duration=9000.0, processors=2, unit_price=1e-3, fixed_price=0.0
)
BATCH = SiteFacts(
    name="batch",
    kind="batch",
    processors=2,
    unit_price=1e-3,
    attributes={"OpSys": "LINUX"},
    batch=BatchScheduler(manager="slurm"),
    slots=(SLOT,),
)
SITES = {
    "one": (local("linux", "LINUX"),),
    "two": (local("linux", "LINUX"), local("irix", "IRIX")),
    "batch": (BATCH,),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "planned": {"provisioning": "planned"},
    "dynamic": {"provisioning": "dynamic"},
    "best-effort": {"provisioning": "best-effort"},
    "queued": {"provisioning": "queued"},
    "either": {"provisioning": "either"},
    "strategy": {"strategy": "cost"},
    "choice": {"broker": Brokering(choice="best")},
    "processors": {"processors": 2},
    "planned, strategy": {"provisioning": "planned", "strategy": "cost"},
    "planned, choice": {"provisioning": "planned", "broker": Brokering(choice="best")},
    "dynamic, strategy": {"provisioning": "dynamic", "strategy": "cost"},
    "dynamic, choice": {"provisioning": "dynamic", "broker": Brokering(choice="best")},
    "dynamic, processors": {"provisioning": "dynamic", "processors": 2},
    "best-effort, strategy": {"provisioning": "best-effort", "strategy": "cost"},
    "best-effort, choice": {"provisioning": "best-effort", "broker": Brokering(choice="best")},
    "best-effort, processors": {"provisioning": "best-effort", "processors": 2},
    "strategy, choice": {"strategy": "cost", "broker": Brokering(choice="best")},
    "strategy, processors": {"strategy": "cost", "processors": 2},
    "choice, processors": {"broker": Brokering(choice="best"), "processors": 2},
}


class Decided(Exception):
    """Ends a command when its decision is known."""


def described(strategy: Any, brokering: Any, dynamic: bool, plan: Plan | None) -> str:
    if brokering is not None:
        return f"matched, {brokering.choice}"
    if dynamic:
        return "pool"
    if strategy is not None:
        return f"economy, {strategy}"
    if plan is None:
        return "best effort"
    names = sorted({purchase.slot.site for purchase in plan.purchases})
    return f"planned on {','.join(names)}"


def answer(command: Any, which: str, where: str, how: str) -> str:
    try:
        command(CAMPAIGNS[which], SITES[where], **OPTIONS[how])
    except Decided as decided:
        return str(decided)
    except InputError as error:
        return f"error: {error}"
    except Infeasible as error:
        return f"refused: {error}"
    raise AssertionError("nothing was decided")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """End run and simulate when they have decided."""

    def create(*_: Any, **how: Any) -> None:
        made["how"] = how
        raise Decided(described(how["strategy"], how["brokering"], how["dynamic"], made["plan"]))

    made: dict[str, Any] = {"plan": None}
    plan_of = running.make_plan

    def make_plan(*given: Any, **how: Any) -> Any:
        how["method"] = "heft"
        proposal = plan_of(*given, **how)
        made["plan"] = proposal.chosen
        return proposal

    class Simulator:
        def __init__(self, *_: Any, **how: Any) -> None:
            self.how = how
            self.copies = how["copies"]

        def queued(self) -> Plan:
            raise Decided("queued")

        def expected(self) -> tuple[float, float]:
            raise Decided("either")

        def carry_out(self, plan: Plan | None, *_: Any, **__: Any) -> None:
            how = self.how
            raise Decided(described(how["strategy"], how["brokering"], how["dynamic"], plan))

    def look_for_matches(_: Any, __: Any, brokering: Brokering, ___: Any) -> None:
        raise Decided(f"matched, {brokering.choice}")

    monkeypatch.setattr(running.RunFolder, "create", create)
    monkeypatch.setattr(running, "look_for_matches", look_for_matches)
    monkeypatch.setattr(simulating, "look_for_matches", look_for_matches)
    monkeypatch.setattr(running, "make_plan", make_plan)
    monkeypatch.setattr(simulating, "make_plan", make_plan)
    monkeypatch.setattr(simulating, "Simulator", Simulator)


def test_run_and_simulate_decide_as_recorded(stopped: None) -> None:
    lines = []
    for which in CAMPAIGNS:
        for where in SITES:
            for how in OPTIONS:
                ran = answer(running.run, which, where, how)
                simulated = answer(simulating.simulate, which, where, how)
                mark = "same" if ran == simulated else "DIFFER"
                lines.append(json.dumps([which, where, how, mark, ran, simulated]))
    assert_recorded(Path(__file__).parent / "policy_decisions.jsonl", lines)
