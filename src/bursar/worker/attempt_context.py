"""What all attempts on a worker share: folders, programs, processes for calls, pipes."""

import errno
import functools
import os
import shutil
import sys
from typing import TYPE_CHECKING

from bursar.dispatch.linux_processes import RUN, TASK, WORKER
from bursar.dispatch.wire import Welcome
from bursar.worker.carried_bytes import CarriedBytes
from bursar.worker.output_capture import OutputCapturePool
from bursar.worker.python_calls import PythonCallPool
from bursar.worker.spawning import Spawner
from bursar.worker.workspace import WorkspaceCache

if TYPE_CHECKING:
    from bursar.worker.memory_enforcement import MemoryGroups
    from bursar.worker.sealed_tasks import SealedTaskOpener

PROCESSORS = "BURSAR_PROCESSORS"
"""Variable that tells a task how many processors it holds."""


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
        self._spawners: dict[tuple[str, ...], Spawner] = {}
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

    def spawner_for(self, inherits: tuple[str, ...] | None) -> Spawner:
        """Return what starts programs with the worker's variables that match these patterns."""
        if inherits is None:
            return self.spawner
        if inherits not in self._spawners:
            from bursar.worker.program_surroundings import inherited

            chosen = inherited(self.environment, inherits)
            self._spawners[inherits] = Spawner(chosen, (TASK, PROCESSORS))
        return self._spawners[inherits]

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
        """Ends the idle callees and removes the scratch folders."""
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
