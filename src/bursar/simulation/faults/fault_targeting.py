"""
Faults that strike just where it matters: when something was acknowledged, or winds up.

Times drawn evenly rarely hit the few steps between a promise and what follows from it. So moments
of interest are told here by what happens there, and some are struck [1]_.

References
----------
.. [1] Gunawi and others (2011). FATE and DESTINI: a framework for cloud recovery testing.
   NSDI '11: 238-252.
"""

import random
from collections.abc import Callable, Sequence

from bursar.remote.messages import PREFIX
from bursar.simulation.faults.event_trace import EventTrace
from bursar.simulation.faults.fault_plan import FaultPlan, FaultTarget
from bursar.simulation.faults.faulty_network import FaultyNetwork
from bursar.simulation.faults.simulated_process import SimulatedProcess

_FURTHEST = 100.0
"""Steps after a moment of interest at which the service is killed, at the most; mostly fewer."""

_AWAY = 15.0
"""Mean seconds for which workers are cut off while the service is killed."""


class FaultTargeting:
    """
    Strikes at the service, and at workers, at moments of interest.

    Parameters
    ----------
    plan
        How often at which.
    chance
        Says when.
    nature
        The life that strikes.
    network, trace
        What is struck, and who is told.
    server
        The life of the service now, if there is one.
    workers
        Names of those that are there.
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
        """Something of interest happens at the service in this step."""
        life = self._server()
        if life is None or not life.is_alive or not self.hits(moment):
            return
        if self._plan.cuts and self._chance.random() < 0.5:
            self._cut_off(moment, life)
        else:
            steps = 1 + int(_FURTHEST ** self._chance.random())
            self._trace.fault("aimed kill", life.party, f"{steps} steps after a {moment}")
            life.end_after(steps)

    def hits(self, moment: FaultTarget) -> bool:
        """Whether this one is struck."""
        share = self._plan.aims.get(moment, 0.0) if self.is_on else 0.0
        return share > 0 and self._chance.random() < share

    def _cut_off(self, moment: FaultTarget, life: SimulatedProcess) -> None:
        """Workers hear nothing of it, and who knows of it is killed meanwhile."""
        seconds = self._chance.expovariate(1 / _AWAY)
        self._trace.fault("aimed partition", life.party, f"workers hear of no {moment}")
        for worker in self._workers():
            self._network.cut_off(worker, seconds)
        self._nature.call_later(self._chance.uniform(0, seconds), self._kill, life)

    def _kill(self, life: SimulatedProcess) -> None:
        if self.is_on:
            life.kill()


def fault_target_of(method: str, path: str) -> FaultTarget | None:
    """What a request is about; None: it changes nothing."""
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
