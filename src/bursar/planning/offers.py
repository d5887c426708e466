"""The slots of all sites, in the order and the arrays that planning computes with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bursar.model.errors import InputError
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot, find_oversubscription
from bursar.planning.kernels.availability import FloatArray, SlotArrays


@dataclass(frozen=True, slots=True, eq=False)
class OfferedSlots:
    """
    The slots that all sites offer, as values and as arrays for the kernels.

    Parameters
    ----------
    slots
        Site after site, those of a site by start and then as they are offered.
        This order breaks ties.
    arrays
        The same for the kernels.
    """

    slots: tuple[Slot, ...]
    arrays: SlotArrays

    def __len__(self) -> int:
        return len(self.slots)


def arrange_offers(sites: Sequence[SiteFacts]) -> OfferedSlots:
    """
    Everything that the sites offer.

    Raises
    ------
    InputError
        When slots of a site overlap on the same processors: together they are
        more than the site has.
    """
    for site in sites:
        _check_overlap(site)
    by_site = [sorted(site.offers, key=lambda slot: slot.start) for site in sites]
    slots = [slot for group in by_site for slot in group]
    first = np.cumsum([0, *map(len, by_site)])
    last = np.array([np.inf if s.extensible else s.end for s in slots], dtype=np.float64)
    by_last = [first[s] + np.argsort(last[first[s] : first[s + 1]], kind="stable")
               for s in range(len(sites))]  # fmt: skip
    start = np.array([s.start for s in slots], dtype=np.float64)
    return OfferedSlots(
        slots=tuple(slots),
        arrays=SlotArrays(
            first=first.astype(np.int64),
            site=np.repeat(np.arange(len(sites)), np.diff(first)).astype(np.int64),
            start=start,
            begin=np.maximum(start, 0.0),
            end=np.array([s.end for s in slots], dtype=np.float64),
            last=last,
            by_last=np.concatenate(by_last).astype(np.int64),
            processors=np.array([s.processors for s in slots], dtype=np.int64),
            unit_price=_prices(s.unit_price for s in slots),
            fixed_price=_prices(s.fixed_price for s in slots),
            divisible=np.array([s.divisible for s in slots], dtype=np.bool_),
            leased=np.array([s.leased for s in slots], dtype=np.bool_),
        ),
    )


def _prices(prices: Iterable[float | None]) -> FloatArray:
    return np.array([np.nan if p is None else p for p in prices], dtype=np.float64)


def _check_overlap(site: SiteFacts) -> None:
    """An extensible slot counts to no end: its processors may be in use then."""
    found = find_oversubscription(site.offers, site.processors)
    if found is not None:
        moment, slots = found
        raise InputError(
            f"slots {', '.join(map(str, slots))} (counted from 0) overlap: at {moment:g} s they "
            f"are {sum(site.offers[i].processors for i in slots)} processors together, "
            f"the site has {site.processors}",
            where=f"site.{site.name}.slot",
        )
