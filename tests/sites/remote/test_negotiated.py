"""A site that is another Bursar, bought by bargaining and by tender."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.service.service_process import Served, served
from tests.sites.remote.real_service import SELLS, Dispatcher, acquired, facts_of, opened, pilot

from bursar.market.purchasing import DealRecord
from bursar.model.errors import SiteError
from bursar.model.site import BuyingRules
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.service_trading import ServiceTrader
from bursar.sites.remote.purchase_journal import PurchaseJournal


@pytest.fixture(scope="module")
def seller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Sells two processors for one SU a second, and goes down to a half of that."""
    text = f"{SELLS}credit = '100 SU'\nfloor = 0.5\n"
    with served(tmp_path_factory.mktemp("seller") / "state", text) as service:
        yield service


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def account_of(service: Served) -> tuple[int, int]:
    """What is held for agreements, and what was spent, micro-units."""
    async with AsyncServiceClient(f"http://127.0.0.1:{service.port}") as client:
        account = await client.account()
    return account.held, account.spent


def test_a_bargain_is_cheaper_than_posted_and_costs_what_was_agreed(
    seller: Served, tmp_path: Path
) -> None:
    """What the lease pays is the service's charge, at the agreed price."""

    async def work() -> None:
        facts = facts_of(seller, buying=BuyingRules(market="bargain"))
        deals: list[DealRecord] = []
        _, before = await account_of(seller)
        async with opened(facts, tmp_path) as site, Dispatcher() as endpoint:
            site.on_deal = deals.append
            assert site.facts.unit_price == 1.0  # planned with the most that it can come to
            held = await acquired(site, pilot(), endpoint, [])
            await held.release()
        (deal,) = deals
        assert (deal.lease, deal.site, deal.result.protocol) == ("lease-1", "there", "bargain")
        agreement = deal.result.agreement
        assert agreement is not None
        assert 0.5 <= agreement.unit_price < 0.95
        held_now, spent = await account_of(seller)
        assert held_now == 0
        assert held.seconds is not None
        assert held.charged == spent - before
        seconds = held.charged / 1e6 / agreement.unit_price
        assert held.seconds == pytest.approx(seconds)
        assert PurchaseJournal(tmp_path / "there.deals").open == []

    run(work())


def test_a_tender_at_one_service_takes_its_bid(seller: Served, tmp_path: Path) -> None:
    async def work() -> None:
        facts = facts_of(seller, buying=BuyingRules(market="tender"))
        deals: list[DealRecord] = []
        async with opened(facts, tmp_path) as site, Dispatcher() as endpoint:
            site.on_deal = deals.append
            held = await acquired(site, pilot(), endpoint, [])
            await held.release()
        (deal,) = deals
        agreement = deal.result.agreement
        assert agreement is not None
        assert agreement.unit_price == 1.0

    run(work())


def test_a_reserve_price_below_the_floor_buys_nothing(seller: Served, tmp_path: Path) -> None:
    """The site is planned with the reserve price, and the purchase says why it failed."""

    async def work() -> None:
        facts = facts_of(seller, buying=BuyingRules(market="bargain", reserve_price=0.25))
        deals: list[DealRecord] = []
        async with opened(facts, tmp_path) as site, Dispatcher() as endpoint:
            site.on_deal = deals.append
            await site.refresh()
            assert site.facts.unit_price == 0.25
            wanted = pilot(price=site.facts.unit_price)
            with pytest.raises(SiteError, match="there: no agreement by bargain: is too little"):
                await acquired(site, wanted, endpoint, [])
        (deal,) = deals
        assert deal.result.agreement is None
        assert deal.result.limit == 15_000_000
        (answer,) = deal.result.answers
        assert answer.price is not None
        assert answer.price >= 30_000_000
        assert msgspec.json.decode(msgspec.json.encode(deal), type=DealRecord) == deal
        assert (await account_of(seller))[0] == 0

    run(work())


def test_an_agreement_whose_answer_was_lost_is_found_and_ended(
    seller: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The negotiation is on disk before an offer is sent: a run that is killed before it hears of the
    agreement leaves none open.
    """

    class Killed(BaseException):
        """In place of a signal."""

    whole = ServiceTrader.negotiate

    async def killed(self: ServiceTrader, *args: Any, **options: Any) -> Any:
        await whole(self, *args, **options)
        raise Killed

    async def nothing(*_: Any) -> None:
        """In place of what a killed process does not come to do."""

    async def work() -> None:
        facts = facts_of(seller, buying=BuyingRules(market="bargain"))
        site_open = opened(facts, tmp_path)
        site = await site_open.__aenter__()
        monkeypatch.setattr(ServiceTrader, "negotiate", killed)
        monkeypatch.setattr(site._leases, "_give_up", nothing)
        monkeypatch.setattr(site._leases, "close", nothing)
        with pytest.raises(Killed):
            async with Dispatcher() as endpoint:
                await acquired(site, pilot("lease-9"), endpoint, [])
        await site_open.__aexit__(None, None, None)
        (open_purchase,) = PurchaseJournal(tmp_path / "there.deals").open
        assert open_purchase.deal
        assert not open_purchase.agreement
        assert (await account_of(seller))[0] > 0
        monkeypatch.undo()
        async with opened(facts, tmp_path):
            pass
        assert (await account_of(seller))[0] == 0
        last = PurchaseJournal(tmp_path / "there.deals").last_of("lease-9")
        assert last is not None
        assert last.agreement  # by which the lease is settled

    run(work())
