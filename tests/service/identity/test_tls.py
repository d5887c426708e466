"""TLS over real sockets: who gets through, and who asks in vain."""

import asyncio
import os
import ssl
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.service.identity.identity_rig import DAY, Notebook, run

from bursar.model.errors import InputError
from bursar.remote.access import Access
from bursar.sealing.certificates import Identity
from bursar.service.identity.authentication import Authenticator, JournalTokenStore
from bursar.service.identity.issuing import (
    certificate_pem,
    identity_pem,
    issue,
    make_authority,
    make_revocation_list,
)
from bursar.service.identity.tls import ServerTls, TrustFiles
from bursar.service.interfaces import ServiceError

NOW = time.time()
AUTHORITY = make_authority("test 1", NOW - 30 * DAY)
FOREIGN = make_authority("test 1", NOW)

CLIENTS = {
    "good": issue(AUTHORITY, "user", "ann", now=NOW),
    "revoked": issue(AUTHORITY, "user", "ann", now=NOW),
    "expired": issue(AUTHORITY, "user", "ann", now=NOW - 10 * DAY, days=9),
    "foreign": issue(FOREIGN, "user", "ann", now=NOW),
    "worker": issue(AUTHORITY, "worker", "ann", now=NOW),
    "server": issue(AUTHORITY, "server", "ann", now=NOW, hosts=("localhost",)),
}


class Site:
    """
    A server that answers each connection with who it takes it for.

    Parameters
    ----------
    folder
        For its files; empty.
    """

    def __init__(self, folder: Path, *, mutual: bool, server: Identity | None = None) -> None:
        self.folder = folder
        server = server or issue(
            AUTHORITY, "server", "deef", now=NOW, hosts=("localhost", "127.0.0.1")
        )
        taken = make_revocation_list(
            AUTHORITY, [CLIENTS["revoked"].certificate.serial_number], 1, NOW
        )
        self.ca = self.file(
            "ca.pem", certificate_pem(AUTHORITY.certificate) + taken.public_bytes(Encoding.PEM)
        )
        self.own = self.file("server.pem", identity_pem(server))
        self.tls = ServerTls(self.own, self.own, self.ca if mutual else None)
        self._authenticator = Authenticator(
            "mutual" if mutual else "tls",
            JournalTokenStore(Notebook(), clock=time.time, entropy=os.urandom),  # type: ignore[arg-type]
            clients=TrustFiles(self.ca, None, clock=time.time),
            scopes_of=lambda user: frozenset({"read"}),
        )

    def file(self, name: str, content: bytes) -> Path:
        """One that others cannot read."""
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)
        return path

    def client(self, who: str | None) -> ssl.SSLContext:
        """As a client's: it trusts the authority, and shows a certificate."""
        own = None if who is None else self.file(f"{who}.pem", identity_pem(CLIENTS[who]))
        context = Access(url="https://localhost", ca=self.ca, certificate=own, key=own).tls()
        assert context is not None
        return context

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secure = writer.get_extra_info("ssl_object")
        try:
            who = self._authenticator.authenticate({}, secure.getpeercert(True), "127.0.0.1")
            writer.write(who.user.encode())
        except ServiceError as error:
            writer.write(str(error.status).encode())
        writer.close()

    async def answer(self, context: ssl.SSLContext, host: str = "localhost") -> str:
        """What a client hears; empty when the connection is refused."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self.tls.context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            try:
                reader, writer = await asyncio.open_connection(
                    "127.0.0.1", port, ssl=context, server_hostname=host
                )
                said = await reader.read()
                writer.close()
                await writer.wait_closed()
            except (ssl.SSLError, ConnectionError):
                return ""
        return said.decode()


@pytest.mark.parametrize(
    ("who", "heard"),
    [
        ("good", "ann"),
        (None, ""),
        ("foreign", ""),
        ("expired", ""),
        ("server", ""),
        ("revoked", "401"),
        ("worker", "401"),
    ],
)
def test_mutual_tls_lets_in_good_users_only(tmp_path: Path, who: str | None, heard: str) -> None:
    """
    No certificate, another authority's, one that has ended or is a server's: no connection. One
    that was revoked or is a worker's: a connection, and every request is refused.
    """
    site = Site(tmp_path, mutual=True)
    assert run(site.answer(site.client(who))) == heard


@pytest.mark.parametrize("who", [None, "good", "foreign"])
def test_without_mutual_tls_certificates_say_nothing(tmp_path: Path, who: str | None) -> None:
    """
    They are not asked for; a token is needed.
    """
    site = Site(tmp_path, mutual=False)
    assert run(site.answer(site.client(who))) == "401"


def test_a_client_refuses_servers_that_it_was_not_told_of(tmp_path: Path) -> None:
    """
    Another name, another authority, a certificate of a user.
    """
    for server, host in (
        (None, "elsewhere.example"),
        (issue(FOREIGN, "server", "deef", now=NOW, hosts=("localhost",)), "localhost"),
        (CLIENTS["good"], "localhost"),
        (
            issue(AUTHORITY, "server", "deef", now=NOW - 9 * DAY, days=8, hosts=("localhost",)),
            "localhost",
        ),
    ):
        folder = tmp_path / os.urandom(4).hex()
        folder.mkdir()
        site = Site(folder, mutual=False, server=server)
        assert run(site.answer(site.client(None), host)) == ""


def test_older_versions_of_tls_are_refused(tmp_path: Path) -> None:
    """
    TLS 1.3 only.
    """
    site = Site(tmp_path, mutual=True)
    old = site.client("good")
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert run(site.answer(old)) == ""


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    """
    The listener keeps its context; a spoilt file changes nothing.
    """
    site = Site(tmp_path, mutual=False)
    context = site.tls.context
    elsewhere = site.client(None)
    assert run(site.answer(elsewhere, "new.example")) == ""
    hosts = ("localhost", "new.example")
    site.file(
        "server.pem",
        identity_pem(issue(AUTHORITY, "server", "deef", now=NOW, days=20, hosts=hosts)),
    )
    site.tls.reload()

    assert site.tls.context is context
    assert run(site.answer(elsewhere, "new.example")) == "401"
    assert 19 < site.tls.days_left(NOW) <= 20
    site.file("server.pem", b"nonsense")
    with pytest.raises(InputError, match="expected a certificate and its private key"):
        site.tls.reload()
    assert run(site.answer(elsewhere, "new.example")) == "401"


def test_a_certificate_that_ends_soon_is_warned_of(tmp_path: Path) -> None:
    """
    From a month before on, and afterwards.
    """
    tls = Site(tmp_path, mutual=False).tls

    assert tls.warning(NOW) == ""
    assert "ends on" in tls.warning(NOW + 340 * DAY)
    assert "ended on" in tls.warning(NOW + 366 * DAY)


def test_files_that_do_not_fit_are_one_clear_line(tmp_path: Path) -> None:
    """
    A key that everybody can read, one of another certificate, no authority, nothing at all.
    """
    site = Site(tmp_path, mutual=True)
    other = site.file("other.pem", identity_pem(CLIENTS["good"]))
    nothing = site.file("nothing.pem", b"")
    for certificate, key, authorities, reason in (
        (site.own, other, None, "expected a certificate and its private key"),
        (nothing, site.own, None, "expected a certificate and its private key"),
        (site.own, site.own, nothing, "expected a certificate in PEM"),
        (site.own, site.own, other, "expected the certificate of an authority"),
        (site.own, tmp_path / "absent.pem", None, "cannot be read"),
    ):
        with pytest.raises(InputError, match=reason):
            ServerTls(certificate, key, authorities)
    site.own.chmod(0o644)
    with pytest.raises(InputError, match="everybody on this machine can read"):
        ServerTls(site.own, site.own)
