"""
Bodies of tasks: the part of a task that only the worker reads, encoded as the worker reads it.

A body is made once, when the task is submitted, and then only copied: into the journal, into
memory, into the frame for the worker. Encoding a million tasks a second time is what would cost
the time.
"""

import base64
import binascii
import posixpath
import struct
from collections.abc import Sequence

import msgspec

from bursar.dispatch.wire import MAX_PIECE
from bursar.model.errors import InputError
from bursar.model.surroundings import (
    Container,
    ContainerPolicy,
    Surrounding,
    check_words,
    forbidden,
)
from bursar.model.task import GPU, Step
from bursar.remote.messages import TaskSpec
from bursar.remote.submission import steps_of
from bursar.service.interfaces import ServiceError

_encode = msgspec.msgpack.Encoder().encode
_ROWS_OF_5 = 0x95
"""First byte of an array of five (MessagePack), which bodies are stored without."""

_PLAIN, _WITH_PLACE = b"\x9b", b"\x9d"
"""First byte of a job that ends with the home (an array of 11), and of one with a working
directory and an envelope behind the home (an array of 13)."""

_WITH_MEMORY, _WITH_DEVICES = b"\x9f", b"\xdc\x00\x11"
"""Begin of a job that ends with its memory, behind all of these (an array of 15), and of one that
ends with its devices, behind its memory and secrets (an array of 17)."""

_BODY_WITH_MEMORY = 0xD4
"""First byte of the body of a task that states its memory or holds GPUs, which no other body begins
with (MessagePack: an extension)."""

_TWO_PARTS = 0xC1
"""First byte of a body with fields that go behind the home; MessagePack never uses this byte."""

_SIZE = struct.Struct(">I")


def make_body(
    spec: TaskSpec,
    directories: Sequence[str],
    where: str,
    containers: ContainerPolicy = "allowed",
) -> bytes:
    """
    Return the body of a task.

    Parameters
    ----------
    directories
        Folders below which an absolute working directory may lie.
    where
        Path of the task in the request, for errors.
    containers
        Containers that it may ask for; workers check those of sealed tasks.

    Raises
    ------
    ServiceError
        422, when the task makes no sense or is not allowed.
    """
    steps = _steps_of(spec, where)
    if spec.steps:
        _check_surroundings(steps, containers, where)
    body = _encode((steps, spec.inputs, spec.outputs, spec.environment, {}))
    assert body[0] == _ROWS_OF_5
    # Tests that most of a million tasks can skip.
    if spec.environment or spec.inputs or spec.outputs:
        _check_names(spec, where)
    # Sizes hold such bytes, too: then the words themselves tell.
    if b"\0" in body:
        _check_words(spec, where)
    # Nearly all tasks: only the five fields, without the head of their array, so that they can be
    # put between the head and the home of a job as they are.
    has_memory = spec.memory or GPU in spec.resources
    if not spec.directory and not spec.sealed and not has_memory:
        body = body[1:]
    else:
        # In the job these fields come behind the home, which is only known when the task is
        # given: the size says where to cut.
        rest = _encode(_checked_directory(spec.directory, directories, where))
        rest += _encode(_from_base64(spec.sealed, f"{where}.sealed"))
        if has_memory:
            rest += _encode(()) + _encode(spec.memory or 0)
        mark = _BODY_WITH_MEMORY if has_memory else _TWO_PARTS
        body = bytes((mark,)) + _SIZE.pack(len(body) - 1) + body[1:] + rest
    if len(body) > MAX_PIECE:
        raise ServiceError(
            "too-large", 413, f"the task takes {len(body)} bytes, at most {MAX_PIECE}", where=where
        )
    return body


def make_wire_job(
    body: bytes | bytearray,
    number: int,
    serial: int,
    processors: int,
    limit: float,
    folder: str,
    home: bytes,
    devices: tuple[int, ...] = (),
) -> bytes:
    """
    Return the :class:`bursar.dispatch.wire.WireJob` of a task, encoded.

    Parameters
    ----------
    number, serial
        Task and attempt as the worker knows them.
    limit
        Seconds after which the worker kills the task; 0: never.
    folder
        Name of the task's working directory in the home.
    home
        Path of the instance's home, encoded.
    devices
        Numbers of the GPUs that the task holds.
    """
    head = _encode((number, serial, processors, limit, folder))[1:]
    if body[0] not in (_TWO_PARTS, _BODY_WITH_MEMORY):
        return _PLAIN + head + body + home
    first = _WITH_PLACE if body[0] == _TWO_PARTS else _WITH_MEMORY
    end = b""
    if devices:
        first, end = _WITH_DEVICES, _encode({}) + _encode(devices)
    (size,) = _SIZE.unpack_from(body, 1)
    cut = 1 + _SIZE.size + size
    return first + head + body[1 + _SIZE.size : cut] + home + body[cut:] + end


def _steps_of(spec: TaskSpec, where: str) -> Sequence[Step]:
    # The steps are in the envelope, which only the worker can open.
    if spec.sealed and not (spec.command or spec.shell or spec.steps):
        return ()
    try:
        return steps_of(spec)
    except InputError as error:
        place = f"{where}.{error.where}" if error.where else where
        raise _invalid(error.message, place) from None


def _check_surroundings(steps: Sequence[Step], containers: ContainerPolicy, where: str) -> None:
    for step in steps:
        if not isinstance(step, Surrounding):
            continue
        if isinstance(step, Container) and (problem := forbidden(step, containers)):
            raise ServiceError("forbidden", 403, problem, where=f"{where}.steps")
        try:
            check_words(step)
        except InputError as error:
            raise _invalid(error.message, f"{where}.steps") from None


def _from_base64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid("is not base64", where) from None


def _check_words(spec: TaskSpec, where: str) -> None:
    if "\0" in spec.shell or any("\0" in word for word in spec.command):
        raise _invalid("a command cannot hold a NUL character", where)


def _check_names(spec: TaskSpec, where: str) -> None:
    for name, value in spec.environment.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise _invalid(
                'the name of a variable is not empty and holds no "=", and nothing holds NUL',
                f"{where}.environment",
            )
    for kind, names in (("inputs", spec.inputs), ("outputs", spec.outputs)):
        for name in names:
            if not is_inside(name):
                raise _invalid(
                    "a file is named relative to the instance's files, and lies in them",
                    f"{where}.{kind}",
                )


def _checked_directory(path: str, directories: Sequence[str], where: str) -> str:
    if not path:
        return ""
    if not path.startswith("/"):
        if path != "." and not is_inside(path):
            raise _invalid("leads out of the instance's files", f"{where}.directory")
        return path
    # Compared as text only. Links are not followed here: what lies at the path is the worker's to
    # see, on its own machine. A path with ".." is refused, since normpath would drop it together
    # with a link before it.
    plain = posixpath.normpath(path)
    if "\0" in path or ".." in path.split("/"):
        raise _invalid("is no plain path", f"{where}.directory")
    if not any(plain == top or plain.startswith(f"{top.rstrip('/')}/") for top in directories):
        raise ServiceError(
            "forbidden", 403, "the service allows no task there", where=f"{where}.directory"
        )
    return plain


def is_inside(name: str) -> bool:
    """Return whether a relative name stays below the folder that the name is relative to."""
    parts = name.split("/")
    return not (name.startswith("/") or "\0" in name or ".." in parts) and any(
        part not in ("", ".") for part in parts
    )


def _invalid(detail: str, where: str) -> ServiceError:
    return ServiceError("bad-value", 422, detail, where=where)
