"""``bursar.Executor`` beside ``concurrent.futures``: the same promises, and a few more."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Future,
    as_completed,
    wait,
)
from pathlib import Path
from typing import Any

import pytest

import bursar
from bursar.api.executor import Executor, TaskFailed
from bursar.dispatch.journal import read_journal
from bursar.market.ledger import Ledger
from bursar.model.site import SiteFacts
from bursar.model.task import Status
from bursar.sites.local import this_machine
from bursar.worker.raised import RemoteError, RemoteTraceback

PATIENCE = 30.0
"""Seconds after which a wait has failed; none takes nearly as long."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Executor]:
    """An executor for calls that leave no trace; every test proves the last one left none."""
    with Executor(2) as executor:
        yield executor


@pytest.fixture
def single() -> Iterator[Executor]:
    """An executor with one processor, so that calls wait for one another."""
    with Executor(1) as executor:
        yield executor


class Gate:
    """Holds calls back until it is opened; it is a file, so it works across processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def call(self) -> Callable[[], str]:
        """A function that says it began, and returns once the gate is open."""
        began, opened = str(self.path) + ".began", str(self.path)

        def held() -> str:
            import os
            import time

            open(began, "w").close()
            while not os.path.exists(opened):
                time.sleep(0.005)
            return "through"

        return held

    def wait_begun(self) -> None:
        """Returns when the call has begun."""
        wait_for(lambda: os.path.exists(str(self.path) + ".began"))

    def open(self) -> None:
        """Lets the call return."""
        self.path.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """One that is open at the latest when the test is over."""
    made = Gate(tmp_path / "gate")
    yield made
    made.open()


def wait_for(truth: Callable[[], object]) -> None:
    """Returns when it is true; fails when that takes too long."""
    end = time.monotonic() + PATIENCE
    while not truth():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


def fill(executor: Executor, gate: Gate, *, waiting: int) -> tuple[Future[Any], list[Future[Any]]]:
    """A call that runs until the gate opens, and some behind it that cannot have begun."""
    running = executor.submit(gate.call())
    gate.wait_begun()
    # As it comes out: the last ones are beyond what a worker takes in advance.
    return running, [executor.submit(int, n) for n in range(waiting)]


def run_script(
    text: str, tmp_path: Path, *arguments: str, **how: Any
) -> subprocess.CompletedProcess[str]:
    """The output of a program of its own."""
    script = tmp_path / "script.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, "-W", "error", str(script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        **how,
    )


def is_gone(pid: int) -> bool:
    """Whether the process has ended, be it reaped or not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


# Exceptions and values.


class NeedsArguments(Exception):
    """As many are written; it pickles, and cannot be unpickled."""

    def __init__(self, code: int, place: str) -> None:
        super().__init__(f"code {code} at {place}")


class HoldsALock(Exception):
    """It cannot even be pickled."""

    def __init__(self) -> None:
        super().__init__("held")
        self.lock = threading.Lock()


class WorksAlone:
    """A value that pickles, and refuses to be unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_refuse, ())


def _refuse() -> None:
    raise ArithmeticError("not here")


def _raiser(error: Callable[[], BaseException]) -> Callable[[], None]:
    def fail() -> None:
        raise error()

    return fail


def test_results_come_back(shared: Executor) -> None:
    """
    Positional and keyword arguments, None, and functions of the standard library.
    """
    assert shared.submit(pow, 2, 100).result(PATIENCE) == 2**100
    assert shared.submit(int, "ff", base=16).result(PATIENCE) == 255
    assert shared.submit(lambda: None).result(PATIENCE) is None
    assert shared.submit(dict, fn=1, self=2).result(PATIENCE) == {"fn": 1, "self": 2}


@pytest.mark.parametrize(
    "error",
    [
        lambda: ValueError("no", 3),
        lambda: KeyError("key"),
        lambda: SystemExit(3),
        lambda: KeyboardInterrupt(),
        lambda: StopIteration(7),
        lambda: GeneratorExit(),
        lambda: asyncio.CancelledError(),
        lambda: OSError(2, "gone", "file"),
        lambda: BaseExceptionGroup("many", [ValueError(1), SystemExit(2)]),
        lambda: MemoryError(),
    ],
)
def test_an_exception_of_any_kind_is_raised_by_its_future(
    shared: Executor, error: Callable[[], BaseException]
) -> None:
    """
    Broken, one that is no ``Exception`` would end the worker, the loop, or nobody's wait.
    """
    expected = error()

    found = shared.submit(_raiser(error)).exception(PATIENCE)

    assert type(found) is type(expected)
    assert repr(found) == repr(expected)
    assert shared.submit(int, 1).result(PATIENCE) == 1


def test_an_exception_shows_where_it_was_raised(shared: Executor) -> None:
    """
    As ProcessPoolExecutor: the remote traceback is the cause, and is printed.
    """

    def outer() -> None:
        def inner() -> None:
            raise LookupError("deep down")

        try:
            inner()
        except LookupError as error:
            raise ValueError("on top") from error

    with pytest.raises(ValueError, match="on top") as caught:
        shared.submit(outer).result(PATIENCE)

    assert isinstance(caught.value.__cause__, RemoteTraceback)
    text = "".join(traceback.format_exception(caught.value))
    assert "in inner" in text
    assert "deep down" in text
    assert "callee.py" not in text, "our own frames are of no use to anybody"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (lambda: NeedsArguments(3, "here"), "NeedsArguments: code 3 at here"),
        (HoldsALock, "HoldsALock: held"),
    ],
)
def test_an_exception_that_cannot_travel_has_a_stand_in(
    shared: Executor, error: Callable[[], BaseException], line: str
) -> None:
    """
    What it said is not lost; ProcessPoolExecutor breaks the whole pool on the first.
    """
    found = shared.submit(_raiser(error)).exception(PATIENCE)

    assert isinstance(found, RemoteError)
    assert str(found).endswith(line)
    assert "in fail" in str(found.__cause__)
    assert shared.submit(int, 1).result(PATIENCE) == 1


def test_what_cannot_be_pickled_fails_its_own_future_only(shared: Executor) -> None:
    """
    A result, an argument, and a value that breaks when unpickled, each of its own kind.
    """
    result = shared.submit(threading.Lock)
    argument = shared.submit(id, threading.Lock())
    arrival = shared.submit(WorksAlone)
    departure = shared.submit(id, WorksAlone())

    assert isinstance(result.exception(PATIENCE), TypeError)
    assert isinstance(argument.exception(PATIENCE), TypeError)
    assert isinstance(arrival.exception(PATIENCE), ArithmeticError)
    assert isinstance(departure.exception(PATIENCE), ArithmeticError)
    assert shared.submit(int, 1).result(PATIENCE) == 1


def test_large_arguments_and_results_travel(shared: Executor) -> None:
    """
    20 MB each way, whole.
    """
    data = os.urandom(1 << 20) * 20

    assert shared.submit(lambda b: b[::-1], data).result(PATIENCE) == data[::-1]


def test_lambdas_closures_and_recursion_travel(shared: Executor) -> None:
    """
    Functions are pickled by value where need be.
    """
    factor = 3

    def factorial(n: int) -> int:
        return 1 if n < 2 else n * factorial(n - 1)

    assert shared.submit(lambda x: x * factor, 5).result(PATIENCE) == 15
    assert shared.submit(factorial, 20).result(PATIENCE) == 2432902008176640000


def test_thousands_of_tiny_calls(shared: Executor) -> None:
    """
    Each answer goes to the future that asked.
    """
    futures = {shared.submit(lambda x: x + 1, n): n for n in range(2000)}

    for future in as_completed(futures, timeout=PATIENCE):
        assert future.result() == futures[future] + 1


# Waiting and cancelling.


def test_wait_and_as_completed_see_every_end(single: Executor, gate: Gate, tmp_path: Path) -> None:
    """
    Also the cancelled ones: broken, waiting for one of these never ends.
    """
    running, waiting = fill(single, gate, waiting=8)
    cancelled = [future for future in waiting if future.cancel()]
    failing = single.submit(_raiser(lambda: ValueError("x")))

    assert cancelled
    done, _ = wait(cancelled, PATIENCE, FIRST_COMPLETED)
    assert done
    assert wait(cancelled, PATIENCE, ALL_COMPLETED).not_done == set()
    assert set(as_completed(cancelled, PATIENCE)) == set(cancelled)
    assert not running.done()
    gate.open()
    assert failing in wait([failing, running], PATIENCE, FIRST_EXCEPTION).done
    everything = [running, failing, *waiting]
    assert set(as_completed(everything, PATIENCE)) == set(everything)


def test_cancel_works_until_the_call_starts(single: Executor, gate: Gate) -> None:
    """
    A running or finished one refuses; a cancelled one raises, and never runs.
    """
    running, waiting = fill(single, gate, waiting=8)
    mark = str(gate.path) + ".mark"
    last = single.submit(lambda: open(mark, "w").close())

    assert running.running()
    assert not running.cancel()
    assert last.cancel()
    assert last.cancel(), "cancelling twice is as cancelling once"
    assert last.cancelled()
    with pytest.raises(CancelledError):
        last.result(PATIENCE)
    gate.open()
    assert running.result(PATIENCE) == "through"
    assert [future.result(PATIENCE) for future in waiting] == list(range(8))
    assert not running.cancel()
    assert single.submit(int, 5).result(PATIENCE) == 5
    assert not os.path.exists(mark)


def test_callbacks_are_called_once_with_their_future(single: Executor, gate: Gate) -> None:
    """
    On success, failure and cancellation, and at once when it is over already.
    """
    told: list[Future[Any]] = []
    running, waiting = fill(single, gate, waiting=8)
    failing = single.submit(_raiser(lambda: ValueError("x")))
    last = waiting[-1]
    for future in (running, failing, last):
        future.add_done_callback(told.append)

    assert last.cancel()
    gate.open()
    wait([running, failing, last], PATIENCE)
    wait_for(lambda: len(told) == 3)
    running.add_done_callback(told.append)

    assert sorted(map(id, told)) == sorted(map(id, [running, failing, last, running]))


def test_a_callback_may_submit(shared: Executor) -> None:
    """
    It runs on the executor's own thread, which must not wait for itself.
    """
    following: Future[Future[int]] = Future()

    def go_on(future: Future[int]) -> None:
        following.set_result(shared.submit(int, future.result() + 1))

    shared.submit(int, 1).add_done_callback(go_on)

    assert following.result(PATIENCE).result(PATIENCE) == 2


def test_a_callback_that_raises_harms_nobody(
    shared: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    """
    It is logged, as everywhere in concurrent.futures.
    """
    future = shared.submit(int, 1)
    future.add_done_callback(lambda _: [][1])

    assert future.result(PATIENCE) == 1
    assert shared.submit(int, 2).result(PATIENCE) == 2
    wait_for(lambda: "exception calling callback" in caplog.text)


def test_a_timeout_leaves_the_call_running(single: Executor, gate: Gate) -> None:
    """
    ``result`` gives up waiting, not the call.
    """
    running, _ = fill(single, gate, waiting=0)

    with pytest.raises(TimeoutError):
        running.result(0.01)
    gate.open()
    assert running.result(PATIENCE) == "through"


def test_futures_can_be_awaited(shared: Executor) -> None:
    """
    By ``asyncio.wrap_future``, and as a loop's executor.
    """

    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        wrapped = asyncio.wrap_future(shared.submit(pow, 2, 5))
        return await wrapped, await loop.run_in_executor(shared, pow, 3, 3)

    assert asyncio.run(main()) == (32, 27)


# Map.


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_keeps_order_and_stops_at_the_shortest(shared: Executor, chunksize: int) -> None:
    """
    As the built-in one, whatever the chunk size.
    """
    found = shared.map(pow, range(10), [2] * 7, chunksize=chunksize)

    assert list(found) == [n**2 for n in range(7)]
    assert list(shared.map(abs, [], chunksize=chunksize)) == []


@pytest.mark.parametrize("chunksize", [1, 2])
def test_map_raises_where_the_call_raised(shared: Executor, chunksize: int) -> None:
    """
    What comes before is delivered first.
    """
    found = shared.map(lambda x: 6 // x, [3, 2, 0, 1], chunksize=chunksize)

    assert [next(found), next(found)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_map_refuses_a_chunk_of_nothing(shared: Executor) -> None:
    """
    At once, as the standard library.
    """
    with pytest.raises(ValueError, match="chunksize"):
        shared.map(abs, [1], chunksize=0)


@pytest.mark.parametrize("chunksize", [1, 2])
def test_map_times_out(single: Executor, gate: Gate, chunksize: int) -> None:
    """
    The time counts from the call of map.
    """
    found = single.map(lambda f: f(), [gate.call()], timeout=0.05, chunksize=chunksize)

    with pytest.raises(TimeoutError):
        next(found)


@pytest.mark.parametrize("chunksize", [1, 2])
def test_an_abandoned_map_cancels_what_has_not_begun(
    single: Executor, gate: Gate, tmp_path: Path, chunksize: int
) -> None:
    """
    Otherwise nobody's results go on costing money.
    """
    marks = [str(tmp_path / f"mark{n}") for n in range(20)]
    quick = [lambda: "quick"] * chunksize
    calls = [*quick, gate.call(), *(lambda m=m: open(m, "w").close() for m in marks)]
    found = single.map(lambda call: call(), calls, chunksize=chunksize)

    assert next(found) == "quick"
    gate.wait_begun()
    del found
    gate.open()

    assert single.submit(int, 1).result(PATIENCE) == 1
    # The first ones may have been with the worker already.
    assert not os.path.exists(marks[-1])


# Ending.


def test_leaving_the_block_waits(tmp_path: Path) -> None:
    """
    For what runs and what waits.
    """
    with Executor(1) as executor:
        futures = [executor.submit(time.sleep, 0.01) for _ in range(5)]

    assert all(future.done() for future in futures)


def test_nothing_is_taken_after_shutdown() -> None:
    """
    A RuntimeError, as the standard library has it; shutting down twice is no error.
    """
    executor = Executor(1)
    executor.shutdown(wait=False)
    executor.shutdown()
    executor.shutdown(cancel_futures=True)

    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(int)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.map(int, [1])


def test_shutdown_need_not_wait(gate: Gate) -> None:
    """
    It returns at once, and what was submitted is still done.
    """
    executor = Executor(1)
    running, waiting = fill(executor, gate, waiting=3)
    executor.shutdown(wait=False)

    assert not running.done()
    gate.open()
    assert [future.result(PATIENCE) for future in waiting] == [0, 1, 2]
    executor.shutdown()


def test_shutdown_cancels_what_waits(gate: Gate) -> None:
    """
    What runs is finished.
    """
    executor = Executor(1)
    running, waiting = fill(executor, gate, waiting=8)
    executor.shutdown(wait=False, cancel_futures=True)

    assert waiting[-1].cancelled()
    gate.open()
    executor.shutdown()
    assert running.result(0) == "through"
    assert all(future.done() for future in waiting)


def test_an_executor_nobody_refers_to_gives_its_workers_back() -> None:
    """
    Otherwise a forgotten one costs money until the program ends; its calls are still done.
    """
    executor = Executor(1)
    future = executor.submit(os.getppid)
    worker = future.result(PATIENCE)
    last = executor.submit(int, 3)
    del executor
    gc.collect()

    assert last.result(PATIENCE) == 3
    wait_for(lambda: is_gone(worker))


def test_a_program_that_forgets_to_shut_down_ends_with_its_calls_done(tmp_path: Path) -> None:
    """
    Without a main guard, with functions of ``__main__``, and nothing left behind.
    """
    done = run_script(
        """
import os, sys, time
import bursar

def slow(path):
    time.sleep(0.3)
    open(path, "w").close()

executor = bursar.Executor(1)
print(executor.submit(os.getppid).result())
executor.submit(slow, sys.argv[1])
executor.submit(slow, sys.argv[1] + ".second")
""",
        tmp_path,
        str(tmp_path / "mark"),
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "mark").exists()
    assert (tmp_path / "mark.second").exists()
    assert is_gone(int(done.stdout))
    assert list(tmp_path.glob("bursar-*")) == []


def test_modules_are_found_where_the_caller_finds_them(tmp_path: Path) -> None:
    """
    Those of the working directory under ``python -c``, and before others of the same name.
    """
    (tmp_path / "colorsys.py").write_text("def hue(): return 'mine'\n")

    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import bursar, colorsys\n"
            "with bursar.Executor(1) as e: print(e.submit(colorsys.hue).result())",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )

    assert (done.stdout, done.stderr) == ("mine\n", "")


def test_a_forked_process_neither_uses_nor_harms_the_executor(shared: Executor) -> None:
    """
    Its end must not remove the folder, nor its calls wait for a thread it has not.
    """
    assert shared.submit(int, 1).result(PATIENCE) == 1
    child = os.fork()
    if child == 0:
        status = 1
        try:
            shared.submit(int)
        except RuntimeError:
            shared.shutdown()
            status = 0
        finally:
            os._exit(status)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert shared.submit(int, 2).result(PATIENCE) == 2


def test_many_threads_may_submit(shared: Executor) -> None:
    """
    Every answer goes to whom it belongs.
    """
    found: dict[int, list[int]] = {}

    def use(number: int) -> None:
        found[number] = [shared.submit(int, number * 100 + n).result(PATIENCE) for n in range(20)]

    threads = [threading.Thread(target=use, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {n: [n * 100 + k for k in range(20)] for n in range(6)}


# What calls do to their process.


def test_a_call_that_prints_or_closes_its_streams_goes_well(shared: Executor) -> None:
    """
    Nothing of it gets into the answer.
    """

    def talk() -> int:
        print("x" * 100_000)
        sys.stderr.write("y")
        sys.stdout.close()
        return 5

    assert shared.submit(talk).result(PATIENCE) == 5
    assert shared.submit(int, 6).result(PATIENCE) == 6


def test_a_call_has_nothing_to_read(shared: Executor) -> None:
    """
    ``input`` ends; broken, it waits for ever.
    """
    assert isinstance(shared.submit(input).exception(PATIENCE), EOFError)


@pytest.mark.parametrize(
    ("kill", "how"),
    [
        (lambda: os._exit(9), "status 9"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
    ],
)
def test_a_call_that_kills_its_process_fails_alone(
    shared: Executor, kill: Callable[[], None], how: str
) -> None:
    """
    ProcessPoolExecutor is broken from then on; ours goes on, and says how it ended.
    """

    def die() -> None:
        os.write(2, b"last words")
        kill()

    failed = shared.submit(die).exception(PATIENCE)

    assert isinstance(failed, TaskFailed)
    assert how in str(failed)
    assert failed.__notes__ == ["last words"]
    assert list(shared.map(abs, [-1, -2, -3])) == [1, 2, 3]


def test_a_call_past_its_wall_limit_is_killed() -> None:
    """
    Even one that ignores all that can be ignored; the executor goes on.
    """
    with Executor(1, wall_limit=2.0) as executor:
        failed = executor.submit(time.sleep, 600).exception(PATIENCE)
        assert isinstance(failed, TaskFailed)
        assert "wall-time limit of 2 s" in str(failed)
        assert executor.submit(int, 1).result(PATIENCE) == 1


def test_a_worker_that_is_killed_fails_what_it_ran(gate: Gate) -> None:
    """
    Once, without a second try nobody asked for; another worker takes its place.
    """
    with Executor(1) as executor:
        worker = executor.submit(os.getppid).result(PATIENCE)
        running, _ = fill(executor, gate, waiting=0)
        os.kill(worker, signal.SIGKILL)

        failed = running.exception(PATIENCE)
        assert isinstance(failed, TaskFailed)
        assert "lost" in str(failed)
        assert executor.submit(os.getppid).result(PATIENCE) != worker


def test_retries_are_for_deaths_not_for_exceptions(tmp_path: Path) -> None:
    """
    A call whose process died runs again; one that raised has given its answer.
    """

    def count(path: str) -> int:
        with open(path, "a") as file:
            file.write("x")
        return os.path.getsize(path)

    def die_once(path: str) -> int:
        tries = count(path)
        if tries == 1:
            os._exit(1)
        return tries

    def fail(path: str) -> None:
        raise ValueError(count(path))

    with Executor(1, retries=3) as executor:
        died = executor.submit(die_once, str(tmp_path / "a"))
        raised = executor.submit(fail, str(tmp_path / "b"))
        assert repr(raised.exception(PATIENCE)) == "ValueError(1)"
        assert died.result(PATIENCE) == 2

    assert (tmp_path / "b").read_text() == "x"


def test_what_a_call_started_ends_with_the_executor() -> None:
    """
    Subprocesses, those that left the group too, and threads that would run for ever.
    """

    def start() -> list[int]:
        threading.Thread(target=time.sleep, args=(600,)).start()
        programs = [
            subprocess.Popen(["sleep", "600"], start_new_session=new) for new in (False, True)
        ]
        found = [program.pid for program in programs]
        for program in programs:
            program.returncode = 0  # nobody is to warn that they still run
        return found

    with Executor(1) as executor:
        pids = executor.submit(start).result(PATIENCE)
        assert executor.submit(int, 1).result(PATIENCE) == 1

    assert [is_gone(pid) for pid in pids] == [True, True]


def test_a_call_may_use_multiprocessing(shared: Executor) -> None:
    """
    Forked processes inherit the call's; they must not answer in its place.
    """

    def square_all() -> list[int]:
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(2) as pool:
            return pool.map(abs, [-1, -2, -3])

    assert shared.submit(square_all).result(PATIENCE) == [1, 2, 3]
    assert shared.submit(int, 1).result(PATIENCE) == 1


def test_calls_do_not_see_each_others_environment(single: Executor) -> None:
    """
    What a call sets in ``os.environ`` or by ``chdir`` ends with it.
    """

    def leave_traces() -> None:
        os.environ["BURSAR_TRACE"] = "1"
        os.chdir("/")

    single.submit(leave_traces).result(PATIENCE)

    assert single.submit(os.environ.get, "BURSAR_TRACE").result(PATIENCE) is None
    assert single.submit(os.getcwd).result(PATIENCE) != "/"


def _variables() -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that Python knows here, and those that a program gets."""
    known = dict(os.environ)
    told = subprocess.run(["env", "-0"], capture_output=True, check=True).stdout.decode()
    got = dict(line.split("=", 1) for line in told.split("\0") if line)
    for found in (known, got):
        del found["BURSAR_TASK"]  # the only one that is each call's own
    return known, got


def _remove_variables() -> None:
    os.environ.clear()


def _replace_variables() -> None:
    os.environ = {"PATH": "/nowhere", "HOME": "/nowhere"}  # type: ignore[assignment]  # noqa: B003


def _set_below_python() -> None:
    for name in os.environ:
        os.putenv(name, "changed")


@pytest.mark.parametrize("spoil", [_remove_variables, _replace_variables, _set_below_python])
def test_a_call_gets_its_variables_whatever_the_one_before_did(
    single: Executor, spoil: Callable[[], None]
) -> None:
    """The variables are set anew for each call, for Python and for the programs of the call."""
    before = single.submit(_variables).result(PATIENCE)
    pid = single.submit(os.getpid).result(PATIENCE)

    single.submit(spoil).result(PATIENCE)

    assert single.submit(_variables).result(PATIENCE) == before
    assert before[0] == before[1]
    assert before[0]["HOME"] == os.environ["HOME"]
    assert single.submit(os.getpid).result(PATIENCE) == pid


@pytest.mark.parametrize("size", [0, 64_000, 65_536, 66_000, 250_000, 5_000_000])
def test_arguments_and_values_of_any_size_come_through(single: Executor, size: int) -> None:
    """Small ones travel in one piece with all that a call needs, large ones in several."""
    data = os.urandom(size)

    for _ in range(2):
        assert single.submit(bytes.__add__, data, b"end").result(PATIENCE) == data + b"end"


# Money and its records.


def test_a_budget_stops_the_calls_it_does_not_cover(tmp_path: Path) -> None:
    """
    BudgetStop for what waits and for what comes later; and the ledger balances.
    """
    folder = tmp_path / "kept"
    costly = SiteFacts(
        name="costly",
        kind="local",
        processors=1,
        speed=1.0,
        unit_price=1.0,
        fixed_price=0.0,
        currency="SU",
    )
    with Executor(sites=costly, budget="2 SU", wall_limit=30, folder=folder) as executor:
        futures = [executor.submit(time.sleep, 60) for _ in range(4)]
        for future in futures:
            with pytest.raises((bursar.BudgetStop, TaskFailed)):
                future.result(PATIENCE)
        assert isinstance(futures[-1].exception(0), bursar.BudgetStop)
        with pytest.raises(bursar.BudgetStop):
            executor.submit(int)

    ledger = Ledger(read_journal(folder / "journal.sqlite").transfers)
    assert sum(ledger.balances.values()) == 0
    assert ledger.held == 0
    assert ledger.spent <= 2_000_000


def test_a_budget_that_does_not_pay_the_begin_is_said_at_once() -> None:
    """
    By the constructor: there is no executor then.
    """
    facts = SiteFacts(
        name="dear",
        kind="local",
        processors=1,
        speed=1.0,
        unit_price=1.0,
        fixed_price=10.0,
        currency="SU",
    )

    with pytest.raises(bursar.BudgetStop):
        Executor(sites=facts, budget=5)


def test_the_folder_keeps_journal_and_bill(tmp_path: Path) -> None:
    """
    The bill names the calls, and adds up to what the ledger paid.
    """
    folder = tmp_path / "kept"
    with Executor(1, folder=folder) as executor:
        assert list(executor.map(abs, [-1, -2])) == [1, 2]
        assert executor.submit(_raiser(lambda: ValueError("x"))).exception(PATIENCE)

    journal = read_journal(folder / "journal.sqlite")
    bill = json.loads((folder / "bill.json").read_text())
    statuses = [record.outcome.status for record in journal.records]
    assert statuses == [Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED]
    assert [item["name"] for item in bill["tasks"]][:2] == ["abs", "abs"]
    assert bill["total_micros"] == Ledger(journal.transfers).spent > 0
    assert bill["held_micros"] == 0
    with pytest.raises(bursar.InputError, match="journal of earlier calls"):
        Executor(1, folder=folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"processors": 0}, "processors must be between 1 and"),
        ({"processors": 10**6}, "processors must be between 1 and"),
        ({"budget": -1}, "negative"),
        ({"budget": "much"}, "expected an amount"),
        ({"budget": "5 EUR"}, "the budget is in EUR, the sites ask SU"),
        ({"wall_limit": 0}, "wall_limit: must be positive"),
        ({"retries": -1}, "retries: must not be negative"),
        ({"sites": []}, "no site is given"),
        ({"sites": "no-such.toml"}, "no such file"),
    ],
)
def test_arguments_out_of_range_are_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As input errors, before anything is started, leased or left on disk.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with pytest.raises(bursar.InputError, match=message):
        Executor(**arguments)

    assert list(tmp_path.iterdir()) == []


def test_this_machine_carries_out_as_many_calls_at_a_time_as_are_stated() -> None:
    """
    Also more than it has processors, as the standard library's executors do; a site that is given
    has what it says.
    """
    more = len(os.sched_getaffinity(0)) + 3

    def meet(folder: str, name: int) -> int:
        Path(folder, str(name)).touch()
        while len(os.listdir(folder)) < more:
            time.sleep(0.01)
        return name

    with tempfile.TemporaryDirectory() as folder, Executor(more) as executor:
        calls = [executor.submit(meet, folder, name) for name in range(more)]
        assert [call.result(PATIENCE) for call in calls] == list(range(more))

    # Another executor has work for all that the machine has; calls that wait go on all the same.
    with tempfile.TemporaryDirectory() as folder, Executor() as other:
        busy = [other.submit(meet, folder, -n) for n in range(1, more)]
        with Executor(more) as executor:
            calls = [executor.submit(meet, folder, name) for name in range(more)]
            assert [call.result(PATIENCE) for call in calls] == list(range(more))
        assert len([call.result(PATIENCE) for call in busy]) == more - 1

    with pytest.raises(bursar.InputError, match="processors must be between 1 and"):
        Executor(more, sites=this_machine())


def test_sites_that_cannot_be_used_together_are_refused() -> None:
    """
    Two currencies cannot be added up, and a batch system's site is not this machine.
    """
    here = this_machine()
    euro = SiteFacts(
        name="b",
        kind="local",
        processors=1,
        speed=1.0,
        unit_price=1.0,
        fixed_price=0.0,
        currency="EUR",
    )

    with pytest.raises(bursar.InputError, match="EUR and SU"):
        Executor(1, sites=[here, euro])


def test_an_executor_whose_workers_cannot_live_is_broken() -> None:
    """
    Every future hears of it, and so does who submits: nobody waits for ever.
    """
    executor = Executor(1)
    executor._thread._service.failed.get_loop().call_soon_threadsafe(
        executor._thread._service.failed.set_result, bursar.BursarError("no worker is left")
    )
    wait_for(lambda: executor._thread._broken is not None)

    with pytest.raises(BrokenExecutor, match="no worker is left"):
        executor.submit(int)
    executor.shutdown()
