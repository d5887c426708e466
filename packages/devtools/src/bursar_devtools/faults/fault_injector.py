"""Injects faults into the network, the disk and all processes at random times."""

import asyncio
import random
from collections.abc import Callable, Sequence

from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.fault_plan import FaultPlan
from bursar_devtools.faults.fault_targeting import FaultTargeting
from bursar_devtools.faults.faulty_cluster import AWAY, FaultyCluster
from bursar_devtools.faults.faulty_connection import FaultyListener
from bursar_devtools.faults.faulty_network import FaultyNetwork
from bursar_devtools.faults.simulated_disk import SimulatedStorage
from bursar_devtools.faults.simulated_process import SimulatedProcess

_CUT_OFF = 20.0
"""Mean seconds of a partition."""

_EXPIRED = 10.0
"""Mean seconds until an expired certificate is replaced."""


class FaultInjector:
    """
    Injects the faults of a plan while switched on.

    Parameters
    ----------
    plan
        Kinds and rates of the faults.
    chance
        Random source of times and victims.
    nature
        Simulated process whose steps inject the faults.
    network, storage, trace
        Network and storage that get the faults, and the trace that records them.
    targeting
        Targeted faults, which are on and off together with these.
    parties
        Returns the names of all parties that can be partitioned now.
    door
        Listener to which workers connect; its certificate may expire.
    evict
        Evicts one worker.
    unauthenticated
        Opens several unauthenticated connections.
    cluster
        Cluster with the batch scheduler; None when the plan has none.
    """

    def __init__(
        self,
        plan: FaultPlan,
        chance: random.Random,
        *,
        nature: SimulatedProcess,
        network: FaultyNetwork,
        storage: SimulatedStorage,
        targeting: FaultTargeting,
        trace: EventTrace,
        parties: Callable[[], Sequence[str]],
        door: FaultyListener,
        evict: Callable[[], None],
        unauthenticated: Callable[[], None],
        cluster: FaultyCluster | None,
    ) -> None:
        self._cluster = cluster
        self.is_on = False
        self.chance = chance
        self._plan = plan
        self._nature = nature
        self._network = network
        self._storage = storage
        self._targeting = targeting
        self._trace = trace
        self._parties = parties
        self._door = door
        self._evict = evict
        self._unauthenticated = unauthenticated

    def begin(self) -> None:
        """Start to inject faults."""
        self.is_on = self._targeting.is_on = True
        self._network.conditions = self._plan.conditions
        self._storage.deadly = self._plan.deadly_syncs
        plan = self._plan
        for mean, strike in (
            (plan.partitions, self._cut_off),
            (plan.disk_trouble, self._spoil_disk),
            (plan.evictions, self._evict),
            (plan.strangers, self._unauthenticated),
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
        """Stop all faults and heal network, disk, certificate and cluster."""
        self._trace.note(self._nature.party, "is calm from now on")
        self.is_on = self._targeting.is_on = False
        self._network.calm()
        self._storage.heal()
        now = self._network.now
        self._door.certificate_expired_until = min(self._door.certificate_expired_until, now)
        if self._cluster is not None:
            self._cluster.calm()

    def doom(self, process: SimulatedProcess, mean: int) -> None:
        """
        Schedule the kill of a process after a random number of steps, ``mean`` on average; 0: none.
        """
        if self.is_on and mean:
            process.end_after(1 + int(self.chance.expovariate(1 / mean)))

    def end_of_server(self, party: str) -> None:
        """Cut the storage's power, or not, after the service's process has ended."""
        if not self.is_on:
            return
        # The end of a process alone loses no written bytes; only a power cut does.
        if self.chance.random() < self._plan.power_cuts:
            self._trace.fault("power cut", party, "loses what was not synced")
            self._storage.cut_power()
        else:
            self._trace.fault("server ended", party, "without a power cut")

    async def _strike(self, mean: float, strike: Callable[[], None]) -> None:
        while self.is_on:
            # Exponential pauses: a fault is as likely right after another one as at any other time.
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
        storage = self._storage
        self._trace.fault(f"disk {kind}", "disk", f"for {seconds:.1f} s")
        if kind == "full":
            storage.fill_up(self.chance.randint(0, 20_000))
            self._nature.call_later(seconds, storage.make_room)
        elif kind == "slow":
            storage.is_slow = True
            self._nature.call_later(seconds, setattr, storage, "is_slow", False)
        else:
            storage.fails_next_sync = True
