"""
Faults of a plan, found from the plan, the workflow and the offers alone.

Everything is worked out again, slowly and in the words of the definitions (HPDC'07 section 2,
e-Science'06 section 3); nothing here is shared with what makes plans, so that a mistake there does
not hide itself. Only the model is imported.

Times and amounts that differ by less than ``TOLERANCE``, relative, are the same.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from bursar.model.campaign import Workflow
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import ResourceProfile, Slot

TOLERANCE = 1e-9
"""Relative."""
COMPARED = 100
"""Offers with which a purchase that is none of them is compared, to say what is wrong."""
SHORTEST_LEASE = 1e-6
"""Seconds. A slot has a length, so this may be leased for tasks that take no time."""


def violations(
    plan: Plan, workflow: Workflow, sites: Sequence[SiteFacts], overhead: float = 0.0
) -> list[str]:
    """
    Every rule that the plan breaks, one sentence each; empty for a valid plan.

    Sites and tasks are where and as long as they may be; inputs have arrived; processors are bought
    and not used twice; what is bought is on offer and is paid as its kind of slot is; makespan,
    cost and utilisation are what they come to.

    Parameters
    ----------
    workflow, sites
        What the plan was made for; the sites' names unique.
    overhead
        Seconds that starting and ending a task takes, whatever the site's speed.
    """
    by_name = {site.name: site for site in sites}
    unknown = [task.id for task in workflow.tasks if task.runtime is None]
    if unknown:
        return [*_outline(plan, unknown[0], by_name), *_currencies(plan, by_name)]
    places = _first_placements(plan, workflow, by_name)
    bought = _PurchaseUse.of(plan, by_name, workflow, places)
    return [
        *_misplaced(plan, workflow, by_name),
        *_unfit(places, workflow, by_name),
        *_wrong_lengths(places, workflow, by_name, overhead),
        *_too_early(places, workflow, by_name),
        *_wrong_widths(places, workflow),
        *_held_twice(places, workflow),
        *bought.outside,
        *_wrong_purchases(plan, by_name, bought),
        *_wrong_totals(plan, workflow, places),
        *_currencies(plan, by_name),
    ]


def _first_placements(
    plan: Plan, workflow: Workflow, sites: Mapping[str, SiteFacts]
) -> list[Placement]:
    """The first of each task that can be judged further, by task."""
    places: dict[int, Placement] = {}
    for place in plan.placements:
        known = 0 <= place.task < len(workflow.tasks) and place.site in sites
        if known and math.isfinite(place.start) and math.isfinite(place.finish):
            places.setdefault(place.task, place)
    return [places[task] for task in sorted(places)]


def _misplaced(plan: Plan, workflow: Workflow, sites: Mapping[str, SiteFacts]) -> Iterator[str]:
    """Yield tasks that are missing, placed twice or placed on no site that exists."""
    times = [0] * len(workflow.tasks)
    for place in plan.placements:
        if not 0 <= place.task < len(times):
            yield f"a placement is of task number {place.task}, there are {len(times)} tasks."
            continue
        times[place.task] += 1
        task = workflow.tasks[place.task]
        if place.site not in sites:
            yield f'Task "{task.id}" is placed on site "{place.site}", which there is not.'
        if not (math.isfinite(place.start) and math.isfinite(place.finish)):
            yield (
                f'Task "{task.id}" is placed at times that are not finite, from {place.start} s '
                f"to {place.finish} s."
            )
        elif place.start < -TOLERANCE:
            yield f'Task "{task.id}" starts at {_n(place.start)} s, before the campaign.'
    for task, count in zip(workflow.tasks, times, strict=True):
        if count == 0:
            yield f'Task "{task.id}" is not placed.'
        elif count > 1:
            yield f'Task "{task.id}" is placed {count} times.'


def _unfit(
    places: Sequence[Placement], workflow: Workflow, sites: Mapping[str, SiteFacts]
) -> Iterator[str]:
    """Yield tasks on sites with too little memory; unknown memory is enough."""
    for place in places:
        task, room = workflow.tasks[place.task], sites[place.site].memory
        if task.memory is not None and room is not None and task.memory > room:
            yield (
                f'Task "{task.id}" needs {task.memory} bytes of memory, site "{place.site}" '
                f"has {room}."
            )


def _wrong_lengths(
    places: Sequence[Placement],
    workflow: Workflow,
    sites: Mapping[str, SiteFacts],
    overhead: float,
) -> Iterator[str]:
    """Yield tasks that do not take runtime / speed + overhead."""
    for place in places:
        task = workflow.tasks[place.task]
        length = (task.runtime or 0.0) / sites[place.site].speed + overhead
        if not _same(place.finish, place.start + length):
            yield (
                f'Task "{task.id}" takes {_n(place.finish - place.start)} s on site '
                f'"{place.site}", where it needs {_n(length)} s.'
            )


def _too_early(
    places: Sequence[Placement], workflow: Workflow, sites: Mapping[str, SiteFacts]
) -> Iterator[str]:
    """Yield tasks that start before a parent has ended and the parent's files have arrived."""
    by_task = {place.task: place for place in places}
    for place in places:
        child = workflow.tasks[place.task]
        for number in workflow.parents[place.task]:
            if number not in by_task:
                continue
            before, parent = by_task[number], workflow.tasks[number]
            delay = sites[before.site].delay_to(place.site, parent, child)
            if not _at_most(before.finish + delay, place.start):
                yield (
                    f'Task "{child.id}" starts on site "{place.site}" at {_n(place.start)} s, but '
                    f'what it needs of task "{parent.id}", which ends on site "{before.site}" at '
                    f"{_n(before.finish)} s, is there at {_n(before.finish + delay)} s."
                )


def _wrong_widths(places: Sequence[Placement], workflow: Workflow) -> Iterator[str]:
    """Yield tasks that hold too many or too few processors, or one processor several times."""
    for place in places:
        task, held = workflow.tasks[place.task], place.processors
        if not held and place.finish <= place.start:
            continue
        if len(held) != task.processors:
            yield f'Task "{task.id}" holds {len(held)} processors, it needs {task.processors}.'
        elif list(held) != sorted(set(held)):
            yield (
                f'Task "{task.id}" holds processors {", ".join(map(str, held))}; their numbers do '
                "not ascend."
            )


def _held_twice(places: Sequence[Placement], workflow: Workflow) -> Iterator[str]:
    """Yield pairs of tasks that hold the same processor at the same time."""
    held: dict[tuple[str, int], list[Placement]] = defaultdict(list)
    for place in sorted(places, key=lambda p: (p.start, p.finish, p.task)):
        if place.finish > place.start:
            for number in set(place.processors):
                held[place.site, number].append(place)
    both: dict[tuple[int, int], list[int]] = defaultdict(list)
    for (_, number), holders in sorted(held.items()):
        last = holders[0]
        for place in holders[1:]:
            if not _at_most(last.finish, place.start):
                both[last.task, place.task].append(number)
            last = max(last, place, key=lambda p: p.finish)
    by_task = {place.task: place for place in places}
    for (first, second), numbers in both.items():
        yield (
            f'Tasks "{workflow.tasks[first].id}" and "{workflow.tasks[second].id}" both hold '
            f'{_listed("processor", numbers)} of site "{by_task[second].site}" at '
            f"{_n(by_task[second].start)} s."
        )


@dataclass(frozen=True, slots=True)
class _ProcessorUse:
    """Some of a purchase's processors, held by one task."""

    start: float
    finish: float
    processors: int


@dataclass(frozen=True, slots=True)
class _PurchaseUse:
    """
    Use of a purchase by the plan's tasks.

    Parameters
    ----------
    uses
        Uses of each purchase, tasks without duration included.
    idle
        Tasks without duration on each site, whether or not processors are held.
    outside
        Faults found: processors that are not bought, or not at that time.
    """

    uses: list[list[_ProcessorUse]]
    idle: dict[str, list[_ProcessorUse]] = field(default_factory=dict)
    outside: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        plan: Plan,
        sites: Mapping[str, SiteFacts],
        workflow: Workflow,
        places: Sequence[Placement],
    ) -> "_PurchaseUse":
        """Assign tasks to purchases: processor numbers count through a site's purchases."""
        owners: dict[str, list[int]] = {name: [] for name in sites}
        ends: dict[str, list[int]] = {name: [] for name in sites}
        for i, purchase in enumerate(plan.purchases):
            name = purchase.slot.site
            if name in sites:
                owners[name].append(i)
                ends[name].append(sum(ends[name][-1:]) + purchase.slot.processors)
        bought = cls([[] for _ in plan.purchases], {name: [] for name in sites})
        for place in places:
            task = workflow.tasks[place.task]
            if place.finish <= place.start:
                use = _ProcessorUse(place.start, place.finish, task.processors)
                bought.idle[place.site].append(use)
            counts: dict[int, int] = defaultdict(int)
            missing = []
            for number in sorted(set(place.processors)):
                at = bisect_right(ends[place.site], number)
                if number < 0 or at == len(ends[place.site]):
                    missing.append(number)
                else:
                    counts[owners[place.site][at]] += 1
            if missing:
                bought.outside.append(
                    f'Task "{task.id}" holds {_listed("processor", missing)} of site '
                    f'"{place.site}", where {sum(ends[place.site][-1:])} are bought.'
                )
            for i, count in counts.items():
                bought.uses[i].append(_ProcessorUse(place.start, place.finish, count))
                slot = plan.purchases[i].slot
                if not (_at_most(slot.start, place.start) and _at_most(place.finish, slot.end)):
                    bought.outside.append(
                        f'Task "{task.id}" runs from {_n(place.start)} s to {_n(place.finish)} s '
                        f"on {count} processors of purchase {_which(i, slot)}, outside its time."
                    )
        return bought


def _wrong_purchases(
    plan: Plan, sites: Mapping[str, SiteFacts], bought: _PurchaseUse
) -> Iterator[str]:
    """Yield purchases that are no slot on offer, or break the rule of their kind of slot."""
    of_site: dict[str, list[int]] = defaultdict(list)
    for i, purchase in enumerate(plan.purchases):
        if purchase.slot.site in sites:
            of_site[purchase.slot.site].append(i)
        else:
            yield f'Purchase {i} is of site "{purchase.slot.site}", which there is not.'
    for name, numbers in of_site.items():
        counts = Counter(sites[name].offers)
        offers = sorted(counts, key=lambda slot: slot.start)
        starts = [slot.start for slot in offers]
        lasts = [_last(slot) for slot in offers]
        candidates: list[list[int]] = []
        for i in numbers:
            uses, idle = bought.uses[i], bought.idle[name]
            purchase = plan.purchases[i]
            begins = purchase.slot.start
            slack = TOLERANCE * max(1.0, abs(begins))
            from_anywhere = purchase.slot.divisible and not purchase.slot.leased
            first = 0 if from_anywhere else bisect_left(starts, begins - slack)
            begun = range(first, bisect_right(starts, begins + slack))
            near = [k for k in begun if begins <= lasts[k] + slack]
            fitting = [k for k in near if not any(_faults(purchase, offers[k], uses, idle))]
            candidates.append(fitting)
            if not fitting:
                yield from _why_none_fits(i, purchase, offers, uses, idle)
        for at in _unmatched(candidates, [counts[slot] for slot in offers]):
            i = numbers[at]
            which = _which(i, plan.purchases[i].slot)
            yield f"Purchase {which} is bought more often than it is offered."


def _why_none_fits(
    i: int,
    purchase: Purchase,
    offers: Sequence[Slot],
    uses: Sequence[_ProcessorUse],
    idle: Sequence[_ProcessorUse],
) -> Iterator[str]:
    """Yield the faults of a purchase beside the most similar of the offers that start nearest."""
    name = f"Purchase {_which(i, purchase.slot)}"
    if not offers:
        yield f"{name} is of a site that offers no slot."
        return
    nearest = sorted(offers, key=lambda offer: abs(offer.start - purchase.slot.start))[:COMPARED]
    faults = [list(_faults(purchase, offer, uses, idle)) for offer in nearest]
    yield from (f"{name} {fault}." for fault in min(faults, key=len))


def _faults(
    purchase: Purchase, offer: Slot, uses: Sequence[_ProcessorUse], idle: Sequence[_ProcessorUse]
) -> Iterator[str]:
    """
    Yield the reasons why this offer does not allow the purchase.

    Parameters
    ----------
    uses
        Uses of the purchase by tasks.
    idle
        Tasks without duration on the site.
    """
    slot = purchase.slot
    rule = _faults_leased if offer.leased else _faults_part if offer.divisible else _faults_whole
    yield from rule(purchase, offer, uses, idle)
    if slot.processors > offer.processors:
        yield f"has {slot.processors} processors, the slot has {offer.processors}"
    if not _at_most(slot.end, _last(offer)):
        yield f"ends at {_n(slot.end)} s, the slot cannot be used after {_n(offer.end)} s"
    yield from _faults_of_kind(slot, offer)
    yield from _faults_of_price(slot, offer)


def _faults_of_kind(slot: Slot, offer: Slot) -> Iterator[str]:
    for what in ("divisible", "extensible", "leased"):
        is_so, should = getattr(slot, what), getattr(offer, what)
        if is_so != should:
            yield f"is {_or_not(what, is_so)}, the slot is {_or_not(what, should)}"


def _faults_of_price(slot: Slot, offer: Slot) -> Iterator[str]:
    for what, paid, asked in (
        ("processor-second", slot.unit_price, offer.unit_price),
        ("slot", slot.fixed_price, offer.fixed_price),
    ):
        if not _same_or_unknown(paid, asked):
            yield f"costs {_amount(paid)} per {what}, the slot costs {_amount(asked)}"


def _faults_whole(
    purchase: Purchase, offer: Slot, uses: Sequence[_ProcessorUse], idle: Sequence[_ProcessorUse]
) -> Iterator[str]:
    """Yield faults of a slot paid whole: from start to end, or to the last use if extensible."""
    slot = purchase.slot
    if purchase.part is not None:
        yield f"pays {_n(purchase.part)} processor-seconds, the slot is paid whole"
    if slot.processors < offer.processors:
        yield f"has {slot.processors} processors, the slot is sold with all {offer.processors}"
    if not _same(slot.start, offer.start):
        yield f"starts at {_n(slot.start)} s, the slot starts at {_n(offer.start)} s"
    until = max([offer.end, *(use.finish for use in uses)]) if offer.extensible else offer.end
    if not _at_most(until, slot.end):
        yield f"ends at {_n(slot.end)} s, the slot is paid until {_n(until)} s"
    elif offer.extensible and not _same(slot.end, until):
        yield f"ends at {_n(slot.end)} s, the slot need only be paid until {_n(until)} s"


def _faults_part(
    purchase: Purchase, offer: Slot, uses: Sequence[_ProcessorUse], idle: Sequence[_ProcessorUse]
) -> Iterator[str]:
    """Yield faults of a divisible slot: exactly the processor time in use is paid."""
    if not _at_most(offer.start, purchase.slot.start):
        yield f"starts at {_n(purchase.slot.start)} s, the slot starts at {_n(offer.start)} s"
    used = math.fsum(use.processors * (use.finish - use.start) for use in uses)
    if purchase.part is None or not _same(purchase.part, used):
        paid = purchase.processor_seconds
        yield f"pays {_n(paid)} processor-seconds, tasks use {_n(used)} of it"


def _faults_leased(
    purchase: Purchase, offer: Slot, uses: Sequence[_ProcessorUse], idle: Sequence[_ProcessorUse]
) -> Iterator[str]:
    """
    Yield faults of a lease: a rectangle from its start to the last use, as wide as the peak.

    Whether a task without duration counts is left open where it holds nothing.
    """
    slot = purchase.slot
    if purchase.part is not None:
        yield f"pays {_n(purchase.part)} processor-seconds, the lease is paid whole"
    if not _same(slot.start, offer.start):
        yield f"starts at {_n(slot.start)} s, the slot starts at {_n(offer.start)} s"
    least = max([_peak(uses), *(use.processors for use in uses if use.finish <= use.start)])
    most = max([least, *(use.processors for use in idle)])
    if not least <= slot.processors <= most:
        yield f"leases {slot.processors} processors, {least} are in use at once"
    first = max([offer.start, *(use.finish for use in uses)])
    until = max([first, offer.start + SHORTEST_LEASE, *(use.finish for use in idle)])
    if not (_at_most(first, slot.end) and _at_most(slot.end, until)):
        yield f"is leased until {_n(slot.end)} s, its last use ends at {_n(first)} s"


def _peak(uses: Iterable[_ProcessorUse]) -> int:
    """Return the most processors in use at once; an end, or nearly one, comes before a start."""
    left = ResourceProfile.summed(
        (use.start, use.finish - TOLERANCE * max(1.0, abs(use.finish)), -use.processors)
        for use in uses
    )
    return -left.least_free(-math.inf, math.inf)


def _unmatched(candidates: Sequence[Sequence[int]], counts: Sequence[int]) -> list[int]:
    """
    Return the purchases left over when no offer is sold more often than on offer.

    Parameters
    ----------
    candidates
        Offers that each purchase could be of. Those without any are not answered.
    counts
        How often each offer is there.

    References
    ----------
    .. [1] Kuhn (1955). The Hungarian method for the assignment problem. Naval
       Research Logistics Quarterly 2: 83-97 (augmenting paths).
    """
    holders: dict[int, set[int]] = defaultdict(set)
    held: dict[int, int] = {}
    left = []
    for purchase, offers in enumerate(candidates):
        askers: dict[int, int] = {}  # who asked for each offer
        free = None
        asking = [purchase]
        for taker in asking:
            for offer in candidates[taker]:
                if offer in askers:
                    continue
                askers[offer] = taker
                if len(holders[offer]) < counts[offer]:
                    free = offer
                    break
                asking += sorted(holders[offer])  # who may give it up for another
            if free is not None:
                break
        if free is None and offers:
            left.append(purchase)
        while free is not None:
            taker = askers[free]
            given_up = held.get(taker)
            if given_up is not None:
                holders[given_up].remove(taker)
            holders[free].add(taker)
            held[taker] = free
            free = given_up
    return left


def _wrong_totals(plan: Plan, workflow: Workflow, places: Sequence[Placement]) -> Iterator[str]:
    """Yield the stated makespan, cost and utilisation that differ from the computed ones."""
    if not places:
        return
    makespan = max(place.finish for place in places)
    if not _same_or_unknown(plan.makespan, makespan):
        stated = _amount(plan.makespan)
        yield f"The makespan is said to be {stated} s, the last task ends at {_n(makespan)} s."
    cost = _cost(plan)
    if not _same_or_unknown(plan.cost, cost):
        yield f"The cost is said to be {_amount(plan.cost)}, the purchases cost {_amount(cost)}."
    held = math.fsum(
        (place.finish - place.start) * workflow.tasks[place.task].processors for place in places
    )
    paid = math.fsum(purchase.processor_seconds for purchase in plan.purchases)
    if paid > 0 and not _same_or_unknown(plan.utilisation, held / paid):
        yield (
            f"The utilisation is said to be {_amount(plan.utilisation)}, tasks fill {_n(held)} of "
            f"{_n(paid)} processor-seconds, {_n(held / paid)}."
        )


def _cost(plan: Plan) -> float | None:
    """Sum of n d c + f over what is bought (HPDC'07 section 2); None when one is unknown."""
    costs = []
    for purchase in plan.purchases:
        slot, part = purchase.slot, purchase.part
        paid = slot.processors * slot.duration if part is None else part
        if slot.unit_price is None or slot.fixed_price is None or math.isinf(paid):
            return None
        costs.append(paid * slot.unit_price + slot.fixed_price)
    return math.fsum(costs)


def _currencies(plan: Plan, sites: Mapping[str, SiteFacts]) -> Iterator[str]:
    """Sites bought from that count in another currency than the plan."""
    for name in dict.fromkeys(purchase.slot.site for purchase in plan.purchases):
        if name in sites and sites[name].currency != plan.currency:
            yield (f'The plan counts in {plan.currency}, site "{name}" in {sites[name].currency}.')


def _outline(plan: Plan, task: str, sites: Mapping[str, SiteFacts]) -> Iterator[str]:
    """
    Check that a plan with an unknown runtime has purchases only, and no placements or makespan.
    """
    if plan.placements:
        yield f'Tasks are placed although the runtime of task "{task}" is unknown.'
    for what, stated in (
        ("makespan", plan.makespan),
        ("cost", plan.cost),
        ("utilisation", plan.utilisation),
    ):
        if stated is not None:
            yield (
                f"The {what} is said to be {_n(stated)} although the runtime of task "
                f'"{task}" is unknown.'
            )
    for i, purchase in enumerate(plan.purchases):
        slot = purchase.slot
        if slot.site not in sites:
            yield f'Purchase {i} is of site "{slot.site}", which there is not.'
            continue
        offers = [o for o in sites[slot.site].offers if _same(o.start, slot.start)]
        wide = [o for o in offers if slot.processors <= o.processors]
        name = f"Purchase {_which(i, slot)}"
        if not offers:
            yield f"{name} starts when no slot of the site does."
        elif not wide:
            widest = max(o.processors for o in offers)
            yield f"{name} has {slot.processors} processors, the slot has {widest}."
        elif all(any(_faults_of_price(slot, offer)) for offer in wide):
            yield from (f"{name} {fault}." for fault in _faults_of_price(slot, wide[0]))


def _last(slot: Slot) -> float:
    """Last moment of use, seconds; infinite where extensible."""
    return math.inf if slot.extensible else slot.end


def _at_most(a: float, b: float) -> bool:
    """Whether a is at most b, or nearly."""
    if a <= b:
        return True
    return math.isfinite(a) and a - b <= TOLERANCE * max(1.0, abs(a), abs(b))


def _same(a: float, b: float) -> bool:
    return _at_most(a, b) and _at_most(b, a)


def _same_or_unknown(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=0.0)


def _n(value: float) -> str:
    return f"{value:.12g}"


def _amount(value: float | None) -> str:
    return "unknown" if value is None else _n(value)


def _or_not(what: str, is_so: bool) -> str:
    return what if is_so else f"not {what}"


def _which(i: int, slot: Slot) -> str:
    """Name a purchase by number, counted from 0 in the plan, and slot."""
    return f'{i} (site "{slot.site}", {_n(slot.start)} s to {_n(slot.end)} s)'


def _listed(what: str, numbers: Sequence[int]) -> str:
    """``processor 3`` or ``processors 3, 4, 5``, of many the first and how many more."""
    shown = ", ".join(map(str, numbers[:4]))
    more = f" and {len(numbers) - 4} more" if len(numbers) > 4 else ""
    return f"{what}{'s' if len(numbers) > 1 else ''} {shown}{more}"
