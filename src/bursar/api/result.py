"""The result of ``run``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bursar.model.task import Outcome
from bursar.report.bill import Bill
from bursar.runs.folder import RunFolder
from bursar.runs.run_record import bill_of, read_run


class RunResult:
    """
    A run that has ended, for now or for good.

    Parameters
    ----------
    folder
        The run's folder.
    summary
        Its key figures, as ``bursar run --json`` prints them.
    exit_status
        As the command's: 0 when every task succeeded in time.
    """

    def __init__(self, folder: RunFolder, summary: dict[str, Any], exit_status: int) -> None:
        self._folder = folder
        self._summary = summary
        self.exit_status = exit_status

    @property
    def name(self) -> str:
        """The run's name."""
        return self._folder.name

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def files(self) -> Path:
        """Folder of the tasks' files, under the campaign's file names."""
        return self._folder.files

    @property
    def succeeded(self) -> bool:
        """Whether every task succeeded."""
        return bool(self._summary["succeeded"] == self._summary["tasks"])

    def outcomes(self) -> Iterator[Outcome]:
        """Yield the final outcome of each task that has one, by task."""
        yield from read_run(self._folder).outcomes

    def bill(self) -> Bill:
        """Cost of the run, by site and by task."""
        return bill_of(read_run(self._folder))

    def to_dict(self) -> dict[str, Any]:
        """Return the key figures; the keys are in the documentation."""
        return dict(self._summary)

    def __repr__(self) -> str:
        done, tasks = self._summary["succeeded"], self._summary["tasks"]
        return f"<RunResult {self.name}: {done} of {tasks} succeeded, {self._summary['state']}>"
