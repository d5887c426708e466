"""Python functions as tasks: a ``concurrent.futures.Executor`` over leased workers."""

import asyncio
import atexit
import itertools
import pickle
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures import Executor as FuturesExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import cloudpickle

from bursar.api.sites import Sites, resolve_sites
from bursar.dispatch.callee import encode_call
from bursar.formats.units import parse_amount
from bursar.model.errors import BudgetStop, BursarError, InputError
from bursar.model.outcome import Outcome, Status
from bursar.model.step import Call
from bursar.model.task import Task
from bursar.runs.serving import Service

P = ParamSpec("P")
T = TypeVar("T")


class TaskFailed(BursarError):
    """A call ended without a result of its own: killed, timed out, or its worker died."""


class Executor(FuturesExecutor):
    """
    Runs Python calls on workers of one or more sites.

    It keeps the contract of :class:`concurrent.futures.Executor`: exceptions of
    a call are raised by its future, ``cancel`` works until the call starts,
    ``map`` takes a chunk size, and leaving the ``with`` block waits. Functions
    are pickled by value where need be, so lambdas and functions of a notebook
    will do. A call that raises is not repeated; nor is one whose worker died,
    unless ``retries`` says so.

    Parameters
    ----------
    processors
        How many to lease of each site; None: all it has.
    sites
        A sites file, or the sites; None: this machine.
    budget
        Most that may be spent, ``"40 SU"`` or a number; None for no limit.
        Calls that it does not cover raise :class:`bursar.BudgetStop`.
    wall_limit
        Seconds after which a call is killed and raises :class:`TaskFailed`;
        None for no limit.
    retries
        How often a call whose worker died is tried again.
    folder
        Where to keep the journal and the bill; None: nowhere, once shut down.

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
    ) -> None:
        if wall_limit is not None and not wall_limit > 0:
            raise InputError(f"wall_limit must be positive, got {wall_limit}")
        if retries < 0:
            raise InputError(f"retries must not be negative, got {retries}")
        self._wall_limit = wall_limit
        self._retries = retries
        self._temporary = tempfile.mkdtemp(prefix="bursar-") if folder is None else None
        self._service = Service(
            Path(self._temporary or str(folder)),
            resolve_sites(sites),
            processors=processors,
            budget=_amount(budget),
            on_outcome=self._settle,
            on_start=self._started,
        )
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._inbox: deque[tuple[_Call, Task]] = deque()
        self._calls: dict[int, _Call] = {}
        self._closing = False
        self._broken: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._serve, args=(ready,), name="bursar-executor", daemon=True
        )
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self._thread.join()
            self._remove_folder()
            raise
        _LIVE.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """
        Schedules ``fn(*args, **kwargs)``.

        Raises
        ------
        RuntimeError
            After :meth:`shutdown`.
        BrokenExecutor
            When the workers are gone for good.
        """
        call = _Call(self)
        try:
            payload = encode_call(cloudpickle.dumps((fn, args, kwargs)))
        except Exception as error:
            # As ProcessPoolExecutor has it: what cannot be sent is the future's failure.
            call.set_running_or_notify_cancel()
            call.set_exception(error)
            return call
        task = Task(
            id=str(next(self._numbers)),
            name=getattr(fn, "__qualname__", type(fn).__qualname__),
            steps=(Call(payload),),
            wall_limit=self._wall_limit,
            retries=self._retries,
        )
        with self._lock:
            if self._broken is not None:
                raise BrokenExecutor(str(self._broken)) from self._broken
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            asleep = not self._inbox
            self._inbox.append((call, task))
        if asleep:
            self._loop.call_soon_threadsafe(self._wake.set)
        return call

    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        """
        As the built-in ``map``, in parallel; results in the order of the arguments.

        Parameters
        ----------
        timeout
            Seconds after which ``next`` raises TimeoutError, counted from this call.
        chunksize
            How many calls travel as one task. Positive.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1")
        if chunksize == 1:
            return super().map(fn, *iterables, timeout=timeout)
        chunks = super().map(
            _run_chunk,
            itertools.repeat(fn),
            _chunks(zip(*iterables, strict=False), chunksize),
            timeout=timeout,
        )
        return itertools.chain.from_iterable(chunks)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """
        Takes no more calls, and gives the processors back when all are done.

        Parameters
        ----------
        wait
            Return only when everything is done and given back.
        cancel_futures
            Cancel what has not started.
        """
        with self._lock:
            self._closing = True
            calls = list(self._calls.values()) + [call for call, _ in self._inbox]
        if cancel_futures:
            for call in calls:
                call.cancel()
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._wake.set)
        if wait:
            self._thread.join()
            self._remove_folder()

    # On the loop's thread from here on.

    def _serve(self, ready: "Future[None]") -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main(ready))
        except BaseException as error:
            if ready.done():
                self._break(error)
            else:
                ready.set_exception(error)
        finally:
            self._loop.close()

    async def _main(self, ready: "Future[None]") -> None:
        async with self._service as service:
            ready.set_result(None)
            while not (self._closing and not self._inbox and not self._calls):
                waker = asyncio.ensure_future(self._wake.wait())
                waited: set[asyncio.Future[Any]] = {waker, service.failed}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                waker.cancel()
                if service.failed.done():
                    raise service.failed.result()
                self._wake.clear()
                self._take_in()

    def _take_in(self) -> None:
        while self._inbox:
            with self._lock:
                call, task = self._inbox.popleft()
                if call.cancelled():
                    continue
                call.number = self._service.submit(task)
                self._calls[call.number] = call

    def _started(self, tasks: Sequence[int]) -> None:
        for task in tasks:
            call = self._calls.get(task)
            if call is not None and not call.running() and not call.set_running_or_notify_cancel():
                self._service.cancel(task)

    def _settle(self, outcome: Outcome, final: bool) -> None:
        if not final:
            return
        call = self._calls.pop(outcome.task, None)
        if call is not None:
            call.settle(outcome)
        if self._closing and not self._calls:
            self._wake.set()

    def _drop(self, call: "_Call") -> None:
        """A cancelled call leaves the queue. From any thread."""

        def drop() -> None:
            if call.number is not None and self._calls.pop(call.number, None) is not None:
                self._service.cancel(call.number)
            self._wake.set()

        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(drop)

    def _break(self, error: BaseException) -> None:
        with self._lock:
            self._broken = error
            calls = list(self._calls.values()) + [call for call, _ in self._inbox]
            self._calls.clear()
            self._inbox.clear()
        for call in calls:
            if call.running() or call.set_running_or_notify_cancel():
                call.set_exception(
                    error if isinstance(error, BudgetStop) else BrokenExecutor(str(error))
                )

    def _remove_folder(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class _Call(Future[Any]):
    """A future that takes its task along when it is cancelled."""

    def __init__(self, executor: Executor) -> None:
        super().__init__()
        self._executor = executor
        self.number: int | None = None

    def cancel(self) -> bool:
        """Cancels the call unless it has started."""
        already = self.cancelled()
        done = super().cancel()
        if done and not already:
            self._executor._drop(self)
        return done

    def settle(self, outcome: Outcome) -> None:
        """Takes the result, or the reason why there is none."""
        if not self.running() and not self.set_running_or_notify_cancel():
            return
        if outcome.status is Status.CANCELLED:
            self.set_exception(BudgetStop(outcome.reason))
        elif not outcome.value:
            self.set_exception(TaskFailed(f"{outcome.status}: {outcome.reason}"))
        else:
            try:
                value = pickle.loads(outcome.value)
            except Exception as error:  # the result's class cannot be rebuilt here
                self.set_exception(error)
                return
            if outcome.status is Status.SUCCEEDED:
                self.set_result(value)
            else:
                self.set_exception(value)


def _amount(budget: str | float | None) -> float | None:
    return None if budget is None else parse_amount(budget)[0]


def _run_chunk(fn: Callable[..., T], chunk: Sequence[tuple[Any, ...]]) -> list[T]:
    return [fn(*arguments) for arguments in chunk]


def _chunks(items: Iterable[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


_LIVE: "weakref.WeakSet[Executor]" = weakref.WeakSet()


@atexit.register
def _shut_down_all() -> None:
    """An executor nobody shut down finishes its calls, as the standard library's do."""
    for executor in list(_LIVE):
        executor.shutdown()
