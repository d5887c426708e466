"""Turn a plan into pilots: which processors are requested when, and which tasks they run."""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate

from bursar.model.allocation import Allocation
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.task import Task

ROUNDING = 1e-6
"""Seconds within which one task's end is the next one's start."""


def plan_pilots(plan: Plan, tasks: Sequence[Task], before: int = 0) -> list[Allocation]:
    """
    Return the pilots that a plan requests from sites, ordered by start.

    A leased slot, or one paid whole, is one pilot, and its tasks run there as they come.
    Of a divisible slot only what tasks use is paid (HPDC'07 section 2): each chain of
    tasks of one width, without a gap between them, is a pilot. So are tasks that
    span several slots; where these are paid whole, their pilots cost nothing more.

    Parameters
    ----------
    tasks
        Tasks, by the numbers used in the placements.
    before
        Pilots there were before: names go on from there.

    Raises
    ------
    ValueError
        When a placement holds processors that were not bought.
    """
    made: list[Allocation] = []
    by_site: dict[str, list[Purchase]] = defaultdict(list)
    for purchase in plan.purchases:
        by_site[purchase.slot.site].append(purchase)
    placed: dict[str, list[Placement]] = defaultdict(list)
    for placement in plan.placements:
        placed[placement.site].append(placement)
    for site in dict.fromkeys([*by_site, *placed]):
        made.extend(_site_pilots(by_site[site], placed[site], tasks))
    made.sort(key=lambda pilot: pilot.start or 0.0)
    return [replace(pilot, name=f"lease-{before + i}") for i, pilot in enumerate(made, 1)]


def pilot_windows(pilots: Iterable[Allocation]) -> list[tuple[float, float, int]]:
    """
    Return start, duration and processors of the time that pilots with an end hold, summed up.

    The rectangles follow one another between changes of the sum; pilots that are paid whole
    stand by themselves.
    """
    made = []
    steps: dict[float, int] = defaultdict(int)
    for pilot in pilots:
        if pilot.start is None or math.isinf(pilot.duration):
            continue
        if pilot.whole:
            made.append((pilot.start, pilot.duration, pilot.paid))
        else:
            steps[pilot.start] += pilot.paid
            steps[pilot.latest_end] -= pilot.paid
    height, begin = 0, 0.0
    for moment in sorted(steps):
        if not steps[moment]:
            continue
        if height > 0:
            made.append((begin, moment - begin, height))
        height += steps[moment]
        begin = moment
    return made


def _site_pilots(
    purchases: Sequence[Purchase], placements: Sequence[Placement], tasks: Sequence[Task]
) -> list[Allocation]:
    """Return the pilots of one site, without names."""
    offsets = [0, *accumulate(purchase.slot.processors for purchase in purchases)]
    draws = []
    for placement in placements:
        if placement.processors and placement.processors[-1] >= offsets[-1]:
            raise ValueError(f"task {placement.task} holds processors that were not bought")
        draws.append(Counter(bisect_right(offsets, n) - 1 for n in placement.processors))
    # A block that a task shares with another slot gets no workers of its own: the task's chain
    # works on both.
    spanned = {i for drawn in draws if len(drawn) > 1 for i in drawn}
    own: dict[int, list[int]] = defaultdict(list)
    chained: list[tuple[Placement, Counter[int]]] = []
    for placement, drawn in zip(placements, draws, strict=True):
        (slot, *others) = drawn or (-1,)
        if others or slot in spanned or slot < 0 or not _is_block(purchases[slot]):
            chained.append((placement, drawn))
        else:
            own[slot].append(placement.task)
    made = [
        _block(purchase, tuple(own[i]), works=i not in spanned)
        for i, purchase in enumerate(purchases)
        if _is_block(purchase)
    ]
    return made + _chains(purchases, chained, tasks)


def _is_block(purchase: Purchase) -> bool:
    """Whether a purchase is paid as a whole, used or not."""
    return purchase.slot.leased or not purchase.slot.divisible


def _block(purchase: Purchase, tasks: tuple[int, ...], *, works: bool) -> Allocation:
    slot = purchase.slot
    return Allocation(
        name="",
        site=slot.site,
        processors=slot.processors,
        start=slot.start,
        duration=math.inf if slot.leased else slot.duration,
        unit_price=slot.unit_price,
        fixed_price=slot.fixed_price,
        whole=not slot.leased,
        works=works,
        tasks=tasks,
    )


def _chains(
    purchases: Sequence[Purchase],
    placed: Sequence[tuple[Placement, Counter[int]]],
    tasks: Sequence[Task],
) -> list[Allocation]:
    """Join tasks that follow each other at once, at one width and price, to one pilot each."""
    made: list[Allocation] = []
    open_at: dict[tuple[int, int, float | None], list[int]] = defaultdict(list)
    charged: set[int] = set()
    for placement, drawn in sorted(placed, key=lambda pair: (pair[0].start, pair[0].task)):
        start = placement.start
        width = drawn.total() or tasks[placement.task].processors
        used = {i: n for i, n in drawn.items() if not _is_block(purchases[i])}
        own = sum(used.values())
        price = _sum((purchases[i].slot.unit_price, n / own) for i, n in used.items())
        fixed = _sum((purchases[i].slot.fixed_price, 1) for i in used if i not in charged)
        charged.update(used)
        chains = open_at[width, own, price]
        last = next((i for i in chains if abs(made[i].latest_end - start) <= ROUNDING), None)
        # A fixed price that is due begins a pilot of its own, so that it is charged exactly once.
        if last is not None and not fixed and placement.finish > start:
            chain = made[last]
            made[last] = replace(
                chain,
                duration=placement.finish - (chain.start or 0.0),
                tasks=(*chain.tasks, placement.task),
            )
            continue
        # Chains that ended before can never be prolonged: drop them, or the search grows quadratic.
        chains[:] = [i for i in chains if made[i].latest_end > start - ROUNDING]
        chains.append(len(made))
        made.append(
            Allocation(
                name="",
                site=placement.site,
                processors=width,
                unpaid=width - own,
                start=start,
                duration=placement.finish - start,
                unit_price=price,
                fixed_price=fixed,
                tasks=(placement.task,),
            )
        )
    return made


def _sum(parts: Iterable[tuple[float | None, float]]) -> float | None:
    """Return the sum of prices times amounts; None when a price is unknown."""
    total = 0.0
    for price, amount in parts:
        if price is None:
            return None
        total += price * amount
    return total
