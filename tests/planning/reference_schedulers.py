"""The list schedulers once more, written for nothing but to be plainly right."""

import math
from dataclasses import dataclass, field

import numpy as np

from bursar.planning.problem import PlanningProblem
from bursar.planning.schedulers import by_site, upward_ranks

Interval = tuple[float, float, int]


@dataclass
class Plain:
    """Slots as lists of intervals; every question is answered by looking at all of them."""

    problem: PlanningProblem
    caps: list[int]
    held: list[list[Interval]] = field(init=False)
    site: list[int] = field(init=False)
    start: list[float] = field(init=False)
    finish: list[float] = field(init=False)
    slots_of: dict[int, dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = [[] for _ in self.caps]
        self.site = [-1] * self.problem.n_tasks
        self.start = [0.0] * self.problem.n_tasks
        self.finish = [0.0] * self.problem.n_tasks
        self.idle: list[tuple[int, int, float]] = []

    # What is free

    def begin(self, slot: int) -> float:
        return max(0.0, self.problem.offers.slots[slot].start)

    def last(self, slot: int) -> float:
        offer = self.problem.offers.slots[slot]
        return math.inf if offer.extensible else offer.end

    def free(self, slot: int, start: float, finish: float) -> int:
        """Fewest free at once; none where the slot does not span it all."""
        if self.begin(slot) > start or self.last(slot) < finish:
            return 0
        moments = [start, *(a for a, _, _ in self.held[slot] if start < a < finish)]
        return self.caps[slot] - max(
            sum(n for a, b, n in self.held[slot] if a <= moment < b) for moment in moments
        )

    def earliest(self, slots: list[int], ready: float, duration: float, width: int) -> float:
        """First start with enough free in all these slots together."""
        moments = {ready}
        for slot in slots:
            moments |= {self.begin(slot), *(b for _, b, _ in self.held[slot])}
        for moment in sorted(m for m in moments if m >= ready):
            if sum(self.free(slot, moment, moment + duration) for slot in slots) >= width:
                return moment
        return math.inf

    def used(self, slot: int) -> bool:
        return bool(self.held[slot]) or any(slot == s for s, _, _ in self.idle)

    # Where a task can go

    def ready(self, task: int, s: int) -> float:
        problem = self.problem
        ready = 0.0
        for edge in range(problem.parent_start[task], problem.parent_start[task + 1]):
            parent = problem.parent_index[edge]
            a = self.site[parent]
            delay = (
                0.0
                if a == s
                else problem.latency[a, s]
                + problem.parent_bytes[edge] * problem.seconds_per_byte[a, s]
            )
            ready = max(ready, self.finish[parent] + delay)
        return ready

    def places(self, task: int) -> list[tuple[int, list[int], float, float]]:
        """Site, slots, start and finish of all places, in the order that breaks ties."""
        problem = self.problem
        width = int(problem.widths[task])
        found = []
        first = problem.offers.arrays.first
        for s in range(problem.n_sites):
            duration = float(problem.runtimes[task, s])
            slots = list(range(first[s], first[s + 1]))
            bought = sum(self.caps[slot] for slot in slots)
            if math.isinf(duration) or not bought:
                continue
            ready = self.ready(task, s)
            if duration == 0:
                if bought >= width:
                    found.append((s, [], ready, ready))
                continue
            for slot in slots:
                start = self.earliest([slot], ready, duration, width)
                if start < math.inf:
                    found.append((s, [slot], start, start + duration))
            if width > 1 and len(slots) > 1:
                start = self.earliest(slots, ready, duration, width)
                if start < math.inf:
                    found.append((s, slots, start, start + duration))
        return found

    def shares(self, slots: list[int], start: float, finish: float, width: int) -> dict[int, int]:
        given: dict[int, int] = {}
        free = {slot: self.free(slot, start, finish) for slot in slots}
        for slot in sorted(slots, key=lambda x: (not self.used(x), -free[x], x)):
            take = min(free[slot], width - sum(given.values()))
            if take > 0:
                given[slot] = take
        return given

    # What it costs

    def price(self) -> float:
        """Everything so far."""
        total = 0.0
        for slot, offer in enumerate(self.problem.offers.slots):
            held = self.held[slot]
            idle = [(w, end) for s, w, end in self.idle if s == slot]
            if not held and not idle:
                continue
            assert offer.unit_price is not None
            assert offer.fixed_price is not None
            until = max([b for _, b, _ in held] + [end for _, end in idle])
            if offer.leased:
                peak = max([w for w, _ in idle] + [self.caps[slot] - self.free_at_worst(slot)])
                seconds = peak * max(until - offer.start, 1e-6)
            elif offer.divisible:
                seconds = sum((b - a) * n for a, b, n in held)
            else:
                seconds = offer.processors * (max(offer.end, until) - offer.start)
            total += seconds * offer.unit_price + offer.fixed_price
        return total

    def free_at_worst(self, slot: int) -> int:
        held = self.held[slot]
        return self.caps[slot] - max(
            (sum(n for a, b, n in held if a <= m < b) for m, _, _ in held), default=0
        )

    # Schedules

    def put(self, task: int, place: tuple[int, list[int], float, float]) -> None:
        s, slots, start, finish = place
        width = int(self.problem.widths[task])
        self.site[task], self.start[task], self.finish[task] = s, start, finish
        shares = {slots[0]: width} if len(slots) == 1 else self.shares(slots, start, finish, width)
        self.slots_of[task] = shares
        for slot, count in shares.items():
            self.held[slot].append((start, finish, count))
        if not slots:
            first = self.problem.offers.arrays.first
            for slot in range(first[s], first[s + 1]):
                there = self.begin(slot) <= finish <= self.last(slot)
                leased = self.problem.offers.slots[slot].leased
                if leased and there and self.caps[slot] >= width:
                    self.idle.append((slot, width, finish))
                    break

    def soonest(self, task: int) -> tuple[int, list[int], float, float] | None:
        def order(place: tuple[int, list[int], float, float]) -> tuple[float, int, bool, bool]:
            s, slots, _, finish = place
            return (finish, s, len(slots) > 1, bool(slots) and not self.used(slots[0]))

        return min(self.places(task), key=order, default=None)

    def makespan(self) -> float:
        return max((self.finish[t] for t in range(len(self.site)) if self.site[t] >= 0), default=0)

    def added(self, task: int, place: tuple[int, list[int], float, float]) -> float:
        """What the task would add to the price there."""
        other = Plain(self.problem, self.caps)
        other.held = [list(h) for h in self.held]
        other.idle = list(self.idle)
        other.put(task, place)
        if not place[1]:
            return 0.0
        return other.price() - self.price()


def run(
    problem: PlanningProblem,
    caps: list[int],
    scheduler: str,
    weight: float = 0.5,
    worth: float = 1.0,
) -> Plain:
    """The schedule; -1 for the sites of tasks that found no place."""
    plain = Plain(problem, caps)
    order = problem.order.tolist()
    if scheduler in ("minmin", "maxmin"):
        levels = problem.levels.tolist()
        sign = 1 if scheduler == "minmin" else -1
        for level in range(max(levels) + 1):
            waiting = [t for t in order if levels[t] == level]
            while waiting:
                found = {t: plain.soonest(t) for t in waiting}

                def key(task: int, found: dict = found) -> float:  # type: ignore[type-arg]
                    place = found[task]
                    return sign * (math.inf if place is None else place[3])

                task = min(waiting, key=key)
                place = found[task]
                if place is None:
                    return plain
                plain.put(task, place)
                waiting.remove(task)
        return plain
    if scheduler == "heft":
        ranks = upward_ranks(problem, by_site(problem, np.array(caps)))
        order = sorted(order, key=lambda t: -ranks[t])
    for task in order:
        places = plain.places(task)
        if not places:
            return plain
        if scheduler == "greedy":
            before = plain.makespan()
            place = min(places, key=lambda p: max(p[3], before))
        elif scheduler == "list-cost":
            before = plain.makespan()
            place = min(
                places,
                key=lambda p: (
                    round(
                        weight * plain.added(task, p) + (1 - weight) * worth * max(before, p[3]),
                        6,
                    ),
                    p[3],
                ),
            )
        else:
            place = plain.soonest(task)  # type: ignore[assignment]
        plain.put(task, place)
    return plain


def minmin_total(problem: PlanningProblem, caps: list[int], weight: float, worth: float) -> Plain:
    """Min-Min on total cost, e-Science'06 figures 1 and 2."""
    plain = Plain(problem, caps)
    position = {t: i for i, t in enumerate(problem.order.tolist())}
    done: set[int] = set()
    parents = [
        set(problem.parent_index[a:b].tolist())
        for a, b in zip(problem.parent_start[:-1], problem.parent_start[1:], strict=True)
    ]
    while len(done) < problem.n_tasks:
        before = plain.makespan()
        choices = [
            (
                round(weight * plain.added(t, p) + (1 - weight) * worth * max(before, p[3]), 6),
                p[3],
                position[t],
                (len(p[1]) != 1, i),
                t,
                p,
            )
            for t in range(problem.n_tasks)
            if t not in done and parents[t] <= done
            for i, p in enumerate(plain.places(t))
        ]
        if not choices:
            return plain
        *_, task, place = min(choices, key=lambda c: c[:4])
        plain.put(task, place)
        done.add(task)
    return plain
