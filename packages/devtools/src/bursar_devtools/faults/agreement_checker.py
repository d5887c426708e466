"""
Checks agreements, prices and charges of a simulated service against what was promised.

The checker knows only the messages of both parties, never the service's inner state.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bursar.market.agreement import Agreement, DealTemplate, Terms, UsageRecord
from bursar.market.trade_messages import (
    Accept,
    CallForBids,
    InformOutcome,
    Offer,
    PriceQuote,
    RequestQuote,
    TradeMessage,
)
from bursar.market.usage import penalty_for
from bursar.model.money import Micros, to_micros
from bursar.remote import messages as api
from bursar.service.interfaces import Clock

OnViolation = Callable[[str, str], None]
"""Called with the name of a party and the rule that was violated there."""

STOPPED = 10.0
"""Seconds of service uptime after which all tasks of an ended agreement must have stopped."""

_LITTLE = 1e-6


class AgreementChecker:
    """
    Records all agreements and posted prices, and reports violations.

    Parameters
    ----------
    processors
        Number of processors that the site can sell at a time.
    price
        First posted price, in currency units per processor-second.
    penalty
        Share of the price of undelivered time that the owner promises in each agreement.
    now
        Returns virtual seconds.
    up_since
        Returns the virtual time at which the service began to serve; infinite while it is down.
    wrong
        Callback for violations, see :data:`OnViolation`.
    """

    def __init__(
        self,
        *,
        processors: int,
        price: float,
        penalty: float,
        now: Clock,
        up_since: Clock,
        wrong: OnViolation,
    ) -> None:
        self.prices = [price]  # that were posted, or may be
        self._processors = processors
        self._penalty = penalty
        self._now = now
        self._up_since = up_since
        self._wrong = wrong
        self._is_posted = True  # the last of the prices was acknowledged
        self._bought: dict[str, Agreement] = {}
        self._ended: dict[str, tuple[float, api.AgreementInfo]] = {}  # when, and what was said
        self._wanted: dict[tuple[str, str], DealTemplate] = {}  # by user and deal
        self._binding: dict[tuple[str, str], DealTemplate] = {}  # those the owner could accept

    # Messages of deals.

    def says(self, user: str, message: TradeMessage) -> None:
        """Record a message of a deal that a user is about to send."""
        deal = user, message.deal
        if isinstance(message, RequestQuote | Offer | CallForBids):
            self._wanted[deal] = message.template
        if isinstance(
            message, Offer | Accept | InformOutcome
        ):  # from now on it may come to an agreement, once
            self._binding[deal] = self._wanted[deal]

    def agreed(self, agreement: Agreement) -> None:
        """Record an agreement of which the customer was notified."""
        self._bought[agreement.id] = agreement

    def agreement(self, name: str) -> Agreement | None:
        """Return an agreement of which the customer was notified; None for any other id."""
        return self._bought.get(name)

    def ended(self, user: str, info: api.AgreementInfo) -> None:
        """Record that a customer was notified of an agreement's early end."""
        if info.state not in ("over", "cancelled") or info.held:
            self._wrong(user, f"has ended an agreement that is {info}")
        self._ended.setdefault(info.id, (self._now(), info))

    def is_stopped(self, name: str) -> bool:
        """Whether no task of an agreement can be running any more."""
        since, _ = self._ended.get(name, (math.inf, None))
        # A service that is down stops nothing: the time counts from its return.
        return self._now() > max(since, self._up_since()) + STOPPED

    # Prices.

    def reprices(self, price: float) -> None:
        """Record a new price that the owner is about to request."""
        self.prices.append(price)
        self._is_posted = False

    def repriced(self) -> None:
        """Record that the last requested price was acknowledged."""
        self._is_posted = True

    def prices_now(self) -> Sequence[float]:
        """Return the prices that the service may quote while the owner changes nothing."""
        # A change without an answer may have been made or not, so every price is possible until the
        # next one is acknowledged.
        return self.prices[-1:] if self._is_posted else tuple(self.prices)

    def posted(self, user: str, price: float | None, known: Sequence[float]) -> None:
        """Check a price shown to a user against the possible prices, at the question and now."""
        if price not in known and price not in self.prices_now():
            self._wrong(user, f"is told the price {price}, expected {known[-1]}")

    def quoted(self, user: str, quote: PriceQuote, known: Sequence[float]) -> None:
        """Check the unit price of a quote against the possible prices, at the question and now."""
        self.posted(user, quote.terms.unit_price, known)

    # The final audit.

    def penalised(self, user: str, info: api.AgreementInfo, usage: Sequence[UsageRecord]) -> Micros:
        """
        Check charge and penalty of one agreement, and return what the penalty adds to the account.

        Both follow from the signed records and the agreed terms: time that was delivered is paid,
        and for what is neither delivered nor excused the penalty is owed, once.
        """
        if info.state != "over" or info.ended is None:
            if info.penalty:
                self._wrong(user, f"was paid a penalty for an agreement that is {info}")
            return 0
        terms = Terms(
            processors=info.processors,
            start=info.start,
            seconds=info.seconds,
            unit_price=info.unit_price,
            fixed_price=info.fixed_price,
            currency=info.currency,
            penalty=self._penalty,
        )
        records = [record for record in usage if record.agreement == info.id]
        delivered = math.fsum(record.owed for record in records)
        kept = math.fsum(record.delivered for record in records)
        gross = min(terms.charge(delivered), terms.amount) if delivered else 0
        penalty = penalty_for(terms, kept, info.ended)
        if (info.charged, info.penalty) != (max(0, gross - penalty), penalty):
            self._wrong(user, f"{info} is charged {gross} and owed a penalty of {penalty}")
        return max(0, penalty - gross)

    def settled(self, found: Mapping[str, Sequence[api.AgreementInfo]], *, slack: float) -> None:
        """
        Check all agreements after the simulation has come to rest.

        Parameters
        ----------
        found
            All agreements that the service lists, by user.
        slack
            Seconds by which the service's clock may have gone back at a restart.
        """
        for user, infos in found.items():
            self._look_at_terms(user, infos)
            self._look_at_deals(user, infos)
            for info in infos:
                self._look_at_charge(user, info)
        self._look_at_capacity([info for infos in found.values() for info in infos], slack)

    def _look_at_terms(self, user: str, infos: Sequence[api.AgreementInfo]) -> None:
        """Check that terms are as agreed, and that an ended agreement has not changed since."""
        known = {info.id: info for info in infos}
        for agreement in self._bought.values():
            if agreement.customer != user:
                continue
            info = known.get(agreement.id)
            terms = (agreement.processors, agreement.start, agreement.seconds, agreement.unit_price)
            if info is None:
                self._wrong(user, f"agreement {agreement.id} is gone")
            elif agreement.terms.penalty != self._penalty:
                self._wrong(user, f"agreed on {agreement}, expected a penalty of {self._penalty}")
            elif (info.processors, info.start, info.seconds, info.unit_price) != terms:
                self._wrong(user, f"agreed on {agreement}, which is {info}")
        for name, (_, told) in self._ended.items():
            if name in known and known[name] != told:
                self._wrong(user, f"was told {told}, which is now {known[name]}")

    def _look_at_deals(self, user: str, infos: Sequence[api.AgreementInfo]) -> None:
        """
        Check that each conversation led to at most one agreement, in spite of losses and repeats.
        """
        # By size, as an agreement does not name its conversation.
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
        """Check that no cancelled agreement, and no time after an end, was charged."""
        end = info.start + info.seconds if info.ended is None else info.ended
        use = info.unit_price * info.processors * max(0.0, end - info.start)
        most = 0 if info.state == "cancelled" else to_micros(use) + 1 + to_micros(info.fixed_price)
        if info.charged > most:
            self._wrong(user, f"paid {info.charged} for {info.id}, at most {most} are due")

    def _look_at_capacity(self, infos: Sequence[api.AgreementInfo], slack: float) -> None:
        """Check that no processor was sold twice for the same time."""
        changes: list[tuple[float, int]] = []
        for info in infos:
            end = info.start + info.seconds if info.ended is None else info.ended
            # Ends are drawn forward by a little, so that one agreement may begin at the very moment
            # at which another ends.
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
