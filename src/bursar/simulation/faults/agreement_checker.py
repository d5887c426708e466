"""
Sees what is agreed on, and what comes of it: of agreements, prices and money.

It knows what both sides have said to each other, and nothing that the service has not told.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bursar.market.agreement import Agreement, DealTemplate
from bursar.market.trade_messages import (
    Accept,
    CallForBids,
    InformOutcome,
    Offer,
    Quote,
    RequestQuote,
    TradeMessage,
)
from bursar.model.money import to_micros
from bursar.remote import messages as api
from bursar.service.interfaces import Clock

OnViolation = Callable[[str, str], None]
"""Told the party and what must not have happened."""

STOPPED = 10.0
"""Seconds for which the service must have been there, so that all of an agreement has ended."""

_LITTLE = 1e-6


class AgreementChecker:
    """
    What was agreed on.

    Parameters
    ----------
    processors
        Of the site.
    price
        Currency units of a processor-second, as posted first.
    now
        Virtual seconds.
    up_since
        When the service has begun to serve; infinite while it does not.
    wrong
        See :data:`OnViolation`.
    """

    def __init__(
        self, *, processors: int, price: float, now: Clock, up_since: Clock, wrong: OnViolation
    ) -> None:
        self.prices = [price]  # that were posted, or may be
        self._processors = processors
        self._now = now
        self._up_since = up_since
        self._wrong = wrong
        self._is_posted = True  # the last of the prices was acknowledged
        self._bought: dict[str, Agreement] = {}
        self._ended: dict[str, tuple[float, api.AgreementInfo]] = {}  # when, and what was said
        self._wanted: dict[tuple[str, str], DealTemplate] = {}  # by user and deal
        self._binding: dict[tuple[str, str], DealTemplate] = {}  # those the owner could accept

    # What is said.

    def says(self, user: str, message: TradeMessage) -> None:
        """A user is about to send a message of a deal."""
        deal = user, message.deal
        if isinstance(message, RequestQuote | Offer | CallForBids):
            self._wanted[deal] = message.template
        if isinstance(
            message, Offer | Accept | InformOutcome
        ):  # from now on it may come to an agreement, once
            self._binding[deal] = self._wanted[deal]

    def agreed(self, agreement: Agreement) -> None:
        """A customer was told of an agreement."""
        self._bought[agreement.id] = agreement

    def agreement(self, name: str) -> Agreement | None:
        """One that its customer was told of."""
        return self._bought.get(name)

    def ended(self, user: str, info: api.AgreementInfo) -> None:
        """A customer was told that an agreement has ended before its time."""
        if info.state not in ("over", "cancelled") or info.held:
            self._wrong(user, f"has ended an agreement that is {info}")
        self._ended.setdefault(info.id, (self._now(), info))

    def is_stopped(self, name: str) -> bool:
        """Whether nothing of an agreement can run any more."""
        since, _ = self._ended.get(name, (math.inf, None))
        return self._now() > max(since, self._up_since()) + STOPPED

    # Prices.

    def reprices(self, price: float) -> None:
        """The owner is about to ask for another price."""
        self.prices.append(price)
        self._is_posted = False

    def repriced(self) -> None:
        """That was acknowledged."""
        self._is_posted = True

    def prices_now(self) -> Sequence[float]:
        """What the service may ask from now on, as long as nothing is changed."""
        return self.prices[-1:] if self._is_posted else tuple(self.prices)

    def posted(self, user: str, price: float | None, known: Sequence[float]) -> None:
        """A user was told the price, having asked when these were possible."""
        if price not in known and price not in self.prices_now():
            self._wrong(user, f"is told the price {price}, expected {known[-1]}")

    def quoted(self, user: str, quote: Quote, known: Sequence[float]) -> None:
        """A user was made a quote."""
        self.posted(user, quote.terms.unit_price, known)

    # In the end.

    def settled(self, found: Mapping[str, Sequence[api.AgreementInfo]], *, slack: float) -> None:
        """
        All has come to rest.

        Parameters
        ----------
        found
            All agreements, by user.
        slack
            Seconds by which the service's clock may have gone back between two lives.
        """
        for user, infos in found.items():
            self._look_at_terms(user, infos)
            self._look_at_deals(user, infos)
            for info in infos:
                self._look_at_charge(user, info)
        self._look_at_capacity([info for infos in found.values() for info in infos], slack)

    def _look_at_terms(self, user: str, infos: Sequence[api.AgreementInfo]) -> None:
        """What was agreed on is what is kept, and an end stays as it was told."""
        known = {info.id: info for info in infos}
        for agreement in self._bought.values():
            if agreement.customer != user:
                continue
            info = known.get(agreement.id)
            terms = (agreement.processors, agreement.start, agreement.seconds, agreement.unit_price)
            if info is None:
                self._wrong(user, f"agreement {agreement.id} is gone")
            elif (info.processors, info.start, info.seconds, info.unit_price) != terms:
                self._wrong(user, f"agreed on {agreement}, which is {info}")
        for name, (_, told) in self._ended.items():
            if name in known and known[name] != told:
                self._wrong(user, f"was told {told}, which is now {known[name]}")

    def _look_at_deals(self, user: str, infos: Sequence[api.AgreementInfo]) -> None:
        """Whatever was lost or repeated: each conversation has come to one agreement at most."""
        made = Counter((info.processors, info.seconds) for info in infos)
        for (who, _), template in self._binding.items():
            if who == user:
                made[template.processors, template.seconds] -= 1
        for (processors, seconds), more in made.items():
            if more > 0:
                self._wrong(
                    user,
                    f"has {more} agreements on {processors} processors for {seconds:g} s"
                    " more than it has made",
                )

    def _look_at_charge(self, user: str, info: api.AgreementInfo) -> None:
        """Nothing is paid for what was taken back, nor for time after the end."""
        end = info.start + info.seconds if info.ended is None else info.ended
        use = info.unit_price * info.processors * max(0.0, end - info.start)
        most = 0 if info.state == "cancelled" else to_micros(use) + 1 + to_micros(info.fixed_price)
        if info.charged > most:
            self._wrong(user, f"paid {info.charged} for {info.id}, at most {most} are due")

    def _look_at_capacity(self, infos: Sequence[api.AgreementInfo], slack: float) -> None:
        """No processor was sold to two at a time."""
        changes: list[tuple[float, int]] = []
        for info in infos:
            end = info.start + info.seconds if info.ended is None else info.ended
            if info.state != "cancelled" and end - slack > info.start + _LITTLE:
                changes += [
                    (info.start, info.processors),
                    (end - slack - _LITTLE, -info.processors),
                ]
        sold = 0
        for at, processors in sorted(changes):
            sold += processors
            if sold > self._processors:
                self._wrong("server", f"sold {sold} of {self._processors} processors for {at:g}")
                return
