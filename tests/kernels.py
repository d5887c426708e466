"""
Compiles the kernels, so that processes that share the tests find them on disk.

Numba compiles a function when it is called first. Of several processes that need the same one at
the same moment each would compile it for itself, for up to ten seconds a function. Groups need
nothing of each other, so several processes may compile some each::

    python -m tests.kernels lists minmin
"""

import asyncio
import sys
from collections.abc import Callable, Mapping

import numpy as np

from bursar.cluster.machine import Machine
from bursar.cluster.slots import free_windows
from bursar.compiling import prefer_machine_code
from bursar.model.campaign import Workflow
from bursar.model.network import NetworkLink, Topology
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.policy import PlacementPolicy, Scheduler
from bursar.planning.problem import build_problem
from bursar.planning.schedulers import MANY_SERIAL, schedule
from bursar.planning.trade_off_solver import trade_off
from bursar.simulation.flow_network import FlowNetwork
from bursar.simulation.virtual_loop import VirtualLoop


def small_workflow(tasks: int = 4, width: int = 1, bag: bool = False) -> Workflow:
    """Return tasks of one second, of which one follows another unless they are a bag."""
    return Workflow(
        tuple(
            Task(
                id=f"t{i}",
                runtime=1.0,
                processors=width,
                after=("t0",) if i == 1 and not bag else (),
            )
            for i in range(tasks)
        )
    )


def small_sites() -> list[SiteFacts]:
    """Return two sites that offer a slot each."""
    slots = [
        Slot(site=name, start=0.0, duration=1e6, processors=2, unit_price=1.0, divisible=False)
        for name in ("a", "b")
    ]
    return [
        SiteFacts(name=slot.site, kind="advertised", processors=2, slots=(slot,)) for slot in slots
    ]


def place(scheduler: Scheduler, tasks: int = 4, bag: bool = False) -> None:
    """Schedule a small workflow."""
    problem = build_problem(small_workflow(tasks, bag=bag), small_sites())
    schedule(problem, np.array([2, 2]), PlacementPolicy(scheduler=scheduler))


def plan_by_minmin() -> None:
    trade_off(small_workflow(width=2), small_sites(), method="minmin")


def simulate_clusters() -> None:
    """Run jobs by each policy of a batch scheduler, and ask what is free."""
    for policy in ("fcfs", "easy", "conservative"):
        machine = Machine(4, policy)  # type: ignore[arg-type]
        for number in range(6):
            machine.submit(1 + number % 4, 10.0, runtime=5.0 + number, at=float(number))
        machine.run()
    free_windows(2, 0.0, 9.0, np.array([1.0]), np.array([2.0]), np.array([1]))


def simulate_flows() -> None:
    """Send flows that share a wire."""
    loop = VirtualLoop()
    wire = NetworkLink(source="a", target="b", bandwidth=10.0)
    network = FlowNetwork(Topology(nodes=("a", "b"), wires=(wire,)), loop)
    for size in (10.0, 20.0):
        network.send("a", "b", size, lambda flow: None)
    loop.run_until_complete(asyncio.sleep(10.0))
    loop.close()


GROUPS: Mapping[str, Callable[[], None]] = {
    "lists": lambda: place("greedy"),
    "minmin": plan_by_minmin,
    "levels": lambda: place("minmin"),
    "serial": lambda: place("heft", MANY_SERIAL),
    "bags": lambda: place("heft", bag=True),
    "clusters": simulate_clusters,
    "flows": simulate_flows,
}


if __name__ == "__main__":
    prefer_machine_code()
    for name in sys.argv[1:] or GROUPS:
        GROUPS[name]()
