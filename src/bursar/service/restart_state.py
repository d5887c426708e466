"""What a service keeps over restarts: its names and secrets, and a clock that never goes back."""

import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from bursar.service.interfaces import Entropy
from bursar.store import Disk

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
