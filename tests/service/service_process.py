"""A real service for tests: started, killed, started again; nothing of it is left behind."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.forked import ForkedCommand

from bursar.dispatch.linux_processes import kill_leftovers
from bursar.remote.client import ServiceClient

PATIENCE = 60.0
"""Seconds for which clients look for a service that is away, and tests for what must come."""


@dataclass
class Served:
    """
    A service of a folder.

    Parameters
    ----------
    folder
        Of the service; its file and its log lie beside it.
    text
        Of the service file, beyond its first table.
    interpreter
        Whether an interpreter is started for it, as its user would; by default it is forked from
        one that has imported it, which takes a tenth of the time.
    """

    folder: Path
    text: str = ""
    interpreter: bool = False
    port: int = 0
    process: "ForkedCommand | subprocess.Popen[str] | None" = None
    told: dict[str, Any] = field(default_factory=dict)

    def start(self, *options: str) -> None:
        """It takes requests on return."""
        if not self.port:
            self.port = free_port()
        config = self.folder.with_suffix(".toml")
        config.write_text(
            f"[service]\nname = 'here'\nfolder = '{self.folder}'\n"
            f"listen = '127.0.0.1:{self.port}'\n{self.text}"
        )
        words = ["serve", "-c", str(config), "--json", *options]
        if self.interpreter:
            with self.log.open("a") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "bursar", *words],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        else:
            self.process = ForkedCommand(words, Path.cwd(), errors=self.log)
        assert self.process.stdout is not None
        said = ""
        while "\n}" not in said:
            line = self.process.stdout.readline()
            assert line, self.log.read_text()
            said += line
        self.told = json.loads(said)

    def kill(self) -> None:
        """As a power cut that only it has."""
        self._signalled(signal.SIGKILL)

    def end(self) -> int:
        """By the rules; its exit status."""
        return self._signalled(signal.SIGTERM)

    def _signalled(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Its exit status, once it has ended."""
        assert self.process is not None
        status = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return status

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    @property
    def run(self) -> str:
        """Its identity, by which its processes are known."""
        path = self.folder / "journal" / "service.json"
        return str(json.loads(path.read_bytes())["run"]) if path.exists() else ""

    @property
    def token(self) -> str:
        return (self.folder / "admin.token").read_text().strip()

    def client(self, **options: Any) -> ServiceClient:
        return ServiceClient(f"http://127.0.0.1:{self.port}", patience=PATIENCE, **options)


@contextmanager
def served(
    folder: Path, text: str = "", *options: str, interpreter: bool = False
) -> Iterator[Served]:
    """A service that has been started; whatever is left of it is killed at the end."""
    service = Served(folder, text, interpreter)
    try:
        service.start(*options)
        yield service
    finally:
        if service.process is not None:
            service.kill()
        if service.run:
            kill_leftovers(service.run)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def is_alive(pid: int) -> bool:
    """Whether a process is there, and is more than what its parent has not asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
