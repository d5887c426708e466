"""``bursar auctions`` and ``bursar bid``, at a real service that holds short auctions."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.conftest import Folder
from tests.cli.test_json import documented, keys_of
from tests.service.service_process import served

AUCTIONS = """
[site]
processors = 4
unit_price = "3600 SU/core-hour"
[market]
credit = "1000 SU"
[[market.auctions]]
rule = "{rule}"
processors = 2
duration = 5
every = 3
lasts = 2
"""
"""Ten processor-seconds at one SU, whose floor is eight SU."""


OTHERS = ("share", "dutch", "first-price", "vickrey")


@pytest.fixture(
    scope="module",
    params=[
        "english",
        *(pytest.param(rule, marks=pytest.mark.ci) for rule in OTHERS),
    ],
)
def site(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Kind of the auctions, and URL of the service that holds them."""
    folder = tmp_path_factory.mktemp("house") / "state"
    with served(folder, AUCTIONS.format(rule=request.param)) as service:
        yield request.param, f"http://127.0.0.1:{service.port}"


@pytest.fixture
def here(folder: Folder, site: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("BURSAR_SITE", site[1])
    monkeypatch.setenv("BURSAR_SERVICES", str(folder.path / "services.toml"))
    return folder


def announced(here: Folder) -> dict[str, Any]:
    """The next auction."""
    lots = here.json("auctions")["auctions"]
    return next(lot for lot in lots if lot["state"] == "announced")


def test_a_lot_is_won_and_its_agreement_is_there(here: Folder, site: tuple[str, str]) -> None:
    """The only bidder pays what the rule says: the reserve of 8 SU, the clock's price, or 30."""
    lot = announced(here)
    won = here.json("bid", lot["id"], "30 SU")
    assert keys_of(won) <= documented("json.md"), keys_of(won) - documented("json.md")
    assert (won["auction"], won["processors"], won["limit"]) == (lot["id"], 2, 30_000_000)
    if site[0] == "dutch":  # the clock falls from 16 to 8 SU, and may have fallen a little
        assert 8_000_000 <= won["amount"] <= 16_000_000
    else:
        paid = {"english": 8, "first-price": 30, "vickrey": 8, "share": 30}[site[0]]
        assert won["amount"] == paid * 1_000_000
    deals = {a["id"]: a["deal"] for a in here.json("account", "agreements")["agreements"]}
    assert deals[won["agreement"]] == lot["id"]
    lots = {one["id"]: one for one in here.json("auctions")["auctions"]}
    assert lots[lot["id"]]["state"] == "sold"
    assert "sold" in here.bursar("auctions").stdout


@pytest.mark.ci
def test_a_bid_below_the_reserve_wins_nothing(here: Folder, site: tuple[str, str]) -> None:
    """Status 3; shares have no reserve."""
    status = 0 if site[0] == "share" else 3
    done = here.bursar("bid", announced(here)["id"], "5", status=status)
    assert ("won at" if site[0] == "share" else "lost: ") in done.stderr


def test_wrong_bids_are_one_line(here: Folder) -> None:
    refused = here.bursar("bid", "auction-9", "5", status=2)
    assert 'there is no auction "auction-9"' in refused.stderr
    assert "counts in SU" in here.bursar("bid", "auction-1", "5 EUR", status=2).stderr
    assert "AMOUNT: " in here.bursar("bid", "auction-1", "much", status=2).stderr


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("lasts = 3", "lasts: must be shorter than every"),
        ("processors = 9", "processors: 4 are sold at once"),
        ('reserve = "1 EUR/core-hour"', "reserve: is in EUR"),
        ('rule = "shout"', "rule: "),
        ("step = 0", "step: must be positive"),
    ],
)
def test_wrong_rules_of_auctions_are_named(folder: Folder, line: str, complaint: str) -> None:
    """With the file and the place."""
    key = line.partition(" ")[0]
    kept = AUCTIONS.format(rule="english").splitlines()
    at = kept.index("[[market.auctions]]")
    rule = [one for one in kept[at:] if not one.startswith(f"{key} =")]
    folder.write("s.toml", "\n".join([*kept[:at], *rule, line]) + "\n")
    refused = folder.bursar("serve", "-c", "s.toml", status=2)
    assert f"market.auctions[0].{complaint}" in refused.stderr


def test_shares_are_not_sold_where_the_owner_has_a_reserve(folder: Folder) -> None:
    """A single bid of nearly nothing would get all processors."""
    rules = AUCTIONS.format(rule="share").replace(
        "[market]", '[market]\nreserve = "1 SU/core-hour"'
    )
    folder.write("s.toml", rules)
    said = folder.bursar("serve", "-c", "s.toml", status=2).stderr
    assert "market.auctions[0]: sells at any price, which market.reserve forbids" in said
