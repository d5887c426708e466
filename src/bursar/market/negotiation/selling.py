"""Common parts of owners' sides, which sell once, and of buyers' sides, which may withdraw."""

from abc import ABC, abstractmethod
from typing import Protocol

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.negotiation.side import NegotiationSide
from bursar.market.trade_messages import Cancel, Confirm, Reject, TradeMessage
from bursar.model.money import Refusal


class Seller(Protocol):
    """Party that prices and sells processors: the trade server, or a test's seller."""

    name: str
    currency: str
    validity: float
    """Seconds that a quote or bid holds."""

    def terms(
        self, deal: str, customer: str, template: DealTemplate, now: float
    ) -> Terms | Refusal:
        """
        Return the owner's terms: the price by the pricing policy, the start by free processors.
        """
        ...

    def hold(self, deal: str, customer: str, terms: Terms, until: float, now: float) -> None:
        """
        Record a quote or bid; the seller may reserve processors until the quote or bid expires.
        """
        ...

    def sell(self, deal: str, customer: str, terms: Terms, now: float) -> Agreement | Refusal:
        """Bind the owner if the processors are still free."""
        ...

    def take_back(self, agreement: Agreement, now: float) -> Refusal | None:
        """End an agreement that has not begun."""
        ...


class OwnerSide(NegotiationSide, ABC):
    """
    The owner's side of a deal with one customer.

    Parameters
    ----------
    seller
        The owner.
    deal
        The conversation.
    customer
        The other's name.

    Attributes
    ----------
    agreement
        Agreement reached, None before; kept after a cancellation.
    """

    def __init__(self, seller: Seller, deal: str, customer: str) -> None:
        super().__init__(seller.name, deal, (customer,), seller.currency)
        self.seller = seller
        self.customer = customer
        self.agreement: Agreement | None = None

    def _sell(self, message: TradeMessage, terms: Terms, now: float) -> tuple[TradeMessage, ...]:
        sold = self.seller.sell(self.deal, self.customer, terms, now)
        if isinstance(sold, Refusal):
            return self._refuse(message, sold.reason)
        self.agreement = sold
        self.state = "agreed"
        return (self._make(Confirm, self.customer, agreement=sold),)

    def _cancel(self, message: Cancel, now: float) -> tuple[TradeMessage, ...]:
        if self.state == "agreed" and self.agreement is not None:
            refusal = self.seller.take_back(self.agreement, now)
            if refusal is not None:
                return self._refuse(message, refusal.reason)
        self.state = "cancelled"
        return (self._make(Cancel, self.customer),)


class BuyerSide(NegotiationSide, ABC):
    """
    The buyer's side of a deal with one owner or several.

    Parameters
    ----------
    me
        The buyer's name.
    deal
        The conversation.
    owners
        Names of the others.
    template
        Processors and times that are wanted.

    Attributes
    ----------
    agreement
        Once there is one.
    reason
        Why the last thing was refused; empty when nothing was.
    """

    def __init__(self, me: str, deal: str, owners: tuple[str, ...], template: DealTemplate) -> None:
        super().__init__(me, deal, owners, template.currency)
        self.template = template
        self.agreement: Agreement | None = None
        self.reason = ""
        self._withdrawn: dict[str, int] = {}

    def cancel(self, now: float) -> tuple[TradeMessage, ...]:
        """Withdraw from the deal, which is over when the owner's Cancel arrives."""
        if self.state in ("cancelling", "cancelled"):
            return ()
        # Without an agreement any of them may be about to confirm: each has to let go.
        parties = self.parties if self.agreement is None else (self.agreement.owner,)
        withdrawals = tuple(self._make(Cancel, party) for party in parties)
        self._withdrawn = {message.to: message.number for message in withdrawals}
        self.state = "cancelling"
        return withdrawals

    def _on(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        if self.state == "cancelling":
            return self._let_go(message)
        return self._follow(message, now)

    @abstractmethod
    def _follow(self, message: TradeMessage, now: float) -> tuple[TradeMessage, ...]:
        """React to a message that is new and in order, while the buyer wants the deal."""

    @abstractmethod
    def _is_deal(self, agreement: Agreement) -> bool:
        """Whether an agreement is what was accepted."""

    def _let_go(self, message: TradeMessage) -> tuple[TradeMessage, ...]:
        match message:
            case Confirm() if self._is_mine(message):
                self.agreement = message.agreement  # crossed with the Cancel, which follows
            case Cancel():
                self._withdrawn.pop(message.sender, None)
                if not self._withdrawn:
                    self.state = "cancelled"
            case Reject() if message.of == self._withdrawn.get(message.sender):
                self.reason = message.reason
                self.state = "refused" if self.agreement is None else "agreed"
        return ()

    def _agree(self, message: Confirm) -> tuple[TradeMessage, ...]:
        """
        End the deal with the agreement that an owner confirms; no message is to be sent then.

        A confirmation of other terms than those accepted is answered with a Reject, and the deal
        stays as it is.
        """
        if not self._is_mine(message):
            return self._refuse(message, "is not what was accepted")
        self.agreement = message.agreement
        self.state = "agreed"
        return ()

    def _is_mine(self, message: Confirm) -> bool:
        agreement = message.agreement
        parties = (agreement.owner, agreement.customer) == (message.sender, self.me)
        return parties and self._is_deal(agreement)
