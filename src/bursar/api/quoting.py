"""Quotes of a campaign under the policy that was decided on, before anything starts."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bursar.api.known_campaign import ForeseenCampaign, foresee
from bursar.api.quote import Quote
from bursar.api.site_resolution import RUNS, with_learned
from bursar.api.strategy_quotes import quote_strategy
from bursar.broker.policy_choice import PolicyRequest, SupplyPolicy, choose_policy
from bursar.broker.strategies import Named, OutOfReach
from bursar.broker.trading import CampaignTrader
from bursar.model.campaign import Campaign
from bursar.model.matching import Replica
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.report.forecast_columns import forecast_in_words

if TYPE_CHECKING:
    from bursar.api.plan_forecasts import PlanQueues

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
    queues: "PlanQueues | None" = None,
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
    queues
        As for :func:`quote_strategy`; a plan asks for itself.

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
                *(campaign, sites, policy, trading),
                simulated=is_simulated,
                foreseen=foreseen,
                queues=queues,
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
            # Unlike a plan, a pool has waits and the starts of its workers.
            expected = replace(planned, forecast=forecast, note=words)
            end = forecast.end.quantile(0.5)
            if not math.isfinite(end):
                return expected
            cost = None if forecast.cost is None else forecast.cost.quantile(0.5)
            return replace(expected, makespan=end, cost=cost)
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
    return quote_on_real_sites(*asked, _never_planned, None, foreseen, runs)


def _never_planned(campaign: Campaign, quick: bool) -> Quote:
    raise AssertionError("a strategy follows no plan")


def quote_on_real_sites(
    policy: SupplyPolicy,
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    make_plan: PlanMaker,
    customer: str | None,
    foreseen: ForeseenCampaign | None,
    runs: Path,
) -> Quote:
    """
    Quote a campaign on real sites, as :func:`quote_policy` does; a strategy asks their owners.

    Parameters
    ----------
    customer
        Account that pays, by which owners know who asks; None: nobody's.
    runs
        Folder of the runs, with what is known of waits in batch queues.
    """
    copies: Mapping[str, Sequence[Replica]] = {}
    if policy.brokering is not None:
        # Late: most campaigns are planned, and need neither the broker nor its language.
        from bursar.api.matching import locate_replicas

        copies = locate_replicas(policy.brokering, campaign)
    if policy.kind != "economy":
        return quote_policy(policy, campaign, sites, make_plan, copies=copies)
    from bursar.sites.owners import known_owners

    queues = None
    if foreseen is not None and foreseen.known is not None:
        from bursar.api.planning import asked_queues  # late: as where queues are asked for plans

        queues = asked_queues(sites, {site.name for site in sites}, runs, is_pool=False)
    with known_owners(customer) as owners:
        trading = CampaignTrader(sites, epoch=time.time(), owners=owners)
        return quote_policy(
            *(policy, campaign, sites, make_plan),
            copies=copies,
            trading=trading,
            foreseen=foreseen,
            queues=queues,
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
