"""Who sends a request: tokens, certificates, and this machine."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.service.identity.identity_rig import DAY, NOW, Notebook, Turned, new

from bursar.model.errors import InputError
from bursar.sealing.certificates import Identity
from bursar.service.identity.authentication import Authenticator, JournalTokenStore
from bursar.service.identity.issuing import (
    certificate_pem,
    issue,
    make_authority,
    make_revocation_list,
)
from bursar.service.identity.tls import TrustFiles
from bursar.service.interfaces import SCOPES, Principal, ServiceError

AUTHORITY = make_authority("test 1", NOW)
ANN = issue(AUTHORITY, "user", "ann", now=NOW, days=10)
BOB = issue(AUTHORITY, "user", "bob", now=NOW)
SCOPES_OF = {"ann": frozenset({"submit", "read"})}


class Door:
    """
    An authenticator with its files.

    Parameters
    ----------
    folder
        For them; empty.
    """

    def __init__(self, folder: Path, security: str) -> None:
        self.clock = Turned()
        self.ca, self.revoked = folder / "ca.pem", folder / "revoked.pem"
        self.ca.write_bytes(certificate_pem(AUTHORITY.certificate))
        self.revoke(AUTHORITY)
        self.tokens = JournalTokenStore(Notebook(), clock=self.clock, entropy=os.urandom)  # type: ignore[arg-type]
        self.trust = TrustFiles(self.ca, self.revoked, clock=self.clock)
        self._authenticator = Authenticator(
            security,  # type: ignore[arg-type]
            self.tokens,
            clients=self.trust,
            scopes_of=lambda user: SCOPES_OF.get(user, frozenset()),
            owner="owner",
        )

    def revoke(self, authority: Identity, *taken: Identity) -> None:
        """Writes the list anew, as a whole."""
        serials = [each.certificate.serial_number for each in taken]
        made = make_revocation_list(authority, serials, 1, NOW)
        fresh = self.revoked.with_suffix(".new")
        fresh.write_bytes(made.public_bytes(Encoding.PEM))
        fresh.replace(self.revoked)

    def asked(
        self, token: str | None = None, who: Identity | None = None, peer: str = "127.0.0.1"
    ) -> Principal:
        """Who it is."""
        headers = {} if token is None else {"authorization": token}
        der = None if who is None else who.certificate.public_bytes(Encoding.DER)
        return self._authenticator.authenticate(headers, der, peer)

    def refused(self, *args: object, **options: object) -> ServiceError:
        """Why nobody is let in."""
        with pytest.raises(ServiceError) as refused:
            self.asked(*args, **options)  # type: ignore[arg-type]
        return refused.value


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.9.9.9", "::1"])
def test_without_security_this_machine_is_the_owner(tmp_path: Path, peer: str) -> None:
    """
    Who can do all.
    """
    assert Door(tmp_path, "none").asked(peer=peer) == Principal(
        user="owner", scopes=frozenset(SCOPES)
    )


@pytest.mark.parametrize(
    "peer", ["10.0.0.1", "0.0.0.0", "", "localhost", "fe80::1", "::ffff:1.2.3.4"]
)
def test_without_security_nobody_comes_from_elsewhere(tmp_path: Path, peer: str) -> None:
    """
    Even where somebody has put the service behind something that listens outside.
    """
    assert Door(tmp_path, "none").refused(peer=peer).status == 403


@pytest.mark.parametrize("security", ["none", "tls"])
def test_a_token_says_who_it_is(tmp_path: Path, security: str) -> None:
    """
    Its user with its scopes, without security too; the name of the scheme in any case.
    """
    door = Door(tmp_path, security)
    token = door.tokens.create(new("ann", "read")).token

    for value in (f"Bearer {token}", f"bearer {token}", f"BEARER  {token} "):
        assert door.asked(value) == Principal(user="ann", scopes=frozenset({"read"}))


@pytest.mark.parametrize("security", ["none", "tls", "mutual"])
@pytest.mark.parametrize(
    "value",
    ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer x", f"Bearer bursar_{'0' * 16}_{'0' * 64}"],
)
def test_a_bad_token_never_counts(tmp_path: Path, security: str, value: str) -> None:
    """
    Whoever shows one is not taken for the owner, nor for the certificate's user.
    """
    refused = Door(tmp_path, security).refused(value, ANN)
    assert (refused.status, refused.kind) == (401, "unauthenticated")


def test_with_tls_a_token_is_needed(tmp_path: Path) -> None:
    """
    From this machine, too; and a revoked or expired one is none.
    """
    door = Door(tmp_path, "tls")
    made, short = door.tokens.create(new()), door.tokens.create(new(seconds=60))

    assert door.refused().status == 401
    door.tokens.revoke(made.id)
    assert door.refused(f"Bearer {made.token}").status == 401
    door.clock.now += 60
    assert door.refused(f"Bearer {short.token}").status == 401


def test_with_mutual_tls_the_certificate_says_who_it_is(tmp_path: Path) -> None:
    """
    With the scopes that the configuration gives the user: none where it knows nothing.
    """
    door = Door(tmp_path, "mutual")

    assert door.asked(who=ANN) == Principal(user="ann", scopes=frozenset({"submit", "read"}))
    assert door.asked(who=BOB).scopes == frozenset()
    assert door.refused().status == 401


def test_a_token_narrows_a_certificate_and_no_more(tmp_path: Path) -> None:
    """
    It adds no scope, does not stand alone, and is of no other user.
    """
    door = Door(tmp_path, "mutual")
    own = f"Bearer {door.tokens.create(new('ann', 'read', 'admin')).token}"
    bobs = f"Bearer {door.tokens.create(new('bob', 'read')).token}"

    assert door.asked(own, ANN).scopes == {"read"}
    assert door.refused(own).status == 401
    assert door.refused(bobs, ANN).status == 403


@pytest.mark.parametrize("kind", ["worker", "server"])
def test_workers_and_servers_are_no_users(tmp_path: Path, kind: str) -> None:
    """
    Whatever their name.
    """
    hosts = ("localhost",) if kind == "server" else ()
    other = issue(AUTHORITY, kind, "ann", now=NOW, hosts=hosts)  # type: ignore[arg-type]
    assert Door(tmp_path, "mutual").refused(who=other).status == 401


def test_only_the_own_authority_counts(tmp_path: Path) -> None:
    """
    One of the same name is another one.
    """
    stranger = issue(make_authority("test 1", NOW), "user", "ann", now=NOW)
    assert Door(tmp_path, "mutual").refused(who=stranger).status == 401


def test_a_certificate_ends_during_its_connection(tmp_path: Path) -> None:
    """
    TLS has looked at it once, long ago.
    """
    door = Door(tmp_path, "mutual")
    door.asked(who=ANN)
    door.clock.now += 11 * DAY
    assert "expired" in door.refused(who=ANN).detail


def test_a_revocation_counts_for_connections_that_are_there(tmp_path: Path) -> None:
    """
    Without a restart, a second later; others go on.
    """
    door = Door(tmp_path, "mutual")
    door.asked(who=ANN)
    door.revoke(AUTHORITY, ANN)
    door.clock.now += 1

    assert "revoked" in door.refused(who=ANN).detail
    assert door.asked(who=BOB).user == "bob"


def test_a_retired_authority_counts_no_more(tmp_path: Path) -> None:
    """
    Its users are refused as soon as its certificate has gone from the file.
    """
    door = Door(tmp_path, "mutual")
    door.asked(who=ANN)
    following = make_authority("test 2", NOW)
    fresh = tmp_path / "new"
    fresh.write_bytes(certificate_pem(following.certificate))
    fresh.replace(door.ca)
    door.revoke(following)
    door.clock.now += 1

    assert "not issued by" in door.refused(who=ANN).detail
    assert door.asked(who=issue(following, "user", "ann", now=NOW)).user == "ann"


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"-----BEGIN X509 CRL-----\nx\n-----END X509 CRL-----\n"]
)
def test_files_that_were_spoilt_change_nothing(tmp_path: Path, content: bytes) -> None:
    """
    What was read before holds, and the service says what is wrong.
    """
    door = Door(tmp_path, "mutual")
    door.revoke(AUTHORITY, BOB)
    door.clock.now += 1
    door.asked(who=ANN)
    door.ca.write_bytes(content)
    door.clock.now += 1

    assert door.asked(who=ANN).user == "ann"
    assert door.refused(who=BOB).status == 401
    assert str(door.ca) in door.trust.problem
    door.ca.unlink()
    door.trust.refresh()
    assert "cannot be read" in door.trust.problem
    door.ca.write_bytes(certificate_pem(AUTHORITY.certificate))
    door.trust.refresh()
    assert door.trust.problem == ""


def test_a_strangers_list_is_refused_at_the_start(tmp_path: Path) -> None:
    """
    One line, which says where.
    """
    door = Door(tmp_path, "mutual")
    door.revoke(make_authority("test 1", NOW), ANN)

    with pytest.raises(InputError, match=r"revoked\.pem: the revocation list is signed by none"):
        TrustFiles(door.ca, door.revoked, clock=door.clock)
    with pytest.raises(InputError, match=r"absent\.pem: cannot be read"):
        TrustFiles(tmp_path / "absent.pem", None, clock=door.clock)
