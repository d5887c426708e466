"""
The calls that every contender makes with many workers, and how time and memory are told.

A call sleeps. A contender starts its workers, warms them up with four calls for each, and has its
time taken from the first submission to the last result. Processor time and memory are those of
all processes with the contender's mark in their environment. This file imports nothing but the
standard library, as each contender runs in an environment of its own.
"""

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

MARK = "BURSAR_BENCHMARK"
"""Environment variable that all processes of a contender have."""

_TICKS = os.sysconf("SC_CLK_TCK")

Carry = Callable[[int], int]
"""Makes so many calls, waits for them, and returns how many results came."""


def nap(seconds: float) -> float:
    """Do nothing for a while."""
    time.sleep(seconds)
    return seconds


def arguments() -> argparse.Namespace:
    """Return the command line of a contender."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="length of a call")
    return parser.parse_args()


def marked() -> list[int]:
    """Return the processes that have the same mark as this one."""
    mark = f"{MARK}={os.environ[MARK]}".encode()
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


def processor_seconds(pid: int) -> float:
    """Return user and system time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def all_processor_seconds() -> float:
    """Return user and system time of all marked processes."""
    total = 0.0
    for pid in marked():
        with contextlib.suppress(OSError):
            total += processor_seconds(pid)
    return total


def proportional_memory(pid: int) -> int:
    """Return the bytes of a process, where pages that several share count in parts."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def measure(carry: Carry, given: argparse.Namespace) -> None:
    """
    Take time and memory of one contender and print them as one line of JSON.

    Raises
    ------
    RuntimeError
        When a result is missing.
    """
    carry(4 * given.workers)
    busy, began = all_processor_seconds(), time.perf_counter()
    got = carry(given.calls)
    seconds = time.perf_counter() - began
    busy = all_processor_seconds() - busy
    if got != given.calls:
        raise RuntimeError(f"{got} results of {given.calls}")
    others = [pid for pid in marked() if pid != os.getpid()]
    memory = 0
    for pid in others:
        with contextlib.suppress(OSError):
            memory += proportional_memory(pid)
    found = {
        "seconds": seconds,
        "busy": busy / given.calls,
        "memory": memory / given.workers,
        "own": proportional_memory(os.getpid()),
        "processes": len(others),
    }
    print(json.dumps(found), flush=True)
