"""Which client certificates are good now: the authorities and the list of what was revoked."""

import logging
import os
from pathlib import Path

from bursar.model.errors import InputError
from bursar.sealing.certificates import TrustStore, read_certificates, read_lists, read_pem
from bursar.service.interfaces import Clock
from bursar.service.logs import LOGGER

_log = logging.getLogger(f"{LOGGER}.identity")

_LOOKED_AT = 1.0
"""Seconds between two looks at the files."""


class TrustFiles:
    """
    Checks clients' certificates against files, and reads these again when they have changed.

    TLS has found a certificate good when a connection began. This is asked at each request: so
    what was revoked is refused at once, on connections that are there already, too.

    Parameters
    ----------
    authorities
        PEM: certificates of those who are trusted; revocation lists may be among them.
    revoked
        PEM: revocation lists; None: those beside the authorities only.

    Raises
    ------
    InputError
        When a file is not what is expected. Later on this is a :attr:`problem`, and what was
        read before holds.
    """

    def __init__(self, authorities: Path, revoked: Path | None, *, clock: Clock) -> None:
        self._paths = (authorities,) if revoked is None else (authorities, revoked)
        self._clock = clock
        self._seen = self._stamp()
        self._trust = self._read()
        self._check_at = clock() + _LOOKED_AT
        self.problem = ""
        """Why what has changed on disk does not hold here; empty: all does."""

    def user_of(self, certificate: bytes) -> str:
        """
        Return the name of the user whose certificate (DER) this is.

        Raises
        ------
        Untrusted
            When it is no user's, or not good any more.
        """
        now = self._clock()
        if now >= self._check_at:
            self._check_at = now + _LOOKED_AT
            self.refresh()
        return self._trust.vouch(certificate, "user", now).name

    def refresh(self) -> None:
        """Reads the files again when they have changed."""
        try:
            seen = self._stamp()
            if seen != self._seen:
                self._trust = self._read()
        except InputError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                _log.error("what was read before holds: %s", error)
            return
        self._seen = seen
        self.problem = ""

    def _stamp(self) -> list[tuple[int, int, int]]:
        """Changes with the files: they are replaced, not written into."""
        stamps = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError as error:
                raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return stamps

    def _read(self) -> TrustStore:
        certificates, lists = [], []
        for number, path in enumerate(self._paths):
            pem = read_pem(path)
            try:
                if number == 0:
                    certificates = read_certificates(pem)
                lists += read_lists(pem)
            except InputError as error:
                raise error.within(str(path)) from None
        try:
            return TrustStore(certificates, lists)
        except InputError as error:
            raise error.within(", ".join(map(str, self._paths))) from None
