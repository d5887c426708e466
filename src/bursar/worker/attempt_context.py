"""What all attempts on a worker share: folders, programs, processes for calls, pipes."""

import contextlib
import errno
import fnmatch
import functools
import os
import shutil
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bursar.dispatch.linux_processes import RUN, TASK, WORKER
from bursar.dispatch.wire import Welcome
from bursar.model.surroundings import Container, forbidden
from bursar.worker.carried_bytes import CarriedBytes
from bursar.worker.output_capture import OutputCapturePool
from bursar.worker.python_calls import PythonCallPool
from bursar.worker.spawning import Spawner
from bursar.worker.staging import StagingError
from bursar.worker.workspace import WorkspaceCache

if TYPE_CHECKING:
    from bursar.worker.environments import ReadySurrounding
    from bursar.worker.memory_enforcement import MemoryGroups
    from bursar.worker.sealed_tasks import SealedTaskOpener

PROCESSORS = "BURSAR_PROCESSORS"
"""Variable that tells a task how many processors it holds."""


_REMOVAL = 30.0
"""Seconds that a runtime has to remove the containers of a worker that ends."""

VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables by which libraries learn which GPUs they may use."""


class AttemptContext:
    """
    Resources that all attempts on a worker share.

    Parameters
    ----------
    welcome
        The dispatcher's message with the run's folders.
    seal_key
        Path of the key file for sealed tasks; empty: the worker has none.
    seal_pem
        Content of a key file, in place of a path; empty: see ``seal_key``.
    """

    def __init__(
        self, welcome: Welcome, worker: str, seal_key: str = "", seal_pem: str = ""
    ) -> None:
        self.welcome = welcome
        self.homes = WorkspaceCache(welcome, worker)
        self._seal_key = seal_key
        self._seal_pem = seal_pem
        self._inside = ""
        self._found: dict[tuple[str, str], str] = {}
        path = os.environ.get("PATH", os.defpath)
        self.environment = {
            **os.environ,
            # Programs of the environment that Bursar is installed in come first.
            "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{path}",
            RUN: welcome.run,
            WORKER: worker,
        }
        self.spawner = Spawner(self.environment, (TASK, PROCESSORS))
        self._spawners: dict[tuple[object, ...], Spawner] = {}
        self.ready: dict[tuple[object, ...], ReadySurrounding] = {}
        """What programs run in and is ready on this machine, by the steps that state it."""
        self.containers: dict[str, str] = {}
        """Runtimes of containers that are no descendants of the worker, by name."""
        self.callees = PythonCallPool(self.environment)
        self.captures = OutputCapturePool(welcome.spill)
        self.carried = CarriedBytes() if welcome.counts_data else None

    @functools.cached_property
    def sealed(self) -> "SealedTaskOpener":
        """The opener of sealed tasks."""
        from bursar.worker.sealed_tasks import (
            SealedTaskOpener,  # cryptography takes its time to load
        )

        return SealedTaskOpener(self._seal_key, self._seal_pem)

    def visible_devices(self, devices: tuple[int, ...]) -> dict[str, str]:
        """Return variables that show a task only its own GPUs, of those that the worker sees."""
        found = {}
        for variable in VISIBLE_DEVICES if devices else ():
            # Devices that the worker itself was given, as by a batch system, have other names.
            given = self.environment.get(variable)
            names = given.split(",") if given else []
            known = len(names) > max(devices)
            found[variable] = ",".join(names[i] if known else str(i) for i in devices)
        return found

    def spawner_for(
        self, inherits: tuple[str, ...] | None, changes: Mapping[str, str | None]
    ) -> Spawner:
        """
        Return what starts programs with the worker's variables that match these patterns.

        Parameters
        ----------
        changes
            Variables that are set for them besides; None: taken away.
        """
        if inherits is None and not changes:
            return self.spawner
        key = (inherits, *sorted(changes.items(), key=lambda pair: pair[0]))
        if key not in self._spawners:
            chosen = self.environment
            if inherits is not None:
                chosen = inherited(self.environment, inherits)
            merged = {**chosen, **changes}
            given = {name: value for name, value in merged.items() if value is not None}
            self._spawners[key] = Spawner(given, (TASK, PROCESSORS))
        return self._spawners[key]

    @functools.cached_property
    def container_mark(self) -> str:
        """Begin of the names of this worker's containers, which no other process's have."""
        from bursar.worker.containers import owner_mark

        return owner_mark(os.getpid())

    def check_container(self, container: Container) -> None:
        """
        Refuse a container that the machine's administrator does not allow.

        Raises
        ------
        StagingError
            When that is so.
        """
        if problem := forbidden(container, self.welcome.containers):
            raise StagingError(problem)

    def serves_container(self, pid: int) -> bool:
        """Whether a process keeps a container of a task that runs (Podman's conmon does)."""
        if not self.containers:
            return False
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:  # it has ended
            return False
        return any(name.encode() in words for name in self.containers)

    def remove_containers(self) -> None:
        """Remove the containers that still run, since nobody else would; it may take seconds."""
        if not self.containers:
            return
        import subprocess

        from bursar.worker.containers import removal

        for runtime in set(self.containers.values()):
            names = [name for name, its in self.containers.items() if its == runtime]
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    removal(runtime, names), capture_output=True, timeout=_REMOVAL, check=False
                )

    @functools.cached_property
    def memory_groups(self) -> "MemoryGroups | None":
        """The maker of control groups for tasks; None where their memory has to be watched."""
        from bursar.worker.memory_enforcement import memory_groups

        return memory_groups()

    def change_seal_key(self, pem: str) -> None:
        """Open sealed tasks that begin from now on with another key."""
        if pem != self._seal_pem:
            self._seal_pem = pem
            self.__dict__.pop("sealed", None)

    def enter(self, folder: str) -> None:
        """Change to the folder in which the next processes are to start."""
        if folder != self._inside:
            os.chdir(folder)
            self._inside = folder

    def leave(self, folder: str) -> None:
        """Forget that the worker is in a folder, which may be removed or replaced."""
        if folder == self._inside:
            self._inside = ""

    def close(self) -> None:
        """Ends the idle callees and removes containers and the scratch folders."""
        self.remove_containers()
        self.callees.close()
        self.captures.close()
        self.homes.close()
        for spawner in (self.spawner, *self._spawners.values()):
            spawner.close()

    def find(self, name: str, path: str) -> str:
        """
        Return the path of a program without a slash in its name, as a shell finds it in ``path``.

        Raises
        ------
        FileNotFoundError
            When no folder has the program.
        """
        key = (name, path)
        if key not in self._found:
            found = shutil.which(name, path=path)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "is not on PATH", name)
            # Kept, since a search asks the file system once per folder of PATH, and a worker starts
            # thousands of programs a second.
            self._found[key] = found
        return self._found[key]


def inherited(environment: Mapping[str, str], patterns: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that match a pattern, and those by which a run's processes are found."""
    return {
        name: value
        for name, value in environment.items()
        if name in (RUN, WORKER) or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
