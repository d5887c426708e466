"""What a round of live faults is, what its result says, and how many are run in a row."""

import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    One line of a soak's file.

    Parameters
    ----------
    target
        What was struck: ``"local"``, ``"service"``, ``"slurm"`` or ``"gridengine"``.
    seed, number
        What the round was drawn from; equal ones give equal rounds but for the moments at which
        the real processes happen to be.
    kills
        Processes killed by ``SIGKILL``, by what they were.
    tasks
        How many tasks there were; each must have exactly one result.
    repeated
        How many attempts were cut off by a kill, so that their tasks ran again.
    billed, recorded
        Processor-seconds by the bill, and by the record it is held against; for a round without
        a batch scheduler the record is a lower bound, what the results themselves say.
    bound
        Leases that were billed by an upper bound, since the scheduler had forgotten their jobs.
    overlapped
        Attempts that came to their end although another attempt of their task had begun. On a
        cluster a pilot's orphans run on until the scheduler ends their job: only the outputs of
        the later attempt count. Elsewhere this is a broken promise.
    seconds
        How long the round took.
    broken
        What did not hold, one sentence each; empty when everything held.
    """

    target: str
    seed: int
    number: int
    kills: dict[str, int]
    tasks: int
    repeated: int
    billed: float
    recorded: float
    seconds: float
    bound: int = 0
    overlapped: int = 0
    broken: list[str] = []


@dataclass(slots=True)
class Findings:
    """
    What a round has found so far; its fields are those of :class:`RoundResult`.

    A target fills it while the round goes on, so that a round that is stopped by an exception
    still says what had happened to it.
    """

    kills: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    repeated: int = 0
    billed: float = 0.0
    recorded: float = 0.0
    bound: int = 0
    overlapped: int = 0
    broken: list[str] = field(default_factory=list)

    def need(self, holds: object, what: str) -> None:
        """Note a broken promise unless it holds."""
        if not holds:
            self.broken.append(what)


class Target(Protocol):
    """Something that rounds of faults happen to."""

    @property
    def name(self) -> str:
        """Name in the results and on the command line."""

    def up(self, folder: Path) -> AbstractContextManager[None]:
        """Keep what all rounds share, such as a cluster, running in a folder of its own."""

    def strike(self, folder: Path, rng: random.Random, found: Findings) -> None:
        """Carry out one round in a folder of its own; note in ``found`` what happened."""


def run_rounds(target: Target, folder: Path, *, seed: int, numbers: list[int],
               keep: bool = True) -> Iterator[RoundResult]:  # fmt: skip
    """
    Carry out rounds one after the other.

    Parameters
    ----------
    target
        What they happen to.
    folder
        Each round has a folder below it, which is removed when everything held.
    seed, numbers
        Which rounds; each draws from the two alone, so that one can be repeated by itself.
    keep
        Whether the folder of a round in which something did not hold is kept.
    """
    with target.up(folder / "shared"):
        for number in numbers:
            found = Findings()
            place = folder / f"{target.name}-{seed}-{number}"
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            began = time.monotonic()
            try:
                target.strike(place, random.Random(f"{target.name} {seed} {number}"), found)
            except Exception as error:  # the next round says whether it was this one only
                found.broken.append(f"{type(error).__name__}: {error}")
            if not found.broken or not keep:
                shutil.rmtree(place, ignore_errors=True)
            yield RoundResult(
                target=target.name,
                seed=seed,
                number=number,
                kills=dict(found.kills),
                tasks=found.tasks,
                repeated=found.repeated,
                billed=round(found.billed, 3),
                recorded=round(found.recorded, 3),
                bound=found.bound,
                overlapped=found.overlapped,
                seconds=round(time.monotonic() - began, 2),
                broken=found.broken,
            )
