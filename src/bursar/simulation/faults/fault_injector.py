"""When what goes wrong: strikes at the network, the disk and everybody's life."""

import asyncio
import random
from collections.abc import Callable, Sequence

from bursar.simulation.faults.event_trace import EventTrace
from bursar.simulation.faults.fault_plan import FaultPlan
from bursar.simulation.faults.fault_targeting import FaultTargeting
from bursar.simulation.faults.faulty_cluster import AWAY, FaultyCluster
from bursar.simulation.faults.faulty_connection import FaultyListener
from bursar.simulation.faults.faulty_network import FaultyNetwork
from bursar.simulation.faults.simulated_disk import SimulatedStorage
from bursar.simulation.faults.simulated_process import SimulatedProcess

_CUT_OFF = 20.0
"""Mean seconds of a partition."""

_EXPIRED = 10.0
"""Mean seconds until a certificate that has expired is replaced."""


class FaultInjector:
    """
    Carries a plan out, while it is on.

    Parameters
    ----------
    plan
        What is to go wrong.
    chance
        Says when, and whom it hits.
    nature
        The life that strikes.
    network, platter, trace
        What is struck, and who is told.
    aims
        Strike while it is on.
    parties
        Names of all that can be cut off now.
    door
        Where workers connect.
    evict
        Tells some worker to end.
    crowd
        Has some strangers connect.
    cluster
        The batch scheduler; None: there is none.
    """

    def __init__(
        self,
        plan: FaultPlan,
        chance: random.Random,
        *,
        nature: SimulatedProcess,
        network: FaultyNetwork,
        platter: SimulatedStorage,
        aims: FaultTargeting,
        trace: EventTrace,
        parties: Callable[[], Sequence[str]],
        door: FaultyListener,
        evict: Callable[[], None],
        crowd: Callable[[], None],
        cluster: FaultyCluster | None,
    ) -> None:
        self._cluster = cluster
        self.is_on = False
        self.chance = chance
        self._plan = plan
        self._nature = nature
        self._network = network
        self._platter = platter
        self._aims = aims
        self._trace = trace
        self._parties = parties
        self._door = door
        self._evict = evict
        self._crowd = crowd

    def begin(self) -> None:
        """From now on."""
        self.is_on = self._aims.is_on = True
        self._network.weather = self._plan.weather
        self._platter.deadly = self._plan.deadly_syncs
        plan = self._plan
        for mean, strike in (
            (plan.partitions, self._cut_off),
            (plan.disk_trouble, self._spoil_disk),
            (plan.evictions, self._evict),
            (plan.strangers, self._crowd),
            (plan.certificate, self._expire_certificate),
        ):
            if mean:
                self._nature.spawn(self._strike(mean, strike))
        if self._cluster is not None:
            self._begin_at_cluster(self._cluster)

    def _begin_at_cluster(self, cluster: FaultyCluster) -> None:
        plan, chance = self._plan, self.chance
        cluster.forgets = plan.forgets
        cluster.asked_in_vain = plan.asked_in_vain
        for mean, strike in (
            (plan.controller, lambda: cluster.go_away(chance.expovariate(1 / AWAY))),
            (plan.others, lambda: cluster.occupy(1.0 + chance.expovariate(1 / plan.others_last))),
            (plan.nodes, cluster.kill_job),
        ):
            if mean:
                self._nature.spawn(self._strike(mean, strike))

    def end(self) -> None:
        """All is well from now on."""
        self._trace.note(self._nature.party, "is calm from now on")
        self.is_on = self._aims.is_on = False
        self._network.calm()
        self._platter.heal()
        now = self._network.now
        self._door.certificate_expired_until = min(self._door.certificate_expired_until, now)
        if self._cluster is not None:
            self._cluster.calm()

    def doom(self, life: SimulatedProcess, mean: int) -> None:
        """A life will end after some steps, about so many; 0: by nothing of this."""
        if self.is_on and mean:
            life.end_after(1 + int(self.chance.expovariate(1 / mean)))

    def end_of_server(self, party: str) -> None:
        """The service has ended, and its machine with it or not."""
        if not self.is_on:
            return
        if self.chance.random() < self._plan.power_cuts:
            self._trace.fault("power cut", party, "loses what was not synced")
            self._platter.cut_power()
        else:
            self._trace.fault("server ended", party, "without a power cut")

    async def _strike(self, mean: float, strike: Callable[[], None]) -> None:
        while self.is_on:
            await asyncio.sleep(self.chance.expovariate(1 / mean))
            if self.is_on:
                strike()

    def _cut_off(self) -> None:
        party = self.chance.choice(self._parties())
        self._network.cut_off(party, self.chance.expovariate(1 / _CUT_OFF))

    def _expire_certificate(self) -> None:
        seconds = self.chance.expovariate(1 / _EXPIRED)
        self._door.certificate_expired_until = self._network.now + seconds

    def _spoil_disk(self) -> None:
        kind = self.chance.choice(("full", "slow", "broken"))
        seconds = self.chance.uniform(1.0, 30.0)
        platter = self._platter
        self._trace.fault(f"disk {kind}", "disk", f"for {seconds:.1f} s")
        if kind == "full":
            platter.fill_up(self.chance.randint(0, 20_000))
            self._nature.call_later(seconds, platter.make_room)
        elif kind == "slow":
            platter.is_slow = True
            self._nature.call_later(seconds, setattr, platter, "is_slow", False)
        else:
            platter.fails_next_sync = True
