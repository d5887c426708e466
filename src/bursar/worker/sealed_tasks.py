"""
Tasks that only the worker can read, and outcomes that only their user can.

What the dispatcher must know stays in clear: which task, how it ended, when, and what it used.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from bursar.dispatch.wire import WireJob
from bursar.model.errors import BursarError
from bursar.model.task import Outcome, Status
from bursar.sealing.envelope import SealedResult, SealError, decode_task, encode_part
from bursar.sealing.task_sealing import TaskOpener, TaskOpenerFile, make_opener

OutcomeSealer = Callable[[bytes], bytes]


class SealedTaskOpener:
    """
    Opens sealed tasks and seals their results, on the worker.

    Parameters
    ----------
    key_file
        Path of the file that holds the key; see
        :class:`bursar.sealing.task_sealing.TaskOpenerFile`.
        Empty: the worker has none.
    pem
        Content of such a file, in its place; empty: see ``key_file``.

    Raises
    ------
    InputError
        When the file or the content holds no key.
    """

    def __init__(self, key_file: str, pem: str = "") -> None:
        self._opener: TaskOpener | TaskOpenerFile | None = None
        if pem:
            self._opener = make_opener(pem.encode())
        elif key_file:
            self._opener = TaskOpenerFile(Path(key_file))

    def open(self, job: WireJob) -> tuple[WireJob, OutcomeSealer]:
        """
        Return the opened job, with steps and environment, and the function that seals the outcome.

        Raises
        ------
        SealError
            When the job cannot be opened here.
        """
        if self._opener is None:
            raise SealError("this worker has no key to open tasks with")
        opened = self._opener.open(job.sealed)
        task = decode_task(opened.payload)
        open_job = msgspec.structs.replace(
            job, steps=task.steps, environment=dict(task.environment), sealed=b""
        )
        return open_job, opened.seal


def seal_outcome(outcome: Outcome, seal: OutcomeSealer) -> Outcome:
    """Seal the parts of an outcome that only the task's user may read, or say that this failed."""
    try:
        return _sealed(outcome, seal)
    except BursarError as error:
        return Outcome(
            task=outcome.task,
            attempt=outcome.attempt,
            status=Status.FAILED,
            start=outcome.start,
            end=outcome.end,
            reason=f"the outcome cannot be sealed: {error}",
        )


def _sealed(outcome: Outcome, seal: OutcomeSealer) -> Outcome:
    content = SealedResult(
        status=outcome.status,
        exit_code=outcome.exit_code,
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        reason=outcome.reason,
        value=outcome.value,
    )
    return msgspec.structs.replace(
        outcome,
        exit_code=None,
        stdout=b"",
        stderr=b"",
        stdout_size=0,
        stderr_size=0,
        reason="",
        value=b"",
        sealed=seal(encode_part(content)),
    )
