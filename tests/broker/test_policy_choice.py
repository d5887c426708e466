"""Which policy brings processors to a campaign's tasks, and what cannot be asked together."""

from pathlib import Path
from typing import Any

import pytest

from bursar.broker.policy_choice import (
    PolicyRequest,
    SupplyPolicy,
    choose_policy,
    suitable_sites,
)
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.cloud import CloudEndpoint, MachineType
from bursar.model.errors import InputError
from bursar.model.matching import Brokering, Matching
from bursar.model.site import SiteFacts
from bursar.model.task import File, Task

LINUX = Matching(requirements='other.OpSys == "LINUX"')
IRIX = Matching(requirements='other.OpSys == "IRIX"')
SITES = (
    SiteFacts(name="a", attributes={"OpSys": "LINUX"}),
    SiteFacts(name="b", attributes={"OpSys": "Solaris"}, storage="store"),
)


def campaign(*tasks: Task, goal: Goal | None = None) -> Campaign:
    """Of these tasks."""
    return Campaign(name="c", workflow=Workflow(tasks), goal=goal or Goal())


def policy_of(work: Campaign, sites: tuple[SiteFacts, ...] = SITES, **wanted: Any) -> SupplyPolicy:
    """Return the policy for a campaign on sites."""
    return choose_policy(work, sites, PolicyRequest(**wanted)).policy


@pytest.mark.parametrize(
    "matching",
    [
        Matching(rank="1"),
        Matching(site="a"),
        Matching(alpha=0.1),
        Matching(beta=0.1),
        Matching(choice="best"),
        LINUX,
    ],
)
def test_jobs_that_ask_what_only_the_broker_gives_are_brokered(matching: Matching) -> None:
    assert policy_of(campaign(Task(id="t", matching=matching))).brokering == Brokering()


def test_plain_jobs_are_not_brokered_unless_asked_for() -> None:
    plain = campaign(Task(id="t"))

    assert policy_of(plain) == SupplyPolicy()
    assert str(policy_of(plain, brokering=Brokering(choice="best"))) == "broker, best"


def test_jobs_with_the_same_requirements_and_a_goal_are_planned() -> None:
    goal = Goal(deadline=60.0)
    same = campaign(Task(id="t", matching=LINUX), Task(id="u", matching=LINUX), goal=goal)
    other = campaign(Task(id="t", matching=LINUX), Task(id="u", matching=IRIX), goal=goal)
    some = campaign(Task(id="t"), Task(id="u", matching=LINUX), goal=goal)

    assert policy_of(same).kind != "matched"
    assert policy_of(other).kind == "matched"
    assert policy_of(some).kind == "matched"


@pytest.mark.parametrize(
    ("task", "asked", "said"),
    [
        (Task(id="t", matching=Matching(rank="1")), None, "a rank: the broker sends these jobs"),
        (Task(id="t", data=("f",)), None, "logical files: the broker sends these jobs"),
        (Task(id="t"), Brokering(), "--choice and its like: the broker sends these jobs"),
    ],
)
def test_a_strategy_and_the_broker_do_not_go_together(
    task: Task, asked: Brokering | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        policy_of(campaign(task), brokering=asked, strategy="cost", catalogue="c.sqlite")


def test_processors_are_not_leased_beforehand() -> None:
    with pytest.raises(InputError, match="leases processors as it goes"):
        policy_of(campaign(Task(id="t")), brokering=Brokering(), processors=2)


@pytest.mark.parametrize(
    "task", [Task(id="t", data=("f",)), Task(id="t", outputs=(File("o"),), registers={"o": "f"})]
)
def test_logical_files_need_a_catalogue_and_a_storage(task: Task) -> None:
    with pytest.raises(InputError, match='"t" has logical files, and there is no replica cat'):
        policy_of(campaign(task))
    with pytest.raises(InputError, match='"t" has logical files, and no site has a storage'):
        policy_of(campaign(task), SITES[:1], catalogue="c.sqlite")
    found = policy_of(campaign(task), catalogue="c.sqlite")
    assert found.brokering == Brokering(catalogue=str(Path("c.sqlite").resolve()))


@pytest.mark.parametrize(
    "task",
    [
        Task(id="t", data=("f",), inputs=(File("f"),)),
        Task(id="t", data=("f",), outputs=(File("f"),)),
    ],
)
def test_a_logical_file_has_its_name_for_itself(task: Task) -> None:
    """A job that wrote an output by that name would write into a site's storage."""
    with pytest.raises(InputError, match=r'tasks\.t\.data: "f" is a logical file, and an input'):
        policy_of(campaign(task), catalogue="c.sqlite")


def test_plans_are_made_over_the_sites_that_meet_what_all_require() -> None:
    assert suitable_sites(campaign(Task(id="t", matching=LINUX)), SITES) == SITES[:1]
    assert suitable_sites(campaign(Task(id="t")), SITES) == SITES
    differ = campaign(Task(id="t", matching=LINUX), Task(id="u", matching=IRIX))
    assert suitable_sites(differ, SITES) == SITES
    with pytest.raises(InputError, match=r'no site meets other\.OpSys == "IRIX"'):
        suitable_sites(campaign(Task(id="t", matching=IRIX)), SITES)


def test_requirements_that_all_tasks_share_leave_sites_for_what_the_caller_states() -> None:
    """Without a word of the caller's the broker matches; any other policy takes these sites."""
    same = campaign(Task(id="t", matching=LINUX), Task(id="u", matching=LINUX))

    assert policy_of(same).kind == "matched"
    for stated in ({"provisioning": "dynamic"}, {"strategy": "cost"}, {"processors": 2}):
        decision = choose_policy(same, SITES, PolicyRequest(**stated))  # type: ignore[arg-type]
        assert decision.policy.kind != "matched"
        assert decision.sites == SITES[:1]


def test_requirements_that_differ_are_not_dropped_by_a_pool() -> None:
    """A pool asks any of its sites for processors, whatever a task requires."""
    differ = campaign(Task(id="t", matching=LINUX), Task(id="u", matching=IRIX))

    with pytest.raises(InputError, match="provisioning: requirements: the broker sends these jobs"):
        policy_of(differ, provisioning="dynamic")


def test_a_stated_plan_is_a_plan() -> None:
    """A bag with a deadline on several sites is bought by a strategy, unless a plan is stated."""
    bag = campaign(Task(id="t"), Task(id="u"), goal=Goal(deadline=60.0))

    assert policy_of(bag) == SupplyPolicy(kind="economy", strategy="adaptive")
    assert policy_of(bag, provisioning="planned") == SupplyPolicy()


def test_clouds_are_planned_or_pooled_and_never_bought_job_by_job() -> None:
    """A strategy or the broker would buy a machine for each job."""
    machine = MachineType(name="m", processors=4)
    cloud = SiteFacts(
        name="c", kind="cloud", cloud=CloudEndpoint(provider="ec2", machines=(machine,))
    )
    sites = (*SITES, cloud)
    bag = campaign(Task(id="t"), Task(id="u"), goal=Goal(deadline=60.0))

    # Without the cloud the adaptive strategy brings such a bag to several sites.
    assert policy_of(bag).kind == "economy"
    assert policy_of(bag, sites).kind == "planned"
    assert policy_of(bag, sites, provisioning="dynamic").kind == "pool"
    with pytest.raises(InputError, match=r'strategy: a strategy .* "c" sells whole machines'):
        policy_of(bag, sites, strategy="cost")
    with pytest.raises(InputError, match=r'sites: .* "c" sells whole machines'):
        policy_of(campaign(Task(id="t", matching=Matching(rank="1"))), sites)
