"""``bursar owner`` at a real service: status, price, agreements and revenue, over restarts."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from tests.cli.conftest import Folder
from tests.cli.test_json import documented, keys_of
from tests.service.service_process import Served, served

SELLS = """
[site]
processors = 2
unit_price = "3600 SU/core-hour"
[[site.price]]
kind = "loyalty"
steps = [[1000, 0.5]]
[market]
credit = "1000 SU"
penalty = 0.25
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Sells two processors for one SU a second."""
    with served(tmp_path_factory.mktemp("owner") / "state", SELLS) as one:
        yield one


@pytest.fixture
def here(folder: Folder, service: Served, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setenv("BURSAR_SITE", f"http://127.0.0.1:{service.port}")
    monkeypatch.setenv("BURSAR_SERVICES", str(folder.path / "services.toml"))
    return folder


@pytest.mark.ci
def test_the_price_is_changed_and_kept_over_a_restart(here: Folder, service: Served) -> None:
    """Its rules stay, agreements keep theirs, and a kill right after the answer loses nothing."""
    before = here.json("owner", "price")
    assert set(before) <= documented("json.md")
    assert (before["base"], before["currency"]) == (1.0, "SU")
    assert [rule["kind"] for rule in before["rules"]] == ["loyalty"]
    agreed = here.bursar("account", "buy", "-p", "1", "--for", "1h", "--most", "4000", status=2)
    assert "the account has" in agreed.stderr
    assert here.json("owner", "price", "7200 SU/core-hour")["base"] == 2.0
    service.kill()
    service.start()
    after = here.json("owner", "price")
    assert (after["base"], after["rules"]) == (2.0, before["rules"])
    assert "7200 SU/core-hour" in here.bursar("owner", "price").stdout
    here.bursar("owner", "price", "3600 SU/core-hour")


@pytest.mark.ci
def test_what_is_sold_and_earned_is_told(here: Folder) -> None:
    """By customer, with what is running, what is set aside and what was paid."""
    bought = here.json("account", "buy", "-p", "1", "--for", "100s")["agreements"][0]
    assert bought["penalty"] == 0
    status = here.json("owner", "status")
    assert keys_of(status) <= documented("json.md"), keys_of(status) - documented("json.md")
    assert (status["running"], status["sold"], status["customers"]) == (1, 1, 1)
    assert (status["held"], status["processors"]) == (100_000_000, 2)
    (sold,) = here.json("owner", "agreements")["customers"].values()
    assert [deal["id"] for deal in sold] == [bought["id"]]
    words = ("submit", "--agreement", bought["id"], "--wait", "--", "true")
    here.bursar(*words)
    (ended,) = here.json("account", "cancel", bought["id"])["agreements"]
    assert here.json("owner", "agreements")["customers"] == {}
    revenue = here.json("owner", "revenue")
    assert keys_of(revenue) <= documented("json.md"), keys_of(revenue) - documented("json.md")
    (customer,) = revenue["customers"]
    assert revenue["total"] == customer["amount"] == ended["charged"] > 0
    assert here.json("owner", "revenue", "--period", "2020")["customers"] == []
    for words in (("status",), ("agreements", "--all"), ("revenue",)):
        assert here.bursar("owner", *words).stdout


def test_a_task_that_kills_its_worker_provokes_no_penalty(here: Folder, service: Served) -> None:
    """The time until the worker is replaced is excused, signed and free of charge."""
    bought = here.json("account", "buy", "-p", "1", "--for", "500s")["agreements"][0]
    under = ("submit", "--agreement", bought["id"], "--wait")
    here.bursar(*under, "--", "true")
    here.bursar(*under, "--retries", "1", "--", "sh", "-c", "kill -9 $PPID", status=1)
    here.bursar(*under, "--", "true")
    here.json("account", "cancel", bought["id"])
    with service.client() as client:
        records = [signed.record for signed in client.usage(0)]
    mine = [record for record in records if record.agreement == bought["id"]]
    excused = [record for record in mine if record.status == "excused"]
    assert excused
    assert all(record.owed == 0 < record.delivered for record in excused)
    spans = sorted((record.start, record.end) for record in mine)
    assert all(one[1] == other[0] for one, other in pairwise(spans)), spans


def test_a_quote_says_the_penalty_that_the_owner_agrees_to(here: Folder, service: Served) -> None:
    """It is in the terms of the deal, as the owner's rules have it."""
    with service.client() as client:
        site: Any = client.site()
    assert len(site.usage_key) == 64
    assert here.json("quote", "-p", "1", "--for", "10s")["answers"][0]["penalty"] == 0.25


def test_the_price_of_the_hours_to_come_is_that_of_a_quote(here: Folder) -> None:
    """For any number of processors, at a time, and for a user."""
    told = here.json("owner", "price")
    assert keys_of(told["ahead"]) <= documented("json.md")
    assert len(told["ahead"]) == 24
    words = ("owner", "price", "-p", "2", "--for", "10s", "--user", "eve")
    (at,) = here.json(*words, "--at", "2h")["ahead"]
    quoted = here.json("quote", "-p", "2", "--for", "10s", "--start", "2h")["answers"][0]
    assert (at["unit_price"], at["amount"], at["reason"]) == (1.0, quoted["price"], "")
    assert here.json("owner", "price", "-p", "3", "--at", "1h")["ahead"][0]["reason"] == (
        "has 2 processors"
    )
    assert "SU/core-hour" in here.bursar("owner", "price", "--user", "eve").stdout


def test_wrong_times_are_one_line(here: Folder) -> None:
    assert "--at: expected" in here.bursar("owner", "price", "--at", "soon", status=2).stderr
    past = here.bursar("owner", "price", "--at", "2020-01-01", status=2)
    assert "--at: has passed" in past.stderr
    assert "--for: " in here.bursar("owner", "price", "--for", "0", status=2).stderr


def test_wrong_prices_are_one_line(here: Folder) -> None:
    assert "PRICE: " in here.bursar("owner", "price", "much", status=2).stderr
    refused = here.bursar("owner", "price", "1 EUR/core-hour", status=2)
    assert "PRICE: the service counts in SU" in refused.stderr
