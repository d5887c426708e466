"""``bursar.Executor`` in the place of ``multiprocessing.Pool``, and ``map`` with a buffer."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.pool import Pool
from typing import Any

import pytest

from bursar.api.executor import Executor


@pytest.fixture(scope="module")
def ours() -> Iterator[Executor]:
    """An executor for all tests, whose calls leave no trace."""
    with Executor(2, history="none") as executor:
        yield executor


@pytest.fixture(scope="module")
def theirs() -> Iterator[Pool]:
    """The standard library's pool, which says what is right."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        yield pool


def add(a: int, b: int = 0) -> int:
    """Return a sum; refuse thirteen."""
    if a == 13:
        raise ValueError("unlucky")
    return a + b


CALLS: list[tuple[str, Callable[[Any], Any]]] = [
    ("apply", lambda pool: pool.apply(add, (1,), {"b": 2})),
    ("apply fails", lambda pool: pool.apply(add, (13,))),
    ("apply_async", lambda pool: pool.apply_async(add, (1, 2)).get(30)),
    ("apply_async fails", lambda pool: pool.apply_async(add, (13,)).get(30)),
    ("map_async", lambda pool: pool.map_async(add, range(5)).get(30)),
    ("map_async, chunks", lambda pool: pool.map_async(add, range(5), 2).get(30)),
    ("map_async of nothing", lambda pool: pool.map_async(add, []).get(30)),
    ("map_async fails", lambda pool: pool.map_async(add, range(20), 3).get(30)),
    ("map", lambda pool: list(pool.map(add, range(7)))),
    ("starmap", lambda pool: pool.starmap(add, [(1, 2), (3, 4), (5, 6)])),
    ("starmap, chunks", lambda pool: pool.starmap(add, zip(range(9), range(9), strict=True), 4)),
    ("starmap of lists", lambda pool: pool.starmap(add, [[1, 2], [3]])),
    ("starmap fails", lambda pool: pool.starmap(add, [(1,), (13,)])),
    ("starmap_async", lambda pool: pool.starmap_async(add, [(1, 2)], chunksize=2).get(30)),
    ("imap", lambda pool: list(pool.imap(add, range(5)))),
    ("imap, chunks", lambda pool: list(pool.imap(add, range(7), chunksize=3))),
    ("imap fails", lambda pool: list(pool.imap(add, range(20)))),
    ("imap_unordered", lambda pool: sorted(pool.imap_unordered(add, range(9)))),
    ("imap_unordered, chunks", lambda pool: sorted(pool.imap_unordered(add, range(9), 2))),
    ("imap, chunk of nothing", lambda pool: pool.imap(add, [1], chunksize=0)),
    ("not ready", lambda pool: pool.apply_async(time.sleep, (1,)).successful()),
    ("successful", lambda pool: _ended(pool.apply_async(add, (1,))).successful()),
    ("not successful", lambda pool: _ended(pool.apply_async(add, (13,))).successful()),
    ("get in time", lambda pool: pool.apply_async(time.sleep, (1,)).get(0.01)),
    ("next in time", lambda pool: pool.imap(time.sleep, [1]).next(0.01)),
    ("next after all", lambda pool: _exhausted(pool.imap(add, [1]))),
]


def _ended(result: Any) -> Any:
    result.wait(30)
    assert result.ready()
    return result


def _exhausted(results: Any) -> Any:
    assert results.next(30) == 1
    return next(results, "nothing")


def _outcome(call: Callable[[Any], Any], pool: Any) -> Any:
    try:
        return call(pool)
    except Exception as error:
        return type(error), (str(error) if isinstance(error, ValueError) else "")


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in CALLS])
def test_each_method_does_as_that_of_a_pool(
    ours: Executor, theirs: Pool, call: Callable[[Any], Any]
) -> None:
    """
    The same values and the same exceptions; texts of errors of the pool's own objects may differ.
    """
    wanted, found = _outcome(call, theirs), _outcome(call, ours)
    if isinstance(wanted, tuple) and "not ready" in str(wanted[1]):
        wanted, found = wanted[0], found[0]

    assert found == wanted


def test_callbacks_hear_of_the_end_once(ours: Executor) -> None:
    """
    One with the whole result, or the other with the first exception.
    """
    heard: list[Any] = []
    done = threading.Semaphore(0)

    def hear(value: Any) -> None:
        heard.append(value)
        done.release()

    ours.map_async(add, [1, 2, 3], callback=hear, error_callback=hear)
    assert done.acquire(timeout=30)
    ours.starmap_async(add, [(13,)], callback=heard.append, error_callback=hear)
    assert done.acquire(timeout=30)
    ours.map_async(add, [], callback=hear)
    assert done.acquire(timeout=30)

    assert heard[0] == [1, 2, 3]
    assert isinstance(heard[1], ValueError)
    assert heard[2] == []


def test_an_iterator_goes_on_after_a_timeout_and_an_exception(ours: Executor) -> None:
    """
    The result that came too late is the next one, and a call that fails ends nothing.
    """
    results = ours.imap(time.sleep, [0.3])
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=0.01)
    assert results.next(timeout=30) is None

    results = ours.imap(add, [12, 13, 14])
    assert next(results) == 12
    with pytest.raises(ValueError, match="unlucky"):
        next(results)
    assert list(results) == [14]


def test_closed_and_joined_or_terminated() -> None:
    """
    What a pool's program does at its end: calls are done after join, and ended by terminate.
    """
    executor = Executor(2, history="none")
    slow = executor.apply_async(add, (1, 2))
    executor.close()
    executor.join()
    assert slow.get(0) == 3
    with pytest.raises(RuntimeError):
        executor.apply(add, (1,))

    executor = Executor(1, history="none")
    began = time.monotonic()
    endless = executor.apply_async(time.sleep, (600,))
    executor.terminate()
    executor.join()
    assert endless.ready()
    assert not endless.successful()
    assert time.monotonic() - began < 300


@pytest.mark.parametrize(("chunksize", "most"), [(1, 4), (3, 4 * 3)])
def test_a_buffer_reads_arguments_as_results_are_taken(
    ours: Executor, chunksize: int, most: int
) -> None:
    """
    Never more than the buffer beyond what was taken, also of endless arguments; in order.
    """
    read = 0

    def endless() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    results = ours.map(abs, endless(), chunksize=chunksize, buffersize=4)
    for taken in range(1, 30):
        assert next(results) == taken
        # The chunk that was taken apart counts as taken.
        assert read <= taken + most + chunksize
    results.close()  # type: ignore[attr-defined]


def test_a_buffer_ends_with_the_arguments_and_with_an_exception(ours: Executor) -> None:
    """
    As map without one: shortest iterable, timeouts and errors.
    """
    assert list(ours.map(add, range(9), range(5), buffersize=2)) == [0, 2, 4, 6, 8]
    results = ours.map(add, range(12, 99), buffersize=3)
    assert next(results) == 12
    with pytest.raises(ValueError, match="unlucky"):
        next(results)
    with pytest.raises(TimeoutError):
        next(ours.map(time.sleep, [1], timeout=0.01, buffersize=1))


@pytest.mark.parametrize(
    ("size", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError)]
)
def test_a_buffer_out_of_range_is_refused(
    ours: Executor, size: Any, error: type[Exception]
) -> None:
    """
    By the exceptions of Python 3.14.
    """
    with pytest.raises(error, match="buffersize must be"):
        ours.map(add, [1], buffersize=size)
