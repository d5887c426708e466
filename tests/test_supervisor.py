"""Tasks have an owner, and each failure reaches someone exactly once."""

import asyncio
import gc
import math
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.simulation.virtual_loop import VirtualLoop
from bursar.supervisor import SupervisorClosed, TaskSupervisor

T = TypeVar("T")


def run(story: Coroutine[Any, Any, T]) -> tuple[T, list[BaseException]]:
    """
    Run a story on virtual time; return its result, and what reached the loop's exception handler.
    """
    loop = VirtualLoop()
    unheard: list[BaseException] = []
    loop.set_exception_handler(lambda _, context: unheard.append(context["exception"]))
    try:
        result = loop.run_until_complete(story)
        gc.collect(0)  # a task that nobody has asked says so when it is collected
        loop.run_until_complete(asyncio.sleep(0))
        return result, unheard
    finally:
        loop.close()


async def fail(error: Exception, seconds: float = 0.0) -> None:
    await asyncio.sleep(seconds)
    raise error


async def fail_when_cancelled(error: Exception) -> None:
    try:
        await asyncio.sleep(math.inf)
    finally:
        raise error


# With a handler: an object with a life of its own.


def test_a_failure_is_told_once_and_the_others_go_on() -> None:
    """
    The owner's handler hears of each failure, in the order of the failures; nothing is cancelled.
    """

    async def story() -> tuple[list[str], str]:
        heard: list[str] = []
        tasks = TaskSupervisor(lambda error: heard.append(str(error)))
        tasks.start(fail(ValueError("late"), 2.0))
        tasks.start(fail(ValueError("soon"), 1.0))
        good = tasks.start(asyncio.sleep(3.0, "done"))
        said = await good
        await tasks.close()
        return heard, said

    (heard, said), unheard = run(story())
    assert heard == ["soon", "late"]
    assert said == "done"
    assert unheard == []


def test_a_failure_of_the_same_turn_is_told_before_closing_returns() -> None:
    """
    A task may have failed just before its owner closes, and its callback not have run yet.
    """

    async def story() -> tuple[list[str], int]:
        heard: list[str] = []
        tasks = TaskSupervisor(lambda error: heard.append(str(error)))
        task = tasks.start(fail(ValueError("now")))
        while not task.done():
            await asyncio.sleep(0)
        tasks.start(fail_when_cancelled(ValueError("while closing")))
        await asyncio.sleep(0)
        await tasks.close()
        return heard, len(tasks)

    assert run(story()) == ((["now", "while closing"], 0), [])


def test_a_task_may_have_a_handler_of_its_own() -> None:
    """
    The owner is then not told of this task's failure.
    """

    async def story() -> tuple[list[str], list[str]]:
        owners: list[str] = []
        own: list[str] = []
        tasks = TaskSupervisor(lambda error: owners.append(str(error)))
        tasks.start(fail(ValueError("a")), on_failure=lambda error: own.append(str(error)))
        tasks.start(fail(ValueError("b")))
        await tasks.wait()
        return owners, own

    assert run(story()) == ((["b"], ["a"]), [])


def test_cancelled_tasks_have_not_failed() -> None:
    """
    Neither those that their owner cancels, nor one that is cancelled before it has begun.
    """

    async def story() -> list[BaseException]:
        heard: list[BaseException] = []
        tasks = TaskSupervisor(heard.append)
        tasks.start(asyncio.sleep(math.inf)).cancel()
        tasks.start(asyncio.sleep(math.inf))
        await tasks.close()
        return heard

    assert run(story()) == ([], [])


def test_an_error_of_the_handler_reaches_the_loop() -> None:
    """
    A handler that fails itself must not hide that, nor keep the supervisor from closing.
    """
    wrong = RuntimeError("of the handler")

    async def story() -> None:
        def handle(error: BaseException) -> None:
            raise wrong

        tasks = TaskSupervisor(handle)
        tasks.start(fail(ValueError("x")))
        await tasks.wait()
        await tasks.close()

    assert run(story()) == (None, [wrong])


# Closing.


def test_nothing_is_started_while_closing_or_afterwards() -> None:
    """
    A task that ends cannot leave another one behind; its coroutine is closed without a warning.
    """

    async def story() -> list[str]:
        refused: list[str] = []
        tasks = TaskSupervisor(lambda error: refused.append(type(error).__name__))

        async def leave_another() -> None:
            try:
                await asyncio.sleep(math.inf)
            finally:
                tasks.start(asyncio.sleep(1.0), "successor")

        tasks.start(leave_another())
        await asyncio.sleep(1.0)
        await tasks.close()
        with pytest.raises(SupervisorClosed, match="successor is started too late"):
            tasks.start(asyncio.sleep(1.0), "successor")
        assert tasks.is_closed
        return refused

    assert run(story()) == (["SupervisorClosed"], [])


def test_an_owner_that_is_cancelled_while_closing_waits_for_all() -> None:
    """
    Its cancellation goes on when they have ended, and they are told once more to end.
    """

    async def story() -> tuple[float, list[str], bool]:
        loop = asyncio.get_running_loop()
        cancelled: list[str] = []
        tasks = TaskSupervisor(lambda error: None)

        async def stay(name: str) -> None:
            for seconds in (math.inf, 10.0, 3.0):
                try:
                    await asyncio.sleep(seconds)
                except asyncio.CancelledError:
                    cancelled.append(f"{name} {loop.time():g}")

        tasks.start(stay("a"))
        tasks.start(stay("b"))
        await asyncio.sleep(1.0)
        closing = loop.create_task(tasks.close())
        await asyncio.sleep(1.0)
        closing.cancel()
        await asyncio.wait({closing})
        return loop.time(), cancelled, closing.cancelled()

    assert run(story()) == ((5.0, ["a 1", "b 1", "a 2", "b 2"], True), [])


def test_a_task_cannot_wait_for_its_own_end() -> None:
    """
    It would wait for ever; the error says so instead.
    """

    async def story() -> list[str]:
        heard: list[str] = []
        tasks = TaskSupervisor(lambda error: heard.append(str(error)))

        async def close() -> None:
            await tasks.close()

        tasks.start(close())
        await tasks.wait()
        return heard

    assert run(story()) == (["a task cannot wait for the end of its own supervisor"], [])


def test_waiting_leaves_tasks_alone() -> None:
    """
    After its time is over they go on; without a limit those that come meanwhile are waited for.
    """

    async def story() -> tuple[float, int, float]:
        loop = asyncio.get_running_loop()
        tasks = TaskSupervisor(lambda error: None)
        tasks.start(asyncio.sleep(5.0))
        loop.call_later(3.0, lambda: tasks.start(asyncio.sleep(4.0)))
        await tasks.wait(2.0)
        early, left = loop.time(), len(tasks)
        await tasks.wait()
        return early, left, loop.time()

    assert run(story()) == ((2.0, 1, 7.0), [])


# Without a handler: a function.


def test_the_end_of_a_block_ends_its_tasks() -> None:
    """
    What still runs is cancelled, and has ended when the block has.
    """

    async def story() -> tuple[str, bool, float]:
        async with TaskSupervisor() as tasks:
            first = tasks.start(asyncio.sleep(1.0, "first"))
            other = tasks.start(asyncio.sleep(9.0))
            await asyncio.wait({first, other}, return_when=asyncio.FIRST_COMPLETED)
        return first.result(), other.cancelled(), asyncio.get_running_loop().time()

    assert run(story()) == (("first", True, 1.0), [])


def test_the_first_failure_cancels_the_others_and_is_raised_as_itself() -> None:
    """
    Callers catch one error of ours, not a group with one in it.
    """
    wrong = ValueError("of a task")

    async def story() -> tuple[BaseException, bool, float]:
        others: list[asyncio.Task[None]] = []

        async def block() -> None:
            async with TaskSupervisor() as tasks:
                others.append(tasks.start(asyncio.sleep(9.0)))
                tasks.start(fail(wrong, 1.0))
                await asyncio.wait(others)

        with pytest.raises(ValueError, match="of a task") as raised:
            await block()
        return raised.value, others[0].cancelled(), asyncio.get_running_loop().time()

    assert run(story()) == ((wrong, True, 1.0), [])


def test_closing_raises_the_first_failure_where_there_is_no_handler() -> None:
    """
    The same holds for a supervisor that is closed by hand.
    """
    wrong = ValueError("of a task")

    async def story() -> None:
        tasks = TaskSupervisor()
        tasks.start(fail(wrong))
        await asyncio.sleep(1.0)
        with pytest.raises(ValueError, match="of a task"):
            await tasks.close()
        await tasks.close()

    assert run(story()) == (None, [])


def test_a_second_failure_reaches_the_loop() -> None:
    """
    Only one can be raised; none is lost.
    """
    first, second = ValueError("first"), ValueError("second")

    async def story() -> BaseException:
        async def block() -> None:
            async with TaskSupervisor() as tasks:
                tasks.start(fail_when_cancelled(second))
                await tasks.start(fail(first, 1.0))

        with pytest.raises(ValueError, match="first") as raised:
            await block()
        return raised.value

    assert run(story()) == (first, [second])


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_failure_that_the_block_has_raised_is_not_told_again(wrapped: bool) -> None:
    """
    The block has awaited the task, and may have raised an error of its own for it.
    """
    wrong = ValueError("of a task")

    async def story() -> BaseException:
        async def block() -> None:
            async with TaskSupervisor() as tasks:
                try:
                    await tasks.start(fail(wrong, 1.0))
                except ValueError:
                    if wrapped:
                        raise KeyError("in other words") from None
                    raise

        with pytest.raises((ValueError, KeyError)) as raised:
            await block()
        return raised.value

    raised, unheard = run(story())
    assert type(raised) is (KeyError if wrapped else ValueError)
    assert unheard == []


def test_a_failure_beside_another_error_of_the_block_reaches_the_loop() -> None:
    """
    The block's own error has nothing to do with it.
    """
    wrong = ValueError("of a task")

    async def story() -> None:
        async def block() -> None:
            async with TaskSupervisor() as tasks:
                tasks.start(fail(wrong))
                await asyncio.sleep(1.0)
                raise KeyError("of the block")

        with pytest.raises(KeyError):
            await block()

    assert run(story()) == (None, [wrong])


def test_a_cancelled_block_waits_for_its_tasks() -> None:
    """
    The cancellation wins over what a task fails with; the failure reaches the loop.
    """
    wrong = ValueError("of a task")

    async def story() -> bool:
        async def block() -> None:
            async with TaskSupervisor() as tasks:
                tasks.start(fail_when_cancelled(wrong))
                await asyncio.sleep(9.0)

        task = asyncio.get_running_loop().create_task(block())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait({task})
        return task.cancelled()

    assert run(story()) == (True, [wrong])


def test_a_timeout_around_a_block_is_a_timeout() -> None:
    """
    A cancellation that is not the owner's own is left to whom it belongs to.
    """

    async def story() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0), TaskSupervisor() as tasks:
                await tasks.start(asyncio.sleep(9.0))
        return asyncio.get_running_loop().time()

    assert run(story()) == (2.0, [])


# Random lives against a plain model.


@dataclass(frozen=True)
class Child:
    """
    A task of the random rounds.

    ``does`` is what it does after ``runs`` seconds, ``cancelled`` is what it does when it is
    cancelled (``linger`` takes ``lingers`` seconds to end, and ends at once when it is cancelled
    again), ``cut`` is when somebody else cancels it.
    """

    starts: float
    runs: float
    does: str
    cancelled: str
    lingers: float
    cut: float


@dataclass
class Ending:
    """How a child ended, and when."""

    at: float
    how: str


def children(count: int) -> st.SearchStrategy[list[Child]]:
    """Return lists of children whose moments differ from one another."""
    moments = st.lists(
        st.integers(0, 10_000), min_size=4 * count, max_size=4 * count, unique=True
    ).map(lambda numbers: [number / 100 for number in numbers])
    kinds = st.lists(
        st.tuples(
            st.sampled_from(["return", "fail", "start"]),
            st.sampled_from(["end", "fail", "linger", "start", "return"]),
        ),
        min_size=count,
        max_size=count,
    )

    def made(drawn: tuple[list[float], list[tuple[str, str]]]) -> list[Child]:
        times, whats = drawn
        return [
            Child(times[4 * i], times[4 * i + 1] + 0.001, does, cancelled, times[4 * i + 2] + 0.003,
                  times[4 * i + 3] + 0.0007)
            for i, (does, cancelled) in enumerate(whats)
        ]  # fmt: skip

    return st.tuples(moments, kinds).map(made)


def expected(child: Child, close: float) -> Ending | None:
    """Return how a child ends by the rules in the documentation; None: it is never started."""
    if child.starts > close:
        return None
    natural = child.starts + child.runs
    cut = child.cut if child.cut > child.starts else math.inf
    first = min(cut, close)
    if natural < first:
        return Ending(natural, {"return": "done", "start": "done"}.get(child.does, "failed"))
    match child.cancelled:
        case "end":
            return Ending(first, "cancelled")
        case "fail":
            return Ending(first, "failed")
        case "return":
            return Ending(first, "done")
        case "start":  # refused while closing
            return Ending(first, "failed" if first == close else "cancelled")
    again = max(cut, close)  # or never, or when it has ended
    return Ending(min(first + child.lingers, again if again > first else math.inf), "cancelled")


@settings(deadline=None)
@given(drawn=children(6), close=st.integers(0, 12_000).map(lambda number: number / 100 + 0.005))
def test_random_lives_end_as_the_rules_say(drawn: list[Child], close: float) -> None:
    """
    Whoever fails, is cancelled or starts another one, and whenever the owner closes: every task
    ends as a plain model says, every failure is heard once, in order, and none reaches the loop.
    """

    async def story() -> tuple[dict[int, Ending], list[tuple[float, str]], float]:
        loop = asyncio.get_running_loop()
        ends: dict[int, Ending] = {}
        heard: list[tuple[float, str]] = []
        tasks = TaskSupervisor(lambda error: heard.append((loop.time(), type(error).__name__)))

        async def live(number: int, child: Child) -> None:
            try:
                await asyncio.sleep(child.runs)
                if child.does == "start":
                    tasks.start(asyncio.sleep(0))
                if child.does == "fail":
                    raise ValueError
            except asyncio.CancelledError:
                if child.cancelled == "linger":
                    await asyncio.sleep(child.lingers)
                if child.cancelled == "start":
                    tasks.start(asyncio.sleep(0))
                if child.cancelled == "fail":
                    raise ValueError from None
                if child.cancelled != "return":
                    raise

        def begin(number: int, child: Child) -> None:
            if tasks.is_closed:
                with pytest.raises(SupervisorClosed):
                    tasks.start(live(number, child))
                return
            task = tasks.start(live(number, child))
            task.add_done_callback(lambda task: settle(number, task))
            if child.cut > child.starts:
                loop.call_at(child.cut, task.cancel)

        def settle(number: int, task: "asyncio.Task[None]") -> None:
            how = "cancelled" if task.cancelled() else "failed" if task.exception() else "done"
            ends[number] = Ending(loop.time(), how)

        for number, child in enumerate(drawn):
            loop.call_at(child.starts, begin, number, child)
        await asyncio.sleep(close)
        await tasks.close()
        ended = loop.time()
        assert not len(tasks)
        await asyncio.sleep(300.0)
        return ends, heard, ended

    (ends, heard, ended), unheard = run(story())
    model = {
        number: ending
        for number, child in enumerate(drawn)
        if (ending := expected(child, close)) is not None
    }
    assert ends.keys() == model.keys()
    for number, ending in model.items():
        assert ends[number].how == ending.how
        assert ends[number].at == pytest.approx(ending.at)
    failures = sorted(ending.at for ending in model.values() if ending.how == "failed")
    assert [at for at, _ in heard] == pytest.approx(failures)
    assert ended == pytest.approx(max([close, *(ending.at for ending in model.values())]))
    assert unheard == []


@settings(deadline=None)
@given(seconds=st.lists(st.integers(1, 50), min_size=1, max_size=6, unique=True))
def test_random_blocks_raise_the_first_failure(seconds: list[int]) -> None:
    """
    Of tasks that fail at different times the first cancels the others and is raised.
    """

    async def story() -> tuple[str, float]:
        async def block() -> None:
            async with TaskSupervisor() as tasks:
                for some in seconds:
                    tasks.start(fail(ValueError(f"{some}"), some))
                await asyncio.wait(list(tasks))

        with pytest.raises(ValueError, match=r"^[0-9]+$") as raised:
            await block()
        return str(raised.value), asyncio.get_running_loop().time()

    assert run(story()) == ((f"{min(seconds)}", min(seconds)), [])


def test_the_order_of_events_is_the_same_each_time() -> None:
    """
    Nothing hangs on addresses in memory: forty tasks are cancelled, and fail, in their order.
    """

    async def story() -> list[str]:
        heard: list[str] = []
        tasks = TaskSupervisor(lambda error: heard.append(str(error)))
        for number in range(40):
            tasks.start(fail_when_cancelled(ValueError(str(number))))
        await asyncio.sleep(1.0)
        await tasks.close()
        return heard

    assert run(story()) == ([str(number) for number in range(40)], [])
