"""``bursar schema``: the JSON Schemas of the files Bursar reads."""

from enum import StrEnum
from typing import Annotated

import typer


class Which(StrEnum):
    """Files that have a schema."""

    CAMPAIGN = "campaign"
    SITES = "sites"


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("schema")(show_schema)


def show_schema(
    which: Annotated[Which, typer.Argument(help="Which file's schema.")] = Which.CAMPAIGN,
) -> None:
    """Print the JSON Schema of campaign or sites files."""
    from bursar.cli.output import print_json
    from bursar.formats import schema

    print_json(schema.campaign_schema() if which is Which.CAMPAIGN else schema.sites_schema())
