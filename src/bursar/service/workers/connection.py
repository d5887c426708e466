"""
A worker's connection: what the service keeps of it, bounds on its messages, the key for it.

Whoever has the token of a lease can send any message. No message may cost the service its memory
or its disk.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from bursar.dispatch.wire import BATCH_SIZE, LONGEST_REASON, Hello, ProtocolError
from bursar.engine.core import SPILL
from bursar.engine.worker_connection import ConnectionHandler, FrameLimits, WorkerConnection
from bursar.model.task import Outcome
from bursar.worker.unacknowledged import MOST_OUTCOMES

# Bounds on worker messages: a worker with a valid token cannot exhaust memory or disk.

LARGEST_OUTCOME = 64 * 1024 * 1024
"""Bytes of one outcome: the value of a call and its streams, or the envelope of a sealed task."""

LARGEST_VALUE = LARGEST_OUTCOME - 1024 * 1024
"""Bytes of the largest value that workers may send; streams and reason fit beside the value."""

WORKER_FRAME = LARGEST_OUTCOME + BATCH_SIZE
"""Bytes of a worker's largest frame: a large outcome travels alone, small ones in batches."""


def bound_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """
    Cut the streams and reasons of outcomes to the sizes that our workers send.

    Raises
    ------
    ProtocolError
        When there are more outcomes than a worker keeps, or a value is too large.
    """
    if len(outcomes) > MOST_OUTCOMES:
        raise ProtocolError(f"{len(outcomes)} outcomes at once are more than a worker keeps")
    return [_bound_outcome(outcome) for outcome in outcomes]


def _bound_outcome(outcome: Outcome) -> Outcome:
    # Refused and not cut: half of a value is no value. Our workers are told the limit in the
    # welcome, so only others send more.
    if len(outcome.value) > LARGEST_VALUE:
        raise ProtocolError(
            f"a value of {len(outcome.value)} bytes is larger than the {LARGEST_VALUE} allowed"
        )
    # The usual case copies nothing.
    if (
        len(outcome.stdout) <= SPILL
        and len(outcome.stderr) <= SPILL
        and len(outcome.reason) <= LONGEST_REASON
    ):
        return outcome
    return msgspec.structs.replace(
        outcome,
        stdout=outcome.stdout[:SPILL],
        stderr=outcome.stderr[:SPILL],
        reason=outcome.reason[:LONGEST_REASON],
    )


# The current key of sealed tasks, read from a file.

Version = tuple[int, int, int]


class SealKeyFile:
    """
    Reads the seal key for workers without access to the file.

    The file is replaced when a key is renewed or a user is revoked. A file that cannot be read
    changes nothing: the last content holds.

    Parameters
    ----------
    path
        See :class:`bursar.sealing.task_sealing.TaskOpenerFile`.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: Version | None = None
        self._pem = ""

    @property
    def pem(self) -> str:
        """Content of the file at the last call of :meth:`poll`. Secret."""
        return self._pem

    def poll(self) -> Version | None:
        """
        Read the file again if the file has changed.

        Returns
        -------
        tuple or None
            Version of the content, different after each change; None: the file could not be read
            so far.
        """
        try:
            if _version_of(os.stat(self._path)) != self._version:
                with open(self._path, encoding="ascii") as file:
                    # Of the opened file and not of the path, which may be replaced between the two
                    # calls.
                    version = _version_of(os.fstat(file.fileno()))
                    self._pem, self._version = file.read(), version
        except (OSError, UnicodeDecodeError):
            pass
        return self._version


def _version_of(status: os.stat_result) -> Version:
    return status.st_mtime_ns, status.st_size, status.st_ino


# What a service keeps of a worker's connection.

UNAUTHENTICATED_FRAME = 1 << 19
"""Bytes of the largest frame before authentication; a hello with all held tasks fits."""

_LONGEST = 255  # characters of a machine's name
_LIMITS = FrameLimits(unauthenticated=UNAUTHENTICATED_FRAME, authenticated=WORKER_FRAME)


class ServiceWorkerConnection(WorkerConnection):
    """
    A worker's connection with a service, which may send a seal key.

    Parameters
    ----------
    before_jobs
        Called with the connection before jobs are sent.

    Attributes
    ----------
    host, has_seal_key
        Fields of the worker's :class:`~bursar.dispatch.wire.Hello`.
    seal_key
        Version of the key that the worker was sent; None: none was.
    """

    def __init__(
        self,
        handler: ConnectionHandler,
        before_jobs: "Callable[[ServiceWorkerConnection], None]",
    ) -> None:
        super().__init__(handler, _LIMITS)
        self._before_jobs = before_jobs
        self.host = ""
        self.has_seal_key = False
        self.seal_key: Version | None = None

    def introduce(self, hello: Hello) -> None:
        """Mark the connection as authenticated, and take the worker's data from the hello."""
        super().introduce(hello)
        # The host is shown to users and written to logs: nobody may fill these with it.
        self.host = hello.host[:_LONGEST]
        self.has_seal_key = hello.has_seal_key

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        """Give jobs, after the key to which they may be sealed."""
        self._before_jobs(self)
        super().give_encoded(jobs)
