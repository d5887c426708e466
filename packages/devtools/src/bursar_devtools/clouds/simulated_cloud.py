"""A cloud on the virtual clock, which bills, and whose answers are lost by chance."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bursar.model.cloud import HOUR, BillingRules, MachinePrice
from bursar.model.errors import SiteError
from bursar.sites.cloud.provider import (
    CloudMachine,
    MachineOrder,
    MachineState,
    PurchaseRefused,
    SpotPrice,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudFaults:
    """
    Odds of what goes wrong, 0 to 1, and how clocks and lists are behind.

    Parameters
    ----------
    throttled, full
        Requests for a machine that are refused, to be made again later or for want of machines.
    lost_before, lost_after
        Calls whose answer is lost, before and after they were carried out.
    dead
        Machines on which nothing ever starts.
    broken
        Machines that end by themselves within their first hour.
    silent
        Machines that are listed as running for ever although all on them is gone.
    unsold
        Types of which requests are refused for good.
    list_lag
        Longest time until a new machine is listed, seconds.
    skew
        Time by which the provider's clock is ahead, seconds.
    keeps_tokens
        Whether a request with a token that was used before returns the machine of that time.
    """

    throttled: float = 0.0
    full: float = 0.0
    lost_before: float = 0.0
    lost_after: float = 0.0
    dead: float = 0.0
    broken: float = 0.0
    silent: float = 0.0
    list_lag: float = 0.0
    unsold: frozenset[str] = frozenset()
    skew: float = 0.0
    keeps_tokens: bool = True


@dataclass(slots=True, eq=False)
class SimulatedMachine:
    """
    A machine of the simulated cloud; times are the loop's.

    Parameters
    ----------
    listed
        From when on lists hold it.
    kill
        Ends what runs on the machine.
    """

    id: str
    order: MachineOrder
    began: float
    listed: float
    ended: float | None = None
    kill: Callable[[], None] | None = None

    @property
    def state(self) -> MachineState:
        """Whether the machine is there."""
        return "running" if self.ended is None else "ended"


OnBoot = Callable[[SimulatedMachine], Callable[[], None]]
"""Told of a machine whose script begins; returns what ends all that runs on the machine."""


@dataclass(slots=True, eq=False)
class SimulatedCloud:
    """
    Sells machines on the virtual clock; see :class:`bursar.sites.cloud.provider.CloudProvider`.

    Parameters
    ----------
    on_boot
        Starts what the user data of a machine would start.
    seed
        Seed of all chances.
    hourly
        Price of a machine-hour on demand, by type.
    spot
        History of spot prices by type; a spot machine ends when its price rises above its ceiling.
    start
        Shortest and longest time until a machine runs its script, seconds.
    takes
        Longest time of one call, seconds.
    """

    on_boot: OnBoot
    seed: int = 0
    faults: CloudFaults = field(default_factory=CloudFaults)
    billing: BillingRules = field(default_factory=BillingRules)
    hourly: Mapping[str, float] = field(default_factory=dict)
    spot: Mapping[str, Sequence[SpotPrice]] = field(default_factory=dict)
    start: tuple[float, float] = (30.0, 90.0)
    takes: float = 2.0
    bought: list[SimulatedMachine] = field(default_factory=list)
    by_token: dict[str, SimulatedMachine] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)

    # As a provider.

    async def machines(self, owner: str, run: str = "") -> Sequence[CloudMachine]:
        """Return the machines of an owner, without those that lists do not hold yet."""
        await self._call("machines")
        now = self._now()
        return [
            CloudMachine(
                id=one.id,
                label=one.order.label,
                type=one.order.type,
                state=one.state,
                began=self._clock(one.began),
                ended=None if one.ended is None else self._clock(one.ended),
                is_spot=one.order.ceiling is not None,
            )
            for one in self.bought
            if one.order.label.owner == owner
            and run in ("", one.order.label.run)
            and one.listed <= now
        ]

    async def create(self, order: MachineOrder) -> CloudMachine:
        """Buy a machine, refuse to, or lose the answer."""
        self.calls.append(f"create {order.label.name}")
        await asyncio.sleep(self.chance.uniform(0, self.takes))
        if order.type in self.faults.unsold:
            raise PurchaseRefused(f"InvalidAMIID.NotFound: no image {order.image}", final=True)
        if self._happens(self.faults.throttled):
            raise PurchaseRefused("request limit exceeded", transient=True)
        if self._happens(self.faults.full):
            raise PurchaseRefused("insufficient capacity")
        self._lose(self.faults.lost_before)
        machine = self._bought(order)
        self._lose(self.faults.lost_after)
        began = self._clock(machine.began)
        return CloudMachine(
            id=machine.id, label=order.label, type=order.type, state="starting", began=began
        )

    async def destroy(self, machine: str) -> bool:
        """End a machine, or lose the call."""
        await self._call("destroy", self.faults.lost_before)
        for one in self.bought:
            if one.id == machine:
                self.end(one)
        self._lose(self.faults.lost_after)
        return False

    async def prices(self, types: Sequence[str]) -> Mapping[str, MachinePrice]:
        """Return the prices on demand."""
        await self._call("prices")
        known = [type for type in types if type in self.hourly]
        return {
            type: MachinePrice(hourly=self.hourly[type], source="provider", date="1970-01-01")
            for type in known
        }

    async def spot_history(self, type: str, since: float, zone: str = "") -> Sequence[SpotPrice]:
        """Return the history of spot prices, by the provider's clock."""
        await self._call("spot_history")
        prices = self.spot.get(type, ())
        return [SpotPrice(self._clock(price.since), price.hourly) for price in prices]

    # What becomes of machines.

    def end(self, machine: SimulatedMachine) -> None:
        """End a machine, which costs nothing from now on."""
        if machine.ended is None:
            machine.ended = self._now()
            self._kill(machine)

    @property
    def left(self) -> list[SimulatedMachine]:
        """Machines that have not ended."""
        return [one for one in self.bought if one.ended is None]

    def cost(self, machine: SimulatedMachine) -> float:
        """Return what a machine costs by the provider's rules, currency units."""
        ended = self._now() if machine.ended is None else machine.ended
        seconds = self.billing.billed(ended - machine.began)
        return seconds * self._hourly(machine, ended) / HOUR

    def _hourly(self, machine: SimulatedMachine, ended: float) -> float:
        history = self.spot.get(machine.order.type, ())
        if machine.order.ceiling is None:
            return self.hourly[machine.order.type]
        if not history:
            return machine.order.ceiling
        # By hand and not by the function under test: the price of each of a thousand moments.
        step = max(ended - machine.began, 1.0) / 1000
        moments = [machine.began + (i + 0.5) * step for i in range(1000)]
        prices = [[p.hourly for p in history if p.since <= moment][-1] for moment in moments]
        return sum(prices) / len(prices)

    def _bought(self, order: MachineOrder) -> SimulatedMachine:
        if self.faults.keeps_tokens and order.label.name in self.by_token:
            return self.by_token[order.label.name]
        now, loop = self._now(), asyncio.get_running_loop()
        listed = now + self.chance.uniform(0, self.faults.list_lag)
        machine = SimulatedMachine(f"i-{len(self.bought) + 1}", order, now, listed)
        self.bought.append(machine)
        self.by_token[order.label.name] = machine
        if not self._happens(self.faults.dead):
            loop.call_later(self.chance.uniform(*self.start), self._boot, machine)
        if self._happens(self.faults.broken):
            loop.call_later(self.chance.uniform(1.0, HOUR), self.end, machine)
        if self._happens(self.faults.silent):
            loop.call_later(self.chance.uniform(1.0, HOUR), self._kill, machine)
        if order.ceiling is not None:
            rises = [p.since for p in self.spot.get(order.type, ()) if p.hourly > order.ceiling]
            if coming := [since for since in rises if since > now]:
                loop.call_at(coming[0], self.end, machine)
        return machine

    def _boot(self, machine: SimulatedMachine) -> None:
        if machine.ended is None:
            machine.kill = self.on_boot(machine)

    def _kill(self, machine: SimulatedMachine) -> None:
        if machine.kill is not None:
            machine.kill()
            machine.kill = None

    # Calls.

    async def _call(self, what: str, lost: float | None = None) -> None:
        self.calls.append(what)
        await asyncio.sleep(self.chance.uniform(0, self.takes))
        self._lose(self.faults.lost_before if lost is None else lost)

    def _lose(self, odds: float) -> None:
        if self._happens(odds):
            raise SiteError("the answer was lost", transient=True)

    def _happens(self, odds: float) -> bool:
        return self.chance.random() < odds

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _clock(self, moment: float) -> float:
        epoch: float = getattr(asyncio.get_running_loop(), "epoch", 0.0)
        return epoch + moment + self.faults.skew
