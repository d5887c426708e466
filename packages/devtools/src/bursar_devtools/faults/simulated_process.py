"""
Simulates processes that can be killed between any two steps.

Everything a party does is a callback of the loop: each step of a task between two awaits, each
timer, each arrival from the network. The context of a callback names the process that scheduled
it. A killed process takes no further step: its tasks stop where they are, their ``finally`` blocks
can reach neither disk nor network, and its memory is lost.
"""

import asyncio
import contextvars
import sys
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from bursar.simulation.virtual_loop import VirtualLoop

Result = TypeVar("Result")

_CURRENT_PROCESS: contextvars.ContextVar["SimulatedProcess | None"] = contextvars.ContextVar(
    "life", default=None
)

_FEW = 64
"""Number of tasks from which on ended tasks are dropped from the list now and then."""


_MOST_CLOSES = 20


class ProcessKilled(Exception):
    """The calling process has ended and can reach neither disk nor network."""


class SimulatedProcess:
    """
    Runs the callbacks of a party from one start to the next end or kill.

    Parameters
    ----------
    loop
        Loop that runs the process's callbacks.
    party
        Name of the party, which may have several processes one after another.
    """

    def __init__(self, loop: "ProcessLoop", party: str) -> None:
        self.party = party
        self.is_alive = True
        self.steps = 0
        self.context = contextvars.copy_context()
        self.context.run(_CURRENT_PROCESS.set, self)
        self._loop = loop
        self._fatal_step = 0
        self._on_death: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._most = _FEW
        loop.lives.append(self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start a task of this process."""
        return self._loop.create_task(work, context=self.context.copy())

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback as a step of this process."""
        self._loop.call_soon(callback, *args, context=self.context)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Schedule a callback after some seconds, as a step of this process."""
        self._loop.call_later(seconds, callback, *args, context=self.context)

    def on_death(self, callback: Callable[[], None]) -> None:
        """Register a callback for the end of the process, whatever the cause."""
        self._on_death.append(callback)

    def end_after(self, steps: int) -> None:
        """Kill the process in place of a step, counted from the next one."""
        self._fatal_step = self.steps + steps

    def spare(self) -> None:
        """Cancel a kill that was scheduled by :meth:`end_after`."""
        self._fatal_step = 0

    def kill(self) -> None:
        """End the process, which takes no further step; an ended process stays as it is."""
        if not self.is_alive:
            return
        self.is_alive = False
        for callback in self._on_death:
            callback()

    def bury(self) -> None:
        """
        Close the tasks of an ended process, after disk and network are gone.

        Their ``finally`` blocks run now, rather than when the garbage collector comes to them.
        """
        while self._tasks:
            task = self._tasks.pop()
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self.context.copy().run(_close_task, task)

    def step(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Run a callback as a step, unless the process has ended or this step is the fatal one."""
        if not self.is_alive:
            return
        self.steps += 1
        if self.steps == self._fatal_step:
            self.kill()
        else:
            callback(*args)

    def has(self, task: "asyncio.Task[Any]") -> None:
        """Register a task that belongs to the process."""
        self._tasks.append(task)
        if len(self._tasks) > self._most:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._most = max(_FEW, 2 * len(self._tasks))


def current_process() -> SimulatedProcess | None:
    """Return the process whose step is running; None outside of any."""
    return _CURRENT_PROCESS.get()


class ProcessLoop(VirtualLoop):
    """Runs simulated processes on virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: list[SimulatedProcess] = []

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Schedule a callback as a step of the context's process."""
        process = _CURRENT_PROCESS.get() if context is None else context.get(_CURRENT_PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(process.step, callback, args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule a callback at a virtual time, as a step of the context's process."""
        process = _CURRENT_PROCESS.get() if context is None else context.get(_CURRENT_PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, process.step, callback, args, context=context)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: Any = None, context: Any = None
    ) -> "asyncio.Task[Any]":
        """Create a task that belongs to the process that the context names."""
        process = _CURRENT_PROCESS.get() if context is None else context.get(_CURRENT_PROCESS)
        # Remembered by its process, which closes it after a kill: nobody else would run its finally
        # blocks.
        task = super().create_task(coro, name=name, context=context)
        if process is not None:
            process.has(task)
        return task

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Register nothing: generators of an ended process must not be closed by the loop."""

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Close an abandoned generator when the process that left it is alive."""
        process = _CURRENT_PROCESS.get()
        # A killed process runs nothing more, not even the finally blocks of a generator.
        if process is not None and process.is_alive and not self.is_closed():
            self.call_soon(self.create_task, agen.aclose())


def run_processes(narrative: Callable[[ProcessLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run a simulation on a new loop, and end all processes afterwards."""
    loop = ProcessLoop()
    try:
        return loop.run_until_complete(narrative(loop))
    finally:
        for process in loop.lives:
            process.kill()
        _close_all_tasks(loop.lives)
        loop.close()


def _close_all_tasks(lives: list[SimulatedProcess]) -> None:
    """Close all tasks, and silence errors of their ``finally`` blocks, which nobody can handle."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for process in lives:
                process.bury()
    finally:
        sys.unraisablehook = hook


def _close_task(task: "asyncio.Task[Any]") -> None:
    coroutine = task.get_coro()
    assert isinstance(coroutine, Coroutine)
    for _ in range(_MOST_CLOSES):  # a finally block may await, which takes another close()
        try:
            coroutine.close()
        except BaseException:  # no party is left to report the error to
            continue
        return
