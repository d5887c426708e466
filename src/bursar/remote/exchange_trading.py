"""
A buyer's and a seller's part at an exchange, over HTTPS.

The exchange and the services of sellers never call each other: the seller does what joins them, and
each of its steps may be repeated after a crash. Before the ask, its service sets the processors
aside. After the clearing it confirms each trade at the exchange, has its service make the
agreements, and tells the exchange their ids, which pays. So nothing is delivered for a trade that
the exchange may still undo, and nothing is paid before it is delivered.
"""

import asyncio
import math
import time
from collections.abc import Callable
from http import HTTPStatus

import msgspec

from bursar.model.errors import InputError
from bursar.model.money import MICROS, Micros
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.market_messages import (
    ExchangeInfo,
    HandedPart,
    NewOrder,
    NewReservation,
    OrderInfo,
    SellerReport,
    TradeInfo,
)

POLL = 0.5
"""Seconds between two questions about an order."""

LONGEST_POLL = 10.0
"""Seconds between two questions about an order, long before it is cleared."""


class OrderOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """
    What came of an order, as far as is known.

    Parameters
    ----------
    trades
        Trades of the order, none before it is cleared.
    """

    order: OrderInfo
    trades: tuple[TradeInfo, ...] = ()

    @property
    def agreements(self) -> tuple[str, ...]:
        """Identifiers of the agreements at the sellers' services."""
        return tuple(trade.agreement for trade in self.trades if trade.agreement)


def limit_of(price: float, lot: ExchangeInfo, *, buys: bool) -> Micros:
    """
    Return the limit for one processor and the whole lot, micro-units.

    Parameters
    ----------
    price
        Currency units per processor-second.
    buys
        Whether it is a buyer's limit, which is rounded down; a seller's is rounded up.
    """
    units = price * lot.seconds * MICROS
    nearest = round(units)
    # A product's own error is no fraction: 0.1 a second is 360 an hour, not a little more.
    if abs(units - nearest) <= 1e-9 * max(1.0, units):
        return nearest
    return math.floor(units) if buys else math.ceil(units)


async def outcome_of(client: AsyncServiceClient, key: str, *, poll: float = POLL) -> OrderOutcome:
    """
    Wait until an order is withdrawn, or cleared and each of its trades delivered or undone.

    Parameters
    ----------
    key
        The caller's name of the order.
    poll
        Seconds between two questions; before the clearing, up to :data:`LONGEST_POLL`.
    """
    found = await _cleared(client, key, poll)
    while any(trade.state in ("matched", "confirmed") for trade in found.trades):
        await asyncio.sleep(poll)
        found = await _known(client, key)
    return found


async def sell_at(
    exchange: AsyncServiceClient,
    service: AsyncServiceClient,
    order: NewOrder,
    *,
    placed: Callable[[OrderInfo], None] = lambda order: None,
    again: bool = False,
    poll: float = POLL,
) -> OrderOutcome:
    """
    Set processors aside, ask for them, and deliver what is sold; the same order goes on.

    Parameters
    ----------
    service
        The seller's own service, with the scope ``sell``.
    placed
        Called once the ask stands.
    again
        Whether the exchange has the order already.
    poll
        Seconds between two questions.

    Raises
    ------
    RemoteProblem
        When the processors are not free, or the exchange refuses the order.
    InputError
        When the processors of that order were given back.
    """
    reservation = await service.reserve(
        NewReservation(
            deal=f"exchange {order.closes:.0f} {order.key}"[:200],
            processors=order.processors,
            start=order.start,
            seconds=order.seconds,
        )
    )
    if not again and reservation.state not in ("signed", "running"):
        raise InputError(
            f'what was set aside for "{order.key}" was given back', hint="use another --key"
        )
    try:
        ask = await exchange.place_order(order)
    except RemoteProblem:
        # Refused: the processors are free again. Where the answer is unknown they stay reserved.
        await service.cancel_agreement(reservation.id)
        raise
    placed(ask)
    found = await _cleared(exchange, ask.key, poll)
    sold = [t for t in [await _confirmed(exchange, t) for t in found.trades] if t is not None]
    if not sold:
        await service.cancel_agreement(reservation.id)
        return await _known(exchange, ask.key)
    # One call for all parts: what is left over is free again, and must not be sold to others before
    # the last part is.
    handed = await service.hand_over(
        reservation.id,
        [
            HandedPart(
                deal=trade.id,
                customer=trade.customer,
                processors=trade.processors,
                amount=trade.amount,
            )
            for trade in sold
        ],
    )
    for part in handed:
        step = SellerReport(step="delivered", agreement=part.agreement)
        if not part.agreement:
            step = SellerReport(step="refused", reason=part.reason[:500])
        await _reported(exchange, part.deal, step)
    return await _known(exchange, ask.key)


async def _confirmed(exchange: AsyncServiceClient, trade: TradeInfo) -> TradeInfo | None:
    """Confirm a trade; return None when it is undone."""
    return await _reported(exchange, trade.id, SellerReport(step="confirmed"))


async def _reported(
    exchange: AsyncServiceClient, trade: str, report: SellerReport
) -> TradeInfo | None:
    try:
        return await exchange.report_trade(trade, report)
    except RemoteProblem as problem:
        if problem.status == HTTPStatus.CONFLICT:  # it was too late, and is undone
            return None
        raise


async def _cleared(client: AsyncServiceClient, key: str, poll: float) -> OrderOutcome:
    """Wait until an order is open no more."""
    while (found := await _known(client, key)).order.state == "open":
        # An hour before the clearing there is little to ask for: half of the time is slept.
        left = min(LONGEST_POLL, (found.order.closes - time.time()) / 2)
        await asyncio.sleep(max(poll, left))
    return found


async def _known(client: AsyncServiceClient, key: str) -> OrderOutcome:
    # The order first: an order that is told as cleared has all its trades by then.
    (order,) = await client.exchange_orders(key)
    return OrderOutcome(order=order, trades=tuple(await client.exchange_trades(order.id)))
