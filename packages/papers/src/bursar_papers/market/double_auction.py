"""The state of a party's orders in a double auction, beside other deals."""

from collections.abc import Iterable

from bursar.market.negotiation.side import NegotiationSide, reject_stray
from bursar.market.trade_messages import (
    Ask,
    Bid,
    CallForBids,
    InformOutcome,
    TradeMessage,
    TradingParty,
)
from bursar.model.money import Micros


class DoubleAuctionTrader(NegotiationSide):
    """
    Places one order when called, and receives the trades. Its states: open, ordered, told.

    Parameters
    ----------
    kind
        ``Bid`` of a buyer, ``Ask`` of an owner.
    processors
        How many at most.
    amount
        For each, micro-units.
    """

    def __init__(
        self,
        me: str,
        deal: str,
        floor: str,
        *,
        kind: type[Bid] | type[Ask],
        processors: int,
        amount: Micros,
        currency: str,
    ) -> None:
        super().__init__(me, deal, (floor,), currency)
        self._kind = kind
        self._processors = processors
        self._amount = amount

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        match message:
            case CallForBids(rule="double") if self.state == "open":
                self.state = "ordered"
                order = self._make(
                    self._kind,
                    message.sender,
                    amount=self._amount,
                    currency=self.currency,
                    processors=self._processors,
                )
                return (order,)
            case InformOutcome() if self.state == "ordered":
                self.state = "told"
                return ()
        return self._unexpected(message)


class DoubleAuctionParty:
    """
    A party of an exchange: some of its deals here, all others with whom it stands for.

    Parameters
    ----------
    name
        Where messages to it go.
    behind
        Who takes up the other deals; None: nobody.
    """

    def __init__(self, name: str, behind: TradingParty | None = None) -> None:
        self.name = name
        self.sides: dict[str, NegotiationSide] = {}
        self._behind = behind

    def deliver(self, message: TradeMessage, now: float) -> Iterable[TradeMessage]:
        """Takes a message up, and says what to send."""
        side = self.sides.get(message.deal)
        if side is not None:
            return side.receive(message, now)
        if self._behind is not None:
            return self._behind.deliver(message, now)
        return reject_stray(message, self.name, "is not of any deal")

    def tick(self, now: float) -> Iterable[TradeMessage]:
        """Process the passing of time, and return the messages to send."""
        said = [m for s in self.sides.values() if s.next_tick() <= now for m in s.tick(now)]
        return [*said, *(self._behind.tick(now) if self._behind is not None else ())]
