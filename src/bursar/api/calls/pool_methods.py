"""The methods of ``multiprocessing.Pool``, on top of an executor's ``submit``."""

import concurrent.futures
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from bursar.api.call_encoding import chunks_of, run_chunk

T = TypeVar("T")


class AsyncResult(Generic[T]):
    """
    The result of calls that go on, as ``multiprocessing.pool.AsyncResult`` has it.

    Parameters
    ----------
    futures
        Calls, each of which gives a part of the result.
    joined
        Makes the result of the parts, once all are there.
    callback, error_callback
        Called in another thread with the result, or with the first exception; None: nobody is.
    """

    def __init__(
        self,
        futures: Sequence[Future[Any]],
        joined: Callable[[list[Any]], T],
        callback: Callable[[T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._joined = joined
        self._futures = futures
        self._callback, self._error_callback = callback, error_callback
        self._left = len(futures)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None
        if not futures:
            self._end()
        for future in futures:
            future.add_done_callback(self._count)

    def ready(self) -> bool:
        """Whether all calls have ended."""
        return self._ended.is_set()

    def successful(self) -> bool:
        """
        Whether no call raised an exception.

        Raises
        ------
        ValueError
            While some have not ended.
        """
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._error is None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all calls have ended, for ``timeout`` seconds at most."""
        self._ended.wait(timeout)

    def get(self, timeout: float | None = None) -> T:
        """
        Return the result, or raise the first exception of a call.

        Raises
        ------
        multiprocessing.TimeoutError
            When the calls have not ended after ``timeout`` seconds.
        """
        if not self._ended.wait(timeout):
            from multiprocessing import TimeoutError as PoolTimeoutError

            raise PoolTimeoutError
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _count(self, _: Future[Any]) -> None:
        with self._lock:
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._end()

    def _end(self) -> None:
        try:
            self._value = self._joined([future.result() for future in self._futures])
        except BaseException as error:  # whatever the call raised is the caller's to see
            self._error = error
        self._ended.set()
        if self._error is None and self._callback is not None:
            self._callback(self._value)  # type: ignore[arg-type]
        elif self._error is not None and self._error_callback is not None:
            self._error_callback(self._error)


class ResultIterator(Generic[T]):
    """Results of calls as they are asked for, with the ``next(timeout)`` of a pool's iterators."""

    def __init__(self, futures: Iterator[Future[Any]], *, is_chunked: bool) -> None:
        self._futures = futures
        self._is_chunked = is_chunked
        self._there: Iterator[T] = iter(())
        self._pending: Future[Any] | None = None

    def __iter__(self) -> "ResultIterator[T]":
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """
        Return the next result, or raise what its call raised.

        Raises
        ------
        multiprocessing.TimeoutError
            When it is not there after ``timeout`` seconds; the next call waits on.
        """
        for found in self._there:
            return found
        if self._pending is None:
            self._pending = next(self._futures)
        try:
            value = self._pending.result(timeout)
        except concurrent.futures.TimeoutError:
            if self._pending.done():  # raised by the call itself
                self._pending = None
                raise
            from multiprocessing import TimeoutError as PoolTimeoutError

            raise PoolTimeoutError from None
        except BaseException:
            self._pending = None
            raise
        self._pending = None
        if not self._is_chunked:
            return value  # type: ignore[no-any-return]
        self._there = iter(value)
        return self.next(timeout)


class PoolMethods(concurrent.futures.Executor):
    """
    Has the methods of ``multiprocessing.Pool``, so that programs written for one run.

    ``map`` is that of :class:`concurrent.futures.Executor`, which returns an iterator. A chunk of
    ``chunksize`` calls travels as one; None is 1, since calls cost little.
    """

    def apply(
        self,
        func: Callable[..., T],
        args: Sequence[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> T:
        """Make one call, and return its result."""
        return self.submit(func, *args, **(kwds or {})).result()

    def apply_async(
        self,
        func: Callable[..., T],
        args: Sequence[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[T]:
        """Make one call; ``callback`` is called with its result, or the other with its error."""
        future = self.submit(func, *args, **(kwds or {}))
        return AsyncResult([future], lambda parts: parts[0], callback, error_callback)

    def map_async(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[T]]:
        """Call a function for each item; the result is a list in their order."""
        items = ((item,) for item in iterable)
        return self.starmap_async(func, items, chunksize, callback, error_callback)

    def starmap(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[T]:
        """Call a function with each item's elements as its arguments; return a list in order."""
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[T]]:
        """Do as :meth:`starmap`, without waiting."""
        futures = self._in_chunks(func, iterable, chunksize or 1)

        def joined(parts: list[Any]) -> list[T]:
            return list(itertools.chain.from_iterable(parts)) if (chunksize or 1) > 1 else parts

        return AsyncResult(futures, joined, callback, error_callback)

    def imap(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> ResultIterator[T]:
        """Call a function for each item; give the results in their order as they are there."""
        futures = self._in_chunks(func, ((item,) for item in iterable), chunksize)
        return ResultIterator(iter(futures), is_chunked=chunksize > 1)

    def imap_unordered(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int = 1
    ) -> ResultIterator[T]:
        """Call a function for each item; give the results as the calls end."""
        futures = self._in_chunks(func, ((item,) for item in iterable), chunksize)
        ended = concurrent.futures.as_completed(futures)
        return ResultIterator(ended, is_chunked=chunksize > 1)

    def close(self) -> None:
        """Accept no more calls; those that are there go on."""
        self.shutdown(wait=False)

    def join(self) -> None:
        """Wait until all calls have ended, after :meth:`close` or :meth:`terminate`."""
        self.shutdown(wait=True)

    def _in_chunks(
        self, func: Callable[..., Any], arguments: Iterable[Iterable[Any]], chunksize: int
    ) -> list[Future[Any]]:
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize}")
        if chunksize == 1:
            return [self.submit(func, *one) for one in arguments]
        chunks = chunks_of((tuple(one) for one in arguments), chunksize)
        return [self.submit(run_chunk, func, chunk) for chunk in chunks]


def buffered_map(
    submit: Callable[..., Future[T]],
    fn: Callable[..., T],
    arguments: Iterator[tuple[Any, ...]],
    size: int,
    timeout: float | None,
) -> Iterator[T]:
    """
    Return the results of calls in order, of which at most ``size`` run or have not been taken.

    Arguments are taken as calls are submitted. Closing the iterator cancels what has not begun.
    """
    end = None if timeout is None else time.monotonic() + timeout
    calls = [submit(fn, *one) for one in itertools.islice(arguments, size)]

    def results() -> Iterator[T]:
        try:
            while calls:
                call = calls.pop(0)
                try:
                    left = None if end is None else end - time.monotonic()
                    value = call.result(left)
                except concurrent.futures.TimeoutError:
                    call.cancel()
                    raise
                # Not before its result is there: the buffer counts calls, running or not taken.
                for one in itertools.islice(arguments, 1):
                    calls.append(submit(fn, *one))
                yield value
        finally:
            for call in calls:
                call.cancel()

    return results()
