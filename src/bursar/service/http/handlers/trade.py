"""Handlers for agreements, accounts and prices."""

from bursar.market.trade_messages import AnyMessage, TradeMessage
from bursar.market.usage import SignedRecord
from bursar.model.pricing import Pricing
from bursar.remote import messages as api
from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.queries import PeriodQuery


async def deliver(call: AuthorizedRequest, body: AnyMessage) -> list[TradeMessage]:
    """Handle a trade message; its answers bind, so they are durable before they are sent."""
    answers = call.service.billing.deliver(call.user, body)
    await call.service.journal.durable()
    return list(answers)


async def agreements(call: AuthorizedRequest) -> api.AgreementList:
    """List the caller's agreements."""
    return call.service.billing.agreements(call.user)


async def agreement(call: AuthorizedRequest) -> api.AgreementInfo:
    """Return one agreement of the caller."""
    return call.service.billing.agreement(call.user, call.path["agreement"])


async def cancel(call: AuthorizedRequest) -> api.AgreementInfo:
    """End an agreement before its time."""
    ended = call.service.billing.cancel(call.user, call.path["agreement"])
    await call.service.journal.durable()
    return ended


async def invoice(call: AuthorizedRequest, query: PeriodQuery) -> api.InvoiceInfo:
    """Return the caller's charges in a period."""
    until = call.service.clock() if query.until is None else query.until
    return call.service.billing.invoice(call.user, query.since, until)


async def usage(call: AuthorizedRequest) -> list[SignedRecord]:
    """Return the caller's signed usage records."""
    return list(call.service.billing.usage(call.user))


async def account(call: AuthorizedRequest) -> api.AccountInfo:
    """Return the caller's account."""
    return call.service.billing.account(call.user)


async def reprice(call: AuthorizedRequest, body: Pricing) -> None:
    """Set the prices that are asked from now on."""
    call.service.billing.reprice(body)
    await call.service.journal.durable()


async def sales(call: AuthorizedRequest) -> dict[str, api.AgreementList]:
    """Return all agreements by customer, for the owner."""
    return dict(call.service.billing.sales())
