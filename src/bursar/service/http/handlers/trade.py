"""Deals, accounts and prices."""

from bursar.market.messages import AnyMessage
from bursar.model.pricing import Pricing
from bursar.service.http.call import Call
from bursar.service.http.queries import PeriodQuery
from bursar.service.http.reply import NOTHING, Reply, said


async def deliver(call: Call, body: AnyMessage) -> Reply:
    """A message of a deal; what is answered binds, so it is durable before it is said."""
    answers = call.parts.till.deliver(call.user, body)
    await call.parts.journal.durable()
    return said(answers)


async def agreements(call: Call) -> Reply:
    """The caller's agreements."""
    return said(call.parts.till.agreements(call.user))


async def agreement(call: Call) -> Reply:
    """One of them."""
    return said(call.parts.till.agreement(call.user, call.path["agreement"]))


async def cancel(call: Call) -> Reply:
    """It ends before its time."""
    ended = call.parts.till.cancel(call.user, call.path["agreement"])
    await call.parts.journal.durable()
    return said(ended)


async def invoice(call: Call, query: PeriodQuery) -> Reply:
    """What the caller was charged."""
    until = call.parts.clock() if query.until is None else query.until
    return said(call.parts.till.invoice(call.user, query.since, until))


async def usage(call: Call) -> Reply:
    """What the caller was delivered, signed."""
    return said(call.parts.till.usage(call.user))


async def account(call: Call) -> Reply:
    """The caller's account."""
    return said(call.parts.till.account(call.user))


async def reprice(call: Call, body: Pricing) -> Reply:
    """What is asked from now on."""
    call.parts.till.reprice(body)
    await call.parts.journal.durable()
    return NOTHING


async def sales(call: Call) -> Reply:
    """All agreements by customer, for the owner."""
    return said(call.parts.till.sales())
