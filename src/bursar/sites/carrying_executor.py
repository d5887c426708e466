"""Send jobs with their files to a host that does not see them, and take in what it made."""

import asyncio
import os
import stat
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from bursar.dispatch.wire import (
    NONSENSE,
    CancelTasks,
    FrameDecoder,
    JobRecall,
    OutputPiece,
    OutputQuery,
    ReturnedJobs,
    Welcome,
    WireJob,
)
from bursar.model.task import Outcome, Status
from bursar.sites.job_inputs import travelling_files, unstarted_outcome
from bursar.sites.ssh_carrier import (
    PIECE,
    CarriedFile,
    CarriedJob,
    CarriedOutcome,
    ContentFolder,
    FilePiece,
    ForgottenFiles,
    FromHost,
    ToHost,
    carried_frame,
)
from bursar.supervisor import TaskSupervisor
from bursar.worker.staging import RootNamespace, StagingError

KEPT = 1 << 30
"""Bytes of contents that a host keeps for further jobs; the one used longest ago goes first."""

_Version = tuple[str, int, int, int]
"""Path, modification time, size and inode of a file."""


class SentContents:
    """
    The contents that a host has, each under a number.

    Parameters
    ----------
    most
        Bytes beyond which contents are to be forgotten.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._kept: OrderedDict[_Version, int] = OrderedDict()
        self._bytes = 0
        self._next = 0

    def find(self, version: _Version) -> int | None:
        """Return the number of a content that the host has; it counts as used."""
        if version in self._kept:
            self._kept.move_to_end(version)
        return self._kept.get(version)

    def number(self) -> int:
        """Return a number that no content has had."""
        self._next += 1
        return self._next

    def add(self, version: _Version, key: int) -> None:
        """Note that the host has all of a content."""
        self._kept[version] = key
        self._bytes += version[2]

    def surplus(self) -> list[int]:
        """Remove the contents used longest ago, beyond the bytes; return their numbers."""
        keys = []
        while self._bytes > self._most and self._kept:
            version, key = self._kept.popitem(last=False)
            self._bytes -= version[2]
            keys.append(key)
        return keys


_MOST_QUESTIONS = 64
"""Questions about output whose answers are waited for."""


class CarryingExecutor:
    """
    Runs jobs at a host by a connection; a :class:`bursar.sites.proxy_worker.JobExecutor`.

    Jobs go one after the other, each behind the files that it reads and the host has not. A job's
    end is reported when all that it made is in place among the run's files, so that a result is
    never recorded before its files are there.

    Parameters
    ----------
    name
        Name of the worker, unique in the run.
    source, target
        Streams of :class:`bursar.sites.ssh_carrier.FileCarrier`.
    hand_back
        Called with jobs that have not begun and will not, the last first.
    on_broken
        Called once with the reason when the connection cannot be used any more.
    """

    def __init__(
        self,
        name: str,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
        *,
        report: Callable[[Sequence[Outcome]], None],
        hand_back: Callable[[Sequence[WireJob]], None],
        on_broken: Callable[[str], None],
    ) -> None:
        self._name = name
        self._source = source
        self._target = target
        self._report = report
        self._hand_back = hand_back
        self._on_broken = on_broken
        self._root = self._logs = RootNamespace("", "")
        self._waiting: deque[WireJob] = deque()
        self._unwanted: dict[tuple[int, int], str] = {}  # of the job whose files are on their way
        self._sending: WireJob | None = None
        self._there: dict[tuple[int, int], WireJob] = {}
        self._contents = SentContents()
        self._arrived: ContentFolder | None = None
        self._questions: dict[int, Callable[[OutputPiece | None], None]] = {}
        self._asked = 0
        self._work = asyncio.Event()
        self._tasks = TaskSupervisor(self._on_failure)

    def welcome(self, welcome: Welcome) -> None:
        """Take in where the run's files lie, and begin to send and listen."""
        self._root = RootNamespace(welcome.root, welcome.files)
        self._logs = RootNamespace(welcome.logs, welcome.logs)
        self._tell(welcome)
        # On the file system of the run's files, so that each is put in place in one step.
        self._arrived = ContentFolder(os.path.join(welcome.work, f".carried-{self._name}"))
        self._tasks.start(self._send_on())
        self._tasks.start(self._listen(self._arrived))

    def execute(self, jobs: Sequence[WireJob]) -> None:
        """Queue jobs to be sent."""
        self._waiting.extend(jobs)
        self._work.set()

    def give_back(self, count: int) -> Sequence[WireJob]:
        """Return up to ``count`` jobs not sent yet, the last first; ask the host for the rest."""
        back = [self._waiting.pop() for _ in range(min(count, len(self._waiting)))]
        if len(back) < count and self._there:
            self._tell(JobRecall(count - len(back)))
        return back

    def cancel(self, tasks: Sequence[int] | None, grace: float, reason: str) -> None:
        """Stop tasks, here and at the host."""
        which = None if tasks is None else set(tasks)
        kept: deque[WireJob] = deque()
        ended = []
        for job in self._waiting:
            if which is None or job.task in which:
                ended.append(unstarted_outcome(job, Status.CANCELLED, reason))
            else:
                kept.append(job)
        self._waiting = kept
        if self._sending is not None and (which is None or self._sending.task in which):
            self._unwanted[_which(self._sending)] = reason
        there = [task for task, _ in self._there if which is None or task in which]
        if there:
            self._tell(CancelTasks(there, grace, reason))
        if ended:
            self._report(ended)

    def show_output(self, query: OutputQuery, answer: Callable[[OutputPiece | None], None]) -> None:
        """Ask the host what a job has printed so far; see :class:`OutputQuery`."""
        if (query.task, query.attempt) not in self._there:
            answer(OutputPiece(query.query))  # it has not begun
            return
        self._asked += 1
        self._questions[self._asked] = answer
        # Whoever asked has given up on the oldest ones.
        for old in list(self._questions)[:-_MOST_QUESTIONS]:
            self._questions.pop(old)(None)
        self._tell(msgspec.structs.replace(query, query=self._asked))

    async def stop(self) -> None:
        """Stop sending and listening; what has arrived in part is removed."""
        await self._tasks.close()
        if self._arrived is not None:
            await asyncio.to_thread(self._arrived.remove)

    def _on_failure(self, error: BaseException) -> None:
        self._on_broken(f"{type(error).__name__}: {error}")

    # Towards the host.

    async def _send_on(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._waiting:
                self._sending = job = self._waiting.popleft()
                try:
                    await self._send(job)
                except (StagingError, OSError) as error:
                    if isinstance(error, ConnectionError):
                        return  # the end of the process says why
                    self._report([unstarted_outcome(job, Status.FAILED, str(error))])
                finally:
                    self._sending = None
                    self._unwanted.pop(_which(job), None)

    async def _send(self, job: WireJob) -> None:
        """Send a job behind its files, unless it is cancelled meanwhile."""
        files = []
        for name, path in await asyncio.to_thread(travelling_files, self._root, job):
            files.append(await self._send_file(name, path))
        if (reason := self._unwanted.get(_which(job))) is not None:
            self._report([unstarted_outcome(job, Status.CANCELLED, reason)])
            return
        self._there[_which(job)] = job
        self._tell(CarriedJob(job, files))
        if surplus := self._contents.surplus():
            self._tell(ForgottenFiles(surplus))
        await self._target.drain()

    async def _send_file(self, name: str, path: str) -> CarriedFile:
        info = await asyncio.to_thread(os.stat, path)
        mode = stat.S_IMODE(info.st_mode)
        version = path, info.st_mtime_ns, info.st_size, info.st_ino
        if (known := self._contents.find(version)) is not None:
            return CarriedFile(name, mode, known)
        key = self._contents.number()
        self._tell(FilePiece(key, b""))  # an empty file has a content, too
        pieces = _pieces(path)
        while data := await asyncio.to_thread(next, pieces, b""):
            self._tell(FilePiece(key, data))
            await self._target.drain()
        self._contents.add(version, key)
        return CarriedFile(name, mode, key)

    def _tell(self, message: ToHost) -> None:
        self._target.write(carried_frame(message))

    # From the host.

    async def _listen(self, arrived: ContentFolder) -> None:
        frames = FrameDecoder()
        decode = msgspec.msgpack.Decoder(FromHost).decode
        try:
            while data := await self._source.read(PIECE):
                for body in frames.feed(data):
                    await self._take(decode(body), arrived)
        except NONSENSE as error:
            self._on_broken(f"says what it should not: {error}")

    async def _take(self, message: FromHost, arrived: ContentFolder) -> None:
        match message:
            case FilePiece():
                await asyncio.to_thread(arrived.add, message)
            case CarriedOutcome(outcome):
                await self._end(outcome, message, arrived)
            case ReturnedJobs(jobs):
                back = [self._there.pop((which[0], which[1]), None) for which in jobs]
                self._hand_back([job for job in back if job is not None])
            case OutputPiece():
                answer = self._questions.pop(message.query, None)
                if answer is not None:
                    answer(message)

    async def _end(self, outcome: Outcome, ended: CarriedOutcome, arrived: ContentFolder) -> None:
        which = outcome.task, outcome.attempt
        if which not in self._there:
            arrived.forget(file.key for file in (*ended.made, *ended.logs))
            return
        try:
            await asyncio.to_thread(self._put_in_place, ended, arrived)
        except (StagingError, OSError) as error:
            reason = f"its files: {error}"
            outcome = msgspec.structs.replace(outcome, status=Status.FAILED, reason=reason)
        del self._there[which]
        self._report([outcome])

    def _put_in_place(self, ended: CarriedOutcome, arrived: ContentFolder) -> None:
        for file in ended.made:
            arrived.move(file, self._root)
        for file in ended.logs:
            arrived.move(file, self._logs)


def _pieces(path: str) -> Iterator[bytes]:
    """Yield the content of a file, piece by piece."""
    with open(path, "rb") as file:
        while data := file.read(PIECE):
            yield data


def _which(job: WireJob) -> tuple[int, int]:
    return job.task, job.attempt
