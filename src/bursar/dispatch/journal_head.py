"""
The head of a journal: a small file beside it that says how far it went.

A write-ahead log that is lost, or damaged in its middle, leaves an older state that is whole
in itself; nothing inside of the database can tell. So after each transaction that was
synchronised to disk its number and digest are noted here, without waiting for the disk. After
a kill the head is exact. After a power cut it may be older than the journal, never newer: a
journal that ends before its head has lost what was acknowledged.
"""

import os
import time
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from bursar.model.errors import InputError

_DIGITS = 20
_CHECK = 8  # bytes
_TRIES = 20  # readings of a head that is being written
_PAUSE = 0.01  # seconds between them


class JournalHead(NamedTuple):
    """
    The last transaction of a journal that is known to be on disk.

    Parameters
    ----------
    number
        Number of the transaction; 0 for none yet.
    digest
        Digest of the chain up to that transaction.
    """

    number: int
    digest: bytes


def head_path(journal: Path) -> Path:
    """Return the name of a journal's head."""
    return journal.with_name(f"{journal.name}.head")


class JournalHeadFile:
    """
    Writes the head of a journal; makes a missing head file.

    Parameters
    ----------
    journal
        Path of the journal.
    durable
        Whether a new head file is synchronised to disk, once, when it is made.

    Raises
    ------
    OSError
        When the file cannot be written.
    """

    def __init__(self, journal: Path, *, durable: bool) -> None:
        self._durable = durable
        path = head_path(journal)
        self._folder = path.parent
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def begin(self, head: JournalHead) -> None:
        """Write the first head of a journal, and wait until head and file name are on disk."""
        self.note(head)
        if self._durable:
            os.fsync(self._file)
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # The name, too: a journal whose head is missing counts as damaged.
                os.fsync(folder)
            finally:
                os.close(folder)

    def note(self, head: JournalHead) -> None:
        """Write a head over the one before: one write of one size, whole or not at all."""
        # No sync: after a power cut the head may be older than the journal, which does no harm.
        os.pwrite(self._file, _line(head), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_head(journal: Path) -> JournalHead | None:
    """
    Return the head of a journal, also while another process writes there; None without one.

    Raises
    ------
    InputError
        When it is damaged or cannot be read.
    """
    path = head_path(journal)
    for left in reversed(range(_TRIES)):
        try:
            line = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
        # A reader may meet the write half done; the check sum tells, and the next look finds it
        # whole.
        head = _parse(line)
        if head is not None:
            return head
        if left:
            time.sleep(_PAUSE)
    raise InputError(
        "is damaged, so that nobody can say whether the journal is whole; restore the run's "
        "folder from a copy",
        where=str(path),
    )


def _line(head: JournalHead) -> bytes:
    text = f"bursar journal head {head.number:0{_DIGITS}d} {head.digest.hex()}".encode()
    return b"%s %s\n" % (text, _check(text))


def _check(text: bytes) -> bytes:
    return blake2b(text, digest_size=_CHECK).hexdigest().encode()


def _parse(line: bytes) -> JournalHead | None:
    text, _, check = line.rstrip(b"\n").rpartition(b" ")
    if _check(text) != check:
        return None
    *_, number, digest = text.split()
    return JournalHead(int(number), bytes.fromhex(digest.decode()))
