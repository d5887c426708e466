"""Converts between a task's program in the API and steps."""

import base64
from collections.abc import Sequence

import msgspec

from bursar.model.errors import InputError
from bursar.model.task import Exec, Shell, Step
from bursar.remote.messages import TaskSpec

_STEPS = msgspec.msgpack.Decoder(tuple[Step, ...])
_encode = msgspec.msgpack.Encoder().encode


def encode_steps(steps: Sequence[Step]) -> str:
    """Encode steps for the field ``steps`` of a :class:`TaskSpec`."""
    return base64.b64encode(_encode(steps)).decode()


def steps_of(task: TaskSpec) -> Sequence[Step]:
    """
    Return the steps of a task that is not sealed.

    Raises
    ------
    InputError
        When it does not say one thing, or what is no steps.
    """
    if task.command and not (task.shell or task.steps or task.sealed):
        return (Exec(task.command),)
    if task.sealed or bool(task.command) + bool(task.shell) + bool(task.steps) != 1:
        raise InputError('exactly one of "command", "shell", "steps" and "sealed" is needed')
    if task.shell:
        return (Shell(task.shell),)
    try:
        steps = _STEPS.decode(base64.b64decode(task.steps, validate=True))
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"these are no steps: {error}", where="steps") from None
    if any(isinstance(step, Exec) and not step.argv for step in steps):
        raise InputError("there is no program to run", where="steps")
    return steps
