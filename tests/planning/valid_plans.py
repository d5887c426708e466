"""Valid plans at random, made without the planner: what holds for plans is tried on them."""

import math
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from bursar.model.campaign import Workflow
from bursar.model.network import Link
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import File, Task
from bursar.planning.building import number_processors

Instance = tuple[Plan, Workflow, tuple[SiteFacts, ...]]


def totalled(plan: Plan, workflow: Workflow) -> Plan:
    """The plan with makespan, cost and utilisation as they come to."""
    held = sum((p.finish - p.start) * workflow.tasks[p.task].processors for p in plan.placements)
    paid = sum(p.processor_seconds for p in plan.purchases)
    costs = [p.cost for p in plan.purchases]
    return replace(
        plan,
        makespan=max(p.finish for p in plan.placements),
        cost=None if None in costs else sum(c for c in costs if c is not None),
        utilisation=held / paid if paid else None,
    )


def plan_of(
    purchases: Sequence[Purchase], placements: Sequence[Placement], workflow: Workflow
) -> Plan:
    """A plan with its totals."""
    plan = Plan(
        purchases=tuple(purchases),
        placements=tuple(sorted(placements, key=lambda p: (p.start, p.task))),
        makespan=None,
        cost=None,
        currency="SU",
        utilisation=None,
        algorithm="by hand",
    )
    return totalled(plan, workflow)


def slot(site: str, start: float, duration: float, processors: int, **more: object) -> Slot:
    """A slot at 2 per processor-second and 5 at once."""
    usual = {"unit_price": 2.0, "fixed_price": 5.0, "divisible": False} | more
    return Slot(site=site, start=start, duration=duration, processors=processors, **usual)  # type: ignore[arg-type]


FLAGS = (
    {"divisible": False},
    {"divisible": False, "extensible": True},
    {"divisible": True},
    {"divisible": True, "extensible": True},
    {"divisible": True, "leased": True},
)


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """A workflow, sites and a valid plan; times with fractions, prices and transfers."""
    times = st.floats(0.1, 100.0, allow_nan=False)
    n_sites = draw(st.integers(1, 3))
    names = [f"s{i}" for i in range(n_sites)]
    sites = []
    for name in names:
        offers = [
            slot(
                name,
                draw(times),
                draw(times),
                draw(st.integers(1, 3)),
                **draw(st.sampled_from(FLAGS)),
            )
            for _ in range(draw(st.integers(0, 4)))
        ]
        offers.append(slot(name, draw(times), math.inf, 3, divisible=True, leased=True))
        links = {
            other: Link(draw(times), draw(times))
            for other in names
            if other != name and draw(st.booleans())
        }
        speed = draw(st.sampled_from([0.5, 1.0, 3.0]))
        sites.append(
            SiteFacts(name=name, processors=15, speed=speed, slots=tuple(offers), links=links)
        )
    tasks: list[Task] = []
    for i in range(draw(st.integers(1, 8))):
        parents = [p for p in range(i) if draw(st.integers(0, 3)) == 0]
        tasks.append(
            Task(
                id=f"t{i}",
                runtime=draw(st.one_of(st.just(0.0), times)),
                processors=draw(st.integers(1, 3)),
                inputs=tuple(File(f"f{p}") for p in parents),
                outputs=(File(f"f{i}", draw(st.sampled_from([None, 10, 1000]))),),
            )
        )
    workflow = Workflow(tuple(tasks))
    return _serve(draw, workflow, sites), workflow, tuple(sites)


def _serve(draw: st.DrawFn, workflow: Workflow, sites: Sequence[SiteFacts]) -> Plan:
    """Each task in turn on a random site and, where they stay long enough, random processors."""
    free = {
        (k, i, n): offer.start
        for k, site in enumerate(sites)
        for i, offer in enumerate(site.offers)
        for n in range(offer.processors)
    }
    runs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    placed: dict[int, tuple[int, float, float]] = {}
    for t, task in enumerate(workflow.tasks):
        k = draw(st.integers(0, len(sites) - 1))
        assert task.runtime is not None
        length = task.runtime / sites[k].speed
        ready = 0.0
        for p in workflow.parents[t]:
            where, _, finish = placed[p]
            link = sites[where].links.get(sites[k].name, Link()) if where != k else Link()
            size = workflow.tasks[p].outputs[0].size or 0
            ready = max(ready, finish + link.latency + size / link.bandwidth)
        if not length:
            placed[t] = (k, ready, ready)
            continue
        mine = sorted(key for key in free if key[0] == k)
        chosen = sorted(draw(st.permutations(mine))[: task.processors])
        start = max([ready, *(free[key] for key in chosen)])
        ends = [
            math.inf if sites[k].offers[i].extensible else sites[k].offers[i].end
            for _, i, _ in chosen
        ]
        if start + length > min(ends):
            chosen = mine[-task.processors :]  # of the slot without an end
            start = max([ready, *(free[key] for key in chosen)])
        placed[t] = (k, start, start + length)
        for key in chosen:
            free[key] = start + length
        for i in {i for _, i, _ in chosen}:
            width = sum(key[1] == i for key in chosen)
            runs.setdefault((k, i), []).append((t, width))

    purchases: list[Purchase] = []
    held: dict[int, list[int]] = {t: [] for t in placed}
    before = [0] * len(sites)
    for k, i in draw(st.permutations(sorted(runs))):
        offer = sites[k].offers[i]
        spans = [(placed[t][1], placed[t][2], width) for t, width in runs[k, i]]
        numbers = number_processors(spans)
        peak = 1 + max(max(own) for own in numbers)
        last = max(finish for _, finish, _ in spans)
        part = None
        if offer.leased:
            bought = replace(offer, duration=last - offer.start, processors=peak)
        elif offer.divisible:
            first = min(start for start, _, _ in spans)
            bought = replace(offer, start=first, duration=last - first, processors=peak)
            part = sum(width * (finish - start) for start, finish, width in spans)
        else:
            bought = replace(offer, duration=max(offer.duration, last - offer.start))
            if not offer.extensible:
                bought = offer
        for (t, _), own in zip(runs[k, i], numbers, strict=True):
            held[t] += [before[k] + n for n in own]
        before[k] += bought.processors
        purchases.append(Purchase(slot=bought, part=part))
    placements = [
        Placement(t, sites[k].name, start, finish, tuple(sorted(held[t])))
        for t, (k, start, finish) in placed.items()
    ]
    return plan_of(purchases, placements, workflow)
