"""
Keeps a ledger: double entry in integer micro-units of one currency.

Runs, services and books have the same ledger, with other names of accounts
(:class:`bursar.market.account_records.ChartOfAccounts`):

================  ==================  =====================  ================================
account           in a run            in a book or service   holds
================  ==================  =====================  ================================
outside           ``owner``           ``bank``               the world that grants; the only
                                                             account below zero
payer             ``budget``          ``user:NAME``          what is granted and neither set
                                                             aside nor spent
hold              ``held:LEASE``      ``held:AGREEMENT``     what is set aside for one lease
                                                             or agreement
payee             ``site:NAME``       ``provider:NAME``      what a site or provider was paid
================  ==================  =====================  ================================

The rows are the ledger; balances follow from them. Every row takes from one account what it gives
another, so the balances always sum to zero. The rules that admit a movement also admit a row that
is read back, so that rows which are missing, out of order or changed are noticed.

Where rows are stored on their own, each has a hash of itself and of the row before
(:func:`next_link`), so that any change shows. The journal of a run has a chain of its own
(:mod:`bursar.dispatch.journal_chain`), which covers the movements of money with all else that
the run wrote in the same transaction.
"""

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType

import msgspec

from bursar.market.account_records import (
    HELD_PREFIX,
    LARGEST,
    RUN_CHART,
    AgreementBalance,
    ChartOfAccounts,
)
from bursar.model.errors import InputError
from bursar.model.money import Micros, Refusal, Transfer, check_currency, format_amount

_OF_AGREEMENTS = ("hold", "release", "settle", "refund")
_BAD_AGREEMENT = "an agreement's id must be printable and not empty"
_BAD_KEY = "a key must be printable and not empty, a memo one printable line"


class Ledger:
    """
    Keeps rows, and the balances that follow from the rows.

    Every operation returns the row it posted, or a :class:`Refusal` when it moved nothing:
    ``final`` unless more money or time may help. An operation that is repeated with its key
    returns the row that it made the first time and moves nothing, even if it would be refused
    by now; other content under a key is refused.

    Parameters
    ----------
    rows
        Rows to start from, in the order they were made; empty for a new ledger.
    on_post
        Called with each new row, before the operation returns; None for none.

    Raises
    ------
    InputError
        When a row could not have been made: rows are missing, out of order or changed.
    """

    def __init__(
        self,
        rows: Iterable[Transfer] = (),
        *,
        chart: ChartOfAccounts = RUN_CHART,
        currency: str = "SU",
        on_post: Callable[[Transfer], None] | None = None,
    ) -> None:
        self.currency = check_currency(currency)
        self._chart = chart
        self._outside, self._is_strict = chart.outside, chart.strict
        self._on_post = on_post
        self._balances: dict[str, Micros] = {}
        self._agreements: dict[str, AgreementBalance] = {}
        self._by_key: dict[str, Transfer] = {}
        self._rows: list[Transfer] = []
        self._held = self._spent = 0
        for row in rows:
            self._replay(row)

    def __len__(self) -> int:
        return len(self._rows)

    # What the ledger says.

    @property
    def rows(self) -> tuple[Transfer, ...]:
        """All rows, in the order made."""
        return tuple(self._rows)

    def rows_from(self, index: int) -> tuple[Transfer, ...]:
        """Return the rows from number ``index`` on, counted from 0."""
        return tuple(self._rows[index:])

    def row_of(self, key: str) -> Transfer | None:
        """Return the row that the operation with this key made."""
        return self._by_key.get(key)

    @property
    def agreements(self) -> Mapping[str, AgreementBalance]:
        """Sums of each agreement or lease by id; a view that callers must not change."""
        return MappingProxyType(self._agreements)

    @property
    def balances(self) -> dict[str, Micros]:
        """Balances of every account opened or used, in that order."""
        return dict(self._balances)

    def balance(self, account: str) -> Micros:
        """Return the balance of an account (``"user:alice"``); 0 for one never used."""
        return self._balances.get(account, 0)

    @property
    def funded(self) -> Micros:
        """Sum that the outside world has granted and not taken back, micro-units."""
        return -self._balances.get(self._chart.outside, 0)

    @property
    def held(self) -> Micros:
        """Sum that is set aside, micro-units."""
        return self._held

    @property
    def spent(self) -> Micros:
        """Sum that was paid and not refunded, micro-units."""
        return self._spent

    @property
    def free(self) -> Micros:
        """Sum that is granted and neither set aside nor spent, micro-units."""
        return -self._balances.get(self._chart.outside, 0) - self._held - self._spent

    def settled(self) -> dict[str, Micros]:
        """Return what was paid for each agreement or lease that was paid, micro-units."""
        return {name: one.paid for name, one in self._agreements.items() if one.paid}

    # Operations. The arguments are the moment, seconds since the epoch; a key, empty for none;
    # who and how much, in micro-units.

    def grant(
        self, now: float, key: str, payer: str, amount: Micros, *, memo: str = ""
    ) -> Transfer | Refusal:
        """Add an amount from the outside world to what a payer may spend."""
        chart = self._chart
        target = chart.payer + payer
        return self._post(now, key, chart.grant, chart.outside, target, amount, "", memo)

    def withdraw(
        self, now: float, key: str, payer: str, amount: Micros, *, memo: str = ""
    ) -> Transfer | Refusal:
        """Give back to the outside world an amount that is free, where the chart allows that."""
        chart = self._chart
        source = chart.payer + payer
        if (chart.payer, chart.outside) not in chart.kinds[chart.grant]:
            return _no("what was granted is not taken back")
        return self._post(now, key, chart.grant, source, chart.outside, amount, "", memo)

    def hold(
        self, now: float, key: str, payer: str, agreement: str, amount: Micros, *, memo: str = ""
    ) -> Transfer | Refusal:
        """Set an amount aside for an agreement, or more for the same one."""
        found = self._agreements.get(agreement)
        source, target = self._chart.payer + payer, HELD_PREFIX + agreement
        return self._post(now, key, "hold", source, target, amount, agreement, memo, found)

    def release(
        self, now: float, key: str, agreement: str, amount: Micros, *, memo: str = ""
    ) -> Transfer | Refusal:
        """Give the payer back part of what is set aside for an agreement."""
        found = self._agreements.get(agreement)
        if found is None:
            return _no(f'no agreement "{agreement}"')
        source, target = HELD_PREFIX + agreement, found.payer
        return self._post(now, key, "release", source, target, amount, agreement, memo, found)

    def settle(
        self, now: float, key: str, agreement: str, payee: str, amount: Micros, *, memo: str = ""
    ) -> Transfer | Refusal:
        """Pay a site or provider out of what is set aside for an agreement."""
        found = self._agreements.get(agreement)
        if found is None:
            return _no(f'no agreement "{agreement}"')
        source, target = HELD_PREFIX + agreement, self._chart.payee + payee
        return self._post(now, key, "settle", source, target, amount, agreement, memo, found)

    def refund(
        self, now: float, key: str, agreement: str, amount: Micros, *, memo: str = ""
    ) -> Transfer | Refusal:
        """
        Pay back to the payer what was not delivered.

        Refused beyond what was paid for the agreement and not refunded before.
        """
        found = self._agreements.get(agreement)
        if found is None:
            return _no(f'no agreement "{agreement}"')
        if not found.payee:
            return _no(f"nothing was paid for {agreement}")
        return self._post(
            now, key, "refund", found.payee, found.payer, amount, agreement, memo, found
        )

    def faults(self) -> list[str]:
        """
        Return errors in the balances; always empty unless this module has a bug.

        The balances sum to zero, are those of the rows, and none but the outside world's is
        negative; what is set aside and spent is what the agreements say.
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
            if balance < 0 and account != self._chart.outside
        ]
        found += [
            f"{name}: {self._format(one.held)} are set aside, its account has another sum"
            for name, one in self._agreements.items()
            if one.held != self.balance(HELD_PREFIX + name)
        ]
        held = sum(one.held for one in self._agreements.values())
        spent = sum(one.paid - one.refunded for one in self._agreements.values())
        if (held, spent) != (self._held, self._spent):
            found.append("what is set aside and spent is not the sum over the agreements")
        return found

    # Inside.

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
        found: AgreementBalance | None = None,
    ) -> Transfer | Refusal:
        # Before any other check: a repeated request is answered as at first, even if the money, the
        # quota or an account's state has changed since.
        if key:
            row = self._by_key.get(key)
            if row is not None:
                made = row.kind, row.source, row.target, row.amount, row.agreement
                if made == (kind, source, target, amount, agreement):
                    return row
                return _no(f'the key "{key}" was used for something else')
        # Not isinstance: True is an int, and floats would bring rounding into the ledger.
        if type(amount) is not int:
            return _no(f"an amount is a whole number of micro-units, got {amount!r}")
        if not 0 < amount <= LARGEST:
            return _no(f"an amount must be positive and below 2^63, got {amount}")
        if not key.isprintable() or not memo.isprintable():
            return _no(_BAD_KEY)
        if found is not None:
            fault = self._rule(kind, source, target, amount, agreement, found)
            if fault:
                return _no(fault)
        elif kind == "hold" and not (agreement and agreement.isprintable()):
            return _no(_BAD_AGREEMENT)
        if self._is_strict:
            refusal = self._policy(now, key, kind, source, target, amount, found)
            if refusal is not None:
                return refusal
        have = self._balances.get(source, 0)
        # The outside world has no limit: its debt is the sum of all grants.
        if have < amount and source != self._outside:
            return Refusal(f"{source} is {self._format(amount - have)} short", final=False)
        row = Transfer(
            len(self._rows) + 1, float(now), key, kind, source, target, amount, agreement, memo
        )
        self._apply(row)
        if self._on_post is not None:
            self._on_post(row)
        return row

    def _policy(
        self,
        now: float,
        key: str,
        kind: str,
        source: str,
        target: str,
        amount: Micros,
        found: AgreementBalance | None,
    ) -> Refusal | None:
        """Return why whoever keeps a strict ledger refuses a movement; None: it is welcome."""
        return None

    def _rule(
        self,
        kind: str,
        source: str,
        target: str,
        amount: Micros,
        agreement: str,
        found: AgreementBalance,
    ) -> str:
        """Return why an agreement does not allow a movement that names it; empty: it does."""
        if kind == "hold":
            if source != found.payer:
                return f"{agreement} is not an agreement of {bare_name(source)}"
        elif kind == "settle":
            # One agreement is with one provider: a statement names the other party by it.
            if found.payee and found.payee != target:
                return f"{agreement} is an agreement with {bare_name(found.payee)}"
        elif kind == "refund":
            left = found.paid - found.refunded
            if amount > left:
                return (
                    f"{self._format(amount)} asked back, of what was paid for {agreement} "
                    f"{self._format(left)} are left"
                )
        return ""

    def _apply(self, row: Transfer) -> None:
        """
        Move a checked row's amount between its accounts, and remember the row under its key.

        Accounts that need not be opened begin with their first movement.
        """
        balances, amount = self._balances, row.amount
        balances[row.source] = balances.get(row.source, 0) - amount
        balances[row.target] = balances.get(row.target, 0) + amount
        self._rows.append(row)
        if row.key:
            self._by_key[row.key] = row
        kind = row.kind
        if kind in _OF_AGREEMENTS:
            self._note(row)
        elif kind != "transfer":
            self._note_grant(row)

    def _note_grant(self, row: Transfer) -> None:
        """Follow a row of a grant, where grants have periods."""

    def _note(self, row: Transfer) -> AgreementBalance:
        """Count a row in the sums of its agreement, and return these."""
        amount, kind = row.amount, row.kind
        found = self._agreements.get(row.agreement)
        if found is None:
            found = self._agreements[row.agreement] = AgreementBalance(row.source, row.time)
        # Kept as running sums: a run asks for them with every task.
        if kind == "hold":
            found.held += amount
            self._held += amount
        elif kind == "settle":
            found.held -= amount
            found.paid += amount
            found.payee = row.target
            self._held -= amount
            self._spent += amount
        elif kind == "release":
            found.held -= amount
            self._held -= amount
        else:
            found.refunded += amount
            self._spent -= amount
        return found

    def _replay(self, row: Transfer) -> None:
        fault = self._fault_of(row)
        if fault:
            raise InputError(fault, where=f"row {len(self._rows) + 1}")
        self._apply(row)

    def _fault_of(self, row: Transfer) -> str:
        """Return why a row cannot follow the ledger's last row; empty for a valid row."""
        source, target, amount, balances = row.source, row.target, row.amount, self._balances
        if row.number != len(self._rows) + 1:
            return f"is numbered {row.number}"
        for start, end in self._chart.kinds.get(row.kind, ()):
            if source.startswith(start) and target.startswith(end):
                break
        else:
            return f'no "{row.kind}" goes from "{source}" to "{target}"'
        if row.key in self._by_key:
            return f'repeats the key "{row.key}"'
        if self._is_strict:
            if not row.key:
                return "has no key"
            if source not in balances:
                return f'no account "{source}"'
            if target not in balances and row.kind != "hold":
                return f'no account "{target}"'
        if not 0 < amount <= LARGEST:
            return f"moves {amount} micro-units"
        have = balances.get(source, 0)
        if have < amount and source != self._outside:
            return f'takes {amount} from "{source}", {have} are there'
        if row.kind not in _OF_AGREEMENTS:
            return self._other_fault(row)
        found = self._agreements.get(row.agreement)
        if not _belongs(row, found):
            return f'does not belong to the agreement "{row.agreement}"'
        if found is None:
            return ""
        return self._rule(row.kind, source, target, amount, row.agreement, found)

    def _other_fault(self, row: Transfer) -> str:
        """Return why a row that is of no agreement cannot follow the last row; empty: it can."""
        return f'does not belong to the agreement "{row.agreement}"' if row.agreement else ""

    def _format(self, amount: Micros) -> str:
        return format_amount(amount, self.currency)


def first_link(version: str, currency: str) -> bytes:
    """Return the hash in front of the first row, which depends on the format and the currency."""
    return sha256(f"bursar book {version} {currency}".encode()).digest()


def next_link(head: bytes, row: Transfer) -> bytes:
    """Return the hash over a row and, by the hash of the row before, over all rows so far."""
    return sha256(head + msgspec.msgpack.encode(row)).digest()


def read_chained(
    stored: Iterable[tuple[Transfer, bytes]], head: bytes
) -> tuple[list[Transfer], bytes]:
    """
    Verify stored rows against their hashes, and return the rows and the last hash.

    Parameters
    ----------
    stored
        Each row with the hash that was stored beside it, in the order made.
    head
        Hash in front of the first row.

    Raises
    ------
    InputError
        When a row was changed, left out or moved.
    """
    rows = []
    for row, chain in stored:
        head = next_link(head, row)
        if chain != head:
            raise InputError("was changed, or one before it is missing", where=f"row {row.number}")
        rows.append(row)
    return rows, head


def _belongs(row: Transfer, found: AgreementBalance | None) -> bool:
    """
    Return whether a row moves money between the accounts of the agreement that it names.

    ``found`` has the sums of the agreement before the row; None when the row is its first.
    """
    held = HELD_PREFIX + row.agreement
    if row.kind == "hold":
        return row.target == held != HELD_PREFIX
    if found is None:
        return False
    if row.kind == "settle":
        return row.source == held
    if row.kind == "release":
        return row.source == held and row.target == found.payer
    return row.kind == "refund" and row.source == found.payee and row.target == found.payer


def bare_name(account: str) -> str:
    """Return an account's name without the prefix of the account's kind."""
    return account.partition(":")[2] or account


def _no(reason: str) -> Refusal:
    return Refusal(reason, final=True)
