"""
The program that a pilot's job runs on each node.

It has one worker for all processors of the node, in a process forked from its own so that only one
Python has to start; a worker that dies is replaced, and what it ran is killed first. When the
connection is lost it tries to come back for a while, as a new worker; one that is to outlive its
dispatcher has come back by itself, or tried, before that. Then it ends, as it does when its worker
is let go: nobody holds processors for a dispatcher that is gone. SIGTERM, of a scheduler that wants
the processors back, ends the tasks, which are told of, and then the pilot. SIGUSR1 has the worker
take no more tasks, and the pilot end with the last task that runs.

    python -m bursar.provisioning.pilot CREDENTIAL_FILE
"""

import os
import signal
import socket
import sys
import time

from bursar.dispatch.credential import Credential, decode_credential
from bursar.dispatch.linux_processes import adopt_orphans, end_with_parent, kill_descendants
from bursar.dispatch.wire import frame
from bursar.model.errors import InputError
from bursar.worker.dispatcher_connection import WorkerSettings, hello_of, make_connection

PROCESSORS = "BURSAR_PROCESSORS"
"""Environment variable with the number of the job's processors on this node."""

SEAL_KEY = "BURSAR_SEAL_KEY"
"""Variable that says which file of this node sealed tasks are opened with."""

MOST_DEATHS = 5
"""Deaths of workers in a row, each within :data:`SOON`, after which the pilot gives up."""

SOON = 10.0  # seconds

GIVEN_UP = 75
"""Exit status of a pilot that nobody lets in, or whose workers die (``EX_TEMPFAIL``)."""

_LET_GO, _NOT_REACHED, _LOST = 0, 3, 4  # exit statuses of a worker
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0  # seconds
_KILLED_AFTER = 5.0  # seconds beyond its tasks' grace, of a worker that is told to end


def read_credential(path: str) -> Credential:
    """
    Read the credential in a file.

    Raises
    ------
    InputError
        When there is no credential, or others may read the file.
    """
    try:
        with open(path, "rb") as file:
            # Of the open file, not of the path, which could be exchanged in between.
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise InputError(
                    "others than its owner have access to it", where=path, hint=f"chmod 600 {path}"
                )
            return decode_credential(file.read(), path)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path) from None


def processors_here(credential: Credential, text: str) -> int:
    """
    Return how many processors of this node the pilot has.

    Parameters
    ----------
    text
        Number of processors, as the job's environment states it; empty: the pilot is alone.

    Raises
    ------
    InputError
        When the text is no number of processors.
    """
    if not text:
        return credential.processors
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f'expected a number of processors, got "{text}"', where=PROCESSORS)
    # The scheduler may round a request up to whole nodes; the dispatcher knows of no more than
    # these.
    return min(int(text), credential.processors)


class PilotSupervisor:
    """
    Runs one worker at a time on a node, and replaces a worker that dies.

    Parameters
    ----------
    processors
        Number of processors on this node.
    """

    def __init__(self, credential: Credential, processors: int) -> None:
        self._credential = credential
        self._processors = processors
        # Other nodes of the lease, and this one's later workers, have other names.
        self._name = f"{credential.site}-{credential.lease}-{socket.gethostname()}-{os.getpid()}"
        self._count = 0
        self._deaths = 0
        self._must_end = False

    def run(self) -> int:
        """Run workers until nothing is left to do here; return the exit status."""
        # Blocked and waited for: a handler could run between any two steps below, sigwait only
        # where it is safe.
        signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED_SIGNALS)
        # Processes whose worker died become children of this one, so that none is left on the node.
        adopt_orphans()
        lost = time.monotonic()
        wait = _FIRST_WAIT
        deaths = 0
        while True:
            began = time.monotonic()
            code = self._have_worker()
            now = time.monotonic()
            if code == _LET_GO or self._must_end:
                return 0
            if code == _LOST:
                # A worker that was let in is proof that all is well: patience and count begin anew.
                lost, wait, deaths = now, _FIRST_WAIT, 0
            elif code != _NOT_REACHED:
                self._deaths += 1
                deaths = deaths + 1 if now - began < SOON else 1
                lost, wait = now, _FIRST_WAIT * 2 ** (deaths - 1)
                if deaths > MOST_DEATHS:
                    _print_error(
                        f"its worker died {deaths} times in a row, last with status {code}"
                    )
                    return GIVEN_UP
            if now + wait - lost > self._credential.patience:
                _print_error(
                    f"nobody lets it in at {self._credential.host}:{self._credential.port}"
                )
                return GIVEN_UP
            if self._must_end_within(wait):
                return 0
            wait = min(2 * wait, _LONGEST_WAIT)

    def _have_worker(self) -> int:
        """
        Run a worker process, remove what the worker left, and return the worker's exit status.
        """
        self._count += 1
        parent = os.getpid()
        process = os.fork()
        if process == 0:
            code = 1
            try:
                end_with_parent(signal.SIGTERM)
                # The pilot may have died before the line above took effect; its signal would then
                # never come.
                if os.getppid() == parent:
                    code = self._work()
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        return self._watch(process)

    def _work(self) -> int:
        """Run the worker; called in the forked child process."""
        given = self._credential
        settings = WorkerSettings(
            host=given.host,
            port=given.port,
            token=given.token,
            worker=f"{self._name}-{self._count}",
            site=given.site,
            lease=given.lease,
            processors=self._processors,
            certificate=given.certificate,
            silence=given.silence,
            grace=given.grace,
            idle=given.idle,
            seal_key=os.environ.get(SEAL_KEY, ""),
            deaths=self._deaths,
        )
        try:
            # As long as it has no task a signal may end it where it is.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
            line = make_connection(settings)
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
            line.send(bytearray(frame(hello_of(settings))))  # so little always goes at once
        except OSError:
            return _NOT_REACHED
        # Half of all that there is to load can be loaded while the dispatcher answers.
        from bursar.worker.worker import Worker

        worker = Worker(settings, line)
        if worker.run():
            return _LET_GO
        return _LOST if worker.is_welcome else _NOT_REACHED

    def _watch(self, process: int) -> int:
        killed_at: float | None = None
        while True:
            signal_number = _wait_for_signal(
                None if killed_at is None else killed_at - time.monotonic()
            )
            if signal_number == signal.SIGTERM and killed_at is None:
                self._must_end = True
                killed_at = time.monotonic() + self._credential.grace + _KILLED_AFTER
                os.kill(process, signal.SIGTERM)
            if signal_number == signal.SIGUSR1:
                self._must_end = True  # nor is a worker replaced that dies meanwhile
                os.kill(process, signal.SIGUSR1)
            if signal_number is None:
                os.kill(process, signal.SIGKILL)
            # Only the worker's own end counts: SIGCHLD also comes for orphans that were adopted.
            found, status = os.waitpid(process, os.WNOHANG)
            if found:
                kill_descendants()  # what it left behind became ours
                return os.waitstatus_to_exitcode(status)

    def _must_end_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if _wait_for_signal(left) in (signal.SIGTERM, signal.SIGUSR1):
                return True
        return False


_AWAITED_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD)


def _wait_for_signal(seconds: float | None) -> int | None:
    """Wait for the next signal; None when none came in time."""
    if seconds is None:
        return int(signal.sigwait(_AWAITED_SIGNALS))
    found = signal.sigtimedwait(_AWAITED_SIGNALS, max(0.0, seconds))
    return None if found is None else found.si_signo


def _print_error(text: str) -> None:
    print(f"pilot: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Run the pilot program; return the exit status."""
    for number in (signal.SIGINT, signal.SIGHUP):
        # A job must not end with the terminal or session that it was submitted from.
        signal.signal(number, signal.SIG_IGN)
    if len(sys.argv) != 2:
        _print_error("expected one file, that of its credential")
        return 2
    try:
        credential = read_credential(sys.argv[1])
        processors = processors_here(credential, os.environ.get(PROCESSORS, ""))
    except InputError as error:
        _print_error(str(error))
        return 2
    return PilotSupervisor(credential, processors).run()


if __name__ == "__main__":
    sys.exit(main())
