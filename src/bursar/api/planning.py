"""Planning of a campaign on given sites, which ends in a quote."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bursar.api.quote import Quote
from bursar.api.site_resolution import Sites, on_offer, resolve_sites
from bursar.broker.policy_choice import SupplyPolicy, suitable_sites
from bursar.broker.trading import advance_start_options, price_sites
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.planning.policy import Method, OnProgress, Scheduler, SearchLimits
from bursar.sites.owners import known_owners


def plan(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    processors: int | None = None,
    method: Method = "auto",
    scheduler: Scheduler = "heft",
    whole: bool = False,
    limits: SearchLimits | None = None,
    on_progress: OnProgress | None = None,
    moment: float | None = None,
) -> Quote:
    """
    Plan a campaign: time against cost, before anything starts.

    Parameters
    ----------
    campaign
        A campaign, or the path of a file that holds one.
    sites
        A sites file or the sites; None: this machine.
    processors
        Buy exactly so many (of the lease that varies); None: try many.
    method, scheduler
        How purchases are searched, and how tasks are placed on them; see
        :mod:`bursar.planning.methods` and :mod:`bursar.planning.schedulers`.
    whole
        Pay slots of a plan though nothing runs in them (HPDC'07's accounting).
    limits
        How far to search: seed, population, generations, evaluations, time.
    on_progress
        Called with the front so far.
    moment
        When the plan begins, seconds since the epoch: owners' prices follow it. None: now; 0
        where a site is simulated.

    Returns
    -------
    Quote
        The trade-off curve, its lower bounds, and the plan the goal picks.
        In a notebook it shows itself as a chart.

    Raises
    ------
    InputError
        When a file is wrong, no plan holds every task, or no site meets what all require.
    """
    from bursar.api.needs import PlanNeeds
    from bursar.planning.plan_choice import choose_plan
    from bursar.planning.trade_off_solver import trade_off

    campaign = resolve_campaign(campaign)
    facts = suitable_sites(campaign, on_offer(resolve_sites(sites)))
    if processors is not None:
        _check_processors(processors, facts)
    currency = _currency(campaign, facts)
    quotes: list[Quote] = []
    # Prices depend on when processors are bought: each way to book is planned by itself, and the
    # best kept.
    for offered in _offered(facts, moment):
        try:
            front = trade_off(
                campaign.workflow,
                offered,
                method=method,
                scheduler=scheduler,
                goal=campaign.goal,
                processors=None if processors is None else (processors,),
                currency=currency,
                whole=whole,
                limits=limits,
                on_progress=on_progress,
            )
        except InputError:
            if not quotes:
                raise
            continue  # what begins later need not hold every task
        choice = choose_plan(front, campaign.goal, PlanNeeds(front, campaign.goal))
        quotes.append(Quote.of_front(campaign, front, choice, SupplyPolicy()))
    return min(quotes, key=_badness(quotes, campaign.goal))


def _offered(facts: tuple[SiteFacts, ...], moment: float | None) -> Iterator[tuple[SiteFacts, ...]]:
    """Yield the sites at present prices, once for each way to book processors ahead."""
    if all(site.pricing is None for site in facts):
        yield facts
        return
    for ahead in advance_start_options(facts):
        if moment is None and not any(site.kind == "simulated" for site in facts):
            yield _at_prices_now(facts, ahead)
        else:
            yield price_sites(facts, moment or 0.0, ahead=ahead)


def _badness(quotes: Sequence[Quote], goal: Goal) -> Callable[[Quote], tuple[bool, float, float]]:
    """Return a sort key that orders quotes by the goal; quotes without a plan come last."""
    if len(quotes) == 1:
        return lambda quote: (False, 0.0, 0.0)
    plans = [quote.chosen for quote in quotes if quote.chosen is not None]
    dearest = max((plan.cost or 0.0 for plan in plans), default=0.0) or 1.0
    longest = max((plan.makespan or 0.0 for plan in plans), default=0.0) or 1.0
    weight = goal.trade_off
    if weight is None:
        weight = 0.0 if goal.deadline is None else 1.0

    def order(quote: Quote) -> tuple[bool, float, float]:
        plan = quote.chosen
        if plan is None or plan.cost is None or plan.makespan is None:
            return plan is None, math.inf, math.inf
        cost, time = plan.cost / dearest, plan.makespan / longest
        # Rounded, so that noise in the last digits does not decide between equals; the sum does.
        return False, round(weight * cost + (1 - weight) * time, 9), cost + time

    return order


def _at_prices_now(
    facts: tuple[SiteFacts, ...], ahead: Mapping[str, float]
) -> tuple[SiteFacts, ...]:
    """Return the sites at the prices that owners set by the use and payments of all runs here."""
    with known_owners() as owners:
        return price_sites(facts, time.time(), owners, ahead)


def resolve_campaign(campaign: Campaign | str | Path) -> Campaign:
    """Return the campaign that a caller's argument stands for."""
    if isinstance(campaign, Campaign):
        return campaign
    from bursar.formats.campaign_file import read_campaign

    return read_campaign(Path(campaign))


def _check_processors(processors: int, sites: Sequence[SiteFacts]) -> None:
    most = max(site.processors for site in sites)
    if not 1 <= processors <= most:
        raise InputError(
            f"processors must be between 1 and {most}, the most a site has, got {processors}"
        )


def _currency(campaign: Campaign, sites: Sequence[SiteFacts]) -> str | None:
    wanted = campaign.goal.currency
    known = sorted({site.currency for site in sites})
    if wanted is not None and wanted not in known:
        raise InputError(
            f"the budget is in {wanted}, the sites ask {' and '.join(known)}",
            where="budget",
            hint=f"state the budget in {known[0]}",
        )
    return wanted
