"""The thread of an executor: an event loop, an engine, and the futures of calls under way."""

import asyncio
import concurrent.futures.thread  # noqa: F401 (its end is registered before ours)
import contextlib
import itertools
import os
import pickle
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.campaign import Campaign
from bursar.model.errors import BudgetStop, BursarError, DeadlineMissed
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status, Task
from bursar.report.tables import span
from bursar.runs.executor_engine import ExecutorEngine, is_acquired
from bursar.worker.call_results import ValueRefusedError, result_of_data
from bursar.worker.raised import RemoteError

if TYPE_CHECKING:  # a forecast needs arrays, most executors none
    from bursar.api.calls.call_progress import CallsStanding
    from bursar.report.progress import ProgressSnapshot

T = TypeVar("T")


class TaskFailed(BursarError):
    """A call ended without result or exception: killed, timed out, or the worker died."""


class ExecutorThread:
    """
    The thread of an executor, with an event loop, an engine and the calls under way.

    The thread holds no reference to the executor, so that an unused one can be collected.
    """

    def __init__(
        self,
        sites: Sequence[SiteFacts],
        *,
        processors: int | None,
        budget: float | None,
        deadline: float | None,
        folder: Path | None,
        history: str,
    ) -> None:
        self._sites = {site.name: site for site in sites}
        self._deadline = deadline
        self._history = history
        self._last_look: CallsStanding | None = None
        self._processors = sum(processors or site.processors for site in sites)
        # Workers of other machines than this one; a service asks its own for what its site says.
        self._as_data = any(is_acquired(site) for site in sites)
        self._temporary = None
        if folder is None:
            # Nodes of a cluster see the folder of the program, as a rule, and not /tmp.
            where = os.getcwd() if any(is_acquired(site) for site in sites) else None
            self._temporary = tempfile.mkdtemp(prefix=".bursar-" if where else "bursar-", dir=where)
            # Not itself: what is learned of queues is kept beside the folder of a run.
            folder = Path(self._temporary, "calls")
            keep_bill = False
        else:
            keep_bill = True
        try:
            self._service = ExecutorEngine(
                folder,
                sites,
                processors=processors,
                budget=budget,
                deadline=deadline,
                keep_bill=keep_bill,
                on_outcome=self._settle,
                on_start=self._started,
                history=history,
            )
        except BaseException:
            self._remove_folder()
            raise
        self._process = os.getpid()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._inbox: deque[tuple[CallFuture, Task]] = deque()
        self._taking: Sequence[tuple[CallFuture, Task]] = ()  # neither there nor below yet
        self._calls: dict[int, CallFuture] = {}
        self._closing = False
        self._broken: BaseException | None = None
        self._spending = 0.0, 0.0
        self._widest = {site.name: processors or site.processors for site in sites}
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, name="bursar-executor", daemon=True)

    @property
    def sites(self) -> Sequence[SiteFacts]:
        """The sites whose workers carry out the calls."""
        return tuple(self._sites.values())

    @property
    def processors(self) -> int:
        """Processors of all sites together, at most."""
        return self._processors

    @property
    def as_data(self) -> bool:
        """Whether calls are to return data wherever they run."""
        return self._as_data

    # From any thread.

    def open(self) -> None:
        """Start the thread, and wait until the processors are leased."""
        # Before the thread starts, so that the exit of the interpreter waits for it from its first
        # moment.
        _OPEN.add(self)
        try:
            self._thread.start()
        except RuntimeError:  # no thread is to be had, so that none would clear up
            _OPEN.discard(self)
            self._loop.close()
            self._remove_folder()
            raise
        try:
            self._ready.result()
        except BaseException:
            self.leave()
            self._thread.join()
            raise

    def next_id(self) -> str:
        """Return the id of the next task."""
        return str(next(self._numbers))

    def take(self, call: "CallFuture", task: Task) -> None:
        """Accept a call; see :meth:`Executor.submit`."""
        # A fork has the executor's memory, but not its thread: a call would wait for ever.
        if os.getpid() != self._process:
            raise RuntimeError("an executor cannot be used in a process forked from its own")
        with self._lock:
            if isinstance(self._broken, BudgetStop | DeadlineMissed):
                raise type(self._broken)(str(self._broken)) from self._broken
            if self._broken is not None:
                raise BrokenExecutor(str(self._broken)) from self._broken
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            # One wake-up for a burst of calls: each costs a system call.
            asleep = not self._inbox
            self._inbox.append((call, task))
        if asleep:
            self._do(self._wake.set)

    def drop(self, call: "CallFuture") -> None:
        """Remove a cancelled call from the queue."""
        self._do(lambda: self._drop(call))

    def close(self, *, cancel: bool = False) -> None:
        """Accept no more calls; with ``cancel``, cancel calls that have not started."""
        with self._lock:
            self._closing = True
            # Copied under the lock, cancelled without it: callbacks of the futures may call the
            # executor again.
            calls = [call for call, _ in (*self._inbox, *self._taking)]
            calls += list(self._calls.values())
        if cancel:
            for call in calls:
                call.cancel()
        self._do(self._wake.set)

    def terminate(self) -> None:
        """Accept no more calls, and end those that run."""
        with self._lock:
            self._closing = True
        self._do(self._terminate)

    def spending(self) -> tuple[float, float]:
        """Return what is spent and held, currency units; the last known where all has ended."""
        self._spending = self._ask(self._service.spending, self._spending)
        return self._spending

    def progress(self, campaign: Campaign | None, places: Sequence[int]) -> "ProgressSnapshot":
        """Return how the calls stand, with a forecast; the last known where all has ended."""
        from bursar.api.calls.call_progress import snapshot_of_calls

        # The loop looks for the last time when it ends.
        calls = self._ask(self._look, self._last_look, patience=10.0) or self._last_look
        if calls is None:
            raise RuntimeError("how the calls stand is not known: the executor is busy or broken")
        if campaign is not None:
            calls = calls.within(campaign, places)
        return snapshot_of_calls(calls, self.sites, self._history)

    def _look(self) -> "CallsStanding":
        from bursar.api.calls.call_progress import CallsStanding

        standing, counts, tasks = self._service.standing()
        with self._lock:
            waiting = [task.without_steps() for _, task in (*self._taking, *self._inbox)]
        held = self._service.spending()[1]
        return CallsStanding(standing, counts, held, (*tasks, *waiting), len(waiting))

    def widest(self) -> dict[str, int]:
        """Return the most processors that a call may hold, by site."""
        self._widest = self._ask(self._service.widest, self._widest)
        return self._widest

    def _ask(self, look: Callable[[], T], otherwise: T, patience: float = 0.5) -> T:
        """Return what a function finds on the loop's thread; ``otherwise`` where that is busy."""
        found: Future[T] = Future()
        self._do(lambda: found.set_result(look()))
        with contextlib.suppress(TimeoutError):  # the loop ends, or is busy
            return found.result(patience)
        return otherwise

    def leave(self) -> None:
        """Accept no more calls, without a lock: the garbage collector may call this at any time."""
        self._closing = True
        self._do(self._wake.set)

    def join(self) -> None:
        """Wait until all calls have ended and the processors are given back."""
        if os.getpid() == self._process:
            self._thread.join()

    def _do(self, what: Callable[[], object]) -> None:
        """Call a function on the loop's thread; do nothing when the loop has ended."""
        if os.getpid() == self._process:
            # The loop may have been closed since.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(what)

    # On the loop's thread from here on.

    def _serve(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._main())
        except BaseException as error:
            if self._ready.done():
                self._break(error)
            else:
                self._ready.set_exception(error)
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            self._remove_folder()
            _OPEN.discard(self)

    async def _main(self) -> None:
        async with self._service as service:
            self._ready.set_result(None)
            # Wakes the loop below, which would wait for calls for ever.
            service.failed.add_done_callback(lambda _: self._wake.set())
            if self._deadline is not None:
                self._loop.call_later(self._deadline, self._miss, self._deadline)
            while not (self._closing and not self._inbox and not self._calls):
                if self._closing:
                    service.close_to_calls()
                await self._wake.wait()
                if service.failed.done():
                    raise service.failed.result()
                self._wake.clear()
                self._take_in()
            self._last_look = self._look()

    def _take_in(self) -> None:
        """Pass some of the waiting calls to the engine; the loop has other work, too."""
        with self._lock:
            self._taking = taken = [
                self._inbox.popleft() for _ in range(min(_AT_ONCE, len(self._inbox)))
            ]
            # The loop comes back after it has looked after the workers.
            if self._inbox:
                self._wake.set()
        calls: list[CallFuture] = []
        tasks: list[Task] = []
        for call, task in taken:
            if call.cancelled():
                # Its waiters hear of the cancellation here: Future.cancel does not tell
                # concurrent.futures.wait.
                call.begin()
            else:
                calls.append(call)
                tasks.append(task)
        if tasks:
            for number, call in zip(self._service.submit(tasks), calls, strict=True):
                call.number = number
                self._calls[number] = call
        self._taking = []

    def _started(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            call = self._calls.get(task)
            # Cancelled between the hand-over to the engine and now.
            if call is not None and not call.begin():
                del self._calls[task]
                self._service.cancel(task)

    def _settle(self, record: AttemptRecord) -> None:
        outcome = record.outcome
        # Without a value the worker died or the attempt was cut off: the queue tries again.
        if not record.final and not outcome.value:
            return
        call = self._calls.pop(outcome.task, None)
        if not record.final:  # an exception is an answer, and asking again is for other failures
            self._service.cancel(outcome.task)
        if call is not None:
            # Only now, when the outcome is in the journal.
            call.settle(outcome, self._sites[record.site], as_data=self._as_data)
        if self._closing and not self._calls:
            self._wake.set()

    def _drop(self, call: "CallFuture") -> None:
        call.begin()
        if call.number is not None and self._calls.pop(call.number, None) is not None:
            self._service.cancel(call.number)
        self._wake.set()

    def _terminate(self) -> None:
        self._end_calls(TaskFailed("the executor has ended its workers"))

    def _miss(self, deadline: float) -> None:
        """End all calls, as the deadline has passed, and accept no more."""
        with self._lock:
            error = DeadlineMissed(f"the deadline of {span(deadline)} passed")
            self._broken, self._closing = error, True
        self._end_calls(error)

    def _end_calls(self, error: BursarError) -> None:
        with self._lock:
            calls = [call for call, _ in (*self._taking, *self._inbox)]
            self._inbox.clear()
        for number in self._calls:
            self._service.cancel(number)
        calls += self._calls.values()
        self._calls.clear()
        for call in calls:
            if call.begin():
                call.set_exception(type(error)(str(error)))
        self._wake.set()

    def _break(self, error: BaseException) -> None:
        with self._lock:
            self._broken = error
            calls = list(self._calls.values())
            calls += [call for call, _ in (*self._taking, *self._inbox)]
            self._calls.clear()
            self._inbox.clear()
        for call in calls:
            if call.begin():
                call.set_exception(
                    BudgetStop(str(error))
                    if isinstance(error, BudgetStop)
                    else BrokenExecutor(str(error))
                )

    def _remove_folder(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class CallFuture(Future[Any]):
    """A future whose cancellation cancels the task of the call."""

    def __init__(self, thread: ExecutorThread) -> None:
        super().__init__()
        self._thread = thread
        self._begun: bool | None = None
        self.number: int | None = None

    def cancel(self) -> bool:
        """Cancel the call if no worker has started the task."""
        already = self.cancelled()
        done = super().cancel()
        if done and not already:
            self._thread.drop(self)
        return done

    def begin(self) -> bool:
        """
        Mark the call as running; return False for a call that was cancelled before.

        A cancelled call notifies its waiters here, which ``cancel`` does not.
        """
        if self._begun is None:
            self._begun = self.set_running_or_notify_cancel()
        return self._begun

    def settle(self, outcome: Outcome, site: SiteFacts, *, as_data: bool) -> None:
        """
        Set the result of the call, or the reason why there is none.

        Parameters
        ----------
        site
            Site that the outcome is from, which says whether a pickle from there may be loaded.
        as_data
            Whether workers were asked for data, wherever they are.
        """
        if not self.begin():
            return
        if outcome.status is Status.CANCELLED:
            self.set_exception(BudgetStop(outcome.reason))
        elif not outcome.value:
            failed = TaskFailed(f"{outcome.status}: {outcome.reason}")
            if outcome.stderr:
                failed.add_note(outcome.stderr.decode(errors="replace").rstrip())
            self.set_exception(failed)
        else:
            try:
                value = _loaded(outcome, site, as_data=as_data)
            except BaseException as error:  # the result's class cannot be rebuilt here
                self.set_exception(error)
                return
            if outcome.status is Status.SUCCEEDED:
                self.set_result(value)
            else:
                self.set_exception(value)


def _loaded(outcome: Outcome, site: SiteFacts, *, as_data: bool) -> Any:
    """
    Return the value or the exception of a call.

    Raises
    ------
    TaskFailed
        When the site sends data, and the value could not be sent so.
    """
    if site.sends_pickles and not as_data:
        # Only from workers of this machine, or from a site that its user trusts to run code here.
        return pickle.loads(outcome.value)
    succeeded = outcome.status is Status.SUCCEEDED
    try:
        found = result_of_data(outcome.value, succeeded=succeeded)
    except ValueRefusedError as refused:
        raise TaskFailed(
            f'the result cannot come back from site "{site.name}" as data: {refused}; return '
            "numbers, texts, bytes, NumPy arrays, or lists, tuples, dicts and sets of them"
            + (_MAY_TRUST if site.remote is not None else "")
        ) from None
    if isinstance(found, RemoteError) and not succeeded:
        found.add_note(
            f'The site "{site.name}" sends data only, so the exception is not rebuilt'
            + ('; trust = "pickle" in the sites file changes that.' if site.remote else ".")
        )
    return found


_MAY_TRUST = ', or let that site run code here by trust = "pickle" in the sites file'

_AT_ONCE = 256
"""Calls taken in before the loop looks after the workers again."""

_OPEN: set[ExecutorThread] = set()


def _shut_down_all() -> None:
    """Let executors that were not shut down finish, as the standard library's do."""
    for thread in list(_OPEN):
        thread.close()
        thread.join()


# With atexit it would be too late: by then the threads that write the journal take no more work.
threading._register_atexit(_shut_down_all)  # type: ignore[attr-defined]
