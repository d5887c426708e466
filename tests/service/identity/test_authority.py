"""An authority's folder: what it makes, what it takes back, and how it is followed by another."""

import time
from pathlib import Path

import pytest
from tests.service.identity.identity_rig import DAY, NOW, Turned, mode

from bursar.model.errors import BursarError, InputError
from bursar.sealing.certificates import (
    Identity,
    TrustStore,
    UntrustedCertificate,
    read_certificates,
    read_identities,
)
from bursar.sealing.task_sealing import TaskSealer, make_opener
from bursar.service.identity.authority import AuthorityFolder, describe_file


@pytest.fixture
def clock() -> Turned:
    """Turned by tests."""
    return Turned()


@pytest.fixture
def folder(tmp_path: Path, clock: Turned) -> AuthorityFolder:
    """A new one."""
    return AuthorityFolder.create(tmp_path / "certs", "test", clock=clock)


def _read(path: Path) -> Identity:
    return Identity.from_pem(path.read_bytes(), path.read_bytes())


def _trust(folder: AuthorityFolder) -> TrustStore:
    return TrustStore.from_pem(folder.trusted.read_bytes())


def test_what_it_makes_is_trusted(folder: AuthorityFolder) -> None:
    """
    Each as what it was made for, and nothing else.
    """
    trust = _trust(folder)
    for kind in ("user", "worker", "server"):
        hosts = ("node1.example", "10.0.0.1", "::1") if kind == "server" else ()
        made = folder.issue(kind, "a.b_c-1", hosts=hosts)  # type: ignore[arg-type]
        identity = _read(made.identity)
        assert made.record.hosts == hosts
        assert trust.check(identity.certificate, kind, NOW).name == "a.b_c-1"  # type: ignore[arg-type]
        for other in {"user", "worker", "server"} - {kind}:
            with pytest.raises(UntrustedCertificate):
                trust.check(identity.certificate, other, NOW)  # type: ignore[arg-type]


def test_keys_are_readable_by_their_owner_only(folder: AuthorityFolder) -> None:
    """
    The authority's and everybody's, after a renewal and a revocation too.
    """
    folder.issue("user", "ann")
    folder.issue("worker", "pool")
    folder.renew("worker", "pool")
    folder.rotate()
    folder.revoke(lambda record: record.party.name == "ann")

    assert mode(folder.folder) == 0o700
    secret = [path for path in folder.folder.rglob("*") if path.is_file()]
    secret = [path for path in secret if b"PRIVATE" in path.read_bytes()]
    assert len(secret) == 4  # two authorities, a user, a worker
    assert {mode(path) for path in secret} == {0o600}
    assert b"PRIVATE" not in folder.trusted.read_bytes()
    assert not list(folder.folder.glob(".*-*")), "no half-written file is left"


def test_nothing_is_overwritten_unasked(folder: AuthorityFolder, tmp_path: Path) -> None:
    """
    A key that is gone is gone for good.
    """
    made = folder.issue("user", "ann")
    before = made.identity.read_bytes()

    with pytest.raises(InputError, match="exists already"):
        folder.issue("user", "ann")
    with pytest.raises(InputError, match="an authority already"):
        AuthorityFolder.create(folder.folder, "again")
    assert made.identity.read_bytes() == before
    folder.issue("user", "ann", force=True)
    assert made.identity.read_bytes() != before
    assert len(folder.records()) == 2
    with pytest.raises(BursarError, match="cannot be written"):
        folder.issue("user", "bob", out=tmp_path / "missing")
    with pytest.raises(InputError, match="there is no authority here"):
        AuthorityFolder(tmp_path / "missing")


@pytest.mark.parametrize("name", ["", "a b", "../a", "-a", "a\n", "a" * 65, "ä", "a/b", "a:b"])
def test_odd_names_are_refused(folder: AuthorityFolder, name: str) -> None:
    """
    A name goes into a file's name and a line.
    """
    with pytest.raises(InputError, match="expected a name"):
        folder.issue("user", name)


@pytest.mark.parametrize("host", ["", "a b", "a/b", "*", "http://a", "a..b", "." * 3, "1.2.3.4:5"])
def test_odd_hosts_are_refused(folder: AuthorityFolder, host: str) -> None:
    """
    A server is called by a name or an address.
    """
    with pytest.raises(InputError, match="expected a host name or an address"):
        folder.issue("server", "deef", hosts=[host])
    with pytest.raises(InputError, match="a server needs a name"):
        folder.issue("server", "deef")
    with pytest.raises(InputError, match="nobody else has one"):
        folder.issue("user", "ann", hosts=["a"])


def test_a_renewal_leaves_the_old_one_good(folder: AuthorityFolder, clock: Turned) -> None:
    """
    For the same hosts, with a new key.
    """
    first = _read(folder.issue("server", "deef", hosts=("a.example", "10.0.0.1")).identity)
    clock.now += DAY
    renewed = folder.renew("server", "deef")

    assert renewed.record.hosts == ("a.example", "10.0.0.1")
    assert _read(renewed.identity).key.public_key() != first.key.public_key()
    assert [record.state for record in folder.records()] == ["good", "good"]
    with pytest.raises(InputError, match='no certificate was issued to a user "deef"'):
        folder.renew("user", "deef")


def test_workers_keep_the_old_key_until_it_ends(folder: AuthorityFolder, clock: Turned) -> None:
    """
    Tasks that were sealed to it can be opened; then it goes.
    """
    first = folder.issue("worker", "pool", days=10)
    old = read_certificates(first.certificate.read_bytes())[0]
    ann = _read(folder.issue("user", "ann").identity)
    envelope = TaskSealer(old, ann, _trust(folder), clock=clock).seal(b"x", "about")
    clock.now += 5 * DAY
    renewed = folder.renew("worker", "pool", days=10)
    opener = make_opener(renewed.identity.read_bytes())
    opener._clock = clock

    assert opener.open(envelope).payload == b"x"
    assert len(read_identities(renewed.identity.read_bytes())) == 2
    clock.now += 6 * DAY
    again = folder.renew("worker", "pool")
    assert len(read_identities(again.identity.read_bytes())) == 2
    assert old not in read_certificates(again.identity.read_bytes())


def test_what_is_revoked_stays_so(folder: AuthorityFolder, clock: Turned) -> None:
    """
    Also after the next revocation and the next authority; a worker's file knows it, too.
    """
    ann, bob = (_read(folder.issue("user", name).identity) for name in ("ann", "bob"))
    worker = folder.issue("worker", "pool")
    assert [each.party.name for each in folder.revoke(lambda r: r.party.name == "ann")] == ["ann"]
    assert folder.revoke(lambda r: r.party.name == "ann") == []
    folder.rotate()
    folder.revoke(lambda r: r.party.name == "bob")

    for trust in (_trust(folder), TrustStore.from_pem(worker.identity.read_bytes())):
        for user in (ann, bob):
            with pytest.raises(UntrustedCertificate, match="revoked"):
                trust.check(user.certificate, "user", clock.now)
    states = {record.party.name: record.state for record in folder.records()}
    assert states == {"ann": "revoked", "bob": "revoked", "pool": "good"}


def test_an_authority_is_followed_by_another(folder: AuthorityFolder, clock: Turned) -> None:
    """
    Both are trusted until the old one is retired.
    """
    old = _read(folder.issue("user", "ann").identity).certificate
    assert folder.rotate() == "test 2"
    new = _read(folder.renew("user", "ann").identity).certificate

    assert new.issuer != old.issuer
    for certificate in (old, new):
        _trust(folder).check(certificate, "user", clock.now)
    assert folder.retire() == 1
    _trust(folder).check(new, "user", clock.now)
    with pytest.raises(UntrustedCertificate):
        _trust(folder).check(old, "user", clock.now)
    assert sorted(record.state for record in folder.records()) == ["good", "untrusted"]
    assert folder.rotate() == "test 3"


def test_nothing_outlives_its_authority(tmp_path: Path, clock: Turned) -> None:
    """
    A certificate ends with it at the latest, and then there are no more.
    """
    folder = AuthorityFolder.create(tmp_path / "short", "short", days=100, clock=clock)
    made = folder.issue("user", "ann")

    assert made.record.end == NOW + 100 * DAY
    clock.now += 101 * DAY
    with pytest.raises(InputError, match="the authority has expired"):
        folder.issue("user", "bob")


def test_what_has_ended_stands_in_the_way_of_nothing(
    folder: AuthorityFolder, clock: Turned
) -> None:
    """
    An authority and a worker's certificate that have ended: there can be another authority, and
    certificates can be revoked; the worker's key stays in its file.
    """
    worker = folder.issue("worker", "pool", days=10)
    folder.rotate(days=5000)
    ann = folder.issue("user", "ann", days=4900)
    clock.now += 4000 * DAY
    assert folder.rotate() == "test 3"
    folder.revoke(lambda record: record.party.name == "ann")

    states = {record.party.name: record.state for record in folder.records()}
    assert states == {"pool": "expired", "ann": "revoked"}
    assert len(read_identities(worker.identity.read_bytes())) == 1
    assert ann.identity.exists()


@pytest.mark.parametrize("name", ["", "a" * 63, "a\nb"])
def test_odd_names_of_authorities_are_refused(tmp_path: Path, name: str) -> None:
    """
    A number is put behind it, and all of it fits a certificate.
    """
    with pytest.raises(InputError, match="expected a name"):
        AuthorityFolder.create(tmp_path, name)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_file_says_what_is_in_it(folder: AuthorityFolder, tmp_path: Path) -> None:
    """
    Certificates and no keys; one clear line where there are none.
    """
    made = folder.issue("server", "deef", hosts=("a.example",))

    (shown,) = describe_file(made.identity)
    assert (shown["kind"], shown["name"], shown["hosts"]) == ("server", "deef", ("a.example",))
    assert shown["serial"] == made.record.serial
    assert [each["kind"] for each in describe_file(folder.trusted)] == ["authority"]
    empty = tmp_path / "empty"
    empty.touch()
    with pytest.raises(InputError, match=r"empty: expected a certificate in PEM"):
        describe_file(empty)
    with pytest.raises(InputError, match="cannot be read"):
        describe_file(tmp_path)


def test_the_clock_of_the_world_is_taken_by_default(tmp_path: Path) -> None:
    """
    Certificates made by the command are good now.
    """
    made = AuthorityFolder.create(tmp_path / "live", "live").issue("user", "ann")
    assert made.record.begin < time.time() < made.record.end
    assert made.record.state == "good"
