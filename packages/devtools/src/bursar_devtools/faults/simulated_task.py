"""
Defines simulated tasks, whose commands state their duration and exit code.

Sealed tasks and their results are unreadable to the service. The cipher here is a fast stand-in and
keeps no secret; the real one is tested elsewhere and would take most of a simulation's time.
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
    Describes a task and the expected outcome.

    Parameters
    ----------
    name
        Unique name in the simulation; also the task's output, so that results cannot be mistaken.
    seconds
        Duration on a worker of full speed.
    exit_code
        Exit code of every attempt that is not stopped; see ``flaky``.
    processors
        Number of processors that the task holds.
    is_sealed
        Whether command and output travel in an envelope.
    flaky
        Whether only some attempts have the exit code, and the others 0; see :meth:`exit_code_of`.
    after
        Names of the tasks that must succeed before this one starts.
    retries, retry_delay
        Number of tries after the first failure, and seconds before each of them.
    """

    name: str
    seconds: float
    exit_code: int = 0
    processors: int = 1
    is_sealed: bool = False
    flaky: bool = False
    after: tuple[str, ...] = ()
    retries: int = 0
    retry_delay: float = 0.0

    def exit_code_of(self, attempt: int) -> int:
        """Return the exit code of an attempt that is not stopped, by its serial number."""
        if self.flaky and hashlib.blake2b(f"{self.name} {attempt}".encode()).digest()[0] % 2:
            return 0
        return self.exit_code

    @property
    def command(self) -> tuple[str, ...]:
        """Command that is submitted."""
        words = repr(self.seconds), str(self.exit_code), str(self.processors)
        return (_PROGRAM, self.name, *words, str(int(self.flaky)))

    @property
    def envelope(self) -> bytes:
        """Sealed form of the command."""
        return _obscured(f"task {self.name}", json.dumps(self.command).encode())

    @property
    def sealed_result(self) -> bytes:
        """Sealed output, in the form that a worker returns."""
        return _obscured(f"result {self.name}", self.name.encode())


def open_sealed_task(envelope: bytes) -> SimulatedTask:
    """
    Return the task in an envelope.

    Raises
    ------
    ValueError
        When it is none of a simulation's: somebody has changed it on the way.
    """
    text = _xor(envelope[_NONCE:], envelope[:_NONCE])
    return replace(parse_task_command(json.loads(text)), is_sealed=True)


def parse_task_command(command: Sequence[str]) -> SimulatedTask:
    """
    Return the task that a command describes, without its dependencies and retries.

    Raises
    ------
    ValueError
        When it is none of a simulation's: somebody has changed it on the way.
    """
    if len(command) != 6 or command[0] != _PROGRAM:
        raise ValueError(f"no simulated task: {list(command)!r}")
    return SimulatedTask(
        name=command[1],
        seconds=float(command[2]),
        exit_code=int(command[3]),
        processors=int(command[4]),
        flaky=command[5] == "1",
    )


def _obscured(about: str, text: bytes) -> bytes:
    nonce = hashlib.blake2b(about.encode(), digest_size=_NONCE).digest()
    return nonce + _xor(text, nonce)


def _xor(text: bytes, nonce: bytes) -> bytes:
    stream = hashlib.shake_128(nonce).digest(len(text))
    return bytes(one ^ other for one, other in zip(text, stream, strict=True))
