"""Strategies with odds keep their deadlines, and waits belong to the end of plans, by truths."""

import heapq
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bursar
from bursar.api.known_campaign import ForeseenCampaign, foresee
from bursar.api.plan_forecasts import PlanForecasts, PlanQueues
from bursar.api.quote import Quote
from bursar.api.strategy_quotes import NOTHING_YET, quote_strategy, simulate_strategy
from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.strategies import Named
from bursar.forecasts.campaign_forecast import NO_PROGRESS, CampaignForecast
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.site import SiteFacts
from bursar.model.task import Exec, Outcome, Status, Task
from bursar.planning.trade_off_solver import trade_off
from bursar.provisioning.wait_prediction import WaitPredictor
from bursar_devtools.testgrid.slurm import SlurmCluster

TASKS = 16
SLOW = SiteFacts(name="slow", kind="simulated", processors=4, unit_price=1.0)
FAST = SiteFacts(name="fast", kind="simulated", processors=4, speed=2.0, unit_price=4.0)


def executions(random: np.random.Generator, count: int, tasks: int = TASKS) -> np.ndarray:
    """Run times of executions of tasks of 60 s: each is slow or fast as a whole."""
    whole = 0.15 * random.standard_normal((count, 1))
    return 60.0 * np.exp(whole + 0.15 * random.standard_normal((count, tasks)))


def learned(folder: Path, times: np.ndarray, sites: list[SiteFacts]) -> ForeseenCampaign:
    """What earlier executions at the slow site say of the campaign."""
    history = History(folder / "history.sqlite")
    history.add(
        TaskObservation(
            execution=f"run-{number}",
            task=f"t{at}",
            kind="work",
            site="slow",
            start=1e9 + 1e4 * number + at,
            seconds=float(seconds),
        )
        for number, execution in enumerate(times)
        for at, seconds in enumerate(execution)
    )
    tasks = tuple(Task(id=f"t{at}", name="work") for at in range(times.shape[1]))
    return foresee(Campaign(name="c", workflow=Workflow(tasks)), sites, history)


def quoted(seen: ForeseenCampaign, strategy: Named, goal: Goal) -> Quote:
    """The quote of a strategy at both sites."""
    campaign = replace(seen.campaign, goal=goal)
    policy = SupplyPolicy(kind="economy", strategy=strategy)
    return quote_strategy(
        campaign,
        [SLOW, FAST],
        policy,
        simulated=True,
        foreseen=replace(seen, campaign=campaign),
    )


def kept(seen: ForeseenCampaign, goal: Goal, spare: float, seconds: np.ndarray) -> bool:
    """Whether the cost strategy keeps a goal with run times that it was not told."""

    def takes(task: int, site: str) -> float:
        return float(seconds[task]) / (2.0 if site == "fast" else 1.0)

    result = simulate_strategy(
        seen.campaign, [SLOW, FAST], "cost", goal, NOTHING_YET, {}, spare=spare, takes=takes
    )
    assert result is not None
    return result.meets(goal)


def test_a_strategy_keeps_as_much_time_in_reserve_as_the_confidence_needs(tmp_path: Path) -> None:
    """
    Six executions are known; 40 more come, seed 3. The cost strategy fills the time up to the
    deadline by the medians; with some of it in reserve it keeps nine of ten deadlines.
    """
    random = np.random.default_rng(3)
    seen = learned(tmp_path, executions(random, 6), [SLOW, FAST])
    goal = Goal(deadline=200.0)
    quote = quoted(seen, "cost", goal)
    spare = quote.policy.spare
    assert quote.feasible
    assert spare > 0
    assert quote.forecast is not None
    assert quote.forecast.odds(200.0, None) >= 0.9
    assert f"{spare:.0%} of the time kept in reserve" in quote.note

    truths = executions(random, 40)
    with_odds = sum(kept(seen, goal, spare, seconds) for seconds in truths)
    without = sum(kept(seen, goal, 0.0, seconds) for seconds in truths)

    assert with_odds >= 36
    assert without < with_odds


def test_a_confidence_out_of_reach_is_told_with_what_can_be_reached(tmp_path: Path) -> None:
    """On all 8 processors 16 tasks take 90 to 100 s: 95 s are kept now and then."""
    seen = learned(tmp_path, executions(np.random.default_rng(3), 6), [SLOW, FAST])
    quote = quoted(seen, "time", Goal(deadline=125.0, confidence=0.99))
    assert quote.feasible
    assert "99 % asked for" in quote.note
    assert "; 99 % is reached with a deadline of" in quote.note
    told = quote.to_dict()
    assert told["forecast"]["odds"] < 0.99
    assert told["forecast_basis"]["executions"] == 6


@pytest.mark.ci
def test_offers_of_a_strategy_hold_with_the_confidence(tmp_path: Path) -> None:
    """30 s are out of reach; what is offered instead has odds of 90 % when it is taken."""
    seen = learned(tmp_path, executions(np.random.default_rng(3), 6), [SLOW, FAST])
    refused = quoted(seen, "cost", Goal(deadline=30.0))
    assert not refused.feasible
    offer = next(one for one in refused.counter_offers if one.kind == "time")
    taken = quoted(seen, "cost", Goal(deadline=offer.makespan))
    assert taken.feasible
    assert taken.forecast is not None
    # Offers are tried on 20 draws, and judged on 100 when they are taken.
    assert taken.forecast.odds(offer.makespan, None) >= 0.85


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_campaign_of_many_jobs_is_forecast_in_batches(tmp_path: Path) -> None:
    """2,200 jobs of 60 s on processors that do 12 s of work a second take three hours."""
    times = executions(np.random.default_rng(3), 2, 2200)
    seen = learned(tmp_path, times, [SLOW, FAST])

    quote = quoted(seen, "time", Goal(deadline=6 * 3600.0))

    assert quote.jobs == 2200
    assert quote.makespan == pytest.approx(11_000, rel=0.25)
    assert quote.forecast is not None
    assert quote.forecast.end.quantile(0.5) == pytest.approx(quote.makespan, rel=0.15)
    assert quote.forecast.odds(6 * 3600.0, None) > 0.9


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_of_many_jobs_that_goes_on_is_forecast_in_batches(tmp_path: Path) -> None:
    """
    Of 2,400 jobs of 60 s, 300 have ended and 8 run after 2,000 s: 2,100 take 10,500 s more.

    Twelve jobs of 60 s end on the processors each minute.
    """
    seen = learned(tmp_path, executions(np.random.default_rng(3), 2, 2400), [SLOW, FAST])
    goal = Goal(deadline=12 * 3600.0)
    campaign = replace(seen.campaign, goal=goal)
    ended = frozenset(range(300))
    past = ResumeState(
        ended=ended,
        succeeded=ended,
        attempts=[
            (Outcome(task=at, attempt=1, status=Status.SUCCEEDED, start=0.0, end=60.0), "slow")
            for at in ended
        ],
        pilots=0,
        clock=lambda: 2000.0,
        spent=lambda: 18_000.0,
    )
    progress = replace(
        NO_PROGRESS,
        now=2000.0,
        ended=ended,
        elapsed=dict.fromkeys(range(300, 308), 30.0),
        spent=18_000.0,
    )

    quote = quote_strategy(
        *(campaign, [SLOW, FAST], SupplyPolicy(kind="economy", strategy="time")),
        past=past,
        simulated=True,
        foreseen=replace(seen, campaign=campaign),
        progress=progress,
    )

    assert quote.jobs == 2100
    assert quote.forecast is not None
    assert quote.forecast.end.quantile(0.5) == pytest.approx(12_500, rel=0.15)
    assert quote.forecast.cost is not None
    assert quote.makespan is not None
    assert quote.forecast.end.quantile(0.5) == pytest.approx(quote.makespan, rel=0.15)
    assert quote.forecast.odds(goal.deadline, None) > 0.9


def test_jobs_that_run_do_not_queue_again_and_the_others_do(tmp_path: Path) -> None:
    """
    Eight jobs of 60 s have run for 30 s on all processors, and every request waits for 1000 s.

    A run of these alone ends about 30 s from now. With eight more it ends after the wait and a job.
    """
    record = WaitPredictor()
    for site in (SLOW, FAST):
        for number in range(60):
            record.asked(f"{site.name}{number}", site.name, 1, 60.0, 1e5 * number)
            record.began(f"{site.name}{number}", 1e5 * number + 1000.0)
    queues = PlanQueues(
        waits={
            site.name: lambda p, s, name=site.name: record.forecast(name, p, s)
            for site in (SLOW, FAST)
        },
        is_pool=False,
    )
    left = {}
    for jobs in (8, 16):
        folder = tmp_path / f"{jobs}"
        folder.mkdir()
        seen = learned(folder, np.full((3, jobs), 60.0), [SLOW, FAST])
        campaign = replace(seen.campaign, goal=Goal(deadline=5000.0))
        quote = quote_strategy(
            *(campaign, [SLOW, FAST], SupplyPolicy(kind="economy", strategy="time")),
            past=replace(NOTHING_YET, clock=lambda: 100.0),
            simulated=True,
            foreseen=replace(seen, campaign=campaign),
            progress=replace(NO_PROGRESS, now=100.0, elapsed=dict.fromkeys(range(8), 30.0)),
            queues=queues,
        )
        assert quote.forecast is not None
        left[jobs] = quote.forecast.end.quantile(0.5) - 100.0
    assert 10.0 < left[8] < 60.0
    assert 1000.0 < left[16] < 1200.0


def test_without_earlier_runs_there_are_no_odds() -> None:
    tasks = tuple(Task(id=f"t{at}", name="work", runtime=60.0) for at in range(TASKS))
    campaign = Campaign(name="c", workflow=Workflow(tasks))
    quote = quoted(ForeseenCampaign(campaign=campaign), "cost", Goal(deadline=300.0))
    assert quote.feasible
    assert quote.forecast is None
    assert quote.policy.spare == 0.0
    assert "forecast" not in quote.to_dict()


# Plans whose processors come out of a queue.

QUEUED = SiteFacts(name="slow", kind="simulated", processors=4, unit_price=1.0)


def waits_of(random: np.random.Generator) -> tuple[WaitPredictor, "list[float]"]:
    """A record of 40 requests at a queue, and the waits of 30 more."""
    typical = math.exp(random.normal(5.0, 0.5))

    def wait() -> float:
        return 0.0 if random.random() < 0.2 else typical * math.exp(random.normal(0.0, 1.0))

    record = WaitPredictor()
    for number in range(40):
        record.asked(f"{number}", "slow", 4, 300.0, 1e5 * number)
        record.began(f"{number}", 1e5 * number + wait())
    return record, [wait() for _ in range(30)]


def end_of(seconds: np.ndarray, processors: int, start: float) -> float:
    """The end of tasks that are given out in order to processors that come at once."""
    free = [start] * processors
    for one in seconds:
        heapq.heappush(free, heapq.heappop(free) + float(one))
    return max(free)


def forecasts_of(seen: ForeseenCampaign, queues: PlanQueues) -> tuple[PlanForecasts, float]:
    front = trade_off(seen.campaign.workflow, (QUEUED,), processors=(4,))
    assert seen.known is not None
    forecasts = PlanForecasts(front, Goal(), seen.known, queues=queues)
    (option,) = front.options
    return forecasts, forecasts.of(option).end.quantile(0.5)


def test_intervals_of_ends_with_waits_hold(tmp_path: Path) -> None:
    """
    Ten histories of 8 executions and 40 waits, 30 campaigns for each, seed 5: 90 % intervals hold
    in 82 to 97 %. Those without the waits hold in less than 70 %.
    """
    random = np.random.default_rng(5)
    held, blind = [], []

    def holds(forecast: CampaignForecast, truth: float) -> bool:
        return 0.05 <= forecast.end.probability(truth) <= 0.95

    for number in range(10):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        seen = learned(folder, executions(random, 8), [QUEUED])
        record, waits = waits_of(random)
        queues = PlanQueues(
            waits={"slow": lambda p, s, of=record: of.forecast("slow", p, s)}, is_pool=False
        )
        forecasts, _ = forecasts_of(seen, queues)
        known = forecasts.of(forecasts_front(forecasts))
        at_once = forecasts_of(seen, PlanQueues(waits={}, is_pool=False))[0]
        without = at_once.of(forecasts_front(at_once))
        for seconds, wait in zip(executions(random, 30), waits, strict=True):
            truth = end_of(seconds, 4, wait)
            held.append(holds(known, truth))
            blind.append(holds(without, truth))
        assert known.waiting is not None
        assert known.waiting.quantile(0.9) > 0
        assert without.waiting is None
    assert 0.82 <= np.mean(held) <= 0.97
    assert np.mean(blind) < 0.7


def forecasts_front(forecasts: PlanForecasts):
    """The only plan of a front."""
    return forecasts._front.options[0]


def test_a_wait_that_is_known_exactly_moves_the_end_by_as_much(tmp_path: Path) -> None:
    """All requests wait for 1000 s: so do all processors of the plan, as one."""
    seen = learned(tmp_path, executions(np.random.default_rng(3), 6), [QUEUED])
    record = WaitPredictor()
    for number in range(60):
        record.asked(f"{number}", "slow", 4, 300.0, 1e5 * number)
        record.began(f"{number}", 1e5 * number + 1000.0)
    queues = PlanQueues(waits={"slow": lambda p, s: record.forecast("slow", p, s)}, is_pool=True)
    forecasts, late = forecasts_of(seen, queues)
    _, soon = forecasts_of(seen, PlanQueues(waits={}, is_pool=False))
    assert late - soon == pytest.approx(1000.0, rel=0.01)
    waiting = forecasts.of(forecasts_front(forecasts)).waiting
    assert waiting is not None
    assert waiting.quantile(0.1) == pytest.approx(1000.0)
    pool = forecasts.of_pool()
    assert pool.end.quantile(0.5) == pytest.approx(late, rel=0.02)
    assert forecasts.waits_known_from() == {"slow": {"known_from": "history", "seen": 60}}
    lines = forecasts.waits_in_words(forecasts_front(forecasts))
    assert lines[0].startswith("run by a pool, expected: end ")
    assert lines[1].startswith("waiting in queues: 16 min 40 s of the end")


def test_a_queue_of_which_nothing_is_known_is_named(tmp_path: Path) -> None:
    seen = learned(tmp_path, executions(np.random.default_rng(3), 6), [QUEUED])
    queues = PlanQueues(waits={"slow": lambda p, s: None}, is_pool=False)
    forecasts, _ = forecasts_of(seen, queues)
    lines = forecasts.waits_in_words(forecasts_front(forecasts))
    assert lines == ["how long requests wait at slow is not known, and not in the end"]


# Strategies on a real cluster.


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["cost", "adaptive"])
def test_what_a_strategy_is_expected_to_do_under_slurm_is_done(
    strategy: Named, slurm: SlurmCluster, tmp_path: Path
) -> None:
    """
    Each job is a job of the cluster, and its worker starts in time that is added for this.

    The simulation gave no time for the start, and expected that no job would ever end.
    """
    sites = tmp_path / "sites.toml"
    sites.write_text(
        f'[site.c]\nkind = "slurm"\nprocessors = {slurm.processors}\nunit_price = 1.0\n'
        f'queue = "main"\nreach = "127.0.0.1"\n'
        f'environment = {{ SLURM_CONF = "{slurm.environment["SLURM_CONF"]}" }}\n'
    )
    tasks = tuple(
        Task(id=f"t{at}", name="work", runtime=2.0, steps=(Exec(("sleep", "2")),))
        for at in range(20)
    )
    goal = Goal(deadline=120.0)
    campaign = Campaign(name="c", workflow=Workflow(tasks), goal=goal)
    runs, history = tmp_path / "runs", tmp_path / "history.sqlite"

    for known in (False, True):
        done = bursar.run(
            *(campaign, sites),
            strategy=strategy,
            out_of_reach="refuse",
            runs=runs,
            history=history,
            fresh=True,
        )

        told = json.loads((done.path / "plan.json").read_text())["proposal"]
        summary = done.to_dict()
        assert summary["succeeded"] == 20
        assert told["expected_jobs"] == 20
        # Not how fast: a busy machine starts workers late. Within a factor of three it is a
        # forecast of this run; what the fault told was 0 s, or four times the cost.
        assert told["expected_finish_s"] == pytest.approx(summary["makespan_s"], rel=2.0)
        assert summary["cost"] / 3 < told["expected_cost"] < summary["cost"] * 3
        assert ("forecast" in told) is known


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_second_run_reckons_with_how_long_workers_took_to_start_under_slurm(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    """Jobs load something for 6 s first; the first run cannot know, and the second does."""
    sites = tmp_path / "sites.toml"
    sites.write_text(
        f'[site.c]\nkind = "slurm"\nprocessors = {slurm.processors}\nunit_price = 1.0\n'
        f'queue = "main"\nreach = "127.0.0.1"\nsetup = ["sleep 6"]\n'
        f'environment = {{ SLURM_CONF = "{slurm.environment["SLURM_CONF"]}" }}\n'
    )
    tasks = tuple(
        Task(id=f"t{at}", name="work", runtime=2.0, steps=(Exec(("sleep", "2")),))
        for at in range(20)
    )
    campaign = Campaign(name="c", workflow=Workflow(tasks), goal=Goal(deadline=300.0))
    told, came = [], []
    for number in range(2):
        done = bursar.run(
            *(campaign, sites),
            strategy="time",
            runs=tmp_path / "runs",
            history=tmp_path / f"{number}.sqlite",
            fresh=True,
        )
        proposal = json.loads((done.path / "plan.json").read_text())["proposal"]
        told.append(proposal["expected_finish_s"])
        came.append(done.to_dict()["makespan_s"])
    assert abs(told[1] / came[1] - 1) < abs(told[0] / came[0] - 1)
    # Each job starts a worker of its own: at least one more start of 6 s, less what was assumed.
    assert told[1] > told[0] + 4.0
