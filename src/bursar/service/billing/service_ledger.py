"""The users' accounts and their signed usage records, kept in the service's store."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from bursar.market.account_records import LedgerAccount
from bursar.market.accounts import Accounts
from bursar.market.agreement import SignedRecord, UsageRecord
from bursar.market.book import BookState
from bursar.market.ledger import bare_name, first_link, next_link, read_chained
from bursar.market.usage import sign
from bursar.model.errors import InputError
from bursar.model.money import Micros, Refusal, Transfer, format_amount
from bursar.service.interfaces import BILLING_KINDS, Entropy, ServiceError
from bursar.store import DATABASE, Position, RecordStore, read_records

# Usage records, signed, a chain for each customer: neither side can change them later.

USAGE, SEED = BILLING_KINDS[2], BILLING_KINDS[3]

_SEED_SIZE = 32

decode_usage = msgspec.msgpack.Decoder(SignedRecord).decode
"""Returns the signed record in a record of the store."""


class UsageRecordLog:
    """
    Keeps the usage records: one signed chain for each customer.

    Each customer has a separate chain: the length of a common one would tell each customer how
    much the others use.

    Parameters
    ----------
    journal
        Journal, not yet open.
    entropy
        Source of the signing key, which is made once and kept in the journal.
    """

    def __init__(self, journal: RecordStore, entropy: Entropy) -> None:
        self._journal = journal
        self._entropy = entropy
        self._seed = b""
        self._key: Ed25519PrivateKey
        self._chains: dict[str, list[SignedRecord]] = {}
        self._records: dict[str, list[UsageRecord]] = {}
        journal.register([USAGE, SEED], self)

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in a usage record, or the signing key."""
        if kind == SEED:
            self._seed = payload
        else:
            self._note(decode_usage(payload))

    def open(self) -> None:
        """Take up the restored records: make the key if there is none, and sort the chains."""
        if not self._seed:
            self._seed = self._entropy(_SEED_SIZE)
            self._journal.append(SEED, self._seed, essential=True)
        self._key = Ed25519PrivateKey.from_private_bytes(self._seed)
        for chain in self._chains.values():
            # The journal restores records in any order; each signature covers the one before.
            chain.sort(key=lambda signed: signed.number)

    @property
    def public_key(self) -> Ed25519PublicKey:
        """Public key by which the records are verified."""
        return self._key.public_key()

    def of(self, agreement: str) -> Sequence[UsageRecord]:
        """Return the usage records of an agreement."""
        return self._records.get(agreement, ())

    def chain(self, customer: str) -> tuple[SignedRecord, ...]:
        """Return all usage records of a customer, in order."""
        return tuple(self._chains.get(customer, ()))

    @property
    def chains(self) -> Mapping[str, Sequence[SignedRecord]]:
        """Return all chains of usage records by customer."""
        return self._chains

    def note(self, record: UsageRecord) -> None:
        """Sign a usage record and append the signed record to the journal."""
        chain = self._chains.get(record.customer)
        signed = sign(record, self._key, chain[-1] if chain else None)
        self._journal.append(USAGE, msgspec.msgpack.encode(signed), essential=True)
        self._note(signed)

    def _note(self, signed: SignedRecord) -> None:
        record = signed.record
        self._chains.setdefault(record.customer, []).append(signed)
        self._records.setdefault(record.agreement, []).append(record)


# The users' accounts, kept row by row in the service's store, chained as those of a book.

ROW = BILLING_KINDS[0]

_SELLER = " (seller)"
"""End of the names of accounts by which users are paid as sellers at the exchange."""

_PENALTY_CREDIT = "penalty-credit:"

FORMAT = "service 1"
"""Version of the rows and of their chain of hashes."""

_STORED = msgspec.msgpack.Decoder(tuple[Transfer, bytes, str])


class ServiceLedger:
    """
    Accounts by double entry that survive restarts; rows are added and never changed.

    Parameters
    ----------
    journal
        Journal, not yet open.
    owner
        Name of the owner of the processors, who is paid.
    currency
        Currency of every amount.
    credit
        Returns the micro-units that a user has from the start; None: as much as is needed.
    """

    def __init__(
        self,
        journal: RecordStore,
        owner: str,
        currency: str,
        credit: Callable[[str], Micros | None],
    ) -> None:
        self.provider = f"{owner} (owner)"
        self.currency = currency
        self._journal = journal
        self._credit = credit
        self._stored: list[_StoredRow] = []
        self._accounts = Accounts(currency, on_post=self._keep)
        self._head = first_link(FORMAT, currency)
        self._owed: dict[str, Micros] = {}
        journal.register([ROW], self)

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in a row."""
        self._stored.append(_decode(payload))

    def open(self) -> None:
        """
        Build the accounts from the restored rows.

        Raises
        ------
        InputError
            When a row could not have been made: rows are missing or changed. When the accounts
            are in another currency.
        """
        for _, _, currency in self._stored:
            if currency != self.currency:
                raise InputError(
                    f"the accounts are in {currency}, the site's prices in {self.currency}"
                )
        rows, self._head = _verified(self._stored, self.currency)
        provider = LedgerAccount(name=self.provider, kind="provider")
        opened = [provider, *_providers(rows), *_users(rows)]
        self._accounts = Accounts(self.currency, opened, rows, self._keep)
        self._stored.clear()

    @property
    def accounts(self) -> Accounts:
        """Accounts of all users, for reading only."""
        return self._accounts

    def available(self, user: str) -> Micros:
        """Return what a user may still spend; without a limit, what is left of the grants."""
        # An account is opened by its first movement; until then the credit is what a user has.
        if user in self._accounts.accounts:
            balance = self._accounts.balance(f"user:{user}")
        else:
            balance = self._credit(user) or 0
        # Usage that is not posted yet is spent already, else it could be spent once more.
        return balance - self._owed.get(user, 0)

    def is_limited(self, user: str) -> bool:
        """Return whether a user can run out of money."""
        return self._credit(user) is not None

    def held(self, user: str) -> Micros:
        """Return the amount set aside for a user's agreements."""
        return self._accounts.held_by(user)

    def spent(self, user: str) -> Micros:
        """Return what a user has paid, and owes for usage that is not yet posted."""
        return self._accounts.spent_by(user) + self._owed.get(user, 0)

    def penalties(self, since: float, until: float) -> dict[str, Micros]:
        """Return the penalties that were credited to users in a period, beyond refunds."""
        found: dict[str, Micros] = {}
        for row in self._accounts.rows:
            if since <= row.time < until and row.key.startswith(_PENALTY_CREDIT):
                user = bare_name(row.target)
                found[user] = found.get(user, 0) + row.amount
        return found

    # Operations. Each row is in the journal when they return.

    def add_charge(self, user: str, amount: Micros) -> None:
        """Change the amount that a user owes for usage not yet posted; negative: reduce."""
        self._owed[user] = self._owed.get(user, 0) + amount

    def hold(
        self,
        user: str,
        agreement: str,
        amount: Micros,
        now: float,
        *,
        paid: Micros = 0,
        memo: str = "",
    ) -> Refusal | None:
        """
        Set money aside for an agreement; refuse if the account has too little.

        Parameters
        ----------
        paid
            What the user has paid the owner for the agreement elsewhere, and is credited with first
            if the agreement is not refused, micro-units.
        memo
            With ``paid``: one printable line for people.
        """
        refusal = self._check_user(user, now)
        if refusal is not None:
            return refusal
        short = amount - self.available(user) - paid
        if short > 0 and self.is_limited(user):
            left = format_amount(self.available(user), self.currency)
            costs = format_amount(amount, self.currency)
            return Refusal(f"costs {costs}, the account has {left}", final=False)
        if paid > 0:
            _done(self._accounts.grant(now, f"elsewhere:{agreement}", user, paid, memo=memo))
        # A user without a limit is granted what is lacking, so that no balance is ever negative.
        if short > 0:
            _done(self._accounts.grant(now, f"credit:{agreement}", user, short, memo="on account"))
        if amount > 0:
            _done(self._accounts.hold(now, f"hold:{agreement}", user, agreement, amount))
        return None

    def settle(self, agreement: str, amount: Micros, now: float, *, payee: str = "") -> None:
        """
        Pay from an agreement's hold, and return the rest to the user.

        Parameters
        ----------
        payee
            User who is paid, as a seller at the exchange; empty: the owner.
        """
        promise = self._accounts.agreements.get(agreement)
        if promise is None:  # it cost nothing
            return
        if amount > 0:
            key = f"settle:{agreement}"
            provider = seller_account(payee) if payee else self.provider
            _done(self._accounts.settle(now, key, agreement, provider, amount))
        # Less than was held was charged: the rest goes back in a row of its own.
        if promise.held > 0:
            key = f"release:{agreement}"
            _done(self._accounts.release(now, key, agreement, promise.held))

    def divide(self, agreement: str, parts: Mapping[str, Micros], now: float) -> None:
        """
        Give back what was set aside for an agreement, and set some of it aside for others.

        Parameters
        ----------
        parts
            Amount of each agreement that takes part of the hold; together no more than the hold.
        """
        promise = self._accounts.agreements.get(agreement)
        if promise is None:  # it cost nothing
            return
        self.settle(agreement, 0, now)
        for name, amount in parts.items():
            # Not by hold(), which may refuse: what the hold gave back is enough.
            if amount > 0:
                key = f"hold:{name}"
                _done(self._accounts.hold(now, key, promise.user, name, amount))

    def open_seller(self, user: str) -> Refusal | None:
        """Open the account by which a user is paid; refuse names that no account can have."""
        try:
            account = LedgerAccount(name=seller_account(user), kind="provider")
        except ValueError as error:
            return Refusal(str(error), final=True)
        opened = self._accounts.open_account(account)
        return opened if isinstance(opened, Refusal) else None

    def earned(self, user: str) -> Micros:
        """Return what a user was paid as a seller, micro-units."""
        return self._accounts.balance(f"provider:{seller_account(user)}")

    def penalise(
        self, user: str, agreement: str, charged: Micros, penalty: Micros, now: float
    ) -> None:
        """
        Pay a user the penalty for an agreement that the owner did not keep.

        As much as was charged comes back from what the owner was paid; the rest the owner owes from
        outside this ledger, as it does with credit, and the user may spend it.
        """
        refund = min(charged, penalty)
        memo = f"penalty for {agreement}"
        if refund:
            key = f"penalty:{agreement}"
            _done(self._accounts.refund(now, key, agreement, refund, memo=memo))
        if penalty > refund:
            key = f"{_PENALTY_CREDIT}{agreement}"
            _done(self._accounts.grant(now, key, user, penalty - refund, memo=memo))

    def deposit(self, user: str, amount: Micros, key: str, now: float) -> None:
        """
        Add money to an account, once for each key of a user.

        A repeated request with the same key and amount changes nothing and is no error, so that a
        client that has lost the answer may ask again.

        Raises
        ------
        ServiceError
            409, when the key was used for something else; 400, when no account can have the name.
        """
        refusal = self._check_user(user, now)
        if refusal is not None:
            raise ServiceError("bad-value", 400, refusal.reason, where="user")
        identity = f"deposit:{_escaped(user)}:{key}"
        row = self._accounts.grant(now, identity, user, amount, memo="deposit")
        if isinstance(row, Refusal):
            used = self._accounts.row_of(identity) is not None
            raise ServiceError(
                "conflict" if used else "bad-value", 409 if used else 400, row.reason
            )

    def _check_user(self, user: str, now: float) -> Refusal | None:
        """Open a user's account with the credit, if there is none; refuse invalid names."""
        if user in self._accounts.accounts:
            is_user = self._accounts.accounts[user].kind == "user"
            return None if is_user else Refusal(f'"{user}" has no account', final=True)
        if user.endswith(_SELLER):  # else a seller of the other name could not be paid
            return Refusal(f'no user\'s name ends in "{_SELLER}"', final=True)
        try:
            account = LedgerAccount(name=user)
        except ValueError as error:
            return Refusal(str(error), final=True)
        credit = self._credit(user)
        self._accounts.open_account(account)
        if credit:
            _done(self._accounts.grant(now, f"credit:{user}", user, credit, memo="credit"))
        return None

    def _keep(self, row: Transfer) -> None:
        self._head = next_link(self._head, row)
        payload = msgspec.msgpack.encode((row, self._head, self.currency))
        self._journal.append(ROW, payload, essential=True)


def seller_account(user: str) -> str:
    """Return the account by which a user is paid as a seller at the exchange."""
    return user + _SELLER


def _escaped(user: str) -> str:
    # A colon in the user's name must not end it: each user's keys are apart from all others'.
    return user.replace("%", "%25").replace(":", "%3A")


_StoredRow = tuple[Transfer, bytes, str]
"""A row, its hash in the chain, and the currency."""


def read_service_accounts(folder: Path) -> BookState:
    """
    Read and verify the accounts of a service that is not running.

    Raises
    ------
    InputError
        When there is no service, it is running, or its store or accounts are damaged.
    """
    journal = folder / "journal"
    if not (journal / DATABASE).exists():
        raise InputError("is the folder of no service", where=str(folder))
    found = read_records(journal, (ROW, USAGE))
    try:
        stored = [_decode(payload) for kind, payload in found if kind == ROW]
        # No row tells the currency of a service that never moved money.
        currency = stored[0][2] if stored else "SU"
        rows, head = _verified(stored, currency)
        accounts = Accounts(currency, [*_providers(rows), *_users(rows)], rows)
    except InputError as error:
        raise error.within(str(journal)) from None
    usage = tuple(decode_usage(payload).record for kind, payload in found if kind == USAGE)
    return BookState(accounts, usage, head.hex())


def _decode(payload: bytes) -> _StoredRow:
    try:
        return _STORED.decode(payload)
    except msgspec.MsgspecError as error:
        raise InputError(f"the accounts are damaged: {error}") from None


def _verified(stored: Iterable[_StoredRow], currency: str) -> tuple[list[Transfer], bytes]:
    """Return the rows in the order made, and the last hash of the verified chain."""
    ordered = sorted(stored, key=lambda one: one[0].number)
    chained = ((row, chain) for row, chain, _ in ordered)
    return read_chained(chained, first_link(FORMAT, currency))


def _providers(rows: Iterable[Transfer]) -> list[LedgerAccount]:
    """Return who was paid in rows: the owner, and sellers at the exchange."""
    payees = dict.fromkeys(row.target for row in rows if row.kind == "settle")
    return [LedgerAccount(name=bare_name(name), kind="provider") for name in payees]


def _users(rows: Iterable[Transfer]) -> list[LedgerAccount]:
    """Return the users of rows; an account is opened with its first grant."""
    users = dict.fromkeys(row.target for row in rows if row.kind == "grant")
    return [LedgerAccount(name=bare_name(user)) for user in users]


def _done(answer: Transfer | Refusal) -> None:
    # Every movement was looked at before: a refusal is a defect of this package, and nothing that
    # was sold or used may go unpaid because of it.
    if isinstance(answer, Refusal):
        raise AssertionError(answer.reason)
