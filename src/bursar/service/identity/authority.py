"""
A private authority in a folder, and its records of issued certificates.

::

    ca.pem              what everybody else needs: the authorities that are trusted, and what
                        each of them has revoked; the newest authority first
    authority-1.pem     an authority's key and certificate; the greatest number issues
    issued/SERIAL.crt   every certificate that was issued
    KIND-NAME.pem       somebody's key and certificate; a worker's holds ``ca.pem`` too
    KIND-NAME.crt       the certificate alone, to be shown to others

Files with keys have mode 0600, so has the folder 0700.
"""

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from bursar.model.errors import BursarError, InputError
from bursar.sealing.certificates import (
    CertificateSubject,
    Identity,
    Kind,
    TrustStore,
    UntrustedCertificate,
    host_names_of,
    is_authority,
    is_current,
    read_certificates,
    read_identities,
    read_lists,
    read_pem,
    subject_of,
)
from bursar.service.identity.issuing import (
    AUTHORITY_DAYS,
    CERTIFICATE_DAYS,
    certificate_pem,
    identity_pem,
    issue,
    make_authority,
    make_revocation_list,
    write_file,
)

# Records of issued certificates.

CertificateState = Literal["good", "expired", "revoked", "untrusted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateRecord:
    """
    A certificate that was issued.

    Parameters
    ----------
    serial
        Serial number, hexadecimal.
    hosts
        Names and addresses of a server; empty for others.
    begin, end
        Period of validity, seconds since the epoch.
    state
        ``"untrusted"``: the authority that issued the certificate was retired.
    """

    serial: str
    party: CertificateSubject
    hosts: tuple[str, ...]
    begin: float
    end: float
    state: CertificateState


def describe_certificate(
    certificate: x509.Certificate, trust: TrustStore, now: float
) -> CertificateRecord:
    """
    Describe a certificate, with the state at a time in seconds since the epoch.

    Raises
    ------
    InputError
        When the certificate does not name a holder in our form.
    """
    party = subject_of(certificate)
    if party is None:
        raise InputError(f"certificate {serial_of(certificate)} does not say whose it is")
    return CertificateRecord(
        serial=serial_of(certificate),
        party=party,
        hosts=host_names_of(certificate),
        begin=certificate.not_valid_before_utc.timestamp(),
        end=certificate.not_valid_after_utc.timestamp(),
        state=_state(certificate, party, trust, now),
    )


def describe_file(path: Path) -> list[dict[str, Any]]:
    """
    Describe the certificates in a PEM file, and pass over keys.

    Each has ``kind``, ``name``, ``serial``, ``hosts``, ``begin``, ``end`` (seconds since the
    epoch) and ``sha256``.

    Raises
    ------
    InputError
        When the file cannot be read, or holds no certificate.
    """
    pem = read_pem(path)
    try:
        certificates = read_certificates(pem)
    except InputError as error:
        raise error.within(str(path)) from None
    return [_described(each) for each in certificates]


def _described(certificate: x509.Certificate) -> dict[str, Any]:
    party = subject_of(certificate)
    # Certificates of other authorities are described, too, as far as they can be.
    other = "authority" if is_authority(certificate) else "unknown"
    return {
        "kind": other if party is None else party.kind,
        "name": certificate.subject.rfc4514_string() if party is None else party.name,
        "serial": serial_of(certificate),
        "hosts": host_names_of(certificate),
        "begin": certificate.not_valid_before_utc.timestamp(),
        "end": certificate.not_valid_after_utc.timestamp(),
        "sha256": certificate.fingerprint(hashes.SHA256()).hex(),
    }


def serial_of(certificate: x509.Certificate) -> str:
    """Return a certificate's serial number in hexadecimal digits, all of one length."""
    return f"{certificate.serial_number:040x}"


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of an authority."""
    name = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return name if isinstance(name, str) else name.decode()


def _state(
    certificate: x509.Certificate, party: CertificateSubject, trust: TrustStore, now: float
) -> CertificateState:
    # In this order: a revoked certificate is called so even after its end.
    if trust.is_revoked(certificate):
        return "revoked"
    if not is_current(certificate, now):
        return "expired"
    try:
        trust.check(certificate, party.kind, now)
    except UntrustedCertificate:
        return "untrusted"
    return "good"


# A private authority in a folder.

TRUSTED = "ca.pem"
"""Name of the file with trusted authorities and revocation lists, which all others need."""

_ISSUED = "issued"
_NUMBERED = re.compile(r"authority-([0-9]+)\.pem")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """
    A certificate that was issued, and the files that were written.
    """

    identity: Path
    certificate: Path
    record: CertificateRecord


class AuthorityFolder:
    """
    An authority's folder. One process at a time changes it.

    Raises
    ------
    InputError
        When the folder holds no authority.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self._clock = clock
        if not self._numbers():
            raise InputError(
                "there is no authority here", where=str(folder), hint="bursar certs init makes one"
            )

    @classmethod
    def create(
        cls,
        folder: Path,
        name: str,
        *,
        days: float = AUTHORITY_DAYS,
        clock: Callable[[], float] = time.time,
    ) -> "AuthorityFolder":
        """
        Make the first authority.

        Raises
        ------
        InputError
            When there is one already.
        BursarError
            When something cannot be written.
        """
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BursarError(f"{folder}: cannot be made: {error.strerror}") from None
        made = cls.__new__(cls)
        made.folder, made._clock = folder, clock
        with made._locked():
            if made._numbers():
                raise InputError("there is an authority already", where=str(folder))
            made._add_authority(1, name, days)
        return made

    @property
    def trusted(self) -> Path:
        """File of the trusted authorities and their revocation lists, for all others to copy."""
        return self.folder / TRUSTED

    def rotate(self, *, days: float = AUTHORITY_DAYS) -> str:
        """
        Make the next authority, which issues from now on, and return the authority's name.

        The old ones stay trusted until :meth:`retire`.
        """
        with self._locked():
            number = self._numbers()[-1]
            # The number at the end of the name is replaced: two authorities that are trusted at a
            # time must have different names, as certificates name their issuer.
            name = common_name(self._authority(number).certificate)
            return self._add_authority(number + 1, re.sub(r" [0-9]+$", "", name), days)

    def retire(self) -> int:
        """Stop trusting all but the newest authority; return how many others were trusted."""
        with self._locked():
            newest = self._authority(self._numbers()[-1])
            # Nothing that the others issued is trusted from now on, so their lists are not needed.
            gone = len(self._trust().authorities) - 1
            self._write_trusted([newest], self._lists())
        return gone

    def issue(
        self,
        kind: Kind,
        name: str,
        *,
        hosts: Sequence[str] = (),
        days: float = CERTIFICATE_DAYS,
        out: Path | None = None,
        force: bool = False,
    ) -> IssuedCertificate:
        """
        Make a key and certificate for a user, a worker or a server.

        Parameters
        ----------
        hosts
            Names and addresses by which clients call a server.
        out
            Folder for the files; None: the authority's.
        force
            Whether files that are there are replaced.

        Raises
        ------
        InputError
            When a file exists already, or a name is invalid.
        BursarError
            When something cannot be written.
        """
        with self._locked():
            return self._issue(
                kind, name, hosts=hosts, days=days, folder=out or self.folder, force=force
            )

    def renew(
        self,
        kind: Kind,
        name: str,
        *,
        days: float = CERTIFICATE_DAYS,
        out: Path | None = None,
    ) -> IssuedCertificate:
        """
        Replace a party's key and certificate by new ones, in the same files.

        The old certificate stays good until it ends or is revoked. The files of users and workers
        keep the old key too, behind the new one, for what was sealed to it.

        Parameters
        ----------
        days
            Days from now until the new certificate ends.
        out
            Folder that holds the party's files; None: the authority's.

        Raises
        ------
        InputError
            When no certificate was issued to the party.
        BursarError
            When something cannot be written.
        """
        with self._locked():
            before = [
                each for each in self.records() if each.party == CertificateSubject(kind, name)
            ]
            if not before:
                raise InputError(f'no certificate was issued to a {kind} "{name}"')
            folder = out or self.folder
            is_sealing = kind != "server"
            return self._issue(
                kind,
                name,
                # A server keeps the names by which clients call it.
                hosts=max(before, key=lambda each: each.begin).hosts,
                days=days,
                folder=folder,
                force=True,
                kept=self._still_good(folder / f"{kind}-{name}.pem") if is_sealing else (),
            )

    def revoke(self, wanted: Callable[[CertificateRecord], bool]) -> list[CertificateRecord]:
        """
        Revoke the good certificates for which ``wanted`` returns True, and return their records.

        Raises
        ------
        BursarError
            When something cannot be written.
        """
        with self._locked():
            trust, now = self._trust(), self._clock()
            found = [(each, describe_certificate(each, trust, now)) for each in self._issued()]
            taken = [(each, r) for each, r in found if r.state == "good" and wanted(r)]
            lists = self._lists()
            for certificate, _ in taken:
                lists.setdefault(certificate.issuer, set()).add(certificate.serial_number)
            # Written only if something changed: each writing replaces the files of all workers,
            # too.
            if taken:
                self._write_trusted(self._believed(), lists)
        return [record for _, record in taken]

    def records(self) -> list[CertificateRecord]:
        """Return all certificates that were issued, the first to end first."""
        trust, now = self._trust(), self._clock()
        found = [describe_certificate(each, trust, now) for each in self._issued()]
        return sorted(found, key=lambda record: (record.end, record.serial))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise BursarError(f"{self.folder}: cannot be written: {error.strerror}") from None
        try:
            # The kernel gives the lock back when its holder ends, however that ends: no stale lock
            # is left. The file stays, as removing it would let two processes lock two files.
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _numbers(self) -> list[int]:
        names = map(_NUMBERED.fullmatch, os.listdir(self.folder) if self.folder.is_dir() else ())
        return sorted(int(name[1]) for name in names if name)

    def _authority(self, number: int) -> Identity:
        path = self.folder / f"authority-{number}.pem"
        pem = read_pem(path)
        try:
            return Identity.from_pem(pem, pem)
        except InputError as error:
            raise error.within(str(path)) from None

    def _add_authority(self, number: int, name: str, days: float) -> str:
        made = make_authority(f"{name} {number}", self._clock(), days)
        before = self._believed() if number > 1 else []
        lists = self._lists() if number > 1 else {}
        # Trusted before it can issue: a crash in between leaves one that nobody has the key of.
        self._write_trusted([made, *before], lists)
        write_file(self.folder / f"authority-{number}.pem", identity_pem(made))
        return common_name(made.certificate)

    def _trust(self) -> TrustStore:
        try:
            return TrustStore.from_pem(read_pem(self.trusted))
        except InputError as error:
            raise error.within(str(self.trusted)) from None

    def _believed(self) -> list[Identity]:
        """Return the trusted authorities with their keys, the newest first."""
        trusted = self._trust().authorities
        known = [self._authority(number) for number in reversed(self._numbers())]
        return [each for each in known if each.certificate in trusted]

    def _lists(self) -> dict[x509.Name, set[int]]:
        """Return the serial numbers that each authority has revoked."""
        lists = read_lists(read_pem(self.trusted))
        return {each.issuer: {entry.serial_number for entry in each} for each in lists}

    def _write_trusted(
        self, believed: Sequence[Identity], lists: Mapping[x509.Name, set[int]]
    ) -> None:
        """
        Write authorities and revocation lists into one file, so that none is without the other.

        Parameters
        ----------
        believed
            Authorities to trust from now on, with the keys that sign their lists.
        lists
            Serial numbers of revoked certificates, by the subject of the issuing authority.
        """
        now = self._clock()
        parts = [certificate_pem(each.certificate) for each in believed]
        for each in believed:
            serials = lists.get(each.certificate.subject, ())
            number = int(now * 1_000)  # greater each time
            made = make_revocation_list(each, serials, number, now)
            parts.append(made.public_bytes(Encoding.PEM))
        write_file(self.trusted, b"".join(parts), mode=0o644, replace=True)
        # A worker's file holds a copy of the trusted file. It comes after that one: a crash in
        # between leaves old copies, which the next change renews.
        for path in sorted(self.folder.glob("worker-*.pem")):
            write_file(path, self._worker_pem(_identities(path)), replace=True)

    def _issued(self) -> list[x509.Certificate]:
        files = sorted((self.folder / _ISSUED).glob("*.crt"))
        return [read_certificates(read_pem(path))[0] for path in files]

    def _issue(
        self,
        kind: Kind,
        name: str,
        *,
        hosts: Sequence[str],
        days: float,
        folder: Path,
        force: bool,
        kept: Sequence[Identity] = (),
    ) -> IssuedCertificate:
        authority = self._authority(self._numbers()[-1])
        made = issue(authority, kind, name, now=self._clock(), days=days, hosts=hosts)
        secret, shown = folder / f"{kind}-{name}.pem", folder / f"{kind}-{name}.crt"
        for path in (secret, shown):
            if path.exists() and not force:
                raise InputError("exists already", where=str(path), hint="--force replaces it")
        pem = certificate_pem(made.certificate)
        serial = serial_of(made.certificate)
        # Known here before anybody can use it: so it can be revoked, whatever happens next.
        (self.folder / _ISSUED).mkdir(mode=0o700, exist_ok=True)
        write_file(self.folder / _ISSUED / f"{serial}.crt", pem, mode=0o644)
        identities = [made, *kept]
        whole = self._worker_pem(identities) if kind == "worker" else _joined(identities)
        write_file(secret, whole, replace=force)
        write_file(shown, pem, mode=0o644, replace=force)
        return IssuedCertificate(
            identity=secret,
            certificate=shown,
            record=describe_certificate(made.certificate, self._trust(), self._clock()),
        )

    def _worker_pem(self, identities: Sequence[Identity]) -> bytes:
        """Return all that a worker needs to open sealed tasks, for one file."""
        return _joined(identities) + read_pem(self.trusted)

    def _still_good(self, path: Path) -> list[Identity]:
        """Return the keys in a party's file whose certificates have not ended."""
        if not path.exists():
            return []
        now = self._clock()
        return [each for each in _identities(path) if is_current(each.certificate, now)]


def _identities(path: Path) -> list[Identity]:
    try:
        return read_identities(read_pem(path))
    except InputError as error:
        raise error.within(str(path)) from None


def _joined(identities: Sequence[Identity]) -> bytes:
    return b"".join(map(identity_pem, identities))
