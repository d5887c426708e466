"""
SAGA's HEFT on a workflow of serial tasks; prints seconds and makespan as JSON.

Use: run_saga.py WORKFLOW.json PROCESSORS, where the file holds ``runtimes``, one a
task, and ``edges``, pairs of indices. Nothing passes along the edges.
"""

import json
import sys
import time

from saga import Network, TaskGraph
from saga.schedulers.heft import HeftScheduler


def main() -> None:
    with open(sys.argv[1]) as file:
        work = json.load(file)
    nodes = [f"p{i}" for i in range(int(sys.argv[2]))]
    network = Network.create(
        nodes=[(node, 1.0) for node in nodes],
        edges=[(a, b, 1.0) for a in nodes for b in nodes if a <= b],
    )
    graph = TaskGraph.create(
        tasks=[(f"t{i}", runtime) for i, runtime in enumerate(work["runtimes"])],
        dependencies=[(f"t{a}", f"t{b}", 0.0) for a, b in work["edges"]],
    )
    began = time.perf_counter()
    schedule = HeftScheduler().schedule(network, graph)
    print(json.dumps({"seconds": time.perf_counter() - began, "makespan": schedule.makespan}))


if __name__ == "__main__":
    main()
