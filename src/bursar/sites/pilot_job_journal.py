"""What is at a scheduler because of us, written down so that it is found again after a kill."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from bursar.dispatch.atomic_file import write_atomically
from bursar.sites.durable_lines import append_lines, encode_lines, read_lines

PilotJobEvent = Literal["asked", "refused", "job", "began", "requeued", "window", "gone"]
"""A request is about to be handed in; was not taken; became a job; the job began; was put back
into the queue; processors are about to be kept by a reservation; and are not any more."""


class _PilotJobLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One line of the file; ``name`` is that of the request or of the reservation.

    ``pilots`` are those that a request is for, in the order of its jobs, ``host`` is the machine
    on which its command runs; ``at`` is when that happened, ``until`` when the job's wall-clock
    limit is over, seconds since the epoch.
    """

    kind: PilotJobEvent
    name: str
    job: str = ""
    pilot: str = ""
    pilots: tuple[str, ...] = ()
    host: str = ""
    at: float = 0.0
    until: float | None = None


@runtime_checkable
class JobFinder(Protocol):
    """A manager that finds jobs by their names."""

    async def named(self, name: str) -> list[str]:
        """Ids of this user's jobs of a name that are listed, where possible ended ones, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedRequest:
    """
    A request that was handed in, and of which nobody wrote down what became of it.

    Parameters
    ----------
    pilots
        That it is for, in the order of its jobs.
    at
        Seconds since the epoch.
    host
        Machine on which the command ran that carried it; empty: it ran elsewhere.
    """

    pilots: tuple[str, ...] = ()
    at: float = 0.0
    host: str = ""


@dataclass(slots=True)
class HoldingInterval:
    """
    When a job was seen to hold its processors.

    Parameters
    ----------
    began
        By the scheduler's word, seconds since the epoch.
    until
        When its wall-clock limit is over; None where unknown.
    requeued
        When it was heard that it had been put back into the queue; None: it was not.
    """

    began: float
    until: float | None = None
    requeued: float | None = None


@dataclass(slots=True)
class RecoveredJobs:
    """
    What an earlier life may have left.

    Parameters
    ----------
    jobs
        Ids of jobs, and the names of their pilots.
    requests
        By name, those of which nobody wrote down what became of them.
    stints
        When jobs were seen to run, by their ids.
    windows
        Names of reservations.
    """

    jobs: dict[str, str] = field(default_factory=dict)
    requests: dict[str, SubmittedRequest] = field(default_factory=dict)
    stints: dict[str, list[HoldingInterval]] = field(default_factory=dict)
    windows: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.jobs or self.requests or self.windows)

    @property
    def names(self) -> list[str]:
        """Names of the requests."""
        return list(self.requests)


class PilotJobJournal:
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

    def asks(self, name: str, pilots: Sequence[str] = (), at: float = 0.0, host: str = "") -> None:
        """A request for pilots is about to be handed in."""
        self._append([_PilotJobLine("asked", name, pilots=tuple(pilots), host=host, at=at)])

    def refused(self, name: str) -> None:
        """It was not taken."""
        self._append([_PilotJobLine("refused", name)])

    def has(self, name: str, jobs: Mapping[str, str]) -> None:
        """It became jobs: their ids, and the pilots that they are for."""
        self._append([_PilotJobLine("job", name, job, pilot) for job, pilot in jobs.items()])

    def began(self, job: str, at: float, until: float | None) -> None:
        """A job has its processors since a moment, seconds since the epoch."""
        self._append([_PilotJobLine("began", "", job, at=at, until=until)])

    def requeued(self, job: str, at: float) -> None:
        """A job that ran waits again."""
        self._append([_PilotJobLine("requeued", "", job, at=at)])

    def keeps(self, window: str) -> None:
        """A reservation is about to be made."""
        self._append([_PilotJobLine("window", window)])

    def keeps_no_more(self, window: str) -> None:
        """It is not there any more."""
        self._append([_PilotJobLine("gone", window)])

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
        lines = [
            _PilotJobLine("asked", name, pilots=handed.pilots, host=handed.host, at=handed.at)
            for name, handed in left.requests.items()
        ]
        lines += [
            _PilotJobLine("job", "", job, pilot)
            for job, pilot in left.jobs.items()
            if not is_gone(job)
        ]
        lines += [_PilotJobLine("window", window) for window in left.windows]
        write_atomically(self._path, encode_lines(lines))
        self.lines = len(lines)

    def read(self) -> RecoveredJobs:
        """What is written there; a line that a crash cut off is passed over."""
        found = RecoveredJobs()
        windows: dict[str, None] = {}
        for line in read_lines(self._path, _PilotJobLine):
            match line.kind:
                case "asked":
                    found.requests[line.name] = SubmittedRequest(
                        pilots=line.pilots, at=line.at, host=line.host
                    )
                case "refused":
                    found.requests.pop(line.name, None)
                case "job":
                    found.requests.pop(line.name, None)
                    found.jobs[line.job] = line.pilot
                case "began":
                    found.stints.setdefault(line.job, []).append(
                        HoldingInterval(line.at, line.until)
                    )
                case "requeued":
                    for stint in found.stints.get(line.job, [])[-1:]:
                        stint.requeued = line.at
                case "window":
                    windows[line.name] = None
                case "gone":
                    windows.pop(line.name, None)
        found.windows = list(windows)
        return found

    def _append(self, lines: Sequence[_PilotJobLine]) -> None:
        append_lines(self._path, lines)
        self.lines += len(lines)
