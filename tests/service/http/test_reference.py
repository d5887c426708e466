"""The page of the HTTP API, held against the API."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.remote.admin_messages import NewToken, Overview, TokenInfo, TokenList, WorkerInfo
from bursar.remote.routes import ROUTES, ApiRoute

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "reference" / "http-api.md").read_text()

ENVELOPES = (
    api.FileList,
    api.InstanceList,
    api.ResultPage,
    api.Submission,
    api.TaskPage,
    TokenList,
)


def row(route: ApiRoute[Any]) -> str:
    """A route as the page has it."""
    query = route.query.__struct_fields__ if route.query is not None else ()
    asked = ", ".join(f"`{name}`" for name in (*query, *route.headers))
    return (
        f"| `{route.method} {api.PREFIX}{route.path}` | {route.access} | {asked} | {route.status} "
        f"| {route.summary} |"
    )


def test_the_page_has_every_route_and_no_other() -> None:
    """
    Whoever writes a client in another language has nothing but this page.
    """
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and api.PREFIX in line]

    assert rows == [row(route) for route in ROUTES]


@pytest.mark.parametrize(
    "kind",
    [
        api.TaskSpec,
        api.Result,
        api.NewInstance,
        api.InstanceInfo,
        api.Counts,
        api.Hints,
        api.Submitted,
        api.TaskInfo,
        api.CancelRequest,
        api.CopyRequest,
        api.FileInfo,
        api.SiteInfo,
        api.SlotInfo,
        api.AgreementInfo,
        market.LotInfo,
        market.LotList,
        market.RevenueInfo,
        market.CustomerRevenue,
        api.AccountInfo,
        market.InvoiceInfo,
        market.InvoiceLine,
        market.ExchangeInfo,
        market.ClearingInfo,
        market.NewOrder,
        market.OrderInfo,
        market.OrderList,
        market.TradeInfo,
        market.TradeList,
        market.SellerReport,
        market.NewReservation,
        market.HandOver,
        market.HandedPart,
        market.HandedAgreement,
        market.HandedList,
        NewToken,
        TokenInfo,
        api.Deposit,
        Overview,
        WorkerInfo,
        api.Health,
        api.Problem,
        *ENVELOPES,
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_field_is_on_the_page(kind: type[api.RequestStruct | api.ResponseStruct]) -> None:
    """
    In the section of its type.
    """
    sections = [part for part in PAGE.split("\n#") if f"`{kind.__name__}`" in part]

    assert sections
    for field in kind.__struct_fields__:
        assert any(f"`{field}`" in section for section in sections), field


def test_every_kind_of_problem_is_on_the_page() -> None:
    """
    A client decides by it what to do.
    """
    used = {
        word
        for path in (ROOT / "src" / "bursar" / "service").rglob("*.py")
        for word in kinds_in(path.read_text())
    }
    table = PAGE.split("## Problems")[1].split("\n## ")[0]
    listed = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}

    assert listed == used


def kinds_in(source: str) -> Iterator[str]:
    """First words of the service's errors."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ServiceError":
            for word in ast.walk(node.args[0]):
                if isinstance(word, ast.Constant):
                    yield word.value
