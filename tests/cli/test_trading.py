"""``bursar quote``, ``tender`` and ``bargain``, with two real services of one name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Folder
from tests.cli.test_json import documented, keys_of
from tests.service.service_process import Served, free_port, served

SELLS = """
[site]
processors = {processors}
unit_price = "{price} SU/core-hour"
[market]
holds = true
floor = {floor}
credit = "1000 SU"
"""


@pytest.fixture(scope="module")
def sellers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """A cheap owner with one processor, and a dear one with two; both call themselves "here"."""
    folder = tmp_path_factory.mktemp("sellers")
    cheap = SELLS.format(processors=1, price=3600, floor=0.8)
    dear = SELLS.format(processors=2, price=7200, floor=0.25)
    with served(folder / "a", cheap) as a, served(folder / "b", dear) as b:
        yield {"cheap": a, "dear": b}


@pytest.fixture
def here(folder: Folder, sellers: dict[str, Served], monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder whose services file names both."""
    text = "".join(
        f'[service.{name}]\nurl = "http://127.0.0.1:{one.port}"\n' for name, one in sellers.items()
    )
    folder.write("services.toml", text)
    monkeypatch.setenv("BURSAR_SERVICES", str(folder.path / "services.toml"))
    monkeypatch.delenv("BURSAR_SITE", raising=False)
    return folder


def answers(result: dict[str, Any]) -> dict[str, Any]:
    """What each owner answered, by name."""
    return {answer["owner"]: answer for answer in result["answers"]}


def give_back(here: Folder, owner: str, agreement: str) -> None:
    """End an agreement; it must be there and have cost nothing before its start."""
    (ended,) = here.json("account", "cancel", agreement, "--site", owner)["agreements"]
    assert (ended["state"], ended["held"]) == ("cancelled", 0)


LATER = ("--start", "10m")
"""Agreements that have not begun are given back for nothing."""


def test_quotes_of_all_services_are_compared(here: Folder) -> None:
    """The cheapest first; nothing is bought, and nobody's processors stay set aside."""
    found = here.json("quote", "-p", "1", "--for", "10s", *LATER)
    assert [(a["owner"], a["state"], a["price"]) for a in found["answers"]] == [
        ("cheap", "offered", 10_000_000),
        ("dear", "offered", 20_000_000),
    ]
    assert (found["agreement"], found["next_best"], found["currency"]) == ("", "cheap", "SU")
    assert keys_of(found) <= documented("json.md"), keys_of(found) - documented("json.md")
    again = here.json("quote", "-p", "1", "--for", "10s", *LATER)
    assert answers(again)["cheap"]["state"] == "offered"  # the first quote no longer holds it
    shown = here.bursar("quote", "-p", "1", "--for", "10s", *LATER)
    assert "cheap" in shown.stdout
    assert "best: cheap, 10 SU" in shown.stderr


def test_a_quote_is_bought_within_the_limit(here: Folder) -> None:
    """The cheapest; above the limit nothing is, and the status says so."""
    done = here.bursar("quote", "-p", "1", "--for", "10s", *LATER, "--buy", "--most", "10 SU")
    assert "agreed with cheap: 1 processors for 10 s, 10 SU" in done.stderr
    give_back(here, "cheap", done.stdout.strip())
    dear = ("quote", "-p", "1", "--for", "10s", *LATER, "--buy", "--most", "9.99")
    found = here.json(*dear, status=3)
    assert {a["reason"] for a in found["answers"]} == {"we refused: is too dear"}


def test_a_tender_goes_to_the_lowest_bid_that_will_do(here: Folder) -> None:
    """Who has too few processors refuses with the reason; the loser is the next best."""
    one = here.json("tender", "-p", "1", "--for", "10s", *LATER)
    assert (one["owner"], one["amount"], one["next_best"]) == ("cheap", 10_000_000, "dear")
    two = here.json("tender", "-p", "2", "--for", "10s", *LATER)
    assert (two["owner"], two["amount"], two["next_best"]) == ("dear", 40_000_000, None)
    assert answers(two)["cheap"]["reason"] == "has 1 processors"
    give_back(here, "cheap", one["agreement"])
    give_back(here, "dear", two["agreement"])


def test_bargaining_ends_between_the_two_reserves(here: Folder) -> None:
    """Below the posted price, not below the owner's floor, and never above the limit."""
    found = here.json("bargain", "-p", "1", "--for", "10s", *LATER)
    assert found["owner"] == "cheap"
    assert 8_000_000 <= found["amount"] < 10_000_000
    row = answers(found)["cheap"]
    assert (row["first"], row["price"]) == (10_000_000, found["amount"])
    assert found["next_best"] == "dear"
    give_back(here, "cheap", found["agreement"])


def test_bargaining_goes_on_with_the_next_owner(here: Folder) -> None:
    """Who quotes more may have the lower floor: 20 x 0.25 is less than 10 x 0.8."""
    found = here.json("bargain", "-p", "1", "--for", "10s", *LATER, "--most", "7 SU")
    assert (found["owner"], answers(found)["cheap"]["state"]) == ("dear", "refused")
    assert 5_000_000 <= found["amount"] <= 7_000_000
    give_back(here, "dear", found["agreement"])
    nothing = here.json("bargain", "-p", "1", "--for", "10s", *LATER, "--most", "2", status=3)
    assert {a["state"] for a in nothing["answers"]} == {"refused"}


def test_a_service_that_is_away_does_not_stop_the_others(here: Folder, sellers: Any) -> None:
    """Its row says why; where nobody answers the command says so in a line."""
    away = f"http://127.0.0.1:{free_port()}"
    url = f"http://127.0.0.1:{sellers['dear'].port}"
    asked = ("-p", "1", "--for", "10s", *LATER, "--patience", "1s")
    found = here.json("tender", *asked, "--site", url, "--site", away)
    rows = answers(found)
    # A URL that the services file has is called by its name there.
    assert (found["owner"], rows[away.removeprefix("http://")]["state"]) == ("dear", "silent")
    give_back(here, "dear", found["agreement"])
    refused = here.bursar("quote", *asked, "--site", away, status=1)
    assert "127.0.0.1" in refused.stderr


def test_the_services_of_a_sites_file(here: Folder, sellers: Any) -> None:
    here.write(
        "s.toml",
        '[site.local]\nprocessors = 1\n[site.far]\nkind = "remote"\nprocessors = 2\n'
        f'url = "http://127.0.0.1:{sellers["dear"].port}"\n',
    )
    found = here.json("quote", "-p", "1", "--for", "10s", "--sites", "s.toml")
    assert [a["owner"] for a in found["answers"]] == ["far"]
    here.write("none.toml", "[site.local]\nprocessors = 1\n")
    refused = here.bursar("quote", "-p", "1", "--for", "9s", "--sites", "none.toml", status=2)
    assert 'none.toml: has no site of kind "remote"' in refused.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("quote", "-p", "1", "--for", "soon"), "--for: "),
        (("quote", "-p", "1", "--for", "0s"), "--for: expected more than no time"),
        (("tender", "-p", "1", "--for", "1h", "--deadline", "5m"), "--deadline: leaves too"),
        (("bargain", "-p", "1", "--for", "1h", "--first", "2", "--most", "1"), "--first: "),
        (("bargain", "-p", "1", "--for", "1h", "--first", "2 EUR", "--most", "3 SU"), "is in EUR"),
        (("tender", "-p", "1", "--for", "1h", "--patience", "0"), "--patience: "),
        (("quote", "-p", "1", "--for", "1h", "--site", "dera"), 'did you mean "dear"'),
        (("quote", "-p", "1", "--for", "1h", "--site", "dear", "--site", "dear"), "named twice"),
    ],
)
def test_bad_input_is_one_line(here: Folder, words: tuple[str, ...], complaint: str) -> None:
    """With what is wrong and where, and status 2."""
    refused = here.bursar(*words, status=2)
    assert complaint in refused.stderr
    assert len(refused.stderr.strip().splitlines()) <= 2


def test_a_currency_that_a_service_does_not_count_in(here: Folder) -> None:
    """Each refuses by itself."""
    found = here.json("quote", "-p", "1", "--for", "9s", "--most", "100 EUR", "--buy", status=3)
    assert {a["reason"] for a in found["answers"]} == {"counts in EUR, expected SU"}


def test_an_agreement_made_by_hand_runs_tasks(here: Folder) -> None:
    """What was bargained for is used by its id, and given back."""
    made = here.json("bargain", "-p", "1", "--for", "60s", "--site", "dear")
    words = ("submit", "--site", "dear", "--agreement", made["agreement"], "--wait")
    assert "1 succeeded" in here.bursar(*words, "--", "true").stdout
    (ended,) = here.json("account", "cancel", made["agreement"], "--site", "dear")["agreements"]
    assert 0 < ended["charged"] < made["amount"]
    (line,) = here.json("account", "invoice", "--site", "dear")["lines"]
    assert (line["what"], line["amount"]) == (made["agreement"], ended["charged"])


def test_without_a_service_the_command_says_how_to_name_one(here: Folder, tmp_path: Path) -> None:
    none = {"BURSAR_SERVICES": str(tmp_path / "no")}
    refused = here.bursar("quote", "-p", "1", "--for", "9s", status=2, env=none)
    assert "--site: name a service" in refused.stderr
