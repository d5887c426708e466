"""Run a scheduler's commands here or on a login node; turn its complaints into clear errors."""

import asyncio
import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bursar.model.errors import InputError, SiteError
from bursar.supervisor import TaskSupervisor, heard_by_waiter

# Run a scheduler's commands on this machine or on a login node.

MOST_AT_ONCE = 4
"""Commands of one manager that run at a time: a scheduler serves others too."""

MOST_OUTPUT = 256 << 20
"""Bytes that a command may print; a queue of 100,000 jobs is some 50 MB of JSON."""

TIMEOUT = 60.0  # seconds; schedulers give up on themselves after 10 to 30
_LINGER = 1.0  # seconds for what is still in the pipes when a command has ended
_CONNECT = 15  # seconds for a connection to the login node

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_FOR_GOOD = re.compile(
    r"permission denied|host key verification failed|identification has changed"
    r"|name or service not known|no such identity|bad configuration option",
    re.IGNORECASE,
)
"""Messages of ssh after which trying again does not help."""

_WRITE = 'umask 077 && cat > "$1.$2" && mv -f -- "$1.$2" "$1"'


class CommandResult(NamedTuple):
    """
    Exit status and output of a command.

    Parameters
    ----------
    status
        Exit status; negative: the signal that ended the command.
    stdout, stderr
        Decoded output; bytes that are not UTF-8 are replaced.
    """

    status: int
    stdout: str
    stderr: str

    @property
    def words(self) -> str:
        """Complaint of the command on one line, for messages."""
        output = self.stderr.strip() or self.stdout.strip()
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        return "; ".join(lines)[:500] or f"ended with status {self.status} and said nothing"


def ssh_command(options: Sequence[str] = ()) -> list[str]:
    """Return ssh with arguments, ours before the caller's: it never asks for a password."""
    # BatchMode: a password prompt would wait for ever where nobody sees it.
    ours = ("BatchMode=yes", "LogLevel=ERROR", f"ConnectTimeout={_CONNECT}")
    return ["ssh", "-T", *(word for option in ours for word in ("-o", option)), *options]


class CommandRunner:
    """
    Runs commands, a few at a time, and keeps files that only their owner can read.

    Parameters
    ----------
    environment
        Variables that are added to those that the commands have anyway. On a login node they
        are part of the command line, which others can read: no secrets.
    without
        Variables that the commands must not see, although the user may have set them.
    ssh
        Login node on which they are run, as ssh knows it; None: this machine.
    scheduler
        Name of the scheduler, for hints; empty: the caller judges status 127 of a command itself.
    ssh_options
        Further arguments of ssh, before the host.
    timeout
        Seconds after which a command is stopped, unless the call says otherwise.

    Attributes
    ----------
    commands
        Number of commands run so far.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
        ssh: str | None = None,
        scheduler: str = "the scheduler",
        ssh_options: Sequence[str] = (),
        timeout: float = TIMEOUT,
    ) -> None:
        self._environment = dict(environment or {})
        for name in (*self._environment, *without):
            _check_variable(name)
        if ssh is not None and (not ssh or ssh.startswith("-") or re.search(r"\s", ssh)):
            raise InputError(f"no host: {ssh!r}", where="ssh")
        self._without = tuple(name for name in without if name not in self._environment)
        self.ssh = ssh
        self._scheduler = scheduler
        self._ssh_options = tuple(ssh_options)
        self._turn = asyncio.Semaphore(MOST_AT_ONCE)
        self._timeout = timeout
        self.commands = 0

    @property
    def where(self) -> str:
        """The machine on which commands are run, for messages."""
        return self.ssh or "this machine"

    async def run(
        self,
        command: Sequence[str],
        *,
        stdin: str | bytes = "",
        environment: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """
        Run a command and wait for the end of the command.

        Parameters
        ----------
        command
            Program and arguments, run without a shell.
        environment
            Further variables; the same holds for them as for those of the constructor.
        timeout
            Seconds after which the command is stopped.

        Returns
        -------
        CommandResult
            Result with any exit status; the caller decides what it means.

        Raises
        ------
        SiteError
            When there is no such program; and, transient, when the command does not end in
            time, says too much, or the login node cannot be reached.
        """
        extra = dict(environment or {})
        for name in extra:
            _check_variable(name)
        seconds = self._timeout if timeout is None else timeout
        data = stdin.encode() if isinstance(stdin, str) else stdin
        # The semaphore is the site's courtesy: a burst of pilots must not flood a controller that
        # serves a whole cluster.
        async with self._turn:
            self.commands += 1
            if self.ssh is None:
                return await self._run_here(list(command), data, extra, seconds)
            return await self._run_there(self.ssh, list(command), data, extra, seconds)

    async def _run_here(
        self, command: list[str], stdin: bytes, extra: dict[str, str], seconds: float
    ) -> CommandResult:
        variables = {k: v for k, v in os.environ.items() if k not in self._without}
        variables |= self._environment | extra
        answer = await self._communicate(command, stdin, variables, seconds, command[0])
        if answer is None:
            raise self._missing(command[0])
        return answer

    async def _run_there(
        self, host: str, command: list[str], stdin: bytes, extra: dict[str, str], seconds: float
    ) -> CommandResult:
        without = [word for name in self._without for word in ("-u", name)]
        variables = [f"{k}={v}" for k, v in (self._environment | extra).items()]
        # ssh joins its arguments for the user's login shell: every word has to be quoted for it.
        line = shlex.join(["env", *without, *variables, *command])
        full = [*ssh_command(self._ssh_options), host, "--", line]
        answer = await self._communicate(full, stdin, dict(os.environ), seconds, command[0])
        if answer is None:
            raise SiteError(f'ssh is not installed on this machine, and "ssh" names {host}')
        # 255 is ssh's own failure; no scheduler's command ends with it.
        if answer.status == 255:
            permanent = _FOR_GOOD.search(answer.stderr) is not None
            raise SiteError(f"{host}: {answer.words}", transient=not permanent)
        if self._scheduler and answer.status == 127 and f"{command[0]}" in answer.stderr:
            raise self._missing(command[0])
        return answer

    async def _communicate(
        self,
        command: list[str],
        stdin: bytes,
        variables: dict[str, str],
        seconds: float,
        program: str,
    ) -> CommandResult | None:
        """Run a process on this machine; return None when the program does not exist."""
        try:
            transport, output = await _started(command, variables)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise SiteError(f"{command[0]} cannot be run on this machine: {error}") from None
        try:
            pipe = transport.get_pipe_transport(0)
            assert isinstance(pipe, asyncio.WriteTransport)
            pipe.write(stdin)
            pipe.close()  # once all of it is written
            if not await output.is_over(seconds):
                raise SiteError(
                    f"{program} on {self.where} gave no answer within {seconds:g} s",
                    transient=True,
                )
            if output.too_much:
                raise SiteError(
                    f"{program} on {self.where} printed more than {MOST_OUTPUT >> 20} MB",
                    transient=True,
                )
            status = transport.get_returncode()
            assert status is not None
            return CommandResult(status, output.text(1), output.text(2))
        finally:
            await _ended(transport, output)

    def _missing(self, program: str) -> SiteError:
        return SiteError(
            f"{program}: not found on {self.where}; is the client of {self._scheduler} "
            'installed? If it lies elsewhere, set PATH in the site\'s "environment"; if it is on '
            'a login node, name that with "ssh"'
        )

    async def write(self, path: str, data: bytes) -> None:
        """
        Write a file that only the owner can read, replacing any file of that name.

        Parameters
        ----------
        path
            Absolute path.
        data
            Content of the file; it is on no command line, and at no time readable by others.

        Raises
        ------
        SiteError
            When the file cannot be written.
        """
        part = secrets.token_hex(4)
        remote = ["sh", "-c", _WRITE, "sh", path, part]
        await self._change("write", path, remote, lambda: _write_here(path, part, data), data)

    async def make_folder(self, path: str) -> None:
        """
        Make a folder that only the owner can enter, with all missing parents.

        Raises
        ------
        SiteError
            When it cannot be made.
        """
        remote = ["sh", "-c", 'umask 077 && mkdir -p -- "$1"', "sh", path]
        await self._change("make", path, remote, lambda: _make_folder_here(Path(path)))

    async def remove(self, path: str) -> None:
        """
        Remove a file or a folder with all content; do nothing if there is none.

        Raises
        ------
        SiteError
            When it cannot be removed.
        """
        remote = ["rm", "-rf", "--", path]
        await self._change("remove", path, remote, lambda: _remove_here(Path(path)))

    async def _change(
        self,
        doing: str,
        path: str,
        remote: Sequence[str],
        here: Callable[[], None],
        stdin: bytes = b"",
    ) -> None:
        """Change a file by a command of the other machine, or by a function on this one."""
        _check_path(path)
        if self.ssh is not None:
            answer = await self.run(remote, stdin=stdin)
            if answer.status != 0:
                raise SiteError(f"{self.where}: {answer.words}")
            return
        try:
            await asyncio.to_thread(here)
        except OSError as error:
            raise SiteError(f"cannot {doing} {path}: {error.strerror}") from None


class _CommandOutput(asyncio.SubprocessProtocol):
    """Collects a process's output as the output arrives."""

    def __init__(self) -> None:
        self.exited = asyncio.Event()
        self._finished = asyncio.Event()
        self._open = {1, 2}
        self._chunks: dict[int, list[bytes]] = {1: [], 2: []}
        self._length = 0
        self.too_much = False

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if self.too_much:
            return
        self._chunks[fd].append(data)
        self._length += len(data)
        if self._length > MOST_OUTPUT:
            self.too_much = True
            self._finished.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        self._finish_if_complete()

    def process_exited(self) -> None:
        self.exited.set()
        self._finish_if_complete()
        # What it left behind, such as the shared connection of ssh, may hold the pipes on.
        asyncio.get_running_loop().call_later(_LINGER, self._finished.set)

    def _finish_if_complete(self) -> None:
        if self.exited.is_set() and not self._open:
            self._finished.set()

    async def is_over(self, seconds: float) -> bool:
        """Wait until the process ends or prints too much; False after the given seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._finished.wait()
        except TimeoutError:
            return False
        return True

    def text(self, fd: int) -> str:
        return b"".join(self._chunks[fd]).decode(errors="replace")


def _check_variable(name: str) -> None:
    if not _VARIABLE.fullmatch(name):
        raise InputError(f"no name of a variable: {name!r}", where="environment")


def _check_path(path: str) -> None:
    if not path.startswith("/") or "\0" in path or os.path.normpath(path) in ("/", "//"):
        raise InputError(f"a path from the root is needed, got {path!r}")


def _write_here(path: str, part: str, data: bytes) -> None:
    temporary = f"{path}.{part}"
    # Private from its first moment: a chmod afterwards would leave an instant in which others read.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _make_folder_here(path: Path) -> None:
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def _remove_here(path: Path) -> None:
    # A link is removed as a link, never what it leads to.
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


async def _started(
    command: list[str], variables: dict[str, str]
) -> tuple[asyncio.SubprocessTransport, _CommandOutput]:
    """Start a process; if the caller is cancelled meanwhile, leave none running."""
    loop = asyncio.get_running_loop()
    async with TaskSupervisor() as tasks:
        starting = tasks.start(
            loop.subprocess_exec(_CommandOutput, *command, env=variables, start_new_session=True),
            on_failure=heard_by_waiter,
        )
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # Cancelled itself, asyncio would end the process without what that has started, and
            # wait for both.
            with contextlib.suppress(OSError, ValueError):
                await _ended(*await starting)
            raise


async def _ended(transport: asyncio.SubprocessTransport, output: _CommandOutput) -> None:
    """Kill what is left of a process that may still run."""
    if transport.get_returncode() is None:
        with contextlib.suppress(ProcessLookupError):
            # The whole session: sh and ssh leave children that would hold pipes and connections.
            os.killpg(transport.get_pid(), signal.SIGKILL)
        await asyncio.shield(output.exited.wait())
    transport.close()


# Turn a scheduler's complaints into errors that say what to change.


@dataclass(frozen=True, slots=True)
class KnownComplaint:
    """
    A known error message of a scheduler.

    Parameters
    ----------
    words
        Pattern of the message; case does not matter.
    hint
        Hint on what the user should change; empty: only waiting helps.
    """

    words: str
    hint: str = ""
    transient: bool = False


def command_error(doing: str, answer: CommandResult, known: Iterable[KnownComplaint]) -> SiteError:
    """
    The error of a command that failed, in the scheduler's own words.

    Words that none of those known is found in are for people, and for good.

    Parameters
    ----------
    doing
        Program, or what was tried.
    known
        The first that is found counts.
    """
    output = f"{answer.stderr}\n{answer.stdout}"
    for complaint in known:
        if re.search(complaint.words, output, re.IGNORECASE):
            hint = f"; {complaint.hint}" if complaint.hint else ""
            return SiteError(f"{doing}: {answer.words}{hint}", transient=complaint.transient)
    return SiteError(f"{doing}: {answer.words}")


def unreadable_output_error(doing: str, output: str) -> SiteError:
    """The error of a command that succeeded, but whose answer cannot be read."""
    start = " ".join(output.split())[:120]
    return SiteError(f"{doing} printed what cannot be read: {start!r}", transient=True)
