"""Trust in client certificates: the authorities and revocation lists, read from files."""

import logging
import os
from pathlib import Path

from bursar.model.errors import InputError
from bursar.sealing.certificates import TrustStore, read_certificates, read_lists, read_pem
from bursar.service.interfaces import Clock
from bursar.service.logs import LOGGER

_log = logging.getLogger(f"{LOGGER}.identity")

_LOOKED_AT = 1.0
"""Least number of seconds between two checks of the files for changes."""


class TrustFiles:
    """
    Checks clients' certificates against files, which are read again after each change.

    TLS verifies a certificate when a connection begins. This check is made at each request, so
    that a revoked certificate is refused on open connections, too.

    Parameters
    ----------
    authorities
        PEM file of the certificates of trusted authorities; may hold revocation lists, too.
    revoked
        PEM file of more revocation lists; None: there is no such file.

    Raises
    ------
    InputError
        When a file is not what is expected. Later on this is a :attr:`problem`, and the content
        that was read before holds.
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
            When the certificate is not a user's, or no longer valid.
        """
        now = self._clock()
        if now >= self._check_at:
            self._check_at = now + _LOOKED_AT
            self.refresh()
        return self._trust.vouch(certificate, "user", now).name

    def refresh(self) -> None:
        """Read the files again if one has changed; keep the last content if one cannot be read."""
        try:
            # The stamp is taken before the files are read: a file that is replaced in between is
            # read once more next time, and never missed.
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
        """Return modification time, size and inode of each file, which change with the content."""
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
                # Only the first file says whom to trust: a file of lists cannot bring in an
                # authority.
                if number == 0:
                    certificates = read_certificates(pem)
                lists += read_lists(pem)
            except InputError as error:
                raise error.within(str(path)) from None
        try:
            return TrustStore(certificates, lists)
        except InputError as error:
            raise error.within(", ".join(map(str, self._paths))) from None
