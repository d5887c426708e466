"""Runs one attempt of one task, from the making of a working directory to the outcome."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from bursar.dispatch.folders import attempt_folder, remove_tree
from bursar.dispatch.linux_processes import TASK
from bursar.dispatch.wire import LONGEST_REASON, WireJob
from bursar.model.errors import BursarError
from bursar.model.surroundings import Surrounding
from bursar.model.task import (
    Call,
    Copy,
    Exec,
    Gather,
    OnError,
    Outcome,
    Redirect,
    Secret,
    Shell,
    Status,
    Step,
    Substitute,
    Write,
)
from bursar.worker.attempt_context import PROCESSORS, AttemptContext
from bursar.worker.output_capture import OutputCapture
from bursar.worker.program_surroundings import (
    SETTINGS,
    ProgramSurroundings,
    check_environment,
)
from bursar.worker.python_calls import CallAnswer, is_plain
from bursar.worker.spawning import ProcessUsage, how_ended
from bursar.worker.staging import StagingError, copy_for, gather, link_in, substitute, to_publish
from bursar.worker.workspace import log_name, when_changed

if TYPE_CHECKING:
    from bursar.worker.memory_enforcement import MemoryGroup

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for a task past its wall-time limit."""

MOST_PRINTED = 16 * 1024 * 1024
"""Bytes of each output stream that the outcome of a sealed task carries; the rest is cut off."""

MOST_RETURNED = 24 * 1024 * 1024
"""Bytes that the value of a sealed call may take; with a larger one the attempt fails."""

_KILL = int(signal.SIGKILL)

_ATTEMPT_ERRORS = (StagingError, BursarError, OSError, ValueError, RecursionError)
"""Errors that a job's content and files may cause: the attempt fails, and the worker goes on."""


class Attempt:
    """
    Carries out a job's steps one after the other.

    An attempt never waits: :meth:`advance` returns when a process was started, and is
    called again when that process has ended.
    """

    __slots__ = (
        "_around",
        "_began",
        "_callee",
        "_captures",
        "_changed",
        "_clean",
        "_doing",
        "_exit_code",
        "_folder",
        "_group",
        "_ignore",
        "_scratch",
        "_stays",
        "_step",
        "_streams",
        "_usage",
        "_value",
        "_verdict",
        "home",
        "job",
        "pid",
        "place",
        "seal",
        "start",
        "stopped",
    )

    def __init__(self, job: WireJob, place: AttemptContext) -> None:
        self.job = job
        self.place = place
        self.home = place.homes.at(job.home)
        self.pid = 0
        self.start = time.time()
        # Two clocks: the time of day for the journal, the monotonic one for how long it took.
        self._began = time.monotonic()
        self.stopped: tuple[Status, str] | None = None
        self._step = 0
        self._ignore = False
        self._exit_code: int | None = None
        self._usage = [0.0, 0.0, 0]
        self._value = b""
        self._captures: list[OutputCapture | None] = [None, None]
        self._streams = [-1, -1]
        self._stays = bool(job.directory)  # where it runs is not its own, and not removed
        # An empty folder that another task has used: one for each would cost short tasks dear.
        self._scratch = not (job.inputs or job.outputs or job.data or self._stays)
        self.seal: Callable[[bytes], bytes] | None = None
        self._folder = ""
        self._group: MemoryGroup | None = None
        self._around: ProgramSurroundings | None = None
        self._verdict: tuple[Status, str] | None = None
        self._changed = 0
        self._callee: Any = None
        self._doing = ""
        self._clean = True  # no process but this one can still write to the captures

    def begin(self) -> Outcome | None:
        """Prepares the working directory and starts the first process; see :meth:`advance`."""
        try:
            if self.job.sealed:
                # Opened here and not on arrival: steps are in clear only while the job is at work.
                self.job, self.seal = self.place.sealed.open(self.job)
            self._prepare()
        except _ATTEMPT_ERRORS as error:
            return self._end(Status.FAILED, _line(error))
        return self.advance()

    def advance(self) -> Outcome | None:
        """
        Does steps until one is a process that runs now.

        Returns
        -------
        Outcome or None
            None while a process runs.
        """
        steps = self.job.steps
        while self._step < len(steps):
            step = steps[self._step]
            self._step += 1
            try:
                running = self._do(step)
            except _ATTEMPT_ERRORS as error:
                # Never outside of what it is to run in.
                if not self._ignore or isinstance(step, Surrounding):
                    kind = type(step).__name__.lower()
                    return self._end(Status.FAILED, f"{kind}: {_line(error)}")
                continue
            if running:
                return None
        return self._succeed()

    def ended(
        self, code: int, usage: ProcessUsage, *, alone: bool, escaped: bool
    ) -> Outcome | None:
        """
        Note the end of the process that ran, and go on with the next step.

        Parameters
        ----------
        code
            Exit code of the process; negative: number of the signal that killed it.
        usage
            Processor time and memory of the process.
        alone
            Whether the worker has no child left, so that nothing that the process started can
            have outlived the process.
        escaped
            Whether something outside its process group may have outlived it.
        """
        # A process that may still hold the pipe's end could write into the next task's output, so
        # this attempt's captures are not used again.
        self._clean &= not escaped
        if self._around is None or self._around.is_counted:
            self._count(usage)
        # Without children there is nobody in the group: a kill would cost a system call per task.
        if not alone:
            self._sweep()
        self.pid = 0
        # A callee ends only by itself or by a kill: after a call it answers and waits for the next.
        if self._callee is not None:
            self._callee = None
            excess = None if self._group is None else self._group.excess()
            failed = Status.FAILED, excess or f"the call's process {how_ended(code)}"
            return self._end(*(self.stopped or failed))
        if (around := self._around) is not None:
            if around.making:
                return self._made_ready(around, code)
            if around.removes:
                around.removed(code, self.place)
                return self._end(*self._verdict) if self._verdict else self.advance()
        self._exit_code = code
        self._verdict = self._judge(code)
        if around is not None and (command := around.removal(code, self.place)) is not None:
            self._spawn_beside(command)
            return None
        return self._end(*self._verdict) if self._verdict else self.advance()

    def _judge(self, code: int) -> tuple[Status, str] | None:
        """Return how the attempt ends with a program's end; None: it goes on."""
        # Who asked for the end says why it ended, whatever the exit code: a program may catch
        # SIGTERM and exit with 0.
        if self.stopped is not None:
            return self.stopped
        if self._group is not None and (excess := self._group.excess()) is not None:
            return Status.FAILED, excess
        if code != 0 and not self._ignore:
            return Status.FAILED, f"{self._doing} {how_ended(code)}"
        return None

    def _made_ready(self, around: ProgramSurroundings, code: int) -> Outcome | None:
        """Go on after the process that made ready what the programs run in."""
        what = around.making
        problem = around.made(code, self.place)
        if self.stopped is not None:
            status, reason = self.stopped
            return self._end(status, f"{reason}, while {what} was made ready")
        return self._end(Status.FAILED, problem) if problem else self.advance()

    @property
    def is_plain(self) -> bool:
        """Whether other calls may follow at once in the same process and folder."""
        return self.seal is None and is_plain(self.job)

    def answered(self, answer: CallAnswer) -> Outcome | None:
        """Take the result or exception of a Python call, and go on with the next step."""
        callee, self._callee = self._callee, None
        self.pid = 0
        self._count(answer.usage)
        self.place.callees.give(callee, is_spent=self.job.memory > 0)
        if self.stopped is not None:
            return self._end(*self.stopped)
        room = self.place.welcome.largest_value if self.seal is None else MOST_RETURNED
        status, reason, self._value = answer.result(room)
        if status is not Status.SUCCEEDED:
            return self._end(status, reason)
        return self.advance()

    def passed(self, answer: CallAnswer) -> Outcome:
        """
        Return the outcome of a call that has left nothing behind and is followed by another.

        The call is this attempt's, or one that was sent after it.
        """
        largest = self.place.welcome.largest_value
        outcome = answer.outcome(largest, self.start + answer.begun - self._began)
        return self._counted(outcome, answer.job)

    def followed_by(self, job: WireJob, begun: float) -> "Attempt":
        """
        Return the attempt of a call that was sent after this one's, in the same surroundings.

        Parameters
        ----------
        begun
            When the call before has ended, by the monotonic clock.
        """
        other = Attempt(job, self.place)
        other.start, other._began = self.start + begun - self._began, begun
        other._step = 1
        other._folder, other._changed = self._folder, self._changed
        other._captures, other._streams = self._captures, self._streams
        other._callee, other.pid = self._callee, self.pid
        return other

    def withdraw(self) -> None:
        """End an attempt whose process was gone before it began; the job may begin elsewhere."""
        self._callee, self.pid = None, 0
        self._clean = False
        self._end(Status.CANCELLED, "")

    def signal(self, number: int) -> bool:
        """Send a signal to all processes of the attempt; return whether there was one."""
        # Not one that removes a container, which would then go on.
        if not self.pid or (self._around is not None and self._around.removes):
            return False
        try:
            # The group and not the process: a shell's children do not get their parent's signals.
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    @property
    def is_watched(self) -> bool:
        """Whether the worker has to look at the memory of the attempt's processes."""
        watched = self.job.memory > 0 and self._group is None
        return watched and (self._around is None or self._around.is_counted)

    @property
    def captures(self) -> Iterator[OutputCapture]:
        """The captures of the attempt's output streams."""
        return (capture for capture in self._captures if capture is not None)

    def shown(self, stream: int) -> OutputCapture | None:
        """Return the capture of a stream that may be shown now; None: a file's, or sealed."""
        return self._captures[stream] if self.seal is None else None

    @property
    def callee(self) -> Any:
        """The process that carries out a call now; None otherwise."""
        return self._callee

    def abandon(self, status: Status, reason: str) -> Outcome:
        """End the attempt, which has not begun."""
        return self._end(status, reason)

    def _prepare(self) -> None:
        job, home = self.job, self.home
        if job.home:  # of a service, whose users are not the worker's own
            check_environment(job.environment)
        if not job.steps and self._scratch:
            return
        if self._scratch:
            self._folder, self._changed = home.take_scratch()
            return
        if self._stays:
            self._folder = self._given_folder()
        else:
            self._folder = self._own_folder()
            # The same attempt may have run before a kill -9, when its outcome was not durable yet.
            remove_tree(self._folder)
            os.mkdir(self._folder)
        for name in job.inputs:
            home.files.stage_in(self._folder, name)
        for name, path in job.data.items():
            home.files.make_room(self._folder, name)
            link_in(path, self._folder, name)
        # Programs expect the folder of a file that they are to write to be there.
        for name in job.outputs:
            home.files.make_room(self._folder, name)

    def _own_folder(self) -> str:
        return os.path.join(self.home.work, attempt_folder(self.job.folder, self.job.attempt))

    def _given_folder(self) -> str:
        name = self.job.directory
        if not os.path.isabs(name):
            return self.home.files.directory(name)
        if not os.path.isdir(name):
            raise StagingError(f'"{name}" is no folder here')
        return name

    def _do(self, step: Step) -> bool:
        """Carry out a step; return True when the step has started a process that runs now."""
        if isinstance(step, SETTINGS):
            if self._around is None:
                self._around = ProgramSurroundings()
            if (command := self._around.change(step, self._folder, self.place)) is not None:
                self._spawn_beside(command)
            return command is not None
        match step:
            case Exec(argv=argv):
                if not argv:
                    raise ValueError("there is no program to run")
                program = self._doing = argv[0]
                if "/" not in program:
                    program = self._find(program)
                self._spawn(program, argv)
                return True
            case Shell(line):
                self._doing = "the command"
                self._spawn("/bin/sh", ("/bin/sh", "-c", line))
                return True
            case Call():
                self._call(step)
                return True
            case Copy():
                copy_for(step, self.home.files, self._folder)
            case Redirect(stream, path, append):
                self._redirect(0 if stream == "stdout" else 1, path, append)
            case Secret(names):
                # Not every way to a worker carries them.
                if lacking := [name for name in names if name not in self.job.secrets]:
                    raise StagingError(f'no value of the secret "{lacking[0]}" has come here')
            case OnError(ignore):
                self._ignore = ignore
            case Substitute(source, target, values):
                substitute(self._at_node(source), self._at_node(target), values)
            case Write(path, text):
                Path(self._at_node(path)).write_text(text, encoding="utf-8")
            case Gather(files):
                told = gather(self.home.files.stage_in, self._folder, files)
                self.job = replace(self.job, environment=self.job.environment | told)
        return False

    def _find(self, program: str) -> str:
        """Return the path of a program; a task's own PATH counts, as it would in a shell."""
        if self._around is not None:
            return self._around.find(program, self.job, self.place)
        path = self.job.environment.get("PATH", self.place.environment["PATH"])
        return self.place.find(program, path)

    def _at_node(self, path: str) -> str:
        return os.path.join(self._folder, path)

    def _stream(self, which: int) -> int:
        if self._streams[which] < 0:
            capture = self._captures[which]
            if capture is None:
                capture = self._captures[which] = self.place.captures.open(self.home.logs)
                if self.job.secrets:
                    from bursar.worker.secret_mask import mask_of  # few tasks have secrets

                    capture.mask = mask_of(self.job.secrets)
            self._streams[which] = capture.writer
        return self._streams[which]

    def _redirect(self, which: int, path: str | None, append: bool) -> None:
        self._close_redirect(which)
        if path is not None:
            # Opening a named pipe that has no reader would block for ever.
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            flags |= os.O_APPEND if append else os.O_TRUNC
            fd = self._streams[which] = os.open(self._at_node(path), flags, 0o666)
            # Programs expect their standard streams to block.
            os.set_blocking(fd, True)

    def _close_redirect(self, which: int) -> None:
        fd, self._streams[which] = self._streams[which], -1
        capture = self._captures[which]
        # The capture's own end stays open: it is given to the next attempt.
        if fd >= 0 and (capture is None or fd != capture.writer):
            os.close(fd)

    def _spawn(self, path: str, argv: tuple[str, ...]) -> None:
        out, err = self._stream(0), self._stream(1)
        # posix_spawn(3) has no portable way to set a child's directory: it takes over the worker's.
        self.place.enter(self._folder)
        job, around = self.job, self._around
        values = (b"%d" % job.task, b"%d" % job.processors)
        own = job.environment
        if job.secrets or job.devices:
            own = {**own, **job.secrets, **self.place.visible_devices(job.devices)}
        if around is not None and around.container is not None:
            words = (path, *argv[1:])
            argv, own = around.enter(words, own, job, self._folder, self.place, self._step)
            path = argv[0]
        separate = around is not None and around.is_separate
        if job.memory and not separate and (groups := self.place.memory_groups) is not None:
            self._group = self._group or groups.of_attempt(job.task, job.attempt, job.memory)
            path, argv = self._group.entering(path, argv)
        if around is None:
            self.pid = self.place.spawner.spawn(path, argv, values, own, out, err)
        else:
            spawner = around.spawner(self.place)
            self.pid = spawner.spawn(path, argv, values, own, out, err, around.stdin)

    def _spawn_beside(self, command: tuple[str, ...]) -> None:
        """Start a process that makes something ready for the task's programs, or clears it away."""
        assert self._around is not None
        self.place.enter(self._folder)
        values = (b"%d" % self.job.task, b"%d" % self.job.processors)
        spawner = self.place.spawner_for(None, self._around.variables)
        out, err = self._stream(0), self._stream(1)
        self.pid = spawner.spawn(command[0], command, values, {}, out, err)

    def _call(self, call: Call) -> None:
        job = self.job
        own = {TASK: str(job.task), PROCESSORS: str(job.processors), **job.environment}
        own |= job.secrets | self.place.visible_devices(job.devices)
        streams: tuple[int, ...] = (self._stream(0), self._stream(1))
        alone = not self.is_plain
        if not alone:
            streams += tuple(capture.reader for capture in self.captures)
        callee = self.place.callees.take(job.home, is_fresh=bool(job.memory))
        try:
            if job.memory and (groups := self.place.memory_groups) is not None:
                self._group = groups.of_attempt(job.task, job.attempt, job.memory)
                self._group.take_in(callee.pid)
            callee.begin(job, call, (self._folder, self._changed, own), streams, alone=alone)
        except OSError:
            self.place.callees.discard(callee)
            raise
        self._callee = callee
        self.pid = callee.pid

    def _count(self, usage: ProcessUsage) -> None:
        user, system, rss = usage
        total = self._usage
        self._usage = [total[0] + user, total[1] + system, max(total[2], rss)]

    def _sweep(self) -> None:
        """Kill the processes of the group that outlived the leader."""
        self._clean &= not self.signal(_KILL)

    def _succeed(self) -> Outcome:
        try:
            for name in to_publish(self.job, self._folder):
                self.home.files.publish(self._folder, name, stays=self._stays)
        except _ATTEMPT_ERRORS as error:
            return self._end(Status.FAILED, _line(error))
        return self._end(Status.SUCCEEDED, "")

    def _end(self, status: Status, reason: str) -> Outcome:
        job = self.job
        # The time of day may be set meanwhile; what the attempt took may not depend on that.
        end = self.start + time.monotonic() - self._began
        content, sizes = [b"", b""], [0, 0]
        # What was printed is taken even where the attempt failed: it is what the user looks at.
        for which, stream in enumerate(("stdout", "stderr")):
            self._close_redirect(which)
            capture = self._captures[which]
            if capture is None:
                continue
            try:
                content[which], sizes[which] = self._take(capture, stream)
            except OSError as error:
                reason = reason or f"{stream} is lost: {error.strerror}"
            if self.seal is not None and sizes[which] > MOST_PRINTED:
                had = f"{stream} of {sizes[which]} bytes is cut off after {MOST_PRINTED}"
                reason = f"{reason}; {had}" if reason else had
        if self._group is not None:
            self._group.close()
        if self._around is not None:
            self._around.close()
        try:
            self._clear(status)
        except OSError as error:  # its folders were taken from under it
            reason = reason or _line(error)
        outcome = Outcome(
            task=job.task,
            attempt=job.attempt,
            status=status,
            exit_code=self._exit_code,
            start=self.start,
            end=end,
            stdout=content[0],
            stderr=content[1],
            stdout_size=sizes[0],
            stderr_size=sizes[1],
            user_seconds=self._usage[0],
            system_seconds=self._usage[1],
            max_rss=int(self._usage[2]),
            reason=reason[:LONGEST_REASON],
            value=self._value,
        )
        if self.seal is not None:
            from bursar.worker.sealed_tasks import seal_outcome  # cryptography takes time to load

            outcome = seal_outcome(outcome, self.seal)
        return self._counted(outcome)

    def _counted(self, outcome: Outcome, job: WireJob | None = None) -> Outcome:
        """Return an outcome with the bytes that it carried, where anybody wants to know them."""
        carried = self.place.carried
        return outcome if carried is None else carried.counted(job or self.job, self.home, outcome)

    def _take(self, capture: OutputCapture, stream: str) -> tuple[bytes, int]:
        captures = self.place.captures
        if self.seal is None:
            if (short := capture.take_short()) is not None:
                captures.give(capture, reuse=self._clean)
                return short, len(short)
            name = log_name(self.job.folder, self.job.attempt, stream)
            return captures.take(capture, name, reuse=self._clean)
        # In clear nothing of it gets a name on disk.
        return captures.take_unnamed(capture, MOST_PRINTED, reuse=self._clean)

    def _clear(self, status: Status) -> None:
        """Clear up after an attempt; the working directory of a failed task is kept."""
        if not self._folder:
            return
        place = self.place
        if self._stays:
            place.leave(self._folder)  # by the next task it may be another of that name
        elif not self._scratch:
            place.leave(self._folder)
            # What a failed task has left behind is kept for its user to look at.
            if status is Status.SUCCEEDED and not self.job.unpublished:
                remove_tree(self._folder)
        else:
            self._clear_scratch(status)

    def _clear_scratch(self, status: Status) -> None:
        if status is not Status.SUCCEEDED and when_changed(self._folder) != self._changed:
            with contextlib.suppress(OSError):
                # Of the same attempt before a kill -9.
                remove_tree(self._own_folder())
                # Renamed and not copied; give_scratch then finds no folder there, and makes no more
                # use of it.
                os.rename(self._folder, self._own_folder())
        self.home.give_scratch(self._folder, self._changed)


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f'"{error.filename}" {error.strerror}' if error.filename else error.strerror
    return str(error)
