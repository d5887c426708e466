"""``bursar sites``: what one may use."""

from typing import Any

import typer

from bursar.cli.options import AsJson, SitesPath
from bursar.model.site import SiteFacts


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("sites")(show_sites)


def show_sites(sites: SitesPath = None, as_json: AsJson = False) -> None:
    """Show the sites with their processors and prices."""
    from bursar.cli.load import load_sites
    from bursar.cli.output import print_json

    facts = load_sites(sites)
    if as_json:
        print_json({"sites": [_as_dict(site) for site in facts]})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("site", "kind", "processors", "speed", "price", "fixed", box=None)
    for column in table.columns[2:]:
        column.justify = "right"
    for site in facts:
        table.add_row(
            site.name,
            site.kind,
            str(site.processors),
            f"{site.speed:g}",
            _price(site.unit_price, 3600, f"{site.currency}/processor-hour"),
            _price(site.fixed_price, 1, f"{site.currency}/slot"),
        )
    Console().print(table)


def _price(price: float | None, times: float, unit: str) -> str:
    return "unknown" if price is None else f"{price * times:.6g} {unit}"


def _as_dict(site: SiteFacts) -> dict[str, Any]:
    return {
        "name": site.name,
        "kind": site.kind,
        "processors": site.processors,
        "speed": site.speed,
        "unit_price": site.unit_price,
        "fixed_price": site.fixed_price,
        "currency": site.currency,
        "memory": site.memory,
    }
