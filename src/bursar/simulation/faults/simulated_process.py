"""
Parties that can be killed between any two steps.

Everything a party does is a callback of the loop: each step of a task between two awaits, each
timer, each arrival from the network. Every callback knows, by its context, in which life of which
party it was asked for. A life that was killed takes no further step: its tasks stay where they
are, their ``finally`` blocks find disk and network gone, and what it knew is lost.
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
"""Tasks from which on those that are done are dropped from the list now and then."""


_MOST_CLOSES = 20


class ProcessKilled(Exception):
    """The life that asked is over: nothing of the world can be reached from it."""


class SimulatedProcess:
    """
    A party from its start until it ends, or is killed.

    Parameters
    ----------
    loop
        On which it lives.
    party
        Its name.
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
        """A task of this life."""
        return self._loop.create_task(work, context=self.context.copy())

    def call(self, callback: Callable[..., object], *args: Any) -> None:
        """Calls soon, as a step of this life."""
        self._loop.call_soon(callback, *args, context=self.context)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        """Calls later, as a step of this life."""
        self._loop.call_later(seconds, callback, *args, context=self.context)

    def on_death(self, callback: Callable[[], None]) -> None:
        """Called when it has ended, however."""
        self._on_death.append(callback)

    def end_after(self, steps: int) -> None:
        """It will be killed in place of its so-manieth step from now."""
        self._fatal_step = self.steps + steps

    def spare(self) -> None:
        """It will not be killed after all."""
        self._fatal_step = 0

    def kill(self) -> None:
        """It takes no step any more. May be repeated."""
        if not self.is_alive:
            return
        self.is_alive = False
        for callback in self._on_death:
            callback()

    def bury(self) -> None:
        """
        Lets go of its tasks where they stand, when nothing of the world is left that it could harm.

        Their ``finally`` blocks run now, rather than when the garbage collector comes to them.
        """
        while self._tasks:
            task = self._tasks.pop()
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                self.context.copy().run(_close_task, task)

    def step(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        """Takes a step, unless it is over, or this step is the fatal one."""
        if not self.is_alive:
            return
        self.steps += 1
        if self.steps == self._fatal_step:
            self.kill()
        else:
            callback(*args)

    def has(self, task: "asyncio.Task[Any]") -> None:
        """A task belongs to it."""
        self._tasks.append(task)
        if len(self._tasks) > self._most:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._most = max(_FEW, 2 * len(self._tasks))


def current_process() -> SimulatedProcess | None:
    """Whose step is being taken."""
    return _CURRENT_PROCESS.get()


class ProcessLoop(VirtualLoop):
    """A loop on virtual time whose parties have lives."""

    def __init__(self) -> None:
        super().__init__()
        self.lives: list[SimulatedProcess] = []

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """As any loop's; a step of the life of its context."""
        life = _CURRENT_PROCESS.get() if context is None else context.get(_CURRENT_PROCESS)
        if life is None:
            return super().call_soon(callback, *args, context=context)
        return super().call_soon(life.step, callback, args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """As any loop's; a step of the life of its context."""
        life = _CURRENT_PROCESS.get() if context is None else context.get(_CURRENT_PROCESS)
        if life is None:
            return super().call_at(when, callback, *args, context=context)
        return super().call_at(when, life.step, callback, args, context=context)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: Any = None, context: Any = None
    ) -> "asyncio.Task[Any]":
        """As any loop's; of the life of its context."""
        life = _CURRENT_PROCESS.get() if context is None else context.get(_CURRENT_PROCESS)
        task = super().create_task(coro, name=name, context=context)
        if life is not None:
            life.has(task)
        return task

    def _asyncgen_firstiter_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """Nothing is kept: what is left of a dead life's generators is not to be run."""

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[Any, Any]) -> None:
        """A generator that was left by someone who lives is closed, as on any loop."""
        life = _CURRENT_PROCESS.get()
        if life is not None and life.is_alive and not self.is_closed():
            self.call_soon(self.create_task, agen.aclose())


def run_processes(story: Callable[[ProcessLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Runs a story on a loop of its own; all lives end with it."""
    loop = ProcessLoop()
    try:
        return loop.run_until_complete(story(loop))
    finally:
        for life in loop.lives:
            life.kill()
        _close_all_tasks(loop.lives)
        loop.close()


def _close_all_tasks(lives: list[SimulatedProcess]) -> None:
    """Ways out that are left for good fail in ways that nobody can handle: nobody is told."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for life in lives:
                life.bury()
    finally:
        sys.unraisablehook = hook


def _close_task(task: "asyncio.Task[Any]") -> None:
    coroutine = task.get_coro()
    assert isinstance(coroutine, Coroutine)
    for _ in range(_MOST_CLOSES):  # it may wait for something in a finally block, and in another
        try:
            coroutine.close()
        except BaseException:  # whatever it is, nobody is there to hear of it
            continue
        return
