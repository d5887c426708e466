"""Invoices: the charges of a user, line by line."""

from bursar.market.statements import make_invoice
from bursar.remote import messages as api
from bursar.service.billing.metering import UsageRecordLog
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.service.billing.shared_usage import SharedUsageMeter


def write_invoice(
    user: str,
    since: float,
    until: float,
    *,
    owner: str,
    ledger: ServiceLedger,
    meter: UsageRecordLog,
    shared_usage: SharedUsageMeter,
) -> api.InvoiceInfo:
    """
    Return the charges posted from ``since`` until before ``until``; their total is the ledger's.

    An agreement is posted when it is over, shared processors within an hour or so.
    """
    lines = []
    if user in ledger.accounts.accounts:
        shared = {usage.id: usage for usage in shared_usage.posted_of(user)}
        for item in make_invoice(ledger.accounts, ledger.provider, user, since, until).items:
            usage = shared.get(item.agreement)
            # A shared tally is in the ledger under an identifier of its own; users are shown the
            # instance.
            if usage is not None:
                line = api.InvoiceLine(
                    what=usage.what,
                    since=usage.since,
                    until=usage.until,
                    processor_seconds=usage.processor_seconds,
                    amount=item.total,
                )
            else:
                records = meter.of(item.agreement)
                line = api.InvoiceLine(
                    what=item.agreement,
                    since=min(record.start for record in records),
                    until=max(record.end for record in records),
                    processor_seconds=sum(record.delivered for record in records),
                    amount=item.total,
                )
            lines.append(line)
    return api.InvoiceInfo(
        user=user,
        owner=owner,
        currency=ledger.currency,
        lines=lines,
        total=sum(line.amount for line in lines),
    )
