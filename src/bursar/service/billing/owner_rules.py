"""Rules of a service's owner: what is asked, who may buy, and how much of it."""

import math
from collections.abc import Iterator, Mapping

import msgspec

from bursar.market.pricing import AdjustedFactor
from bursar.model.money import Adjusting, Pricing, Refusal
from bursar.model.slot import ResourceProfile
from bursar.service.billing.agreement_registry import AgreementRecord, AgreementRegistry
from bursar.service.config import MarketSettings, SaleQuota, UserSettings
from bursar.service.interfaces import BILLING_KINDS
from bursar.store import Position, RecordStore

# The owner's prices: those of the configuration, or a later change.

CHANGED, ADJUSTED = BILLING_KINDS[6], BILLING_KINDS[7]


class _PriceChange(msgspec.Struct, frozen=True):
    """A pricing policy, and the one of the configuration that was replaced."""

    instead_of: Pricing
    pricing: Pricing


class _AdjustedPrice(msgspec.Struct, frozen=True):
    """The factor that an adjusting rule has come to, up to the end of a period."""

    rule: Adjusting
    factor: float
    period: int


_CHANGES = msgspec.msgpack.Decoder(_PriceChange)
_ADJUSTMENTS = msgspec.msgpack.Decoder(_AdjustedPrice)


class PriceList:
    """
    The owner's pricing policy; a change holds until the configuration is changed.

    What supply and demand have made of the price is kept, too, for as long as the rule by which
    they do stays the same.

    Parameters
    ----------
    journal
        Journal, not yet open.
    configured
        Policy of the configuration.

    Attributes
    ----------
    pricing
        Policy that holds now.
    adjusted
        Factor of supply and demand that is in the journal; read only.
    """

    def __init__(self, journal: RecordStore, configured: Pricing) -> None:
        self.pricing = configured
        self._journal = journal
        self._configured = configured
        self._position: Position | None = None
        self._is_stale = False
        self.adjusted = AdjustedFactor()
        self._adjusted_by: Adjusting | None = None
        self._adjusted_position: Position | None = None
        journal.register([CHANGED, ADJUSTED], self)

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in the record of the last price change, or of the last period."""
        if kind == ADJUSTED:
            known = _ADJUSTMENTS.decode(payload)
            self.adjusted = AdjustedFactor(known.factor, known.period)
            self._adjusted_by = known.rule
            self._adjusted_position = position
            return
        self._position = position
        changed = _CHANGES.decode(payload)
        # Whichever of the two was changed last counts: a change by the API, as long as the file
        # still says what it said then; otherwise the file.
        if changed.instead_of == self._configured:
            self.pricing = changed.pricing
        self._is_stale = changed.instead_of != self._configured

    def open(self) -> None:
        """Drop a price change for good if the configuration has changed since."""
        if self._is_stale:
            self._forget()
        self._forget_adjusted_by_others()

    def change(self, pricing: Pricing) -> None:
        """Set the prices from now on; the change is in the journal on return."""
        payload = msgspec.msgpack.encode(_PriceChange(self._configured, pricing))
        # In one batch: a crash leaves either the old price or the new one.
        position = self._journal.append(CHANGED, payload, essential=True)
        self._forget()
        self._position = position
        self.pricing = pricing
        self._forget_adjusted_by_others()

    def reconfigure(self, configured: Pricing) -> None:
        """Apply the prices of a configuration that was read again, if the prices differ."""
        if configured == self._configured:
            return
        self._configured = self.pricing = configured
        self._forget()
        self._forget_adjusted_by_others()

    def note_adjusted(self, adjusted: AdjustedFactor) -> None:
        """Keep the factor of supply and demand once a period has passed."""
        rule = self.pricing.adjusting
        if rule is None or adjusted.period is None or adjusted == self.adjusted:
            return
        record = _AdjustedPrice(rule, adjusted.factor, adjusted.period)
        # Essential: a price that is forgotten with the service would be another one after it.
        position = self._journal.append(ADJUSTED, msgspec.msgpack.encode(record), essential=True)
        if self._adjusted_position is not None:
            self._journal.kill(self._adjusted_position)
        self.adjusted, self._adjusted_by = adjusted, rule
        self._adjusted_position = position

    def next_period(self) -> float:
        """Return when supply and demand next move the price, seconds since the epoch."""
        rule, period = self.pricing.adjusting, self.adjusted.period
        # The first period begins with the first message, which notes its number.
        return math.inf if rule is None or period is None else (period + 1) * rule.every

    def _forget_adjusted_by_others(self) -> None:
        """Begin with a factor of 1 where the rule is not the one that has moved the factor."""
        if self._adjusted_by == self.pricing.adjusting:
            return
        if self._adjusted_position is not None:
            self._journal.kill(self._adjusted_position)
        self.adjusted, self._adjusted_by = AdjustedFactor(), None
        self._adjusted_position = None

    def _forget(self) -> None:
        if self._position is not None:
            self._journal.kill(self._position)
        self._position = None
        self._is_stale = False


# Who may buy, and how much.


class SaleLimits:
    """
    Decides who may buy processors, and how many of them in a time.

    All follows from the agreements of the registry, which outlive the service.

    Parameters
    ----------
    selling
        Buyers, limits and quotas of the owner.
    users
        Settings of single users, whose groups count.
    dealings
        Registry of all agreements, ended ones included.
    """

    def __init__(
        self,
        selling: MarketSettings,
        users: Mapping[str, UserSettings],
        dealings: AgreementRegistry,
    ) -> None:
        self._selling = selling
        self._groups = {name: user.groups for name, user in users.items()}
        self._dealings = dealings

    def __contains__(self, user: object) -> bool:
        """Whether a user may buy at all."""
        selling = self._selling
        if not (selling.buyers or selling.buyer_groups):
            return True
        return user in selling.buyers or bool(selling.buyer_groups & self._groups_of(user))

    def refuse(self, user: str, processors: int, start: float, end: float) -> Refusal | None:
        """
        Return why a user may not agree on so many processors more for a time; None: may.

        Parameters
        ----------
        start, end
            Seconds since the epoch.
        """
        most = self._selling.processors_per_user
        if most is not None and processors > most - self._most_at_once(user, start, end):
            return Refusal(
                f"sells at most {most} processors at once to one user", processors > most
            )
        for quota in self._selling.quotas:
            if not quota.counts(user, self._groups_of(user)):
                continue
            left = quota.amount - self._agreed(quota, user, start)
            asked = processors * (end - start)
            # Sums of float seconds: a microsecond is not more than there is.
            if asked > left + 1e-6:
                return Refusal(
                    f"has {max(0.0, left):.0f} processor-seconds left of {quota.amount:.0f} "
                    f"for each {quota.every:.0f} s, got {asked:.0f}",
                    final=asked > quota.amount,
                )
        return None

    # Inside.

    def _groups_of(self, user: object) -> frozenset[str]:
        return self._groups.get(user, frozenset()) if isinstance(user, str) else frozenset()

    def _most_at_once(self, user: str, start: float, end: float) -> int:
        """Return the most processors that a user has agreed on at once between two times."""
        sold = (
            (deal.start, deal.ended or deal.end, -deal.agreement.processors)
            for deal in self._kept(user)
        )
        return -ResourceProfile.summed(sold).least_free(start, end)

    def _agreed(self, quota: SaleQuota, user: str, start: float) -> float:
        """Return the processor-seconds of a quota that are used up in the period of a start."""
        period = math.floor(start / quota.every)
        customers = [user]
        if quota.is_shared:
            everybody = {deal.agreement.customer for deal in self._dealings.deals.values()}
            customers = [one for one in everybody if quota.counts(one, self._groups_of(one))]
        return math.fsum(
            deal.agreement.processors * ((deal.ended or deal.end) - deal.start)
            for customer in customers
            for deal in self._kept(customer)
            if math.floor(deal.start / quota.every) == period
        )

    def _kept(self, user: str) -> Iterator[AgreementRecord]:
        """Yield a user's agreements, those that were cancelled before they began left out."""
        return (deal for deal in self._dealings.of(user) if not deal.cancelled)
