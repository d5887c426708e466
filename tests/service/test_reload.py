"""A real service that reads its file again, and keeps its memory to itself."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.service_process import Served, served
from tests.service.test_serve import until

from bursar.remote.client import ServiceClient
from bursar.remote.http_transport import RemoteProblem

QUOTAS = """
[limits.requests]
file_bytes = {file_bytes}
[users.owner.limits]
instances = {instances}
user_bytes = {user_bytes}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Served]:
    text = QUOTAS.format(file_bytes=100, instances=1, user_bytes=150)
    with served(tmp_path / "state", text) as started:
        yield started


def reread(service: Served, text: str) -> str:
    """Lets the service read another file; what it says to it."""
    file = service.folder.with_suffix(".toml")
    head, _, _ = file.read_text().partition("[limits")
    file.write_text(head + text)
    before = len(service.log.read_text())
    assert service.process is not None
    service.process.send_signal(signal.SIGHUP)

    def said() -> list[str]:
        lines = service.log.read_text()[before:].splitlines()
        return [line for line in lines if "prices and limits" in line]

    until(lambda: bool(said()))
    (line,) = said()
    return str(json.loads(line)["message"])


def refusal(client: ServiceClient, handle: str, name: str, size: int) -> str:
    """Why a file is not taken; empty: it was."""
    try:
        client.upload(handle, name, bytes(size))
    except RemoteProblem as error:
        return error.kind
    return ""


def test_what_users_may_is_read_again(service: Served) -> None:
    """With SIGHUP; nothing is taken from a file that is wrong in one thing."""
    with service.client() as client:
        handle = client.create_instance().id
        with pytest.raises(RemoteProblem):
            client.create_instance()
        assert refusal(client, handle, "a", 101) == "too-large"
        assert refusal(client, handle, "a", 100) == ""
        assert refusal(client, handle, "b", 100) == "over-quota"

        more = QUOTAS.format(file_bytes=110, instances=2, user_bytes=220)
        assert "were read again" in reread(service, more)

        client.create_instance()
        assert refusal(client, handle, "b", 110) == ""
        assert refusal(client, handle, "c", 100) == "over-quota"

        wrong = QUOTAS.format(file_bytes=9999, instances=9, user_bytes='"all"')
        said = reread(service, wrong)
        assert "stay as they were" in said
        assert "users.owner.limits.user_bytes" in said

        with pytest.raises(RemoteProblem):
            client.create_instance()
        assert refusal(client, handle, "c", 111) == "too-large"


def test_there_are_no_core_files(service: Served) -> None:
    """Its memory is full of secrets; of the processes that it starts, too."""
    assert service.process is not None
    limits = Path(f"/proc/{service.process.pid}/limits").read_text()

    (line,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert line.split()[4:6] == ["0", "0"]
