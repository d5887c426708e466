"""Handlers of the exchange, and of what owners set aside to sell there."""

from bursar.remote import market_messages as market
from bursar.remote import messages as api
from bursar.service.http.http_messages import AuthorizedRequest


async def exchange(call: AuthorizedRequest) -> market.ExchangeInfo:
    """Return what is cleared next, and what was cleared last, once that is durable."""
    told = call.service.billing.exchange.info(call.user, call.service.clock())
    await call.service.journal.durable()
    return told


async def orders(call: AuthorizedRequest, query: market.OrdersQuery) -> market.OrderList:
    """Return the caller's orders; what came of them is durable before it is told."""
    told = call.service.billing.exchange.orders(call.user, query.key)
    await call.service.journal.durable()
    return told


async def trades(call: AuthorizedRequest, query: market.TradesQuery) -> market.TradeList:
    """Return the caller's trades, which are durable before they are told."""
    told = call.service.billing.exchange.trades(call.user, query.order)
    await call.service.journal.durable()
    return told


async def place(call: AuthorizedRequest, body: market.NewOrder) -> market.OrderInfo:
    """Place an order; order and hold are durable before they are acknowledged."""
    placed = call.service.billing.exchange.place(call.user, body, call.service.clock())
    await call.service.journal.durable()
    return placed


async def withdraw(call: AuthorizedRequest) -> market.OrderInfo:
    """Withdraw an order of the caller."""
    billing, name = call.service.billing, call.path["order"]
    withdrawn = billing.exchange.withdraw(call.user, name, call.service.clock())
    await call.service.journal.durable()
    return withdrawn


async def report(call: AuthorizedRequest, body: market.SellerReport) -> market.TradeInfo:
    """Take a seller's next step in a trade; a delivery is paid."""
    billing, name = call.service.billing, call.path["trade"]
    trade = billing.exchange.report(call.user, name, body, call.service.clock())
    await call.service.journal.durable()
    return trade


async def reserve(call: AuthorizedRequest, body: market.NewReservation) -> api.AgreementInfo:
    """Set processors of the owner's aside."""
    billing = call.service.billing
    name = billing.reservations.reserve(call.user, body, call.service.clock())
    await call.service.journal.durable()
    return billing.agreement(call.user, name)


async def hand_over(call: AuthorizedRequest, body: market.HandOver) -> market.HandedList:
    """Divide a reservation among customers; their agreements are durable before they are told."""
    billing, name = call.service.billing, call.path["agreement"]
    handed = billing.reservations.hand_over(call.user, name, body, call.service.clock())
    await call.service.journal.durable()
    return handed
