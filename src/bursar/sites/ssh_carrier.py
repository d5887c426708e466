"""
The program that runs tasks at a host of kind ``"ssh"`` that does not see the run's folder.

Jobs, and the files that they read, come through standard input, which is the ssh connection; ended
jobs, and the files that they made, leave through standard output. A worker process of ours runs the
jobs, each in folders of its own (see :mod:`bursar.sites.sidecar_process`). Files come and go in
pieces, so that their size is limited by disks only. The program lives as long as its standard input
is open, and removes its folder at the end.

    python -m bursar.sites.ssh_carrier MARK PROCESSORS TOTAL
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable

import msgspec

from bursar.dispatch.folders import remove_tree
from bursar.dispatch.linux_processes import adopt_orphans, kill_descendants
from bursar.dispatch.wire import (
    MAX_FRAME,
    NONSENSE,
    CancelTasks,
    FrameDecoder,
    JobAssignment,
    JobRecall,
    OutcomeReport,
    OutputPiece,
    OutputQuery,
    ProtocolError,
    ReturnedJobs,
    Welcome,
    WireJob,
)
from bursar.model.task import Copy, Outcome, Status
from bursar.provisioning.host_pilot import ProcessorClaim, scratch_prefix
from bursar.provisioning.pilot import GIVEN_UP
from bursar.sites.job_inputs import (
    FileIdentities,
    file_identity,
    files_below,
    identities_below,
    unstarted_outcome,
)
from bursar.sites.sidecar_process import SidecarProcess
from bursar.worker.staging import RootNamespace, StagingError
from bursar.worker.workspace import FILES, LOGS

READY = b"bursar carries files\n"
"""Line after which frames follow; what a shell's start-up files print comes before."""

PIECE = 1 << 20
"""Bytes of a file that one frame carries, at most."""

# Messages; frames are those of bursar.dispatch.wire.


class FilePiece(msgspec.Struct, frozen=True, tag=30, array_like=True):
    """
    Next bytes of a file's content.

    Parameters
    ----------
    key
        Number of the content, unique among those of one direction of the connection.
    """

    key: int
    data: bytes


class CarriedFile(msgspec.Struct, frozen=True, array_like=True):
    """
    A file that goes with a job or an outcome.

    Parameters
    ----------
    name
        Path relative to the folder that it belongs into.
    mode
        Permission bits, as of ``chmod``.
    key
        Its content, of which all pieces have been sent.
    """

    name: str
    mode: int
    key: int


class CarriedJob(msgspec.Struct, frozen=True, tag=31, array_like=True):
    """A job to run, with the files that it reads."""

    job: WireJob
    files: list[CarriedFile]


class ForgottenFiles(msgspec.Struct, frozen=True, tag=32, array_like=True):
    """Contents that no later job will name."""

    keys: list[int]


class CarriedOutcome(msgspec.Struct, frozen=True, tag=33, array_like=True):
    """
    End of a job, with what it made.

    Parameters
    ----------
    made
        Files for the run, relative to the run's files.
    logs
        Streams too long for the outcome, relative to the run's logs.
    """

    outcome: Outcome
    made: list[CarriedFile] = []
    logs: list[CarriedFile] = []


ToHost = Welcome | FilePiece | CarriedJob | ForgottenFiles | CancelTasks | JobRecall | OutputQuery
FromHost = FilePiece | CarriedOutcome | ReturnedJobs | OutputPiece

_encode = msgspec.msgpack.Encoder().encode


def carried_frame(message: ToHost | FromHost) -> bytes:
    """
    Return the frame of a message.

    Raises
    ------
    ProtocolError
        When it is too large.
    """
    body = _encode(message)
    if len(body) > MAX_FRAME:
        raise ProtocolError(f"a frame of {len(body)} bytes is larger than {MAX_FRAME}")
    return len(body).to_bytes(4, "big") + body


class ContentFolder:
    """
    Contents of files that have arrived, by key.

    Parameters
    ----------
    path
        Folder for them, which is made.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        remove_tree(path)
        os.makedirs(path)

    def add(self, piece: FilePiece) -> None:
        """Append bytes to a content; ``OSError`` when they cannot be written."""
        with open(self._at(piece.key), "ab") as file:
            file.write(piece.data)

    def copy(self, carried: CarriedFile, root: RootNamespace) -> None:
        """
        Write a file in place; the content is kept.

        Raises
        ------
        StagingError
            When the file would lie elsewhere.
        OSError
            When it cannot be written.
        """
        path = root.target(carried.name)
        # A copy and no further name: a job that changes its input must not change that of others.
        shutil.copyfile(self._at(carried.key), path)
        os.chmod(path, carried.mode & 0o777)

    def move(self, carried: CarriedFile, root: RootNamespace) -> None:
        """Put a file in place in one step, and forget the content; errors as of :meth:`copy`."""
        path = root.target(carried.name)
        content = self._at(carried.key)
        # Without setuid and setgid bits: a host must not hand such programs over.
        os.chmod(content, carried.mode & 0o777)
        os.replace(content, path)

    def forget(self, keys: Iterable[int]) -> None:
        """Remove contents that the host keeps, by their keys."""
        for key in keys:
            with contextlib.suppress(OSError):
                os.unlink(self._at(key))

    def remove(self) -> None:
        """Remove the folder."""
        remove_tree(self._path)

    def _at(self, key: int) -> str:
        return os.path.join(self._path, str(key))


# The program.


class FileCarrier:
    """
    Stands between a run at the other end of a connection and a worker process here.

    Parameters
    ----------
    scratch
        Folder for all files, which the owner removes.
    mark, processors
        See :class:`bursar.sites.sidecar_process.SidecarProcess`.
    source, target
        Descriptors from which the run's messages come, and to which those for it go.
    """

    def __init__(self, scratch: str, mark: str, processors: int, source: int, target: int) -> None:
        self._scratch = scratch
        self._mark = mark
        self._processors = processors
        self._source = source
        self._target = target
        self._contents = ContentFolder(os.path.join(scratch, "contents"))
        self._jobs: dict[tuple[int, int], tuple[WireJob, str, FileIdentities]] = {}
        self._frames = FrameDecoder()
        self._decode = msgspec.msgpack.Decoder(ToHost).decode
        self._sent = 0
        self._worker: SidecarProcess | None = None  # until the run says how it is to work
        self._poll = select.poll()

    def run(self) -> int:
        """Carry until the source ends or the worker does; return the exit status."""
        try:
            self._write(READY)
            self._poll.register(self._source, select.POLLIN)
            while True:
                ready = {file for file, _ in self._poll.poll()}
                if self._source in ready and not self._take_in():
                    return 0
                if self._worker is not None and self._worker.fileno() in ready:
                    for message in self._worker.received(None):
                        self._take_out(message)
        except BrokenPipeError:  # the run is gone
            return 0
        except (OSError, *NONSENSE) as error:
            print(f"the worker process is gone: {str(error) or 'it died'}", file=sys.stderr)
            return 1
        finally:
            if self._worker is not None:
                self._worker.close()

    @property
    def _at_work(self) -> SidecarProcess:
        if self._worker is None:
            raise ProtocolError("expected a welcome before anything else")
        return self._worker

    def _take_in(self) -> bool:
        """Take messages of the run; return False at their end."""
        data = os.read(self._source, PIECE)
        for body in self._frames.feed(data):
            message = self._decode(body)
            match message:
                case Welcome():
                    self._start(message.spill)
                case FilePiece():
                    self._contents.add(message)
                case CarriedJob(job, files):
                    self._begin(job, files)
                case ForgottenFiles(keys):
                    self._contents.forget(keys)
                case CancelTasks() | JobRecall() | OutputQuery():
                    self._at_work.send(message)
        return bool(data)

    def _start(self, spill: int) -> None:
        folder = os.path.join(self._scratch, "worker")
        os.makedirs(folder, exist_ok=True)
        self._worker = SidecarProcess("ssh", self._mark, spill, self._processors, None, folder)
        self._poll.register(self._worker.fileno(), select.POLLIN)

    def _begin(self, job: WireJob, files: list[CarriedFile]) -> None:
        home = self._at_work.make_home(job)
        place = os.path.join(home, FILES)
        try:
            for carried in files:
                self._contents.copy(carried, RootNamespace(place, place))
            seen = identities_below(place)
        except (StagingError, OSError) as error:
            remove_tree(home)
            self._tell(CarriedOutcome(unstarted_outcome(job, Status.FAILED, f"its files: {error}")))
            return
        self._jobs[job.task, job.attempt] = job, home, seen
        job = msgspec.structs.replace(job, home=home)
        self._at_work.send(JobAssignment([msgspec.Raw(msgspec.msgpack.encode(job))]))

    def _take_out(self, message: object) -> None:
        """Pass on a message of the worker, after the files that it is about."""
        if isinstance(message, OutcomeReport):
            for outcome in message.outcomes:
                self._end(outcome)
        elif isinstance(message, ReturnedJobs):
            for task, attempt in message.jobs:
                _, home, _ = self._jobs.pop((task, attempt))
                remove_tree(home)
            self._tell(message)
        elif isinstance(message, OutputPiece):
            self._tell(message)

    def _end(self, outcome: Outcome) -> None:
        job, home, seen = self._jobs.pop((outcome.task, outcome.attempt))
        try:
            files = files_below(os.path.join(home, FILES))
            made = self._send_files([f for f in files if _is_made(job, *f, seen)])
            logs = self._send_files(files_below(os.path.join(home, LOGS)))
            ended = CarriedOutcome(outcome, made, logs)
        except BrokenPipeError:
            raise
        except OSError as error:
            ended = CarriedOutcome(
                unstarted_outcome(job, Status.FAILED, f"its files cannot be sent: {error}")
            )
        self._tell(ended)
        remove_tree(home)

    def _send_files(self, files: Iterable[tuple[str, str]]) -> list[CarriedFile]:
        """Send the contents of files, given by name and path."""
        sent = []
        for name, path in files:
            self._sent += 1
            with open(path, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                self._tell(FilePiece(self._sent, b""))  # an empty file has a content, too
                while data := file.read(PIECE):
                    self._tell(FilePiece(self._sent, data))
            sent.append(CarriedFile(name, mode, self._sent))
        return sent

    def _tell(self, message: FromHost) -> None:
        self._write(carried_frame(message))

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._target, view) :]


def _is_made(job: WireJob, name: str, path: str, seen: FileIdentities) -> bool:
    """Whether a file among a job's is a result: new, or changed where it may be."""
    if name not in seen:
        return True
    # An input that its task has spoilt must not replace the run's own file.
    may_change = any(name == made or name.startswith(f"{made}/") for made in job.outputs) or any(
        isinstance(step, Copy) and step.target_at_root for step in job.steps
    )
    return may_change and seen[name] != file_identity(path)


def main() -> int:
    """Run the program; return the exit status."""
    for number in (signal.SIGINT, signal.SIGHUP):
        # A handler and not SIG_IGN, which tasks would inherit. The end of the session is seen at
        # standard input.
        signal.signal(number, lambda *_: None)
    mark, processors, total = sys.argv[1], *map(int, sys.argv[2:])
    claim = ProcessorClaim()
    if total and not claim.take(processors, total):
        print(f"other runs hold its processors, {processors} are not free", file=sys.stderr)
        return GIVEN_UP
    adopt_orphans()
    # Tasks and the worker must not write between the frames.
    target = os.dup(1)
    os.dup2(2, 1)
    scratch = tempfile.mkdtemp(prefix=scratch_prefix(mark))
    try:
        return FileCarrier(scratch, mark, processors, 0, target).run()
    except OSError as error:
        print(f"cannot start a worker: {error}", file=sys.stderr)
        return 1
    finally:
        kill_descendants()
        remove_tree(scratch)
        claim.release()


if __name__ == "__main__":
    sys.exit(main())
