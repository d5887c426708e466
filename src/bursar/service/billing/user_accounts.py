"""What users are told of their money: accounts, deposits, invoices and usage records."""

import math

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from bursar.market.statements import InvoiceItem, make_invoice
from bursar.market.usage import SignedRecord
from bursar.model.money import Micros
from bursar.remote import messages as api
from bursar.service.billing.metering import UsageRecordLog
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.service.billing.shared_usage import SharedUsage, SharedUsageMeter
from bursar.service.interfaces import Clock, ServiceError, ServiceJournal


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
    clock
        Seconds since the epoch.
    """

    def __init__(
        self,
        owner: str,
        journal: ServiceJournal,
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
    ) -> api.InvoiceInfo:
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
        return api.InvoiceInfo(
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

    def spent(self) -> Micros:
        """Return the total that all users have paid."""
        return self._ledger.accounts.spent

    def _line(self, item: InvoiceItem, shared: SharedUsage | None) -> api.InvoiceLine:
        # A shared tally is in the ledger under an identifier of its own; users are shown the
        # instance.
        if shared is not None:
            return api.InvoiceLine(
                what=shared.what,
                since=shared.since,
                until=shared.until,
                processor_seconds=shared.processor_seconds,
                amount=item.total,
            )
        records = self._meter.of(item.agreement)
        return api.InvoiceLine(
            what=item.agreement,
            since=min(record.start for record in records),
            until=max(record.end for record in records),
            processor_seconds=sum(record.delivered for record in records),
            amount=item.total,
        )
