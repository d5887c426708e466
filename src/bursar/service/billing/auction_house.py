"""Auctions that a service holds of its processors, on a schedule by its owner's rules."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass

from bursar.market.agreement import DealTemplate
from bursar.market.negotiation.auction import Auctioneer, BidCheck
from bursar.market.negotiation.auctioneers import (
    DutchAuctioneer,
    EnglishAuctioneer,
    SealedAuctioneer,
    ShareAuctioneer,
)
from bursar.market.trade_messages import TradeMessage
from bursar.market.trade_server import TradeServer
from bursar.model.money import Micros, Refusal, rental_charge
from bursar.remote import market_messages as market
from bursar.service.config import AuctionSettings

KEPT = 3_600.0
"""Seconds for which the outcome of an auction can be asked for."""

QUIET = 0.25
"""Share of an English auction's time without a bid after which the lot is knocked down."""


@dataclass(slots=True)
class _HeldAuction:
    """An auction of a rule, and until when it is remembered, seconds since the epoch."""

    settings: AuctionSettings
    auctioneer: Auctioneer
    opened: float
    forget: float


class AuctionHouse:
    """
    Holds the auctions of one owner.

    An auction opens at each multiple of its rule's period since the epoch. What is sold is durable
    by the agreements; an auction that a restart interrupts is not held again, and sells nothing.

    Parameters
    ----------
    rules
        What is auctioned, and when.
    owner
        Trade server that sells, and delivers the bidders' messages.
    floor_price
        Returns the least price per processor-second at which the owner sells a lot (processors,
        seconds, start, now) for which the rule names no reserve price.
    may_bid
        Returns why a bidder may not bid an amount.
    """

    def __init__(
        self,
        rules: Sequence[AuctionSettings],
        owner: TradeServer,
        *,
        floor_price: Callable[[int, float, float, float], float],
        may_bid: BidCheck,
    ) -> None:
        self._rules = tuple(rules)
        self._owner = owner
        self._floor_price = floor_price
        self._may_bid = may_bid
        self._next = [math.inf] * len(self._rules)
        self._held: dict[str, _HeldAuction] = {}

    def open(self, now: float) -> None:
        """Begin with the first openings after a moment: those of before a restart are not held."""
        self._next = [_after(rule, now) for rule in self._rules]

    def tick(self, now: float) -> None:
        """Open the auctions that are due, and forget those that were over long ago."""
        for number, rule in enumerate(self._rules):
            if now >= self._next[number]:
                self._open(number, rule, now)
                self._next[number] = _after(rule, now)
        for deal, held in list(self._held.items()):
            if now >= held.forget:
                del self._held[deal]
                self._owner.forget(deal)

    def next_tick(self) -> float:
        """Return when :meth:`tick` next has something to do; infinite for never."""
        return min([*self._next, *(held.forget for held in self._held.values())], default=math.inf)

    @property
    def deals(self) -> Container[str]:
        """Identifiers of the auctions that are held or remembered."""
        return self._held

    def lots(self, now: float) -> list[market.LotInfo]:
        """Return the auctions that are held or over, then the next opening of each rule."""
        held = [self._info(deal, one, now) for deal, one in self._held.items()]
        ahead = [
            market.LotInfo(
                id=_name(number, opens),
                rule=rule.rule,
                state="announced",
                processors=rule.processors,
                seconds=rule.duration,
                start=opens + rule.lasts,
                opens=opens,
                closes=opens + rule.lasts,
                currency=self._owner.currency,
            )
            for number, (rule, opens) in enumerate(zip(self._rules, self._next, strict=True))
            if opens < math.inf
        ]
        return [*held, *ahead]

    def heard(self, user: str, deal: str, after: int) -> list[TradeMessage] | None:
        """
        Return what an auctioneer has told a bidder, from a number on; None: no bidder, no auction.
        """
        held = self._held.get(deal)
        if held is None or user not in held.auctioneer.parties:
            return None
        return [m for m in held.auctioneer.said(user) if m.number > after]

    def _info(self, deal: str, held: _HeldAuction, now: float) -> market.LotInfo:
        auctioneer, lot = held.auctioneer, held.auctioneer.lot
        over = auctioneer.is_over
        return market.LotInfo(
            id=deal,
            rule=held.settings.rule,
            state="sold" if auctioneer.state == "sold" else "unsold" if over else "open",
            processors=lot.processors,
            seconds=lot.seconds,
            start=lot.earliest,
            opens=held.opened,
            closes=auctioneer.closes,
            currency=lot.currency,
            price=auctioneer.price if over else auctioneer.asking(now),
        )

    def _open(self, number: int, rule: AuctionSettings, now: float) -> None:
        opened = self._next[number]
        start = opened + rule.lasts
        if now >= start:  # the clock has jumped over it
            return
        deal = _name(number, opened)
        price = rule.reserve_price
        if price is None:
            price = self._floor_price(rule.processors, rule.duration, start, now)
        reserve = rental_charge(rule.processors * rule.duration, price, 0.0)
        auctioneer = self._auctioneer(rule, deal, start, opened, reserve)
        auctioneer.may_bid = self._may_bid
        # Where the processors are not free, nothing is auctioned this time.
        if isinstance(self._owner.auction(auctioneer, now), Refusal):
            return
        self._held[deal] = _HeldAuction(rule, auctioneer, opened, start + KEPT)

    def _auctioneer(
        self, rule: AuctionSettings, deal: str, start: float, opened: float, reserve: Micros
    ) -> Auctioneer:
        name = self._owner.name
        lot = DealTemplate(
            processors=rule.processors,
            seconds=rule.duration,
            earliest=start,
            latest=start + rule.duration,
            currency=self._owner.currency,
        )
        step = max(1, math.ceil(reserve * rule.step))
        match rule.rule:
            case "english":
                return EnglishAuctioneer(
                    name,
                    deal,
                    (),
                    lot,
                    reserve=reserve,
                    increment=step,
                    quiet=QUIET * rule.lasts,
                    opened=opened,
                    latest=start,
                )
            case "dutch":
                first = max(reserve, round(reserve * rule.first))
                levels = -(-(first - reserve) // step)
                return DutchAuctioneer(
                    name,
                    deal,
                    (),
                    lot,
                    first=first,
                    reserve=reserve,
                    step=step,
                    every=rule.lasts / (levels + 1),
                    opened=opened,
                )
            case "share":
                return ShareAuctioneer(name, deal, (), lot, closes=start)
        return SealedAuctioneer(
            name,
            deal,
            (),
            lot,
            reserve=reserve,
            closes=start,
            second_price=rule.rule == "vickrey",
            waits=True,
        )


def _after(rule: AuctionSettings, now: float) -> float:
    """Return the first opening after a moment."""
    return (math.floor(now / rule.every) + 1) * rule.every


def _name(number: int, opened: float) -> str:
    return f"auction-{number + 1}-{opened:.0f}"
