"""What is at a scheduler because of us, written down so that it is found again after a kill."""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

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

    def asks(self, name: str) -> None:
        """A request is about to be handed in."""
        self._append([_Line("asked", name)])

    def refused(self, name: str) -> None:
        """It was not taken."""
        self._append([_Line("refused", name)])

    def has(self, name: str, jobs: Mapping[str, str]) -> None:
        """It became jobs: their ids, and the pilots that they are for."""
        self._append(_Line("job", name, job, pilot) for job, pilot in jobs.items())

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

    def read(self) -> Leftovers:
        """What is written there; a line that a crash cut off is passed over."""
        found = Leftovers()
        open_names: dict[str, None] = {}
        windows: dict[str, None] = {}
        for line in self._lines():
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

    def _lines(self) -> Sequence[_Line]:
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        lines = []
        for one in data.splitlines():
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
                lines.append(msgspec.json.decode(one, type=_Line))
        return lines

    def _append(self, lines: Iterable[_Line]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            # Whatever a crash cut off before is a line of its own then.
            start = b"\n" if file.tell() else b""
            file.write(start + b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
