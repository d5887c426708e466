"""Prices of a cloud's machines: from the provider, from dated tables, or from the sites file."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from bursar.model.cloud import LISTED, CloudEndpoint, MachinePrice, MachineType
from bursar.model.errors import InputError, SiteError
from bursar.model.site import SiteFacts
from bursar.sites.cloud.machine_choice import mean_spot_price, odds_of_interruption
from bursar.sites.cloud.provider import CloudProvider
from bursar.sites.cloud.purchases import PurchaseLine

SPOT_HISTORY = 7 * 86400.0
"""Seconds of the history of spot prices that odds of interruption rest on."""

_DAY = 86400.0

_HISTORY_PAUSES = (2.0, 4.0, 8.0, 0.0)
"""Seconds between requests for a history that get no answer, before the ceiling is billed."""


async def with_machine_prices(
    facts: SiteFacts, provider: CloudProvider | None = None, now: float | None = None
) -> SiteFacts:
    """
    Return a cloud with the prices of its machines, by the sources that the sites file names.

    Where the site counts in another currency than US dollars, only the sites file's prices count. A
    provider that does not answer, or a library that is missing, leaves the next source.

    Parameters
    ----------
    provider
        The cloud; None: the one that the facts name.
    now
        Seconds since the epoch; None: the present.
    """
    cloud = facts.cloud
    assert cloud is not None
    now = time.time() if now is None else now
    if facts.currency != LISTED:
        # Nothing converts what the provider and the tables say: the sites file has the only prices.
        return facts
    asks = [source for source in cloud.prices if source != "user"]
    known: Mapping[str, MachinePrice] = {}
    if asks or any(machine.spot for machine in cloud.machines):
        provider = provider or _provider(facts, cloud)
    if provider is not None and asks:
        try:
            known = await provider.prices([machine.name for machine in cloud.machines])
        except SiteError:
            known = {}
    machines = []
    for machine in cloud.machines:
        machine = replace(machine, price=_chosen(cloud, machine, known.get(machine.name)))
        if provider is not None and machine.spot is not None:
            machine = await _with_spot_market(machine, provider, now)
        machines.append(machine)
    cloud = replace(cloud, machines=tuple(machines))
    return replace(facts, cloud=cloud, unit_price=cloud.least_unit_price)


async def paid_hourly(line: PurchaseLine, provider: CloudProvider) -> float | None:
    """
    Return the mean price of a machine-hour that was paid for a spot machine that has ended.

    The price is that of the machine's own zone while the machine was held, or of the dearest zone
    where the provider does not say where the machine was. None: unknown, and then the ceiling
    counts, which the price cannot exceed.
    """
    began, ended = line.began, line.ended
    if not line.spot or began is None or ended is None:
        return None
    for pause in _HISTORY_PAUSES:
        try:
            history = await provider.spot_history(line.type, began, line.zone)
        except SiteError:
            await asyncio.sleep(pause)
            continue
        paid = mean_spot_price(history, began, max(ended, began + 1.0))
        return paid if paid is None or line.hourly is None or paid <= line.hourly else None
    return None


def _provider(facts: SiteFacts, cloud: CloudEndpoint) -> CloudProvider | None:
    from bursar.sites.cloud.libcloud_provider import LibcloudProvider

    try:
        return LibcloudProvider(facts.name, cloud)
    except InputError:  # told when machines are to be bought; plans can do without
        return None


def _chosen(
    cloud: CloudEndpoint, machine: MachineType, found: MachinePrice | None
) -> MachinePrice | None:
    for source in cloud.prices:
        price = machine.price if source == "user" else found
        if price is not None and price.source == source:
            return price
    return None


async def _with_spot_market(
    machine: MachineType, provider: CloudProvider, now: float
) -> MachineType:
    """Return a type with the price and the odds that the provider's history shows."""
    spot = machine.spot
    assert spot is not None
    try:
        history = await provider.spot_history(machine.name, now - SPOT_HISTORY)
    except SiteError:
        return machine
    if history and (spot.price is None or spot.price.source != "user"):
        mean = mean_spot_price(history, now - _DAY, now)
        if mean is not None:
            date = datetime.fromtimestamp(now, UTC).date().isoformat()
            spot = replace(spot, price=MachinePrice(hourly=mean, source="provider", date=date))
    if history and spot.odds is None:
        seen = [max(history[0].since, now - SPOT_HISTORY), *(p.since for p in history[1:])]
        recent = [type(p)(since, p.hourly) for p, since in zip(history, seen, strict=True)]
        spot = replace(spot, odds=odds_of_interruption(recent, spot.ceiling, now))
    return replace(machine, spot=spot)
