"""A real service among people who must not trust each other."""

import os
import pwd
import signal
import ssl
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.live_files import files_below
from tests.service.service_process import PATIENCE, Served, served
from tests.service.test_serve import until
from tests.small_disk import small_disk

from bursar.dispatch.linux_processes import workers_of
from bursar.model.errors import SiteError
from bursar.remote.access import Access
from bursar.remote.admin_messages import NewToken
from bursar.remote.client import ServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import TaskSpec
from bursar.sealing.certificates import TrustStore, read_certificates, read_identities
from bursar.sealing.task_sealing import TaskSealer
from bursar.service.identity.authority import AuthorityFolder


def access_of(service: Served, authority: AuthorityFolder, **more: object) -> Access:
    url = f"https://127.0.0.1:{service.port}"
    return Access(url=url, ca=authority.trusted, **more)  # type: ignore[arg-type]


@pytest.fixture
def authority(tmp_path: Path) -> AuthorityFolder:
    made = AuthorityFolder.create(tmp_path / "certs", "test")
    made.issue("server", "here", hosts=["127.0.0.1"])
    return made


def tls(authority: AuthorityFolder, security: str) -> str:
    files = authority.folder
    lines = [f'security = "{security}"']
    lines += [f'{key} = "{files / "server-here.pem"}"' for key in ("certificate", "key")]
    if security == "mutual":
        lines.append(f'authorities = "{authority.trusted}"')
    return "\n".join(lines) + "\n"


def test_with_tls_a_token_says_who_one_is(tmp_path: Path, authority: AuthorityFolder) -> None:
    """Without one nobody comes in; users do not find each other; in clear nothing is said."""
    with served(tmp_path / "state", tls(authority, "tls")) as service:
        with ServiceClient(access_of(service, authority, token=service.token)) as admin:
            tokens = {
                user: admin.create_token(NewToken(user=user, scopes=["submit", "read"])).token
                for user in ("ann", "bob")
            }
        with (
            ServiceClient(access_of(service, authority, token=tokens["ann"])) as ann,
            ServiceClient(access_of(service, authority, token=tokens["bob"])) as bob,
            ServiceClient(access_of(service, authority)) as nobody,
        ):
            handle = ann.create_instance().id
            ann.submit(handle, [TaskSpec(command=("/bin/echo", "mine"))])
            assert [r.stdout for r in ann.results(handle)] == ["mine\n"]
            assert bob.instances() == []
            with pytest.raises(RemoteProblem, match="no such instance"):
                bob.instance(handle)
            with pytest.raises(RemoteProblem):
                nobody.instances()
            with pytest.raises(RemoteProblem):
                ann.overview()
            with pytest.raises(RemoteProblem):
                ann.drain()
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{service.port}/v1/health")


def test_tokens_are_as_they_were_after_a_kill(tmp_path: Path, authority: AuthorityFolder) -> None:
    """A good one lets its user in, with its scopes; a revoked or expired one lets nobody in."""
    with served(tmp_path / "state", tls(authority, "tls")) as service:

        def client_with(token: str) -> ServiceClient:
            return ServiceClient(access_of(service, authority, token=token))

        def is_refused(token: str) -> bool:
            with client_with(token) as client:
                try:
                    client.instances()
                except RemoteProblem as problem:
                    return problem.problem.status == 401
                return False

        with client_with(service.token) as admin:
            good, revoked = (
                admin.create_token(NewToken(user="ann", scopes=["read"])) for _ in "12"
            )
            short = admin.create_token(NewToken(user="ann", scopes=["read"], seconds=1.0))
            admin.revoke_token(revoked.id)
        service.kill()
        service.start()
        until(lambda: is_refused(short.token))
        assert is_refused(revoked.token)
        with client_with(good.token) as ann:
            assert ann.instances() == []
            with pytest.raises(RemoteProblem) as refused:  # it may only read
                ann.create_instance()
            assert refused.value.problem.status == 403
        with client_with(service.token) as admin:
            left = [token.id for token in admin.tokens() if token.user == "ann"]
            assert left == [good.id]


def test_what_was_revoked_is_refused_at_once(tmp_path: Path, authority: AuthorityFolder) -> None:
    """On the connection that is open; a new server certificate comes with SIGHUP, on new ones."""
    ann, bob = (authority.issue("user", user).identity for user in ("ann", "bob"))
    text = tls(authority, "mutual") + '[users.bob]\nscopes = ["read"]\n'
    with served(tmp_path / "state", text) as service:
        assert service.process is not None
        assert service.told["admin_token_file"] is None
        with (
            ServiceClient(access_of(service, authority, certificate=bob), patience=0.0) as reader,
            ServiceClient(access_of(service, authority, certificate=ann), patience=0.0) as stranger,
        ):
            assert reader.instances() == []
            assert stranger.instances() == []  # no table is needed for what all users may do
            with pytest.raises(RemoteProblem) as refused:
                stranger.overview()
            assert refused.value.status == 403
            before = ssl.get_server_certificate(("127.0.0.1", service.port), timeout=PATIENCE)
            authority.renew("server", "here")
            service.process.send_signal(signal.SIGHUP)
            until(
                lambda: (
                    before
                    != ssl.get_server_certificate(("127.0.0.1", service.port), timeout=PATIENCE)
                )
            )
            assert reader.instances() == []
            authority.revoke(lambda record: record.party.name == "bob")

            def is_refused() -> bool:
                try:
                    reader.instances()
                except (RemoteProblem, SiteError):
                    return True
                return False

            until(is_refused)


SYSTEM_PYTHON = "/usr/bin/python3"

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may switch users and mount")


def account(*names: str) -> str:
    """The first of these that this machine has."""
    for name in names:
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    pytest.skip("this machine has no account for it")


@root
def test_tasks_are_of_the_users_own_account(open_folder: Path) -> None:
    """Each in folders of its own: not even their names can be seen by others, nor the journal."""
    ann, bob = account("daemon"), account("nobody")
    python = open_folder / "python"  # this one lies where other users cannot go
    paths = os.pathsep.join(p for p in sys.path if p.endswith(("site-packages", "src")))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {SYSTEM_PYTHON} "$@"\n')
    python.chmod(0o755)
    text = f'[tasks]\npython = "{python}"\n'
    text += f'[users.ann]\nlocal_user = "{ann}"\n[users.bob]\nlocal_user = "{bob}"\n'
    with served(open_folder / "state", text) as service:
        url = f"http://127.0.0.1:{service.port}"
        with ServiceClient(Access(url=url, token=service.token)) as admin:
            tokens = {
                user: admin.create_token(NewToken(user=user, scopes=["submit", "read"])).token
                for user in ("ann", "bob")
            }

        def output(user: str, shell: str, **more: object) -> str:
            with ServiceClient(Access(url=url, token=tokens[user])) as client:
                handle = client.create_instance().id
                client.submit(handle, [TaskSpec(shell=shell, **more)])  # type: ignore[arg-type]
                (result,) = client.results(handle)
                return result.stdout

        who, folder = output("ann", "id -un; pwd; echo s > secret; chmod 644 secret; umask").split(
            "\n"
        )[:2]
        assert who == ann
        uid = pwd.getpwnam(ann).pw_uid
        (hers,) = (
            p for p in workers_of(service.run).values() if os.stat(f"/proc/{p}").st_uid == uid
        )
        spied = output(
            "bob",
            f"id -un; cat {folder}/secret; ls {folder}; ls {service.folder}/instances; "
            f"cat {service.folder}/journal/* {service.folder}/admin.token /proc/{hers}/environ; "
            "true",
        )
        assert spied.split() == [bob]
        with ServiceClient(Access(url=url, token=tokens["ann"])) as client:
            handle = client.create_instance().id
            client.submit(handle, [TaskSpec(shell="echo made > made", outputs=("made",))])
            list(client.results(handle))
            assert client.read(handle, "made") == b"made\n"


@pytest.mark.ci
@root
def test_an_account_without_workers_does_not_stop_others(tmp_path: Path) -> None:
    """It cannot run the interpreter: all are told so, and others work; so the service is ready."""
    nobody = account("nobody")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    python = closed / "python"
    paths = os.pathsep.join(p for p in sys.path if p.endswith(("site-packages", "src")))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    text = f'[tasks]\npython = "{python}"\n[users.bob]\nlocal_user = "{nobody}"\n'
    with served(tmp_path / "state", text) as service:
        url = f"http://127.0.0.1:{service.port}"
        with ServiceClient(Access(url=url, token=service.token)) as admin:
            token = admin.create_token(NewToken(user="bob", scopes=["submit", "read"])).token
            with ServiceClient(Access(url=url, token=token)) as bob:
                his = bob.create_instance().id
                bob.submit(his, [TaskSpec(command=("true",))])
                until(lambda: admin.overview().degraded != "")
                told = f'workers of the account "{nobody}" cannot be had: '
                assert told in admin.overview().degraded
                assert bob.instance(his).note == "no worker is there for its tasks yet"
            mine = admin.create_instance().id
            admin.submit(mine, [TaskSpec(command=("true",))])
            assert [result.state for result in admin.results(mine)] == ["succeeded"]
            health = admin.ready()
            assert health.status == "ok"
            assert health.degraded == "workers of 1 local account cannot be had"
            scraped = httpx.get(
                f"{url}/v1/metrics", headers={"Authorization": f"Bearer {service.token}"}
            )
            assert "bursar_accounts_failing 1.0" in scraped.text
        assert told.replace('"', '\\"') in service.log.read_text()


@pytest.fixture
def open_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that every user may pass through."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        os.chmod(name, 0o711)
        yield Path(name)


@root
def test_a_full_disk_refuses_new_work_and_keeps_the_old(tmp_path: Path) -> None:
    """What runs ends and is recorded; when there is room again it goes on, by itself."""
    with (
        small_disk("200m") as disk,
        served(disk / "state") as service,
        service.client() as client,
        ServiceClient(client.access, patience=0.0) as hasty,
    ):
        handle = client.create_instance().id
        go = tmp_path / "go"
        wait = f"while [ ! -e {go} ]; do sleep 0.05; done; echo kept"
        client.submit(handle, [TaskSpec(shell=wait)])
        filler = disk / "filler"
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free)

        def is_refused() -> bool:
            try:
                hasty.submit(handle, [TaskSpec(shell="true")])
            except (RemoteProblem, SiteError) as error:
                return "507" in str(error) or "disk" in str(error)
            return False

        until(is_refused)
        ready = httpx.get(f"{client.access.url}/v1/ready")
        assert ready.status_code == 503
        assert "disk" in ready.json()["problem"]
        go.touch()
        assert "kept\n" in [r.stdout for r in client.results(handle)]
        service.kill()
        service.start()
        assert "kept\n" in [r.stdout for r in client.page(handle).results]

        filler.unlink()
        until(lambda: not is_refused())
        until(lambda: httpx.get(f"{client.access.url}/v1/ready").status_code == 200)
        more = client.submit(handle, [TaskSpec(shell="echo more")])
        assert more[0] in {r.task for r in client.results(handle) if r.stdout == "more\n"}


def test_the_service_cannot_read_what_is_sealed(tmp_path: Path, authority: AuthorityFolder) -> None:
    """Neither task nor output is in any of its files; the user reads the result all the same."""
    worker, ann = authority.issue("worker", "here"), authority.issue("user", "ann")
    text = tls(authority, "mutual") + (
        f'seal_certificate = "{worker.certificate}"\nseal_key = "{worker.identity}"\n'
    )
    text += "[users.ann]\n"
    with served(tmp_path / "state", text) as service:
        access = access_of(service, authority, certificate=ann.identity)
        with ServiceClient(access) as client:
            (recipient,) = read_certificates(client.site().seal.encode())
            sealer = TaskSealer(
                recipient,
                read_identities(ann.identity.read_bytes())[0],
                TrustStore.from_pem(authority.trusted.read_bytes()),
            )
            with client.session(seal=sealer) as session:
                session.submit([TaskSpec(shell="echo sword$((4000 + 711))fish")])
                (result,) = session.results()
                assert (result.stdout, result.exit_code) == ("sword4711fish\n", 0)
                written = b"".join(file.content for file in files_below(service.folder))
    assert b"echo sword" not in written
    assert b"sword4711fish" not in written
