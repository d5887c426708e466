"""Check of the invariants of agreements, money and deliveries."""

from collections.abc import Iterator

from bursar.service.billing.agreement_registry import AgreementRegistry
from bursar.service.billing.metering import UsageRecordLog
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.service.billing.shared_usage import SharedUsageMeter


def find_inconsistencies(
    dealings: AgreementRegistry,
    ledger: ServiceLedger,
    meter: UsageRecordLog,
    shared_usage: SharedUsageMeter,
) -> list[str]:
    """
    Return every violated invariant, one line each; any is a defect of this package.

    The ledger balances; what is held is what open agreements may come to; nobody was charged more
    than was set aside or delivered; what shared processors cost is posted once.
    """
    return [
        *ledger.accounts.faults(),
        *_deal_faults(dealings, ledger, meter),
        *_shared_usage_faults(ledger, shared_usage),
        *_stray_rows(dealings, ledger, shared_usage),
    ]


def _deal_faults(
    dealings: AgreementRegistry, ledger: ServiceLedger, meter: UsageRecordLog
) -> Iterator[str]:
    promises = ledger.accounts.agreements
    for name, deal in dealings.deals.items():
        amount = deal.agreement.terms.amount
        promise = promises.get(name)
        held = promise.held if promise is not None else 0
        paid = promise.paid if promise is not None else 0
        expected = amount if deal.is_open else 0
        if held != expected:
            yield f"{name}: holds {held}, expected {expected}"
        if paid != deal.charged or paid > amount:
            yield f"{name}: paid {paid}, charged {deal.charged}, agreed on {amount}"
        if promise is not None and promise.user != deal.agreement.customer:
            yield f"{name}: {promise.user} pays for {deal.agreement.customer}"
        delivered = sum(record.delivered for record in meter.of(name))
        most = deal.agreement.processors * deal.agreement.seconds
        # Sums of float seconds; a millisecond is no delivery beyond the agreement.
        if delivered > most * (1 + 1e-9) + 1e-3:
            yield f"{name}: delivered {delivered}, agreed on {most}"
        if deal.charged and not delivered:
            yield f"{name}: charged, and nothing delivered"


def _shared_usage_faults(ledger: ServiceLedger, shared_usage: SharedUsageMeter) -> Iterator[str]:
    owed: dict[str, int] = {}
    for usage in shared_usage.all_open():
        owed[usage.user] = owed.get(usage.user, 0) + usage.amount
    for user, amount in owed.items():
        if ledger.is_limited(user) and ledger.available(user) < 0:
            yield f"{user}: owes {amount}, which is more than there is"
    for usage in shared_usage.all_posted():
        promise = ledger.accounts.agreements.get(usage.id)
        paid = promise.paid if promise is not None else 0
        if paid != usage.amount:
            yield f"{usage.id}: paid {paid}, used {usage.amount}"


def _stray_rows(
    dealings: AgreementRegistry, ledger: ServiceLedger, shared_usage: SharedUsageMeter
) -> Iterator[str]:
    known = {usage.id for usage in shared_usage.all_posted()}
    for name in ledger.accounts.agreements:
        if name not in dealings.deals and name not in known:
            yield f"{name}: money moved for what is no agreement"
