"""Change of a run's goal: first the forecast, then the change."""

import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bursar.api.known_campaign import ForeseenCampaign
from bursar.api.planning import asked_queues
from bursar.api.queues import queue_waits
from bursar.api.quote import Quote
from bursar.api.site_resolution import RUNS
from bursar.api.strategy_quotes import quote_strategy
from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.feasibility import PaceEstimate
from bursar.forecasts.fan import ForecastFan
from bursar.formats.units import parse_deadline
from bursar.history.forecast_records import SHARES, FoundScores
from bursar.history.store import History
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import BursarError, InputError
from bursar.model.money import from_micros
from bursar.model.task import Status
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.report.plan_documents import offer_to_dict
from bursar.report.tables import amount, amount_above, span, span_above
from bursar.runs.amendments import request_amendment, validated_goal
from bursar.runs.folder import RunFolder
from bursar.runs.forecasting.journalled import fans_of
from bursar.runs.forecasting.recorded_standing import recorded_standing, with_processors
from bursar.runs.recording.history_recorder import execution_name
from bursar.runs.recording.user_history import open_history
from bursar.runs.run_record import RunRecord, read_run

if TYPE_CHECKING:
    from bursar.runs.forecasting.standing_forecast import StandingForecaster


@dataclass(frozen=True, slots=True, kw_only=True)
class AmendmentForecast:
    """
    Forecast of a run's end and cost under another goal.

    Parameters
    ----------
    tasks
        Number of the run's tasks.
    goal
        The goal after the amendment.
    elapsed, spent
        Seconds and currency units so far.
    quote
        Quote of the run's strategy; None for a run by a plan.
    finish, cost
        Expected end, seconds from the run's begin, and cost of the whole run, currency units;
        None when unknown.
    currency
        Currency of every amount.
    fan
        Forecast of a run by a plan or a pool: as it stands now, else the last that it has made of
        itself; None: there is neither.
    """

    run: str
    folder: Path
    tasks: int
    goal: Goal
    elapsed: float
    spent: float
    currency: str
    quote: Quote | None = None
    finish: float | None = None
    cost: float | None = None
    fan: ForecastFan | None = None

    @property
    def feasible(self) -> bool:
        """Whether the goal should be met."""
        if self.quote is not None:
            return self.quote.feasible
        if self.fan is not None:
            # Nine of ten such runs keep the goal.
            late = _over(max(self.fan.end_s.p90, self.elapsed), self.goal.deadline)
            cost = None if self.fan.cost is None else max(self.fan.cost.p90, self.spent)
            return not late and not _over(cost, self.goal.budget)
        late = _over(self.finish, self.goal.deadline)
        return not late and not _over(self.cost, self.goal.budget)

    @property
    def reason(self) -> str:
        """The reason in one line."""
        if self.quote is not None:
            return self.quote.reason
        parts = []
        if self.finish is not None:
            parts.append(f"should end {span(self.finish)} from its begin")
        if self.cost is not None:
            parts.append(f"should cost {amount(self.cost, self.currency)}")
        if self.fan is not None:
            sure = f"with 90 % it ends within {span(max(self.fan.end_s.p90, self.elapsed))}"
            if self.fan.cost is not None:
                most = amount(max(self.fan.cost.p90, self.spent), self.currency)
                sure += f" and costs at most {most}"
            parts.append(sure)
        met = "meets" if self.feasible else "misses"
        return f"the plan {met} the goal: {', '.join(parts) or 'nothing is known yet'}"

    @property
    def counter_offers(self) -> tuple[GoalCounterOffer, ...]:
        """
        Offers of goals in place of one that is out of reach.

        For a run by a plan or a pool by the forecast of the run: nine of ten such runs keep an
        offer.
        """
        if self.quote is not None:
            return self.quote.counter_offers
        if self.feasible or self.fan is None:
            return ()
        end = max(self.fan.end_s.p90, self.elapsed)
        cost = None if self.fan.cost is None else max(self.fan.cost.p90, self.spent)
        late, dear = _over(end, self.goal.deadline), _over(cost, self.goal.budget)
        if late and dear:
            return ()  # no one of the two is enough
        # Rounded up to what is printed, so that the goal that is taken holds what was offered.
        kind: Literal["time", "budget"] = "time" if late else "budget"
        more = span_above(end), None if cost is None else amount_above(cost)
        return (
            GoalCounterOffer(
                kind=kind, makespan=more[0], cost=more[1], tasks=self.tasks, share=1.0
            ),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return what ``bursar amend --json`` prints; the keys are in the documentation."""
        offers = [offer_to_dict(offer) for offer in self.counter_offers]
        return {
            "run": self.run,
            "deadline_s": self.goal.deadline,
            "budget": self.goal.budget,
            "currency": self.currency,
            "elapsed_s": self.elapsed,
            "spent": self.spent,
            "feasible": self.feasible,
            "reason": self.reason,
            "expected_finish_s": self.finish,
            "expected_cost": self.cost,
            "forecast": self._forecast_to_dict(),
            "counter_offers": offers,
        }

    def _forecast_to_dict(self) -> dict[str, Any] | None:
        if self.quote is not None and self.quote.forecast is not None:
            return ForecastFan.of(self.quote.forecast, self.goal, self.elapsed).to_dict()
        return None if self.fan is None else self.fan.to_dict()

    def print(self) -> None:
        """Print the reason and the counter-offers."""
        from rich.console import Console

        from bursar.report.charts import print_choice

        if self.quote is not None or self.feasible:
            note = "" if self.quote is None else self.quote.note
            offers = self.counter_offers
            print_choice(self.feasible, self.reason, offers, self.currency, note=note)
            return
        console = Console()
        console.print(self.reason, style="bold red", highlight=False, markup=False)
        for offer in self.counter_offers:
            console.print(f"  instead: {self.describe(offer)}", highlight=False, markup=False)

    def describe(self, offer: GoalCounterOffer) -> str:
        """Describe a counter-offer in words."""
        from bursar.report.charts import describe

        if self.quote is not None:
            return describe(offer, self.currency)
        if offer.kind == "time":
            limit = f"a deadline of {span(offer.makespan)}"
        else:
            limit = f"a budget of {amount(offer.cost, self.currency)}"
        return f"{limit}, which nine of ten such runs keep"

    def counter_offer(self, kind: str) -> tuple[GoalCounterOffer, Goal] | None:
        """
        Return the counter-offer of a kind, and the goal that takes it; None: there is none.

        Parameters
        ----------
        kind
            ``"time"`` or ``"budget"``.
        """
        offer = next((one for one in self.counter_offers if one.kind == kind), None)
        if offer is None:
            return None
        if kind == "time":
            return offer, replace(self.goal, deadline=offer.makespan)
        return offer, replace(self.goal, budget=offer.cost)


def forecast_amendment(
    name: str | Path,
    *,
    deadline: str | float | None = None,
    later: float | None = None,
    budget: float | None = None,
    more: float | None = None,
    runs: str | Path = RUNS,
) -> AmendmentForecast:
    """
    Forecast a run's end and cost under another goal, without changing the run.

    Parameters
    ----------
    name
        Name of the run, or its folder.
    deadline, later
        New deadline, ``"2h"`` or seconds from the run's begin, or a moment,
        ``"2026-11-28 18:00"``; or seconds to add to the present one.
    budget, more
        New budget, currency units; or units to add to the present one.
    runs
        Folder that holds the runs.

    Raises
    ------
    InputError
        When there is no such run, the deadline has passed, the budget is spent already, or
        more is asked of a limit that is not there.
    """
    folder = RunFolder.open(Path(runs), str(name))
    record = read_run(folder)
    goal = record.campaign.goal
    elapsed, spent = _standing(record)
    time_allowed = goal.deadline
    if later is not None:
        if goal.deadline is None:
            raise InputError("the run has no deadline to move", where="deadline")
        time_allowed = goal.deadline + later
    elif deadline is not None:
        now = time.time()
        try:
            time_allowed = parse_deadline(deadline, now, now - elapsed)
        except InputError as error:
            raise error.within("deadline") from None
    if more is not None:
        if goal.budget is None:
            raise InputError("the run has no budget to add to", where="budget")
        budget = goal.budget + more
    if deadline is None and later is None and budget is None:
        raise InputError("give a deadline, a budget, or both")
    try:
        goal = replace(
            goal,
            deadline=time_allowed,
            budget=goal.budget if budget is None else budget,
        )
    except ValueError as error:
        raise InputError(
            str(error), where="budget" if time_allowed == goal.deadline else "deadline"
        ) from None
    if record.info.state == "finished":
        raise InputError(f"run {folder.name} has ended: there is nothing left to change")
    goal = validated_goal(goal, elapsed)
    # Refused here with the figures; the run's own guard looks again when it is asked.
    if goal.budget is not None and goal.budget < spent:
        raise InputError(
            f"{spent:.6g} {record.planned[1].currency} are spent already", where="budget"
        )
    return _verdict(record, goal, elapsed, spent)


def amend(verdict: AmendmentForecast) -> None:
    """
    Change the goal of a run to the one of a forecast.

    Raises
    ------
    BursarError
        When the run refuses the goal, or does not answer.
    """
    answer = request_amendment(
        RunFolder(verdict.folder), verdict.goal, (verdict.finish, verdict.cost)
    )
    if answer.refused:
        raise BursarError(f"run {verdict.run} keeps its goal: {answer.refused}")


def _verdict(record: RunRecord, goal: Goal, elapsed: float, spent: float) -> AmendmentForecast:
    campaign = replace(record.campaign, goal=goal)
    plan = record.planned[1]
    name = record.folder.name
    if record.info.strategy is not None:
        past = ResumeState(
            ended=frozenset(record.final),
            succeeded=frozenset(
                task for task, r in record.final.items() if r.outcome.status is Status.SUCCEEDED
            ),
            attempts=[(r.outcome, r.site) for r in record.attempts],
            # No pilot is requested by a forecast, so that no name is needed.
            pilots=0,
            clock=lambda: elapsed,
            spent=lambda: spent,
            epoch=record.incarnations[0][0] if record.incarnations else time.time(),
        )
        foreseen, progress, queues = None, None, None
        if record.incarnations and (forecaster := _forecaster(record, campaign)) is not None:
            foreseen = ForeseenCampaign(campaign=campaign, known=forecaster.known)
            standing = recorded_standing(record, goal, elapsed, spent)
            progress = forecaster.progress_of(standing)
            sites = record.info.sites
            queues = asked_queues(
                sites, {site.name for site in sites}, record.folder.path.parent, is_pool=False
            )
        quote = quote_strategy(
            campaign,
            record.info.sites,
            record.info.policy,
            past=past,
            foreseen=foreseen,
            progress=progress,
            queues=queues,
        )
        finish, cost = quote.makespan, quote.cost
        if quote.forecast is not None:
            # Estimates know nothing of how long the tasks that run have run.
            told = ForecastFan.of(quote.forecast, goal, elapsed)
            if math.isfinite(told.end_s.p50) and told.cost is not None:
                finish, cost = told.end_s.p50, told.cost.p50
        return AmendmentForecast(
            run=name,
            folder=record.folder.path,
            tasks=record.info.tasks,
            goal=goal,
            elapsed=elapsed,
            spent=spent,
            currency=plan.currency,
            quote=quote,
            finish=finish,
            cost=cost,
        )
    pace = PaceEstimate(campaign.workflow, plan)
    for outcome in record.outcomes:
        pace.learn(outcome, True)
    finish = pace.finish(elapsed)
    rate = sum(lease.rate for lease in record.leases if lease.end is None)
    cost = None if finish is None else spent + rate * max(0.0, finish - elapsed)
    fan = _fan(record, campaign, elapsed, spent)
    if fan is not None:
        # A pace knows nothing of tasks that are longer than those before, or wait for others.
        finish = max(fan.end_s.p50, elapsed)
        cost = cost if fan.cost is None else max(fan.cost.p50, spent)
    return AmendmentForecast(
        run=name,
        folder=record.folder.path,
        tasks=record.info.tasks,
        goal=goal,
        elapsed=elapsed,
        spent=spent,
        currency=plan.currency,
        finish=finish,
        cost=cost,
        fan=fan,
    )


def _forecaster(record: RunRecord, campaign: Campaign) -> "StandingForecaster | None":
    """Return what forecasts a run from how it stands; None: its history cannot be read."""
    # Late: other amendments need no arrays.
    from bursar.runs.forecasting.standing_forecast import StandingForecaster

    info = record.info
    try:
        known = _history(record)
        return StandingForecaster(campaign, info.sites, known, execution_name(record.folder, info))
    except BursarError:
        return None


def _history(record: RunRecord) -> History | None:
    """Return the history that a run learns from; None: there is none."""
    source = open_history(record.info.history)
    return source if source is not None and source.path.exists() else None


def _fan(record: RunRecord, campaign: Campaign, elapsed: float, spent: float) -> ForecastFan | None:
    """Return the forecast of a run by a plan or a pool under another goal; None: there is none."""
    if record.info.state == "running" and record.incarnations:
        forecaster = _forecaster(record, campaign)
        standing = recorded_standing(record, campaign.goal, elapsed, spent)
        if forecaster is not None:
            try:
                scores = _scores(record, forecaster.known.basis, len(standing.ended))
                waits = queue_waits(record.info.sites, record.folder.path.parent)
                forecast = forecaster.forecast(
                    with_processors(record, standing, lambda site, *asked: waits[site](*asked)),
                    scores,
                )
            except BursarError:
                forecast = None
            if forecast is not None:
                return ForecastFan.of(forecast, campaign.goal, elapsed)
    fans = fans_of(record.journal.events)
    # The run's last forecast of itself; its odds are those of the goal that it had.
    return replace(fans[-1][1], odds=None) if fans else None


def _scores(record: RunRecord, basis: str, ended: int) -> FoundScores:
    """Return the scores by which forecasts of a run are corrected, as the run does."""
    history = _history(record)
    if history is None:
        return [], []
    share = max(one for one in SHARES if one <= ended / len(record.campaign.workflow.tasks))
    return history.forecast_scores(record.campaign.name, basis, share)


def _standing(record: RunRecord) -> tuple[float, float]:
    """Return seconds since the begin, and currency units spent or accrued by open leases."""
    if not record.incarnations:
        return 0.0, 0.0
    first, last = record.incarnations[0][0], record.incarnations[-1][1]
    now = time.time()  # the time counts on, also while no process carries it out
    # Leases of a killed run accrue up to the last sign of life only.
    seen = now if record.info.state == "running" else min(last, record.journal.last_seen)
    accrued = sum(lease.owed(seen) for lease in record.leases if lease.end is None)
    return max(0.0, now - first), from_micros(record.ledger.spent + accrued)


def _over(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value > limit
