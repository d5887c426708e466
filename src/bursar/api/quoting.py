"""Quotes of a campaign under the policy that was decided on, before anything starts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bursar.api.matching import broker_now, group_alike_tasks
from bursar.api.quote import Quote
from bursar.api.strategy_forecast import quote_strategy
from bursar.broker.matchmaking.broker_interfaces import broker_job
from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.trading import CampaignTrader
from bursar.model.campaign import Campaign
from bursar.model.matching import Replica
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts

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

    Raises
    ------
    InputError
        When no plan holds every task, or prices or expressions are wrong.
    """
    match policy.kind:
        case "matched":
            return _quote_matching(policy, campaign, sites, copies)
        case "economy":
            return quote_strategy(campaign, sites, policy, trading, simulated=trading is None)
        case "best-effort":
            reason = "each task goes to a queue when those before it have ended"
            currency = sites[0].currency
            return Quote(campaign=campaign, policy=policy, currency=currency, reason=reason)
    planned = replace(make_plan(campaign, policy.kind == "pool"), policy=policy)
    if policy.kind == "pool" and planned.feasible:
        return replace(planned, reason="a pool acquires processors as there is work for them")
    return planned


def _quote_matching(
    policy: SupplyPolicy,
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    copies: Mapping[str, Sequence[Replica]],
) -> Quote:
    """Ask the broker for a site for each job, but for jobs whose files are still to be made."""
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
