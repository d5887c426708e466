"""
Messages between the dispatcher and a worker.

A frame is a length of four bytes, big endian, and that many bytes of msgpack.
Both ends decode into these types, so a malformed frame cannot get further.
"""

import struct
from collections.abc import Iterator

import msgspec

from bursar.model.surroundings import ContainerPolicy
from bursar.model.task import Outcome, Step

MAX_FRAME = 256 * 1024 * 1024
"""Bytes of the largest frame either end takes."""

BATCH_SIZE = 4 * 1024 * 1024
"""Bytes after which jobs or outcomes go into a frame of their own."""

MAX_PIECE = MAX_FRAME - 1024 * 1024
"""Bytes of the largest job or call's value; an outcome's streams fit beside it."""

LONGEST_REASON = 4096
"""Characters of the reason of a failure, which may quote the user's text; the rest is cut off."""

_LENGTH = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, tag=0, array_like=True):
    """
    A worker's first frame.

    Parameters
    ----------
    token
        Secret of the run, or of a pilot's lease.
    worker
        Name of the worker, unique in the run.
    site
        Name of the worker's site.
    processors
        Number of the worker's processors.
    lease
        Name of the lease of these processors, unique in the run.
    host
        Name of the worker's machine.
    holds
        Task and attempt of all that it has, of a connection that was lost: running, waiting, or
        ended and not :class:`OutcomeAck`, in the order in which they were given.
    has_seal_key
        Whether the worker was given a key for sealed tasks, and takes a :class:`SealKey`.
    memory
        Bytes that the worker's tasks may use together: those of its control group or machine; None:
        not known.
    memory_owner
        Name of that machine or group: workers that name the same one share the bytes.
    deaths
        Number of workers that ended by themselves on these processors before this one.
    shows_output
        Whether the worker answers an :class:`OutputQuery`.
    """

    token: str
    worker: str
    site: str
    processors: int
    lease: str
    host: str = ""
    holds: tuple[tuple[int, int], ...] = ()
    has_seal_key: bool = False
    memory: int | None = None
    memory_owner: str = ""
    deaths: int = 0
    shows_output: bool = False


class OutcomeReport(msgspec.Struct, frozen=True, tag=1, array_like=True):
    """Outcomes of attempts that have ended."""

    outcomes: list[Outcome]


class ReturnedJobs(msgspec.Struct, frozen=True, tag=2, array_like=True):
    """
    The worker returns jobs that have not started and will not run there.

    A worker answers each :class:`JobRecall` so, and returns jobs unasked when those that run
    take long.

    Parameters
    ----------
    jobs
        Task and attempt of each, the last to start first; none where all have started.
    """

    jobs: list[tuple[int, int]]


class LeaveRequest(msgspec.Struct, frozen=True, tag=3, array_like=True):
    """
    A worker's request to leave, which the dispatcher grants by a :class:`LeaveOrder`.

    Parameters
    ----------
    must
        Whether the worker takes no more tasks, and is to leave once it has none. Otherwise it
        stays when a task is on its way.
    """

    must: bool


class OutputPiece(msgspec.Struct, frozen=True, tag=4, array_like=True):
    """
    Part of what a running attempt has printed: the answer to an :class:`OutputQuery`.

    Parameters
    ----------
    query
        Of the question that this answers.
    start
        Start of the attempt, as its outcome will state it; 0: no such attempt shows its output.
    offset, size
        First byte of the content, and bytes that the attempt has printed to the stream so far.
    content
        As the outcome will hold it: values of secrets are replaced.
    is_sealed
        Whether nothing is shown since only the owner of the task may read what it prints.
    """

    query: int
    start: float = 0.0
    offset: int = 0
    size: int = 0
    content: bytes = b""
    is_sealed: bool = False


class WireJob(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """
    One attempt of a task, with all that a worker needs for running the task.

    Parameters
    ----------
    task, attempt
        Numbers of the task and of the attempt, from 1.
    processors
        Processors that the attempt holds.
    limit
        Seconds after which the attempt is killed; 0 for no limit.
    folder
        Name of the working directory, unique in the run.
    steps
        Steps of the task, in order.
    inputs, outputs
        Files by name.
    environment
        Variables added to the worker's.
    data
        Files of its site's storage: their paths there, by name.
    home
        Folder, absolute, in which ``files``, ``work`` and ``logs`` of the task's own instance
        lie; empty: those of the :class:`Welcome`.
    directory
        Where it runs, relative to ``files`` of its home, or absolute; empty: a folder of its own.
    sealed
        An envelope that holds its steps and environment, to be opened by the worker.
    after
        Tasks of the same worker that must have succeeded before it starts; only for workers that
        keep such an order.
    memory
        Bytes that the task may use; 0: not stated.
    secrets
        Values of the variables that its steps name as secret. They are in no journal.
    devices
        Numbers of the GPUs that the task holds, of those of the site, from 0.
    unpublished
        Whether its outputs stay in the working directory, and the dispatcher publishes them: this
        is a copy of an attempt that may succeed meanwhile.
    """

    task: int
    attempt: int
    processors: int
    limit: float
    folder: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    data: dict[str, str] = {}
    home: str = ""
    directory: str = ""
    sealed: bytes = b""
    after: tuple[int, ...] = ()
    memory: int = 0
    secrets: dict[str, str] = {}
    devices: tuple[int, ...] = ()
    unpublished: bool = False


class Welcome(msgspec.Struct, frozen=True, tag=10, array_like=True):
    """
    The dispatcher's first frame: where the run's files lie.

    Parameters
    ----------
    run
        Identity of the run.
    root
        The campaign's folder; only read.
    files, work, logs
        The run's folders for files, working directories and logs.
    spill
        Bytes of each stream that travel with the outcome; more goes to a file.
    outlives
        Seconds for which the worker goes on with what it has when the connection is lost, and
        tries to come back. Then it keeps each outcome until it is :class:`OutcomeAck`, and says
        it again on the next connection. 0: without the dispatcher it ends.
    largest_value
        Bytes of a call's value that may travel with the outcome; with a larger one the call fails.
    counts_data
        Whether outcomes say what the attempts brought and sent back.
    containers
        Containers that tasks may ask for.
    """

    run: str
    root: str
    files: str
    work: str
    logs: str
    spill: int
    outlives: float = 0.0
    largest_value: int = MAX_PIECE
    counts_data: bool = False
    containers: ContainerPolicy = "allowed"


class JobAssignment(msgspec.Struct, frozen=True, tag=11, array_like=True):
    """Jobs to do, in this order as processors come free."""

    jobs: list[msgspec.Raw]


class JobRecall(msgspec.Struct, frozen=True, tag=12, array_like=True):
    """Return up to so many jobs that have not started, the last ones first, by a Returned."""

    count: int


class CancelTasks(msgspec.Struct, frozen=True, tag=13, array_like=True):
    """
    Stop these tasks, started or not; each is answered by an outcome.

    Parameters
    ----------
    tasks
        Numbers of the tasks; empty for all.
    grace
        Seconds between asking (SIGTERM) and killing (SIGKILL).
    reason
        Text for the outcomes.
    """

    tasks: list[int]
    grace: float
    reason: str


class LeaveOrder(msgspec.Struct, frozen=True, tag=14, array_like=True):
    """The dispatcher's order to a worker to end."""


class OutcomeAck(msgspec.Struct, frozen=True, tag=15, array_like=True):
    """Number of further outcomes of this connection, in order, that are durable."""

    count: int


class SealKey(msgspec.Struct, frozen=True, tag=16, array_like=True):
    """
    Another key to open sealed tasks with from now on, for a worker that was given one before.

    Parameters
    ----------
    pem
        Content of the key file; see :class:`bursar.sealing.task_sealing.TaskOpenerFile`. Secret.
    """

    pem: str


class OutputQuery(msgspec.Struct, frozen=True, tag=17, array_like=True):
    """
    Ask for what a running attempt has printed, for people who follow the attempt.

    Parameters
    ----------
    query
        Repeated by the answer, so that answers find their questions.
        Those of the :class:`WireJob`.
        Numbers of the task and of the attempt.
    stream
        0: standard output; 1: standard error.
    offset
        First byte that is wanted; below 0: so many bytes before the end.
    most
        Bytes that are wanted at most.
    """

    query: int
    task: int
    attempt: int
    stream: int
    offset: int
    most: int


FromWorker = Hello | OutcomeReport | ReturnedJobs | LeaveRequest | OutputPiece
FromServer = (
    Welcome
    | JobAssignment
    | JobRecall
    | CancelTasks
    | LeaveOrder
    | OutcomeAck
    | SealKey
    | OutputQuery
)

MOST_SHOWN = 1 << 18
"""Bytes of a running attempt's output in one :class:`OutputPiece`."""


class ProtocolError(Exception):
    """The other end said something that is not of this protocol."""


NONSENSE = (ProtocolError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors that decoding the peer's messages may raise."""

_encoder = msgspec.msgpack.Encoder()


def frame(message: FromWorker | FromServer) -> bytes:
    """Return the frame of a message: the length and the encoded message."""
    buffer = bytearray(4)
    # Behind the room for the length: a frame of megabytes is not copied to put four bytes before
    # it.
    _encoder.encode_into(message, buffer, 4)
    size = len(buffer) - 4
    if size > MAX_FRAME:
        raise ProtocolError(f"a frame of {size} bytes is larger than {MAX_FRAME}")
    _LENGTH.pack_into(buffer, 0, size)
    return bytes(buffer)


class FrameDecoder:
    """
    Cuts a stream of bytes into frames.

    Parameters
    ----------
    limit
        Bytes of the largest frame taken; smaller for a peer not yet trusted.
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """
        Take received bytes; yield the body of each frame that is complete.

        Raises
        ------
        ProtocolError
            When a frame announces more than the limit.
        """
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= 4:
                (size,) = _LENGTH.unpack_from(self._buffer, start)
                # Before the body has arrived: nothing is buffered for a frame that is not taken.
                if size > self.limit:
                    raise ProtocolError(f"a frame of {size} bytes is larger than {self.limit}")
                if len(self._buffer) - start - 4 < size:
                    break
                body = bytes(self._buffer[start + 4 : start + 4 + size])
                start += 4 + size
                yield body
        finally:
            # Once for all frames, as each deletion moves what is left; also when the caller stops
            # between two frames.
            del self._buffer[:start]
