"""What runs buy at sites: prices over time, requests and processors held, agreements, invoices."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bursar.dispatch.journal_records import RunEvent
from bursar.market.lease import Lease
from bursar.market.purchasing import TRADE, DealRecord
from bursar.model.money import Micros, Transfer, from_micros

MOST_ROWS = 500
"""Rows of one list, the newest."""

PriceRow = tuple[float, float, str, str, str]
"""Seconds since the epoch, price of a processor-second, currency, run, and ``lease``, ``deal`` or
``asked``."""


@dataclass(slots=True)
class RunPurchases:
    """Leases and deals of one run, as far as its journal was read."""

    leases: dict[str, Lease] = field(default_factory=dict)
    deals: list[tuple[float, DealRecord]] = field(default_factory=list)

    _paid: set[str] = field(default_factory=set)

    def take_in(self, events: Iterable[RunEvent], transfers: Iterable[Transfer] = ()) -> None:
        """Read further events of the journal, and movements of money."""
        for move in transfers:
            if move.target.startswith("site:"):
                self._paid.add(move.source.removeprefix("held:"))
        for event in events:
            if event.kind == "lease":
                lease = msgspec.json.decode(event.text, type=Lease)
                self.leases[lease.id] = lease
            elif event.kind == TRADE:
                deal = msgspec.json.decode(event.text, type=DealRecord)
                self.deals.append((event.time, deal))

    def owed(self, moment: float) -> Micros:
        """Return what leases that are not paid have cost by a moment, seconds since the epoch."""
        return sum(
            one.owed(moment if one.end is None else min(moment, one.end))
            for one in self.leases.values()
            if one.id not in self._paid
        )

    def prices(self, run: str) -> list[tuple[str, PriceRow]]:
        """Return the prices that were agreed, each with its site."""
        found = [
            (one.site, (one.start, one.unit_price, one.currency, run, "lease"))
            for one in self.leases.values()
            if one.unit_price is not None and not one.asked
        ]
        for time, deal in self.deals:
            wanted, amount = deal.result.template, deal.result.amount
            size = wanted.processors * wanted.seconds
            if amount is not None and size > 0:
                price = from_micros(amount) / size
                found.append((deal.site, (time, price, wanted.currency, run, "deal")))
        return found

    def pilots(self, run: str, now: float) -> list[dict[str, Any]]:
        """
        Return the requests and the processors of a run that goes on.

        Each has ``run``, ``site``, ``lease``, ``processors``, ``state`` (``queued``: asked for;
        ``held``), ``age_s`` in that state, ``unit_price``, ``currency`` and ``until``.
        """
        return [
            {
                "run": run,
                "site": one.site,
                "lease": one.id,
                "processors": one.processors,
                "state": "queued" if one.asked or one.start > now else "held",
                "age_s": max(0.0, now - one.start),
                "unit_price": one.unit_price,
                "currency": one.currency,
                "until": one.until,
            }
            for one in self.leases.values()
            if one.end is None
        ]

    def agreements(self, run: str) -> list[dict[str, Any]]:
        """Return the terms on which processors were had: one for each lease."""
        by_lease = {deal.lease: deal.to_dict() for _, deal in self.deals if deal.lease}
        return [
            {
                "run": run,
                "site": one.site,
                "lease": one.id,
                "agreement": by_lease.get(one.id, {}).get("agreement", ""),
                "market": by_lease.get(one.id, {}).get("market", ""),
                "processors": one.processors,
                "unit_price": one.unit_price,
                "fixed_price": one.fixed_price,
                "currency": one.currency,
                "start": one.start,
                "until": one.until,
                "end": one.end,
                "charged_micros": one.charged,
            }
            for one in self.leases.values()
        ]


def price_history(rows: Iterable[tuple[str, PriceRow]]) -> dict[str, Sequence[PriceRow]]:
    """Return the prices of each site in the order of time, the last :data:`MOST_ROWS` of them."""
    by_site: dict[str, list[PriceRow]] = defaultdict(list)
    for site, row in rows:
        by_site[site].append(row)
    return {site: sorted(found)[-MOST_ROWS:] for site, found in sorted(by_site.items())}


@dataclass(slots=True)
class AskedPrices:
    """Prices that sites stated when somebody looked, kept while the dashboard runs."""

    _rows: dict[str, deque[PriceRow]] = field(default_factory=dict)

    def note(self, now: float, sites: Iterable[Mapping[str, Any]]) -> None:
        """Note the price of each site, where that is another one than the last."""
        for site in sites:
            price = site.get("price_now")
            if not isinstance(price, int | float):
                continue
            rows = self._rows.setdefault(site["name"], deque(maxlen=MOST_ROWS))
            if not rows or rows[-1][1] != price:
                rows.append((now, float(price), str(site.get("currency", "")), "", "asked"))

    def rows(self) -> list[tuple[str, PriceRow]]:
        """Return what was noted, each with its site."""
        return [(site, row) for site, rows in self._rows.items() for row in rows]


def invoice_of(bill: Path) -> dict[str, Any] | None:
    """Return what a run owes its sites by its bill; None: it has none that can be read."""
    try:
        content = msgspec.json.decode(bill.read_bytes())
        return {
            name: content[name] for name in ("run", "currency", "total_micros", "held_micros")
        } | {
            "unsettled": content["unsettled"],
            "sites": [
                {name: site[name] for name in ("site", "amount_micros", "billed_cpu_s", "agrees")}
                for site in content["sites"]
            ],
        }
    except (OSError, msgspec.MsgspecError, KeyError, TypeError):  # being written, or not ours
        return None
