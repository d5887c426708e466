"""The folders of a run or of a service's instance: files, working directories and logs."""

import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator

from bursar.dispatch.folders import remove_tree
from bursar.dispatch.wire import Welcome
from bursar.worker.confined_files import ConfinedFiles
from bursar.worker.staging import FileNamespace, RootNamespace

MOST_HOMES = 64
"""Instances whose scratch folders a worker keeps for their next task."""

FILES, WORK, LOGS = "files", "work", "logs"
"""Folders of an instance's home."""


class Workspace:
    """
    Folders of one run, or of one instance.

    Parameters
    ----------
    files
        Folder of the files.
    work
        Folder in which the tasks' working directories are made.
    logs
        Folder for output too long for the journal.
    names
        Iterator of names for scratch folders; a worker uses each once.
    """

    def __init__(self, files: FileNamespace, work: str, logs: str, names: Iterator[str]) -> None:
        self.files = files
        self.work = work
        self.logs = logs
        self._names = names
        self._scratch: list[tuple[str, int]] = []
        self._is_closed = False

    def take_scratch(self) -> tuple[str, int]:
        """
        Return an empty folder for a task without files to work in.

        Returns
        -------
        path : str
        changed : int
            When it was last changed, as :meth:`give_scratch` wants it.
        """
        if self._scratch:
            return self._scratch.pop()
        path = os.path.join(self.work, next(self._names))
        try:
            os.mkdir(path)
        except FileExistsError:  # of a worker that had this one's name
            remove_tree(path)
            os.mkdir(path)
        # The time of change tells whether a task has put anything in, without a look at the
        # content.
        return path, when_changed(path)

    def give_scratch(self, path: str, changed: int) -> None:
        """Keep an unchanged scratch folder for the next task; remove a changed one."""
        if not self._is_closed and when_changed(path) == changed:
            self._scratch.append((path, changed))
        else:
            remove_tree(path)

    def close(self) -> None:
        """Remove the scratch folders; folders in use are removed when given back."""
        self._is_closed = True
        for path, _ in self._scratch:
            remove_tree(path)
        self._scratch.clear()


class WorkspaceCache:
    """
    The workspaces of a worker's tasks: the run's own, and those of instances.

    Parameters
    ----------
    welcome
        Says where the files of a run lie.
    worker
        The worker's name.
    """

    def __init__(self, welcome: Welcome, worker: str) -> None:
        self._names = (f".{worker}-{number}" for number in _count())
        root = RootNamespace(welcome.root, welcome.files)
        self._own = Workspace(root, welcome.work, welcome.logs, self._names)
        self._others: OrderedDict[str, Workspace] = OrderedDict()

    def at(self, path: str) -> Workspace:
        """Return the workspace of an instance, or of the run where the path is empty."""
        if not path:
            return self._own
        home = self._others.get(path)
        if home is None:
            home = self._others[path] = self._home_of_instance(path)
            # The instance that was used longest ago goes: its scratch folders can be made again.
            if len(self._others) > MOST_HOMES:
                self._others.popitem(last=False)[1].close()
        else:
            self._others.move_to_end(path)
        return home

    def close(self) -> None:
        """Removes the scratch folders."""
        for home in (self._own, *self._others.values()):
            home.close()

    def _home_of_instance(self, path: str) -> Workspace:
        files, work, logs = (os.path.join(path, name) for name in (FILES, WORK, LOGS))
        return Workspace(ConfinedFiles(files), work, logs, self._names)


def prepare_workspace(path: str, owner: tuple[int, int] | None) -> None:
    """
    Make the folders of an instance; existing ones stay.

    The home itself belongs to the calling process's user, so that its folders cannot be replaced by
    links; they belong to the owner alone. For an owner of its own the folders above must be
    traversable (mode 0711).

    Parameters
    ----------
    owner
        User and group that the tasks run as; None: those of this process.

    Raises
    ------
    OSError
        When a folder cannot be made; ``PermissionError`` where ownership may not be changed.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    # By a descriptor from here on: nobody can put another folder under this path meanwhile.
    at = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(at, 0o700 if owner is None else 0o711)
        for name in (FILES, WORK, LOGS):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=at)
            if owner is not None:
                os.chown(name, *owner, dir_fd=at, follow_symlinks=False)
    finally:
        os.close(at)


def log_name(folder: str, attempt: int, stream: str) -> str:
    """Return the name in ``logs`` of the file for an output stream too long to be sent."""
    return f"{folder}.{attempt}.{stream}"


def when_changed(path: str) -> int:
    """Return a folder's time of change, nanoseconds; -1 when the folder is gone."""
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1


def _count() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number
