"""The four sites of e-Science'06 section 4 with the free processors."""

import itertools
from dataclasses import replace
from functools import lru_cache

import numpy as np

from bursar.cluster.machine import Machine
from bursar.model.errors import InputError
from bursar.model.network import Link
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.profile_kernel import merged, summed
from bursar.simulation.workloads import poisson_background
from bursar_papers.workflows import BANDWIDTH, SITES

SLOTS = 214
"""Free slots of all sites together when the application is submitted."""
STEP, LONGEST = 250.0, 400_000.0
"""The sites are looked at so often, and at most so long, seconds."""
BACKGROUNDS = 20
"""That are drawn, one after the other, until one has so many."""


@lru_cache(maxsize=64)
def offered_slots(seed: int, count: int = SLOTS) -> tuple[Slot, ...]:
    """
    Free slots under a Poisson background served first come, first served.

    The paper does not say when its application was submitted, but that there were 214
    slots then: here it is the first moment, of those looked at, with as many, of the first
    background that has one.

    Parameters
    ----------
    seed
        Of the backgrounds.

    Raises
    ------
    InputError
        When there is no such moment in many backgrounds.
    """
    rng = np.random.default_rng([seed, 2006])
    for _ in range(BACKGROUNDS):
        found = _first_with(count, rng)
        if found is not None:
            return found
    raise InputError(f"there are never {count} free slots")


def _first_with(count: int, rng: np.random.Generator) -> tuple[Slot, ...] | None:
    """The slots of one background at the first moment with so many; None when there is none."""
    machines = {}
    for name, processors in SITES.items():
        load = poisson_background(rng, processors=processors, until=LONGEST)
        machines[name] = machine = Machine(processors, "fcfs")
        machine.submit_all(load.submit, load.processors, load.estimate, load.runtime)
    at = 0.0
    while at < LONGEST:
        at += STEP
        found = []
        for name, machine in machines.items():
            machine.advance(at)
            found += slots_of(name, machine)
        if len(found) == count:
            return tuple(found)
    return None


def slots_of(site: str, machine: Machine) -> list[Slot]:
    """
    The free area up to the last planned end, a rectangle from each change to the next.

    Cut along time like this, 214 slots are some 1,500 of one processor; cut along
    processors (:meth:`bursar.cluster.slots.free_area`), some 900. The paper has
    2,981, which is what is free beside one background job at a time.
    """
    begin, end, width = machine.schedule()
    if not len(begin):
        return []
    moments, held = merged(*summed(np.maximum(begin, machine.now), end, width))
    free = machine.processors - held[:-1]
    return [
        Slot(
            site=site,
            start=a - machine.now,
            duration=b - a,
            processors=processors,
            unit_price=1.0,
            divisible=False,
        )
        for (a, b), processors in zip(
            itertools.pairwise(moments.tolist()), free.tolist(), strict=True
        )
        if processors > 0
    ]


def priced_slots(slots: tuple[Slot, ...], seed: int) -> tuple[Slot, ...]:
    """The slots at unit prices uniform from 0 to 2."""
    prices = np.random.default_rng([seed, 6]).uniform(0.0, 2.0, len(slots)).tolist()
    return tuple(replace(s, unit_price=p) for s, p in zip(slots, prices, strict=True))


def one_processor_each(slots: tuple[Slot, ...]) -> tuple[Slot, ...]:
    """The same area in slots of one processor."""
    return tuple(replace(slot, processors=1) for slot in slots for _ in range(slot.processors))


def sites_of(slots: tuple[Slot, ...]) -> list[SiteFacts]:
    """The four sites with these slots, linked at ``BANDWIDTH``."""
    return [
        SiteFacts(
            name=name,
            kind="advertised",
            processors=processors,
            slots=tuple(slot for slot in slots if slot.site == name),
            links={other: Link(bandwidth=BANDWIDTH) for other in SITES if other != name},
        )
        for name, processors in SITES.items()
    ]
