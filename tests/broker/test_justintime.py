"""Best effort: a task whose time was over asks for more the next time."""

from bursar.broker.dynamic_scheduler import JustInTimeScheduler, ResumeState
from bursar.model.campaign import Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task


def test_a_task_that_outlived_its_time_asks_for_twice_as_much() -> None:
    """Otherwise it would be cut and sent again for ever; one that failed asks for the same."""
    site = SiteFacts(name="s")
    supply = JustInTimeScheduler(Workflow((Task(id="t"),)), lambda task: (site, 10.0))
    past = ResumeState(
        ended=frozenset(),
        succeeded=frozenset(),
        attempts=(),
        pilots=0,
        clock=lambda: 0.0,
        spent=lambda: 0.0,
    )
    (pilot,) = supply.begin(past)
    asked = [supply.routed(pilot).duration]

    for number, status in enumerate((Status.CANCELLED, Status.FAILED, Status.CANCELLED), 1):
        outcome = Outcome(task=0, attempt=number, status=status, start=0.0, end=1.0)
        (pilot,) = supply.ended([(outcome, False)])
        asked.append(supply.routed(pilot).duration)

    assert asked == [10.0, 20.0, 20.0, 40.0]
