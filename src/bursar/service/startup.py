"""What a service starts with: its identity and clock, which last over restarts, and its site."""

import os
import stat
import sys
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from bursar.dispatch.linux_processes import workers_of
from bursar.model.errors import InputError
from bursar.service.config import ServiceConfig
from bursar.service.interfaces import Entropy
from bursar.sites.local import LocalSite
from bursar.sites.protocol import Site
from bursar.store import Disk
from bursar.worker.accounts import ResourceLimits, find_account
from bursar.worker.detached_workers import (
    ControlGroups,
    DetachedStarter,
    WorkerSpec,
    open_control_groups,
)
from bursar.worker.launch import LocalWorkers

# The service's identity: names and secrets that are made once and kept over restarts.

FILE = "service.json"

_ID = 8  # bytes
_SECRET = 32  # bytes


class ServiceIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """
    Names, secrets and ports that stay the same over restarts.

    Parameters
    ----------
    run
        Identifier by which the service's processes are recognised.
    secret
        Secret from which the tokens of workers are derived, hexadecimal.
    port
        Port to which workers on this machine reconnect; 0: not chosen yet.
    door_certificate, door_key
        Certificate and key of the listener for workers on other machines, PEM; empty: not made
        yet.
    """

    run: str
    secret: str
    port: int = 0
    door_certificate: str = ""
    door_key: str = ""


async def load_identity(disk: Disk, entropy: Entropy) -> ServiceIdentity:
    """
    Load the service's identity, or make one on the first start.

    Raises
    ------
    DiskFull, DiskBroken
    """
    data = await disk.run(disk.load, FILE)
    if data is not None:
        return msgspec.json.decode(data, type=ServiceIdentity)
    made = ServiceIdentity(run=entropy(_ID).hex(), secret=entropy(_SECRET).hex())
    await save_identity(disk, made)
    return made


async def save_identity(disk: Disk, identity: ServiceIdentity) -> None:
    """
    Save the identity durably.

    Raises
    ------
    DiskFull, DiskBroken
    """
    await disk.run(disk.replace, FILE, msgspec.json.encode(identity))


# The clock of the service, which never goes back; time that is jumped over is not charged.

AHEAD = 1.0
"""Seconds by which the time of day must be ahead before the clock follows."""

_NOTED = 0.1
"""Seconds between two notes of the time: less than anything that is charged."""


class SteadyClock:
    """
    Seconds since the epoch.

    The clock runs by the machine's monotonic clock, and goes on when the time of day is put back.
    When the time of day is put forward, as after a suspended machine wakes up, :meth:`follow`
    takes the new time up and returns what was jumped over. A restart of the service goes back no
    further than the time that was last noted in a file.

    Parameters
    ----------
    steady, wall
        Monotonic clock and time of day of the machine, in seconds.
    """

    def __init__(
        self,
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._steady = steady
        self._wall = wall
        self._epoch = wall() - steady()
        self._file = -1
        self._note_at = 0.0

    def __call__(self) -> float:
        """Return the present moment."""
        now = self._epoch + self._steady()
        if self._file >= 0 and now >= self._note_at:
            self._note(now)
        return now

    def follow(self) -> tuple[float, float] | None:
        """
        Take up a time of day that was put forward.

        Returns
        -------
        tuple or None
            The moments before and after the jump; None where there was none.
        """
        now, wall = self._epoch + self._steady(), self._wall()
        if wall <= now + AHEAD:
            return None
        self._epoch += wall - now
        return now, wall

    def keep(self, path: Path) -> None:
        """
        Note the time in a file from now on, and be no earlier than what is noted there.

        A note survives a kill; a power cut may lose the last half a minute of it.

        Raises
        ------
        OSError
            When the file cannot be written.
        """
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        noted = _parse(os.pread(self._file, 100, 0))
        # Time that the last life has charged for must not come again.
        self._epoch = max(self._epoch, noted - self._steady())
        self()

    def close(self) -> None:
        """Note the time no more."""
        if self._file >= 0:
            self._note(self())
            os.close(self._file)
            self._file = -1

    def _note(self, now: float) -> None:
        text = f"{now:020.6f}".encode()
        # Not synced, ten times a second: see keep() for what may be lost. The checksum tells a torn
        # note.
        os.pwrite(self._file, b"%s %08x\n" % (text, zlib.crc32(text)), 0)
        self._note_at = now + _NOTED


def _parse(line: bytes) -> float:
    """Return the time in a note; 0 if the note is damaged or missing, so that the start goes on."""
    text, _, check = line.strip().partition(b" ")
    return float(text) if check == b"%08x" % zlib.crc32(text) and text else 0.0


# The site of a service: this machine, with one site for each local account, or a cluster.

PILOTS = "pilots"
"""Name of the folder, in the service's folder, with files of pilots."""

COMPLAINTS = "workers.log"
"""Name of the file, in the service's folder, with error output of workers on this machine."""


def make_site_provider(
    config: ServiceConfig, identity: ServiceIdentity, notify: Callable[[str], None]
) -> Callable[[str], Site]:
    """
    Return a function from a local account to the site for the account's workers.

    The empty account is the service's own.

    Parameters
    ----------
    notify
        Called with one line for people on each notable event.

    Raises
    ------
    InputError
        When the limits of tasks are too low for workers, or every account of this machine can
        read the key of sealed tasks.
    """
    if config.site.batch is not None:
        # Its model of queues is compiled code, which takes time and memory that others can save.
        from bursar.sites.batch import BatchSite

        folder = config.folder / PILOTS
        cluster = BatchSite(
            config.site, run=identity.run, folder=folder, lasting=True, history=folder
        )
        return lambda account: cluster
    if config.sealed is not None:
        _check_mode(config.sealed.key)
    rules = config.tasks
    try:
        limits = ResourceLimits(
            memory=rules.memory,
            file_size=rules.file_size,
            open_files=rules.open_files,
            processes=rules.processes,
        )
    except ValueError as error:
        raise InputError(str(error), where="tasks") from None
    groups = open_control_groups(notify) if rules.cgroups else None
    known: dict[str, Site] = {}

    def site(account: str) -> Site:
        # Made on demand and kept: an account that does not exist fails only its own users.
        if account not in known:
            terms = _terms(config, account, limits, groups)
            starter = DetachedStarter(terms, living=workers_of(identity.run))
            known[account] = LocalSite(
                config.site, workers=partial(LocalWorkers, starter=starter), run=identity.run
            )
        return known[account]

    return site


def _check_mode(key: Path) -> None:
    """Refuse a key file that all accounts can read: workers of other accounts are sent the key."""
    try:
        mode = key.stat().st_mode
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(key)) from None
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise InputError(
            "everybody on this machine can read or change the key of sealed tasks",
            where=str(key),
            hint=f"chmod 600 {key}",
        )


def _terms(
    config: ServiceConfig, account: str, limits: ResourceLimits, groups: ControlGroups | None
) -> WorkerSpec:
    return WorkerSpec(
        account=find_account(account) if account else None,
        limits=limits,
        groups=groups,
        seal_key=str(config.sealed.key) if config.sealed is not None else "",
        python=config.tasks.python or sys.executable,
        errors=str(config.folder / COMPLAINTS),
    )
