"""Python functions as tasks: a ``concurrent.futures.Executor`` over leased workers."""

import asyncio
import concurrent.futures.thread  # its end is registered before ours: see _shut_down_all
import contextlib
import itertools
import os
import pickle
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from bursar.api.call_encoding import (
    CallEncoder,
    amount_of,
    call_kind,
    chunks_of,
    flat,
    run_chunk,
)
from bursar.api.site_resolution import Sites, resolve_sites
from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.errors import BudgetStop, BursarError, InputError
from bursar.model.matching import Matching
from bursar.model.site import SiteFacts
from bursar.model.task import Call, Outcome, Status, Task
from bursar.runs.executor_engine import ExecutorEngine
from bursar.runs.recording.user_history import stated_history
from bursar.worker.call_results import ValueRefusedError, result_of_data
from bursar.worker.raised import RemoteError

P = ParamSpec("P")
T = TypeVar("T")


class TaskFailed(BursarError):
    """A call ended without result or exception: killed, timed out, or the worker died."""


class Executor(concurrent.futures.Executor):
    """
    Runs Python calls on workers of one or more sites.

    The class keeps the contract of :class:`concurrent.futures.Executor`: exceptions of a call are
    raised by its future, with the traceback in the worker as their cause; ``cancel`` works until
    the call is with a worker; ``map`` takes a chunk size; leaving the ``with`` block waits. An
    executor without references, or one that the program did not shut down, finishes its calls and
    gives the processors back.

    Functions are pickled by value where need be, so lambdas and functions of a notebook will do.
    Results of this machine's own workers may be anything that can be pickled; from another Bursar
    they come back as data (:mod:`bursar.worker.call_results`), which runs no code here, unless its
    site says ``trust = "pickle"``. A call that raises is not repeated; nor is one whose worker
    died, unless ``retries`` says so. What a call prints is not shown, but kept in the journal.

    Parameters
    ----------
    processors
        Processors to lease of each site, so many calls at a time; None: all of them. Of this
        machine, if no sites are given, also more than it has.
    sites
        A sites file, or the sites, of this machine or other Bursars; None: this machine. Of
        another Bursar they are held for the longest agreement of its ``[pool]`` at most.
    budget
        Most that may be spent, ``"40 SU"`` or a number; None for no limit.
        Calls that it does not cover raise :class:`bursar.BudgetStop`.
    wall_limit
        Seconds after which a call is killed and raises :class:`TaskFailed`; None for no limit.
    retries
        Number of further tries of a call whose worker died.
    folder
        Where to keep the journal and ``bill.json``; None: nowhere, once shut
        down. It must not hold a journal yet.
    history
        File of the history that the calls are added to, as kinds by the function's qualified name;
        ``"none"``: nowhere; None: as the variable ``BURSAR_HISTORY`` says, else the user's.

    Raises
    ------
    InputError
        When an argument is out of range.
    SiteError
        When the workers cannot be started.
    """

    def __init__(
        self,
        processors: int | None = None,
        *,
        sites: Sites = None,
        budget: str | float | None = None,
        wall_limit: float | None = None,
        retries: int = 0,
        folder: str | Path | None = None,
        history: str | Path | None = None,
    ) -> None:
        if wall_limit is not None and not wall_limit > 0:
            raise InputError(f"wall_limit must be positive, got {wall_limit}")
        if retries < 0:
            raise InputError(f"retries must not be negative, got {retries}")
        self._wall_limit = wall_limit
        self._retries = retries
        facts = resolve_sites(sites)
        if sites is None and processors is not None:
            # As many as are stated, as of the standard library's executors: calls may well wait.
            facts = tuple(replace(site, processors=_or_more(site, processors)) for site in facts)
        self._encoder = CallEncoder(shares=all(site.kind == "local" for site in facts))
        if any(site.remote is not None for site in facts):
            from bursar.api.queues import with_prices

            facts = with_prices(facts)
        self._thread = _ExecutorThread(
            facts,
            processors=processors,
            budget=amount_of(budget, facts),
            folder=None if folder is None else Path(folder),
            history=stated_history(history),
        )
        # For executors that nobody refers to any more. At the end of the program _shut_down_all
        # waits for the calls instead.
        weakref.finalize(self, self._thread.leave).atexit = False
        self._thread.open()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """
        Schedule the call ``fn(*args, **kwargs)``.

        Raises
        ------
        RuntimeError
            After :meth:`shutdown`, or in a process forked from the executor's own.
        BudgetStop
            When the budget is spent.
        BrokenExecutor
            When the workers are gone for good.
        """
        call = _CallFuture(self._thread)
        try:
            payload = self._encoder.encode(fn, args, kwargs)
        except Exception as error:
            # As ProcessPoolExecutor has it: what cannot be sent is the future's failure.
            call.set_running_or_notify_cancel()
            call.set_exception(error)
            return call
        task = Task(
            id=self._thread.next_id(),
            name=call_kind(fn, args),
            steps=(Call(payload),),
            wall_limit=self._wall_limit,
            retries=self._retries,
            matching=_ANYWHERE,
        )
        self._thread.take(call, task)
        return call

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """
        Apply a function as the built-in ``map`` does, in parallel; keep the arguments' order.

        Parameters
        ----------
        timeout
            Seconds after which ``next`` raises TimeoutError, counted from this call.
        chunksize
            Number of calls that travel as one task; at least 1.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1")
        # A chunk of one would be wrapped in a list on both sides for nothing.
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        chunks = super().map(
            run_chunk,
            itertools.repeat(fn),
            chunks_of(zip(*iterables, strict=False), chunksize),
            timeout=timeout,
        )
        return flat(chunks)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """
        Accept no more calls, and give the processors back when all calls have ended.

        Parameters
        ----------
        wait
            Return only when all calls have ended and the processors are given back.
        cancel_futures
            Cancel what has not started.
        """
        self._thread.close(cancel=cancel_futures)
        if wait:
            self._thread.join()

    def terminate_workers(self) -> None:
        """
        Accept no more calls, end those that run, and give the processors back.

        Calls without a result raise :class:`TaskFailed`; :meth:`shutdown` waits for the end.
        """
        self._thread.terminate()

    def spending(self) -> tuple[float, float]:
        """Return what the leases have cost so far, and what is held for them, currency units."""
        return self._thread.spending()


class _ExecutorThread:
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
        folder: Path | None,
        history: str,
    ) -> None:
        self._sites = {site.name: site for site in sites}
        self._temporary = tempfile.mkdtemp(prefix="bursar-") if folder is None else None
        try:
            self._service = ExecutorEngine(
                folder or Path(str(self._temporary)),
                sites,
                processors=processors,
                budget=budget,
                keep_bill=folder is not None,
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
        self._inbox: deque[tuple[_CallFuture, Task]] = deque()
        self._taking: Sequence[tuple[_CallFuture, Task]] = ()  # neither there nor below yet
        self._calls: dict[int, _CallFuture] = {}
        self._closing = False
        self._broken: BaseException | None = None
        self._spending = 0.0, 0.0
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, name="bursar-executor", daemon=True)

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

    def take(self, call: "_CallFuture", task: Task) -> None:
        """Accept a call; see :meth:`Executor.submit`."""
        # A fork has the executor's memory, but not its thread: a call would wait for ever.
        if os.getpid() != self._process:
            raise RuntimeError("an executor cannot be used in a process forked from its own")
        with self._lock:
            if isinstance(self._broken, BudgetStop):
                raise BudgetStop(str(self._broken)) from self._broken
            if self._broken is not None:
                raise BrokenExecutor(str(self._broken)) from self._broken
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            # One wake-up for a burst of calls: each costs a system call.
            asleep = not self._inbox
            self._inbox.append((call, task))
        if asleep:
            self._do(self._wake.set)

    def drop(self, call: "_CallFuture") -> None:
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
        found: Future[tuple[float, float]] = Future()

        def look() -> None:
            self._spending = self._service.spending()
            found.set_result(self._spending)

        self._do(look)
        with contextlib.suppress(TimeoutError):  # the loop ends, or is busy
            return found.result(0.5)
        return self._spending

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
            while not (self._closing and not self._inbox and not self._calls):
                await self._wake.wait()
                if service.failed.done():
                    raise service.failed.result()
                self._wake.clear()
                self._take_in()

    def _take_in(self) -> None:
        """Pass some of the waiting calls to the engine; the loop has other work, too."""
        with self._lock:
            self._taking = taken = [
                self._inbox.popleft() for _ in range(min(_AT_ONCE, len(self._inbox)))
            ]
            # The loop comes back after it has looked after the workers.
            if self._inbox:
                self._wake.set()
        calls: list[_CallFuture] = []
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
            call.settle(outcome, self._sites[record.site])
        if self._closing and not self._calls:
            self._wake.set()

    def _drop(self, call: "_CallFuture") -> None:
        call.begin()
        if call.number is not None and self._calls.pop(call.number, None) is not None:
            self._service.cancel(call.number)
        self._wake.set()

    def _terminate(self) -> None:
        with self._lock:
            calls = [call for call, _ in (*self._taking, *self._inbox)]
            self._inbox.clear()
        for number in self._calls:
            self._service.cancel(number)
        calls += self._calls.values()
        self._calls.clear()
        for call in calls:
            if call.begin():
                call.set_exception(TaskFailed("the executor has ended its workers"))
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


class _CallFuture(Future[Any]):
    """A future whose cancellation cancels the task of the call."""

    def __init__(self, thread: _ExecutorThread) -> None:
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

    def settle(self, outcome: Outcome, site: SiteFacts) -> None:
        """
        Set the result of the call, or the reason why there is none.

        Parameters
        ----------
        site
            Site that the outcome is from, which says whether a pickle from there may be loaded.
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
                value = _loaded(outcome, site)
            except BaseException as error:  # the result's class cannot be rebuilt here
                self.set_exception(error)
                return
            if outcome.status is Status.SUCCEEDED:
                self.set_result(value)
            else:
                self.set_exception(value)


def _loaded(outcome: Outcome, site: SiteFacts) -> Any:
    """
    Return the value or the exception of a call.

    Raises
    ------
    TaskFailed
        When the site sends data, and the value could not be sent so.
    """
    if site.sends_pickles:
        # Only from workers of this machine, or from a site that its user trusts to run code here.
        return pickle.loads(outcome.value)
    succeeded = outcome.status is Status.SUCCEEDED
    try:
        found = result_of_data(outcome.value, succeeded=succeeded)
    except ValueRefusedError as refused:
        raise TaskFailed(
            f'the result cannot come back from site "{site.name}" as data: {refused}; return '
            "numbers, texts, bytes, NumPy arrays, or lists, tuples, dicts and sets of them, or "
            'let that site run code here by trust = "pickle" in the sites file'
        ) from None
    if isinstance(found, RemoteError) and not succeeded:
        found.add_note(
            f'The site "{site.name}" sends data only, so the exception is not rebuilt; '
            'trust = "pickle" in the sites file changes that.'
        )
    return found


def _or_more(here: SiteFacts, processors: int) -> int:
    return max(here.processors, min(processors, _MOST_HERE))


_MOST_HERE = 4096
"""Processors that this machine may be stated to have: each is a process when it is used."""

_ANYWHERE = Matching()

_AT_ONCE = 256
"""Calls taken in before the loop looks after the workers again."""

_OPEN: set[_ExecutorThread] = set()


def _shut_down_all() -> None:
    """Let executors that were not shut down finish, as the standard library's do."""
    for thread in list(_OPEN):
        thread.close()
        thread.join()


# With atexit it would be too late: by then the threads that write the journal take no more work.
threading._register_atexit(_shut_down_all)  # type: ignore[attr-defined]
