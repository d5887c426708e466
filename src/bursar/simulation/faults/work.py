"""Simulated tasks: commands that say themselves how long they take and how they end."""

from collections.abc import Sequence
from dataclasses import dataclass

_PROGRAM = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """
    One task.

    Parameters
    ----------
    name
        Unique in the simulation; also what it prints, so that no result can be another's.
    seconds
        How long it takes on a fast worker.
    exit_code
        How it ends.
    processors
        That it holds.
    """

    name: str
    seconds: float
    exit_code: int = 0
    processors: int = 1

    @property
    def command(self) -> tuple[str, ...]:
        """As it is submitted."""
        words = repr(self.seconds), str(self.exit_code), str(self.processors)
        return (_PROGRAM, self.name, *words)


def parse_piece(command: Sequence[str]) -> Piece:
    """
    The task that a command means.

    Raises
    ------
    ValueError
        When it is none of a simulation's: somebody has changed it on the way.
    """
    if len(command) != 5 or command[0] != _PROGRAM:
        raise ValueError(f"no simulated task: {list(command)!r}")
    return Piece(
        name=command[1],
        seconds=float(command[2]),
        exit_code=int(command[3]),
        processors=int(command[4]),
    )
