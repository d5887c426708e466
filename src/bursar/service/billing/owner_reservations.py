"""Processors that an owner sets aside, and hands over to customers who have paid elsewhere."""

from collections.abc import Callable, Container

from msgspec.structs import replace

from bursar.market.agreement import Agreement, DealTemplate, Terms
from bursar.market.trade_server import TradeServer
from bursar.model.money import Refusal
from bursar.remote import market_messages as market
from bursar.service.billing.agreement_registry import AgreementRecord, AgreementRegistry
from bursar.service.interfaces import ServiceError

_RESERVED = "reserved:"


class OwnerReservations:
    """
    Sets processors aside by agreements of the owner with itself, which cost nothing.

    Such an agreement is durable, keeps its processors from others, and can be cancelled, as any
    other. When it is handed over it ends, and each customer gets an agreement for a part of its
    processors, in the same transaction. The customer is credited with what it has paid elsewhere,
    and the agreement holds that amount: what is not delivered comes back to the customer's account
    here.

    Parameters
    ----------
    owner, dealings
        Trade server that sells, and the registry in which it signs.
    customers
        Who may buy.
    end
        Ends an agreement that has begun, at a moment.
    """

    def __init__(
        self,
        owner: TradeServer,
        dealings: AgreementRegistry,
        *,
        customers: Container[str],
        end: Callable[[str, float], None],
    ) -> None:
        self._owner = owner
        self._dealings = dealings
        self._customers = customers
        self._end = end

    def reserve(self, user: str, wish: market.NewReservation, now: float) -> str:
        """
        Set processors aside, once for each name of a user; return the agreement's identifier.

        Raises
        ------
        ServiceError
            400, when there can be no such agreement; 409, when the processors are not free, or the
            name was used for others.
        """
        deal = _RESERVED + wish.deal
        known = self._find(user, deal)
        if known is not None:
            terms = known.agreement.terms
            asked = wish.processors, wish.start, wish.seconds
            if (terms.processors, terms.start, terms.seconds) != asked:
                raise ServiceError(
                    "conflict", 409, "is reserved for other processors", where="deal"
                )
            return known.agreement.id
        if wish.processors > self._owner.capacity.processors:
            most = f"has {self._owner.capacity.processors} processors"
            raise ServiceError("bad-value", 400, most, where="processors")
        try:
            terms = Terms(
                processors=wish.processors,
                start=wish.start,
                seconds=wish.seconds,
                unit_price=0.0,
                currency=self._owner.currency,
            )
        except ValueError as error:
            raise ServiceError("bad-value", 400, str(error), where="start") from None
        made = self._owner.sell(deal, user, terms, now, limited=False)
        if isinstance(made, Refusal):
            raise ServiceError("conflict", 409, made.reason)
        return made.id

    def hand_over(
        self, user: str, name: str, wanted: market.HandOver, now: float
    ) -> market.HandedList:
        """
        Divide a reservation among customers; asked again, return the same agreements.

        A part that comes after the start begins at once, and costs no more than its share of the
        time that is left; the rest of what was paid stays in the customer's account.

        Raises
        ------
        ServiceError
            400, when the parts are more than was reserved; 404, when the user has no such
            reservation.
        """
        reserved = self._dealings.of_user(user, name)
        if reserved is None or not reserved.talk.startswith(_RESERVED):
            raise ServiceError("not-found", 404, f'no reservation "{name}"')
        if sum(part.processors for part in wanted.parts) > reserved.agreement.processors:
            most = f"{reserved.agreement.processors} processors are reserved"
            raise ServiceError("bad-value", 400, most, where="parts")
        if reserved.is_open and now < reserved.start:
            self._owner.take_back(reserved.agreement, now)
        elif reserved.is_open:
            self._end(name, now)
        return market.HandedList(
            parts=[self._handed(part, reserved.agreement, now) for part in wanted.parts]
        )

    def _handed(
        self, part: market.HandedPart, reserved: Agreement, now: float
    ) -> market.HandedAgreement:
        known = self._find(part.customer, part.deal)
        if known is not None:
            return market.HandedAgreement(deal=part.deal, agreement=known.agreement.id)
        if part.customer not in self._customers:
            return _none(part, f"{part.customer} is no customer")
        if reserved.terms.end <= now:
            return _none(part, "the reserved time is over")
        lot = DealTemplate(
            processors=part.processors,
            seconds=reserved.seconds,
            earliest=reserved.start,
            currency=reserved.currency,
        )
        try:
            terms = Terms.of_amount(lot, reserved.start, part.amount)
            if now > reserved.start:
                terms = replace(terms, start=now, seconds=reserved.terms.end - now)
        except ValueError as error:
            return _none(part, str(error))
        # No await until the agreement is signed: credit, hold and agreement are one transaction.
        self._dealings.paid_elsewhere = part.amount
        try:
            made = self._owner.sell(part.deal, part.customer, terms, now)
        finally:
            self._dealings.paid_elsewhere = 0
        if isinstance(made, Refusal):
            return _none(part, made.reason)
        return market.HandedAgreement(deal=part.deal, agreement=made.id)

    def _find(self, user: str, deal: str) -> AgreementRecord | None:
        return next((known for known in self._dealings.of(user) if known.talk == deal), None)


def _none(part: market.HandedPart, reason: str) -> market.HandedAgreement:
    return market.HandedAgreement(deal=part.deal, agreement="", reason=reason)
