"""Buying, paying by the time processors were there, and what others never see."""

import math
from dataclasses import replace

import msgspec
import pytest
from tests.service.billing.billing_rig import MICROS, SITE, Shop

from bursar.market.agreement import DealTemplate
from bursar.market.trade_messages import Reject, RequestQuote
from bursar.market.usage import check_chain
from bursar.model.errors import InputError
from bursar.model.money import Pricing, Refusal
from bursar.model.site import SiteFacts
from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.service.billing.service_billing import LONGEST, MOST
from bursar.service.billing.service_ledger import ROW, ServiceLedger
from bursar.service.config import MarketSettings, UserSettings
from bursar.service.interfaces import ServiceError, WorkerDemand


def test_an_agreement_is_paid_by_the_time_its_processors_were_there() -> None:
    """4 processors x 100 s x 0.5: 200 set aside; 60 s of all, 20 s of two: 280 x 0.5 paid."""
    shop = Shop()
    name = shop.bought("alice", 4, 100.0, start=50.0)
    assert shop.balance("alice") == 800.0
    assert shop.billing.admission.may_run(name, "alice", shop.now) == Refusal(
        "the agreement begins in 50 s", final=False
    )
    shop.billing.admission.ready(name, 4)  # early: not charged
    shop.wait(50.0)
    assert shop.billing.admission.may_run(name, "alice", shop.now) == 100.0
    shop.wait(60.0)
    shop.billing.admission.ready(name, 2)
    shop.wait(20.0)
    shop.billing.admission.ready(name, 0)
    shop.wait(30.0)

    info = shop.billing.agreement("alice", name)
    assert (info.state, info.charged, info.held) == ("over", 140 * MICROS, 0)
    assert (info.begun, info.ended) == (shop.now - 110.0, shop.now - 10.0)
    account = shop.billing.accounts.account("alice")
    assert (account.balance, account.held, account.spent) == (860 * MICROS, 0, 140 * MICROS)
    assert shop.billing.admission.may_run(name, "alice", shop.now) == Refusal(
        "the agreement is over", final=True
    )
    assert shop.billing.faults() == []


def test_nothing_delivered_costs_nothing() -> None:
    """Not even the fixed price."""
    shop = Shop(SiteFacts(name="uni", processors=8, unit_price=0.5, fixed_price=3.0))
    name = shop.bought("alice")
    assert shop.balance("alice") == 1_000 - 50 - 3
    shop.wait(200.0)
    assert shop.billing.agreement("alice", name).state == "over"
    assert shop.balance("alice") == 1_000.0
    assert shop.billing.accounts.invoice("alice").lines == []


def test_a_customer_may_end_it_early() -> None:
    """25 of 100 s are paid; the processors can be sold again; ending it again changes nothing."""
    shop = Shop()
    name = shop.bought("alice", 8)
    shop.billing.admission.ready(name, 8)
    shop.wait(25.0)
    assert isinstance(shop.buy("bob", 8), Reject)
    shop.changed.clear()
    info = shop.billing.cancel("alice", name)
    assert shop.changed[-1] == name
    assert (info.state, info.charged) == ("over", 100 * MICROS)
    assert shop.billing.cancel("alice", name) == info
    shop.bought("bob", 8)
    assert shop.billing.faults() == []


def test_before_it_begins_it_is_taken_back_free_of_charge() -> None:
    """And its processors are free again."""
    shop = Shop()
    name = shop.bought("alice", 8, start=500.0)
    assert shop.billing.cancel("alice", name).state == "cancelled"
    assert shop.balance("alice") == 1_000.0
    assert shop.billing.admission.pool_of("alice", name) == Refusal(
        "the agreement is cancelled", final=True
    )
    shop.bought("bob", 8, start=500.0)
    shop.wait(2_000.0)
    assert shop.billing.agreement("alice", name).charged == 0
    assert shop.billing.faults() == []


def test_without_money_there_is_no_agreement() -> None:
    """The rejection says what it costs and what is there; a deposit helps."""
    shop = Shop()
    refusal = shop.buy("alice", 8, 1_000.0)
    assert isinstance(refusal, Reject)
    assert refusal.reason == "costs 4000 SU, the account has 1000 SU"
    shop.billing.accounts.deposit("alice", api.Deposit(amount=3_000 * MICROS, key="cheque"))
    shop.billing.accounts.deposit("alice", api.Deposit(amount=3_000 * MICROS, key="cheque"))
    with pytest.raises(ServiceError) as caught:
        shop.billing.accounts.deposit("alice", api.Deposit(amount=1, key="cheque"))
    assert caught.value.status == 409
    shop.bought("alice", 8, 1_000.0)
    assert shop.balance("alice") == 0.0


def test_a_full_disk_signs_nothing() -> None:
    """Nothing is set aside, and with room the same deal can be had."""
    shop = Shop()
    shop.journal.problem = "the disk is full"
    refusal = shop.buy("alice")
    assert isinstance(refusal, Reject)
    assert refusal.reason == "the disk is full"
    with pytest.raises(ServiceError) as caught:
        shop.billing.accounts.deposit("alice", api.Deposit(amount=1, key="1"))
    assert caught.value.status == 507
    shop.journal.problem = ""
    shop.bought("alice")
    assert shop.billing.faults() == []


def test_trusted_users_buy_on_account() -> None:
    """What they lack is granted with each deal, and what they spent is known."""
    shop = Shop(selling=MarketSettings(credit=None), users={"bob": UserSettings(credit=10.0)})
    name = shop.bought("alice", 8, 1_000.0)
    assert isinstance(shop.buy("bob", 1), Reject)
    shop.billing.admission.ready(name, 8)
    shop.wait(1_000.0)
    account = shop.billing.accounts.account("alice")
    assert (account.balance, account.spent) == (0, 4_000 * MICROS)
    assert shop.billing.faults() == []


def test_what_is_anothers_does_not_exist() -> None:
    """No difference between another's agreement and none; identities say nothing and are random."""
    shop = Shop()
    names = [shop.bought("alice", start=1_000.0 * n) for n in range(5)]
    assert all(len(name) == 32 for name in names)
    assert len(set(names)) == 5
    assert shop.billing.agreements("bob").agreements == []
    for name in (names[0], "f" * 32):
        with pytest.raises(ServiceError) as caught:
            shop.billing.agreement("bob", name)
        assert (caught.value.status, str(caught.value)) == (404, f'no agreement "{name}"')
        with pytest.raises(ServiceError):
            shop.billing.cancel("bob", name)
        assert shop.billing.admission.pool_of("bob", name) == Refusal(
            f'no agreement "{name}"', final=True
        )
        assert shop.billing.admission.may_run(name, "bob", shop.now) == Refusal(
            f'no agreement "{name}"', final=True
        )
    assert shop.billing.accounts.invoice("bob").lines == []
    assert shop.billing.accounts.usage("bob") == ()


def test_nobody_speaks_for_another() -> None:
    """And deals of the same name do not meet."""
    shop = Shop()
    template = DealTemplate(processors=1, seconds=10.0, earliest=shop.now)
    asks = [
        RequestQuote(deal="same", sender=user, to="uni", number=1, template=template)
        for user in ("alice", "bob")
    ]
    with pytest.raises(ServiceError) as caught:
        shop.billing.deliver("bob", asks[0])
    assert (caught.value.status, caught.value.where) == (403, "sender")
    for user, ask in zip(("alice", "bob"), asks, strict=True):
        assert shop.say(user, ask).to == user


def test_conversations_are_bounded() -> None:
    """A deal with no end is cut off; of many, the one silent longest is forgotten; so are all."""
    shop = Shop()
    template = DealTemplate(processors=1, seconds=10.0, earliest=shop.now)

    def ask(deal: str, number: int) -> None:
        about = {"deal": deal, "sender": "alice", "to": "uni"}
        shop.billing.deliver("alice", RequestQuote(**about, number=number, template=template))

    for number in range(1, LONGEST + 1):
        ask("endless", number)
    with pytest.raises(ServiceError) as caught:
        ask("endless", LONGEST + 1)
    assert caught.value.status == 429
    for number in range(2 * MOST):
        ask(f"deal-{number}", 1)
    assert len(shop.billing._owner._sides) <= MOST + 1
    shop.wait(4_000.0)
    assert not shop.billing._owner._sides


def test_workers_are_wanted_for_what_begins_soon() -> None:
    """From an hour before the start until the end."""
    shop = Shop()
    name = shop.bought("alice", 2, 100.0, start=5_000.0)
    start = shop.now + 5_000.0
    assert shop.billing.admission.pools(shop.now) == {}
    shop.wait(1_400.0)
    wanted = WorkerDemand(user="alice", processors=2, start=start, until=start + 100.0)
    assert shop.billing.admission.pools(shop.now) == {name: wanted}
    shop.wait(4_000.0)
    assert shop.billing.admission.pools(shop.now) == {}


def test_a_crash_charges_nothing_twice_and_nothing_that_nobody_saw() -> None:
    """Running for 130 s, killed, away for 1000: what the minutes' notes say is paid, 120 s."""
    shop = Shop()
    name = shop.bought("alice", 1, 2_000.0)
    shop.billing.admission.ready(name, 1)
    shop.wait(130.0)
    shop.journal.commit()
    shop.crash(away=1_000.0)
    info = shop.billing.agreement("alice", name)
    assert (info.state, info.ready, info.held) == ("running", 0, 1_000 * MICROS)
    shop.billing.admission.ready(name, 1)
    shop.wait(10.0)
    shop.billing.cancel("alice", name)
    shop.journal.commit()
    for _ in range(3):
        shop.crash()
    assert shop.billing.agreement("alice", name).charged == 65 * MICROS
    assert shop.balance("alice") == 1_000 - 65
    assert shop.billing.faults() == []


def test_what_was_not_durable_was_never_sold() -> None:
    """A deal whose confirmation was never sent is gone with its money's hold."""
    shop = Shop()
    shop.journal.commit()
    name = shop.bought("alice", 8)
    shop.crash()
    assert shop.billing.admission.pool_of("alice", name) == Refusal(
        f'no agreement "{name}"', final=True
    )
    assert shop.balance("alice") == 1_000.0
    shop.bought("bob", 8)
    assert shop.billing.faults() == []


def test_an_agreement_outlives_the_service() -> None:
    """Its processors stay sold, and it ends by itself, also while the service is away."""
    shop = Shop()
    name = shop.bought("alice", 8, 100.0)
    shop.billing.admission.ready(name, 8)
    shop.journal.commit()
    shop.crash(away=10.0)
    assert isinstance(shop.buy("bob", 1, 50.0), Reject)
    shop.crash(away=100.0)
    assert shop.billing.agreement("alice", name).state == "over"
    shop.bought("bob", 8)


def test_an_invoice_says_what_was_paid_for() -> None:
    """Its total is that of the account; usage records are a chain that anyone can verify."""
    shop = Shop()
    for processors in (1, 2):
        name = shop.bought("alice", processors, 100.0)
        shop.billing.admission.ready(name, processors)
        shop.wait(50.0)
        shop.billing.admission.ready(name, 1)
        shop.wait(50.0)
    other = shop.bought("bob")
    shop.billing.admission.ready(other, 1)
    shop.wait(100.0)

    invoice = shop.billing.accounts.invoice("alice")
    assert [line.amount for line in invoice.lines] == [50 * MICROS, 75 * MICROS]
    assert [line.processor_seconds for line in invoice.lines] == [100.0, 150.0]
    assert invoice.total == shop.billing.accounts.account("alice").spent == 125 * MICROS
    assert shop.billing.accounts.invoice("alice", until=shop.now - 250.0).total == 0
    chain = shop.billing.accounts.usage("alice")
    assert len(chain) == 3
    assert check_chain(chain, shop.billing.accounts.public_key) == []
    key = shop.billing.accounts.public_key.public_bytes_raw()
    shop.journal.commit()
    shop.crash()
    assert check_chain(shop.billing.accounts.usage("alice"), shop.billing.accounts.public_key) == []
    assert shop.billing.accounts.public_key.public_bytes_raw() == key


# Shared processors.


def test_shared_processors_are_free_unless_they_have_a_price() -> None:
    """And are not to be had where one must buy; local users have a pool of their own."""
    shop = Shop(users={"bob": UserSettings(local_user="bobby")})
    assert shop.billing.admission.pool_of("alice", "") == "shared"
    assert shop.billing.admission.pool_of("bob", "") == "shared:bob"
    assert shop.billing.admission.may_run("shared", "alice", shop.now) == math.inf
    assert isinstance(shop.billing.admission.may_run("shared", "bob", shop.now), Refusal)
    shop.billing.admission.used("shared", "alice", "i1", 1, 100.0)
    assert shop.balance("alice") == 1_000.0

    strict = Shop(selling=MarketSettings(must_buy=True))
    refusal = Refusal("tasks run here only under an agreement", final=True)
    assert strict.billing.admission.pool_of("alice", "") == refusal
    assert strict.billing.admission.may_run("shared", "alice", strict.now) == refusal


def test_shared_use_is_added_up_and_posted() -> None:
    """3600 tasks of a second at 0.5 are one row of 1800, not 3600; to the micro-unit."""
    shop = Shop(selling=MarketSettings(credit=2_000.0, price_shared=True))
    for _ in range(3_599):
        shop.billing.admission.used("shared", "alice", "i1", 1, 1.0)
        shop.wait(1.0)
    assert shop.balance("alice") == 2_000 - 1_799.5
    records = len(shop.journal.records)
    shop.journal.commit()
    shop.crash()
    assert shop.balance("alice") == 2_000 - 1_799.5
    assert shop.billing.admission.came_to("alice", "i1") == int(1_799.5 * MICROS)
    shop.billing.admission.used("shared", "alice", "i1", 1, 1.0)
    shop.wait(10.0)
    assert shop.billing.accounts.invoice("alice").lines == [
        market.InvoiceLine(
            what="i1",
            since=shop.now - 3_609.0,
            until=shop.now - 10.0,
            processor_seconds=3_600.0,
            amount=1_800 * MICROS,
        )
    ]
    assert records < 10
    assert shop.billing.accounts.account("alice").spent == 1_800 * MICROS
    shop.billing.admission.used("shared", "alice", "i1", 1, 2.0)  # counts on from what was posted
    shop.journal.commit()
    shop.crash()
    assert shop.billing.admission.came_to("alice", "i1") == 1_801 * MICROS
    assert (
        shop.billing.admission.came_to("bob", "i1")
        == shop.billing.admission.came_to("alice", "i2")
        == 0
    )
    assert shop.billing.faults() == []


def test_an_empty_account_runs_nothing_and_is_never_overdrawn() -> None:
    """What tasks at the same time used beyond it is not charged, nor later."""
    shop = Shop(selling=MarketSettings(credit=10.0, price_shared=True))
    assert shop.billing.admission.may_run("shared", "alice", shop.now) == 20.0
    shop.billing.admission.used("shared", "alice", "i1", 8, 100.0)
    assert shop.balance("alice") == 0.0
    assert shop.billing.admission.may_run("shared", "alice", shop.now) == Refusal(
        "the account is empty", final=False
    )
    assert isinstance(shop.buy("alice"), Reject)
    shop.billing.accounts.deposit("alice", api.Deposit(amount=10 * MICROS, key="1"))
    shop.billing.admission.used("shared", "alice", "i1", 1, 2.0)
    assert shop.balance("alice") == 9.0
    shop.wait(4_000.0)
    assert shop.balance("alice") == 9.0
    assert shop.billing.faults() == []


# What is on offer.


def test_slots_are_what_is_free() -> None:
    """
    Of 8, 4 are taken until 100 s and 2 from 200 to 300 s.

    So 4 are free throughout, 2 from 100 s on, and 2 from 100 s on but between 200 and 300 s.
    """
    shop = Shop()
    shop.bought("alice", 4, 100.0)
    shop.bought("alice", 2, 100.0, start=200.0)
    found = [(s.start, s.seconds, s.processors) for s in shop.billing.slots("bob", shop.now)]
    assert found == [(0.0, None, 4), (100.0, None, 2), (100.0, 100.0, 2), (300.0, None, 2)]
    assert {slot.unit_price for slot in shop.billing.slots("bob", shop.now)} == {0.5}


def test_another_price_holds_for_what_comes() -> None:
    """Agreements keep theirs; it outlives the service."""
    shop = Shop()
    name = shop.bought("alice")
    shop.billing.reprice(Pricing(2.0))
    assert shop.billing.posted("alice", shop.now) == 2.0
    assert shop.billing.agreement("alice", name).unit_price == 0.5
    assert shop.billing.agreement("bob", shop.bought("bob")).unit_price == 2.0
    assert list(shop.billing.sales()) == ["alice", "bob"]
    shop.billing.reprice(Pricing(3.0))
    shop.journal.commit()
    shop.crash()
    assert shop.billing.posted("alice", shop.now) == 3.0
    assert shop.billing.agreement("alice", shop.bought("alice")).unit_price == 3.0


def test_a_price_holds_until_the_file_asks_for_another() -> None:
    """
    Read again as it was, or after a crash, the file changes nothing. Where it has changed it
    counts, and what was said before is forgotten for good, even if the old file comes back.
    """
    old, new = SITE, replace(SITE, unit_price=0.75)
    shop = Shop(old)

    def asked() -> float:
        return shop.billing.posted("alice", shop.now)

    def crash_into(site: SiteFacts) -> None:
        shop.journal.commit()
        shop.configure(site)
        shop.crash()

    shop.billing.reprice(Pricing(2.0))
    shop.billing.reconfigure(Pricing(old.unit_price or 0.0))
    assert asked() == 2.0
    crash_into(old)
    assert asked() == 2.0
    shop.billing.reconfigure(Pricing(0.75))
    assert asked() == 0.75
    shop.billing.reprice(Pricing(3.0))
    crash_into(new)
    assert asked() == 3.0
    crash_into(old)
    assert asked() == old.unit_price
    crash_into(new)
    assert asked() == 0.75


def test_accounts_stay_in_their_currency() -> None:
    """Amounts in SU do not become amounts in EUR because the configuration was changed."""
    shop = Shop()
    shop.bought("alice")
    shop.journal.commit()
    shop.configure(replace(SITE, currency="EUR"))
    with pytest.raises(InputError, match="the accounts are in SU, the site's prices in EUR"):
        shop.crash()
    shop.configure(SITE)
    shop.crash()
    assert shop.billing.faults() == []


@pytest.mark.parametrize("how", ["lost", "changed", "swapped", "forged"])
def test_rows_that_were_changed_below_the_service_are_found(how: str) -> None:
    """Also a row that is possible in itself, with a checksum of the store that fits."""
    shop = Shop()
    for user in ("alice", "bob"):
        shop.billing.accounts.deposit(user, api.Deposit(amount=5 * MICROS, key="1"))
    shop.journal.commit()
    records = shop.journal.durable_records
    rows = [position for position, (kind, _) in sorted(records.items()) if kind == ROW]
    position, other = rows[1], rows[2]
    if how == "lost":
        del records[rows[-2]]
    elif how == "swapped":
        records[position], records[other] = records[other], records[position]
        row, chain, currency = msgspec.msgpack.decode(records[position][1])
        records[position] = ROW, msgspec.msgpack.encode(({**row, "number": 2}, chain, currency))
    else:
        row, chain, currency = msgspec.msgpack.decode(records[position][1])
        changed = {**row, "memo": "gift"} if how == "forged" else {**row, "amount": 1}
        records[position] = ROW, msgspec.msgpack.encode((changed, chain, currency))

    with pytest.raises(InputError, match=r"row [234]: was changed, or one before it is missing"):
        shop.crash()


def test_keys_of_deposits_are_each_users_own() -> None:
    """Wherever the colons are: user "a" with key "b:c" is not user "a:b" with key "c"."""
    shop = Shop()
    for user, key in (("a", "b:c"), ("a:b", "c"), ("a%3Ab", "c"), ("a", "b%3Ac")):
        before = shop.balance(user)
        for _ in range(2):
            shop.billing.accounts.deposit(user, api.Deposit(amount=5 * MICROS, key=key))
        assert shop.balance(user) == before + 5
    assert shop.billing.faults() == []


def test_a_user_called_like_the_owner_has_an_account() -> None:
    """The owner's own account is not a user's."""
    shop = Shop()
    name = shop.bought(SITE.name)
    shop.billing.admission.ready(name, 1)
    shop.wait(100.0)
    assert shop.billing.accounts.account(SITE.name).spent == 50 * MICROS
    refusal = shop.buy(f"{SITE.name} (owner)")
    assert isinstance(refusal, Reject)
    assert shop.billing.faults() == []


def test_nothing_is_sold_that_ends_after_everyone() -> None:
    """Moments too far away are refused, not stumbled over."""
    shop = Shop(SiteFacts(name="uni", processors=1))
    assert isinstance(shop.buy("alice", seconds=2.4e11), Reject)
    assert isinstance(shop.buy("alice", start=2.4e11), Reject)
    assert [slot.seconds for slot in shop.billing.slots("alice", shop.now)] == [None]
    shop.bought("alice")


@pytest.mark.parametrize(("jump", "charged"), [(30.0, 4 * 70.0 * 0.5), (2_400.0, 4 * 20.0 * 0.5)])
def test_a_clock_that_is_put_forward_charges_nobody(jump: float, charged: float) -> None:
    """4 processors x 100 s x 0.5; after 20 s the clock jumps: that time was held by nobody."""
    shop = Shop()
    name = shop.bought("alice", 4, 100.0)
    shop.billing.admission.ready(name, 4)
    shop.wait(20.0)
    before = shop.now
    shop.now += jump
    shop.billing.skipped(before, shop.now)
    shop.wait(100.0)
    shop.billing.admission.ready(name, 0)
    shop.wait(1.0)
    info = shop.billing.agreement("alice", name)
    assert (info.state, info.charged) == ("over", charged * MICROS)
    assert shop.billing.faults() == []


def test_shared_use_that_cannot_be_paid_stays_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither posted nor forgotten, and paid as soon as the account allows that."""
    shop = Shop(selling=MarketSettings(credit=2_000.0, price_shared=True))
    shop.billing.admission.used("shared", "alice", "i1", 1, 100.0)
    with monkeypatch.context() as refusing:
        refusing.setattr(
            ServiceLedger, "hold", lambda *_: Refusal("the quota is used up", final=False)
        )
        shop.wait(4_000.0)
    assert shop.billing.accounts.invoice("alice").lines == []
    assert shop.balance("alice") == 1_950.0
    shop.journal.commit()
    shop.crash()
    assert shop.balance("alice") == 1_950.0
    shop.wait(4_000.0)
    assert shop.billing.accounts.account("alice").spent == 50 * MICROS
    assert shop.balance("alice") == 1_950.0
    assert shop.billing.faults() == []
