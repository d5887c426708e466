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
from types import MappingProxyType

from bursar.market.account_records import (
    BANK,
    HELD_PREFIX,
    LARGEST,
    PROVIDER_PREFIX,
    USER_PREFIX,
    AgreementBalance,
    Kind,
    LedgerAccount,
    LedgerRow,
    SpendingQuota,
    UserBalance,
    matches_agreement,
    period_of,
)
from bursar.model.errors import InputError, spelling_hint
from bursar.model.money import Micros, Refusal, check_currency, format_amount

_SHAPES = {
    "grant": (BANK, USER_PREFIX),
    "transfer": (USER_PREFIX, USER_PREFIX),
    "hold": (USER_PREFIX, HELD_PREFIX),
    "release": (HELD_PREFIX, USER_PREFIX),
    "settle": (HELD_PREFIX, PROVIDER_PREFIX),
    "refund": (PROVIDER_PREFIX, USER_PREFIX),
}
_END_OF_TIME = 253402300800.0  # the year 10000: no date names what comes then


class Accounts:
    """
    Keeps rows, and the balances that follow from the rows.

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
        self._holders: dict[str, UserBalance] = {}
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
        """All rows, in the order made."""
        return tuple(self._rows)

    @property
    def accounts(self) -> Mapping[str, LedgerAccount]:
        """Users and providers by name, in the order opened."""
        return MappingProxyType(self._accounts)

    @property
    def agreements(self) -> Mapping[str, AgreementBalance]:
        """Sums of each agreement by id; a view that callers must not change."""
        return MappingProxyType(self._agreements)

    @property
    def balances(self) -> dict[str, Micros]:
        """Balances of all accounts: bank, users, providers, holds of agreements."""
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
        return holder.used.get(period_of(holder.account.quota.per, now), 0)

    def available(self, user: str, now: float) -> Micros:
        """
        Return the most that an agreement first held at a moment may set aside, micro-units.

        That is the user's balance, or what the quota leaves in that moment's period if less.
        """
        holder = self._holders.get(user)
        if holder is None:
            return 0
        balance = self._balances[USER_PREFIX + user]
        quota = holder.account.quota
        if quota is None:
            return balance
        return max(0, min(balance, quota.amount - self.used(user, now)))

    def is_one_period(self, user: str, one: float, other: float) -> bool:
        """Return whether two moments are in the same period of a user's quota."""
        holder = self._holders.get(user)
        quota = None if holder is None else holder.account.quota
        return quota is None or period_of(quota.per, one) == period_of(quota.per, other)

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
        # Asked twice, as after a crash before the answer: the same account is no error.
        found = self._accounts.get(account.name)
        if found is not None:
            return found if found == account else _no(f'there is an account "{account.name}"')
        self._put(account)
        self._balances[account.id] = 0
        return account

    def set_quota(self, user: str, quota: SpendingQuota | None) -> LedgerAccount | Refusal:
        """Give a user another quota; agreements above the new one stay."""
        holder = self._holders.get(user)
        if holder is None:
            return self._unknown(USER_PREFIX + user)
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
        target = USER_PREFIX + user
        answer = self._check_transfer(now, key, BANK, target, amount, memo, currency)
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
        source, target = USER_PREFIX + giver, USER_PREFIX + taker
        answer = self._check_transfer(now, key, source, target, amount, memo, currency)
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
        Set part of a user's allocation aside for an agreement, or more for the same one.

        Refused over the allocation or the quota.
        """
        source, target = USER_PREFIX + user, HELD_PREFIX + agreement
        answer = self._check_transfer(now, key, source, target, amount, memo, currency)
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
            # An agreement counts in the period in which it was first held: topping it up in a later
            # month must not count anew.
            period = period_of(quota.per, now if found is None else found.since)
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
        """Release part of an agreement's hold to the user."""
        found = self._agreements.get(agreement)
        if found is None:
            return _no(f'no agreement "{agreement}"')
        source, target = HELD_PREFIX + agreement, USER_PREFIX + found.user
        answer = self._check_transfer(now, key, source, target, amount, memo, currency)
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
        source, target = HELD_PREFIX + agreement, PROVIDER_PREFIX + provider
        answer = self._check_transfer(now, key, source, target, amount, memo, currency)
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
        Pay back to the user what the provider did not deliver.

        Refused beyond what was paid for the agreement and not refunded before.
        """
        found = self._agreements.get(agreement)
        if found is None:
            return _no(f'no agreement "{agreement}"')
        if not found.provider:
            return _no(f"nothing was paid for {agreement}")
        source, target = PROVIDER_PREFIX + found.provider, USER_PREFIX + found.user
        answer = self._check_transfer(now, key, source, target, amount, memo, currency, agreement)
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
        # Recomputed from the rows alone, so that an error in keeping the balances shows.
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

    def _check_transfer(
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
        """Return the row that this key made, or why there can be none; None: post one."""
        # Before any other check: a repeated request is answered as at first, even if the money, the
        # quota or an account's state has changed since.
        row = self._by_key.get(key)
        if row is not None:
            same = row.source == source and row.target == target and row.amount == amount
            if same and (agreement is None or row.agreement == agreement):
                return row
            return _no(f'the key "{key}" was used for something else')
        # Not isinstance: True is an int, and floats would bring rounding into the book.
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
        if target not in self._balances and not target.startswith(HELD_PREFIX):
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
        # The bank is the outside world: its debt is the sum of all grants.
        if self._balances[source] < amount and source != BANK:
            short = amount - self._balances[source]
            return Refusal(f"{source} is {self._format(short)} short", final=False)
        row = LedgerRow(
            len(self._rows) + 1, float(now), key, kind, source, target, amount, agreement, memo
        )
        self._apply(row)
        return row

    def _apply(self, row: LedgerRow) -> None:
        """
        Move a checked row's amount between its accounts, and remember the row under its key.

        A first hold creates its target: the account of an agreement's held money is never opened.
        """
        balances = self._balances
        balances[row.source] -= row.amount
        balances[row.target] = balances.get(row.target, 0) + row.amount
        self._rows.append(row)
        self._by_key[row.key] = row
        if row.agreement:
            self._note(row)

    def _note(self, row: LedgerRow) -> None:
        """Count a row in the agreement's sums and in the user's quota."""
        amount, kind = row.amount, row.kind
        found = self._agreements.get(row.agreement)
        if found is None:
            found = AgreementBalance(row.source[len(USER_PREFIX) :], row.time)
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
            found.provider = row.target[len(PROVIDER_PREFIX) :]
        else:
            holder.use(found.since, -amount)

    def _replay(self, row: LedgerRow) -> None:
        fault = self._fault_of(row)
        if fault:
            raise InputError(fault, where=f"row {len(self._rows) + 1}")
        self._apply(row)

    def _fault_of(self, row: LedgerRow) -> str:
        """Return why a row cannot follow the ledger's last row; empty for a valid row."""
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
        if not matches_agreement(row, found):
            return f'does not belong to the agreement "{row.agreement}"'
        if row.kind == "refund" and (found is None or found.paid - found.refunded < row.amount):
            return f'refunds more than was paid for "{row.agreement}"'
        return ""

    def _put(self, account: LedgerAccount) -> None:
        """Enter an account, and recount the use of the account's agreements under the new quota."""
        self._accounts[account.name] = account
        if account.kind == "user":
            holder = self._holders.setdefault(account.name, UserBalance(account))
            holder.account = account
            # Periods of the old quota mean nothing under the new one.
            holder.used.clear()
            if account.quota is not None:
                for agreement in self._agreements.values():
                    if agreement.user == account.name:
                        # What was set aside counts until released: a hold that is still open may
                        # all be spent.
                        net = agreement.held + agreement.paid - agreement.refunded
                        holder.use(agreement.since, net)

    def _unknown(self, account: str) -> Refusal:
        kind, _, name = account.partition(":")
        hint = spelling_hint(name, [a.name for a in self._accounts.values() if a.kind == kind])
        return _no(f'no {kind} "{name}"' + (f" ({hint})" if hint else ""))

    def _format(self, amount: Micros) -> str:
        return format_amount(amount, self.currency)


def _no(reason: str) -> Refusal:
    return Refusal(reason, final=True)
