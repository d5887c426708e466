"""Seals an instance's tasks against reading by the service, and opens results."""

import base64
from collections.abc import Iterable, Iterator

from msgspec import structs

from bursar.model.errors import InputError, SiteError
from bursar.model.task import Status
from bursar.remote.connection import Entropy
from bursar.remote.messages import Result, TaskSpec, TaskState
from bursar.remote.output_messages import as_text
from bursar.remote.submission import steps_of
from bursar.sealing.envelope import SealedTask, SealError, decode_result, encode_part
from bursar.sealing.task_sealing import TaskSealer

_MARK = 32
"""Characters before a sealed task's own label."""

LONGEST_LABEL = 200 - _MARK
"""Characters of a sealed task's own label."""

_STATES: dict[Status, TaskState] = {
    Status.SUCCEEDED: "succeeded",
    Status.TIMED_OUT: "timed-out",
    Status.CANCELLED: "cancelled",
}


class InstanceSealer:
    """
    Seals the tasks of one instance and opens their results.

    The service sees a task's label with a random mark before it; each result is bound to both.
    So it can leave a result out, but not give it as that of a task with another label.

    Parameters
    ----------
    entropy
        Returns random bytes, for the marks.
    """

    def __init__(self, sealer: TaskSealer, handle: str, entropy: Entropy) -> None:
        self._sealer = sealer
        self._handle = handle
        self._entropy = entropy

    def seal(self, tasks: Iterable[TaskSpec]) -> Iterator[TaskSpec]:
        """
        Yield the tasks in sealed form.

        Raises
        ------
        InputError
            When a label is too long, or a task is none.
        """
        for number, task in enumerate(tasks):
            if len(task.label) > LONGEST_LABEL:
                raise InputError(
                    f"of a sealed task has at most {LONGEST_LABEL} characters",
                    where=f"tasks[{number}].label",
                )
            try:
                steps = tuple(steps_of(task))
            except InputError as error:
                field = f".{error.where}" if error.where else ""
                raise InputError(error.message, where=f"tasks[{number}]{field}") from None
            # Labels and even commands of two tasks may be the same; without the mark the service
            # could exchange their results.
            label = self._entropy(_MARK // 2).hex() + task.label
            contents = SealedTask(steps=steps, environment=dict(task.environment))
            envelope = self._sealer.seal(encode_part(contents), self._about(label))
            yield structs.replace(
                task,
                command=(),
                shell="",
                steps="",
                environment={},
                sealed=base64.b64encode(envelope).decode(),
                label=label,
            )

    def open(self, result: Result) -> Result:
        """
        Return a result as the task made the result.

        A result without an envelope is the service's word: only the ending of the task, and never
        the value of a call, which no service can make.

        Raises
        ------
        SiteError
            When the envelope was not made by a worker, for this task.
        """
        plain = structs.replace(result, label=result.label[_MARK:], value="")
        if not result.sealed:
            # Success takes an envelope that only workers can make: the service cannot pass off a
            # failure.
            if result.state == "succeeded":
                raise SiteError(f"task {result.task}: its result is not sealed")
            return plain
        try:
            envelope = base64.b64decode(result.sealed, validate=True)
            inside = decode_result(self._sealer.open(envelope, self._about(result.label)))
        except (SealError, ValueError) as error:
            raise SiteError(f"task {result.task}: its result cannot be opened: {error}") from None
        raw: dict[str, str] = {}
        return structs.replace(
            plain,
            sealed="",
            state=_STATES.get(inside.status, "failed"),
            exit_code=inside.exit_code,
            stdout=as_text("stdout", inside.stdout, raw),
            stderr=as_text("stderr", inside.stderr, raw),
            raw=raw,
            stdout_size=len(inside.stdout),
            stderr_size=len(inside.stderr),
            reason=inside.reason,
            value=base64.b64encode(inside.value).decode(),
        )

    def _about(self, label: str) -> str:
        return f"{self._handle} {label}"
