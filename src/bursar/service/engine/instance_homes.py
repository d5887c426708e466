"""The folders of instances; names are random and never a user's."""

import contextlib
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from bursar.dispatch.work_directories import remove_tree
from bursar.worker.workspace import LOGS, prepare_workspace

UidGid = tuple[int, int]
"""User and group."""


class InstanceHomes:
    """
    Folders of instances; every call may block, and runs outside the event loop.

    Parameters
    ----------
    folder
        Where they lie.
    owner
        Of a user of the service: as whom the tasks run; None: as who runs the service.
    """

    def __init__(self, folder: Path, owner: Callable[[str], UidGid | None] | None = None) -> None:
        self._folder = folder
        self._owner = owner or (lambda user: None)

    def path(self, name: str) -> Path:
        """Return the path of a home."""
        return self._folder / name

    def make(self, name: str, user: str) -> None:
        """
        Make a home for a user, unless it exists.

        Raises
        ------
        OSError
        """
        # Those who work in a home must get to it, and need not see which others there are.
        self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        prepare_workspace(str(self.path(name)), self._owner(user))

    def remove(self, name: str) -> None:
        """Delete a home and all in it as far as possible; links in it are not followed."""
        remove_tree(str(self.path(name)))

    def remove_logs(self, name: str, logs: Iterable[str]) -> None:
        """Long streams go, as far as they are there; a folder in a log's place stays, for now."""
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
            Whose each home is that is to be there, by name.
        dying
            Homes that go later.

        Raises
        ------
        OSError
        """
        for name, user in users.items():
            self.make(name, user)
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.name not in users and path.name not in dying:
                    self.remove(path.name)
