"""``bursar schema``: the JSON Schemas of the files Bursar reads."""

from enum import StrEnum
from typing import Annotated

import typer


class SchemaFile(StrEnum):
    """Files that have a schema."""

    CAMPAIGN = "campaign"
    SITES = "sites"
    SERVICE = "service"


def register(app: typer.Typer) -> None:
    """Add ``bursar schema`` to the command line."""
    app.command("schema")(show_schema)


def show_schema(
    which: Annotated[
        SchemaFile, typer.Argument(help="File whose schema is printed.")
    ] = SchemaFile.CAMPAIGN,
) -> None:
    """Print the JSON Schema of campaign, sites or service files."""
    from bursar.cli.options import print_json
    from bursar.formats.campaign_file import campaign_schema
    from bursar.formats.sites_toml import sites_schema
    from bursar.service.config_toml import service_schema

    made = {
        SchemaFile.CAMPAIGN: campaign_schema,
        SchemaFile.SITES: sites_schema,
        SchemaFile.SERVICE: service_schema,
    }
    print_json(made[which]())
