"""What a site that is another Bursar does with prices, refusals and what was lost."""

import asyncio
import contextlib
import json
import time
import urllib.request
from collections.abc import Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs
from tests.service.service_process import Served, served
from tests.sites.remote.real_service import SELLS, Dispatcher, acquired, facts_of, opened, pilot

from bursar.dispatch.linux_processes import kill_leftovers
from bursar.market.agreement import Terms
from bursar.model.errors import BudgetStop, SiteError
from bursar.model.site import RemoteEndpoint
from bursar.provisioning.accounting import USAGE
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.messages import AgreementInfo
from bursar.sites.remote import leases
from bursar.sites.remote.agreement_purchase import InvoiceReconciler, ServicePurchaser
from bursar.sites.remote.held import HeldInstance
from bursar.sites.remote.leases import RemoteLeases
from bursar.sites.remote.purchase_journal import PurchaseJournal, PurchaseRecord
from bursar.sites.remote.remote_site import RemoteSite
from bursar.sites.remote.site_client import RemoteSiteClient


@pytest.fixture(scope="module")
def seller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Sells two processors for one SU a second, to whom has a hundred."""
    text = f"{SELLS}credit = '100 SU'\n"
    with served(tmp_path_factory.mktemp("seller") / "state", text) as service:
        yield service


def reprice(service: Served, price: float) -> None:
    """What it asks from now on."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{service.port}/v1/trade/prices",
        json.dumps({"base": price}).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request).close()


@pytest.fixture
def moving(seller: Served) -> Iterator[Served]:
    """Its price may be moved; it is moved back."""
    yield seller
    reprice(seller, 1.0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


async def nothing_is_left(service: Served) -> None:
    """Neither an agreement that could cost something nor an instance."""
    async with AsyncServiceClient(f"http://127.0.0.1:{service.port}") as client:
        assert {a.state for a in await client.agreements()} <= {"over", "cancelled"}
        assert await client.instances() == []
        assert (await client.account()).held == 0


def test_what_is_held_is_paid_and_no_more(seller: Served, tmp_path: Path) -> None:
    """Given back early, it costs what it was had for; that is what the lease is closed by."""

    async def work() -> None:
        said: list[str] = []
        async with opened(facts_of(seller), tmp_path) as site, Dispatcher() as endpoint:
            held = await acquired(site, pilot(), endpoint, said)
            assert held.workers == 1
            assert site.view().free == 1
            await held.release()
            bought = PurchaseJournal(tmp_path / "there.deals")
            assert bought.open == []
            async with AsyncServiceClient(f"http://127.0.0.1:{seller.port}") as client:
                last = (await client.agreements())[-1]
            assert held.seconds == pytest.approx(last.charged / 1e6)
            assert 0 < last.charged < 30e6
        assert said == []
        await nothing_is_left(seller)

    run(work())


def test_prices_that_move(moving: Served, tmp_path: Path) -> None:
    """Dearer than planned is not bought; the next pilot is planned with what is asked now."""

    async def work() -> None:
        async with opened(facts_of(moving), tmp_path) as site, Dispatcher() as endpoint:
            assert site.facts.unit_price == 1.0
            planned = pilot()
            reprice(moving, 1.5)
            with pytest.raises(SiteError, match=r"^there: asks 1\.5 SU .* not 1 ") as refused:
                await acquired(site, planned, endpoint, [])
            assert refused.value.transient
            assert site.facts.unit_price == 1.5
            held = await acquired(site, pilot("lease-2", site.facts.unit_price), endpoint, [])
            await held.release()
        await nothing_is_left(moving)

    run(work())


def test_the_sites_file_says_the_most_that_is_paid(moving: Served, tmp_path: Path) -> None:
    async def work() -> None:
        reprice(moving, 3.0)
        facts = facts_of(moving, unit_price=2.0)
        async with opened(facts, tmp_path) as site, Dispatcher() as endpoint:
            assert site.facts.unit_price == 3.0
            with pytest.raises(SiteError, match="asks 3 SU"):
                await acquired(site, pilot(price=3.0), endpoint, [])

    run(work())


def test_who_has_no_credit_gets_nothing(seller: Served, tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(facts_of(seller), tmp_path) as site, Dispatcher() as endpoint:
            with pytest.raises(SiteError, match=r"^there: sells no processors: costs 3000 SU"):
                await acquired(site, pilot(duration=3000.0), endpoint, [])
        await nothing_is_left(seller)

    run(work())


def test_another_currency_is_no_bargain(seller: Served, tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(facts_of(seller, currency="EUR"), tmp_path) as site:
            with pytest.raises(SiteError, match="there: counts in SU, the sites file says EUR"):
                await site.refresh()
            assert site.offers() == ()

    run(work())


def test_no_money_of_ours_gives_all_back(seller: Served, tmp_path: Path) -> None:
    """The processors are there when the budget's guard refuses them."""

    async def work() -> None:
        def begin(processors: int | None = None, seconds: float | None = None) -> None:
            raise BudgetStop("the budget is used up")

        async with opened(facts_of(seller), tmp_path) as site, Dispatcher() as endpoint:
            with pytest.raises(BudgetStop):
                await site.acquire(
                    pilot(), endpoint, rigid=False, begin=begin, on_event=lambda _: None
                )
            await nothing_is_left(seller)

    run(work())


@pytest.mark.parametrize("step", range(6))
def test_given_up_at_any_moment(seller: Served, tmp_path: Path, step: int) -> None:
    """Whoever stops waiting for processors has bought none that are not given back."""

    async def work() -> None:
        async with opened(facts_of(seller), tmp_path) as site, Dispatcher() as endpoint:
            asking = asyncio.create_task(acquired(site, pilot(), endpoint, []))
            await asyncio.sleep(0.004 * 2**step)
            asking.cancel()
            (outcome,) = await asyncio.gather(asking, return_exceptions=True)
            if not isinstance(outcome, BaseException):
                await outcome.release()
        await nothing_is_left(seller)

    run(work())


def test_given_back_twice_at_once_is_ended_once(seller: Served, tmp_path: Path) -> None:
    """Who loses processors, and who does not need them, may both say so at the same moment."""

    async def work() -> None:
        async with opened(facts_of(seller), tmp_path) as site, Dispatcher() as endpoint:
            held = await acquired(site, pilot(), endpoint, [])
            await asyncio.gather(held.release(), held.release())
        await nothing_is_left(seller)

    run(work())


def test_reserved_ahead_and_not_wanted_any_more(seller: Served, tmp_path: Path) -> None:
    """What is asked for again is kept, the rest goes back free of charge; too much is refused."""

    async def work() -> None:
        first = pilot("lease-1", start=600.0, duration=10.0)
        second = pilot("lease-2", start=600.0, duration=10.0)
        third = pilot("lease-3", start=601.0, duration=10.0)
        async with (
            opened(facts_of(seller), tmp_path) as site,
            AsyncServiceClient(f"http://127.0.0.1:{seller.port}") as client,
        ):

            async def signed() -> int:
                return sum(a.state == "signed" for a in await client.agreements())

            assert await site.reserve([first, second]) == 0.0
            assert await signed() == 2
            assert await site.reserve([second]) == 0.0
            assert await signed() == 1
            with pytest.raises(SiteError, match="sells no processors"):
                await site.reserve([second, first, third])
            await site.reserve([])
        await nothing_is_left(seller)

    run(work())


def test_a_deal_whose_answer_was_lost_is_ended_by_the_next_life(
    seller: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written before it was accepted is enough to find it again."""

    async def work() -> None:
        real = PurchaseJournal.write

        def killed(self: PurchaseJournal, bought: PurchaseRecord) -> None:
            if bought.agreement:
                raise KeyboardInterrupt  # the service has signed, and nobody heard it
            real(self, bought)

        async with AsyncServiceClient(f"http://127.0.0.1:{seller.port}") as client:
            monkeypatch.setattr(PurchaseJournal, "write", killed)
            buyer = ServicePurchaser(
                client,
                owner="here",
                customer="owner",
                currency="SU",
                record=PurchaseJournal(tmp_path / "there.deals"),
            )
            with contextlib.suppress(KeyboardInterrupt):
                await buyer.buy(pilot(), 60.0, earliest=0.0, latest=None)
            monkeypatch.undo()
            assert [a.state for a in await client.agreements()][-1] == "running"
        async with opened(facts_of(seller), tmp_path):
            await nothing_is_left(seller)

    run(work())


def test_of_two_equal_deals_the_next_life_ends_both(
    seller: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both begin when they were to; the answer to the second one was lost."""

    async def work() -> None:
        real = PurchaseJournal.write
        start = time.time() + 600.0

        def killed(self: PurchaseJournal, bought: PurchaseRecord) -> None:
            if bought.agreement and bought.pilot == "lease-2":
                raise KeyboardInterrupt
            real(self, bought)

        async with AsyncServiceClient(f"http://127.0.0.1:{seller.port}") as client:
            buyer = ServicePurchaser(
                client,
                owner="here",
                customer="owner",
                currency="SU",
                record=PurchaseJournal(tmp_path / "there.deals"),
            )
            monkeypatch.setattr(PurchaseJournal, "write", killed)
            with contextlib.suppress(KeyboardInterrupt):
                for name in ("lease-1", "lease-2"):
                    await buyer.buy(pilot(name), 10.0, earliest=start, latest=start + 10.0)
            monkeypatch.undo()
            assert [a.start for a in await client.agreements()][-2:] == [start, start]
        async with opened(facts_of(seller), tmp_path):
            await nothing_is_left(seller)

    run(work())


def test_clearing_up_leaves_alone_what_is_being_bought(
    seller: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be ended before is tried again while another pilot waits to begin."""

    async def work() -> None:
        real = RemoteLeases._ready

        async def ready(self: RemoteLeases, bought: PurchaseRecord) -> tuple[float, float]:
            self._cleared = False
            await self.clear_up()
            return await real(self, bought)

        monkeypatch.setattr(RemoteLeases, "_ready", ready)
        async with opened(facts_of(seller), tmp_path) as site, Dispatcher() as endpoint:
            held = await acquired(site, pilot(), endpoint, [])
            await held.release()
        await nothing_is_left(seller)

    run(work())


def test_closed_while_it_is_given_back(
    seller: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever gave it back was cancelled: it is ended once, and settled once."""

    async def work() -> None:
        said: list[str] = []
        asked = asyncio.Event()
        real = AsyncServiceClient.cancel_agreement

        async def slow(self: AsyncServiceClient, name: str) -> AgreementInfo:
            asked.set()
            await asyncio.sleep(0.2)
            return await real(self, name)

        monkeypatch.setattr(AsyncServiceClient, "cancel_agreement", slow)
        async with opened(facts_of(seller), tmp_path) as site, Dispatcher() as endpoint:
            held = await acquired(site, pilot(), endpoint, said)
            giving = asyncio.create_task(held.release())
            await asked.wait()
            giving.cancel()
            await asyncio.gather(giving, return_exceptions=True)
        assert said == []
        assert len((tmp_path / f"there{USAGE}").read_text().splitlines()) == 1
        await nothing_is_left(seller)

    run(work())


def test_shared_processors_need_no_agreement(tmp_path: Path) -> None:
    async def work(service: Served) -> None:
        async with opened(facts_of(service), tmp_path) as site, Dispatcher() as endpoint:
            assert site.facts.unit_price == 0.0
            assert site.offers()[0].processors == 2
            held = await acquired(site, pilot(price=0.0), endpoint, [])
            await held.release()
            assert held.seconds is None
        await nothing_is_left(service)

    with served(
        tmp_path / "state", "[site]\nprocessors = 2\n[market]\nprotocols = []\n"
    ) as service:
        run(work(service))


def test_a_service_that_died_is_paid_until_its_last_sign_of_life(tmp_path: Path) -> None:
    """Not for the time in which it was waited for."""

    async def work(service: Served) -> None:
        said: list[str] = []
        facts = facts_of(service, patience=1.0)
        async with opened(facts, tmp_path) as site, Dispatcher() as endpoint:
            held = await acquired(site, pilot(), endpoint, said)
            service.kill()
            died = time.time()
            kill_leftovers(service.run)
            assert (await held.lost())[0] == "lost"
            await held.release()
            assert held.since <= held.seen <= died
            assert held.seconds == held.seen - held.since
        assert any("lease-1 is to be ended later" in line for line in said)

    with served(tmp_path / "state", SELLS) as service:
        run(work(service))


@pytest.mark.parametrize(
    ("charged", "said"),
    [(10_000_000, 0), (25_000_000, 1), (4_000_000, 1)],
    ids=["as the bill says", "more", "less"],
)
def test_a_service_that_comes_back_says_what_the_bill_should(
    tmp_path: Path, charged: int, said: int
) -> None:
    """The lease was closed meanwhile, by its last sign of life: ten seconds at one SU."""
    told: list[str] = []
    settling = InvoiceReconciler(tmp_path / "usage", "SU", told.append)
    terms = Terms(processors=1, start=0.0, seconds=60.0, unit_price=1.0, fixed_price=0.0)
    bought = PurchaseRecord("lease-1", terms, "a")
    held = cast(
        HeldInstance, SimpleNamespace(pilot=pilot(), since=5.0, seen=15.0, seconds=None, spent=0)
    )
    settling.guess(held, bought)
    assert held.seconds == 10.0
    info = AgreementInfo(
        id="a",
        processors=1,
        start=0.0,
        seconds=60.0,
        unit_price=1.0,
        fixed_price=0.0,
        currency="SU",
        state="over",
        charged=charged,
    )
    settling.settle_later(bought, info)
    settling.settle_later(bought, info)
    assert len(told) == said
    assert all("answers again, and charged" in line and "bill says 10" in line for line in told)


def test_processors_that_came_before_the_others_are_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the service charges them, and nobody calls it too much."""
    monkeypatch.setattr(leases, "_READY_POLL_INTERVAL", 0.5)
    terms = Terms(processors=2, start=0.0, seconds=60.0, unit_price=100.0)
    bought = PurchaseRecord("lease-1", terms, "a")
    looks = [
        AgreementInfo(
            id="a",
            processors=2,
            start=0.0,
            seconds=60.0,
            unit_price=100.0,
            fixed_price=0.0,
            currency="SU",
            state="running",
            ready=ready,
            begun=10.0 if ready == 2 else None,
        )
        for ready in (0, 1, 2)
    ]

    async def agreement(name: str) -> AgreementInfo:
        return looks.pop(0)

    async def work() -> tuple[float, float]:
        contact = RemoteSiteClient("there", RemoteEndpoint(url="http://127.0.0.1:1"))
        monkeypatch.setattr(RemoteSiteClient, "client", SimpleNamespace(agreement=agreement))
        return await RemoteLeases._ready(
            cast(RemoteLeases, SimpleNamespace(_contact=contact, lot_of=lambda _: None)), bought
        )

    last = looks[-1]
    seconds, early = asyncio.run(work())
    assert 0 < seconds <= 49.01  # of 60 - 10, less the second between the last two looks
    assert early >= 1 * 0.49 + 2 * 0.99
    told: list[str] = []
    settling = InvoiceReconciler(tmp_path / "usage", "SU", told.append)
    wanted = pilot(price=100.0, processors=2)
    held = cast(
        HeldInstance,
        SimpleNamespace(pilot=wanted, since=time.monotonic(), early=20.0, seconds=None),
    )
    # Both for 5 s, which are still as seen, and one of them for 15 s before.
    settling.settle(held, terms, structs.replace(last, charged=2_500_000_000, ended=15.0))
    assert told == []
    assert held.seconds == 12.5
    settling.settle(held, terms, structs.replace(last, charged=3_500_000_000, ended=15.0))
    assert len(told) == 1


def test_a_service_that_never_was(tmp_path: Path) -> None:
    """It has nothing to offer, and says so when it is asked for something."""

    async def work() -> None:
        facts = facts_of(Served(tmp_path, port=1), patience=0.2)
        async with opened(facts, tmp_path) as site, Dispatcher() as endpoint:
            assert isinstance(site, RemoteSite)
            assert site.offers() == ()
            with pytest.raises(SiteError, match="there: cannot be reached") as refused:
                await acquired(site, pilot(), endpoint, [])
            assert refused.value.transient

    run(work())


def test_who_charges_too_much_is_told_of(
    seller: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own count is what the lease is closed by then."""

    async def work() -> None:
        said: list[str] = []
        real = AsyncServiceClient.cancel_agreement

        async def dear(self: AsyncServiceClient, name: str) -> AgreementInfo:
            return structs.replace(await real(self, name), charged=55_000_000)

        async with opened(facts_of(seller), tmp_path) as site, Dispatcher() as endpoint:
            held = await acquired(site, pilot(), endpoint, said)
            monkeypatch.setattr(AsyncServiceClient, "cancel_agreement", dear)
            await held.release()
        assert held.seconds is None
        assert len(said) == 2  # by our count, and by its signed records
        assert said[0].startswith("there: charged 55 SU for lease-1, which by our count came to")

    run(work())
