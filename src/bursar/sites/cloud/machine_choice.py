"""Which machines to buy for so many processors, what they cost, and how likely they stay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bursar.model.allocation import Allocation
from bursar.model.cloud import HOUR, CloudEndpoint, MachinePrice, MachineType
from bursar.model.plan import Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.sites.cloud.provider import SpotPrice

_ALIKE = 1e-9  # relative difference of prices that count as one


@dataclass(frozen=True, slots=True)
class MachineOffer:
    """
    A type of machine on one kind of terms.

    Parameters
    ----------
    is_spot
        Whether the provider may take it back.
    """

    machine: MachineType
    is_spot: bool = False

    @property
    def hourly(self) -> float | None:
        """Expected price of a machine-hour, currency units; None when unknown."""
        return self.machine.hourly(spot=self.is_spot)

    @property
    def most_hourly(self) -> float | None:
        """Highest price of a machine-hour: the ceiling of a spot machine, else the price."""
        spot = self.machine.spot
        return spot.ceiling if self.is_spot and spot is not None else self.hourly

    @property
    def most_unit_price(self) -> float | None:
        """Highest price of a processor-second, currency units; None when unknown."""
        hourly = self.most_hourly
        return None if hourly is None else hourly / (HOUR * self.machine.processors)

    @property
    def price(self) -> MachinePrice | None:
        """Expected price with source and date; None when unknown."""
        machine = self.machine
        if not self.is_spot:
            return machine.price
        if machine.spot is None:
            return None
        return machine.spot.price or MachinePrice(hourly=machine.spot.ceiling)


def free_offers(
    cloud: CloudEndpoint, held: Mapping[MachineOffer, int], barred: Sequence[str] = ()
) -> list[tuple[MachineOffer, int]]:
    """
    Return the machines that may be bought now, each with their number.

    Of a type with spot terms, so many as its ``base`` are bought on demand first, and the rest as
    spot machines.

    Parameters
    ----------
    held
        Machines that are held or asked for.
    barred
        Types of which the provider has none at the moment.
    """
    offers: list[tuple[MachineOffer, int]] = []
    for machine in cloud.machines:
        if machine.name in barred:
            continue
        spot = machine.spot
        on_demand, as_spot = MachineOffer(machine), MachineOffer(machine, is_spot=True)
        left = machine.most - held.get(on_demand, 0) - held.get(as_spot, 0)
        base = left if spot is None else min(left, max(0, spot.base - held.get(on_demand, 0)))
        offers += [(on_demand, base), (as_spot, left - base)]
    return [(offer, count) for offer, count in offers if count > 0]


def most_unit_price(cloud: CloudEndpoint) -> float | None:
    """Return the highest price of a processor-second that a machine may come to; None: unknown."""
    offers = [
        MachineOffer(machine, is_spot) for machine in cloud.machines for is_spot in (False, True)
    ]
    prices = [offer.most_unit_price for offer in offers]
    return max((price for price in prices if price is not None), default=None)


def cheapest_cover(
    processors: int, offers: Sequence[tuple[MachineOffer, int]]
) -> list[MachineOffer]:
    """
    Return the machines with the lowest price that have so many processors together.

    Of equally cheap ones, those with the fewest machines. A machine without a price is dearer than
    any with one. Where all machines together have too few processors, all are returned.

    Parameters
    ----------
    processors
        Processors wanted. Positive.
    offers
        Machines that may be bought, each with their number.
    """
    if sum(offer.machine.processors * count for offer, count in offers) <= processors:
        return [offer for offer, count in offers for _ in range(count)]
    # A knapsack turned around: best[p] is the cheapest way to p processors or more. Counts are
    # split into powers of two, so that a number of machines costs its logarithm.
    best: list[tuple[float, float, int] | None] = [(0.0, 0.0, 0)] + [None] * processors
    chosen: list[tuple[int, ...]] = [() for _ in range(processors + 1)]
    for i, (offer, count) in enumerate(offers):
        size = offer.machine.processors
        hourly = offer.most_hourly
        left, part = min(count, -(-processors // size)), 1
        while left:
            part = min(part, left)
            left -= part
            cost = (0.0 if hourly else float(hourly is None), hourly or 0.0)
            for p in range(processors, 0, -1):
                before = best[max(0, p - part * size)]
                if before is None:
                    continue
                unknown = before[0] + part * cost[0]
                new = (unknown, before[1] + part * cost[1], before[2] + part)
                now = best[p]
                if now is None or new < now:
                    best[p] = new
                    chosen[p] = (*chosen[max(0, p - part * size)], *([i] * part))
            part *= 2
    return [offers[i][0] for i in chosen[processors]]


def machine_for(
    pilot: Allocation,
    offers: Sequence[tuple[MachineOffer, int]],
    money: float | None = None,
    unwatched: float = 0.0,
) -> MachineOffer | None:
    """
    Return the machine to buy for an allocation; None where there is none.

    A plan has named it by processors and price. A pool asks for processors, and gets the largest
    machine of the cheapest cover; it asks again for the rest. Where there is too little money for
    that machine, the pool gets one of those for which there is enough, if there are any.

    Parameters
    ----------
    money
        Currency units that may be set aside for the machine; None: no limit.
    unwatched
        Seconds for which money is set aside beyond the allocation's own.
    """
    if pilot.start is not None or pilot.tasks:
        wide = [pair for pair in offers if pair[0].machine.processors >= pilot.processors]
        alike = [offer for offer, _ in wide if _is_planned(offer, pilot)]
        if alike:
            return alike[0]
        # At another price than planned rather than not at all: the budget is asked before.
        offers = wide
    chosen = _largest(cheapest_cover(pilot.processors, offers)) if offers else None
    if chosen is None or money is None or pilot.start is not None or pilot.tasks:
        return chosen
    seconds = unwatched + (0.0 if math.isinf(pilot.duration) else pilot.duration)
    payable = [pair for pair in offers if (pair[0].most_hourly or 0.0) * seconds / HOUR <= money]
    if any(offer == chosen for offer, _ in payable) or not payable:
        return chosen
    return _largest(cheapest_cover(pilot.processors, payable))


def _largest(offers: Sequence[MachineOffer]) -> MachineOffer | None:
    return max(offers, key=lambda offer: offer.machine.processors, default=None)


def _is_planned(offer: MachineOffer, pilot: Allocation) -> bool:
    price, planned = offer.machine.unit_price(spot=offer.is_spot), pilot.unit_price
    if price is None or planned is None:
        return price is planned
    return math.isclose(price, planned, rel_tol=_ALIKE)


def sold(pilot: Allocation, offer: MachineOffer) -> Allocation:
    """
    Return an allocation as the cloud sells it: a whole machine, held until it is given back.

    The price is the highest that may be asked; the provider's bill says what it came to.
    """
    return replace(
        pilot,
        processors=offer.machine.processors,
        least_processors=None,
        # A plan's machine is kept for as long as its tasks take.
        duration=math.inf if pilot.whole else pilot.duration,
        unit_price=offer.most_unit_price,
        fixed_price=0.0,
        whole=False,
    )


def substitute(
    offer: MachineOffer, offers: Sequence[tuple[MachineOffer, int]]
) -> MachineOffer | None:
    """Return another machine of the same size that costs no more; None: there is none."""
    most = offer.most_unit_price
    for other, _ in offers:
        price = other.most_unit_price
        fits = other.machine.processors == offer.machine.processors
        if fits and (most is None or (price is not None and price <= most)):
            return other
    return None


def machine_slots(site: str, cloud: CloudEndpoint, barred: Sequence[str] = ()) -> tuple[Slot, ...]:
    """
    Return a slot for each machine that may be bought; starts are seconds from now.

    A machine is paid from its purchase, so that its start-up is a fixed price. It is sold whole,
    for what is paid at the least, and on for as long as it is used.
    """
    slots: list[Slot] = []
    for offer, count in free_offers(cloud, {}, barred):
        slots += [_slot(site, cloud, offer)] * count
    return tuple(slots)


def _slot(site: str, cloud: CloudEndpoint, offer: MachineOffer, duration: float = 0.0) -> Slot:
    price = offer.machine.unit_price(spot=offer.is_spot)
    start = cloud.starts_in(offer.machine)
    return Slot(
        site=site,
        start=start,
        duration=max(duration, cloud.billing.least - start, 1.0),
        processors=offer.machine.processors,
        unit_price=price,
        fixed_price=None if price is None else price * offer.machine.processors * start,
        divisible=False,
        extensible=True,
    )


# The market of spot machines.


def mean_spot_price(history: Sequence[SpotPrice], begin: float, end: float) -> float | None:
    """
    Return the mean price of a machine-hour over an interval, weighted by time.

    Parameters
    ----------
    history
        Prices in order of time; the last one goes on.
    begin, end
        Seconds since the epoch.

    Returns
    -------
    float or None
        Currency units per machine-hour; None where no price is known in the interval.
    """
    paid = known = 0.0
    for i, price in enumerate(history):
        since = max(begin, price.since if i else min(price.since, begin))
        until = min(end, history[i + 1].since if i + 1 < len(history) else end)
        if until > since:
            paid += price.hourly * (until - since)
            known += until - since
    return paid / known if known else None


def odds_of_interruption(
    history: Sequence[SpotPrice], ceiling: float, until: float
) -> float | None:
    """
    Return the odds that a machine is interrupted within an hour, from the history of prices.

    A machine is interrupted when the price rises above its ceiling. Counted are the rises, and the
    hours at which the price was at the ceiling or below; half a rise is added, since a history
    without any does not prove that none will come (the median of the posterior of a rate with
    Jeffreys' prior is close to it). Rises are taken to come by a Poisson process.

    Returns
    -------
    float or None
        0 to 1; None where the history is shorter than an hour.
    """
    hours, rises = 0.0, 0
    for i, price in enumerate(history):
        end = history[i + 1].since if i + 1 < len(history) else until
        if price.hourly <= ceiling:
            hours += max(0.0, end - price.since) / HOUR
        elif i and history[i - 1].hourly <= ceiling:
            rises += 1
    if hours < 1:
        return None
    return -math.expm1(-(rises + 0.5) / hours)


def odds_of_any(odds: float, machine_hours: float) -> float:
    """Return the odds that a machine is interrupted at least once in so many machine-hours."""
    return float(1.0 - (1.0 - odds) ** machine_hours)


# Machines of a plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMachines:
    """
    Machines of one type that a plan buys on one kind of terms.

    Parameters
    ----------
    site
        Name of the cloud.
    hours
        Machine-hours that are paid for them, expected.
    odds
        Odds that at least one of them is interrupted, 0 to 1; None: unknown, or on demand.
    """

    site: str
    offer: MachineOffer
    count: int
    hours: float
    odds: float | None = None

    def words(self, currency: str) -> str:
        """Return the purchase in one line: machines, hours, price with its source, and odds."""
        offer, price = self.offer, self.offer.price
        terms = "as spot" if offer.is_spot else "on demand"
        text = f"{self.site}: {self.count} {offer.machine.name} {terms}, {self.hours:.3g} h"
        if price is None:
            text += " at an unknown price"
        else:
            text += f" at {price.hourly:.6g} {currency} an hour ({price})"
        if offer.is_spot:
            assert offer.machine.spot is not None
            text += f", at most {offer.machine.spot.ceiling:.6g}"
            odds = "unknown" if self.odds is None else f"{self.odds:.1%}"
            text += f"; odds of an interruption: {odds}"
        if offer.machine.learned is not None:
            text += f"; {offer.machine.learned}"
        return text


def planned_machines(plan: Plan, sites: Sequence[SiteFacts]) -> list[PlannedMachines]:
    """Return the machines of clouds that a plan buys, by cloud and type."""
    found = []
    for site in sites:
        if site.cloud is None:
            continue
        bought: dict[MachineOffer, list[float]] = {}
        for purchase in plan.purchases:
            offer = _offer_of(purchase, site)
            if offer is not None:
                seconds = site.cloud.starts_in(offer.machine) + purchase.slot.duration
                bought.setdefault(offer, []).append(site.cloud.billing.billed(seconds))
        for offer, times in bought.items():
            hours, spot = math.fsum(times) / HOUR, offer.machine.spot
            odds = None
            if offer.is_spot and spot is not None and spot.odds is not None:
                odds = odds_of_any(spot.odds, hours)
            found.append(
                PlannedMachines(
                    site=site.name, offer=offer, count=len(times), hours=hours, odds=odds
                )
            )
    return found


def with_base_on_demand(plan: Plan, sites: Sequence[SiteFacts]) -> Plan:
    """
    Return a plan of which so many machines as the base of a type are bought on demand.

    A planner takes the cheapest machines, which are spot machines; those that are held longest take
    the place of the base, with the same times at the price on demand.
    """
    purchases, cost = list(plan.purchases), plan.cost
    for site in sites:
        if site.cloud is None:
            continue
        for machine in site.cloud.machines:
            if machine.spot is None or not machine.spot.base:
                continue
            offers = {i: _offer_of(purchase, site) for i, purchase in enumerate(purchases)}
            on_demand = sum(offer == MachineOffer(machine) for offer in offers.values())
            as_spot = [i for i, o in offers.items() if o == MachineOffer(machine, is_spot=True)]
            as_spot.sort(key=lambda i: -purchases[i].slot.duration)
            for i in as_spot[: max(0, machine.spot.base - on_demand)]:
                before = purchases[i]
                slot = _slot(site.name, site.cloud, MachineOffer(machine), before.slot.duration)
                purchases[i] = replace(before, slot=slot)
                then, now = before.cost, purchases[i].cost
                cost = None if None in (cost, then, now) else cost + now - then  # type: ignore[operator]
    return replace(plan, purchases=tuple(purchases), cost=cost)


def _offer_of(purchase: Purchase, site: SiteFacts) -> MachineOffer | None:
    """Return the machine that a purchase is; None where it is of another site."""
    slot = purchase.slot
    if slot.site != site.name or site.cloud is None:
        return None
    for machine in site.cloud.machines:
        for offer in (MachineOffer(machine), MachineOffer(machine, is_spot=True)):
            known = machine.spot is not None or not offer.is_spot
            price = machine.unit_price(spot=offer.is_spot)
            if known and machine.processors == slot.processors and price == slot.unit_price:
                return offer
    return None
