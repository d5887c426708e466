"""
Seals on a journal, which only a program that holds this user's key can write.

A chained digest without a key shows every accident, and every change by a writer who does
not recompute the digest. A seal is a keyed digest of the chain, so that recomputing takes the
key as well. The key lies outside of all run folders and only the user can read it (mode 0600);
so can a task that runs as the same user.
"""

import contextlib
import os
import secrets
from hashlib import blake2b
from pathlib import Path

from bursar.dispatch.user_state import state_folder

_NAME = "journal.key"
_LENGTH = 32
_MARK = 4  # bytes that name a key in its seals
_SEAL = 16  # bytes


class SealingKey:
    """
    A user's key for the journals of runs.

    Parameters
    ----------
    secret
        Random bytes.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._mark = blake2b(secret, digest_size=_MARK, person=b"bursar key").digest()

    def seal(self, digest: bytes) -> bytes:
        """Return the seal of a digest; the seal names the key that was used."""
        return self._mark + blake2b(digest, digest_size=_SEAL, key=self._secret).digest()

    def is_mine(self, seal: bytes) -> bool:
        """Return whether a seal names this key as the one that was used."""
        return seal[:_MARK] == self._mark


def sealing_key(*, make: bool = False) -> SealingKey | None:
    """
    Return this user's key; None where there is none.

    Parameters
    ----------
    make
        Whether one is made where there is none; where that cannot be written, there is none.
    """
    folder = state_folder()
    if folder is None:
        return None
    path = folder / _NAME
    secret = _read(path)
    if secret is None and make:
        with contextlib.suppress(OSError):
            _make(path)
        secret = _read(path)
    return None if secret is None else SealingKey(secret)


def _read(path: Path) -> bytes | None:
    """Return the secret in a file; None: it cannot be read or has not the right length."""
    try:
        secret = path.read_bytes()
    except OSError:
        return None
    return secret if len(secret) == _LENGTH else None


def _make(path: Path) -> None:
    """Make a key, whole or not at all; of two programs that do so at once, one wins for both."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{_NAME}.{os.getpid()}.{secrets.token_hex(4)}")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            os.write(file, secrets.token_bytes(_LENGTH))
            os.fsync(file)
        finally:
            os.close(file)
        with contextlib.suppress(FileExistsError):
            # A link fails where the name exists, a rename would replace a key that another program
            # has used by now.
            os.link(fresh, path)
    finally:
        os.unlink(fresh)
