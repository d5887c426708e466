"""Private ssh servers on the loopback that stand for several hosts."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PATIENCE = 20.0  # seconds in which a server listens


class SshServer:
    """
    One ssh server with a host key, a configuration and a port of its own.

    Parameters
    ----------
    folder
        Folder of its files.
    user_key
        Public key that is let in.
    """

    def __init__(self, folder: Path, user_key: Path) -> None:
        self.folder = folder
        folder.mkdir()
        make_key(folder / "host")
        shutil.copy(user_key, folder / "authorized")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        (folder / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
            f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
            "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
            "LogLevel VERBOSE\n"
        )
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def known(self) -> str:
        """The line of known_hosts for this server."""
        key = (self.folder / "host.pub").read_text().split()
        return f"[127.0.0.1]:{self.port} {key[0]} {key[1]}\n"

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        server = server_program()
        log = self.folder / "log"
        log.write_text("")
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [server, "-D", "-e", "-f", str(self.folder / "config")], stderr=file
            )
        end = time.monotonic() + PATIENCE
        while "Server listening" not in log.read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                pytest.skip(f"the ssh server does not start: {log.read_text()}")
            time.sleep(0.02)

    def vanish(self) -> None:
        """Kill the server and all that it started, as when the machine loses its power."""
        if self.process is None:
            return
        # The server first, stopped: it accepts nothing while its sessions are looked for.
        os.kill(self.process.pid, signal.SIGSTOP)
        while found := [pid for pid in descendants(self.process.pid) if is_alive(pid)]:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self.process.kill()
        self.process.wait()
        self.process = None

    @property
    def sessions(self) -> int:
        """Number of processes that run below the server."""
        return 0 if self.process is None else len(descendants(self.process.pid))


def server_program() -> str:
    """Return the ssh server of this machine; skip the test where there is none."""
    server = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
    if server is None or shutil.which("ssh-keygen") is None or shutil.which("ssh") is None:
        pytest.skip("no ssh server here: install Debian's openssh-server to test against one")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it confines itself
    return server


def make_key(path: Path) -> None:
    """Make a pair of keys."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def descendants(pid: int) -> list[int]:
    """Return the processes that a process and its descendants have started."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def marked(mark: str) -> list[int]:
    """Return the processes that have a text in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and is_alive(int(name)):
            with suppress(OSError):
                if mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
    return found


class SshHostsOfTest:
    """
    Several servers, with one user key, one known_hosts and one configuration of ssh.

    Parameters
    ----------
    count
        Number of servers.
    """

    def __init__(self, folder: Path, count: int) -> None:
        server_program()
        self.folder = folder
        make_key(folder / "user")
        self.servers = [
            SshServer(folder / f"host{number}", folder / "user.pub") for number in range(count)
        ]
        self.known = folder / "known_hosts"
        self.known.write_text("".join(server.known for server in self.servers))
        self.config = folder / "ssh_config"
        self.config.write_text(
            f"Host *\n  UserKnownHostsFile {self.known}\n  GlobalKnownHostsFile none\n"
            f"  IdentityFile {folder}/user\n  IdentitiesOnly yes\n  IdentityAgent none\n"
        )

    def table(
        self,
        *extra: str,
        processors: int | None = 1,
        servers: "Sequence[SshServer] | None" = None,
    ) -> str:
        """Return a sites file of some servers, or of all."""
        stated = "" if processors is None else f", processors = {processors}"
        hosts = ", ".join(
            f'{{ host = "127.0.0.1", port = {server.port}{stated} }}'
            for server in servers or self.servers
        )
        lines = [
            "[site.lab]",
            'kind = "ssh"',
            f"hosts = [{hosts}]",
            f'ssh = ["-F", "{self.config}"]',
            'reach = "127.0.0.1"',
            'unit_price = "1 SU/core-hour"',
            *extra,
        ]
        return "\n".join(lines) + "\n"


@contextmanager
def ssh_hosts(folder: Path, count: int) -> Iterator[SshHostsOfTest]:
    """Run servers while the context lasts."""
    hosts = SshHostsOfTest(folder, count)
    try:
        for server in hosts.servers:
            server.start()
        yield hosts
    finally:
        for server in hosts.servers:
            server.vanish()
