"""Grants with a period are spent in their time only, the one that ends first, first."""

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.market.account_records import BANK, LedgerAccount
from bursar.market.accounts import Accounts
from bursar.market.grants import (
    DAY,
    DatedGrant,
    GrantPeriod,
    forecast,
    measure_rate,
    parse_grant_period,
)
from bursar.market.statements import make_burn_downs, make_statement
from bursar.model.errors import InputError
from bursar.model.money import Refusal, Transfer

OPENED = [
    LedgerAccount(name="ann", group="lab"),
    LedgerAccount(name="ben", group="lab"),
    LedgerAccount(name="uni", kind="provider"),
]


def opened() -> Accounts:
    return Accounts("SU", OPENED)


def grant(
    accounts: Accounts, key: str, amount: int, begin: float, end: float, now: float = 0.0
) -> None:
    answer = accounts.grant(now, key, "ann", amount, period=GrantPeriod(begin, end))
    assert isinstance(answer, Transfer)


@dataclass
class Coin:
    """One micro-unit: the grant that it is of, and where it is."""

    grant: str
    begin: float
    end: float
    place: str = "free"
    drawn: int = 0


@dataclass
class CoinTwin:
    """The same rules for single coins."""

    coins: list[Coin] = field(default_factory=list)
    moves: int = 0

    def usable(self, now: float) -> list[Coin]:
        free = [c for c in self.coins if c.place == "free" and c.begin <= now < c.end]
        return sorted(free, key=lambda c: (c.end, c.begin))

    def move(self, coins: list[Coin], place: str) -> None:
        for coin in coins:
            self.moves += 1
            coin.place, coin.drawn = place, self.moves

    def at(self, place: str) -> list[Coin]:
        return sorted((c for c in self.coins if c.place == place), key=lambda c: c.drawn)

    def ask(self, kind: str, now: float, agreement: str, amount: int) -> bool:
        if kind == "hold":
            found = self.usable(now)
            place = f"held {agreement}"
            # What is drawn together keeps the order in which it is to be paid.
        elif kind == "settle":
            found, place = self.at(f"held {agreement}"), f"paid {agreement}"
        elif kind == "release":
            found, place = self.at(f"held {agreement}")[::-1], "free"
        else:
            found, place = self.at(f"paid {agreement}")[::-1], "free"
        if len(found) < amount:
            return False
        self.move(found[:amount], place)
        return True

    def left(self, grant: str) -> int:
        return sum(c.grant == grant and c.place == "free" for c in self.coins)

    def unpaid(self, grant: str) -> int:
        return sum(c.grant == grant and not c.place.startswith("paid") for c in self.coins)


periods = st.tuples(st.integers(-5, 60), st.integers(1, 60)).map(lambda x: (x[0], x[0] + x[1]))
asked = st.tuples(
    st.sampled_from(["hold", "hold", "settle", "release", "refund"]),
    st.integers(0, 80),
    st.sampled_from("ab"),
    st.integers(1, 12),
)


@given(
    dated=st.lists(st.tuples(periods, st.integers(1, 15)), max_size=4, unique_by=lambda x: x[0]),
    always=st.integers(0, 10),
    moves=st.lists(asked, max_size=25),
)
def test_each_coin_goes_where_the_rules_say(
    dated: list[tuple[tuple[int, int], int]],
    always: int,
    moves: list[tuple[str, int, str, int]],
) -> None:
    """Amounts by grant are those of coins that are moved one by one, and follow from the rows."""
    accounts, twin = opened(), CoinTwin()
    if always:
        accounts.grant(0.0, "always", "ann", always)
        twin.coins += [Coin("", -math.inf, math.inf) for _ in range(always)]
    for number, ((begin, end), amount) in enumerate(dated):
        grant(accounts, f"g{number}", amount, begin, end)
        twin.coins += [Coin(f"g{number}", begin, end) for _ in range(amount)]
    for number, (kind, now, agreement, amount) in enumerate(moves):
        assert accounts.available("ann", now) == len(twin.usable(now))
        key = f"{number}"
        if kind == "hold":
            answer = accounts.hold(now, key, "ann", agreement, amount)
        elif kind == "settle":
            answer = accounts.settle(now, key, agreement, "uni", amount)
        elif kind == "release":
            answer = accounts.release(now, key, agreement, amount)
        else:
            answer = accounts.refund(now, key, agreement, amount)
        assert isinstance(answer, Transfer) == twin.ask(kind, now, agreement, amount), answer

    again = Accounts("SU", OPENED, accounts.rows)
    for book in (accounts, again):
        assert book.faults() == []
        found = {g.key: (g.left, g.unpaid) for g in book.grants("ann")}
        assert found == {k: (twin.left(k), twin.unpaid(k)) for k in found}

    lapsed = accounts.lapse(100.0)
    over = {f"g{i}": twin.left(f"g{i}") for i, ((_, end), _) in enumerate(dated) if end <= 100}
    assert {row.agreement: row.amount for row in lapsed} == {k: n for k, n in over.items() if n}
    assert accounts.lapse(100.0) == []
    assert accounts.faults() == Accounts("SU", OPENED, accounts.rows).faults() == []


def test_what_is_held_before_the_end_is_paid_after_it_and_the_rest_lapses() -> None:
    accounts = opened()
    grant(accounts, "g", 100, 0, 10)
    accounts.hold(9.0, "h", "ann", "run", 60)
    assert accounts.available("ann", 10.0) == 0
    assert [row.amount for row in accounts.lapse(10.0)] == [40]
    assert isinstance(accounts.settle(12.0, "s", "run", "uni", 50), Transfer)
    accounts.release(12.0, "r", "run", 10)
    (row,) = accounts.lapse(13.0)
    assert (row.amount, row.source, row.target, row.kind) == (10, "user:ann", BANK, "lapse")
    (g,) = accounts.grants("ann")
    assert (g.left, g.unpaid, g.lapsed) == (0, 0, 50)
    statement = make_statement(accounts, "ann")
    assert [(line.row.kind, line.amount) for line in statement.lines] == [
        ("grant", 100),
        ("lapse", -40),
        ("settle", -50),
        ("lapse", -10),
    ]


def test_money_with_an_end_is_not_given_to_others() -> None:
    """Else they could spend it after the end."""
    accounts = opened()
    grant(accounts, "g", 100, 0, 10)
    accounts.grant(0.0, "always", "ann", 5)
    refused = accounts.transfer(1.0, "t", "ann", "ben", 6)
    assert isinstance(refused, Refusal)
    assert "has no end and may be given away" in refused.reason
    assert isinstance(accounts.transfer(1.0, "t", "ann", "ben", 5), Transfer)


def test_a_repeated_grant_is_made_once_and_another_period_is_refused() -> None:
    accounts = opened()
    grant(accounts, "g", 100, 0, 10)
    grant(accounts, "g", 100, 0, 10)
    assert accounts.balance("user:ann") == 100
    assert isinstance(accounts.grant(0.0, "g", "ann", 100, period=GrantPeriod(0, 11)), Refusal)
    assert isinstance(accounts.grant(0.0, "g", "ann", 100), Refusal)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agreement": "soon"}, "names no period"),
        ({"kind": "lapse", "source": "user:ann", "target": BANK, "agreement": "x"}, 'no grant "x"'),
        (
            {"kind": "lapse", "source": "user:ann", "target": BANK, "agreement": "g"},
            "takes back what is not over",
        ),
    ],
)
def test_rows_that_could_not_have_been_made_are_refused(change: dict[str, str], said: str) -> None:
    accounts = opened()
    grant(accounts, "g", 100, 0, 10)
    fields = {"kind": "grant", "source": BANK, "target": "user:ann", "agreement": "", **change}
    row = Transfer(2, 5.0, "k", amount=1, **fields)
    with pytest.raises(InputError, match=said):
        Accounts("SU", OPENED, [*accounts.rows, row])


def test_a_hold_outside_its_grants_period_is_refused_when_rows_are_read() -> None:
    accounts = opened()
    grant(accounts, "g", 100, 0, 10)
    row = Transfer(2, 11.0, "k", "hold", "user:ann", "held:run", 1, "run")
    with pytest.raises(InputError, match="may be spent at this time"):
        Accounts("SU", OPENED, [*accounts.rows, row])


whole = st.integers(0, 4_000_000_000)


@given(begin=whole, length=st.integers(1, 10**9))
def test_a_period_is_written_in_one_way(begin: int, length: int) -> None:
    period = GrantPeriod(float(begin), float(begin + length))
    assert parse_grant_period(f"{period}") == period
    assert parse_grant_period(f"{GrantPeriod(end=float(begin))}") == GrantPeriod(end=float(begin))


@pytest.mark.parametrize(
    "text",
    ["", "/", "../..x", "2026-01-01/2026-02-01", "2026-02-01T00:00:00Z/2026-01-01T00:00:00Z"],
)
def test_what_is_no_period_is_none(text: str) -> None:
    assert parse_grant_period(text) is None


# How fast grants are spent.


def test_a_rate_is_that_of_the_last_weeks() -> None:
    """28 days of 10 a day after 32 days of 50: 10 a day without any deviation."""
    payments = [(d * DAY + 100.0, 50 if d < 32 else 10) for d in range(60)]
    rate = measure_rate(payments, 0.0, 60 * DAY)
    assert (rate.days, rate.mean, rate.deviation) == (28.0, 10.0, 0.0)
    assert rate.spent(5.0) == (50.0, 50.0, 50.0)


def test_nothing_is_known_before_the_first_day_begins() -> None:
    assert measure_rate([], 100.0, 100.0).days == 0


def one(key: str, left: int, begin: float, end: float) -> DatedGrant:
    return DatedGrant(key, "", GrantPeriod(begin * DAY, end * DAY), left, left, left)


def test_what_ends_first_is_forecast_to_be_spent_first() -> None:
    """At 10 a day from day 60: 150 of the first until day 75; of the second 50 until day 80."""
    rate = measure_rate([(d * DAY + 100.0, 10) for d in range(60)], 0.0, 60 * DAY)
    grants = [one("a", 150, 0, 90), one("b", 300, 0, 80 + 15)]
    first, second = forecast(grants, [[(0.0, 150)], [(0.0, 300)]], rate, 60 * DAY)
    assert (first.used_up, first.unspent) == (75 * DAY, (0, 0, 0))
    assert (second.begins, second.used_up) == (75 * DAY, None)
    assert second.unspent == (100, 100, 100)  # 95 - 75 = 20 days at 10


def test_what_is_spent_before_a_grant_begins_is_not_taken_from_it() -> None:
    """The first is used up on day 65; the second begins on day 70 and has 10 days: 100 of 300."""
    rate = measure_rate([(d * DAY + 100.0, 10) for d in range(60)], 0.0, 60 * DAY)
    grants = [one("a", 50, 0, 75), one("b", 300, 70, 80)]
    _, second = forecast(grants, [[(0.0, 50)], [(0.0, 300)]], rate, 60 * DAY)
    assert (second.begins, second.unspent) == (70 * DAY, (200, 200, 200))


def test_the_bounds_hold_eight_cases_of_ten() -> None:
    """Days of 0 and 20 in turns, each as likely: the sum of n days has the deviation 10 sqrt(n)."""
    rate = measure_rate([(d * DAY + 1.0, 20 * (d % 2)) for d in range(28)], 0.0, 28 * DAY)
    assert rate.deviation == pytest.approx(10.0, rel=0.02)
    middle, least, most = rate.spent(16.0)
    assert middle == pytest.approx(160.0)
    assert most - middle == pytest.approx(middle - least) == pytest.approx(1.2816 * 40, rel=0.02)


def test_a_burn_down_follows_the_rows() -> None:
    """Refunds come back; what others paid, and what was paid before the grant, is not in it."""
    accounts = opened()
    accounts.grant(0.0, "always", "ann", 30)
    accounts.hold(1.0, "h0", "ann", "before", 10)
    accounts.settle(1.0, "s0", "before", "uni", 10)
    grant(accounts, "g", 100, 2, 40 * DAY, now=2.0)
    accounts.hold(DAY, "h1", "ann", "run", 60)
    accounts.settle(2 * DAY, "s1", "run", "uni", 60)
    accounts.refund(3 * DAY, "r1", "run", 20)
    accounts.hold(4 * DAY, "h2", "ann", "open", 7)
    (burn,) = make_burn_downs(accounts, "ann", 10 * DAY)
    assert burn.points == ((2.0, 100), (2 * DAY, 40), (3 * DAY, 60))
    assert (burn.spent, burn.held, burn.grant.left) == (40, 7, 53)
    assert burn.elapsed == pytest.approx(0.25, abs=0.01)
    assert burn.rate.mean == pytest.approx(50 / 10, rel=0.01)
    assert make_burn_downs(accounts, "ben", 10 * DAY) == []
