"""One attempt of one task, from its working directory to its outcome."""

import contextlib
import errno
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

from bursar.dispatch.callee import Callees
from bursar.dispatch.capture import Capture, Captures
from bursar.dispatch.orphans import RUN, TASK, WORKER
from bursar.dispatch.spawning import Spawner, Usage
from bursar.dispatch.staging import Root, StagingError, copy, link_in, publish, stage_in, substitute
from bursar.dispatch.wire import MAX_PIECE, Job, Welcome
from bursar.model.outcome import Outcome, Status
from bursar.model.step import Call, Copy, Exec, OnError, Redirect, Shell, Step, Substitute

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL for a task past its wall-time limit."""

PROCESSORS = "BURSAR_PROCESSORS"
"""Variable that tells a task how many processors it holds."""

_KILL = int(signal.SIGKILL)


class Workplace:
    """
    What every attempt on a worker shares.

    Parameters
    ----------
    welcome
        Where the run's files lie.
    worker
        The worker's name.
    """

    def __init__(self, welcome: Welcome, worker: str) -> None:
        self.welcome = welcome
        self.worker = worker
        self._scratch: list[tuple[str, int]] = []
        self._inside = ""
        self._made = 0
        self._found: dict[tuple[str, str], str] = {}
        self.root = Root(self.welcome.root, self.welcome.files)
        path = os.environ.get("PATH", os.defpath)
        self.environment = {
            **os.environ,
            # Programs of the environment that Bursar is installed in come first.
            "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{path}",
            RUN: self.welcome.run,
            WORKER: self.worker,
        }
        self.spawner = Spawner(self.environment, (TASK, PROCESSORS))
        self.callees = Callees(self.environment)
        self.captures = Captures(self.welcome.logs, self.welcome.spill)

    def take_scratch(self) -> tuple[str, int]:
        """
        An empty folder that a task without files may work in.

        Returns
        -------
        path : str
        changed : int
            When it was last changed, as :meth:`give_scratch` wants it.
        """
        if self._scratch:
            return self._scratch.pop()
        self._made += 1
        path = os.path.join(self.welcome.work, f".{self.worker}-{self._made}")
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        return path, os.stat(path).st_mtime_ns

    def give_scratch(self, path: str, changed: int) -> None:
        """The folder is free for the next task; what this one left in it goes."""
        if os.stat(path).st_mtime_ns != changed:
            self.leave(path)  # the new folder of that name is another one
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path, exist_ok=True)
            changed = os.stat(path).st_mtime_ns
        self._scratch.append((path, changed))

    def enter(self, folder: str) -> None:
        """What is started next starts in this folder."""
        if folder != self._inside:
            os.chdir(folder)
            self._inside = folder

    def leave(self, folder: str) -> None:
        """The folder may go away."""
        if folder == self._inside:
            self._inside = ""

    def close(self) -> None:
        """Ends the idle callees and removes the scratch folders."""
        self.callees.close()
        self.captures.close()
        for path, _ in self._scratch:
            shutil.rmtree(path, ignore_errors=True)
        self.spawner.close()

    def find(self, name: str, path: str) -> str:
        """
        Path of a program, as a shell would find it in these folders.

        Raises
        ------
        FileNotFoundError
            When it is not on ``PATH``.
        """
        if "/" in name:
            return name
        key = (name, path)
        if key not in self._found:
            found = shutil.which(name, path=path)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "is not on PATH", name)
            self._found[key] = found
        return self._found[key]


class Attempt:
    """
    Carries out a job's steps one after the other.

    It never waits: :meth:`advance` returns when a process was started, and is
    called again when that process has ended.

    Parameters
    ----------
    job
        What to do.
    place
        The worker's.
    """

    __slots__ = (
        "_callee",
        "_captures",
        "_changed",
        "_clean",
        "_doing",
        "_exit_code",
        "_folder",
        "_ignore",
        "_scratch",
        "_step",
        "_streams",
        "_usage",
        "_value",
        "job",
        "pid",
        "place",
        "start",
        "stopped",
    )

    def __init__(self, job: Job, place: Workplace) -> None:
        self.job = job
        self.place = place
        self.pid = 0
        self.start = time.time()
        self.stopped: tuple[Status, str] | None = None
        self._step = 0
        self._ignore = False
        self._exit_code: int | None = None
        self._usage = [0.0, 0.0, 0]
        self._value = b""
        self._captures: list[Capture | None] = [None, None]
        self._streams = [-1, -1]
        self._scratch = not (job.inputs or job.outputs or job.data)
        self._folder = ""
        self._changed = 0
        self._callee: Any = None
        self._doing = ""
        self._clean = True  # nobody but us can still write to the captures

    def begin(self) -> Outcome | None:
        """Prepares the working directory and starts the first process; see :meth:`advance`."""
        try:
            self._prepare()
        except (StagingError, OSError) as error:
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
            except (StagingError, OSError, ValueError) as error:
                if not self._ignore:
                    return self._end(Status.FAILED, f"{_named(step)}: {_line(error)}")
                continue
            if running:
                return None
        return self._succeed()

    def ended(self, code: int, usage: Usage, *, alone: bool, escaped: bool) -> Outcome | None:
        """
        The process that ran has ended.

        Parameters
        ----------
        code
            Its exit code; negative: the signal that killed it.
        usage
            What it used.
        alone
            Nothing it started can have outlived it: the worker has no child left.
        escaped
            Whether something outside its process group may have outlived it.
        """
        self._clean &= not escaped
        self._count(usage)
        if not alone:
            self._sweep()
        self.pid = 0
        if self._callee is not None:
            self._callee = None
            return self._end(*(self.stopped or (Status.FAILED, f"the call's process {_how(code)}")))
        self._exit_code = code
        if self.stopped is not None:
            return self._end(*self.stopped)
        if code != 0 and not self._ignore:
            return self._end(Status.FAILED, f"{self._doing} {_how(code)}")
        return self.advance()

    def answered(self, succeeded: bool, value: bytes) -> Outcome | None:
        """The call that ran has returned, or raised."""
        callee, self._callee = self._callee, None
        self.pid = 0
        self._count(callee.usage())
        self.place.callees.give(callee)
        if self.stopped is not None:
            return self._end(*self.stopped)
        if len(value) > MAX_PIECE:
            reason = (
                f"the result takes {len(value)} bytes, more than the {MAX_PIECE} there is room for"
            )
            return self._end(Status.FAILED, reason)
        self._value = value
        if not succeeded:
            return self._end(Status.FAILED, "the call raised an exception")
        return self.advance()

    def signal(self, number: int) -> bool:
        """Sends a signal to everything the attempt runs; whether there is anything."""
        if not self.pid:
            return False
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    @property
    def captures(self) -> Iterator[Capture]:
        """Where what it prints comes out."""
        return (capture for capture in self._captures if capture is not None)

    @property
    def callee(self) -> Any:
        """The process that carries out a call now; None otherwise."""
        return self._callee

    def abandon(self, status: Status, reason: str) -> Outcome:
        """An end without having begun."""
        return self._end(status, reason)

    def _prepare(self) -> None:
        job, place = self.job, self.place
        if not job.steps and self._scratch:
            return
        if self._scratch:
            self._folder, self._changed = place.take_scratch()
            return
        self._folder = self._own_folder()
        shutil.rmtree(self._folder, ignore_errors=True)
        os.mkdir(self._folder)
        for name in job.inputs:
            stage_in(place.root, self._folder, name)
        for name, path in job.data.items():
            link_in(path, self._folder, name)
        for name in job.outputs:
            if "/" in name:
                os.makedirs(os.path.join(self._folder, os.path.dirname(name)), exist_ok=True)

    def _own_folder(self) -> str:
        name = self.job.folder
        if self.job.attempt > 1:
            name = f"{name}.{self.job.attempt}"
        return os.path.join(self.place.welcome.work, name)

    def _do(self, step: Step) -> bool:
        """Does a step; True when it is a process that runs now."""
        match step:
            case Exec(argv):
                self._doing = argv[0]
                path = self.job.environment.get("PATH", self.place.environment["PATH"])
                self._spawn(self.place.find(argv[0], path), argv)
                return True
            case Shell(line):
                self._doing = "the command"
                self._spawn("/bin/sh", ("/bin/sh", "-c", line))
                return True
            case Call(payload):
                self._call(payload)
                return True
            case Copy(source, target, source_at_root, target_at_root):
                self._copy(source, target, source_at_root, target_at_root)
            case Redirect(stream, path, append):
                self._redirect(0 if stream == "stdout" else 1, path, append)
            case OnError(ignore):
                self._ignore = ignore
            case Substitute(source, target, values):
                substitute(self._at_node(source), self._at_node(target), values)
        return False

    def _at_node(self, path: str) -> str:
        return os.path.join(self._folder, path)

    def _copy(self, source: str, target: str, source_at_root: bool, target_at_root: bool) -> None:
        root = self.place.root
        found = root.find(source) if source_at_root else self._at_node(source)
        if not os.path.lexists(found):
            raise StagingError(f'"{source}" does not exist')
        if target_at_root:
            goal = root.target(os.path.join(target, "x"))[:-2] if target.endswith("/") else None
            copy(found, goal or root.target(target))
        else:
            copy(found, self._at_node(target))

    def _stream(self, which: int) -> int:
        if self._streams[which] < 0:
            capture = self._captures[which]
            if capture is None:
                capture = self._captures[which] = self.place.captures.open()
            self._streams[which] = capture.writer
        return self._streams[which]

    def _redirect(self, which: int, path: str | None, append: bool) -> None:
        self._close_redirect(which)
        if path is not None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            flags |= os.O_APPEND if append else os.O_TRUNC
            self._streams[which] = os.open(self._at_node(path), flags, 0o666)

    def _close_redirect(self, which: int) -> None:
        fd, self._streams[which] = self._streams[which], -1
        capture = self._captures[which]
        if fd >= 0 and (capture is None or fd != capture.writer):
            os.close(fd)

    def _spawn(self, path: str, argv: tuple[str, ...]) -> None:
        out, err = self._stream(0), self._stream(1)
        self.place.enter(self._folder)
        job = self.job
        values = (b"%d" % job.task, b"%d" % job.processors)
        self.pid = self.place.spawner.spawn(path, argv, values, job.environment, out, err)

    def _call(self, payload: bytes) -> None:
        job = self.job
        environment = {
            **self.place.environment,
            TASK: str(job.task),
            PROCESSORS: str(job.processors),
            **job.environment,
        }
        streams = self._stream(0), self._stream(1)
        callee = self.place.callees.take()
        try:
            callee.begin(payload, self._folder, environment, *streams)
        except ConnectionError:  # it died while it waited
            callee.close()
            callee = self.place.callees.make()
            callee.begin(payload, self._folder, environment, *streams)
        self._callee = callee
        self.pid = callee.pid

    def _count(self, usage: Usage) -> None:
        self._usage[0] += usage.user
        self._usage[1] += usage.system
        self._usage[2] = max(self._usage[2], usage.max_rss)

    def _sweep(self) -> None:
        """Whatever of the process group outlived its leader goes now."""
        self._clean &= not self.signal(_KILL)

    def _succeed(self) -> Outcome:
        try:
            for name in self.job.outputs:
                publish(self.place.root, self._folder, name)
        except (StagingError, OSError) as error:
            return self._end(Status.FAILED, _line(error))
        return self._end(Status.SUCCEEDED, "")

    def _end(self, status: Status, reason: str) -> Outcome:
        job = self.job
        end = time.time()
        content, sizes = [b"", b""], [0, 0]
        for which, stream in enumerate(("stdout", "stderr")):
            self._close_redirect(which)
            capture = self._captures[which]
            if capture is not None:
                try:
                    content[which], sizes[which] = self.place.captures.take(
                        capture, f"{job.folder}.{job.attempt}.{stream}", reuse=self._clean
                    )
                except OSError as error:
                    reason = reason or f"{stream} is lost: {error.strerror}"
        self._clear(status)
        return Outcome(
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
            reason=reason,
            value=self._value,
        )

    def _clear(self, status: Status) -> None:
        """The working directory of a failed task stays, for whoever looks into it."""
        if not self._folder:
            return
        place = self.place
        if not self._scratch:
            place.leave(self._folder)
            if status is Status.SUCCEEDED:
                shutil.rmtree(self._folder, ignore_errors=True)
            return
        if status is not Status.SUCCEEDED and os.stat(self._folder).st_mtime_ns != self._changed:
            place.leave(self._folder)
            with contextlib.suppress(OSError):
                shutil.rmtree(self._own_folder(), ignore_errors=True)
                os.rename(self._folder, self._own_folder())
                os.mkdir(self._folder)
        place.give_scratch(self._folder, self._changed)


def _named(step: Step) -> str:
    return type(step).__name__.lower()


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f'"{error.filename}" {error.strerror}' if error.filename else error.strerror
    return str(error)
