"""
Accounts of many users and providers: double entry, in integer micro-units of one currency.

Accounts
--------
``bank``
    The outside world that grants allocations; the only account below zero.
``user:<name>``
    What a user has been granted and has neither set aside nor spent.
``held:<agreement>``
    Set aside for an agreement.
``provider:<name>``
    What a provider has been paid.

The rows are the book; balances follow from them. Every row takes from one
account what it gives another, so the balances always sum to zero. Every
operation has a key: asked again with the same key, it answers with the row it
made the first time and moves nothing.

The ledger of one run is :mod:`bursar.market.ledger`; here runs, users and
providers come together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from time import gmtime
from types import MappingProxyType
from typing import Literal

import msgspec

from bursar.model.admission import Refusal
from bursar.model.errors import InputError, spelling_hint
from bursar.model.money import Micros, check_currency, format_amount

BANK = "bank"
LARGEST = 2**63 - 1
"""Largest amount of one row, micro-units: a book holds it in 64 bits."""

Kind = Literal["user", "provider"]
Per = Literal["all", "year", "month", "day"]
"""Time over which a quota counts, in UTC; ``"all"``: for ever."""

_USER, _PROVIDER, _HELD = "user:", "provider:", "held:"
_SHAPES = {
    "grant": (BANK, _USER),
    "transfer": (_USER, _USER),
    "hold": (_USER, _HELD),
    "release": (_HELD, _USER),
    "settle": (_HELD, _PROVIDER),
    "refund": (_PROVIDER, _USER),
}
_PARTS: Mapping[Per, int] = {"all": 0, "year": 1, "month": 2, "day": 3}
_END_OF_TIME = 253402300800.0  # the year 10000: no date names what comes then


class LedgerRow(msgspec.Struct, frozen=True, gc=False):
    """
    A double entry: ``amount`` leaves ``source`` and enters ``target``.

    Parameters
    ----------
    number
        1 for the first row of a book.
    time
        Seconds since the epoch.
    key
        Idempotency key of the operation; unique in a book.
    kind
        ``"grant"``, ``"transfer"``, ``"hold"``, ``"release"``, ``"settle"`` or ``"refund"``.
    source, target
        Accounts from and to which the amount moves.
    amount
        Micro-units. Positive.
    agreement
        The agreement it belongs to; empty for none.
    memo
        One line for people.
    """

    number: int
    time: float
    key: str
    kind: str
    source: str
    target: str
    amount: Micros
    agreement: str = ""
    memo: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendingQuota:
    """
    Limits the sum of a user's agreements in a period.

    An agreement counts, with all that is held for it or paid and not refunded,
    in the period in which it was first held.

    Parameters
    ----------
    amount
        Micro-units. Not negative.
    per
        The period.
    """

    amount: Micros
    per: Per = "all"

    def __post_init__(self) -> None:
        if not 0 <= self.amount <= LARGEST:
            raise ValueError(f"a quota must be between 0 and 2^63, got {self.amount}")
        if self.per not in _PARTS:
            raise ValueError(f"a quota is per {', '.join(_PARTS)}, got {self.per}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerAccount:
    """
    Parameters
    ----------
    name
        Unique among users and providers.
    kind
        ``"user"`` or ``"provider"``.
    group
        Users of one group may transfer to each other; empty for none.
    quota
        Of a user; None for none.
    """

    name: str
    kind: Kind = "user"
    group: str = ""
    quota: SpendingQuota | None = None

    def __post_init__(self) -> None:
        if not self.name.strip() or not (self.name + self.group).isprintable():
            raise ValueError(f"name and group must be printable, the name not empty: {self.name!r}")
        if self.kind not in ("user", "provider"):
            raise ValueError(f'kind must be "user" or "provider", got "{self.kind}"')
        if self.kind == "provider" and (self.quota or self.group):
            raise ValueError("a provider has no group and no quota")

    @property
    def id(self) -> str:
        """Name of the account in rows."""
        return f"{self.kind}:{self.name}"


@dataclass(slots=True, eq=False)
class AgreementBalance:
    """
    Holds the sums of an agreement's payments and holds.

    Parameters
    ----------
    user, provider
        Whose; the provider is empty until it is paid.
    since
        When it was first held, seconds since the epoch.
    held, paid, refunded
        Micro-units: set aside now, paid so far, of that refunded.
    """

    user: str
    since: float
    provider: str = ""
    held: Micros = 0
    paid: Micros = 0
    refunded: Micros = 0


@dataclass(slots=True, eq=False)
class _UserBalance:
    """Holds a user's sum of holds, and the sum used in each period."""

    account: LedgerAccount
    held: Micros = 0
    used: dict[tuple[int, ...], Micros] = field(default_factory=dict)

    def use(self, since: float, amount: Micros) -> None:
        if self.account.quota is not None:
            period = _period(self.account.quota.per, since)
            self.used[period] = self.used.get(period, 0) + amount


class Accounts:
    """
    Keeps balances and the rows from which they follow.

    Every operation returns the row it posted, or a :class:`Refusal` when it
    moved nothing: ``final`` unless more allocation, quota or time may help.
    Its arguments are the moment, seconds since the epoch; a key; who and how
    much, in micro-units; ``currency`` where the asker names one, which must
    then be that of the accounts.

    Parameters
    ----------
    currency
        Currency of every amount.
    opened, rows
        Accounts and rows to start from, in the order made; empty for a new book.

    Raises
    ------
    InputError
        When a row could not have been made: rows are missing, out of order or changed.
    """

    def __init__(
        self,
        currency: str = "SU",
        opened: Iterable[LedgerAccount] = (),
        rows: Iterable[LedgerRow] = (),
    ) -> None:
        self.currency = check_currency(currency)
        self._accounts: dict[str, LedgerAccount] = {}
        self._balances: dict[str, Micros] = {BANK: 0}
        self._holders: dict[str, _UserBalance] = {}
        self._agreements: dict[str, AgreementBalance] = {}
        self._by_key: dict[str, LedgerRow] = {}
        self._rows: list[LedgerRow] = []
        for account in opened:
            Accounts.open_account(self, account)
        for row in rows:
            self._replay(row)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> tuple[LedgerRow, ...]:
        """Every row, in the order made."""
        return tuple(self._rows)

    @property
    def accounts(self) -> Mapping[str, LedgerAccount]:
        """Users and providers by name, in the order opened."""
        return MappingProxyType(self._accounts)

    @property
    def agreements(self) -> Mapping[str, AgreementBalance]:
        """What each agreement has come to, by its id; not to be changed."""
        return MappingProxyType(self._agreements)

    @property
    def balances(self) -> dict[str, Micros]:
        """Every account there is: bank, users, providers, agreements."""
        return dict(self._balances)

    def balance(self, account: str) -> Micros:
        """Return the balance of an account (``"user:alice"``); 0 for one never used."""
        return self._balances.get(account, 0)

    def held(self, user: str) -> Micros:
        """Return the sum of holds of a user's agreements."""
        return self._holders[user].held if user in self._holders else 0

    def used(self, user: str, now: float) -> Micros:
        """Return what counts against a user's quota in the period of ``now``; 0 without a quota."""
        holder = self._holders.get(user)
        if holder is None or holder.account.quota is None:
            return 0
        return holder.used.get(_period(holder.account.quota.per, now), 0)

    def available(self, user: str, now: float) -> Micros:
        """
        Return the most that an agreement first held at a moment may set aside, micro-units.

        That is the user's balance, or what the quota leaves in that moment's period if less.
        """
        holder = self._holders.get(user)
        if holder is None:
            return 0
        balance = self._balances[_USER + user]
        quota = holder.account.quota
        if quota is None:
            return balance
        return max(0, min(balance, quota.amount - self.used(user, now)))

    def is_one_period(self, user: str, one: float, other: float) -> bool:
        """Return whether two moments are in the same period of a user's quota."""
        holder = self._holders.get(user)
        quota = None if holder is None else holder.account.quota
        return quota is None or _period(quota.per, one) == _period(quota.per, other)

    def row_of(self, key: str) -> LedgerRow | None:
        """Return the row that the operation with this key made."""
        return self._by_key.get(key)

    def known(self, name: str, kind: Kind | None = None) -> LedgerAccount:
        """
        Return the account with a name.

        Raises
        ------
        InputError
            When there is none, or it is of another kind.
        """
        account = self._accounts.get(name)
        if account is None:
            hint = spelling_hint(name, self._accounts)
            raise InputError(f'no account "{name}"', hint=hint)
        if kind is not None and account.kind != kind:
            raise InputError(f'"{name}" is a {account.kind}, expected a {kind}')
        return account

    # Operations.

    def open_account(self, account: LedgerAccount) -> LedgerAccount | Refusal:
        """Open an account; do nothing when the same account is open already."""
        found = self._accounts.get(account.name)
        if found is not None:
            return found if found == account else _no(f'there is an account "{account.name}"')
        self._put(account)
        self._balances[account.id] = 0
        return account

    def set_quota(self, user: str, quota: SpendingQuota | None) -> LedgerAccount | Refusal:
        """Gives a user another quota. What is above it already stays."""
        holder = self._holders.get(user)
        if holder is None:
            return self._unknown(_USER + user)
        old = holder.account
        account = LedgerAccount(name=user, kind="user", group=old.group, quota=quota)
        self._put(account)
        return account

    def grant(
        self,
        now: float,
        key: str,
        user: str,
        amount: Micros,
        *,
        memo: str = "",
        currency: str | None = None,
    ) -> LedgerRow | Refusal:
        """Add an amount from the bank to a user's allocation."""
        target = _USER + user
        answer = self._look(now, key, BANK, target, amount, memo, currency)
        return answer or self._post(now, key, "grant", BANK, target, amount, "", memo)

    def transfer(
        self,
        now: float,
        key: str,
        giver: str,
        taker: str,
        amount: Micros,
        *,
        memo: str = "",
        currency: str | None = None,
    ) -> LedgerRow | Refusal:
        """Move part of a user's allocation to another user of the same group."""
        source, target = _USER + giver, _USER + taker
        answer = self._look(now, key, source, target, amount, memo, currency)
        if answer is not None:
            return answer
        group = self._accounts[giver].group
        if giver == taker:
            return _no(f"{giver} cannot transfer to themselves")
        if not group or group != self._accounts[taker].group:
            return _no(f"{giver} and {taker} are not of one group")
        return self._post(now, key, "transfer", source, target, amount, "", memo)

    def hold(
        self,
        now: float,
        key: str,
        user: str,
        agreement: str,
        amount: Micros,
        *,
        memo: str = "",
        currency: str | None = None,
    ) -> LedgerRow | Refusal:
        """
        Sets part of a user's allocation aside for an agreement, or more for the same.

        Refused over the allocation or the quota.
        """
        source, target = _USER + user, _HELD + agreement
        answer = self._look(now, key, source, target, amount, memo, currency)
        if answer is not None:
            return answer
        found = self._agreements.get(agreement)
        if found is None and not (agreement and agreement.isprintable()):
            return _no("an agreement's id must be printable and not empty")
        if found is not None and found.user != user:
            return _no(f"{agreement} is not an agreement of {user}")
        holder = self._holders[user]
        quota = holder.account.quota
        if quota is not None:
            period = _period(quota.per, now if found is None else found.since)
            over = holder.used.get(period, 0) + amount - quota.amount
            if over > 0:
                per = "in all" if quota.per == "all" else f"per {quota.per}"
                return Refusal(
                    f"{self._format(over)} over the quota of {user}, "
                    f"{self._format(quota.amount)} {per}",
                    final=False,
                )
        return self._post(now, key, "hold", source, target, amount, agreement, memo)

    def release(
        self,
        now: float,
        key: str,
        agreement: str,
        amount: Micros,
        *,
        memo: str = "",
        currency: str | None = None,
    ) -> LedgerRow | Refusal:
        """Gives part of what an agreement holds back to its user."""
        found = self._agreements.get(agreement)
        if found is None:
            return _no(f'no agreement "{agreement}"')
        source, target = _HELD + agreement, _USER + found.user
        answer = self._look(now, key, source, target, amount, memo, currency)
        return answer or self._post(now, key, "release", source, target, amount, agreement, memo)

    def settle(
        self,
        now: float,
        key: str,
        agreement: str,
        provider: str,
        amount: Micros,
        *,
        memo: str = "",
        currency: str | None = None,
    ) -> LedgerRow | Refusal:
        """Pay the provider from the hold of an agreement."""
        found = self._agreements.get(agreement)
        if found is None:
            return _no(f'no agreement "{agreement}"')
        source, target = _HELD + agreement, _PROVIDER + provider
        answer = self._look(now, key, source, target, amount, memo, currency)
        if answer is not None:
            return answer
        if found.provider not in ("", provider):
            return _no(f"{agreement} is an agreement with {found.provider}")
        return self._post(now, key, "settle", source, target, amount, agreement, memo)

    def refund(
        self,
        now: float,
        key: str,
        agreement: str,
        amount: Micros,
        *,
        memo: str = "",
        currency: str | None = None,
    ) -> LedgerRow | Refusal:
        """
        The provider pays back what it did not deliver.

        Refused beyond what was paid for the agreement and not refunded before.
        """
        found = self._agreements.get(agreement)
        if found is None:
            return _no(f'no agreement "{agreement}"')
        if not found.provider:
            return _no(f"nothing was paid for {agreement}")
        source, target = _PROVIDER + found.provider, _USER + found.user
        answer = self._look(now, key, source, target, amount, memo, currency, agreement)
        if answer is not None:
            return answer
        left = found.paid - found.refunded
        if amount > left:
            return _no(
                f"{self._format(amount)} asked back, of what was paid for {agreement} "
                f"{self._format(left)} are left"
            )
        return self._post(now, key, "refund", source, target, amount, agreement, memo)

    def faults(self) -> list[str]:
        """
        Return errors in the balances; always empty unless this module has a bug.

        They sum to zero, are those of the rows, and none but the bank's is negative.
        """
        found = []
        again: dict[str, Micros] = dict.fromkeys(self._balances, 0)
        for row in self._rows:
            again[row.source] -= row.amount
            again[row.target] += row.amount
        if again != self._balances:
            found.append("the balances are not those of the rows")
        if total := sum(self._balances.values()):
            found.append(f"the balances sum to {self._format(total)}, expected 0")
        found += [
            f"{account} is at {self._format(balance)}"
            for account, balance in self._balances.items()
            if balance < 0 and account != BANK
        ]
        return found

    # Inside.

    def _look(
        self,
        now: float,
        key: str,
        source: str,
        target: str,
        amount: Micros,
        memo: str,
        currency: str | None,
        agreement: str | None = None,
    ) -> LedgerRow | Refusal | None:
        """The row of this key, or why it cannot be; None: go on."""
        row = self._by_key.get(key)
        if row is not None:
            same = row.source == source and row.target == target and row.amount == amount
            if same and (agreement is None or row.agreement == agreement):
                return row
            return _no(f'the key "{key}" was used for something else')
        if type(amount) is not int:
            return _no(f"an amount is a whole number of micro-units, got {amount!r}")
        if not 0 < amount <= LARGEST:
            return _no(f"an amount must be positive and below 2^63, got {amount}")
        if currency is not None and currency != self.currency:
            return _no(f"the accounts are in {self.currency}, not in {currency}")
        if not key or not key.isprintable() or not memo.isprintable():
            return _no("a key must be printable and not empty, a memo one printable line")
        if not 0 <= now < _END_OF_TIME:
            return _no(f"a moment must be in seconds since the epoch, got {now}")
        if source not in self._balances:
            return self._unknown(source)
        if target not in self._balances and not target.startswith(_HELD):
            return self._unknown(target)
        return None

    def _post(
        self,
        now: float,
        key: str,
        kind: str,
        source: str,
        target: str,
        amount: Micros,
        agreement: str,
        memo: str,
    ) -> LedgerRow | Refusal:
        if self._balances[source] < amount and source != BANK:
            short = amount - self._balances[source]
            return Refusal(f"{source} is {self._format(short)} short", final=False)
        row = LedgerRow(
            len(self._rows) + 1, float(now), key, kind, source, target, amount, agreement, memo
        )
        self._apply(row)
        return row

    def _apply(self, row: LedgerRow) -> None:
        balances = self._balances
        balances[row.source] -= row.amount
        balances[row.target] = balances.get(row.target, 0) + row.amount
        self._rows.append(row)
        self._by_key[row.key] = row
        if row.agreement:
            self._note(row)

    def _note(self, row: LedgerRow) -> None:
        """Keeps the agreement, and its user's quota, in step with a row."""
        amount, kind = row.amount, row.kind
        found = self._agreements.get(row.agreement)
        if found is None:
            found = AgreementBalance(row.source[len(_USER) :], row.time)
            self._agreements[row.agreement] = found
        holder = self._holders[found.user]
        if kind == "hold":
            found.held += amount
            holder.held += amount
            holder.use(found.since, amount)
            return
        if kind == "refund":
            found.refunded += amount
            holder.use(found.since, -amount)
            return
        found.held -= amount
        holder.held -= amount
        if kind == "settle":
            found.paid += amount
            found.provider = row.target[len(_PROVIDER) :]
        else:
            holder.use(found.since, -amount)

    def _replay(self, row: LedgerRow) -> None:
        fault = self._fault_of(row)
        if fault:
            raise InputError(fault, where=f"row {len(self._rows) + 1}")
        self._apply(row)

    def _fault_of(self, row: LedgerRow) -> str:
        """Why a row cannot follow those before it; empty when it can."""
        left, right = _SHAPES.get(row.kind, ("?", "?"))
        found = self._agreements.get(row.agreement)
        if row.number != len(self._rows) + 1:
            return f"is numbered {row.number}"
        if not row.source.startswith(left) or not row.target.startswith(right):
            return f'no "{row.kind}" goes from "{row.source}" to "{row.target}"'
        if row.key in self._by_key:
            return f'repeats the key "{row.key}"'
        if row.source not in self._balances:
            return f'no account "{row.source}"'
        if row.target not in self._balances and row.kind != "hold":
            return f'no account "{row.target}"'
        if not 0 < row.amount <= LARGEST:
            return f"moves {row.amount} micro-units"
        if row.source != BANK and self._balances[row.source] < row.amount:
            return f'takes {row.amount} from "{row.source}", {self._balances[row.source]} are there'
        if not _is_of_its_agreement(row, found):
            return f'does not belong to the agreement "{row.agreement}"'
        if row.kind == "refund" and (found is None or found.paid - found.refunded < row.amount):
            return f'refunds more than was paid for "{row.agreement}"'
        return ""

    def _put(self, account: LedgerAccount) -> None:
        """Enters an account, and counts what its agreements used anew under its quota."""
        self._accounts[account.name] = account
        if account.kind == "user":
            holder = self._holders.setdefault(account.name, _UserBalance(account))
            holder.account = account
            holder.used.clear()
            if account.quota is not None:
                for agreement in self._agreements.values():
                    if agreement.user == account.name:
                        net = agreement.held + agreement.paid - agreement.refunded
                        holder.use(agreement.since, net)

    def _unknown(self, account: str) -> Refusal:
        kind, _, name = account.partition(":")
        hint = spelling_hint(name, [a.name for a in self._accounts.values() if a.kind == kind])
        return _no(f'no {kind} "{name}"' + (f" ({hint})" if hint else ""))

    def _format(self, amount: Micros) -> str:
        return format_amount(amount, self.currency)


def _is_of_its_agreement(row: LedgerRow, found: AgreementBalance | None) -> bool:
    """Whether the accounts of a row are those of the agreement it names, as it stood before."""
    if row.kind in ("grant", "transfer"):
        return not row.agreement
    if found is None:
        return row.kind == "hold" and row.target == _HELD + row.agreement != _HELD
    held, user, provider = _HELD + row.agreement, _USER + found.user, _PROVIDER + found.provider
    return (row.source, row.target) in {
        "hold": [(user, held)],
        "release": [(held, user)],
        "settle": [(held, provider if found.provider else row.target)],
        "refund": [(provider, user)],
    }[row.kind]


def _no(reason: str) -> Refusal:
    return Refusal(reason, final=True)


def _period(per: Per, moment: float) -> tuple[int, ...]:
    """Year, month and day of a moment, as many as name the period."""
    parts = _PARTS[per]
    return gmtime(moment)[:parts] if parts else ()
