"""Owners inside a run: bargained with and called for tenders, by plans, strategies and pools."""

import json
from typing import Any

import pytest
from tests.cli.conftest import Folder
from tests.cli.test_json import documented, keys_of

CAMPAIGN = """\
[campaign]
name = "c"
command = "sleep 0.1 && echo {x}"
[parameters]
x = [1, 2, 3, 4, 5, 6]
[task]
runtime = 0.1
"""

SITES = """\
[site.cheap]
processors = 2
unit_price = "3600 SU/core-hour"
market = "bargain"
floor = 0.5
[site.dear]
processors = 1
unit_price = "7200 SU/core-hour"
market = "tender"
"""
"""One SU a processor-second, and two; the cheap owner goes down to half a SU."""


@pytest.fixture
def here(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """With a campaign of six short jobs and two owners, whose book is the folder's own."""
    monkeypatch.setenv("BURSAR_OWNERS", str(folder.path / "owners.sqlite"))
    folder.write("c.toml", CAMPAIGN)
    folder.write("s.toml", SITES)
    return folder


def deals_of(here: Folder, run: str) -> list[dict[str, Any]]:
    """Every negotiation that brought a processor to a job of the run."""
    found = []
    for number in range(6):
        answer = here.json("why", run, f"c-{number}")
        assert keys_of(answer) <= documented("json.md"), keys_of(answer) - documented("json.md")
        found += [deal for placed in answer["placed"] for deal in placed["deals"]]
    return found


def check_prices(here: Folder, run: str, deals: list[dict[str, Any]]) -> None:
    """Each deal keeps floor and limit, and each lease costs what was agreed for it."""
    bill = json.loads((here.path / "runs" / run / "bill.json").read_text())
    assert {deal["site"] for deal in deals} == {"cheap", "dear"}
    for deal in deals:
        posted = {"cheap": 1e6, "dear": 2e6}[deal["site"]] * deal["processors"] * deal["seconds"]
        if deal["site"] == "dear":
            assert (deal["market"], deal["amount"]) == ("tender", pytest.approx(posted, abs=2))
        else:
            assert deal["market"] == "bargain"
            assert 0.5 * posted - 2 <= deal["amount"] <= 0.9 * posted
        assert deal["limit"] is None or deal["amount"] <= deal["limit"]
    for lease in bill["leases"]:
        (unit,) = {
            round(deal["amount"] / deal["processors"] / deal["seconds"] / 1e6, 3)
            for deal in deals
            if deal["site"] == lease["site"]
        }
        held = lease["total_micros"] / 1e6 / unit
        assert held == pytest.approx(lease["processors"] * lease["seconds"], rel=0.01)


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param((), id="plan"),
        pytest.param(("--provisioning", "dynamic"), id="pool"),
        pytest.param(("--strategy", "cost", "--deadline", "1m"), id="strategy"),
        pytest.param(("--strategy", "adaptive", "--budget", "100"), id="adaptive"),
    ],
)
@pytest.mark.parametrize("command", ["run", "simulate"])
def test_processors_are_bought_by_the_market_of_their_site(
    here: Folder, command: str, policy: tuple[str, ...]
) -> None:
    """The lease costs what was agreed, and ``bursar why`` tells how that came about."""
    here.bursar(command, "c.toml", "--sites", "s.toml", "--name", "r", *policy)
    deals = deals_of(here, "r")
    check_prices(here, "r", deals)
    shown = here.bursar("why", "r", "c-0").stdout
    assert "bargaining: agreed on" in shown or "tender: agreed on" in shown
    assert "next best: none" in shown


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_a_pool_awards_a_request_to_the_lowest_bidder(here: Folder, command: str) -> None:
    """The site that the pool asks first is undercut by one whose price falls with the amount."""
    here.write("two.toml", CAMPAIGN.replace("[1, 2, 3, 4, 5, 6]", "[1, 2]"))
    here.write(
        "bulk.toml",
        '[site.plain]\nprocessors = 2\nunit_price = "3600 SU/core-hour"\nmarket = "tender"\n'
        '[site.bulk]\nprocessors = 2\nunit_price = "3700 SU/core-hour"\nmarket = "tender"\n'
        '[[site.bulk.price]]\nkind = "bulk"\nsteps = [["62 core-seconds", 0.5]]\n'
        "[site.slow]\nspeed = 0.5\nunit_price = 1\n"
        'market = "tender"\nprocessors = 2\n',
    )
    words = ("two.toml", "--sites", "bulk.toml", "--name", "r", "--provisioning", "dynamic")
    here.bursar(command, *words)
    placed = here.json("why", "r", "c-0")["placed"]
    (deal,) = (deal for one in placed for deal in one["deals"])
    answers = {a["owner"]: (a["state"], a["price"]) for a in deal["answers"]}
    assert set(answers) == {"plain", "bulk"}  # a slower site is no substitute
    whole = deal["processors"] * deal["seconds"]
    bids = {"plain": whole * 1e6, "bulk": whole * 3700 / 3600 * (0.5 if whole >= 62 else 1) * 1e6}
    assert {owner: price for owner, (_, price) in answers.items()} == pytest.approx(bids, abs=2)
    assert deal["site"] == min(bids, key=bids.__getitem__)
    assert deal["next_best"] == max(bids, key=bids.__getitem__)
    bill = json.loads((here.path / "runs" / "r" / "bill.json").read_text())
    assert {lease["site"] for lease in bill["leases"]} == {deal["site"]}


def test_the_market_of_the_command_line_is_that_of_all_sites(here: Folder) -> None:
    """A site without a market of its own gets one, and a posted price is asked for as ever."""
    here.write("plain.toml", '[site.here]\nprocessors = 1\nunit_price = "3600 SU/core-hour"\n')
    words = ("simulate", "c.toml", "--sites", "plain.toml")
    bargained = here.json(*words, "--market", "bargain")["cost"]
    posted = here.json(*words)["cost"]
    assert 0.8 * posted <= bargained < posted
    here.write("both.toml", SITES)
    here.bursar("run", "c.toml", "--sites", "both.toml", "--market", "posted", "--name", "p")
    assert deals_of(here, "p") == []


def test_a_reserve_price_below_the_floor_buys_nothing(here: Folder) -> None:
    """A plan is not begun; a strategy leaves the owner out and goes on at the other."""
    text = SITES.replace("floor = 0.5", 'reserve_price = "1000 SU/core-hour"')
    here.write("low.toml", text)
    planned = here.bursar("run", "c.toml", "--sites", "low.toml", "--name", "p", status=None)
    assert planned.returncode != 0
    assert "cheap: no agreement: is too little" in planned.stderr
    words = ("--strategy", "cost", "--deadline", "1m", "--name", "s")
    sent = here.bursar("run", "c.toml", "--sites", "low.toml", *words)
    assert "cheap is left out: cheap: is too little" in sent.stderr
    bill = json.loads((here.path / "runs" / "s" / "bill.json").read_text())
    assert {lease["site"] for lease in bill["leases"]} == {"dear"}


def test_a_run_plans_with_its_reserve_price(here: Folder) -> None:
    """The most that bargaining can come to is what the plan costs, and what is held."""
    text = SITES.replace("floor = 0.5", 'floor = 0.5\nreserve_price = "2700 SU/core-hour"')
    here.write("mid.toml", text)
    options = here.json("plan", "c.toml", "--sites", "mid.toml")["front"]
    cheapest = min(option["cost"] for option in options)
    assert cheapest == pytest.approx(6 * 0.1 * 0.75)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('reserve_price = "1 SU/core-hour"', "site.here.reserve_price: goes with market"),
        ('market = "auction"', "site.here.market: "),
        ('market = "bargain"', "site.here.market: negotiates a unit_price"),
        ('unit_price = 1\nmarket = "bargain"\nfixed_price = 1', "fixed_price: is no part"),
        ("floor = 2", "site.here.floor: "),
        ("market_patience = 0", "site.here.market_patience: must be positive"),
        (
            'kind = "remote"\nurl = "http://127.0.0.1:1"\nprocessors = 1\nfloor = 0.5',
            "floor: is up",
        ),
        ('unit_price = 1\nmarket = "tender"\nshared = true', "shared: processors whose prices"),
    ],
)
def test_wrong_keys_are_named(here: Folder, line: str, complaint: str) -> None:
    here.write("wrong.toml", f"[site.here]\n{line}\n")
    refused = here.bursar("plan", "c.toml", "--sites", "wrong.toml", status=2)
    assert complaint in refused.stderr


def test_a_fixed_price_is_not_bargained_about(here: Folder) -> None:
    here.write("fixed.toml", "[site.here]\nunit_price = 1\nfixed_price = 2\n")
    words = ("plan", "c.toml", "--sites", "fixed.toml", "--market", "bargain")
    assert "--market: here has a fixed price" in here.bursar(*words, status=2).stderr


def test_agreements_of_a_killed_run_are_given_back(here: Folder) -> None:
    """What the earlier process had agreed on does not stand in the way of the resumed one."""
    gate = f"until test -e {here.path / 'go'}; do sleep 0.05; done"
    here.write("long.toml", CAMPAIGN.replace("sleep 0.1", gate))
    process = here.start("run", "long.toml", "--sites", "s.toml", "--name", "k")
    here.until(lambda: (here.path / "runs" / "k" / "journal.sqlite").exists(), process)
    here.until(lambda: "running" in here.bursar("runs").stdout, process)
    process.kill()
    process.wait()
    here.write("go", "")
    here.bursar("run", "--resume", "k")
    assert {deal["site"] for deal in deals_of(here, "k")} <= {"cheap", "dear"}
