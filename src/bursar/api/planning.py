"""From a campaign and its sites to a proposal."""

import time
from collections.abc import Sequence
from pathlib import Path

from bursar.api.brokering import suitable
from bursar.api.proposal import Proposal
from bursar.api.sites import Sites, on_offer, resolve_sites
from bursar.broker.trading import at_prices
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.planning.limits import Limits, OnProgress
from bursar.planning.policy import Method, Scheduler
from bursar.sites.owners import known_owners


def plan(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    processors: int | None = None,
    method: Method = "auto",
    scheduler: Scheduler = "heft",
    whole: bool = False,
    limits: Limits | None = None,
    on_progress: OnProgress | None = None,
    moment: float | None = None,
) -> Proposal:
    """
    What a campaign would take: time against cost, before anything starts.

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
        Told the front so far.
    moment
        When the plan begins, seconds since the epoch: owners' prices follow it. None: now; 0
        where a site is simulated.

    Returns
    -------
    Proposal
        The trade-off curve, its lower bounds, and the plan the goal picks.
        In a notebook it shows itself as a chart.

    Raises
    ------
    InputError
        When a file is wrong, no plan holds every task, or no site meets what all require.
    """
    from bursar.planning.choice import choose
    from bursar.planning.front import trade_off

    campaign = resolve_campaign(campaign)
    facts = suitable(campaign, on_offer(resolve_sites(sites)))
    if any(site.pricing is not None for site in facts):
        if moment is None and not any(site.kind == "simulated" for site in facts):
            facts = _at_prices_now(facts)
        else:
            facts = at_prices(facts, moment or 0.0)
    if processors is not None:
        _check_processors(processors, facts)
    currency = _currency(campaign, facts)
    front = trade_off(
        campaign.workflow,
        facts,
        method=method,
        scheduler=scheduler,
        goal=campaign.goal,
        processors=None if processors is None else (processors,),
        currency=currency,
        whole=whole,
        limits=limits,
        on_progress=on_progress,
    )
    return Proposal(campaign=campaign, front=front, choice=choose(front, campaign.goal))


def _at_prices_now(facts: tuple[SiteFacts, ...]) -> tuple[SiteFacts, ...]:
    """Prices as owners set them by what all runs on this machine have used and paid."""
    with known_owners() as owners:
        return at_prices(facts, time.time(), owners)


def resolve_campaign(campaign: Campaign | str | Path) -> Campaign:
    """The campaign meant."""
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
