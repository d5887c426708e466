"""Journal of a run's jobs at a scheduler, by which a killed run finds the jobs again."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import msgspec

from bursar.dispatch.folders import write_atomically
from bursar.sites.durable_lines import append_lines, encode_lines, read_lines

PilotJobEvent = Literal["asked", "refused", "job", "began", "requeued", "window", "gone"]
"""A request is about to be handed in; was not taken; became a job; the job began; was put back
into the queue; processors are about to be kept by a reservation; and are not any more."""


class PilotJobLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One line of the file; ``name`` is that of the request or of the reservation.

    ``pilots`` are those that a request is for, in the order of its jobs, ``host`` is the machine
    on which its command runs, empty over SSH; ``at`` is when that happened, 0 if unknown,
    ``until`` when the job's wall-clock limit is over, seconds since the epoch.
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
    """A resource manager that finds jobs by name."""

    async def named(self, name: str) -> list[str]:
        """Return ids of this user's listed jobs with a name, where possible ended ones, too."""


@dataclass(slots=True)
class HoldingInterval:
    """
    Time for which a job was seen to hold processors.

    Parameters
    ----------
    began
        Start by the scheduler's record, seconds since the epoch.
    until
        End of its wall-clock limit, seconds since the epoch; None where unknown.
    requeued
        When the job was seen back in the queue, seconds since the epoch; None: never.
    """

    began: float
    until: float | None = None
    requeued: float | None = None


@dataclass(slots=True)
class RecoveredJobs:
    """
    Jobs, requests and reservations that an earlier process may have left at the scheduler.

    Parameters
    ----------
    jobs
        Pilot names by job id.
    requests
        Requests whose result was not recorded, by name.
    stints
        When jobs were seen to run, by job id.
    """

    jobs: dict[str, str] = field(default_factory=dict)
    requests: dict[str, PilotJobLine] = field(default_factory=dict)
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
    Keeps a file of requests to a scheduler, each of which is on disk before the scheduler is asked.

    Parameters
    ----------
    path
        Path of the file, which may be missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.lines = 0
        """Number of lines written since the file was made or tidied."""

    def asks(self, name: str, pilots: Sequence[str] = (), at: float = 0.0, host: str = "") -> None:
        """Record that a request for pilots is about to be submitted."""
        self._append([PilotJobLine("asked", name, pilots=tuple(pilots), host=host, at=at)])

    def refused(self, name: str) -> None:
        """Record that the scheduler refused a request."""
        self._append([PilotJobLine("refused", name)])

    def has(self, name: str, jobs: Mapping[str, str]) -> None:
        """Record the jobs of a request, with the pilot of each job."""
        self._append([PilotJobLine("job", name, job, pilot) for job, pilot in jobs.items()])

    def began(self, job: str, at: float, until: float | None) -> None:
        """Record the time at which a job got processors, seconds since the epoch."""
        self._append([PilotJobLine("began", "", job, at=at, until=until)])

    def requeued(self, job: str, at: float) -> None:
        """Record that a job that ran waits again."""
        self._append([PilotJobLine("requeued", "", job, at=at)])

    def keeps(self, window: str) -> None:
        """Record that a reservation is about to be made."""
        self._append([PilotJobLine("window", window)])

    def keeps_no_more(self, window: str) -> None:
        """Record that a reservation is gone."""
        self._append([PilotJobLine("gone", window)])

    def clear(self) -> None:
        """Empty the file, since nothing is left at the scheduler."""
        with contextlib.suppress(FileNotFoundError):
            # Emptied, not removed: a lost write of the emptiness only makes the next process ask
            # once more.
            self._path.write_bytes(b"")

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """
        Drop the lines of jobs that are known to be gone, so that the file does not grow for ever.

        Raises
        ------
        BursarError
            When the file cannot be written; the old one stays.
        """
        left = self.read()
        lines = list(left.requests.values())
        lines += [
            PilotJobLine("job", "", job, pilot)
            for job, pilot in left.jobs.items()
            if not is_gone(job)
        ]
        lines += [PilotJobLine("window", window) for window in left.windows]
        # In the place of the old file as a whole: a kill leaves either all lines or the tidied
        # ones.
        write_atomically(self._path, encode_lines(lines))
        self.lines = len(lines)

    def read(self) -> RecoveredJobs:
        """Read the journal, skipping a line cut off by a crash."""
        found = RecoveredJobs()
        windows: dict[str, None] = {}
        for line in read_lines(self._path, PilotJobLine):
            match line.kind:
                case "asked":
                    found.requests[line.name] = line
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
                    # Only the last: a job may be put back several times, each ends the time before
                    # it.
                    for stint in found.stints.get(line.job, [])[-1:]:
                        stint.requeued = line.at
                case "window":
                    windows[line.name] = None
                case "gone":
                    windows.pop(line.name, None)
        found.windows = list(windows)
        return found

    def _append(self, lines: Sequence[PilotJobLine]) -> None:
        append_lines(self._path, lines)
        self.lines += len(lines)
