"""Handlers for agreements, accounts and prices."""

from bursar.market.trade_messages import AnyMessage
from bursar.model.pricing import Pricing
from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.queries import PeriodQuery
from bursar.service.http.responses import NO_CONTENT, HttpResponse, json_response


async def deliver(call: AuthorizedRequest, body: AnyMessage) -> HttpResponse:
    """Handle a trade message; its answers bind, so they are durable before they are sent."""
    answers = call.parts.billing.deliver(call.user, body)
    await call.parts.journal.durable()
    return json_response(answers)


async def agreements(call: AuthorizedRequest) -> HttpResponse:
    """List the caller's agreements."""
    return json_response(call.parts.billing.agreements(call.user))


async def agreement(call: AuthorizedRequest) -> HttpResponse:
    """Return one agreement of the caller."""
    return json_response(call.parts.billing.agreement(call.user, call.path["agreement"]))


async def cancel(call: AuthorizedRequest) -> HttpResponse:
    """End an agreement before its time."""
    ended = call.parts.billing.cancel(call.user, call.path["agreement"])
    await call.parts.journal.durable()
    return json_response(ended)


async def invoice(call: AuthorizedRequest, query: PeriodQuery) -> HttpResponse:
    """Return the caller's charges in a period."""
    until = call.parts.clock() if query.until is None else query.until
    return json_response(call.parts.billing.invoice(call.user, query.since, until))


async def usage(call: AuthorizedRequest) -> HttpResponse:
    """Return the caller's signed usage records."""
    return json_response(call.parts.billing.usage(call.user))


async def account(call: AuthorizedRequest) -> HttpResponse:
    """Return the caller's account."""
    return json_response(call.parts.billing.account(call.user))


async def reprice(call: AuthorizedRequest, body: Pricing) -> HttpResponse:
    """Set the prices that are asked from now on."""
    call.parts.billing.reprice(body)
    await call.parts.journal.durable()
    return NO_CONTENT


async def sales(call: AuthorizedRequest) -> HttpResponse:
    """Return all agreements by customer, for the owner."""
    return json_response(call.parts.billing.sales())
