"""The folders of instances; their names are random and show neither user nor handle."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from bursar.dispatch.folders import remove_tree
from bursar.worker.workspace import LOGS, prepare_workspace

UidGid = tuple[int, int]
"""User and group."""


class InstanceHomes:
    """
    Folders of instances; every call may block, and runs outside the event loop.

    Parameters
    ----------
    owner
        Returns the user and group as which tasks of a user of the service run; None: those of
        the service itself.
    """

    def __init__(self, folder: Path, owner: Callable[[str], UidGid | None] | None = None) -> None:
        self._folder = folder
        self._owner = owner or (lambda user: None)

    def path(self, name: str) -> Path:
        """Return the path of a home."""
        return self._folder / name

    def make(self, name: str, user: str) -> None:
        """
        Make a home for a user, unless the home exists.

        Raises
        ------
        OSError
        """
        # Those who work in a home must get to it, and need not see which others there are.
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        prepare_workspace(str(self.path(name)), self._owner(user))

    def remove(self, name: str) -> None:
        """Delete a home with all content, as far as possible, without following links."""
        remove_tree(str(self.path(name)))

    def remove_logs(self, name: str, logs: Iterable[str]) -> None:
        """Delete files of long streams; a folder that a task has put in a file's place stays."""
        for log in logs:
            # No tree: a task that goes on to fill it would keep us busy for as long.
            with contextlib.suppress(OSError):
                os.unlink(self.path(name) / LOGS / log)

    def restore(self, users: Mapping[str, str], dying: Collection[str]) -> None:
        """
        Make homes that are missing after a crash, and delete unknown ones.

        Parameters
        ----------
        users
            User of each home that must exist, by name of the home.
        dying
            Names of homes that are removed later.

        Raises
        ------
        OSError
        """
        for name, user in users.items():
            self.make(name, user)
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                # Made just before a crash, for an instance whose record was not durable.
                if path.name not in users and path.name not in dying:
                    self.remove(path.name)
