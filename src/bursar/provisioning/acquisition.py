"""
Split wanted processors into requests to a batch scheduler (DRP section 3.1).

Frey's and Raicu's question: having decided that n processors are wanted, what is asked of the
batch scheduler? One request for all of them waits until all are free; many small ones find room
sooner, and cost a submission each.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from bursar.model.allocation import Allocation, AllocationRequest
from bursar.model.provisioning import Acquisition
from bursar.provisioning import request_shaping
from bursar.provisioning.counting import capacity, price, room, widest_at, worst_cost, worst_rate
from bursar.provisioning.pool_memory import PoolMemory
from bursar.provisioning.pool_snapshot import PoolSite, PoolSnapshot
from bursar.provisioning.release import (
    ROUNDING,
    ends_soon_at,
    is_active,
    is_racing,
    racing,
    remaining_processors,
)
from bursar.provisioning.request_shaping import RequestShape, free_now, shape_requests


def sizes(
    acquisition: Acquisition, processors: int, free: int | None = None, unit: int = 1
) -> tuple[int, ...]:
    """
    Return the processors of each request, in the order of the requests.

    Additive asks for 1, 2, 3, ..., exponential for 1, 2, 4, ...; the last one is what is left.
    The paper counts floor((sqrt(8n + 1) - 1) / 2) requests of the additive kind, and has the
    last of 48 processors be for 3. Both hold only if the formula counts the full requests: 1 to
    9 make 45, and a tenth is for the remaining 3. Only for n = 1, 3, 6, 10, ... nothing remains,
    and the formula is the number of requests. Exponential takes ceil(log2(n + 1)) of them,
    trimmed or not: 1, 2, 4, 8, 16 and 17 for 48.

    Parameters
    ----------
    acquisition
        Any policy that does not look at the schedule: all but ``"adaptive"``.
    processors
        Number wanted in all; a multiple of the unit.
    free
        How many the scheduler says are free, which only ``"optimal"`` asks; None: it does not
        say, and then everything is taken to be.
    unit
        Processors that are of use only together: the sequences then count units.

    Returns
    -------
    tuple of int
        Sizes that sum to the processors; with ``"optimal"``, to the free ones of these, perhaps
        none. With ``"array"``, all are one submission.

    Raises
    ------
    ValueError
        When a number is out of range, or the policy is none of these.

    References
    ----------
    .. [1] Raicu, Dumitrescu, Foster (2007). Dynamic resource provisioning in Grid environments,
       sections 3.1 and 3.2.
    """
    if unit < 1:
        raise ValueError(f"unit must be positive, got {unit}")
    if processors < 0 or processors % unit:
        raise ValueError(f"processors must be a multiple of {unit}, got {processors}")
    count = processors // unit
    if not count:
        return ()
    match acquisition:
        case "one-at-a-time" | "array":
            made = [1] * count
        case "all-at-once" | "node-range":
            made = [count]
        case "additive":
            made = list(range(1, additive_requests(count) + 1))
        case "exponential":
            made = [2**i for i in range(exponential_requests(count) - 1)]
        case "optimal":
            count = count if free is None else min(count, max(free, 0) // unit)
            made = [count] if count else []
        case _:
            raise ValueError(f"{acquisition} has no sequence of its own")
    left = count - sum(made)
    if left:
        made.append(left)
    return tuple(size * unit for size in made)


def additive_requests(processors: int) -> int:
    """Return the paper's floor((sqrt(8n + 1) - 1) / 2), in integers: full requests of 1, 2, ..."""
    return (math.isqrt(8 * processors + 1) - 1) // 2


def exponential_requests(processors: int) -> int:
    """Return the paper's ceil(log2(n + 1)), in integers: requests of 1, 2, 4, ..., trimmed."""
    return processors.bit_length()


# One acquisition round decides how many processors are missing, and which sites are asked by
# which requests.

HOLD = 120.0
"""Most seconds for which waiting requests are held back while a fitting one has not begun."""


class AcquisitionRound:
    """
    Makes the requests of one decision.

    Parameters
    ----------
    memory
        Memory of the pool; labels, claims and the next time to wake are written to it.
    stay
        Allocations that are not being released.
    """

    def __init__(self, memory: PoolMemory, view: PoolSnapshot, stay: Sequence[Allocation]) -> None:
        self._memory = memory
        self._view = view
        self._stay = stay
        self._unit = max(view.demand.widest, 1)
        self._room = {name: capacity(site) for name, site in view.sites.items()}
        self._pending = dict.fromkeys(view.sites, 0)
        self._money = math.inf if view.affordable is None else view.affordable
        for a in view.allocations:
            if a.site not in self._room:
                continue
            self._room[a.site] -= a.processors
            if a.granted is None:
                site = view.sites[a.site]
                self._pending[a.site] += 1
                self._money -= worst_cost(site, a.processors, a.duration)
                if site.unwatched:  # that part is set aside for the request already
                    self._money += worst_cost(site, a.processors, 0.0)
        self._races = {name: racing(view.allocations, name) for name in view.sites}
        self._made: dict[str, list[RequestShape]] = {name: [] for name in view.sites}
        self._firm = dict.fromkeys(view.sites, 0)  # processors of this round outside races
        self._requested = 0  # processors of this round, of all sites
        self._starts: dict[str, float] = {}
        self._asks: list[AllocationRequest] = []

    def asks(self) -> list[AllocationRequest]:
        """Return the requests of this round."""
        view = self._view
        if not is_active(view.demand):
            return []
        open_sites = []
        for name, site in view.sites.items():
            health = self._memory.health(name)
            if health.is_open(view.now):
                open_sites.append(site)
            elif not health.given_up:
                self._memory.wake_at(health.until)
        amounts = self._amounts(open_sites)
        self._requested = sum(amounts.values())
        for site in sorted(open_sites, key=self._order):
            if amounts.get(site.name):
                self._ask(site, amounts[site.name], open_sites)
        return self._asks

    # How many, and of whom.

    def _amounts(self, sites: Sequence[PoolSite]) -> dict[str, int]:
        amounts = {site.name: 0 for site in sites}
        there = 0  # processors of the least numbers that waiting tasks can use
        for site in sites:
            short, unit = self._below_fewest(site), self._unit_at(site)
            if short and unit and self._view.demand.tasks:
                there += self._put(amounts, site, short)
            amounts[site.name] = max(amounts[site.name], short)
        able = [site for site in sites if self._is_triggered(site) and self._unit_at(site)]
        missing = self._missing(able) - there
        if missing <= 0 or not able:
            return amounts
        able.sort(key=self._order)
        if not self._has_for_the_longest():
            # The longest task would wait for ever: first somebody who has the time for it.
            first = next((s for s in able if request_shaping.has_time(self._view.demand, s)), None)
            if first is not None and first is not able[0]:
                missing -= self._put(amounts, first, min(missing, self._unit))
        groups: dict[tuple[bool, float], list[PoolSite]] = {}
        for site in able:
            # Sites of equal price are one market: a full queue at one must not wait while another
            # has room.
            groups.setdefault(price(site), []).append(site)
        for group in groups.values():
            if len(group) > 1:  # what is free first, wherever it is
                for site in group:
                    missing -= self._put(amounts, site, min(missing, self._free(site)))
            for site in group:
                missing -= self._put(amounts, site, missing)
        return amounts

    def _put(self, amounts: dict[str, int], site: PoolSite, amount: int) -> int:
        """Assign a site more processors, in whole units; return the number assigned."""
        unit = self._unit_at(site)
        if amount <= 0 or not unit:
            return 0
        room_left = self._room[site.name] - amounts[site.name]
        count = min(-(-amount // unit), room_left // unit) * unit
        count = max(count, 0)
        amounts[site.name] += count
        return count

    def _missing(self, able: Sequence[PoolSite]) -> int:
        view = self._view
        there = room(view, self._stay, self._unit)
        missing = view.demand.processors - there
        if view.until_deadline is not None and missing > 0:
            speeds = {site.name: site.speed for site in able}
            # With a deadline no more than it takes: further processors would finish early and cost
            # more.
            needed = request_shaping.short_for_deadline(
                view.demand, self._stay, speeds, view.until_deadline
            )
            # Something has to run, however much time is left.
            if not there and not view.demand.running:
                needed = max(needed, self._unit)
            missing = min(missing, needed)
        return missing

    def _is_triggered(self, site: PoolSite) -> bool:
        """Whether enough tasks wait, or any task waits that nothing else would ever take."""
        rules, demand = site.rules, self._view.demand
        enough = max(rules.trigger, rules.below if rules.release == "queue" else 1)
        if demand.tasks >= enough:
            return True
        return demand.tasks > 0 and not demand.running and not self._stay

    def _below_fewest(self, site: PoolSite) -> int:
        """Count the processors missing, now or soon, from a site's least number."""
        fewest = site.rules.fewest
        if not fewest:
            return 0
        mine = [a for a in self._stay if a.site == site.name and not is_racing(a)]
        now = self._view.now
        for a in mine:
            if ends_soon_at(a) > now:
                self._memory.wake_at(ends_soon_at(a))
        return max(0, min(fewest - remaining_processors(mine, now), self._room[site.name]))

    def _has_for_the_longest(self) -> bool:
        demand, now = self._view.demand, self._view.now
        for a in self._stay:
            site = self._view.sites.get(a.site)
            if site is None or a.processors < self._unit:
                continue
            lasts = a.duration if a.granted is None else a.until - now
            if lasts >= demand.longest / site.speed:
                return True
        return False

    def _unit_at(self, site: PoolSite) -> int:
        """Return the processors that are useful only together; 0: no waiting task fits there."""
        demand = self._view.demand
        # Processors of a queue that ends jobs before a mean task is done would do no work.
        if (
            request_shaping.mean_seconds(demand, site) > request_shaping.longest_walltime(site)
            and site.batch
        ):
            return 0
        most = widest_at(site)
        if self._unit <= most:
            return self._unit
        mean = math.ceil(demand.processors / demand.tasks) if demand.tasks else 1
        return mean if mean <= most and mean < self._unit else 0

    def _free(self, site: PoolSite) -> int:
        if not site.batch:
            return self._room[site.name]
        seen = free_now(site, self._claims(site))
        return sum(count for _, count in seen) if seen is not None else 0

    def _claims(self, site: PoolSite) -> list[RequestShape]:
        """
        Requests that take free processors but may not show in the scheduler's answer yet.

        Requests that were made since the scheduler was last looked at, begun or not; or all that
        wait, where these are more: on their way, they may take longer than until the next look.
        """
        waits = [
            RequestShape(processors=a.processors, seconds=a.duration)
            for a in self._stay
            if a.site == site.name and a.granted is None
        ]
        waits.extend(self._made[site.name])
        claims = self._memory.observations[site.name].claims
        return max(claims, waits, key=lambda shapes: sum(s.processors for s in shapes))

    def _order(self, site: PoolSite) -> tuple[bool, float, float, float, str]:
        """Return a sort key of sites: cost of work, then expected start, then speed."""
        unknown, rate = price(site)
        return unknown, rate, self._start(site), -site.speed, site.name

    def _start(self, site: PoolSite) -> float:
        """Expected seconds until a unit would start at a site."""
        if site.name not in self._starts:
            self._starts[site.name] = self._expected(site)
        return self._starts[site.name]

    def _expected(self, site: PoolSite) -> float:
        if not site.batch:
            return 0.0
        if self._free(site) >= self._unit:
            return 0.0
        if site.probed is not None:
            return site.probed  # its own word is worth more than our model of it
        starts = [
            h.start for h in site.backfill_windows if h.processors >= self._unit and h.start > 0
        ]
        bound = self._memory.waits.bound(
            site.name, self._unit, request_shaping.longest_walltime(site)
        )
        return min([*starts, math.inf if bound is None else bound])

    def _ask(self, site: PoolSite, amount: int, rivals: Sequence[PoolSite]) -> None:
        unit = self._unit_at(site) or 1
        demand = self._view.demand
        there = room(self._view, self._stay, unit) + demand.running
        # The work is shared with what others are asked for besides.
        wanted = request_shaping.wanted_seconds(demand, site, there + max(amount, self._requested))
        left = self._view.until_deadline
        # Time after the deadline is worth nothing, and shorter requests start sooner.
        if left is not None and left > 0 and site.batch:
            wanted = min(wanted, max(left, request_shaping.least_seconds(demand, site, wanted)))
        least = request_shaping.least_seconds(demand, site, wanted)
        amount, seconds = self._affordable(site, amount, unit, wanted, least)
        if amount <= 0:
            return
        acquisition = site.rules.acquisition
        if not site.batch:
            self._make(site, RequestShape(processors=amount, seconds=seconds))
        elif acquisition == "adaptive":
            self._hunt(site, amount, unit, seconds, rivals)
        else:
            self._ask_blindly(site, acquisition, amount, unit, seconds)

    def _affordable(
        self, site: PoolSite, amount: int, unit: int, wanted: float, least: float
    ) -> tuple[int, float]:
        """
        Return processors and seconds that the money allows in the worst case; time is cut before
        number.
        """
        rate = worst_rate(site)
        money = self._money - (site.fixed_price or 0.0)
        if money < 0:
            return 0, wanted
        if not rate or math.isinf(money):
            return amount, wanted
        seconds = wanted if site.batch else self._view.demand.longest / site.speed
        shortest = least if site.batch else seconds
        unwatched = site.unwatched
        if amount * rate * (seconds + unwatched) > money:
            seconds = max(shortest, math.floor(money / (rate * amount) - unwatched))
            if rate * (seconds + unwatched) * amount > money:
                each = rate * (seconds + unwatched)
                amount = int(money / each) // unit * unit if each else 0
        return max(amount, 0), seconds if site.batch else wanted

    def _ask_blindly(
        self, site: PoolSite, acquisition: Acquisition, amount: int, unit: int, seconds: float
    ) -> None:
        free = None
        if acquisition == "optimal":
            seen = free_now(site, self._claims(site))
            free = sum(n for _, n in seen) if seen is not None else None
        whole = min(-(-amount // unit), self._room[site.name] // unit) * unit
        nodes = site.per_node
        if acquisition == "node-range" and site.node_ranges and nodes and unit <= nodes < whole:
            count = min(-(-whole // nodes), self._room[site.name] // nodes)
            size = count * nodes
            ranged = RequestShape(processors=size, seconds=seconds, least_processors=nodes)
            if count > 1 and self._make(site, ranged):
                whole = max(0, whole - size) // unit * unit
        bundle = self._memory.label("bundle") if acquisition == "array" and site.arrays else ""
        for size in sizes(acquisition, whole, free, unit):
            if not self._make(site, RequestShape(processors=size, seconds=seconds), bundle=bundle):
                break

    def _hunt(
        self,
        site: PoolSite,
        amount: int,
        unit: int,
        wanted: float,
        rivals: Sequence[PoolSite],
    ) -> None:
        least = request_shaping.least_in_window(self._view.demand, site, wanted)
        whole = min(-(-amount // unit), self._room[site.name] // unit) * unit
        shapes = shape_requests(
            site,
            whole,
            unit=unit,
            least=least,
            wanted=wanted,
            task=request_shaping.mean_seconds(self._view.demand, site),
            claims=self._claims(site),
            most=max(0, site.rules.max_pending - self._pending[site.name]),
            # Where requests go wrong, one at a time shows whether they still do.
            in_parts=not self._memory.health(site.name).steps,
            in_halves=self._memory.waits.starts_slowly(site.name),
            only_fitting=self._is_starting(site.name),
            choose=lambda size, lengths: self._likely(site.name, size, lengths),
        )
        bundles: dict[int, str] = {}
        for shape in shapes:
            if shape.group and shape.group not in bundles:
                bundles[shape.group] = self._memory.label("bundle")
            bundle = bundles.get(shape.group, "")
            # What fits starts at once and needs no rivals; a bundle cannot lose single elements to
            # a race.
            others = [] if shape.fits or bundle else self._racers(site, shape, rivals)
            race = self._memory.label("race") if others else ""
            if not self._make(site, shape, bundle=bundle, race=race):
                break
            for other, seconds in others:
                self._make(other, replace(shape, seconds=seconds, least_seconds=None), race=race)

    def _is_starting(self, site: str) -> bool:
        """
        Whether a request that fits the free processors has been sent but has not started yet.

        What has to wait is held back meanwhile: handed in now, it could be through the
        scheduler's own delays sooner, and take a processor that the other needs.
        """
        starting = False
        for one in self._stay:
            known = self._memory.known.get(one.name)
            if one.site != site or one.granted is not None or known is None or not known.fits:
                continue
            if self._view.now < one.asked + HOLD - ROUNDING:
                self._memory.wake_at(one.asked + HOLD)
                starting = True
        return starting

    def _likely(self, site: str, size: int, lengths: tuple[float, ...]) -> float:
        """Choose the length with the greatest share of run time in wait plus run time."""
        bounds = [self._memory.waits.bound(site, size, seconds) for seconds in lengths]
        if any(bound is None for bound in bounds):
            return lengths[0]
        shares = [s / (s + (b or 0.0)) for s, b in zip(lengths, bounds, strict=True)]
        return lengths[shares.index(max(shares))]

    def _racers(
        self, site: PoolSite, shape: RequestShape, rivals: Sequence[PoolSite]
    ) -> list[tuple[PoolSite, float]]:
        """Other sites to ask for the same processors, and for how long."""
        if self._races[site.name] >= site.rules.max_racing:
            return []
        if _is_too_wide(site, shape):
            return []
        if self._below_fewest(site) > self._firm[site.name]:
            return []  # the least number is not to be lost to others
        found = []
        for other in sorted(rivals, key=self._order):
            if (
                other is site
                or not other.batch
                or other.rules.acquisition != "adaptive"
                or self._races[other.name] >= other.rules.max_racing
                or self._pending[other.name] >= other.rules.max_pending
                or self._room[other.name] < shape.processors
                or _is_too_wide(other, shape)
                or not self._is_triggered(other)
                or not self._unit_at(other)
                or shape.processors % self._unit_at(other)
            ):
                continue
            seconds = min(
                shape.seconds * site.speed / other.speed, request_shaping.longest_walltime(other)
            )
            seconds = float(math.ceil(max(seconds, other.rules.shortest)))
            if seconds < request_shaping.least_seconds(self._view.demand, other, seconds):
                continue
            if worst_cost(other, shape.processors, seconds) <= self._money:
                found.append((other, seconds))
        return found

    def _make_parts(self, site: PoolSite, shape: RequestShape, *, bundle: str) -> bool:
        """Make one request per node."""
        unit = self._unit_at(site) or 1
        size = max((site.per_node or 0) // unit, 1) * unit
        made, left = False, shape.processors
        while left > 0:
            part = replace(shape, processors=min(size, left), least_processors=None)
            if not self._make(site, part, bundle=bundle):
                break
            made, left = True, left - size
        return made

    def _make(
        self, site: PoolSite, shape: RequestShape, *, bundle: str = "", race: str = ""
    ) -> bool:
        """Make one request, unless room or money is lacking or too many requests wait."""
        if _is_too_wide(site, shape):
            return self._make_parts(site, shape, bundle=bundle)
        cost = worst_cost(site, shape.processors, shape.seconds)
        if (
            shape.processors > self._room[site.name]
            or self._pending[site.name] >= site.rules.max_pending
            or cost > self._money * (1 + 1e-9)
        ):
            return False
        self._room[site.name] -= shape.processors
        self._pending[site.name] += 1
        self._money -= cost
        if race:
            self._races[site.name] += 1
        else:
            self._firm[site.name] += shape.processors
        if site.backfill_windows and not shape.fits:  # it may have to move
            self._memory.wake_at(self._view.now + site.rules.probe_every)
        # The scheduler's answer does not show the request yet: the next decision must not claim its
        # room.
        if site.backfill_windows or site.free is not None:
            self._memory.observations[site.name].claims.append(shape)
        self._made[site.name].append(shape)
        self._asks.append(
            AllocationRequest(
                site=site.name,
                processors=shape.processors,
                duration=shape.seconds,
                least_duration=shape.least_seconds,
                least_processors=shape.least_processors,
                bundle=bundle,
                race=race,
                fits=shape.fits,
            )
        )
        return True


def _is_too_wide(site: PoolSite, shape: RequestShape) -> bool:
    """Whether a request exceeds one node at a site where requests cannot span nodes."""
    most = site.per_node
    return not site.spans_nodes and most is not None and shape.processors > most
