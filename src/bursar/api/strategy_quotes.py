"""Quotes of a bag of tasks under a strategy, and the counter-offers that it can keep."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from bursar.api.known_campaign import ForeseenCampaign
from bursar.api.needs import SLOWER, STEPS, firm_offer, least_share, with_margins
from bursar.api.quote import Quote
from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.estimates import worker_starts
from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.strategies import Named
from bursar.broker.trading import CampaignTrader
from bursar.model.campaign import Campaign, Goal, odds_in_words
from bursar.model.errors import InputError
from bursar.model.provisioning import AT_ONCE
from bursar.model.site import SiteFacts
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.report.forecast_columns import forecast_in_words
from bursar.report.tables import amount, span

if TYPE_CHECKING:
    from bursar.api.job_batches import JobBatches
    from bursar.api.plan_forecasts import PlanQueues
    from bursar.broker.economy import EconomyScheduler
    from bursar.broker.feasibility import GoalFeasibility
    from bursar.broker.strategy_simulation import (
        PilotTimes,
        StrategyDraw,
        StrategySimulationResult,
    )
    from bursar.forecasts.campaign_forecast import CampaignForecast, RunTimeOf, TaskProgress

MOST = 0.5
"""Odds from which on a campaign is taken to fit its goal."""

WAITS = 1000
"""Waits in a queue that are drawn for a strategy's requests."""


def quote_strategy(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    policy: SupplyPolicy,
    trading: CampaignTrader | None = None,
    past: ResumeState | None = None,
    *,
    simulated: bool = False,
    foreseen: ForeseenCampaign | None = None,
    progress: "TaskProgress | None" = None,
    queues: "PlanQueues | None" = None,
) -> Quote:
    """
    Quote what a strategy would do for a goal, from what is known.

    Parameters
    ----------
    policy
        Policy that names the strategy.
    past
        Present state of the run; None: it has not begun.
    trading
        What the sites ask for, and from when on; None: as they would of a simulated campaign,
        which begins at moment 0 and is the only one.
    simulated
        Whether workers start at once, as in a simulation of real sites.
    foreseen
        What earlier runs say of the campaign; None: nothing, and there are no odds.
    progress
        How far the run has come, as forecasts see it; None: it has not begun.
    queues
        How long requests wait at sites whose processors queue; None: they do not wait.

    Raises
    ------
    InputError
        When there is a budget and a price is unknown, or the currency is another one.
    """
    strategy = policy.strategy
    assert strategy is not None
    _check_money(sites, campaign.goal)
    past = past or NOTHING_YET
    outlook = _economy(campaign, sites, strategy, campaign.goal, trading).outlook(past)
    currency = sites[0].currency
    unknown = Quote(
        campaign=campaign,
        policy=policy,
        currency=currency,
        reason=f"by the {strategy} strategy; how long jobs take is not known yet",
        note="expected end and cost: unknown until the first jobs have ended",
    )
    if outlook is None:
        return unknown
    from bursar.broker.strategy_simulation import EXPECTED, LATE  # late: see _economy

    times = _PilotTimesOf(sites, campaign, simulated=simulated, queues=queues)
    epoch = None if trading is None else trading.epoch

    def carry_out(
        campaign: Campaign,
        goal: Goal,
        spare: float,
        draw: "StrategyDraw",
        batches: "JobBatches | None" = None,
    ) -> "StrategySimulationResult | None":
        met, takes = times.of(draw), draw.takes
        stands, running = past, list(() if progress is None else progress.elapsed)
        if batches is not None:
            stands, running = batches.past_of(past), batches.batch_of[running].tolist()
        return simulate_strategy(
            *(campaign, sites, strategy, goal, stands, met, epoch),
            spare=spare,
            takes=takes,
            running=running,
        )

    forecasts = None
    if foreseen is not None and foreseen.known is not None:
        from bursar.api.strategy_forecasts import StrategyForecasts, TooManyJobs  # late: kernels
        from bursar.forecasts.campaign_forecast import NO_PROGRESS
        from bursar.forecasts.runtime_draws import UnknownRuntimes

        with suppress(UnknownRuntimes, TooManyJobs):
            forecasts = StrategyForecasts(foreseen, sites, carry_out, progress or NO_PROGRESS)
    spare, forecast = policy.spare, None
    if forecasts is not None and outlook.feasible:
        if past is NOTHING_YET:  # a run that goes on keeps to the spare time that it began with
            spare, forecast = forecasts.choose(campaign.goal)
        else:
            forecast = forecasts.of(campaign.goal, spare)
    if forecasts is None:
        expected = carry_out(campaign, campaign.goal, spare, EXPECTED)
    else:
        expected = forecasts.expected(campaign.goal, spare)
    offers: tuple[GoalCounterOffer, ...] = ()
    reason = f"by the {strategy} strategy: {outlook}"
    feasible = outlook.feasible

    def simulate(goal: Goal) -> "StrategySimulationResult | None":
        return carry_out(campaign, goal, 0.0, LATE)

    if expected is not None and outlook.feasible and not _fits(expected, forecast, campaign.goal):
        reason += f", but {expected.done} of {expected.left} are expected to be done"
        if expected.is_whole:
            reason += ", too late or for too much"
        if policy.out_of_reach == "refuse" and past is NOTHING_YET:
            feasible = False
            nearest = _nearest_offers(simulate, campaign.goal, expected)
            outlook = replace(outlook, counter_offers=nearest)
    elif not feasible:
        reason = str(outlook).partition(";")[0]
    if not feasible:
        is_sure = None if forecasts is None else forecasts.is_sure
        offers = _offers(
            campaign, sites, strategy, past, outlook, times.longest, trading, simulate, is_sure
        )
    quote = replace(
        unknown,
        policy=replace(policy, spare=spare),
        feasible=feasible,
        reason=reason,
        counter_offers=offers,
        foreseen=foreseen,
        forecast=forecast,
    )
    if expected is None:
        return quote
    note = _in_words(expected, currency)
    if forecast is not None and forecasts is not None:
        note = forecast_in_words(forecast, campaign.goal, currency, spare=spare)
        odds = forecast.odds(campaign.goal.deadline, campaign.goal.budget)
        if odds < campaign.goal.confidence:
            note += _larger_in_words(forecasts.larger(campaign.goal), campaign.goal, currency)
    return replace(
        quote, makespan=expected.finish, cost=expected.cost, jobs=expected.done, note=note
    )


def _fits(
    expected: "StrategySimulationResult", forecast: "CampaignForecast | None", goal: Goal
) -> bool:
    """Whether the simulation says that a goal is kept: in most draws, or else as expected."""
    if forecast is None:
        return expected.meets(goal)
    return forecast.odds(goal.deadline, goal.budget) >= MOST


def _nearest_offers(
    simulate: "Callable[[Goal], StrategySimulationResult | None]",
    goal: Goal,
    expected: "StrategySimulationResult",
) -> tuple[GoalCounterOffer, ...]:
    """Return a later deadline and a larger budget with which a simulation does all, and a part."""
    offers = []
    growing: dict[str, Callable[[float], Goal]] = {}
    if (deadline := goal.deadline) is not None:
        growing["time"] = lambda more: replace(goal, deadline=deadline * (1 + more))
    if (budget := goal.budget) is not None:
        growing["budget"] = lambda more: replace(goal, budget=budget * (1 + more))
    for kind, grown in growing.items():
        for wanted in map(grown, STEPS):
            result = simulate(wanted)
            if result is not None and result.meets(wanted):
                offers.append(_offer_of(kind, result))
                break
    return (*offers, _offer_of("share", expected))


def _offer_of(kind: str, result: "StrategySimulationResult") -> GoalCounterOffer:
    return GoalCounterOffer(
        kind=kind,  # type: ignore[arg-type]
        makespan=result.finish,
        cost=result.cost,
        tasks=result.done,
        share=result.done / max(1, result.left),
    )


def _with_holds(
    offer: GoalCounterOffer,
    goal: Goal,
    simulate: "Callable[[Goal], StrategySimulationResult | None]",
    sites: Sequence[SiteFacts],
    lasting: float,
) -> GoalCounterOffer:
    """
    Return an offer whose amount lets the guard hold what pilots may cost while nobody watches.

    For a few short jobs this is many times their price. Without this step, time and amount would
    grow together until the amount suffices, and the offer would be far too late.
    """
    cost = offer.cost
    if cost is None or not any(site.unwatched for site in sites):
        return offer

    def holds(more: float, deadline: float | None) -> bool:
        result = simulate(replace(goal, deadline=deadline, budget=cost * (1 + more)))
        return result is not None and result.is_whole

    # In less time more pilots are held at once. Where it is too little, it grows later.
    more = least_share(lambda share: holds(share, lasting))
    if more is None:
        more = least_share(lambda share: holds(share, None))
    return offer if more is None else replace(offer, cost=cost * (1 + more))


def _larger_in_words(larger: Goal | None, goal: Goal, currency: str) -> str:
    """Return with which limit the confidence would be reached, as words."""
    asked = odds_in_words(goal.confidence)
    if larger is None:
        return f"; {asked} is not reached with three times the time or money either"
    if larger.deadline != goal.deadline:
        return f"; {asked} is reached with a deadline of {span(larger.deadline)}"
    return f"; {asked} is reached with a budget of {amount(larger.budget, currency)}"


def _in_words(expected: "StrategySimulationResult", currency: str) -> str:
    text = f"expected: end {span(expected.finish)} from the begin"
    text += f", cost {amount(expected.cost, currency)}"
    if not expected.is_whole:
        text += f", {expected.done} of {expected.left} jobs left"
    return text


def simulate_strategy(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    goal: Goal,
    past: ResumeState,
    times: "Mapping[str, PilotTimes]",
    epoch: float | None = None,
    *,
    spare: float = 0.0,
    takes: "RunTimeOf | None" = None,
    running: Iterable[int] = (),
) -> "StrategySimulationResult | None":
    """
    Simulate a strategy under a goal with estimated or given run times; None: no result.

    Parameters
    ----------
    times
        What sites add to the time of pilots, by their names; others add nothing.
    epoch
        Moment at which the run begins, seconds since the epoch, by which prices change; None:
        as the run stands. Owners are asked as if nobody else bought from them.
    spare
        Share of the time left that the strategy keeps.
    takes
        Seconds that a job, by its number, takes at a site; None: as estimated.
    running
        Numbers of the jobs that run.
    """
    trading = None if epoch is None else CampaignTrader(sites, epoch=epoch)
    from bursar.broker.strategy_simulation import StrategySimulation  # late: see _economy

    economy = _economy(campaign, sites, strategy, goal, trading, spare)
    rehearsal = StrategySimulation(economy, goal, past, times, takes, running)
    return rehearsal.run(len(campaign.workflow.tasks))


class _PilotTimesOf:
    """
    Tells what sites add to the time of pilots in each draw.

    Parameters
    ----------
    simulated
        Whether workers start at once, as in a simulation of real sites.
    queues
        How long requests wait; None: they do not.
    """

    def __init__(
        self,
        sites: Sequence[SiteFacts],
        campaign: Campaign,
        *,
        simulated: bool,
        queues: "PlanQueues | None",
    ) -> None:
        self._sites = sites
        self._starts = {site.name: AT_ONCE if simulated else worker_starts(site) for site in sites}
        self.longest = max((one.latest for one in self._starts.values()), default=0.0)
        """Seconds that workers take to start at most, at the slowest site."""
        runtimes = [task.runtime for task in campaign.workflow.tasks if task.runtime is not None]
        self._waits: dict[str, list[float]] = {}
        self._lasting: set[str] = set()
        if queues is None or not runtimes:
            return
        for site in sites:
            if site.name in queues.waits:
                seconds = sum(runtimes) / len(runtimes) / site.speed + site.added
                waits = queues.sample(site.name, 1, seconds, WAITS)
                if waits is not None:
                    self._waits[site.name] = waits.tolist()
                told = queues.known_from[site.name]
                if told is not None and told["known_from"] == "history":
                    self._lasting.add(site.name)

    def of(self, draw: "StrategyDraw") -> "dict[str, PilotTimes]":
        """Return what each site adds in a draw."""
        from bursar.broker.strategy_simulation import PilotTimes  # late: see _economy

        return {
            site.name: PilotTimes(
                waits=self._waits_of(site.name, draw.number),
                start_up=self._starts[site.name].at(draw.late),
                added=site.added if self._starts[site.name].latest else 0.0,
                unwatched=site.unwatched,
            )
            for site in self._sites
        }

    def _waits_of(self, site: str, number: int | None) -> Sequence[float]:
        """Return what requests wait at a site, one after the other, in a draw."""
        waits = self._waits.get(site)
        if waits is None:
            return ()
        told = [sorted(waits)[len(waits) // 2]] * len(waits)
        if number is not None:
            told = waits[number:] + waits[:number]
        # The queue as it stands says little of requests after its jobs have begun: on real logs
        # half of them do not wait, and another such wait misses by more than none.
        return told if site in self._lasting else told[:1]


def _economy(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    goal: Goal,
    trading: CampaignTrader | None,
    spare: float = 0.0,
) -> "EconomyScheduler":
    # Late: most campaigns are planned, and follow no strategy.
    from bursar.broker.economy import EconomyScheduler

    return EconomyScheduler(
        campaign.workflow.tasks,
        sites,
        goal,
        strategy,
        trading=trading,
        retry=campaign.retry,
        spare=spare,
        explains=False,
    )


def _offers(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    past: ResumeState,
    outlook: "GoalFeasibility",
    longest: float,
    trading: CampaignTrader | None,
    simulate: "Callable[[Goal], StrategySimulationResult | None]",
    is_sure: Callable[[Goal], bool] | None,
) -> tuple[GoalCounterOffer, ...]:
    """Return the counter-offers that the strategy can keep, with margins and the confidence."""
    goal = campaign.goal

    def holds(limits: Goal) -> bool:
        seen = _economy(campaign, sites, strategy, limits, trading).outlook(past)
        if seen is None or not seen.feasible:
            return False
        # The outlook holds for any strategy; only the simulation tells whether this one keeps to
        # the limits.
        result = simulate(limits)
        if result is None or not result.meets(limits):
            return False
        return is_sure is None or is_sure(limits)

    offers = []
    for offer in outlook.counter_offers:
        # A time and an amount are tried until they hold; how many jobs can be done within given
        # limits is simulated once.
        if offer.kind != "share":
            # Live sites only: workers of simulated ones start at once, and tasks take what was
            # said.
            makespan = (offer.makespan + longest) * (1 + SLOWER) if longest else offer.makespan
            made = firm_offer(
                _with_holds(offer, goal, simulate, sites, makespan), goal, holds, makespan
            )
            if made is not None:
                offers.append(with_margins(offer, made.makespan, made.cost))
            continue
        result = simulate(goal)
        if result is not None and result.done:
            done = len(past.ended) + result.done
            share = done / max(1, len(campaign.workflow.tasks))
            part = replace(offer, tasks=done, share=share)
            offers.append(with_margins(part, result.finish, result.cost))
    return tuple(offers)


NOTHING_YET = ResumeState(
    ended=frozenset(),
    succeeded=frozenset(),
    attempts=(),
    pilots=0,
    clock=lambda: 0.0,
    spent=lambda: 0.0,
)


def _check_money(sites: Sequence[SiteFacts], goal: Goal) -> None:
    if goal.budget is not None:
        for site in sites:
            if site.unit_price is None:
                raise InputError(
                    "is not known, and a strategy keeps to a budget by prices",
                    where=f"site.{site.name}.unit_price",
                )
    if goal.currency not in (None, sites[0].currency):
        raise InputError(
            f"the sites count in {sites[0].currency}, got {goal.currency}", where="budget"
        )
