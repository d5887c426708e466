"""A rehearsal comes to what the run would cost and when it would end, within its limits."""

from dataclasses import replace

import pytest

from bursar.api.strategy_quotes import NOTHING_YET
from bursar.broker.economy import EconomyScheduler
from bursar.broker.strategies import Named
from bursar.broker.strategy_simulation import (
    PilotTimes,
    StrategySimulation,
    StrategySimulationResult,
)
from bursar.model.campaign import Goal
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.model.task import Task

SITE = SiteFacts(name="s", processors=1, unit_price=1.0)


def rehearsed(
    goal: Goal,
    *runtimes: float,
    site: SiteFacts = SITE,
    strategy: Named = "cost",
    spent: float = 0.0,
    wait: float = 0.0,
    start_up: float = 0.0,
    added: float = 0.0,
    now: float = 0.0,
    running: tuple[int, ...] = (),
) -> StrategySimulationResult:
    """What jobs come to that take what they are said to take."""
    tasks = [Task(id=str(i), runtime=runtime) for i, runtime in enumerate(runtimes)]
    past = replace(NOTHING_YET, spent=lambda: spent, clock=lambda: now)
    economy = EconomyScheduler(tasks, [site], goal, strategy)
    times = {site.name: PilotTimes(waits=[wait] * 9, start_up=start_up, added=added)}
    found = StrategySimulation(economy, goal, past, times, running=running).run(len(tasks))
    assert found is not None
    return found


@pytest.mark.parametrize("strategy", ["cost", "time", "adaptive"])
def test_jobs_that_follow_one_another_are_paid_for_each_and_for_one_start(strategy: Named) -> None:
    """A processor that is kept for a second job starts once, and is paid meanwhile."""
    goal = Goal(deadline=100.0)

    ready = rehearsed(goal, 10.0, 10.0, strategy=strategy)
    starting = rehearsed(goal, 10.0, 10.0, strategy=strategy, start_up=3.0)

    assert ready == StrategySimulationResult(done=2, left=2, finish=20.0, cost=20.0)
    assert starting == StrategySimulationResult(done=2, left=2, finish=23.0, cost=23.0)
    assert ready.meets(replace(goal, budget=20.0))
    assert not starting.meets(replace(goal, budget=20.0))
    assert not starting.meets(Goal(deadline=22.0))


def test_what_was_paid_before_leaves_so_much_less() -> None:
    """25 of 50 do for both jobs, 15 for one; the cost is of the whole run."""
    goal = Goal(deadline=100.0, budget=50.0)

    both = rehearsed(goal, 10.0, 10.0, spent=25.0, now=7.0)
    one = rehearsed(goal, 10.0, 10.0, spent=35.0, now=7.0)

    assert both == StrategySimulationResult(done=2, left=2, finish=27.0, cost=45.0)
    assert one == StrategySimulationResult(done=1, left=2, finish=17.0, cost=45.0)
    assert both.meets(goal)
    assert not one.meets(goal)


def test_a_lease_that_ends_before_its_job_is_paid_and_the_job_runs_again() -> None:
    """
    A scheduler's jobs cannot be made longer.

    A lease of 10 s, of which starting takes 3 s, is lost; the next one is asked for twice as long,
    and given back after 13 s.
    """
    shared = replace(SITE, background=BackgroundLoad(trace="log.swf"))

    found = rehearsed(Goal(deadline=100.0), 10.0, 10.0, site=shared, start_up=3.0)

    assert found == StrategySimulationResult(done=2, left=2, finish=46.0, cost=46.0)


def test_workers_start_in_the_time_that_a_site_adds_and_waits_are_not_paid() -> None:
    """
    A batch site adds time to what jobs ask for: no job is lost for the start of its worker.

    Each job waits 5 s, is paid from then on, starts 3 s later, and takes 10 s.
    """
    shared = replace(SITE, background=BackgroundLoad(trace="log.swf"))
    times = {"wait": 5.0, "start_up": 3.0, "added": 30.0}

    found = rehearsed(Goal(deadline=100.0), 10.0, 10.0, site=shared, **times)
    # 10 s can be held for each job, and 3 s more by the time they are used up: the job is lost.
    poor = rehearsed(Goal(deadline=100.0, budget=12.0), 10.0, site=shared, **times)

    assert found == StrategySimulationResult(done=2, left=2, finish=36.0, cost=26.0)
    assert poor.done == 0
    assert poor.cost <= 12.0


def test_a_job_that_runs_neither_queues_nor_starts_again() -> None:
    """The first of two jobs runs: 10 s are left of it, and only the second waits and starts."""
    shared = replace(SITE, background=BackgroundLoad(trace="log.swf"))
    times = {"wait": 5.0, "start_up": 3.0, "added": 30.0}

    found = rehearsed(Goal(deadline=100.0), 10.0, 10.0, site=shared, running=(0,), **times)

    assert found == StrategySimulationResult(done=2, left=2, finish=28.0, cost=23.0)


def test_requests_come_with_the_one_that_waits_and_later_ones_wait_anew() -> None:
    """
    Two processors are asked for at once and come after 7 s; the third job is asked for at 17 s, and
    waits for 2 s. What follows the last known wait does not wait.
    """
    shared = replace(SITE, processors=2, background=BackgroundLoad(trace="log.swf"))
    tasks = [Task(id=str(i), runtime=10.0) for i in range(5)]
    goal = Goal(deadline=100.0)
    economy = EconomyScheduler(tasks, [shared], goal, "time")
    times = {"s": PilotTimes(waits=(7.0, 2.0))}

    found = StrategySimulation(economy, goal, NOTHING_YET, times).run(5)

    # Two until 17 s, two from 19 to 29 s, and the fifth until 39 s.
    assert found == StrategySimulationResult(done=5, left=5, finish=39.0, cost=50.0)
