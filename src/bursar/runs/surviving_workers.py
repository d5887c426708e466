"""
Workers on this machine that go on when their run's process is killed, and are taken over.

The run's folder says on which port and with which secret they look for the run. Whoever resumes
the run within the time for which they go on listens there again, and goes on with the leases whose
processors they use: paid from the first begin on, as if nothing had happened.
"""

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bursar.dispatch.journal_records import (
    AttemptRecord,
    AttemptStart,
    JournalState,
    interrupted_attempts,
)
from bursar.dispatch.linux_processes import workers_of
from bursar.engine.core import RestoredAttempts
from bursar.engine.dispatcher import DispatchOptions
from bursar.formats.units import parse_duration
from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease
from bursar.model.errors import BursarError, InputError
from bursar.model.money import Refusal
from bursar.runs.incarnations import incarnations_of, leases_of
from bursar.sites.protocol import LastingSite, Site

OUTLIVES = 600.0
"""Seconds for which workers and their tasks go on after the run's process was killed."""

VARIABLE = "BURSAR_OUTLIVES"
"""Environment variable that states another time; 0: they end with the process."""

RETURN = 30.0
"""Seconds for which a resumed run waits for workers to come back; they try every two seconds."""

_PORT_PATIENCE = 2.0
"""Seconds to wait for the port, which an attempt of a worker to connect may hold for a moment."""


class WorkerContact(msgspec.Struct, frozen=True):
    """
    Port and secret with which the workers of a run find it.

    Parameters
    ----------
    port
        Port on the loopback interface.
    token
        Secret that admits a worker.
    epoch
        What zero of the machine's monotonic clock is in the journal, seconds since the epoch. The
        time for which nobody carried the run out is paid, and measured by no other clock: workers
        do not outlive the machine, and the time of day may be set meanwhile.
    """

    port: int
    token: str
    epoch: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SurvivingWorkers:
    """
    Workers of a killed process that still run, with what they need to come back.

    Parameters
    ----------
    leases
        Leases whose processors they use, by name.
    processes
        Processes by the worker's name.
    listening
        Socket that is bound to the port on which they look for the run.
    token
        Secret that they show.
    epoch
        What the loop's time 0 is in the journal.
    since
        When they were taken over, seconds since the epoch.
    """

    leases: Mapping[str, Lease]
    processes: Mapping[str, int]
    listening: socket.socket
    token: str
    epoch: float
    since: float = 0.0

    def taken_over(
        self, run: str, guard: BudgetGuard, sites: Mapping[str, Site], now: float
    ) -> "SurvivingWorkers | None":
        """
        Open the leases again, and tell their sites of the workers.

        Parameters
        ----------
        run
            Identity of the run.
        guard
            Guard of the budget, which has begun.
        now
            Present moment, seconds since the epoch.

        Returns
        -------
        SurvivingWorkers or None
            Those of leases for which there is money; None where there is none for any.
        """
        # Before any worker comes back: what it has is admitted against the hold of its lease.
        kept = {
            name: lease
            for name, lease in self.leases.items()
            if not isinstance(guard.open(lease, now), Refusal)
        }
        if not kept:
            self.listening.close()
            return None
        left = _of_leases(self.processes, kept.values())
        for site in sites.values():
            if isinstance(site, LastingSite):
                site.expect(run, left, kept)
        return replace(self, leases=kept, processes=left, since=now)

    def expected(self, options: DispatchOptions, journal: JournalState) -> DispatchOptions:
        """Return options by which a dispatcher takes the workers over, with what they may have."""
        mine = _of_workers(journal, self.processes)
        since = _begin_of(journal)
        restored = RestoredAttempts.of(
            [start for start in mine.open_starts if start.time >= since],
            interrupted_attempts(mine, since),
            journal,
        )
        restored.missing |= self.processes.keys()
        restored.since, restored.patience = since, RETURN
        return replace(
            options,
            restored=restored,
            listening=self.listening,
            token=self.token,
            last_seen=self.since,
            epoch=self.epoch,
        )


def outlives() -> float:
    """
    Return the seconds for which workers go on, by the environment or :data:`OUTLIVES`.

    Raises
    ------
    InputError
        When the environment states no time.
    """
    stated = os.environ.get(VARIABLE)
    if not stated:
        return OUTLIVES
    try:
        return parse_duration(float(stated) if stated.isdecimal() else stated)
    except InputError as error:
        raise InputError(str(error), where=VARIABLE) from None


class WorkerContactFile:
    """
    The file in a run's folder by which workers that outlived the run are found again.

    Parameters
    ----------
    path
        Path of the file, which only the run's user may read.
    outlives
        Seconds for which workers go on after the run's process was killed.
    """

    def __init__(self, path: Path, outlives: float = OUTLIVES) -> None:
        self._path = path
        self.outlives = outlives

    def write(self, contact: WorkerContact) -> None:
        """
        Note port and secret, before any worker knows these.

        Raises
        ------
        BursarError
            When the file cannot be written.
        """
        fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            with open(os.open(fresh, flags, 0o600), "wb") as file:
                file.write(msgspec.json.encode(contact))
            # Not synchronised: the workers do not survive a power cut either.
            fresh.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise BursarError(f"{self._path}: cannot be written: {error.strerror}") from None

    def remove(self) -> None:
        """Forget port and secret: no worker is left."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def find(
        self,
        run: str,
        journal: JournalState,
        choose: Callable[[Sequence[Lease]], Collection[str]],
    ) -> SurvivingWorkers | None:
        """
        Return the workers that can be taken over; None: there are none. May wait.

        Parameters
        ----------
        run
            Identity of the run.
        journal
            What earlier incarnations have journalled.
        choose
            Chooses the leases with which the run can go on, by name.
        """
        try:
            contact = msgspec.json.decode(self._path.read_bytes(), type=WorkerContact)
        except (OSError, msgspec.MsgspecError):
            return None
        still_open = [lease for lease in leases_of(journal.events).values() if _is_held(lease)]
        names = set(choose(still_open))
        leases = [lease for lease in still_open if lease.id in names]
        living = _of_leases(workers_of(run) if leases else {}, leases)
        leases = [lease for lease in leases if _of_leases(living, [lease])]
        listening = _bound(contact.port) if living else None
        if listening is None:
            return None
        return SurvivingWorkers(
            leases={lease.id: lease for lease in leases},
            processes=living,
            listening=listening,
            token=contact.token,
            epoch=max(contact.epoch, journal.last_seen - time.monotonic()),
        )


def cut_off(
    journal: JournalState, spared: Collection[str]
) -> tuple[list[AttemptRecord], list[AttemptStart]]:
    """
    Return the records of attempts that ended with the killed process, and starts to be withdrawn.

    Parameters
    ----------
    spared
        Names of workers that go on.
    """
    others = {start.worker for start in journal.open_starts} - set(spared)
    lost = _of_workers(journal, others)
    records = interrupted_attempts(lost, _begin_of(journal))
    begun = {(record.outcome.task, record.outcome.attempt) for record in records}
    # What only waited at a worker is withdrawn: after a second kill it must not pass for an attempt
    # of the life that goes on.
    waited = [s for s in lost.open_starts if s.room and (s.task, s.attempt) not in begun]
    return records, [AttemptStart.given_back(s.task, s.attempt) for s in waited]


def _begin_of(journal: JournalState) -> float:
    """Return the begin of the last incarnation: what was handed out since may still run."""
    return incarnations_of(journal.events)[-1][0]


def _of_workers(journal: JournalState, workers: Collection[str]) -> JournalState:
    starts = [start for start in journal.open_starts if start.worker in workers]
    return replace(journal, open_starts=starts)


def _is_held(lease: Lease) -> bool:
    """Whether a lease's processors are held until they are given back."""
    return lease.end is None and lease.until is None and not lease.asked


def _of_leases(processes: Mapping[str, int], leases: Collection[Lease]) -> dict[str, int]:
    """Return the processes of the workers of some leases, by name of the worker."""
    prefixes = tuple(f"{lease.site}-{lease.id}-" for lease in leases)
    return {name: pid for name, pid in processes.items() if prefixes and name.startswith(prefixes)}


def _bound(port: int) -> socket.socket | None:
    """Return a socket bound to a port of the loopback interface; None: another process has it."""
    give_up = time.monotonic() + _PORT_PATIENCE
    while True:
        listening = socket.socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", port))
        except OSError:
            listening.close()
            if time.monotonic() >= give_up:
                return None
            time.sleep(0.05)
        else:
            return listening
