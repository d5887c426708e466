"""The currency in which a sites file counts, and what other currencies are worth in it."""

import datetime
import math
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta

from bursar.formats.decoding import TomlTable
from bursar.formats.file_text import joined
from bursar.formats.quantities import CurrencyName, Date
from bursar.model.errors import InputError
from bursar.model.money import ExchangeRate, Loyalty, Pricing
from bursar.model.site import SiteFacts


class ExchangeRateTable(TomlTable, frozen=True):
    """The worth of one unit of a currency, from a day on."""

    currency: Annotated[CurrencyName, Meta(description="The other currency.")]
    rate: Annotated[
        float, Meta(description="Units of the file's currency for one unit of the other.", gt=0)
    ]
    since: Annotated[Date, Meta(description="First day on which the rate holds, in UTC.")]

    def __post_init__(self) -> None:
        if not math.isfinite(self.rate):
            raise InputError(f"expected a finite number, got {self.rate}", where="rate")


class ExchangeTable(TomlTable, frozen=True):
    """The currency of plans, budgets and bills, where sites have prices in several currencies."""

    currency: Annotated[
        CurrencyName, Meta(description="Currency in which plans and bills over these sites count.")
    ]
    rates: Annotated[
        tuple[ExchangeRateTable, ...],
        Meta(description="Rates; of each currency the latest that holds today applies."),
    ] = msgspec.field(default_factory=tuple)

    def __post_init__(self) -> None:
        seen = set()
        for i, table in enumerate(self.rates):
            if table.currency == self.currency:
                raise InputError(
                    f"expected another currency than {self.currency}",
                    where=f"{joined('rates', i)}.currency",
                )
            if (table.currency, table.since) in seen:
                raise InputError(
                    f"a second rate of {table.currency} since {table.since}",
                    where=joined("rates", i),
                )
            seen.add((table.currency, table.since))

    def converted(self, facts: SiteFacts, today: datetime.date) -> SiteFacts:
        """
        Return a site with its prices in the file's currency.

        Raises
        ------
        InputError
            When no rate of the site's currency holds on that day, or the site sells by agreements
            or is a cloud, which are paid in their own currency.
        """
        own = facts.currency
        if own == self.currency:
            return facts
        if facts.kind == "remote":
            raise InputError(
                f"is paid by agreements in its service's currency, {own}; expected {self.currency}",
                where="currency",
            )
        if facts.cloud is not None:
            raise InputError(
                f"is paid in its provider's currency, {own}; expected {self.currency}",
                where="currency",
            )
        rates = [t for t in self.rates if t.currency == own]
        holding = [t for t in rates if t.since <= today]
        if not holding:
            first = min((t.since for t in rates), default=None)
            known = "" if first is None else f"; the first one holds from {first} on"
            raise InputError(
                f"counts in {own}, and no exchange rate of {own} holds today{known}",
                where="currency",
                hint=f'rates = [{{ currency = "{own}", rate = ..., since = "{today}" }}]',
            )
        table = max(holding, key=lambda t: t.since)
        rate = table.rate

        def changed(price: float | None) -> float | None:
            return None if price is None else price * rate

        return replace(
            facts,
            currency=self.currency,
            unit_price=changed(facts.unit_price),
            fixed_price=changed(facts.fixed_price),
            slots=None
            if facts.slots is None
            else tuple(
                replace(
                    slot,
                    unit_price=changed(slot.unit_price),
                    fixed_price=changed(slot.fixed_price),
                )
                for slot in facts.slots
            ),
            pricing=None if facts.pricing is None else _priced(facts.pricing, rate),
            buying=replace(facts.buying, reserve_price=changed(facts.buying.reserve_price)),
            exchange=ExchangeRate(currency=own, rate=rate, since=f"{table.since}"),
        )


def _priced(pricing: Pricing, rate: float) -> Pricing:
    """Return an owner's policy in another currency; only amounts of money change."""
    rules = [
        Loyalty(steps=tuple((round(paid * rate), factor) for paid, factor in rule.steps))
        if isinstance(rule, Loyalty)
        else rule
        for rule in pricing.rules
    ]
    return Pricing(pricing.base * rate, tuple(rules))
