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
    books: ServiceLedger,
    meter: UsageRecordLog,
    tallies: SharedUsageMeter,
) -> api.InvoiceInfo:
    """
    Return the charges posted from ``since`` until before ``until``; their total is the ledger's.

    An agreement is posted when it is over, shared processors within an hour or so.
    """
    lines = []
    if user in books.accounts.accounts:
        shared = {tally.id: tally for tally in tallies.posted_of(user)}
        for item in make_invoice(books.accounts, books.provider, user, since, until).items:
            tally = shared.get(item.agreement)
            if tally is not None:
                line = api.InvoiceLine(
                    what=tally.what,
                    since=tally.since,
                    until=tally.until,
                    processor_seconds=tally.processor_seconds,
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
        currency=books.currency,
        lines=lines,
        total=sum(line.amount for line in lines),
    )
