"""The working directories of a run's attempts: which of them stay when the run has ended."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from bursar.dispatch.folders import attempt_folder, folder_name, remove_tree
from bursar.model.task import Outcome, Status, Task


class AttemptFolders:
    """
    Knows which working directories are of use after the end.

    Parameters
    ----------
    path
        Folder that holds the working directories.
    tasks
        Tasks of the run; the list may grow.
    """

    def __init__(self, path: Path, tasks: Sequence[Task]) -> None:
        self._path = path
        self._tasks = tasks
        self._failed: set[str] = set()
        self._succeeded: set[int] = set()

    def learn(self, outcome: Outcome) -> None:
        """Note how an attempt has ended."""
        if outcome.status is Status.SUCCEEDED:
            self._succeeded.add(outcome.task)
        elif outcome.status in (Status.FAILED, Status.TIMED_OUT):
            name = folder_name(outcome.task, self._tasks[outcome.task].id)
            self._failed.add(attempt_folder(name, outcome.attempt))

    def clear(self) -> None:
        """
        Remove what attempts that were cut off have left of tasks that have succeeded since.

        The working directory of an attempt that failed stays for inspection, and so does every
        one of a task without success.
        """
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path) as entries:
            for entry in entries:
                task = entry.name.partition("-")[0]
                # Not made by this run, or its task has had no success.
                if task.isdecimal() and int(task) not in self._succeeded:
                    continue
                # By name and not by age: an earlier incarnation may have made it.
                if entry.name not in self._failed:
                    remove_tree(entry.path)
