"""
Starts ``bursar`` as forks of a process that has imported it already.

Importing takes nine tenths of the processor time of most commands. Each command is a real process
of its own all the same, in a session of its own, with its own environment, folder, input and
output; only the start of the interpreter is shared.
"""

import contextlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import connection, reduction
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

_LOCK = threading.Lock()
"""Held while processes are started and asked for their status: multiprocessing reads each status
once, and may do so in whichever thread starts another process."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.preloaded"])


class ForkedCommand:
    """
    A command that was forked, with the part of :class:`subprocess.Popen` that tests use.

    Parameters
    ----------
    words
        Arguments of ``bursar``.
    folder
        Working directory of the command.
    environment
        All its variables; None for those of this process.
    standard_input
        Text that it reads; nothing by default.
    output, errors
        Files to which its outputs are appended; by default each is a pipe.

    Attributes
    ----------
    stdout, stderr
        Text that comes through the pipes; None where a file was given.
    """

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        standard_input: str = "",
        output: Path | None = None,
        errors: Path | None = None,
    ) -> None:
        self.args = ["bursar", *words]
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        with contextlib.ExitStack() as ours, tempfile.TemporaryFile() as given:
            given.write(standard_input.encode())
            given.seek(0)
            out, self.stdout = _opened(output, ours)
            err, self.stderr = _opened(errors, ours)
            self._process: BaseProcess = _CONTEXT.Process(
                target=_carry_out,
                args=(
                    list(words),
                    str(folder),
                    dict(os.environ if environment is None else environment),
                    [_Descriptor(number) for number in (given.fileno(), out, err)],
                ),
            )
            with _LOCK:
                self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        # Whoever starts it may signal its session at once.
        with contextlib.suppress(ProcessLookupError):  # it has ended
            while self.poll() is None and os.getpgid(self.pid) != self.pid:
                time.sleep(0.001)

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        with _LOCK:
            return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit status; raise ``subprocess.TimeoutExpired`` when there is none."""
        connection.wait([self._process.sentinel], timeout)
        status = self.returncode
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read both outputs to their ends and wait; raise ``subprocess.TimeoutExpired``."""
        assert self.stdout is not None
        assert self.stderr is not None
        texts = ["", ""]

        def read(number: int, pipe: IO[str]) -> None:
            texts[number] = "" if pipe.closed else pipe.read()
            pipe.close()

        pipes = enumerate((self.stdout, self.stderr))
        readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in pipes]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        self.wait(timeout)
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and all that it started, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        if self.poll() is None:
            self._process.kill()


def start_forked(
    words: Sequence[str], folder: Path, environment: Mapping[str, str], output: Path
) -> ForkedCommand:
    """Start ``bursar`` with further variables; what it prints is appended to a file."""
    return ForkedCommand(words, folder, {**os.environ, **environment}, output=output, errors=output)


def run_forked(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    standard_input: str = "",
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run ``bursar`` to its end, as ``subprocess.run`` with captured text would."""
    command = ForkedCommand(words, folder, environment, standard_input=standard_input)
    try:
        stdout, stderr = command.communicate(timeout)
    except subprocess.TimeoutExpired:
        command.kill()
        raise
    return subprocess.CompletedProcess(command.args, command.wait(), stdout, stderr)


class _Descriptor:
    """A file descriptor that is sent to the forked process."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (reduction.DupFd(self._number),)


def _detach(sent: Any) -> int:
    number: int = sent.detach()
    return number


def _opened(file: Path | None, ours: contextlib.ExitStack) -> tuple[int, IO[str] | None]:
    """Return where the command writes to, and the end of a pipe that is read here."""
    if file is not None:
        return ours.enter_context(file.open("ab")).fileno(), None
    read, write = os.pipe()
    ours.callback(os.close, write)
    return write, io.TextIOWrapper(os.fdopen(read, "rb"))


def _carry_out(
    words: list[str], folder: str, environment: dict[str, str], descriptors: list[int]
) -> None:
    from bursar.cli.main import main

    # As from a terminal: a process that a shell started in the background ignores interrupts, and
    # so would this one.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, target in zip(descriptors, (0, 1, 2), strict=True):
        os.dup2(number, target)
        os.close(number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["bursar", *words]
    main()
