"""
Usage of shared processors, posted about once an hour, and what users are told of their money.

A row for each task would make the ledger grow without end. A tally is one record, written anew
at the end of each task in the batch that holds the task's result, so that each task is counted
once.
"""

import math
from collections.abc import Iterator

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec.structs import replace

from bursar.market.agreement import SignedRecord
from bursar.market.statements import InvoiceItem, make_invoice
from bursar.model.money import Micros, from_micros, to_micros
from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.service.billing.service_ledger import ServiceLedger, UsageRecordLog
from bursar.service.interfaces import BILLING_KINDS, Clock, Entropy, ServiceError
from bursar.store import Position, RecordStore

# Usage of shared processors that cost something, added up by instance and posted hourly.

SHARED_USAGE, POSTED = BILLING_KINDS[4], BILLING_KINDS[5]

OPEN_FOR = 3_600.0
"""Seconds between the first use in a tally and the posting of the tally."""


class SharedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """
    Shared processors that one instance used in a span of time.

    Parameters
    ----------
    id
        Unique identifier, used in the ledger in place of an agreement's.
    user, what
        The user who pays, and the instance that used the processors.
    since, until
        First and last use noted, seconds since the epoch.
    processor_seconds
        Processors x seconds used.
    cost
        Cost in currency units, each use at the price of its time.
    amount
        Micro-units, rounded up once; at most what the account had.
    """

    id: str
    user: str
    what: str
    since: float
    until: float
    processor_seconds: float = 0.0
    cost: float = 0.0
    amount: Micros = 0


_USAGE_DECODER = msgspec.msgpack.Decoder(SharedUsage)


class SharedUsageMeter:
    """
    Adds up the usage of shared processors by instance, and posts each sum about once an hour.

    Parameters
    ----------
    journal
        Journal, not yet open.
    """

    def __init__(self, journal: RecordStore, ledger: ServiceLedger, entropy: Entropy) -> None:
        self._journal = journal
        self._ledger = ledger
        self._entropy = entropy
        # Sums not yet posted, by user and instance, and the records that hold them.
        self._open: dict[tuple[str, str], SharedUsage] = {}
        self._position: dict[tuple[str, str], Position] = {}
        self._posted: dict[str, list[SharedUsage]] = {}
        # Micro-units posted in all, by user and instance.
        self._past: dict[tuple[str, str], Micros] = {}
        journal.register([SHARED_USAGE, POSTED], self)

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in a usage tally, open or posted."""
        usage = _USAGE_DECODER.decode(payload)
        if kind == POSTED:
            self._note_posted(usage)
        else:
            self._put(usage, position)
            self._ledger.add_charge(usage.user, usage.amount)

    def posted_of(self, user: str) -> tuple[SharedUsage, ...]:
        """Return the posted usage of a user."""
        return tuple(self._posted.get(user, ()))

    def spent(self, user: str, what: str) -> Micros:
        """Return the cost so far of one of a user's instances, in micro-units, posted or not."""
        usage = self._open.get((user, what))
        return self._past.get((user, what), 0) + (usage.amount if usage is not None else 0)

    def all_posted(self) -> Iterator[SharedUsage]:
        """Return the posted usage of all users."""
        for shared_usage in self._posted.values():
            yield from shared_usage

    def all_open(self) -> Iterator[SharedUsage]:
        """Return the usage of all users that is not yet posted."""
        yield from self._open.values()

    def next_tick(self) -> float:
        """Return when the next tally is to be posted; infinite for never."""
        return min((usage.since + OPEN_FOR for usage in self._open.values()), default=math.inf)

    def add(
        self, user: str, what: str, processor_seconds: float, unit_price: float, now: float
    ) -> None:
        """Add usage to an instance's open tally; the sum is in the journal on return."""
        usage = self._open.get((user, what))
        if usage is None:
            usage = SharedUsage(
                id=f"shared-{self._entropy(16).hex()}", user=user, what=what, since=now, until=now
            )
        cost = usage.cost + unit_price * processor_seconds
        # The sum is rounded, not each use: rounding up task by task would add up to a micro-unit
        # for each of thousands of short tasks.
        amount = to_micros(cost)
        if self._ledger.is_limited(user):
            most = usage.amount + max(0, self._ledger.available(user))
            # The cost is cut with the amount, else the next use would bring the rest back.
            if amount > most:  # what is not there is not owed later, either
                amount, cost = most, from_micros(most)
        fresh = replace(
            usage,
            until=max(usage.until, now),
            processor_seconds=usage.processor_seconds + processor_seconds,
            cost=cost,
            amount=amount,
        )
        # Only the growth: the rest of the tally was set aside before.
        self._ledger.add_charge(user, fresh.amount - usage.amount)
        # The old record dies and the new one is appended without an await in between: one of the
        # two is there after a crash, and counts once.
        self._drop((user, what))
        written = self._journal.append(SHARED_USAGE, msgspec.msgpack.encode(fresh), essential=True)
        self._put(fresh, written)

    def tick(self, now: float) -> list[SharedUsage]:
        """Post the tallies that have been open for an hour; return those that are paid."""
        posted = []
        due = [usage for usage in self._open.values() if now >= usage.since + OPEN_FOR]
        for usage in due:
            # What was owed becomes a hold and a payment. No await in between: the rows, the death
            # of the tally and POSTED are in one batch.
            self._ledger.add_charge(usage.user, -usage.amount)
            refusal = self._ledger.hold(usage.user, usage.id, usage.amount, now)
            if refusal is not None:
                # add() has left enough, but a quota or the account may have changed since. What
                # was used stays owed, and is tried again in an hour; posted, it would be on
                # invoices without having been paid.
                self._ledger.add_charge(usage.user, usage.amount)
                self._put(replace(usage, since=now), self._position[usage.user, usage.what])
                continue
            self._drop((usage.user, usage.what))
            self._ledger.settle(usage.id, usage.amount, now)
            self._journal.append(POSTED, msgspec.msgpack.encode(usage), essential=True)
            self._note_posted(usage)
            posted.append(usage)
        return posted

    def _note_posted(self, usage: SharedUsage) -> None:
        self._posted.setdefault(usage.user, []).append(usage)
        key = usage.user, usage.what
        self._past[key] = self._past.get(key, 0) + usage.amount

    def _put(self, usage: SharedUsage, position: Position) -> None:
        key = usage.user, usage.what
        self._open[key] = usage
        self._position[key] = position

    def _drop(self, key: tuple[str, str]) -> None:
        """Remove an open tally, if there is one, and kill the tally's record."""
        if self._open.pop(key, None) is not None:
            self._journal.kill(self._position.pop(key))


# What users are told of their money: accounts, deposits, invoices and usage records.


class UserAccounts:
    """
    Answers requests about users' accounts.

    Parameters
    ----------
    owner
        Name of the owner of the processors, on invoices.
    journal
        Journal of the service, which may be out of room.
    ledger, meter, shared_usage
        Accounts, deliveries under agreements, and usage of shared processors.
    """

    def __init__(
        self,
        owner: str,
        journal: RecordStore,
        ledger: ServiceLedger,
        meter: UsageRecordLog,
        shared_usage: SharedUsageMeter,
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._journal = journal
        self._ledger = ledger
        self._meter = meter
        self._shared_usage = shared_usage
        self._clock = clock

    def account(self, user: str) -> api.AccountInfo:
        """Return a user's account."""
        return api.AccountInfo(
            user=user,
            currency=self._ledger.currency,
            balance=self._ledger.available(user),
            held=self._ledger.held(user),
            spent=self._ledger.spent(user),
        )

    def deposit(self, user: str, deposit: api.Deposit) -> api.AccountInfo:
        """
        Add money to an account; repeating a key adds nothing.

        Raises
        ------
        ServiceError
            409, when the key was used for another amount; 400, when there can be no such
            account; 507, when the disk is full.
        """
        if self._journal.problem:
            raise ServiceError("disk-full", 507, self._journal.problem, retry_after=1.0)
        self._ledger.deposit(user, deposit.amount, deposit.key, self._clock())
        return self.account(user)

    def invoice(
        self, user: str, since: float = -math.inf, until: float = math.inf
    ) -> market.InvoiceInfo:
        """
        Return the charges posted from ``since`` until before ``until``, summed as in the ledger.

        An agreement is posted when it is over, shared processors within an hour or so. Both
        moments are in seconds since the epoch; by default everything that was ever posted.
        """
        ledger, lines = self._ledger, []
        if user in ledger.accounts.accounts:
            shared = {usage.id: usage for usage in self._shared_usage.posted_of(user)}
            invoice = make_invoice(ledger.accounts, ledger.provider, user, since, until)
            lines = [self._line(item, shared.get(item.agreement)) for item in invoice.items]
        return market.InvoiceInfo(
            user=user,
            owner=self._owner,
            currency=ledger.currency,
            lines=lines,
            total=sum(line.amount for line in lines),
        )

    def usage(self, user: str) -> tuple[SignedRecord, ...]:
        """Return the signed chain of usage records of a user's agreements."""
        return self._meter.chain(user)

    @property
    def public_key(self) -> Ed25519PublicKey:
        """Return the public key by which usage records are verified."""
        return self._meter.public_key

    def revenue(self, since: float, until: float) -> market.RevenueInfo:
        """
        Return what users were charged from ``since`` until before ``until``, for the owner.

        Both moments are in seconds since the epoch.
        """
        credits = self._ledger.penalties(since, until)
        customers = []
        for user, account in self._ledger.accounts.accounts.items():
            if account.kind != "user":
                continue
            invoice = self.invoice(user, since, until)
            penalty = credits.get(user, 0)
            if not (invoice.lines or penalty):
                continue
            customers.append(
                market.CustomerRevenue(
                    user=user,
                    agreements=len(invoice.lines),
                    processor_seconds=math.fsum(line.processor_seconds for line in invoice.lines),
                    amount=invoice.total,
                    penalty=penalty,
                )
            )
        return market.RevenueInfo(
            owner=self._owner,
            currency=self._ledger.currency,
            customers=customers,
            total=sum(one.amount - one.penalty for one in customers),
        )

    def spent(self) -> Micros:
        """Return the total that all users have paid."""
        return self._ledger.accounts.spent

    def _line(self, item: InvoiceItem, shared: SharedUsage | None) -> market.InvoiceLine:
        # A shared tally is in the ledger under an identifier of its own; users are shown the
        # instance.
        if shared is not None:
            return market.InvoiceLine(
                what=shared.what,
                since=shared.since,
                until=shared.until,
                processor_seconds=shared.processor_seconds,
                amount=item.total,
            )
        records = self._meter.of(item.agreement)
        return market.InvoiceLine(
            what=item.agreement,
            since=min(record.start for record in records),
            until=max(record.end for record in records),
            processor_seconds=sum(record.owed for record in records),
            amount=item.total,
        )
