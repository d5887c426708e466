"""A host of a site of kind "ssh": its one connection, looks at it, and pilots that run there."""

import asyncio
import contextlib
import hashlib
import os
import shlex
import shutil
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bursar.dispatch.credential import Credential, decode_credential
from bursar.dispatch.linux_processes import PILOT
from bursar.model.errors import SiteError
from bursar.model.provisioning import SshHost, SshHosts
from bursar.provisioning import host_pilot
from bursar.provisioning.host_pilot import HostReport
from bursar.provisioning.lrm.command_runner import CommandRunner, ssh_command
from bursar.provisioning.pilot import PROCESSORS
from bursar.sites import ssh_carrier
from bursar.version import VERSION

ALIVE = 5
"""Seconds between two signs of life on a connection; three that are missing end it."""

KEPT = 30
"""Seconds for which a connection is kept that nothing uses."""

LOST = 255
"""Exit status of ssh when the connection fails or ends."""

_ENDING = 12.0  # seconds, in which a pilot that is told to end is gone
_MOST_WORDS = 4096  # bytes of a pilot's complaints that are kept

_HINTS = {
    "permission denied": "no key of yours is accepted there: name one with identity_file, load it "
    "into your agent, or add it there with ssh-copy-id",
    "host key verification failed": "its host key is not known here, or another one than known: "
    "connect once by hand, `ssh {host}`, and check the key",
    "identification has changed": "another key than the known one: ask its administrator, then "
    "correct your known_hosts",
    "could not resolve": "no such name: correct the host in the sites file",
    "name or service not known": "no such name: correct the host in the sites file",
    "no module named": "bursar {version} is not installed for {python} there: set python to an "
    "interpreter that has it",
    "no such file or directory": "{python} is not there: set python to an interpreter that has "
    "bursar {version}",
    "not found": "{python} is not there: set python to an interpreter that has bursar {version}",
}
"""What to do, by words of ssh or of the host; the first that are found count."""


def advice(words: str, *, host: str, python: str) -> str:
    """Return what to do about a complaint of ssh or of a host; empty where nothing is known."""
    lower = words.lower()
    for found, hint in _HINTS.items():
        if found in lower:
            return hint.format(host=host, python=python, version=VERSION)
    return ""


def with_port(credential: bytes, port: int) -> bytes:
    """Return a credential with which a worker comes to a port of its own host."""
    given: Credential = decode_credential(credential, "credential")
    return msgspec.structs.replace(given, host="127.0.0.1", port=port).encode()


class ConnectionSockets:
    """
    The folder of the sockets by which several ssh commands share the connection to a host.

    Parameters
    ----------
    run
        Identity of the run and name of the site: a later process of the run finds the folder.
    """

    def __init__(self, run: str) -> None:
        # Short, since a socket's path has some hundred characters at the most.
        name = hashlib.sha256(f"{os.getuid()} {run}".encode()).hexdigest()[:16]
        self.path = Path(f"/tmp/bursar-ssh-{name}")

    def make(self) -> None:
        """
        Make the folder, unless it is there.

        Raises
        ------
        SiteError
            When it is somebody else's.
        """
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        found = self.path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise SiteError(f"{self.path} is not a private folder of this user; remove it")

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)


class HostLink:
    """
    The connection to a host, over which commands run.

    Parameters
    ----------
    hosts
        How the hosts of the site are reached.
    sockets
        Folder of the socket by which commands share the connection.
    """

    def __init__(self, host: SshHost, hosts: SshHosts, sockets: Path) -> None:
        self.host = host
        self._python = hosts.python or sys.executable
        options = [*hosts.options]
        for option in (
            f"ServerAliveInterval={ALIVE}",
            "ServerAliveCountMax=3",
            "ControlMaster=auto",
            f"ControlPath={sockets}/%C",
            f"ControlPersist={KEPT}",
        ):
            options += ["-o", option]
        for flag, value in (("-J", hosts.jump), ("-i", hosts.identity_file), ("-p", host.port)):
            options += [] if value is None else [flag, str(value)]
        self._ssh = ssh_command(options)
        self._commands = CommandRunner(ssh=host.name, ssh_options=options, scheduler="")
        self._here = CommandRunner()
        self._forwards: dict[tuple[str, int], int] = {}  # by connection and port of this machine

    def _program(self, module: str, *words: str) -> list[str]:
        return [self._python, "-P", "-m", module, *words]

    def explained(self, words: str) -> str:
        """Return a complaint of ssh or of the host, with the host's name and what to do."""
        hint = advice(words, host=self.host.name, python=self._python)
        return f"{self.host.label}: {words}" + (f"; {hint}" if hint else "")

    async def inspect(self, mark: str, token: str) -> HostReport:
        """
        Ask what the host has, after ending what an earlier process of the run left there.

        Parameters
        ----------
        mark
            Mark of the run's processes; empty: nothing is ended.
        token
            File of the run's folder by which the host finds out whether it sees the folder; empty:
            none.

        Raises
        ------
        SiteError
            When the host does not answer, or cannot run pilots; the message says what to do.
        """
        processors = str(self.host.processors or 0)
        command = self._program(host_pilot.__name__, "inspect", mark, processors, token)
        try:
            answer = await self._commands.run(command)
        except SiteError as error:
            words = str(error).removeprefix(f"{self.host.name}: ")
            raise SiteError(self.explained(words), transient=error.transient) from None
        if answer.status:
            last = answer.words.split("; ")[-1]  # of a traceback, the line that says what it is
            raise SiteError(self.explained(last))
        try:
            # What a shell's start-up files print comes before it.
            report = msgspec.json.decode(answer.stdout.strip().split("\n")[-1], type=HostReport)
        except msgspec.MsgspecError:
            said = answer.stdout.strip()[:100]
            raise SiteError(f'{self.host.label}: expected a report, got "{said}"') from None
        if report.version != VERSION:
            raise SiteError(
                f"{self.host.label}: has bursar {report.version}, expected {VERSION}; install that "
                f"version for {self._python} there"
            )
        return report

    async def forward(self, port: int) -> int:
        """
        Return a port of the host from which connections come to a port of this machine.

        Raises
        ------
        SiteError
            When the host does not allow it.
        """
        # The forwarding lives as long as the shared connection, which has a process of its own.
        try:
            master = await self._control("check")
        except SiteError:  # it ends after a while without use, and a command makes it anew
            await self._commands.run(["true"])
            master = await self._control("check")
        if (master, port) not in self._forwards:
            said = await self._control("forward", "-R", f"127.0.0.1:0:127.0.0.1:{port}")
            if not said.strip().isdecimal():
                raise SiteError(f"{self.host.label}: expected a forwarded port, got {said!r}")
            self._forwards = {(master, port): int(said)}
        return self._forwards[master, port]

    async def _control(self, *words: str) -> str:
        """Have the shared connection do something; return what ssh says."""
        answer = await self._here.run([*self._ssh, "-O", *words, self.host.name])
        if answer.status:
            raise SiteError(self.explained(answer.words), transient=True)
        return answer.stdout.strip() or answer.stderr.strip()

    async def start(
        self, credential: bytes, processors: int, *, mark: str, total: int
    ) -> "HostPilot":
        """
        Start a pilot, which ends with its connection.

        Parameters
        ----------
        mark
            Mark by which its processes are recognised.
        total
            Processors of the host, where runs keep processors from each other; 0: they do not.

        Raises
        ------
        OSError
            When no process can be started on this machine.
        """
        variables = {PILOT: mark, PROCESSORS: str(processors)}
        program = self._program(host_pilot.__name__, "hold", str(total))
        process = await self._launch(program, variables, asyncio.subprocess.DEVNULL)
        assert process.stdin is not None
        process.stdin.write(credential + b"\n")
        return HostPilot(process)

    async def start_carrying(self, processors: int, *, mark: str, total: int) -> "HostPilot":
        """
        Start a pilot that gets its jobs and their files through its streams; see :meth:`start`.
        """
        words = mark, str(processors), str(total)
        program = self._program(ssh_carrier.__name__, *words)
        return HostPilot(await self._launch(program, {PILOT: mark}, asyncio.subprocess.PIPE))

    async def _launch(
        self, program: Sequence[str], variables: Mapping[str, str], output: int
    ) -> asyncio.subprocess.Process:
        """Start a program at the host, which ends with its standard input."""
        words = ["exec", "env", *(f"{name}={value}" for name, value in variables.items())]
        return await asyncio.create_subprocess_exec(
            *self._ssh,
            self.host.name,
            "--",
            shlex.join([*words, *program]),
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=asyncio.subprocess.PIPE,
            # Ctrl-C is for the run, which ends its pilots in order.
            start_new_session=True,
        )

    async def close(self) -> None:
        """End the shared connection."""
        with contextlib.suppress(SiteError):
            await self._here.run([*self._ssh, "-O", "exit", self.host.name], timeout=5.0)


class HostPilot:
    """A pilot at a host, seen through the ssh command that it lives with."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """
        Return the streams of a pilot that carries files, once it is ready.

        Raises
        ------
        SiteError
            When it ends before.
        """
        output, source = self._process.stdout, self._process.stdin
        assert output is not None
        assert source is not None
        # What a shell's start-up files print comes first.
        with contextlib.suppress(ValueError):
            while line := await output.readline():
                if line.endswith(ssh_carrier.READY):
                    return output, source
        _, words = await self.wait()
        raise SiteError(words, transient=True)

    async def wait(self) -> tuple[int, str]:
        """Wait for the end; return the exit status, 255 for a lost connection, and last words."""
        errors = self._process.stderr
        assert errors is not None
        said = b""
        while data := await errors.read(_MOST_WORDS):
            said = (said + data)[-_MOST_WORDS:]
        status = await self._process.wait()
        lines = [line.strip() for line in said.decode(errors="replace").splitlines()]
        words = [line for line in lines if line]
        return status, words[-1] if words else f"ended with status {status}"

    async def end(self) -> None:
        """End the pilot and all that it started, and wait until it is gone."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            async with asyncio.timeout(_ENDING):
                await self._process.wait()
        except TimeoutError:  # the host does not answer: it ends the pilot by itself
            self.kill()

    def kill(self) -> None:
        """End the connection without waiting; the host then ends the pilot."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
