"""A real service with certificates: sealed tasks, revocation as it runs, tokens by the command."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.live_files import files_below
from tests.service.service_process import PATIENCE, Served, served
from typer.testing import CliRunner

from bursar.cli import administration
from bursar.model.errors import BursarError, SiteError
from bursar.model.site import SealLevel
from bursar.remote.access import ENVIRONMENT, Access, read_token
from bursar.remote.client import ServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import TaskSpec
from bursar.sealing.task_sealing import TaskOpenerFile, read_sealer
from bursar.service.identity.authority import AuthorityFolder


class Secured:
    """
    An authority, and a service of mutual TLS whose workers open sealed tasks.

    Attributes
    ----------
    service
        Once it has been started.
    """

    service: Served

    def __init__(self, folder: Path) -> None:
        self.authority = AuthorityFolder.create(folder / "certs", "test")
        self.state = folder / "state"
        server = self.authority.issue("server", "deef", hosts=["127.0.0.1"])
        self.worker = self.authority.issue("worker", "pool")
        self.text = (
            "security = 'mutual'\nonly_listed_users = true\n"
            f"certificate = '{server.identity}'\nkey = '{server.identity}'\n"
            f"authorities = '{self.authority.trusted}'\n"
            f"seal_certificate = '{self.worker.certificate}'\nseal_key = '{self.worker.identity}'\n"
            "[site]\nprocessors = 2\n"
            "[users.ann]\nscopes = ['submit', 'read']\n[users.root]\nscopes = ['admin']\n"
        )

    def access(self, user: str, token: str = "") -> Access:
        """How a user of the authority comes in."""
        own = self.authority.folder / f"user-{user}.pem"
        if not own.exists():
            self.authority.issue("user", user)
        return Access(
            url=f"https://127.0.0.1:{self.service.port}",
            ca=self.authority.trusted,
            certificate=own,
            token=token,
        )

    def client(self, user: str, token: str = "") -> ServiceClient:
        """That user's."""
        return ServiceClient(self.access(user, token), patience=PATIENCE)

    def tokens(self, *words: str) -> str:
        """What ``bursar tokens`` prints to the administrator; its error is raised."""
        access = self.access("root")
        services = self.state.with_name("services.toml")
        services.write_text(
            f"[service.it]\nurl = '{access.url}'\nca = '{access.ca}'\n"
            f"certificate = '{access.certificate}'\n"
        )
        app = typer.Typer()
        administration.register_tokens(app)
        app.command("other")(lambda: None)
        runner = CliRunner(env={"BURSAR_SERVICES": str(services), "COLUMNS": "200"})
        result = runner.invoke(app, ["tokens", *words, "--site", "it"])
        if isinstance(result.exception, BursarError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout


def refusal(client: ServiceClient) -> RemoteProblem:
    """Why a user may not look at the site: 403 one who is known, 401 another."""
    with pytest.raises(RemoteProblem) as refused:
        client.site()
    return refused.value


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """One for all tests: each has users of its own."""
    made = Secured(tmp_path_factory.mktemp("secured"))
    with served(made.state, made.text) as made.service:
        yield made


@pytest.mark.parametrize("level", ["conversation", "message"])
def test_the_service_cannot_read_what_is_sealed(secured: Secured, level: SealLevel) -> None:
    """
    A task's command and environment, its output and exit code: the user has them, and nothing
    that the service has written down or keeps for the user holds them.
    """
    secret = f"nobody-reads-{level}"
    task = TaskSpec(
        command=("/bin/sh", "-c", 'echo "$1 $WORD"; exit 7', "-", secret),
        environment={"WORD": f"environment-{level}"},
    )
    with secured.client("ann") as client:
        sealer = read_sealer(
            client.site().seal.encode(),
            certificate=secured.authority.folder / "user-ann.pem",
            authorities=secured.authority.trusted,
            level=level,
        )
        with client.session(seal=sealer) as session:
            session.submit([task])
            (told,) = session.results()
            (kept,) = client.results(session.handle)

    assert (told.stdout, told.exit_code) == (f"{secret} environment-{level}\n", 7)
    assert (told.state, kept.state) == ("failed", "failed")
    assert (kept.stdout, kept.exit_code, kept.reason) == ("", None, "")
    files = {file.path: file.content for file in files_below(secured.state)}
    assert any("journal" in path.parts for path in files)
    files[secured.service.log] = secured.service.log.read_bytes()
    for path, content in files.items():
        assert secret.encode() not in content, path
        assert f"environment-{level}".encode() not in content, path


def test_who_cannot_be_let_in_is_told_at_once(secured: Secured, tmp_path: Path) -> None:
    """
    No certificate, another authority's, or another authority expected: in one line that says what
    to set, and nothing is tried again.
    """
    stranger = AuthorityFolder.create(tmp_path / "other", "test")
    theirs = stranger.issue("user", "ann").identity
    ours = secured.access("ann")
    named = {"url": ours.url, "place": ENVIRONMENT}
    notices: list[str] = []
    for access, told in (
        (Access(ca=ours.ca, **named), "wants a certificate of this client: set BURSAR_CERTIFICATE"),
        (Access(ca=ours.ca, certificate=theirs, **named), f"hangs up: .*{theirs}, which BURSAR_CE"),
        (Access(ca=stranger.trusted, **named), f"its authority is not in {stranger.trusted}"),
        (Access(**named), "its certificate is not trusted: .*: set BURSAR_CA to the file"),
    ):
        with (
            ServiceClient(access, notice=notices.append) as client,
            pytest.raises(SiteError, match=told),
        ):
            client.site()
    assert notices == []


def test_a_user_is_revoked_while_connected(secured: Secured) -> None:
    """
    The next request of the same connection is refused, a second after the list has changed.
    """
    with secured.client("eve") as eve:
        assert eve.health().status == "ok"
        assert refusal(eve).status == 403  # a good certificate, of nobody who is listed
        secured.authority.revoke(lambda record: record.party.name == "eve")
        give_up = time.monotonic() + PATIENCE
        while (said := refusal(eve)).status == 403:  # the list is looked at once a second
            assert time.monotonic() < give_up
            time.sleep(0.1)
        assert (said.status, said.detail) == (401, "the certificate was revoked")


def test_a_renewed_user_comes_in_and_opens_older_results(secured: Secured) -> None:
    """
    The file has the new key, and behind it the old one.
    """
    with secured.client("joe") as joe:
        assert refusal(joe).status == 403
        own = secured.authority.folder / "user-joe.pem"
        recipient = secured.worker.certificate.read_bytes()
        before = read_sealer(recipient, certificate=own, authorities=secured.authority.trusted)
        task = TaskOpenerFile(secured.worker.identity).open(before.seal(b"x", "about"))
        result = task.seal(b"y")
        secured.authority.renew("user", "joe")
    after = read_sealer(recipient, certificate=own, authorities=secured.authority.trusted)

    assert after.open(result, "about") == b"y"
    with secured.client("joe") as joe:
        assert refusal(joe).status == 403


def test_tokens_by_the_command(secured: Secured, tmp_path: Path) -> None:
    """
    Made, listed without its secret, used to narrow a certificate, revoked.
    """
    file = tmp_path / "token"
    made = json.loads(
        secured.tokens("create", "ann", "--scope", "read", "--out", str(file), "--json")
    )
    token = read_token(file)

    assert file.stat().st_mode & 0o777 == 0o600
    assert set(made) == {"id", "user", "scopes", "expires", "label", "file"}
    assert made["id"] in secured.tokens("list")
    assert token.split("_")[2] not in secured.tokens("list", "--json")
    with secured.client("ann", token) as ann:
        ann.site()
        with pytest.raises(RemoteProblem) as narrow:
            ann.create_instance()
        assert narrow.value.status == 403
        secured.tokens("revoke", made["id"])
        with pytest.raises(RemoteProblem) as refused:
            ann.site()
        assert refused.value.status == 401
    printed = secured.tokens("create", "ann").strip()
    assert printed.startswith("bursar_")
    assert printed.split("_")[2] not in secured.service.log.read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("create", "a b"), "user: expected at most 64"),
        (("create", "ann", "--days", "nan"), "--days: expected more than 0 and at most 366"),
        (("create", "ann", "--days", "400"), "--days: expected more than 0 and at most 366"),
        (("create", "ann", "--out", "/dev/null"), "/dev/null: exists already"),
        (("revoke", "0123"), "there is no token of this id"),
        (("revoke", "bursar_0_secret"), "expected the id of a token, got a token"),
    ],
)
def test_bad_input_is_one_clear_line(secured: Secured, words: Any, reason: str) -> None:
    """
    And a token that was given by mistake is not repeated.
    """
    with pytest.raises(BursarError, match=reason) as refused:
        secured.tokens(*words)
    assert "bursar_0_secret" not in str(refused.value)
