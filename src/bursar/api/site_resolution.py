"""Resolution of a caller's ``sites`` argument to sites."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.site import SiteFacts

RUNS = Path("runs")
"""Folder that holds the runs, unless another is named."""

Sites = str | Path | SiteFacts | Sequence[SiteFacts] | None
"""A sites file, one site, several, or None for this machine."""


def resolve_sites(sites: Sites, campaign: Campaign | None = None) -> tuple[SiteFacts, ...]:
    """
    Return the sites that a caller's argument stands for.

    Parameters
    ----------
    sites
        Path of a sites file, one site, or several; None: this machine.
    campaign
        Campaign that may limit how many of its tasks run at a time, and thereby the processors.

    Raises
    ------
    InputError
        When the file is wrong, or there is no site.
    """
    if sites is None:
        from bursar.sites.local import this_machine

        found: tuple[SiteFacts, ...] = (this_machine(),)
    elif isinstance(sites, str | Path):
        found = read_counted_sites(Path(sites))
    else:
        found = (sites,) if isinstance(sites, SiteFacts) else tuple(sites)
    if not found:
        raise InputError("no site is given; leave sites out for this machine")
    if campaign is None:
        return found
    tasks = campaign.workflow.tasks
    widest = max((task.processors for task in tasks), default=1)
    # What all tasks hold limits how many can run at a time; more processors would stand idle.
    names = {name for task in tasks[:1] for name in task.resources}
    least = {name: min(task.resources.get(name, 0) for task in tasks) for name in names}
    found = tuple(_with_resources(site, campaign.resources, least, widest) for site in found)
    limits = [] if campaign.at_once is None else [campaign.at_once]
    if all(site.kind in _BY_NUMBER for site in found):
        limits += [
            campaign.resources[name] // count
            for name, count in least.items()
            if count and name in campaign.resources
        ]
    return _within_limit(found, min(limits), widest) if limits else found


_BY_NUMBER = ("local", "batch", "ssh", "dask")
"""Kinds of sites of which any number of processors can be had; others offer slots."""


def _with_resources(
    site: SiteFacts, of_all: Mapping[str, int], least: Mapping[str, int], widest: int
) -> SiteFacts:
    """Return a site with the campaign's resources, and the processors that these can occupy."""
    # What a site itself states of a name holds there, too.
    resources = {**of_all, **site.resources}
    room = [
        resources[name] // count * widest
        for name, count in least.items()
        if 0 < count <= resources.get(name, 0) and site.kind in _BY_NUMBER
    ]
    return replace(site, resources=resources, processors=min([site.processors, *room]))


def read_counted_sites(path: Path) -> tuple[SiteFacts, ...]:
    """
    Read a sites file with what only the sites know: processors of hosts, prices of clouds.

    Raises
    ------
    InputError
        When the file is wrong.
    SiteError
        When no host of a site answers that has to be asked.
    """
    from bursar.formats.sites_toml import read_sites

    sites = _with_machine_prices(read_sites(path))
    if all(site.ssh is None for site in sites):
        return sites
    from bursar.api.queues import with_counted_hosts

    return with_counted_hosts(sites)


def _with_machine_prices(sites: tuple[SiteFacts, ...]) -> tuple[SiteFacts, ...]:
    """Return the sites, clouds with the prices that they, or dated tables, state now."""
    if all(site.cloud is None for site in sites):
        return sites
    from bursar.api.queues import run_outside_loop

    return tuple(
        site if site.cloud is None else run_outside_loop(partial(_run_priced, site))
        for site in sites
    )


def _run_priced(site: SiteFacts) -> SiteFacts:
    from bursar.sites.cloud.pricing import with_machine_prices

    return asyncio.run(with_machine_prices(site))


def with_learned(sites: tuple[SiteFacts, ...], runs: Path) -> tuple[SiteFacts, ...]:
    """Return the sites with the start-up times of workers that runs of a folder have seen."""
    if all(site.cloud is None and site.batch is None for site in sites):
        return sites
    from bursar.sites.start_ups import with_start_ups

    return tuple(with_start_ups(site, runs) for site in sites)


def _within_limit(sites: tuple[SiteFacts, ...], at_once: int, widest: int) -> tuple[SiteFacts, ...]:
    """
    Return the sites with the processors of so many tasks at a time, shared as evenly as they can.

    Sites that get nothing are left out.
    """
    left, shares = at_once, {}
    # The narrowest first, so that what these cannot use goes to the others.
    for at, site in enumerate(sorted(sites, key=lambda one: one.processors)):
        share = min(-(-left // (len(sites) - at)), site.processors // widest)
        shares[site.name] = share * widest
        left -= share
    if not any(shares.values()):
        return sites  # no site is wide enough, which is said elsewhere
    return tuple(replace(site, processors=shares[site.name]) for site in sites if shares[site.name])


def on_offer(sites: tuple[SiteFacts, ...]) -> tuple[SiteFacts, ...]:
    """
    Return the sites with the slots on offer now: the free slots of simulated sites and of batch
    queues, the processors that other Bursars sell, and the machines of clouds.

    Raises
    ------
    InputError
        When the log of a simulated site is wrong.
    SiteError
        When no site that was asked answers, and there is no other site.
    """
    if any((site.batch or site.remote) is not None and site.slots is None for site in sites):
        from bursar.api.queues import with_free_slots

        sites = with_free_slots(sites)
    if any(site.cloud is not None and site.slots is None for site in sites):
        from bursar.sites.cloud.machine_choice import machine_slots

        sites = tuple(
            site
            if site.cloud is None or site.slots is not None
            else replace(site, slots=machine_slots(site.name, site.cloud))
            for site in sites
        )
    if all(site.kind != "simulated" or site.slots is not None for site in sites):
        return sites
    from bursar.simulation.simulated_grid import SimulatedGrid

    return SimulatedGrid(sites).sites


# Processors of sites that runs of this machine share.


def free_now(campaign: Campaign, facts: Sequence[SiteFacts]) -> tuple[SiteFacts, ...]:
    """
    Return the sites with the processors that no other run holds, where some are free.

    Planning for these means that the run begins at once. A site that is all in use, or too
    narrow for some task, is planned whole: the run waits there.
    """
    from bursar.sites.owners import known_owners  # late: readers of sites files need no owners

    widest = max((task.processors for task in campaign.workflow.tasks), default=1)
    found = []
    with known_owners() as owners:
        for site in facts:
            free = site.processors
            if owners is not None and site.kind == "local" and not site.is_divided:
                free -= owners.others(site)
            found.append(replace(site, processors=free) if free >= widest else site)
    return tuple(found)


def notes_on_sharing(facts: Sequence[SiteFacts]) -> list[str]:
    """Return a line for each site of which other runs have a share that the plan leaves to us."""
    from bursar.sites.owners import known_owners

    with known_owners() as owners:
        if owners is None:
            return []
        divided = [site for site in facts if site.is_divided]
        return [
            f"{site.name}: {', '.join(who)} shares its {site.processors} processors; "
            "the forecast counts on all of them"
            for site in divided
            if (who := owners.who(site))
        ]


_NOT_THERE = {
    "advertised": "known by the slots it advertises only",
    "simulated": "simulated",
}


def check_runnable(sites: Sequence[SiteFacts]) -> None:
    """
    Refuse sites that can be planned on, and not run on.

    Raises
    ------
    InputError
        Naming the first of them.
    """
    for site in sites:
        if site.kind in _NOT_THERE:
            raise InputError(
                f'site "{site.name}" is {_NOT_THERE[site.kind]}: it can be planned on, not run on',
                where=f"site.{site.name}.kind",
                hint="see what would happen with bursar simulate",
            )
