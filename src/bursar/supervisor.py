"""
Supervise asyncio tasks: each has an owner, and each failure reaches someone.

``asyncio.create_task`` returns a task that nobody has to await. A failure of such a task is
found by the garbage collector, if at all, and a task without a reference may vanish before its
end. :class:`asyncio.TaskGroup`, which follows the nurseries of Trio [1]_, is the answer for tasks
that end within one ``async with`` block. A service has others, too: they are started during its
whole life, by callbacks (a message has come, a worker has left) that are no coroutines and
cannot wait for anybody, and the failure of one is no reason to cancel the others.

:class:`TaskSupervisor` is for both. Elsewhere in Bursar no task is started by hand; a test over
the source code holds that.

References
----------
.. [1] N. J. Smith (2018). Notes on structured concurrency, or: Go statement considered harmful.
       https://vorpus.org/blog/notes-on-structured-concurrency-or-go-statement-considered-harmful/
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

FailureHandler = Callable[[BaseException], None]
"""Takes in the failure of a task; must not raise, and is no coroutine."""


def heard_by_waiter(error: BaseException) -> None:
    """Do nothing: the failure of this task is raised where the task is awaited."""


class SupervisorClosed(RuntimeError):
    """A task was to be started under a supervisor that is closing or closed."""


class TaskSupervisor:
    """
    Owns tasks until they end, and passes on their failures.

    There are two kinds of owners.

    *An object with a life of its own* gives a handler and calls :meth:`close` at its end. The
    handler is called exactly once for each task that fails, in the order in which they fail, and
    before :meth:`close` returns. The other tasks go on.

    *A function* enters the supervisor as a context and gives no handler. The end of the block
    cancels what still runs, and waits for it. The first failure of a task cancels the others and
    is raised at the end of the block, as itself rather than in a group, since callers catch one
    error of :mod:`bursar.model.errors`. It is not raised again where the block ends by an error
    that is, or was raised from or after, the task's own: whoever awaits a task in the block has
    heard of it. Any further failure goes to the exception handler of the loop. The block itself
    is not cancelled by a failure (:class:`asyncio.TaskGroup` does that): it is expected to wait
    for its tasks.

    For both kinds:

    - A task that is cancelled, by whomever, has not failed.
    - While the supervisor closes, and afterwards, :meth:`start` raises
      :class:`SupervisorClosed`, so that a task that ends cannot leave another one behind.
    - A caller of :meth:`close` that is cancelled still waits until all tasks have ended; they are
      cancelled once more, and then the caller's cancellation goes on.
    - Tasks are cancelled in the order in which they were started, and nothing depends on the
      order of a set: on a loop with virtual time the same happens each time.
    - An error of the handler itself goes to the exception handler of the loop.

    Parameters
    ----------
    on_failure
        Called with the exception of each task that fails; None: the first failure is raised by
        :meth:`close`, or at the end of the block.
    """

    def __init__(self, on_failure: FailureHandler | None = None) -> None:
        self._on_failure = on_failure
        self._tasks: dict[asyncio.Task[Any], None] = {}  # in the order in which they were started
        self._failures: list[BaseException] = []  # that no handler has taken
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> "Iterator[asyncio.Task[Any]]":
        """Return the tasks that have not ended, in the order in which they were started."""
        return iter(list(self._tasks))

    @property
    def is_closed(self) -> bool:
        """Whether no more tasks can be started."""
        return self._is_closed

    @property
    def is_idle(self) -> bool:
        """
        Whether no task does anything any more.

        A task that has ended counts as a task until its failure was passed on, one turn of the loop
        later. Whoever starts a task only if none is at work asks for this, not for the number of
        tasks: what comes within that turn would be left to a task that has ended.
        """
        return all(task.done() for task in self._tasks)

    def start(
        self,
        work: Coroutine[Any, Any, T],
        name: str | None = None,
        *,
        on_failure: FailureHandler | None = None,
    ) -> "asyncio.Task[T]":
        """
        Start a coroutine as a task.

        Parameters
        ----------
        name
            Name of the task, for logs and debuggers.
        on_failure
            Called with the exception if this task fails, instead of the supervisor's handler.

        Raises
        ------
        SupervisorClosed
            When the supervisor is closing or closed; the coroutine is closed.
        """
        if self._is_closed:
            work.close()  # or Python would warn that nobody has awaited it
            raise SupervisorClosed(f"{name or 'a task'} is started too late")
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        handler = on_failure or self._on_failure
        task.add_done_callback(partial(self._on_done, handler))
        return task

    def cancel(self) -> None:
        """Cancel all tasks, in the order in which they were started; more may be started."""
        for task in list(self._tasks):
            task.cancel()

    async def wait(self, seconds: float | None = None) -> None:
        """
        Wait until no task is left, those included that are started meanwhile.

        Parameters
        ----------
        seconds
            How long to wait at the most; None: without a limit.
        """
        self._check_caller()
        try:
            async with asyncio.timeout(seconds):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        except TimeoutError:
            return

    async def close(self) -> None:
        """
        Cancel all tasks, wait until they have ended, and start no more.

        Raises
        ------
        Exception
            The first failure of a task, where the supervisor has no handler.
        """
        await self._close_after(None)

    async def __aenter__(self) -> "TaskSupervisor":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close_after(error)

    def _on_done(self, handler: FailureHandler | None, task: "asyncio.Task[Any]") -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if handler is not None:
            handler(error)
            return
        self._failures.append(error)
        self._is_closed = True
        self.cancel()

    async def _close_after(self, error: BaseException | None) -> None:
        try:
            await self._end()
        except asyncio.CancelledError as cancelled:
            self._raise_after(cancelled)
            raise
        self._raise_after(error)

    async def _end(self) -> None:
        self._check_caller()
        self._is_closed = True
        self.cancel()
        cancelled: asyncio.CancelledError | None = None
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError as error:
                cancelled = error
                self.cancel()
        if cancelled is not None:
            raise cancelled

    def _check_caller(self) -> None:
        if self._tasks and asyncio.current_task() in self._tasks:
            raise RuntimeError("a task cannot wait for the end of its own supervisor")

    def _raise_after(self, error: BaseException | None) -> None:
        """Raise the first failure, unless a block has ended by it or by another error."""
        failures, self._failures = self._failures, []
        unheard = [failure for failure in failures if not _stems_from(error, failure)]
        first = unheard.pop(0) if error is None and unheard else None
        for failure in unheard:
            asyncio.get_running_loop().call_exception_handler(
                {"message": "A task failed beside another failure", "exception": failure}
            )
        if first is not None:
            raise first


def _stems_from(error: BaseException | None, failure: BaseException) -> bool:
    """Whether an error is a failure, or was raised from it or while it was handled."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if error is failure:
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False
