"""Run, simulate, replay and tune decide alike which policy brings processors to tasks."""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tests.recording import assert_recorded

from bursar.api import quoting, replaying, running, simulating, tuning
from bursar.api.simulator import Simulator
from bursar.broker.policy_choice import PolicyRequest, SupplyPolicy, choose_policy
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.errors import InputError
from bursar.model.matching import Brokering, Matching
from bursar.model.provisioning import BatchScheduler
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Exec, Task

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
    "method": {"method": "heft"},
    "scheduler": {"scheduler": "minmin"},
    "out of reach": {"out_of_reach": "refuse"},
    "dynamic, method": {"provisioning": "dynamic", "method": "heft"},
    "best-effort, scheduler": {"provisioning": "best-effort", "scheduler": "minmin"},
    "queued, method": {"provisioning": "queued", "method": "heft"},
    "strategy, method": {"strategy": "cost", "method": "heft"},
    "strategy, out of reach": {"strategy": "cost", "out_of_reach": "refuse"},
    "choice, method": {"broker": Brokering(choice="best"), "method": "heft"},
    "choice, out of reach": {"broker": Brokering(choice="best"), "out_of_reach": "refuse"},
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


def answer(command: Callable[..., Any], *given: Any, **how: Any) -> str:
    """Return the policy that a command quotes, with its sites and goal, or the error line."""
    try:
        command(*given, **how)
    except Decided as decided:
        return str(decided)
    except InputError as error:
        return f"error: {error}".partition("\n")[0]
    raise AssertionError("nothing was decided")


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """End each command when it asks for the quote of the policy that it has decided on."""

    def quote_policy(
        policy: SupplyPolicy, work: Campaign, sites: Sequence[SiteFacts], *_: Any, **__: Any
    ) -> None:
        names = ", ".join(site.name for site in sites)
        raise Decided(f"{policy.kind} ({policy}) on {names}, trade-off {work.goal.trade_off}")

    for module in (quoting, simulating):
        monkeypatch.setattr(module, "quote_policy", quote_policy)


COMBINATIONS = list(product(CAMPAIGNS, SITES, OPTIONS))


def test_run_and_simulate_give_the_same_answer_to_every_question(stopped: None) -> None:
    """The whole product of campaigns, sites and options; what was decided is recorded."""
    lines = []
    for which, where, how in COMBINATIONS:
        asked = (CAMPAIGNS[which], SITES[where])
        simulated = answer(simulating.simulate, *asked, **OPTIONS[how])
        ran = answer(running.run, *asked, **OPTIONS[how])
        if simulated.startswith(("best-effort", "queued", "either")):
            kind = simulated.partition(" ")[0]
            assert ran == (
                f'error: provisioning: "{kind}" depends on what queues will do, '
                "which only a simulation knows"
            )
        else:
            assert ran == simulated, (which, where, how)
        lines.append(json.dumps([which, where, how, simulated]))
    assert_recorded(Path(__file__).parent / "policy_decisions.jsonl", lines)


@pytest.mark.parametrize("which", [which for which in CAMPAIGNS if which != "ranked"])
def test_replay_decides_as_run_does(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that run would refuse for a campaign leaves no row."""
    work, sites = CAMPAIGNS[which], SITES["two"]
    simulating.simulate(work, sites, name="r", runs=tmp_path, anyway=True)
    carried: list[SupplyPolicy] = []
    carry_out = Simulator.carry_out

    def noted(self: Simulator, policy: SupplyPolicy, *given: Any, **how: Any) -> dict[str, Any]:
        carried.append(policy)
        return carry_out(self, policy, *given, **how)

    monkeypatch.setattr(Simulator, "carry_out", noted)
    rows = replaying.replay("r", ("planned", "cost"), runs=tmp_path).rows[2:]

    expected = []
    for stated in ({"provisioning": "planned"}, {"strategy": "cost"}):
        with suppress(InputError):
            expected.append(choose_policy(work, sites, PolicyRequest(**stated)).policy)
    assert len(rows) == len(expected)
    assert set(carried[1:]) <= set(expected)
    assert {str(policy) for policy in carried} >= {str(policy) for policy in expected}


@pytest.mark.parametrize("which", CAMPAIGNS)
def test_tune_matches_as_run_does(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuning the rank is about matching, by the settings that a run would match with."""

    def locate_replicas(brokering: Brokering | None, _: Campaign) -> None:
        raise Decided(str(brokering))

    monkeypatch.setattr(tuning, "locate_replicas", locate_replicas)
    work, sites = CAMPAIGNS[which], SITES["two"]
    wanted = PolicyRequest(brokering=Brokering(choice="best"))

    found = answer(tuning.tune_rank, sites, 60.0, campaign=work, choice="best")

    assert found == str(choose_policy(work, sites, wanted).policy.brokering)


def test_logical_files_without_a_catalogue_are_refused_in_the_same_words(stopped: None) -> None:
    work, sites = campaign(task("a", data=("f",))), SITES["two"]

    said = {
        answer(running.run, work, sites),
        answer(simulating.simulate, work, sites),
        answer(tuning.tune_rank, sites, 60.0, campaign=work),
    }

    assert said == {
        'error: catalogue: task "a" has logical files, and there is no replica catalogue'
    }
