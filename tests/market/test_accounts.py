"""The accounts of many users are balanced whatever is asked of them, and however often."""

import random
from collections.abc import Callable
from time import gmtime

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.thoroughness import examples

from bursar.market.account_records import BANK, LARGEST, LedgerAccount, SpendingQuota
from bursar.market.accounts import Accounts
from bursar.model.errors import InputError
from bursar.model.money import Refusal, Transfer

USERS = {
    "ann": LedgerAccount(name="ann", group="lab", quota=SpendingQuota(amount=900, per="month")),
    "ben": LedgerAccount(name="ben", group="lab"),
    "cleo": LedgerAccount(name="cleo", quota=SpendingQuota(amount=500)),
}
PROVIDERS = ("uni", "cloud")
DAY = 86400.0

users = st.sampled_from([*USERS, "nobody"])
providers = st.sampled_from([*PROVIDERS, "nowhere"])
agreements = st.sampled_from(["a", "b", "c", "d"])
amounts = st.integers(min_value=-1, max_value=600)
days = st.integers(min_value=0, max_value=70)


def opened() -> Accounts:
    return Accounts(
        "SU", [*USERS.values(), *(LedgerAccount(name=p, kind="provider") for p in PROVIDERS)]
    )


class Twin:
    """The same rules, said over the whole history each time."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str, str, int, str, float]] = []

    def balance(self, account: str) -> int:
        return sum(
            amount * ((target == account) - (source == account))
            for _, source, target, amount, _, _ in self.moves
        )

    def of(self, agreement: str, kind: str) -> list[tuple[str, str, str, int, str, float]]:
        return [m for m in self.moves if m[4] == agreement and m[0] == kind]

    def user_of(self, agreement: str) -> str | None:
        holds = self.of(agreement, "hold")
        return holds[0][1].removeprefix("user:") if holds else None

    def provider_of(self, agreement: str) -> str | None:
        paid = self.of(agreement, "settle")
        return paid[0][2].removeprefix("provider:") if paid else None

    def used(self, user: str, moment: float) -> int:
        quota = USERS[user].quota
        assert quota is not None
        parts = {"all": 0, "month": 2}[quota.per]
        total = 0
        for agreement in {m[4] for m in self.moves if m[4]}:
            since = self.of(agreement, "hold")[0][5]
            if self.user_of(agreement) == user and gmtime(since)[:parts] == gmtime(moment)[:parts]:
                total += sum(m[3] for m in self.of(agreement, "hold"))
                total -= sum(m[3] for k in ("release", "refund") for m in self.of(agreement, k))
        return total

    def allows(self, kind: str, amount: int, moment: float, **who: str) -> bool:
        agreement = who.get("agreement", "")
        user, provider = self.user_of(agreement), self.provider_of(agreement)
        if amount <= 0:
            return False
        if kind == "grant":
            return who["user"] in USERS
        if kind == "transfer":
            giver, taker = who["giver"], who["taker"]
            return {giver, taker} == {"ann", "ben"} and self.balance(f"user:{giver}") >= amount
        if kind == "hold":
            payer = who["user"]
            if payer not in USERS or user not in (None, payer):
                return False
            since = moment if user is None else self.of(agreement, "hold")[0][5]
            quota = USERS[payer].quota
            within = quota is None or self.used(payer, since) + amount <= quota.amount
            return within and self.balance(f"user:{payer}") >= amount
        if kind in ("release", "settle"):
            if self.balance(f"held:{agreement}") < amount:
                return False
            paid = who.get("provider")
            return kind == "release" or (paid in PROVIDERS and provider in (None, paid))
        paid = sum(m[3] for m in self.of(agreement, "settle"))
        return amount <= paid - sum(m[3] for m in self.of(agreement, "refund"))


class AccountsMachine(RuleBasedStateMachine):
    """Any history, beside its twin."""

    @initialize()
    def begin(self) -> None:
        self.accounts, self.twin = opened(), Twin()
        self.done: list[tuple[Callable[[], Transfer | Refusal], Transfer]] = []
        self.asked = 0

    def ask(self, kind: str, amount: int, day: int, **who: str) -> None:
        now = day * DAY
        self.asked += 1
        key, before = f"key-{self.asked}", self.accounts.balances
        allowed = self.twin.allows(kind, amount, now, **who)
        operation = getattr(self.accounts, kind)
        answer = operation(now, key, *who.values(), amount)
        assert isinstance(answer, Transfer) == allowed, answer
        if isinstance(answer, Refusal):
            assert answer.reason
            assert self.accounts.balances == before
            return
        move = (kind, answer.source, answer.target, amount, answer.agreement, now)
        self.twin.moves.append(move)
        self.done.append((lambda: operation(now + 1, key, *who.values(), amount), answer))

    @rule(user=users, amount=amounts, day=days)
    def grant(self, user: str, amount: int, day: int) -> None:
        self.ask("grant", amount, day, user=user)

    @rule(giver=users, taker=users, amount=amounts, day=days)
    def transfer(self, giver: str, taker: str, amount: int, day: int) -> None:
        self.ask("transfer", amount, day, giver=giver, taker=taker)

    @rule(user=users, agreement=agreements, amount=amounts, day=days)
    def hold(self, user: str, agreement: str, amount: int, day: int) -> None:
        self.ask("hold", amount, day, user=user, agreement=agreement)

    @rule(agreement=agreements, amount=amounts, day=days)
    def release(self, agreement: str, amount: int, day: int) -> None:
        self.ask("release", amount, day, agreement=agreement)

    @rule(agreement=agreements, provider=providers, amount=amounts, day=days)
    def settle(self, agreement: str, provider: str, amount: int, day: int) -> None:
        self.ask("settle", amount, day, agreement=agreement, provider=provider)

    @rule(agreement=agreements, amount=amounts, day=days)
    def refund(self, agreement: str, amount: int, day: int) -> None:
        self.ask("refund", amount, day, agreement=agreement)

    @rule(seed=st.integers(0, 1000))
    def all_of_it_again_in_another_order(self, seed: int) -> None:
        before = self.accounts.balances, self.accounts.rows
        for again, row in random.Random(seed).sample(self.done, len(self.done)):
            assert again() is row
        assert (self.accounts.balances, self.accounts.rows) == before

    @invariant()
    def it_balances(self) -> None:
        balances = self.accounts.balances
        assert sum(balances.values()) == 0
        assert all(b >= 0 for account, b in balances.items() if account != BANK)
        assert all(b == self.twin.balance(account) for account, b in balances.items())
        assert self.accounts.faults() == []

    @invariant()
    def quotas_and_refunds_hold(self) -> None:
        for user, account in USERS.items():
            held = sum(a.held for a in self.accounts.agreements.values() if a.user == user)
            assert self.accounts.held_by(user) == held
            for month in range(3):
                moment = month * 31 * DAY
                if account.quota is not None:
                    used = self.accounts.used(user, moment)
                    assert used == self.twin.used(user, moment) <= account.quota.amount
        for agreement in self.accounts.agreements.values():
            assert 0 <= agreement.refunded <= agreement.paid

    def teardown(self) -> None:
        if not hasattr(self, "accounts"):
            return
        again = Accounts("SU", self.accounts.accounts.values(), self.accounts.rows)
        assert again.balances == self.accounts.balances
        for user in USERS:
            assert again.held_by(user) == self.accounts.held_by(user)
            assert again.used(user, 0.0) == self.accounts.used(user, 0.0)


TestAccounts = AccountsMachine.TestCase
TestAccounts.settings = settings(max_examples=examples(40), stateful_step_count=40)


def funded(amount: int = 1000) -> Accounts:
    accounts = opened()
    assert isinstance(accounts.grant(0.0, "funds", "ben", amount), Transfer)
    return accounts


def test_the_usual_way_of_money() -> None:
    """1000 granted, 600 held, 450 paid, 150 back, 50 of the 450 refunded."""
    accounts = funded()
    accounts.hold(1.0, "1", "ben", "a", 600)
    accounts.settle(2.0, "2", "a", "uni", 450)
    accounts.release(2.0, "3", "a", 150)
    accounts.refund(3.0, "4", "a", 50, memo="a node was down")

    assert accounts.balance("user:ben") == 600
    assert accounts.balance("provider:uni") == 400
    assert accounts.balance(BANK) == -1000
    assert accounts.held_by("ben") == 0
    assert accounts.agreements["a"].refunded == 50


def test_a_key_means_one_thing() -> None:
    """The same is answered with the same row; anything else under the key is refused."""
    accounts = funded()
    row = accounts.hold(1.0, "k", "ben", "a", 10)
    assert accounts.hold(9.0, "k", "ben", "a", 10) is row
    for answer in (
        accounts.hold(1.0, "k", "ben", "a", 11),
        accounts.hold(1.0, "k", "ben", "b", 10),
        accounts.release(1.0, "k", "a", 10),
        accounts.grant(1.0, "k", "ben", 10),
    ):
        assert answer == Refusal('the key "k" was used for something else', final=True)


def test_a_refund_of_another_agreement_is_not_a_repeat() -> None:
    accounts = funded()
    for agreement in ("a", "b"):
        accounts.hold(1.0, f"h{agreement}", "ben", agreement, 10)
        accounts.settle(1.0, f"s{agreement}", agreement, "uni", 10)
    assert isinstance(accounts.refund(2.0, "k", "a", 5), Transfer)
    assert isinstance(accounts.refund(2.0, "k", "b", 5), Refusal)


def test_a_refused_key_may_be_used_when_there_is_money() -> None:
    accounts = opened()
    assert isinstance(accounts.hold(0.0, "k", "ben", "a", 5), Refusal)
    accounts.grant(1.0, "g", "ben", 5)
    assert isinstance(accounts.hold(2.0, "k", "ben", "a", 5), Transfer)


@pytest.mark.parametrize("amount", [0, -1, 1.5, True, "10", None, LARGEST + 1])
def test_what_is_no_amount_is_refused_with_a_reason(amount: object) -> None:
    accounts = funded()
    answer = accounts.hold(1.0, "k", "ben", "a", amount)  # type: ignore[arg-type]
    assert isinstance(answer, Refusal)
    assert "amount" in answer.reason
    assert answer.final
    assert accounts.balances == funded().balances


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (lambda a: a.grant(0.0, "k", "bem", 1), 'no user "bem" (did you mean "ben"?)'),
        (lambda a: a.grant(0.0, "k", "uni", 1), 'no user "uni"'),
        (lambda a: a.grant(0.0, "", "ben", 1), "key must be printable"),
        (lambda a: a.grant(0.0, "k", "ben", 1, memo="a\nb"), "one printable line"),
        (lambda a: a.grant(float("nan"), "k", "ben", 1), "moment"),
        (lambda a: a.hold(0.0, "k", "ben", "", 1), "id must be printable"),
        (lambda a: a.settle(0.0, "k", "zz", "uni", 1), 'no agreement "zz"'),
        (lambda a: a.release(0.0, "k", "zz", 1), 'no agreement "zz"'),
        (lambda a: a.refund(0.0, "k", "zz", 1), 'no agreement "zz"'),
        (lambda a: a.transfer(0.0, "k", "ben", "cleo", 1), "not of one group"),
        (lambda a: a.transfer(0.0, "k", "ben", "ben", 1), "themselves"),
        (lambda a: a.hold(0.0, "k", "ben", "a", 1001), "user:ben is 0.000001 SU short"),
        (lambda a: a.set_quota("uni", None), 'no user "uni"'),
        (
            lambda a: a.open_account(LedgerAccount(name="ben", kind="provider")),
            "there is an account",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(
    ask: Callable[[Accounts], Transfer | Refusal], reason: str
) -> None:
    accounts = funded()
    before = accounts.balances
    answer = ask(accounts)
    assert isinstance(answer, Refusal)
    assert reason in answer.reason
    assert accounts.balances == before


def test_a_quota_of_a_month_is_there_again_in_the_next() -> None:
    """And a refund in the next month gives the month that paid its part back, not this one."""
    accounts = opened()
    accounts.grant(0.0, "g", "ann", 5000)
    assert isinstance(accounts.hold(0.0, "1", "ann", "a", 900), Transfer)
    refusal = accounts.hold(30 * DAY, "2", "ann", "b", 1)
    assert refusal == Refusal("0.000001 SU over the quota of ann, 0.0009 SU per month", final=False)
    assert isinstance(accounts.hold(31 * DAY, "2", "ann", "b", 900), Transfer)
    accounts.settle(32 * DAY, "3", "a", "uni", 900)
    accounts.refund(33 * DAY, "4", "a", 100)
    assert accounts.used("ann", 0.0) == 800
    assert accounts.used("ann", 33 * DAY) == 900


def test_a_new_quota_counts_what_was_used_before_it() -> None:
    accounts = funded()
    accounts.hold(0.0, "1", "ben", "a", 400)
    accounts.set_quota("ben", SpendingQuota(amount=500, per="year"))
    assert accounts.used("ben", DAY) == 400
    assert isinstance(accounts.hold(DAY, "2", "ben", "b", 101), Refusal)
    assert isinstance(accounts.hold(DAY, "3", "ben", "b", 100), Transfer)


def test_no_more_is_refunded_than_is_left_of_what_was_paid() -> None:
    """Though the provider has more, from another agreement; the row is named by its number."""
    accounts = funded()
    for name, amount in (("a", 450), ("b", 100)):
        accounts.hold(1.0, f"hold {name}", "ben", name, amount)
        accounts.settle(2.0, f"settle {name}", name, "uni", amount)
    accounts.refund(3.0, "refund", "a", 50)
    rest, more = (
        Transfer(7, 4.0, "again", "refund", "provider:uni", "user:ben", amount, "a")
        for amount in (400, 401)
    )

    assert Accounts("SU", accounts.accounts.values(), (*accounts.rows, rest)).rows[-1] == rest
    with pytest.raises(InputError) as refused:
        Accounts("SU", accounts.accounts.values(), (*accounts.rows, more))
    assert str(refused.value) == (
        "row 7: 0.000401 SU asked back, of what was paid for a 0.0004 SU are left"
    )


def test_rows_that_cannot_have_been_made_are_refused() -> None:
    """A row left out, moved, or of the wrong hands."""
    accounts = funded()
    accounts.hold(1.0, "1", "ben", "a", 600)
    accounts.settle(2.0, "2", "a", "uni", 450)
    accounts.refund(3.0, "3", "a", 50)
    rows = accounts.rows
    grant, hold, settle, refund = rows
    too_much = Transfer(5, 3.0, "5", "refund", "provider:uni", "user:ben", 401, "a")
    for wrong in (
        rows[1:],
        (grant, settle),
        (grant, hold, hold),
        (
            grant,
            hold,
            settle,
            Transfer(4, 3.0, "3", "refund", "provider:cloud", "user:ben", 1, "a"),
        ),
        (grant, hold, Transfer(3, 3.0, "2", "release", "held:a", "user:ann", 1, "a")),
        (grant, hold, Transfer(3, 3.0, "2", "settle", "held:a", "provider:uni", 601, "a")),
        (grant, hold, Transfer(3, 3.0, "2", "settle", "held:a", "provider:uni", 5, "b")),
        (grant, Transfer(2, 3.0, "2", "refund", "provider:uni", "user:ben", 5, "a")),
        (grant, Transfer(2, 3.0, "2", "gift", "bank", "user:ben", 5)),
        (grant, Transfer(2, 3.0, "2", "grant", "bank", "user:zoe", 5)),
        (grant, Transfer(2, 3.0, "2", "grant", "bank", "user:ben", -5)),
        (grant, Transfer(2, 3.0, "funds", "grant", "bank", "user:ben", 5)),
        (grant, hold, settle, refund, too_much),
    ):
        with pytest.raises(InputError, match="row"):
            Accounts("SU", accounts.accounts.values(), wrong)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LedgerAccount(name=" "),
        lambda: LedgerAccount(name="a\nb"),
        lambda: LedgerAccount(name="a", kind="bank"),  # type: ignore[arg-type]
        lambda: LedgerAccount(name="a", kind="provider", group="lab"),
        lambda: SpendingQuota(amount=-1),
        lambda: SpendingQuota(amount=1, per="week"),  # type: ignore[arg-type]
    ],
)
def test_an_account_checks_itself(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must|per|has no"):
        make()
