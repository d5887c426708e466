"""
Injects faults just after events that matter, such as an acknowledgement.

Random times rarely hit the few steps between a promise and its consequences. Code of the simulation
therefore reports such events, and faults strike after some of them [1]_.

References
----------
.. [1] Gunawi and others (2011). FATE and DESTINI: a framework for cloud recovery testing.
   NSDI '11: 238-252.
"""

import random
from collections.abc import Callable, Sequence

from bursar.remote.messages import PREFIX
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.fault_plan import FaultPlan, FaultTarget
from bursar_devtools.faults.faulty_network import FaultyNetwork
from bursar_devtools.faults.simulated_process import SimulatedProcess

_FURTHEST = 100.0
"""Most steps between an event and the kill of the service; the number drawn is mostly smaller."""

_AWAY = 15.0
"""Mean seconds for which workers are partitioned while the service is killed."""


class FaultTargeting:
    """
    Kills the service or partitions workers after events of interest.

    Parameters
    ----------
    plan
        Probabilities by kind of event.
    chance
        Random source of these decisions.
    nature
        Simulated process whose steps inject the faults.
    network, trace
        Network that is partitioned, and the trace that records the faults.
    server
        Returns the current process of the service; None while there is none.
    workers
        Returns the names of the live workers.
    """

    def __init__(
        self,
        plan: FaultPlan,
        chance: random.Random,
        *,
        nature: SimulatedProcess,
        network: FaultyNetwork,
        trace: EventTrace,
        server: Callable[[], SimulatedProcess | None],
        workers: Callable[[], Sequence[str]],
    ) -> None:
        self.is_on = False
        self._plan = plan
        self._chance = chance
        self._nature = nature
        self._network = network
        self._trace = trace
        self._server = server
        self._workers = workers

    def at(self, moment: FaultTarget) -> None:
        """
        Draw whether a fault follows on an event in this step of the service, and inject it.

        The fault is a partition of all workers or a kill of the service within 100 steps.

        Parameters
        ----------
        moment
            Kind of the event, by which the plan says how likely a fault is.
        """
        process = self._server()
        if process is None or not process.is_alive or not self.hits(moment):
            return
        if self._plan.cuts and self._chance.random() < 0.5:
            self._cut_off(moment, process)
        else:
            # Even over the orders of magnitude: half of the kills come within ten steps.
            steps = 1 + int(_FURTHEST ** self._chance.random())
            self._trace.fault("aimed kill", process.party, f"{steps} steps after a {moment}")
            process.end_after(steps)

    def hits(self, moment: FaultTarget) -> bool:
        """Draw whether a fault strikes at an event."""
        share = self._plan.targeting.get(moment, 0.0) if self.is_on else 0.0
        return share > 0 and self._chance.random() < share

    def _cut_off(self, moment: FaultTarget, process: SimulatedProcess) -> None:
        """Partition all workers, and kill the service before they can be notified of the event."""
        seconds = self._chance.expovariate(1 / _AWAY)
        self._trace.fault("aimed partition", process.party, f"workers hear of no {moment}")
        for worker in self._workers():
            self._network.cut_off(worker, seconds)
        # Within the partition: the service ends with a change that no worker has heard of, and must
        # tell them after its restart.
        self._nature.call_later(self._chance.uniform(0, seconds), self._kill, process)

    def _kill(self, process: SimulatedProcess) -> None:
        if self.is_on:
            process.kill()


def fault_target_of(method: str, path: str) -> FaultTarget | None:
    """Return the kind of event that a request is; None for one that changes nothing."""
    if method == "GET":
        return None
    match path.removeprefix(PREFIX).split("/")[1:]:
        case ["instances", _] if method == "DELETE":
            return "destruction"
        case ["instances", _, "cancel"]:
            return "cancellation"
        case ["instances", _, "tasks"]:
            return "submission"
        case ["trade", "messages"]:
            return "deal"
        case ["trade", "agreements", _]:
            return "withdrawal"
        case _:
            return "change"
