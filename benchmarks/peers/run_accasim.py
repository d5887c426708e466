"""
AccaSim: its FCFS and EASY on a log, one after the other.

It was written for Pythons that had ``collections.Mapping``, which is put back
before it is imported. Its machine is one group of nodes with one core each.
"""

import collections
import collections.abc
import json
import sys
import time
from pathlib import Path

collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]

from accasim.base.allocator_class import FirstFit  # noqa: E402
from accasim.base.scheduler_class import EASYBackfilling, FirstInFirstOut  # noqa: E402
from accasim.base.simulator_class import Simulator  # noqa: E402


def with_memory(log: Path) -> str:
    """The log with a kilobyte asked for each processor: its EASY divides by that."""
    lines = []
    for line in log.read_text().splitlines():
        fields = line.split()
        if not line.startswith(";"):
            fields[6] = fields[9] = "1"
        lines.append(" ".join(fields))
    changed = log.with_name("with-memory.swf")
    changed.write_text("\n".join(lines) + "\n")
    return str(changed)


def main() -> None:
    """Prints seconds by policy as JSON, on the last line."""
    log, processors = with_memory(Path(sys.argv[1])), int(sys.argv[2])
    machine = Path("machine.json")
    machine.write_text(
        json.dumps(
            {
                "system_name": "machine",
                "start_time": 0,
                "equivalence": {"processor": {"core": 1}},
                "groups": {"node": {"core": 1, "mem": 10**9}},
                "resources": {"node": processors},
            }
        )
    )
    seconds = {}
    for name, policy in (("easy", EASYBackfilling), ("fcfs", FirstInFirstOut)):
        began = time.perf_counter()
        simulator = Simulator(
            log,
            str(machine),
            policy(FirstFit()),
            show_statistics=False,
            statistics_output=False,
            scheduling_output=False,  # it would be written beside this file
        )
        simulator.start_simulation()
        seconds[name] = time.perf_counter() - began
        if simulator.rejected_jobs or not simulator.dispatched_jobs:
            raise RuntimeError(f"{simulator.rejected_jobs} jobs were rejected")
    print()
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
