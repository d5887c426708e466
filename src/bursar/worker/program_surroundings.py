"""
What surrounds the programs of an attempt: standard input, variables, container, environment.

A container or an environment has to be ready on the machine before a program can run in it. A
process of its own makes it ready, once for a worker; a further one removes a container that has not
ended with the program that started it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from bursar.dispatch.linux_processes import RUN, TASK, WORKER
from bursar.dispatch.wire import WireJob
from bursar.model.surroundings import (
    CondaEnvironment,
    Container,
    Modules,
    Surrounding,
    UvEnvironment,
)
from bursar.model.task import Inherit, StandardInput
from bursar.worker.attempt_context import PROCESSORS, AttemptContext
from bursar.worker.spawning import Spawner
from bursar.worker.staging import StagingError

if TYPE_CHECKING:
    from bursar.worker.environments import ReadySurrounding

SETTINGS = (StandardInput, Inherit, Container, CondaEnvironment, UvEnvironment, Modules)
"""Steps that change what surrounds the programs that follow."""

_RESULT = ".bursar-ready"
"""File in the working directory by which the process that makes something ready tells the result.
"""

_REMOVAL = (
    "/bin/sh",
    "-c",
    # Again if that fails: the runtime may be about to start the container, or be slow to stop it.
    'for try in 1 2 3; do timeout -k 5 60 "$@" > /dev/null 2>&1 && exit; sleep 1; done; exit 1',
    "removal",
)
"""Command before one that removes a container. A runtime that hangs must not keep the attempt for
ever."""


class ProgramSurroundings:
    """
    Standard input, variables, container and environment of programs.

    Attributes
    ----------
    stdin
        Descriptor that programs read from; None: nothing is there.
    inherits
        Patterns of the worker's variables that programs get; None: all of these.
    variables
        Variables that environments set; None: that they take away.
    container
        Container that programs run in; None: none.
    making
        What a process makes ready now, in words; empty: none does.
    removes
        Whether a process removes a container now.
    """

    __slots__ = (
        "_key",
        "_name",
        "_result",
        "_runtime",
        "container",
        "inherits",
        "making",
        "removes",
        "stdin",
        "variables",
    )

    def __init__(self) -> None:
        self.stdin: int | None = None
        self.inherits: tuple[str, ...] | None = None
        self.variables: dict[str, str | None] = {}
        self.container: Container | None = None
        self.making = ""
        self.removes = False
        self._key: tuple[object, ...] = ()  # all that the variables came from
        self._runtime = ""
        self._result = ""
        self._name = ""  # of the container that a program runs in now

    def change(
        self,
        step: StandardInput | Inherit | Surrounding,
        folder: str,
        place: AttemptContext,
    ) -> tuple[str, ...] | None:
        """
        Take over a step's setting for the programs that follow.

        Returns
        -------
        tuple or None
            Command that has to succeed first, to be started in the folder and followed by
            :meth:`made`; None: nothing has to be done.

        Raises
        ------
        OSError
            When a file cannot be read.
        StagingError
            When the machine's administrator does not allow it.
        """
        match step:
            case Inherit(names):
                self.inherits = names
                return None
            case StandardInput():
                self._read(step, folder)
                return None
        return self._enter(step, folder, place)

    def made(self, code: int, place: AttemptContext) -> str:
        """Return why what was to be made ready is not, one line; empty: it is."""
        from bursar.worker.environments import ReadySurrounding

        what, self.making = self.making, ""
        try:
            with open(self._result, "rb") as file:
                ready = msgspec.json.decode(file.read(), type=ReadySurrounding)
            os.unlink(self._result)
        except (OSError, msgspec.MsgspecError):
            return f"{what} could not be made ready: exit status {code}"
        if ready.problem:
            return ready.problem
        place.ready[self._key] = ready
        self._take(ready)
        return ""

    def spawner(self, place: AttemptContext) -> Spawner:
        """Return what starts programs with these variables, or a container's runtime with all."""
        inherits = None if self.container is not None else self.inherits
        return place.spawner_for(inherits, self.variables)

    def find(self, program: str, job: WireJob, place: AttemptContext) -> str:
        """Return the path of a program without a slash in its name, by the task's own PATH."""
        if self.container is not None:
            return program  # of the image
        path = job.environment.get("PATH") or self.variables.get("PATH")
        return place.find(program, path or place.environment["PATH"])

    @property
    def is_counted(self) -> bool:
        """Whether the process that runs now is the task's own, and no runtime that only waits."""
        return not (self.making or self.removes or self.is_separate)

    # Containers.

    @property
    def is_separate(self) -> bool:
        """Whether programs are no descendants of the worker, which cannot look at their memory."""
        from bursar.worker.containers import SEPARATE, kind_of

        return self.container is not None and kind_of(self._runtime) in SEPARATE

    def enter(
        self,
        argv: Sequence[str],
        own: Mapping[str, str],
        job: WireJob,
        folder: str,
        place: AttemptContext,
        number: int,
    ) -> tuple[tuple[str, ...], dict[str, str]]:
        """
        Return the command that starts a program in the container, and that command's variables.

        Parameters
        ----------
        own
            Variables of the task.
        folder
            The working directory.
        number
            Tells several programs of an attempt apart.

        Raises
        ------
        ValueError
            When the container cannot have a variable.
        """
        from bursar.worker import containers

        container = self.container
        assert container is not None
        self._name = f"{place.container_mark}{job.task}-{job.attempt}-{number}"
        has_gpus = container.gpu or (container.gpu is None and job.devices)
        shown = place.visible_devices(job.devices)
        marks = {TASK: str(job.task), PROCESSORS: str(job.processors)}
        marks |= {name: place.environment[name] for name in (RUN, WORKER)}
        links = (os.path.join(folder, name) for name in (*job.inputs, *job.data))
        given = containers.ContainerPlace(
            name=self._name,
            folder=folder,
            read=containers.linked_paths(links, folder),
            own=containers.handed_in(place.environment, self.inherits) | marks | dict(own),
            secrets=frozenset(job.secrets),
            memory=job.memory,
            user=(os.getuid(), os.getgid()),
            devices=next(iter(shown.values())).split(",") if shown else None,
            gpus=containers.gpu_vendor() if has_gpus else "",
        )
        command = containers.enter_container(self._runtime, container, argv, given)
        if self.is_separate:
            place.containers[self._name] = self._runtime
        return command

    def removal(self, code: int, place: AttemptContext) -> tuple[str, ...] | None:
        """
        Return the command that removes a program's container, where the runtime has not done so.

        A runtime that was killed has not, nor one that failed itself (125).
        """
        from bursar.worker.containers import removal

        name, self._name = self._name, ""
        if place.containers.get(name) is None:
            return None
        if 0 <= code != 125 and code < 128:
            del place.containers[name]
            return None
        self.removes = True
        self._name = name
        return (*_REMOVAL, *removal(self._runtime, (name,)))

    def removed(self, code: int, place: AttemptContext) -> None:
        """Note the end of the removal; what has not succeeded is tried when the worker ends."""
        self.removes = False
        if code == 0:
            place.containers.pop(self._name, None)

    def close(self) -> None:
        """Close the standard input."""
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def _read(self, step: StandardInput, folder: str) -> None:
        self.close()
        if step.path is None:
            # Not a pipe: a program that does not read would hold up the writer.
            self.stdin = os.memfd_create("stdin", os.MFD_CLOEXEC)
            with open(self.stdin, "wb", closefd=False) as file:
                file.write(step.text.encode())
            os.lseek(self.stdin, 0, os.SEEK_SET)
        else:
            # Opening a named pipe without a writer would block for ever.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            self.stdin = os.open(os.path.join(folder, step.path), flags)
            os.set_blocking(self.stdin, True)

    def _enter(
        self, step: Surrounding, folder: str, place: AttemptContext
    ) -> tuple[str, ...] | None:
        if isinstance(step, Container):
            place.check_container(step)
            self.container = step
        stamps = (_stamp(os.path.join(folder, name)) for name in step.files)
        self._key = (*self._key, step, *stamps)
        if (ready := place.ready.get(self._key)) is not None:
            self._take(ready)
            return None
        self.making = step.what
        self._result = os.path.join(folder, _RESULT)
        text = msgspec.json.encode(step).decode()
        return (sys.executable, "-m", "bursar.worker.environments", text, self._result)

    def _take(self, ready: "ReadySurrounding") -> None:
        self.variables = {**self.variables, **ready.variables}
        if ready.runtime and self.container is not None:
            self._runtime = ready.runtime
            self.container = msgspec.structs.replace(self.container, image=ready.image)


def check_environment(environment: Mapping[str, str]) -> None:
    """
    Refuse variables by which a task would pass for another one, and malformed names.

    All others are its own business, ``LD_PRELOAD`` too: they are for its processes, which run
    as its user, and never for the worker.

    Raises
    ------
    StagingError
        Naming the variable.
    """
    for name in environment:
        if not name or "=" in name or "\0" in name:
            raise StagingError(f"{name[:100]!a} is no name of a variable")
        if name in _RESERVED:
            raise StagingError(f'the variable "{name}" is not the task\'s to set')


_RESERVED = frozenset((RUN, WORKER, TASK, PROCESSORS))


def _stamp(path: str) -> tuple[int, ...]:
    """Return what changes with the content of a file; empty where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
