"""Prices of several currencies in one sites file, by rates that are stated with their day."""

import datetime
from pathlib import Path

import pytest

from bursar.formats.exchange import ExchangeRateTable, ExchangeTable
from bursar.formats.sites_toml import read_sites
from bursar.model.errors import InputError
from bursar.model.money import ExchangeRate, Loyalty, Pricing
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot

HEAD = """\
[exchange]
currency = "EUR"
rates = [
  { currency = "SU", rate = 0.011, since = 2020-06-01 },
  { currency = "SU", rate = 0.012, since = 2020-11-01 },
  { currency = "SU", rate = 0.5, since = 2999-01-01 },
]
"""
SITES = """\
[site.uni]
kind = "local"
unit_price = "3600 SU/core-hour"
fixed_price = 2
[site.shop]
kind = "local"
unit_price = "0.5 EUR/core-hour"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "sites.toml"
    path.write_text(text)
    return path


def test_the_latest_rate_that_holds_applies(tmp_path: Path) -> None:
    """1 SU a processor-second at 0.012 EUR; the rate of the year 2999 does not hold yet."""
    uni, shop = read_sites(written(tmp_path, HEAD + SITES))
    assert (uni.currency, uni.unit_price, uni.fixed_price) == ("EUR", 0.012, 0.024)
    assert uni.exchange == ExchangeRate(currency="SU", rate=0.012, since="2020-11-01")
    assert (shop.currency, shop.exchange) == ("EUR", None)


def test_all_that_is_money_changes_and_nothing_else() -> None:
    table = ExchangeTable(
        currency="EUR",
        rates=(ExchangeRateTable(currency="SU", rate=0.5, since=datetime.date(2026, 1, 1)),),
    )
    slot = Slot(site="a", start=1.0, duration=9.0, processors=2, unit_price=4.0, fixed_price=6.0)
    facts = SiteFacts(
        name="a",
        unit_price=4.0,
        fixed_price=None,
        slots=(slot,),
        pricing=Pricing(4.0, (Loyalty(steps=((1000, 0.9),)),)),
    )
    found = table.converted(facts, datetime.date(2026, 1, 1))
    assert (found.unit_price, found.fixed_price) == (2.0, None)
    assert found.slots == (
        Slot(site="a", start=1.0, duration=9.0, processors=2, unit_price=2.0, fixed_price=3.0),
    )
    assert found.pricing == Pricing(2.0, (Loyalty(steps=((500, 0.9),)),))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("2020-11-01", '"soon"', r"rates\[1\].since: expected a day such as 2026-11-01"),
        ("rate = 0.012", "rate = 0", r"rates\[1\].rate: expected a number > 0"),
        ("rate = 0.012", "rate = inf", r"rates\[1\].*: expected a finite number"),
        ('"EUR"\nrates', '"e u"\nrates', "exchange.currency: a currency is named by"),
        ("2020-11-01", "2020-06-01", "a second rate of SU since 2020-06-01"),
        ('"SU", rate = 0.5', '"EUR", rate = 0.5', "expected another currency than EUR"),
        ("3600 SU", "1 USD", "site.uni.currency: counts in USD, and no exchange rate of USD"),
        ("2020-06-01 },\n", "2020-06-01, sign = 1 },\n", "sign"),
    ],
)
def test_bad_rates_are_refused_with_their_place(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    text = HEAD + SITES
    assert old in text
    with pytest.raises(InputError, match=said):
        read_sites(written(tmp_path, text.replace(old, new, 1)))


def test_a_rate_that_holds_later_is_named(tmp_path: Path) -> None:
    text = (HEAD + SITES).replace("2020-", "2998-")
    with pytest.raises(InputError, match="the first one holds from 2998-06-01 on"):
        read_sites(written(tmp_path, text))


def test_without_rates_all_sites_count_in_one_currency(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected one currency for all sites, or"):
        read_sites(written(tmp_path, SITES))


def test_a_service_is_paid_in_its_own_currency(tmp_path: Path) -> None:
    """Its agreements are; nothing in between changes money."""
    site = '[site.far]\nkind = "remote"\nurl = "https://far:1"\nprocessors = 2\n'
    with pytest.raises(InputError, match="paid by agreements in its service's currency, SU"):
        read_sites(written(tmp_path, HEAD + site))
