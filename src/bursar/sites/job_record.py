"""What is at a scheduler because of us, written down so that it is found again after a kill."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from bursar.dispatch.atomic_file import write_atomically
from bursar.sites.durable_lines import append_lines, encode_lines, read_lines

Kind = Literal["asked", "refused", "job", "window", "gone"]
"""A request is about to be handed in; was not taken; became a job; processors are about to be
kept by a reservation; and are not any more."""


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the file; ``name`` is that of the request or of the reservation."""

    kind: Kind
    name: str
    job: str = ""
    pilot: str = ""


@runtime_checkable
class Finds(Protocol):
    """A manager that finds jobs by their names."""

    async def named(self, name: str) -> list[str]:
        """Ids of this user's jobs of a name that have not ended."""


@dataclass(slots=True)
class Leftovers:
    """
    What an earlier life may have left.

    Parameters
    ----------
    jobs
        Ids of jobs, and the names of their pilots.
    names
        Of requests of which nobody wrote down what became of them.
    windows
        Names of reservations.
    """

    jobs: dict[str, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    windows: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.jobs or self.names or self.windows)


class JobRecord:
    """
    A file with what was asked of a scheduler. What is there is on the disk before it is there.

    Parameters
    ----------
    path
        Of the file; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines = 0
        """That were written since the file was made or tidied."""

    def asks(self, name: str) -> None:
        """A request is about to be handed in."""
        self._append([_Line("asked", name)])

    def refused(self, name: str) -> None:
        """It was not taken."""
        self._append([_Line("refused", name)])

    def has(self, name: str, jobs: Mapping[str, str]) -> None:
        """It became jobs: their ids, and the pilots that they are for."""
        self._append([_Line("job", name, job, pilot) for job, pilot in jobs.items()])

    def keeps(self, window: str) -> None:
        """A reservation is about to be made."""
        self._append([_Line("window", window)])

    def keeps_no_more(self, window: str) -> None:
        """It is not there any more."""
        self._append([_Line("gone", window)])

    def clear(self) -> None:
        """Nothing is left."""
        with contextlib.suppress(FileNotFoundError):
            self._path.write_bytes(b"")

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """
        Leaves out jobs that are known to be gone, so that the file does not grow for ever.

        Raises
        ------
        BursarError
            When it cannot be written; it is as it was then.
        """
        left = self.read()
        lines = [_Line("asked", name) for name in left.names]
        lines += [
            _Line("job", "", job, pilot) for job, pilot in left.jobs.items() if not is_gone(job)
        ]
        lines += [_Line("window", window) for window in left.windows]
        write_atomically(self._path, encode_lines(lines))
        self.lines = len(lines)

    def read(self) -> Leftovers:
        """What is written there; a line that a crash cut off is passed over."""
        found = Leftovers()
        open_names: dict[str, None] = {}
        windows: dict[str, None] = {}
        for line in read_lines(self._path, _Line):
            match line.kind:
                case "asked":
                    open_names[line.name] = None
                case "refused":
                    open_names.pop(line.name, None)
                case "job":
                    open_names.pop(line.name, None)
                    found.jobs[line.job] = line.pilot
                case "window":
                    windows[line.name] = None
                case "gone":
                    windows.pop(line.name, None)
        found.names, found.windows = list(open_names), list(windows)
        return found

    def _append(self, lines: Sequence[_Line]) -> None:
        append_lines(self._path, lines)
        self.lines += len(lines)
