"""A campaign over a service that cannot read it."""

from pathlib import Path

import pytest
from tests.live_files import files_below
from tests.service.service_process import served

import bursar
from bursar.service.identity.authority import AuthorityFolder

CAMPAIGN = """
[campaign]
name = "secret"
[tasks.one]
command = "echo $WORD_THAT_IS_SEALED; head -c 200000 /dev/zero | tr '\\\\0' x >&2"
environment = { WORD_THAT_IS_SEALED = "parole-of-the-campaign" }
[tasks.two]
command = "exit 3"
[retry]
attempts = 1
"""


@pytest.mark.ci
def test_a_sealed_campaign(tmp_path: Path) -> None:
    """The results are as ever; nothing that the service keeps has the words of the tasks."""
    authority = AuthorityFolder.create(tmp_path / "certs", "test")
    server = authority.issue("server", "deef", hosts=["127.0.0.1"])
    worker = authority.issue("worker", "pool")
    user = authority.issue("user", "ann")
    text = (
        f"security = 'mutual'\ncertificate = '{server.identity}'\nkey = '{server.identity}'\n"
        f"authorities = '{authority.trusted}'\n"
        f"seal_certificate = '{worker.certificate}'\nseal_key = '{worker.identity}'\n"
        "[users.ann]\nscopes = ['submit', 'read']\n"
        "[site]\nprocessors = 1\nunit_price = '1 SU/core-hour'\n"
    )
    with served(tmp_path / "state", text) as service:
        (tmp_path / "sites.toml").write_text(
            f'[site.there]\nkind = "remote"\nurl = "https://127.0.0.1:{service.port}"\n'
            f'processors = 1\nca = "{authority.trusted}"\ncertificate = "{user.identity}"\n'
            'seal = "message"\n'
        )
        (tmp_path / "secret.toml").write_text(CAMPAIGN)
        run = bursar.run(
            tmp_path / "secret.toml",
            sites=tmp_path / "sites.toml",
            runs=tmp_path / "runs",
            name="secret",
        )
        one, two = run.outcomes()
        assert (one.exit_code, one.stdout) == (0, b"parole-of-the-campaign\n")
        log = run.path / "logs" / "0-one.1.stderr"
        assert one.stderr_size == 200_000
        assert (one.stderr or log.read_bytes()) == b"x" * 200_000
        assert two.exit_code == 3
        with bursar.Executor(sites=tmp_path / "sites.toml") as executor:
            assert executor.submit(divmod, 7, 2).result(60) == (3, 1)
            assert type(executor.submit(divmod, 7, 0).exception(60)) is ZeroDivisionError
        assert service.end() == 0
    kept = b"".join(file.content for file in files_below(tmp_path / "state"))
    assert b"parole-of-the-campaign" not in kept
    assert b"WORD_THAT_IS_SEALED" not in kept
