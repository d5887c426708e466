"""``bursar sites`` and ``bursar match``: what one may use, and which of it suits the jobs."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from bursar.cli.options import (
    Alpha,
    AsJson,
    Beta,
    CampaignPath,
    CatalogueFile,
    Choice,
    SitesPath,
    WeightsFile,
)
from bursar.model.errors import SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts

# ``bursar match``: which sites match the jobs of a campaign, and how they rank.


def register_match(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("match")(match_campaign)


def match_campaign(
    campaign: CampaignPath,
    sites: SitesPath = None,
    task: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Show only this task. Default: one task of each kind."),
    ] = None,
    catalogue: CatalogueFile = None,
    choice: Choice = None,
    alpha: Alpha = None,
    beta: Beta = None,
    weights: WeightsFile = None,
    as_json: AsJson = False,
) -> None:
    """Show which sites match a campaign's jobs, how they rank, and why others do not match."""
    from bursar.api.matching import match
    from bursar.cli.load import brokering
    from bursar.cli.output import print_json
    from bursar.model.errors import InputError

    settings = brokering(choice=choice, alpha=alpha, beta=beta, weights=weights, refresh=None)
    try:
        matches = match(campaign, sites, broker=settings, catalogue=catalogue, task=task)
    except InputError as error:
        if error.where == "task":
            raise InputError(error.message, where="--task", hint=error.hint) from None
        raise
    if as_json:
        print_json(matches.to_dict())
    else:
        matches.print()
    raise typer.Exit(matches.exit_status)


# ``bursar sites``: what one may use.

SiteAnswer = SiteStatus | SiteError | None


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("sites")(show_sites)


def show_sites(sites: SitesPath = None, as_json: AsJson = False) -> None:
    """Show the sites with processors and prices, and the state of those that can be queried."""
    from bursar.cli.load import load_sites
    from bursar.cli.output import print_json

    facts, answers = _asked(load_sites(sites))
    now = _prices_now(facts)
    if as_json:
        print_json(
            {
                "sites": [
                    _as_dict(site)
                    | {"price_now": now[site.name]}
                    | _status_fields(answers[site.name])
                    for site in facts
                ]
            }
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("site", "kind", "processors", "free", "wait", "speed", "price", "fixed", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for site in facts:
        table.add_row(
            site.name,
            site.kind if site.batch is None else site.batch.manager,
            str(site.processors),
            *_shown(answers[site.name]),
            f"{site.speed:g}",
            _price(now[site.name], 3600, f"{site.currency}/processor-hour")
            + ("" if site.pricing is None else " now"),
            _price(site.fixed_price, 1, f"{site.currency}/slot"),
        )
    Console().print(table)
    for answer in answers.values():
        if isinstance(answer, SiteError):
            Console(stderr=True).print(str(answer), markup=False, highlight=False)


def _prices_now(sites: Sequence[SiteFacts]) -> dict[str, float | None]:
    """Return the present price of each site, by name."""
    if all(site.pricing is None for site in sites):
        return {site.name: site.unit_price for site in sites}
    from bursar.broker.trading import price_sites
    from bursar.sites.owners import known_owners

    with known_owners() as owners:
        return {site.name: site.unit_price for site in price_sites(sites, time.time(), owners)}


def _asked(sites: Sequence[SiteFacts]) -> tuple[list[SiteFacts], dict[str, SiteAnswer]]:
    """
    Return the sites, each with its answer or the reason for none; None where a site has no query.
    """
    from bursar.sites.local import LocalSite
    from bursar.sites.owners import known_owners

    known = {site.name: site for site in sites}
    with known_owners() as owners:
        answers: dict[str, SiteAnswer] = {
            site.name: LocalSite(site, places=owners).status() if site.kind == "local" else None
            for site in sites
        }
    if any((site.batch or site.remote or site.dask) is not None for site in sites):
        from bursar.api.queues import query_sites

        for name, answer in query_sites(sites).items():
            if isinstance(answer, SiteError):
                answers[name] = answer
            else:
                known[name], answers[name] = answer
    return list(known.values()), answers


def _shown(status: SiteAnswer) -> tuple[str, str]:
    """Free processors and traversal time, for the table."""
    if isinstance(status, SiteError):
        return "no answer", "unknown"
    if status is None:
        return "unknown", "unknown"
    wait = status.traversal_time
    return str(status.free_processors), "unknown" if wait is None else f"{wait:g} s"


def _status_fields(status: SiteAnswer) -> dict[str, Any]:
    """Status fields of the JSON output, for scripts."""
    error = str(status) if isinstance(status, SiteError) else None
    if isinstance(status, SiteError):
        status = None
    return {
        "error": error,
        "free_processors": None if status is None else status.free_processors,
        "traversal_time_s": None if status is None else status.traversal_time,
        "free_memory": None if status is None else status.free_memory,
    }


def _price(price: float | None, times: float, unit: str) -> str:
    return "unknown" if price is None else f"{price * times:.6g} {unit}"


def _as_dict(site: SiteFacts) -> dict[str, Any]:
    return {
        "name": site.name,
        "kind": site.kind if site.batch is None else site.batch.manager,
        "processors": site.processors,
        "speed": site.speed,
        "unit_price": site.unit_price,
        "fixed_price": site.fixed_price,
        "currency": site.currency,
        "memory": site.memory,
        "trust": None if site.remote is None else site.remote.trust,
    }
