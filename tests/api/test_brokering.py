"""When the resource broker brings a campaign's jobs to sites, and what it cannot go with."""

from pathlib import Path

import pytest

from bursar.api.brokering import choose_brokering, suitable
from bursar.api.simulating import simulate
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import InputError
from bursar.model.matching import Brokering, Matching
from bursar.model.site import SiteFacts
from bursar.model.task import File, Task
from bursar.model.workflow import Workflow

LINUX = Matching(requirements='other.OpSys == "LINUX"')
IRIX = Matching(requirements='other.OpSys == "IRIX"')
SITES = (
    SiteFacts(name="a", attributes={"OpSys": "LINUX"}),
    SiteFacts(name="b", attributes={"OpSys": "Solaris"}, storage="store"),
)


def campaign(*tasks: Task, goal: Goal | None = None) -> Campaign:
    """Of these tasks."""
    return Campaign(name="c", workflow=Workflow(tasks), goal=goal or Goal())


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
    assert choose_brokering(campaign(Task(id="t", matching=matching)), SITES, None) == Brokering()


def test_plain_jobs_are_not_brokered_unless_asked_for() -> None:
    plain = campaign(Task(id="t"))

    assert choose_brokering(plain, SITES, None) is None
    assert choose_brokering(plain, SITES, Brokering(choice="best")) == Brokering(choice="best")


def test_jobs_with_the_same_requirements_and_a_goal_are_planned() -> None:
    goal = Goal(deadline=60.0)
    same = campaign(Task(id="t", matching=LINUX), Task(id="u", matching=LINUX), goal=goal)
    other = campaign(Task(id="t", matching=LINUX), Task(id="u", matching=IRIX), goal=goal)
    some = campaign(Task(id="t"), Task(id="u", matching=LINUX), goal=goal)

    assert choose_brokering(same, SITES, None) is None
    assert choose_brokering(other, SITES, None) is not None
    assert choose_brokering(some, SITES, None) is not None


@pytest.mark.parametrize(
    ("task", "asked", "said"),
    [
        (Task(id="t", matching=Matching(rank="1")), None, "a rank: the broker sends these jobs"),
        (Task(id="t", data=("f",)), None, "logical files: the broker sends these jobs"),
        (Task(id="t", matching=LINUX), None, "requirements: the broker sends"),
        (Task(id="t"), Brokering(), "--choice and its like: the broker sends these jobs"),
    ],
)
def test_a_strategy_and_the_broker_do_not_go_together(
    task: Task, asked: Brokering | None, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        choose_brokering(campaign(task), SITES, asked, strategy="cost", catalogue="c.sqlite")


def test_processors_are_not_leased_beforehand() -> None:
    with pytest.raises(InputError, match="leases processors as it goes"):
        choose_brokering(campaign(Task(id="t")), SITES, Brokering(), processors=2)


@pytest.mark.parametrize(
    "task", [Task(id="t", data=("f",)), Task(id="t", outputs=(File("o"),), registers={"o": "f"})]
)
def test_logical_files_need_a_catalogue_and_a_storage(task: Task) -> None:
    with pytest.raises(InputError, match='"t" has logical files, and there is no replica cat'):
        choose_brokering(campaign(task), SITES, None)
    with pytest.raises(InputError, match='"t" has logical files, and no site has a storage'):
        choose_brokering(campaign(task), SITES[:1], None, catalogue="c.sqlite")
    found = choose_brokering(campaign(task), SITES, None, catalogue="c.sqlite")
    assert found == Brokering(catalogue=str(Path("c.sqlite").resolve()))


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
        choose_brokering(campaign(task), SITES, None, catalogue="c.sqlite")


def test_plans_are_made_over_the_sites_that_meet_what_all_require() -> None:
    assert suitable(campaign(Task(id="t", matching=LINUX)), SITES) == SITES[:1]
    assert suitable(campaign(Task(id="t")), SITES) == SITES
    differ = campaign(Task(id="t", matching=LINUX), Task(id="u", matching=IRIX))
    assert suitable(differ, SITES) == SITES
    with pytest.raises(InputError, match=r'no site meets other\.OpSys == "IRIX"'):
        suitable(campaign(Task(id="t", matching=IRIX)), SITES)


def test_a_simulation_by_queues_does_not_drop_what_jobs_ask_for() -> None:
    """It is said, rather than simulated as if nothing had been asked."""
    wants = campaign(Task(id="t", runtime=1.0, matching=Matching(rank="1")))

    with pytest.raises(InputError, match="a rank: the broker sends these jobs"):
        simulate(wants, SITES[:1], provisioning="best-effort")
    plain = campaign(Task(id="t", runtime=1.0))
    with pytest.raises(InputError, match="the broker sends these jobs"):
        simulate(plain, SITES[:1], provisioning="queued", broker=Brokering())
