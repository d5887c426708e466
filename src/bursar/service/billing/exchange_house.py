"""The exchange that a service holds: a sealed book of orders, cleared on a schedule."""

import math
from collections.abc import Callable, Container, Hashable, Iterator
from itertools import islice
from typing import NoReturn, TypeVar

import msgspec
from msgspec.structs import replace

from bursar.market.agreement import LARGEST
from bursar.market.exchange_book import (
    ClearingRecord,
    ExchangeLot,
    ExchangeOrder,
    ExchangeTrade,
    clear_book,
    lot_after,
    on_seller_step,
    on_time_passed,
)
from bursar.model.money import Refusal
from bursar.remote import market_messages as market
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.service.config import ExchangeSettings
from bursar.service.interfaces import BILLING_KINDS, Entropy, ServiceError
from bursar.store import Position, RecordStore

EXCHANGE_ORDER, EXCHANGE_TRADE, EXCHANGE_CLEARING = BILLING_KINDS[8:11]

MOST_ORDERS = 1_000
"""Open orders of one user."""

TOLD = 20
"""Clearings of which the exchange tells."""

LISTED = 1_000
"""Orders of one user that are listed, the last ones."""

K = TypeVar("K", bound=Hashable)

_ORDER = msgspec.msgpack.Decoder(ExchangeOrder).decode
_TRADE = msgspec.msgpack.Decoder(ExchangeTrade).decode
_CLEARING = msgspec.msgpack.Decoder(ClearingRecord).decode


class ExchangeHouse:
    """
    Keeps orders and trades, and the money that is set aside for them.

    Changes are in the journal when a method returns, all of one method in one transaction: an order
    with its hold, a clearing with all its trades and holds, a delivery with its payment.

    Parameters
    ----------
    journal
        Journal, not yet open.
    ledger
        Where buyers' money is set aside, and sellers are paid.
    settings
        What is cleared, and when; None: no orders are taken. Those that were are cleared.
    name
        What the exchange is called to users: the service's name.
    entropy
        Source of the identifiers of orders.
    on_change
        Called when a new order, or a step of a seller, may change when something is next due.
    """

    def __init__(
        self,
        journal: RecordStore,
        ledger: ServiceLedger,
        settings: ExchangeSettings | None,
        *,
        name: str,
        entropy: Entropy,
        on_change: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._ledger = ledger
        self._settings = settings
        self._name = name
        self._entropy = entropy
        self._on_change = on_change
        self._orders: dict[str, ExchangeOrder] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._trades: dict[str, ExchangeTrade] = {}
        self._positions: dict[str, Position] = {}
        self._clearings: list[ClearingRecord] = []
        # By when something is due: all open orders of a lot are cleared at one time, and looked at
        # together.
        self._open_orders: dict[ExchangeLot, dict[str, None]] = {}
        self._open_trades: dict[float, dict[str, None]] = {}
        self._orders_of: dict[str, list[str]] = {}  # by user
        self._trades_of: dict[str, list[str]] = {}  # by order
        self._last_number = 0
        journal.register([EXCHANGE_ORDER, EXCHANGE_TRADE, EXCHANGE_CLEARING], self)

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in the record of an order, a trade or a clearing."""
        if kind == EXCHANGE_ORDER:
            self._put_order(_ORDER(payload), position)
        elif kind == EXCHANGE_TRADE:
            self._put_trade(_TRADE(payload), position)
        else:
            self._clearings.append(_CLEARING(payload))

    def open(self) -> None:
        """Take up the restored records, which come in any order."""
        self._clearings.sort(key=lambda record: record.at)
        for mine in self._orders_of.values():
            mine.sort(key=lambda name: self._orders[name].number)
        for sold in self._trades_of.values():
            sold.sort()

    # What users are told.

    def info(self, user: str, now: float) -> market.ExchangeInfo:
        """
        Return what is cleared next and was cleared last.

        Raises
        ------
        ServiceError
            404, when the service holds no exchange.
        """
        settings, lot = self._next(now)
        return market.ExchangeInfo(
            name=self._name,
            currency=self._ledger.currency,
            rule=lot.rule,
            every=settings.every,
            closes=lot.closes,
            start=lot.start,
            seconds=lot.seconds,
            k=lot.k,
            earned=self._ledger.earned(user),
            clearings=[
                market.ClearingInfo(
                    rule=record.lot.rule,
                    closes=record.lot.closes,
                    start=record.lot.start,
                    seconds=record.lot.seconds,
                    price=record.price,
                    processors=record.processors,
                    amount=record.amount,
                )
                for record in islice(reversed(self._clearings), TOLD)
            ],
        )

    def orders(self, user: str, key: str = "") -> market.OrderList:
        """
        Return the last orders of a user; nobody is told of the orders of others.

        Parameters
        ----------
        key
            The user's name of one order; empty: all.
        """
        if key:
            found = self._by_key.get((user, key))
            names = [] if found is None else [found]
        else:
            names = self._orders_of.get(user, [])[-LISTED:]
        return market.OrderList(orders=[self._order_info(self._orders[name]) for name in names])

    def trades(self, user: str, order: str = "") -> market.TradeList:
        """
        Return the trades of a user's last orders, bought and sold.

        Parameters
        ----------
        order
            One order of the user's; empty: all.
        """
        names = self._orders_of.get(user, [])
        if order:
            names = [order] if order in self._orders and self._orders[order].user == user else []
        else:
            names = names[-LISTED:]
        return market.TradeList(
            trades=[
                self._trade_info(self._trades[trade], user)
                for name in names
                for trade in self._trades_of.get(name, ())
            ]
        )

    # What users do.

    def place(self, user: str, wish: market.NewOrder, now: float) -> market.OrderInfo:
        """
        Place an order, with the money for it set aside; the same order with its key only once.

        Raises
        ------
        ServiceError
            400, when the order does not fit the exchange; 402, when the account has too little; 404
            without an exchange; 409, when the key was used for another order, or another lot is
            cleared next; 507, when the disk is full.
        """
        known = self._by_key.get((user, wish.key))
        if known is not None:
            # Before all else: the answer to the first request may have been lost, and its clearing
            # may be over since.
            order = self._orders[known]
            if _order_of(wish, user, order.id, order.number, order.lot).wish != order.wish:
                raise ServiceError(
                    "conflict", 409, "the key was used for another order", where="key"
                )
            return self._order_info(order)
        _, lot = self._next(now)
        if (wish.closes, wish.start, wish.seconds) != (lot.closes, lot.start, lot.seconds):
            raise ServiceError(
                "conflict",
                409,
                "orders of that lot are closed; see what comes next",
                where="closes",
            )
        if self._journal.problem:
            raise ServiceError("disk-full", 507, self._journal.problem, retry_after=1.0)
        order = _order_of(wish, user, self._entropy(16).hex(), self._last_number + 1, lot)
        _check(order, self._open_of(user, lot))
        if order.side == "ask":
            refusal = self._ledger.open_seller(user)
        else:
            refusal = self._ledger.hold(user, _order_hold(order.id), order.hold, now)
        if refusal is not None:
            if refusal.final:
                raise ServiceError("bad-value", 400, refusal.reason)
            raise ServiceError("no-money", 402, refusal.reason)
        self._keep_order(order)
        self._on_change(order.id)
        return self._order_info(order)

    def withdraw(self, user: str, name: str, now: float) -> market.OrderInfo:
        """
        Withdraw an order before it is cleared; its money is released. Again changes nothing.

        Raises
        ------
        ServiceError
            404, when the user has no such order; 409, when it was cleared.
        """
        order = self._orders.get(name)
        if order is None or order.user != user:
            raise ServiceError("not-found", 404, f'no order "{name}"')
        if order.state == "cleared" or (order.state == "open" and now >= order.lot.closes):
            raise ServiceError("conflict", 409, "the order was cleared")
        if order.state == "open":
            self._ledger.settle(_order_hold(name), 0, now)
            self._keep_order(replace(order, state="withdrawn"))
        return self._order_info(self._orders[name])

    def report(
        self, user: str, name: str, said: market.SellerReport, now: float
    ) -> market.TradeInfo:
        """
        Take a seller's confirmation, delivery or refusal of a trade; a delivery is paid.

        Raises
        ------
        ServiceError
            404, when the user sells nothing in such a trade; 409, when it is too late or too early
            for that step.
        """
        trade = self._trades.get(name)
        if trade is None or trade.seller != user:
            raise ServiceError("not-found", 404, f'no trade "{name}" in which you sell')
        after = on_seller_step(trade, said.step, now, agreement=said.agreement, reason=said.reason)
        if isinstance(after, Refusal):
            raise ServiceError("conflict", 409, after.reason)
        self._follow(after, now)
        return self._trade_info(after, user)

    # Time.

    def tick(self, now: float) -> None:
        """Clear the lots whose orders are closed, and undo the trades whose sellers are late."""
        for lot in sorted(self._open_orders, key=lambda lot: lot.closes):
            if now >= lot.closes:
                self._clear(lot, [self._orders[name] for name in self._open_orders[lot]], now)
        for deadline in sorted(self._open_trades):
            if now >= deadline:
                for name in list(self._open_trades[deadline]):
                    self._follow(on_time_passed(self._trades[name], now), now)

    def next_tick(self) -> float:
        """Return when :meth:`tick` next has something to do; infinite for never."""
        closes = (lot.closes for lot in self._open_orders)
        return min(min(closes, default=math.inf), min(self._open_trades, default=math.inf))

    # The audit.

    @property
    def held_names(self) -> Container[str]:
        """Names in the ledger of what is set aside for orders and trades."""
        return {_order_hold(name) for name in self._orders} | {
            _trade_hold(name) for name in self._trades
        }

    def faults(self) -> Iterator[str]:
        """Yield every violated invariant of orders, trades and their money, one line each."""
        traded: dict[str, int] = {}
        for name, trade in self._trades.items():
            paid = trade.amount if trade.state == "delivered" else 0
            yield from self._money_faults(_trade_hold(name), trade.held, paid)
            for side in (trade.bid, trade.ask):
                traded[side] = traded.get(side, 0) + trade.processors
        for name, order in self._orders.items():
            yield from self._money_faults(_order_hold(name), order.hold, 0)
            if traded.get(name, 0) > order.processors > 0:
                yield f"{name}: traded {traded[name]} of {order.processors} processors"
        earned: dict[str, int] = {}
        for trade in self._trades.values():
            if trade.state == "delivered":
                earned[trade.seller] = earned.get(trade.seller, 0) + trade.amount
        for seller, amount in earned.items():
            if self._ledger.earned(seller) != amount:
                yield f"{seller}: was paid {self._ledger.earned(seller)}, sold for {amount}"

    def _money_faults(self, name: str, held: int, paid: int) -> Iterator[str]:
        promise = self._ledger.accounts.agreements.get(name)
        found = (0, 0) if promise is None else (promise.held, promise.paid)
        if found != (held, paid):
            yield f"{name}: holds and paid {found}, expected {(held, paid)}"

    # Inside.

    def _next(self, now: float) -> tuple[ExchangeSettings, ExchangeLot]:
        settings = self._settings
        if settings is None:
            _no_exchange()
        lot = lot_after(
            now,
            every=settings.every,
            confirm=settings.confirm,
            seconds=settings.duration,
            rule=settings.rule,
            k=settings.k,
        )
        return settings, lot

    def _open_of(self, user: str, lot: ExchangeLot) -> list[ExchangeOrder]:
        """Return the user's open orders of the lot that is cleared next, which are its last."""
        found = []
        for name in reversed(self._orders_of.get(user, ())):
            order = self._orders[name]
            if order.lot != lot and order.state == "cleared":
                break
            if order.state == "open":
                found.append(order)
        return found

    def _clear(self, lot: ExchangeLot, orders: list[ExchangeOrder], now: float) -> None:
        record, trades = clear_book(lot, orders, now)
        parts: dict[str, dict[str, int]] = {}
        for trade in trades:
            parts.setdefault(trade.bid, {})[_trade_hold(trade.id)] = trade.amount
        for order in orders:
            self._ledger.divide(_order_hold(order.id), parts.get(order.id, {}), now)
            self._keep_order(replace(order, state="cleared"))
        for trade in trades:
            self._keep_trade(trade)
        payload = msgspec.msgpack.encode(record)
        self._journal.append(EXCHANGE_CLEARING, payload, essential=True)
        self._clearings.append(record)

    def _follow(self, trade: ExchangeTrade, now: float) -> None:
        """Keep a trade's next state, and move its money if the state changed."""
        if trade == self._trades[trade.id]:
            return
        if trade.state == "delivered":
            self._ledger.open_seller(trade.seller)
            self._ledger.settle(_trade_hold(trade.id), trade.amount, now, payee=trade.seller)
        elif trade.state == "undone":
            self._ledger.settle(_trade_hold(trade.id), 0, now)
        self._keep_trade(trade)
        self._on_change(trade.id)

    def _keep_order(self, order: ExchangeOrder) -> None:
        payload = msgspec.msgpack.encode(order)
        self._put_order(order, self._replaced(EXCHANGE_ORDER, order.id, payload))

    def _keep_trade(self, trade: ExchangeTrade) -> None:
        payload = msgspec.msgpack.encode(trade)
        self._put_trade(trade, self._replaced(EXCHANGE_TRADE, trade.id, payload))

    def _replaced(self, kind: int, name: str, payload: bytes) -> Position:
        # The whole record each time, and the old one killed in the same transaction.
        position = self._journal.append(kind, payload, essential=True)
        if (old := self._positions.get(name)) is not None:
            self._journal.kill(old)
        return position

    def _put_order(self, order: ExchangeOrder, position: Position) -> None:
        if order.id not in self._orders:
            self._orders_of.setdefault(order.user, []).append(order.id)
        self._orders[order.id] = order
        self._by_key[order.user, order.key] = order.id
        self._positions[order.id] = position
        self._last_number = max(self._last_number, order.number)
        if order.state == "open":
            self._open_orders.setdefault(order.lot, {})[order.id] = None
        else:
            _remove(self._open_orders, order.lot, order.id)

    def _put_trade(self, trade: ExchangeTrade, position: Position) -> None:
        before = self._trades.get(trade.id)
        if before is None:
            for order in (trade.bid, trade.ask):
                self._trades_of.setdefault(order, []).append(trade.id)
        else:
            _remove(self._open_trades, before.deadline, trade.id)
        self._trades[trade.id] = trade
        self._positions[trade.id] = position
        if trade.deadline < math.inf:
            self._open_trades.setdefault(trade.deadline, {})[trade.id] = None

    def _order_info(self, order: ExchangeOrder) -> market.OrderInfo:
        mine = [self._trades[name] for name in self._trades_of.get(order.id, ())]
        held = sum(trade.held for trade in mine) if order.side == "bid" else 0
        return market.OrderInfo(
            id=order.id,
            key=order.key,
            side=order.side,
            closes=order.lot.closes,
            start=order.lot.start,
            seconds=order.lot.seconds,
            processors=order.processors,
            amount=order.amount,
            currency=self._ledger.currency,
            state=order.state,
            traded=sum(trade.processors for trade in mine),
            held=order.hold + held,
            customer=order.customer,
            service=order.service,
        )

    def _trade_info(self, trade: ExchangeTrade, user: str) -> market.TradeInfo:
        sells = trade.seller == user
        return market.TradeInfo(
            id=trade.id,
            side="ask" if sells else "bid",
            order=trade.ask if sells else trade.bid,
            closes=trade.lot.closes,
            start=trade.lot.start,
            seconds=trade.lot.seconds,
            processors=trade.processors,
            amount=trade.amount,
            currency=self._ledger.currency,
            state=trade.state,
            seller=trade.seller,
            customer=trade.customer,
            service=trade.service,
            agreement=trade.agreement,
            reason=trade.reason,
        )


def _order_of(
    wish: market.NewOrder, user: str, name: str, number: int, lot: ExchangeLot
) -> ExchangeOrder:
    """Return the order that a user asks for; of a lot that the user did not mean, another one."""
    meant = replace(lot, closes=wish.closes, start=wish.start, seconds=wish.seconds)
    return ExchangeOrder(
        id=name,
        number=number,
        user=user,
        key=wish.key,
        side=wish.side,
        lot=meant,
        processors=wish.processors,
        amount=wish.amount,
        customer=(wish.customer or user) if wish.side == "bid" else "",
        service=wish.service,
    )


def _check(order: ExchangeOrder, others: list[ExchangeOrder]) -> None:
    """Refuse an order that does not fit its rule, or the user's other open orders."""
    shared = order.lot.rule == "share"
    if order.processors > 0 and shared and order.side == "bid":
        raise _wrong("processors", "a bid for a share names none")
    if order.processors < 1 and not (shared and order.side == "bid"):
        raise _wrong("processors", "expected 1 or more")
    if order.amount and shared and order.side == "ask":
        raise _wrong("amount", "shares are sold at any price, an ask names none")
    if not order.amount and order.side == "bid":
        raise _wrong("amount", "expected more than nothing")
    if order.hold > LARGEST:
        raise _wrong("amount", "the whole order is too large")
    if (order.side == "ask") != bool(order.service):
        raise _wrong("service", "an ask names where its processors are, a bid does not")
    if not (order.customer + order.service + order.key).isprintable():
        raise _wrong("customer" if order.side == "bid" else "service", "expected printable text")
    if any(other.side != order.side for other in others):
        raise _wrong("side", "you buy or sell in a clearing, not both")
    if len(others) >= MOST_ORDERS:
        raise ServiceError("over-quota", 429, f"more than {MOST_ORDERS} open orders")


def _wrong(where: str, what: str) -> ServiceError:
    return ServiceError("bad-value", 400, what, where=where)


def _no_exchange() -> NoReturn:
    raise ServiceError("not-found", 404, "the service holds no exchange")


def _remove(index: dict[K, dict[str, None]], key: K, name: str) -> None:
    """Remove a name from an index by key, and the key with its last name."""
    names = index.get(key, {})
    names.pop(name, None)
    if not names:
        index.pop(key, None)


def _order_hold(name: str) -> str:
    return f"order:{name}"


def _trade_hold(name: str) -> str:
    return f"trade:{name}"
