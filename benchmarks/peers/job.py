"""
The job every contender does, and how its time is told.

The job is ``/bin/echo NUMBER`` for every number below ``--commands``, with
what it prints in the hands of whoever asked. A contender starts its two
workers, warms them up, and then has its time taken from the first submission
to the last result. This file imports nothing but the standard library, as
each contender runs in an environment of its own.
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence

WORKERS = 2
WARM_UP = 200
"""Commands before the clock starts."""

Carry = Callable[[list[int]], list[str]]
"""Runs one ``/bin/echo`` for each number; what they printed, in any order."""


def echo(numbers: Sequence[int]) -> list[str]:
    """
    One ``/bin/echo`` for each number, one after the other.

    This is what Dask's and Parsl's tasks call. Both streams share one pipe,
    which spares them the slower way of :meth:`subprocess.Popen.communicate`.
    """
    return [
        subprocess.run(
            ["/bin/echo", str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            check=True,
            text=True,
        ).stdout
        for number in numbers
    ]


def chunks(numbers: list[int], size: int) -> list[list[int]]:
    """The numbers cut into pieces of ``size``."""
    return [numbers[i : i + size] for i in range(0, len(numbers), size)]


def arguments() -> argparse.Namespace:
    """The command line of a contender: ``--commands N`` and ``--chunk N``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--chunk", type=int, default=1, help="commands in one task")
    return parser.parse_args()


def measure(carry: Carry, commands: int) -> None:
    """
    Takes the time of one contender and prints it as one line of JSON.

    Raises
    ------
    RuntimeError
        When a result is missing or wrong.
    """
    carry(list(range(WARM_UP)))
    numbers = list(range(commands))
    start = time.perf_counter()
    printed = carry(numbers)
    seconds = time.perf_counter() - start
    if sorted(map(int, printed)) != numbers:
        raise RuntimeError(f"{len(printed)} results of {commands}, or wrong ones")
    print(json.dumps({"commands": commands, "seconds": seconds}), flush=True)
