"""
Forecasts of runs on virtual time: what is told while a run goes on, and what is kept.

The history says that tasks of the kind take 600 s, a little more or less. Twenty tasks run on four
processors of a simulated cluster, at true run times of the test's choice.
"""

import math
import shlex
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import RunEvent
from bursar.forecasts.fan import Fan, ForecastFan
from bursar.formats.units import parse_amount, parse_duration
from bursar.history.forecast_records import SHARES, ForecastTruth, ScoredForecast
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.history.writing import ExecutionFacts
from bursar.model.campaign import Campaign, Goal, Workflow
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Status, Task
from bursar.runs.campaign_run import execute_campaign
from bursar.runs.environment import RunEnvironment
from bursar.runs.folder import RunFolder
from bursar.runs.forecasting.forecast_truths import complete_truths, truths_of
from bursar.runs.forecasting.journalled import EVENTS, fans_of
from bursar.runs.forecasting.odds_line import GoalRemedy, OddsWatch, amend_options, odds_line
from bursar.runs.forecasting.remedies import find_remedy
from bursar.runs.forecasting.standing import RunStanding
from bursar.runs.forecasting.standing_forecast import StandingForecaster
from bursar.runs.plan_file import write_plan
from bursar.runs.run_record import read_run, summarise
from bursar.runs.supply import PlannedSupply, RunSnapshot
from bursar.simulation.execution_model import ExecutionUncertainty
from bursar.simulation.simulated_grid import SimulatedGrid
from bursar.simulation.virtual_loop import VirtualLoop

TASKS = 20
PRICE = 0.01
SITE = SiteFacts(name="cluster", kind="simulated", processors=16, unit_price=PRICE, fixed_price=0.0)
BEGIN = 1_700_000_000.0


def history_in(folder: Path, runs: int = 5, seconds: float = 600.0) -> History:
    """A history of earlier runs of the same tasks."""
    random = np.random.default_rng(7)
    history = History(folder / "history.sqlite")
    for run in range(runs):
        factor = math.exp(0.05 * random.standard_normal())
        history.add(
            TaskObservation(
                execution=f"earlier-{run}",
                task=f"t{i}",
                attempt=1,
                kind="work",
                site="cluster",
                start=BEGIN - 1e6 + 1e4 * run + i,
                seconds=seconds * factor * math.exp(0.1 * random.standard_normal()),
                status=Status.SUCCEEDED,
                processors=1,
                speed=1.0,
            )
            for i in range(TASKS)
        )
    return history


def plan_of(processors: int) -> Plan:
    """A lease of so many processors, on which the tasks run in rounds of 600 s."""
    slot = Slot(
        site="cluster",
        start=0.0,
        duration=math.inf,
        processors=processors,
        unit_price=PRICE,
        leased=True,
    )
    placements = tuple(
        Placement(
            task=i,
            site="cluster",
            start=600.0 * (i // processors),
            finish=600.0 * (i // processors + 1),
            processors=(i % processors,),
        )
        for i in range(TASKS)
    )
    rounds = -(-TASKS // processors)
    return Plan(
        purchases=(Purchase(slot=slot),),
        placements=placements,
        makespan=600.0 * rounds,
        cost=PRICE * processors * 600.0 * rounds,
        currency="SU",
        utilisation=1.0,
        algorithm="by hand",
    )


class Killed(KeyboardInterrupt):
    """The process has come to its end."""


class ForecastRun:
    """
    A run on virtual time with a history, killed and resumed as the test likes.

    Parameters
    ----------
    seconds
        True run times of the tasks.
    """

    def __init__(
        self,
        folder: Path,
        history: History | None,
        seconds: Sequence[float],
        *,
        name: str = "r",
        goal: Goal | None = None,
    ) -> None:
        self.history = history
        self.seconds = seconds
        tasks = tuple(Task(id=f"t{i}", name="work") for i in range(TASKS))
        self.campaign = Campaign(name="c", workflow=Workflow(tasks), goal=goal or Goal())
        self.plan = plan_of(4)
        self._copies = folder / f"copies-{name}"
        where = "none" if history is None else str(history.path)
        with RunFolder.create(
            folder / "runs", self.campaign, (SITE,), argv=[], name=name, history=where
        ) as run:
            write_plan(run, {}, self.plan)
        self.folder = run

    def live(
        self, wall: float = BEGIN, killed_after: float = math.inf, replan: Any = None
    ) -> dict[str, Any]:
        """Carry the run out in one process, which may be killed."""

        def loop() -> VirtualLoop:
            made = VirtualLoop(wall)
            if math.isfinite(killed_after):
                made.call_at(killed_after, self._kill)
            return made

        true = Workflow(
            tuple(
                replace(task, runtime=seconds)
                for task, seconds in zip(self.campaign.workflow.tasks, self.seconds, strict=True)
            )
        )
        environment = RunEnvironment(
            sites=SimulatedGrid((SITE,)).open(true, ExecutionUncertainty()),
            supply=PlannedSupply(self.plan, replan),
            loop=loop,
            tick=2.0,
            refresh=1e6,
            durable=False,
            amendable=False,
            history=self.history,
            is_forecast=True,
        )
        try:
            return execute_campaign(
                self.folder, self.campaign, self.plan, environment=environment, written_up=False
            )
        except Killed:
            for copy in self._copies.iterdir():
                shutil.copy(copy, self.folder.path)
            return {}

    def _kill(self) -> None:
        self._copies.mkdir()
        for suffix in ("", "-wal", ".head"):
            file = Path(f"{self.folder.journal_file}{suffix}")
            if file.exists():
                shutil.copy(file, self._copies)
        raise Killed

    @property
    def kept(self) -> list[ScoredForecast]:
        """What the history keeps of forecasts, all runs' together."""
        assert self.history is not None
        return self.history.forecasts()

    @property
    def fans(self) -> list[ForecastFan]:
        """What was journalled of forecasts."""
        return [fan for _, fan in fans_of(read_journal(self.folder.journal_file).events)]

    @property
    def messages(self) -> list[str]:
        """What was told to people."""
        events = read_journal(self.folder.journal_file).events
        return [event.text for event in events if event.kind == "message"]


def usual(seed: int = 1) -> list[float]:
    """Run times as the history has them."""
    random = np.random.default_rng(seed)
    return [float(600.0 * math.exp(0.1 * random.standard_normal())) for _ in range(TASKS)]


def test_a_run_with_a_history_shows_a_fan_and_keeps_it_with_the_truth(tmp_path: Path) -> None:
    """
    Five rounds of 600 s take 3000 s, and cost 4 x 3000 x 0.01 = 120: the fan holds both, and is
    kept at all five shares, with the truth that the run's own figures tell.
    """
    run = ForecastRun(tmp_path, history_in(tmp_path), usual(), goal=Goal(deadline=7200.0))
    summary = run.live()

    fans = run.fans
    assert 5 <= len(fans) <= EVENTS + len(SHARES)
    first, last = fans[0], fans[-1]
    assert first.end_s.p10 < 3000.0 < first.end_s.p90 * 1.1
    assert first.end_s.p10 < first.end_s.p50 < first.end_s.p90
    assert first.cost is not None
    assert first.cost.p50 == pytest.approx(4 * PRICE * first.end_s.p50, rel=0.1)
    assert first.odds is not None
    assert first.odds > 0.95
    assert last.end_s.p90 - last.end_s.p10 < first.end_s.p90 - first.end_s.p10
    assert summary["forecast"] == last.to_dict()
    assert run.folder.read_info().forecast == last

    kept = run.kept
    assert [one.forecast.share for one in kept] == list(SHARES)
    assert {one.forecast.basis for one in kept} == {"history"}
    assert kept[0].campaign == "c"
    assert kept[0].forecast.sites == ("cluster",)
    for one in kept:
        assert one.truth.end == pytest.approx(summary["makespan_s"], abs=1e-3)
        assert one.truth.cost == pytest.approx(summary["cost"], abs=1e-6)
        assert one.truth.end_score is not None
        assert abs(one.truth.end_score) < 5
    assert not any("asked" in message for message in run.messages)


@pytest.mark.ci
def test_without_a_history_a_run_learns_from_its_first_tasks(tmp_path: Path) -> None:
    """Nothing is known before the first task has ended; nothing is kept without a history."""
    run = ForecastRun(tmp_path, None, usual())
    run.live()

    fans = run.fans
    assert fans
    assert min(fan.at_s for fan in fans) >= min(run.seconds)
    assert fans[-1].end_s.p10 < read_run(run.folder).makespan * 1.05  # type: ignore[operator]


def test_odds_that_fall_are_told_once_with_what_would_help(tmp_path: Path) -> None:
    """Tasks take twice as long as ever: the goal of 3600 s is lost, and one line says so."""
    slow = [2 * seconds for seconds in usual()]
    goal = Goal(deadline=3600.0, budget=1000.0)
    run = ForecastRun(tmp_path, history_in(tmp_path), slow, goal=goal)
    run.live()

    lines = [message for message in run.messages if "asked" in message]
    assert len(lines) == 1
    assert "90 % asked" in lines[0]
    # No plan can be made here, so that only another deadline helps; the command is complete.
    assert "bursar amend" in lines[0]
    assert "--deadline" in lines[0]


@pytest.mark.ci
def test_what_was_kept_has_the_truth_after_a_kill(tmp_path: Path) -> None:
    """
    Killed after half of its tasks and resumed much later: each share is kept once, and the time
    between the two processes does not count.
    """
    run = ForecastRun(tmp_path, history_in(tmp_path), usual())
    run.live(killed_after=1500.0)
    before = run.kept
    assert before
    assert all(one.truth.is_open for one in before)

    run.live(wall=BEGIN + 50_000.0)
    kept = run.kept
    shares = [one.forecast.share for one in kept]
    assert len(shares) == len(set(shares))
    assert shares[: len(before)] == [one.forecast.share for one in before]
    record = read_run(run.folder)
    assert record.makespan is not None
    for one in kept[: len(before)]:
        # What ran when the process was killed runs again.
        assert one.truth.end == pytest.approx(record.makespan, abs=2 * 600.0)
        assert one.truth.end_score is not None
    assert summarise(record)["state"] == "finished"
    # Again, as after a report is written: nothing changes.
    complete_truths(run.history, record)
    assert run.kept == kept


@pytest.mark.ci
def test_scores_of_earlier_runs_move_the_next_forecast(tmp_path: Path) -> None:
    """Runs that all take half as long again as forecast make the next forecast later."""
    history = history_in(tmp_path)
    fresh = ForecastRun(tmp_path, history, usual(), name="first")
    fresh.live()
    at_begin = fresh.kept[0].forecast
    wrong = [replace_score(one, 2.0) for one in fresh.kept]
    write_again(history, wrong * 8)

    ForecastRun(tmp_path, history, usual(), name="second").live(wall=BEGIN + 1e6)
    later = next(one for one in history.forecasts() if one.run.startswith("second"))
    median, high = 7, 13
    assert later.forecast.share == 0.0
    assert later.forecast.end[median] > at_begin.end[median]
    assert later.forecast.end[high] > at_begin.end[high]


def replace_score(one: ScoredForecast, score: float) -> ScoredForecast:
    """The same forecast with another score of its end."""
    truth = type(one.truth)(end=one.truth.end, end_score=score)
    return type(one)(run=one.run, campaign=one.campaign, forecast=one.forecast, truth=truth)


def write_again(history: History, forecasts: Sequence[ScoredForecast]) -> None:
    """Add forecasts as those of further runs."""
    for number, one in enumerate(forecasts):
        facts = ExecutionFacts(name=f"again-{number}", campaign="c")
        history.add_forecast(facts, one.forecast)
        history.add_truths(facts.name, {one.forecast.share: one.truth})


@pytest.mark.ci
def test_a_run_is_planned_again_when_its_odds_fall_and_another_plan_has_better_ones(
    tmp_path: Path,
) -> None:
    """
    Tasks take half as long again, 4500 s in five rounds where 4000 are allowed: twelve processors
    for the rest keep the goal, and are bought.
    """
    slow = [1.5 * seconds for seconds in usual()]
    run = ForecastRun(tmp_path, history_in(tmp_path), slow, goal=Goal(deadline=4000.0))

    async def replan(snapshot: RunSnapshot) -> Plan:
        assert snapshot.stretch >= 1.0
        left = [i for i in range(TASKS) if i not in snapshot.ended]
        placed = plan_of(12).placements[: len(left)]
        return replace(
            plan_of(12),
            placements=tuple(
                replace(one, task=task) for one, task in zip(placed, left, strict=True)
            ),
        )

    summary = run.live(replan=replan)
    assert summary["deadline_met"]
    assert any("the odds of the goal are" in message for message in run.messages)
    assert max(lease.processors for lease in read_run(run.folder).leases) == 12
    # What was forecast of the old plan is compared with what came of both.
    assert all(one.truth.end == pytest.approx(summary["makespan_s"], abs=0.1) for one in run.kept)


@pytest.mark.ci
def test_a_plan_of_unknown_run_times_is_not_followed(tmp_path: Path) -> None:
    """It does not say where tasks run: they would wait while their processors are paid."""
    slow = [1.5 * seconds for seconds in usual()]
    run = ForecastRun(tmp_path, history_in(tmp_path), slow, goal=Goal(deadline=4000.0))
    asked = []

    async def replan(snapshot: RunSnapshot) -> Plan:
        asked.append(snapshot)
        return replace(plan_of(12), placements=(), makespan=None, cost=None)

    summary = run.live(replan=replan)
    assert asked
    assert summary["succeeded"] == TASKS
    assert {lease.processors for lease in read_run(run.folder).leases} == {4}


@pytest.mark.ci
@pytest.mark.parametrize(
    ("kind", "reason"),
    [("stopped", "stopped by the user"), ("amended", "")],
)
def test_a_run_that_was_stopped_or_amended_has_no_truth(
    tmp_path: Path, kind: str, reason: str
) -> None:
    """Only for what was forecast before; what is forecast afterwards has one."""
    run = ForecastRun(tmp_path, history_in(tmp_path), usual())
    run.live()
    record = read_run(run.folder)
    forecasts = [
        ScoredForecast(
            run=one.run, campaign=one.campaign, forecast=one.forecast, truth=ForecastTruth()
        )
        for one in run.kept
    ]
    moment = forecasts[2].forecast.made + 1.0
    text = "user" if kind == "stopped" else '{"id": "a", "deadline": 9000.0}'
    record.journal.events.append(RunEvent(moment, kind, text))

    truths = truths_of(record, forecasts)
    assert [bool(truths[share].without) for share in SHARES] == [True] * 3 + [False] * 2
    assert reason in truths[0.0].without
    assert truths[0.0].end is None
    assert truths[0.75].end is not None


def test_odds_are_told_once_for_each_fall() -> None:
    """After a fall they must rise well above the confidence before another fall is told."""

    def told(*odds: float) -> list[bool]:
        watch = OddsWatch()
        end = Fan(p10=1.0, p50=2.0, p90=3.0)
        return [
            watch.has_fallen(ForecastFan(at_s=0.0, end_s=end, odds=one, confidence=0.9))
            for one in odds
        ]

    assert told(0.95, 0.72, 0.7, 0.6) == [False, True, False, False]
    assert told(0.88, 0.92, 0.88) == [False, False, False]  # a little below may be chance
    assert told(0.88, 0.87) == [False, True]
    assert told(0.5, 0.91, 0.5) == [True, False, False]
    assert told(0.5, 0.96, 0.5) == [True, False, True]


def test_the_line_names_processors_money_and_the_command() -> None:
    """As people read it; the command's options are what bursar amend takes."""
    fan = ForecastFan(
        at_s=10.0, end_s=Fan(p10=1.0, p50=2.0, p90=3.0), odds=0.72, confidence=0.9, basis="history"
    )
    goal = Goal(deadline=36_000.0, budget=20.0)
    more = GoalRemedy(
        kind="processors", odds=0.95, processors=4, site="here", cost=1.2, budget=21.3041
    )
    line = odds_line("night", fan, goal, more, begin=BEGIN, currency="EUR")
    asked = time.strftime("%H:%M", time.localtime(BEGIN + 36_000.0))
    assert line.startswith("odds 72 % to end by ")
    assert f"{asked} and stay within 20 EUR (90 % asked); " in line
    assert line.endswith(
        '; 95 % with 4 more processors at here, +1.2 EUR: bursar amend night --budget "21.31 EUR"'
    )
    dearer = GoalRemedy(kind="deadline", odds=0.9, budget=22.3)
    said = odds_line("night", fan, goal, dearer, begin=BEGIN, currency="EUR")
    assert said.endswith('; 90 % with a budget of 22.3 EUR: bursar amend night --budget "22.3 EUR"')
    alone = odds_line("night", fan, goal, None, begin=BEGIN, currency="EUR")
    assert alone == line.partition(";")[0]
    words = shlex.split(amend_options(replace(more, deadline=7265.0), "EUR"))
    assert parse_duration(words[1]) >= 7265.0
    assert parse_amount(words[3]) == (21.31, "EUR")


def test_more_processors_are_offered_where_they_keep_the_goal(tmp_path: Path) -> None:
    """
    Twenty tasks of 600 s on four processors end after some 3000 s, and 2400 s are asked: the
    least step that suffices is named, with the budget where the present one is too small.
    """
    history = history_in(tmp_path)
    campaign = ForecastRun(tmp_path, history, usual()).campaign
    forecaster = StandingForecaster(campaign, (SITE,), history, "")
    slot = replace(plan_of(4).purchases[0].slot, start=-1.0)
    standing = RunStanding(
        now=0.0,
        moment=BEGIN,
        ended=frozenset(),
        running=(),
        attempts=(),
        spent=0.0,
        leases={"lease-1": Purchase(slot=slot)},
        held={"cluster": 4},
        queued={},
        opening={},
        lease_of=dict.fromkeys(range(TASKS), "lease-1"),
        plan=None,
        goal=Goal(deadline=2400.0, budget=120.0),
    )
    forecast = forecaster.forecast(standing, ((), ()))
    assert forecast is not None
    found = find_remedy(standing, forecast, {"cluster": 12}, forecaster.again, can_rebuy=True)
    assert found is not None
    assert (found.kind, found.site) == ("processors", "cluster")
    assert 1 < found.processors <= 4
    assert found.odds > 0.9 - 1e-9
    assert found.budget is not None
    assert found.budget > 120.0
    full = find_remedy(standing, forecast, {"cluster": 0}, forecaster.again, can_rebuy=True)
    assert full is not None
    assert full.kind == "deadline"
    assert full.deadline is not None
    assert full.deadline > 2400.0
