"""Long calls run side by side though a short one before them taught that calls are short."""

import time
from pathlib import Path

from bursar import Executor

PATIENCE = 60.0
"""Seconds after which a task has waited in vain for the other one; a meeting takes much less."""


def meet(mine: Path, other: Path) -> bool:
    """Say that this task runs, and return whether the other one ran at the same time."""
    mine.touch()
    deadline = time.monotonic() + PATIENCE
    while not other.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_two_long_calls_meet_though_both_were_given_to_one_worker(tmp_path: Path) -> None:
    """Each waits for the other: a call that waited behind the other one would never be met."""
    one, two = tmp_path / "one", tmp_path / "two"
    with Executor(2) as executor:
        executor.submit(abs, -1).result()
        long = [executor.submit(meet, one, two), executor.submit(meet, two, one)]
        short = [executor.submit(abs, -number) for number in range(200)]
        assert [call.result() for call in long] == [True, True]
        assert [call.result() for call in short] == list(range(200))
