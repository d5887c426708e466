"""One rule says what a currency may be called, wherever a name is read or given."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bursar.cli.main import app
from bursar.formats.campaign_file import campaign_schema, read_campaign
from bursar.formats.sites_toml import read_sites, sites_schema
from bursar.formats.units import parse_amount, parse_price
from bursar.market.accounts import Accounts
from bursar.market.agreement import DealTemplate, Terms
from bursar.market.book import Book, read_book
from bursar.model.campaign import Goal
from bursar.model.money import check_currency
from bursar.model.site import SiteFacts

GOOD = ("SU", "EUR", "G$", "US$", "kSU-2", "a@b.c", "A" * 32)
BAD = ("", " ", "4U", "$G", "S U", "S\nU", "EUR/h", "€", "A" * 33, "SU,", "Ä")


def by_site_file(name: str, folder: Path) -> str:
    file = folder / "sites.toml"
    file.write_text(f"[site.a]\nunit_price = 1\ncurrency = {json.dumps(name)}\n")
    return read_sites(file)[0].currency


def by_price(name: str, folder: Path) -> str:
    file = folder / "sites.toml"
    file.write_text(f"[site.a]\nunit_price = {json.dumps(f'2 {name}/core-hour')}\n")
    return read_sites(file)[0].currency


def by_campaign_file(name: str, folder: Path) -> str:
    file = folder / "c.toml"
    budget = json.dumps(f"40 {name}")
    file.write_text(f'[campaign]\ncommand = "true"\n[goal]\nbudget = {budget}\n')
    found = read_campaign(file).goal.currency
    assert found is not None
    return found


def by_ledger_open(name: str, folder: Path) -> str:
    book = folder / "test.book"
    words = ["ledger", "open", "ann", "--currency", name, "--quota", f"5 {name}", "--json"]
    result = CliRunner(env={"BURSAR_BOOK": str(book)}).invoke(app, words)
    if isinstance(result.exception, ValueError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return read_book(book).accounts.currency


def by_book(name: str, folder: Path) -> str:
    with Book(folder / "direct.book", currency=name) as book:
        return book.currency


ENTRIES: dict[str, Callable[[str, Path], str]] = {
    "rule": lambda name, _: check_currency(name),
    "site file, currency": by_site_file,
    "site file, price": by_price,
    "campaign file": by_campaign_file,
    "bursar ledger open": by_ledger_open,
    "book": by_book,
    "accounts": lambda name, _: Accounts(name).currency,
    "site": lambda name, _: SiteFacts(name="a", currency=name).currency,
    "goal": lambda name, _: str(Goal(budget=1.0, currency=name).currency),
    "deal template": lambda name, _: DealTemplate(processors=1, seconds=1, currency=name).currency,
    "terms": lambda name, _: (
        Terms(processors=1, start=0, seconds=1, unit_price=1, currency=name).currency
    ),
    "amount": lambda name, _: str(parse_amount(f"40 {name}")[1]),
    "price": lambda name, _: str(parse_price(f"40 {name}/core-hour")[1]),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_reader_takes_the_same_currency_names(entry: str, tmp_path: Path) -> None:
    """A currency that one command takes and another refuses leaves money nobody can book."""
    for number, name in enumerate(GOOD):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert ENTRIES[entry](name, folder) == name


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_reader_refuses_the_same_currency_names(entry: str, tmp_path: Path) -> None:
    """An amount that names no currency, or a price with a unit, is another thing: left out."""
    written = entry in {"amount", "price", "campaign file", "site file, price"}
    for number, name in enumerate(BAD):
        if written and (not name.strip() or name == "EUR/h"):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ValueError, match=r"\S"):
            ENTRIES[entry](name, folder)
        assert not list(folder.glob("*.book")), name


def test_the_schemas_hold_the_rule() -> None:
    """An editor that checks by the schema marks what the readers refuse, and nothing else."""
    known = sites_schema()["$defs"]
    tables = [t["properties"] for n, t in known.items() if "SiteTable" in n]
    assert {table["currency"]["$ref"] for table in tables} == {"#/$defs/CurrencyName"}
    rule = known["CurrencyName"]["pattern"]
    for name in GOOD:
        assert re.search(rule, name), name
    for name in BAD:
        assert not re.search(rule, name), name
    amount = campaign_schema()["$defs"]["Amount"]
    (written,) = [p["pattern"] for p in amount["anyOf"] if "pattern" in p]
    assert re.search(written, "40 G$")
    assert not re.search(written, "40 €")
