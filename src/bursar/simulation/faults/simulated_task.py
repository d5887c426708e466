"""
Simulated tasks: commands that say themselves how long they take and how they end.

Some are sealed: then the service sees bytes that mean nothing to it, each way. The cipher is none
that would keep a secret; that is tested elsewhere, and would take most of the time here.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

_PROGRAM = "simulated"
_NONCE = 16  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTask:
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
    is_sealed
        Whether what it is and what it prints are told in an envelope.
    """

    name: str
    seconds: float
    exit_code: int = 0
    processors: int = 1
    is_sealed: bool = False

    @property
    def command(self) -> tuple[str, ...]:
        """As it is submitted."""
        words = repr(self.seconds), str(self.exit_code), str(self.processors)
        return (_PROGRAM, self.name, *words)

    @property
    def envelope(self) -> bytes:
        """The same, sealed."""
        return _obscured(f"task {self.name}", json.dumps(self.command).encode())

    @property
    def sealed_result(self) -> bytes:
        """What a worker seals of it when it has run."""
        return _obscured(f"result {self.name}", self.name.encode())


def open_sealed_task(envelope: bytes) -> SimulatedTask:
    """
    The task in an envelope.

    Raises
    ------
    ValueError
        When it is none of a simulation's: somebody has changed it on the way.
    """
    text = _xor(envelope[_NONCE:], envelope[:_NONCE])
    return replace(parse_task_command(json.loads(text)), is_sealed=True)


def parse_task_command(command: Sequence[str]) -> SimulatedTask:
    """
    The task that a command means.

    Raises
    ------
    ValueError
        When it is none of a simulation's: somebody has changed it on the way.
    """
    if len(command) != 5 or command[0] != _PROGRAM:
        raise ValueError(f"no simulated task: {list(command)!r}")
    return SimulatedTask(
        name=command[1],
        seconds=float(command[2]),
        exit_code=int(command[3]),
        processors=int(command[4]),
    )


def _obscured(about: str, text: bytes) -> bytes:
    nonce = hashlib.blake2b(about.encode(), digest_size=_NONCE).digest()
    return nonce + _xor(text, nonce)


def _xor(text: bytes, nonce: bytes) -> bytes:
    stream = hashlib.shake_128(nonce).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, stream, strict=True))
