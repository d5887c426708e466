"""A real service on this machine, to be measured: at each level of security, clients and all."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bursar.dispatch.linux_processes import kill_leftovers
from bursar.model.errors import BursarError
from bursar.remote.access import Access, read_token
from bursar.service.identity.authority import AuthorityFolder

if TYPE_CHECKING:
    from bursar.sealing.task_sealing import TaskSealer

Level = Literal["none", "tls", "mutual", "conversation", "message"]
"""In clear; TLS and a token; TLS on both sides; and that with tasks sealed, in two ways."""

LEVELS: tuple[Level, ...] = ("none", "tls", "mutual", "conversation", "message")

USER = "user"
"""Name of the one who is measured."""

_ENDS = 30.0  # seconds within which it ends when it is told to


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredService:
    """
    A service that takes requests.

    Parameters
    ----------
    level
        Level of security.
    access
        Address and credentials of the user.
    pid
        Process number of the service.
    run
        Identity by which the service's workers are recognised.
    folder
        Folder of the certificates and of the service's state.
    """

    level: Level
    access: Access
    pid: int
    run: str
    folder: Path

    def sealer(self) -> "TaskSealer | None":
        """Return a new sealer of the user; None where tasks are in clear."""
        if self.level not in ("conversation", "message"):
            return None
        from bursar.sealing.task_sealing import read_sealer

        certificates = self.folder / "certificates"
        return read_sealer(
            (certificates / "worker-workers.crt").read_bytes(),
            certificate=certificates / f"user-{USER}.pem",
            authorities=certificates / "ca.pem",
            level="message" if self.level == "message" else "conversation",
        )


@contextmanager
def measured_service(level: Level, processors: int, more: str = "") -> Iterator[MeasuredService]:
    """
    Run a service in a separate process for the length of a context.

    Parameters
    ----------
    processors
        Number of workers, of one processor each.
    more
        Text that is appended to the service file.

    Raises
    ------
    BursarError
        When the service does not start.
    """
    with tempfile.TemporaryDirectory(prefix="bursar-service-") as name:
        folder = Path(name)
        file = folder / "service.toml"
        file.write_text(_service_file(folder, level, processors) + more)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bursar", "serve", "-c", str(file), "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        run = ""
        try:
            url = _url_told(process, folder / "log")
            run = json.loads((folder / "state/journal/service.json").read_bytes())["run"]
            yield MeasuredService(
                level=level, access=_access(folder, level, url), pid=process.pid, run=run,
                folder=folder,
            )  # fmt: skip
        finally:
            process.terminate()
            try:
                process.communicate(timeout=_ENDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
            # Workers outlive their service; a measurement must leave none behind for the next one.
            if run:
                kill_leftovers(run)


def _service_file(folder: Path, level: Level, processors: int) -> str:
    certificates = folder / "certificates"
    security = level if level in ("none", "tls") else "mutual"
    told: dict[str, str | int] = {
        "name": "here",
        "folder": str(folder / "state"),
        "listen": "127.0.0.1:0",
        "security": security,
    }
    if level != "none":
        authority = AuthorityFolder.create(certificates, "measuring")
        authority.issue("server", "here", hosts=["127.0.0.1"])
        authority.issue("user", USER)
        told["certificate"] = told["key"] = str(certificates / "server-here.pem")
        if security == "mutual":
            told["authorities"] = str(authority.trusted)
        if level in ("conversation", "message"):
            authority.issue("worker", "workers")
            told["seal_certificate"] = str(certificates / "worker-workers.crt")
            told["seal_key"] = str(certificates / "worker-workers.pem")
    lines = ["[service]", *(f"{key} = {json.dumps(value)}" for key, value in told.items())]
    lines += ["[site]", f"processors = {processors}"]
    lines += [f"[users.{USER}]", 'scopes = ["submit", "read", "admin"]', ""]
    return "\n".join(lines)


def _url_told(process: "subprocess.Popen[str]", log: Path) -> str:
    assert process.stdout is not None
    said = ""
    # The service prints one JSON object, over several lines, once it takes requests.
    while "\n}" not in said:
        line = process.stdout.readline()
        if not line:
            raise BursarError(f"the service did not start: {log.read_text().strip()}")
        said += line
    url: str = json.loads(said)["url"]
    return url


def _access(folder: Path, level: Level, url: str) -> Access:
    certificates = folder / "certificates"
    if level == "none":
        return Access(url=url)
    if level == "tls":
        token = read_token(folder / "state/admin.token")
        return Access(url=url, ca=certificates / "ca.pem", token=token)
    own = certificates / f"user-{USER}.pem"
    return Access(url=url, ca=certificates / "ca.pem", certificate=own)
