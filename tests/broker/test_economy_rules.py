"""What an economy learns from a job that has ended, pays for it, and asks again for."""

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from bursar.api.strategy_quotes import NOTHING_YET
from bursar.broker.adviser import ScheduleAdvice, SchedulingSnapshot
from bursar.broker.economy import AGAIN, EconomyScheduler
from bursar.broker.trading import CampaignTrader
from bursar.market.agreement import Agreement
from bursar.model.allocation import Allocation
from bursar.model.campaign import Goal
from bursar.model.money import Pricing
from bursar.model.site import BatchScheduler, SiteFacts
from bursar.model.task import Outcome, Status, Task
from bursar.sites.owners import OwnersBook

EPOCH = 1_000_000_000.0
PRICED = SiteFacts(name="uni", unit_price=2.0, pricing=Pricing(2.0))


class Clocked:
    """An economy of jobs of 10 s, with a clock to be set."""

    def __init__(self, jobs: int, site: SiteFacts, trading: CampaignTrader | None = None) -> None:
        self.now = 0.0
        tasks = [Task(id=str(i), runtime=10.0) for i in range(jobs)]
        self.economy = EconomyScheduler(
            tasks, [site], Goal(deadline=500.0), "cost", trading=trading
        )

    def begin(self) -> list[Allocation]:
        past = replace(NOTHING_YET, clock=lambda: self.now, epoch=EPOCH)
        return self.economy.begin(past)

    def end(self, task: int, start: float, end: float, told: float) -> None:
        self.now = told
        outcome = Outcome(task=task, attempt=1, status=Status.SUCCEEDED, start=start, end=end)
        self.economy.ended([(outcome, True)])


def test_a_site_is_known_by_when_its_jobs_are_back_and_not_by_their_run_alone() -> None:
    """A job was sent at 0, began at 8, ended at 18 and was known to have ended at 30."""
    made = Clocked(2, SiteFacts(name="s", unit_price=1.0))
    made.begin()
    made.end(0, 8.0, 18.0, told=30.0)

    assert made.economy.estimates.mean("s") == pytest.approx(3.0)
    assert made.economy.estimates.mean_run("s") == pytest.approx(1.0)


def test_an_owner_hears_what_was_paid_for_the_time_that_a_job_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What an owner has earned with a customer may move his price."""
    told: list[tuple[str, float]] = []
    trading = CampaignTrader([PRICED], epoch=EPOCH)
    monkeypatch.setattr(trading, "over", lambda site, _, paid: told.append((site, paid)))
    made = Clocked(1, PRICED, trading)
    made.begin()
    made.end(0, 8.0, 18.0, told=30.0)

    assert told == [("uni", pytest.approx(20.0))]


def test_an_owner_whose_processors_others_hold_is_asked_again_soon(tmp_path: Path) -> None:
    """Nothing tells a run that another one gives its processor back."""
    path = tmp_path / "owners.json"
    with closing(OwnersBook(path)) as one, closing(OwnersBook(path)) as two:
        other = CampaignTrader([PRICED], epoch=EPOCH, owners=one).buy(PRICED, 100.0, 0.0, math.inf)
        assert isinstance(other, Agreement)
        made = Clocked(1, PRICED, CampaignTrader([PRICED], epoch=EPOCH, owners=two))

        assert made.begin() == []
        assert made.economy.wake == AGAIN
        assert not made.economy.verdict


def test_money_is_kept_back_for_the_site_that_needs_least_of_it() -> None:
    """
    Pilots in a batch queue may hold processors for a while when nobody watches them.

    Where another site needs nothing kept back, the whole budget can go to a job there.
    """
    sites = [
        SiteFacts(name="cluster", unit_price=1.0, batch=BatchScheduler(manager="slurm")),
        SiteFacts(name="here", unit_price=1.0),
    ]
    goal = Goal(budget=10.0)
    tasks = [Task(id="a", runtime=10.0)]

    either = EconomyScheduler(tasks, sites, goal, "cost").outlook(NOTHING_YET)
    cluster = EconomyScheduler(tasks, sites[:1], goal, "cost").outlook(NOTHING_YET)

    assert either is not None
    assert either.feasible
    assert cluster is not None
    assert not cluster.feasible


def test_advice_holds_until_a_hundredth_of_the_jobs_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To give out 410 jobs anew after each end, though nothing else happened, would take long."""
    made = Clocked(410, SiteFacts(name="s", unit_price=1.0, processors=10))
    asked: list[float] = []
    advise = made.economy._adviser.advise

    def counted(situation: SchedulingSnapshot) -> ScheduleAdvice:
        asked.append(made.now)
        return advise(situation)

    monkeypatch.setattr(made.economy._adviser, "advise", counted)
    made.begin()
    for task in range(8):
        made.end(task, 0.0, 10.0, told=10.0 + task)

    assert 1 < len(asked) <= 1 + 8 / 2
