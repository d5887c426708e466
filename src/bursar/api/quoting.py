"""Quotes of a campaign under the policy that was decided on, before anything starts."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.api.known_campaign import ForeseenCampaign, foresee
from bursar.api.needs import SLOWER, firm_offer, with_margins
from bursar.api.quote import Quote
from bursar.api.site_resolution import RUNS, with_learned
from bursar.broker.dynamic_scheduler import ResumeState
from bursar.broker.estimates import start_up
from bursar.broker.policy_choice import PolicyRequest, SupplyPolicy, choose_policy
from bursar.broker.strategies import Named, OutOfReach
from bursar.broker.trading import CampaignTrader
from bursar.model.campaign import Campaign, Goal, odds_in_words
from bursar.model.errors import InputError
from bursar.model.matching import Replica
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.planning.plan_choice import GoalCounterOffer
from bursar.report.forecast_columns import forecast_in_words
from bursar.report.tables import amount, span

# Forecast of a bag of tasks under a strategy, before anything starts.


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
    starting = {site.name: 0.0 if simulated else start_up(site) for site in sites}
    epoch = None if trading is None else trading.epoch

    def carry_out(
        campaign: Campaign, goal: Goal, spare: float, takes: "RunTimeOf | None"
    ) -> "StrategySimulationResult | None":
        return simulate_strategy(
            campaign, sites, strategy, goal, past, starting, epoch, spare=spare, takes=takes
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
        expected = carry_out(campaign, campaign.goal, spare, None)
    else:
        expected = forecasts.expected(campaign.goal, spare)
    offers: tuple[GoalCounterOffer, ...] = ()
    reason = f"by the {strategy} strategy: {outlook}"
    if expected is not None and outlook.feasible and not expected.is_whole:
        # The jobs would fit, but a simulation knows too little of queues to refuse a run by it.
        reason += f", but {expected.done} of {expected.left} are expected to be done"
    if not outlook.feasible:
        reason = str(outlook).partition(";")[0]
        is_sure = None if forecasts is None else forecasts.is_sure

        def simulate(goal: Goal) -> "StrategySimulationResult | None":
            return carry_out(campaign, goal, 0.0, None)

        offers = _offers(
            campaign, sites, strategy, past, outlook, starting, trading, simulate, is_sure
        )
    quote = replace(
        unknown,
        policy=replace(policy, spare=spare),
        feasible=outlook.feasible,
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
    starting: Mapping[str, float],
    epoch: float | None = None,
    *,
    spare: float = 0.0,
    takes: "RunTimeOf | None" = None,
) -> "StrategySimulationResult | None":
    """
    Simulate a strategy under a goal with estimated or given run times; None: no result.

    Parameters
    ----------
    starting
        Seconds that the workers of a site take to start, by its name; 0 for others.
    epoch
        Moment at which the run begins, seconds since the epoch, by which prices change; None:
        as the run stands. Owners are asked as if nobody else bought from them.
    spare
        Share of the time left that the strategy keeps.
    takes
        Seconds that a job, by its number, takes at a site; None: as estimated.
    """
    trading = None if epoch is None else CampaignTrader(sites, epoch=epoch)
    from bursar.broker.strategy_simulation import StrategySimulation  # late: see _economy

    rehearsal = StrategySimulation(
        _economy(campaign, sites, strategy, goal, trading, spare),
        goal,
        past,
        lambda site: starting.get(site, 0.0),
        {site.name: site.unwatched for site in sites}.__getitem__,
        takes,
    )
    return rehearsal.run(len(campaign.workflow.tasks))


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
    starting: Mapping[str, float],
    trading: CampaignTrader | None,
    simulate: "Callable[[Goal], StrategySimulationResult | None]",
    is_sure: Callable[[Goal], bool] | None,
) -> tuple[GoalCounterOffer, ...]:
    """Return the counter-offers that the strategy can keep, with margins and the confidence."""
    longest = max(starting.values())
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
            made = firm_offer(offer, goal, holds, makespan)
            offers += [] if made is None else [made]
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


if TYPE_CHECKING:
    from bursar.broker.economy import EconomyScheduler
    from bursar.broker.feasibility import GoalFeasibility
    from bursar.broker.strategy_simulation import StrategySimulationResult
    from bursar.forecasts.campaign_forecast import RunTimeOf, TaskProgress

PlanMaker = Callable[[Campaign, bool], Quote]
"""Function that plans a campaign, and whether a quick plan will do since none is followed."""


def quote_policy(
    policy: SupplyPolicy,
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    make_plan: PlanMaker,
    *,
    copies: Mapping[str, Sequence[Replica]],
    trading: CampaignTrader | None = None,
    foreseen: ForeseenCampaign | None = None,
) -> Quote:
    """
    Quote a campaign under a policy.

    Parameters
    ----------
    sites
        Sites that the policy may use.
    make_plan
        Makes the plan, or the quick one from which it is known what to expect of a pool.
    copies
        Replicas of the logical files that tasks read.
    trading
        What the owners of real sites ask; None: the sites are simulated.
    foreseen
        What earlier runs say of the campaign; None: nothing. A plan looks for itself.

    Raises
    ------
    InputError
        When no plan holds every task, or prices or expressions are wrong.
    """
    match policy.kind:
        case "matched":
            return _quote_matching(policy, campaign, sites, copies)
        case "economy":
            is_simulated = trading is None
            return quote_strategy(
                campaign, sites, policy, trading, simulated=is_simulated, foreseen=foreseen
            )
        case "best-effort":
            reason = "each task goes to a queue when those before it have ended"
            currency = sites[0].currency
            return Quote(campaign=campaign, policy=policy, currency=currency, reason=reason)
    planned = replace(make_plan(campaign, policy.kind == "pool"), policy=policy)
    if policy.kind == "pool" and planned.feasible:
        planned = replace(planned, reason="a pool acquires processors as there is work for them")
        if planned.forecasts is not None:
            forecast = planned.forecasts.of_pool()
            words = forecast_in_words(forecast, campaign.goal, planned.currency)
            return replace(planned, forecast=forecast, note=words)
    return planned


def quote_named_strategy(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    strategy: Named,
    *,
    out_of_reach: OutOfReach | None = None,
    history: "str | Path | ForeseenCampaign | None" = None,
    runs: Path = RUNS,
) -> Quote | Campaign:
    """
    Quote what a run by a strategy would do, before anything starts.

    Parameters
    ----------
    history
        As for :func:`bursar.plan`.
    runs
        Folder of the runs, with what is known of the start of workers.

    Returns
    -------
    Quote or Campaign
        The campaign with the trade-off that the strategy stands for where the campaign is a
        workflow, which is planned.

    Raises
    ------
    InputError
        When the strategy does not go with the campaign or the sites, or prices are wrong.
    """
    wanted = PolicyRequest(strategy=strategy, out_of_reach=out_of_reach)
    decision = choose_policy(campaign, sites, wanted)
    if decision.policy.kind != "economy":
        return decision.campaign
    facts = with_learned(decision.sites, runs)
    foreseen = foresee(decision.campaign, facts, history)
    asked = (decision.policy, foreseen.campaign, facts)
    if any(site.kind == "simulated" for site in facts):
        return quote_policy(*asked, _never_planned, copies={}, foreseen=foreseen)
    return quote_on_real_sites(*asked, _never_planned, None, foreseen)


def _never_planned(campaign: Campaign, quick: bool) -> Quote:
    raise AssertionError("a strategy follows no plan")


def quote_on_real_sites(
    policy: SupplyPolicy,
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    make_plan: PlanMaker,
    customer: str | None,
    foreseen: ForeseenCampaign | None,
) -> Quote:
    """
    Quote a campaign on real sites, as :func:`quote_policy` does; a strategy asks their owners.

    Parameters
    ----------
    customer
        Account that pays, by which owners know who asks; None: nobody's.
    """
    copies: Mapping[str, Sequence[Replica]] = {}
    if policy.brokering is not None:
        # Late: most campaigns are planned, and need neither the broker nor its language.
        from bursar.api.matching import locate_replicas

        copies = locate_replicas(policy.brokering, campaign)
    if policy.kind != "economy":
        return quote_policy(policy, campaign, sites, make_plan, copies=copies)
    from bursar.sites.owners import known_owners

    with known_owners(customer) as owners:
        trading = CampaignTrader(sites, epoch=time.time(), owners=owners)
        return quote_policy(
            policy, campaign, sites, make_plan, copies=copies, trading=trading, foreseen=foreseen
        )


def _quote_matching(
    policy: SupplyPolicy,
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    copies: Mapping[str, Sequence[Replica]],
) -> Quote:
    """Ask the broker for a site for each job, but for jobs whose files are still to be made."""
    # Late: most campaigns are planned, and need neither the broker nor its language.
    from bursar.api.matching import broker_now, group_alike_tasks
    from bursar.broker.matchmaking.broker_interfaces import broker_job

    assert policy.brokering is not None
    broker = broker_now(sites, policy.brokering, copies)
    tasks = campaign.workflow.tasks
    coming = {name for task in tasks for name in task.registers.values()}
    refused: dict[str, str] = {}
    for kind in group_alike_tasks([task for task in tasks if coming.isdisjoint(task.data)]):
        # Jobs of one kind fare alike: one question for each kind.
        match = broker.choose(broker_job(0, kind[0]))
        if isinstance(match, Refusal):
            refused |= dict.fromkeys((task.id for task in kind), match.reason)
    reason = f"each job goes to the site that the broker chooses: {policy.brokering.choice}"
    if refused:
        (task, why), more = next(iter(refused.items())), len(refused) - 1
        others = f" (and {more} more)" if more else ""
        reason = f"no site for {task}{others}: {why}"
    return Quote(
        campaign=campaign,
        policy=policy,
        currency=sites[0].currency,
        feasible=not refused,
        reason=reason,
        unmatched=refused,
    )
