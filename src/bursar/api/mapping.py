"""``bursar.map``: a Python function applied to many points, by deadline and budget."""

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from statistics import fmean
from typing import Any, Generic, TypeVar

from bursar.api.call_encoding import timed_call
from bursar.api.executor import Executor
from bursar.api.measured_runtimes import spread
from bursar.api.planning import plan, with_goal
from bursar.api.site_resolution import Sites, resolve_sites
from bursar.formats.units import parse_amount, parse_deadline, parse_duration
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import BudgetStop, BursarError, DeadlineMissed, InputError
from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.report.progress import ProgressSnapshot, RunProgress
from bursar.report.tables import span
from bursar.runs.environment import REFRESH
from bursar.runs.recording.user_history import NOWHERE

T = TypeVar("T")


class MapFailed(BursarError):
    """
    The function failed for some points; the results of the others are here.

    Attributes
    ----------
    results
        Results in the order of the points; None where the function failed.
    errors
        Exception for each point that failed, by its number from 0.
    """

    def __init__(self, points: Sequence[Any], results: list[Any], errors: dict[int, Exception]):
        super().__init__(_failures(points, errors))
        self.results, self.errors = results, errors


class MapDeadlineMissed(MapFailed, DeadlineMissed):
    """
    The deadline passed while calls ran; the results of those that had ended are here.

    Attributes
    ----------
    missing
        Numbers of the points, from 0, whose calls were ended or had not begun.
    """

    exit_status = DeadlineMissed.exit_status

    def __init__(
        self,
        points: Sequence[Any],
        results: list[Any],
        errors: dict[int, Exception],
        missing: Sequence[int],
        deadline: float,
    ):
        done = len(points) - len(missing)
        failed = f"; {_failures(points, errors)}" if errors else ""
        BursarError.__init__(
            self,
            f"the deadline of {span(deadline)} passed after {done} of {len(points)} points; "
            f"the calls of the others were cancelled{failed}",
        )
        self.results, self.errors, self.missing = results, errors, tuple(missing)


def _failures(points: Sequence[Any], errors: Mapping[int, Exception]) -> str:
    number, error = next(iter(errors.items()))
    shown = repr(points[number])
    if len(shown) > _SHOWN:
        shown = shown[:_SHOWN] + "..."
    return (
        f"{len(errors)} of {len(points)} points failed; the first is point {number}, {shown}: "
        f"{type(error).__name__}: {error}"
    )


_SHOWN = 200
"""Characters of a point that a message shows, at most."""


def map(
    function: Callable[..., T],
    points: Iterable[Any],
    *,
    sites: Sites = None,
    processors: int | None = None,
    deadline: str | float | None = None,
    budget: str | float | None = None,
    runtime: str | float | None = None,
    probe: int = 3,
    progress: bool = False,
) -> list[T]:
    """
    Apply a function to each point on leased processors; return the results in order.

    With a deadline or a budget, the goal is checked by a plan before most of the work starts. If
    no runtime is stated, a few calls spread over the points are made first to measure how long
    they take; their results are kept, and their time counts. Whatever ends this function early, a
    deadline or an interrupt, ends the calls that run, too.

    Parameters
    ----------
    points
        Arguments of each call: a mapping gives arguments by name, a tuple by position, anything
        else is the only argument.
    sites
        A sites file, or the sites; None: this machine.
    processors
        Number of processors to lease of each site; None: all of them.
    deadline
        ``"33m"``, or seconds from this call. Calls that run then are ended.
    budget
        ``"40 SU"``, or currency units; never exceeded.
    runtime
        Time of one call, as for ``deadline``; None: it is measured where there is a goal.
    probe
        Number of calls that are measured, at most. Positive.
    progress
        Whether the progress is shown: below the cell in a notebook, on stderr elsewhere.

    Raises
    ------
    InputError
        When an argument is wrong.
    GoalOutOfReach
        When the plan says that deadline or budget cannot be kept; calls that were measured have
        been made, no others.
    BudgetStop
        When the calls take longer than planned, and the budget does not cover the rest.
    MapDeadlineMissed
        When the deadline passes while calls run; a :class:`MapFailed` with the results so far.
    MapFailed
        When the function failed for some points, after all calls have ended.
    """
    began = time.monotonic()
    arguments = list(points)
    if probe < 1:
        raise InputError(f"must be at least 1, got {probe}", where="probe")
    allowed = None if deadline is None else parse_deadline(deadline, time.time())
    each = None if runtime is None else parse_duration(runtime)
    if not arguments:
        return []
    facts = resolve_sites(sites)
    has_goal = allowed is not None or budget is not None
    leased = facts if sites is not None else None
    with (
        RunProgress(enabled=progress) as shown,
        Executor(processors, sites=leased, budget=budget) as pool,
    ):
        calls = _MapCalls(function, arguments, pool, facts, shown, began, allowed, processors)
        calls.budget = None if budget is None else parse_amount(budget)[0]
        try:
            if has_goal and each is None:
                calls.make(spread(range(len(arguments)), probe))
                each = calls.mean_runtime()
            if has_goal and each is not None:
                left = None if allowed is None else allowed - (time.monotonic() - began)
                amount, spent = None, len(calls.futures) * each
                if calls.budget is not None:
                    amount = max(0.0, calls.budget - spent * (facts[0].unit_price or 0.0))
                calls_left = len(arguments) - len(calls.futures)
                _check(facts, calls_left, each, left, amount, processors)
                calls.expect(each)
            calls.make(range(len(arguments)))
        except BaseException:  # also an interrupt: nothing goes on that nobody waits for
            pool.terminate_workers()
            raise
    return calls.results()


class _MapCalls(Generic[T]):
    """
    The calls of a map, and the state that its progress shows.

    Parameters
    ----------
    began
        Begin of the map, on the monotonic clock.
    allowed
        Seconds from there in which all calls must end; None: any.
    """

    def __init__(
        self,
        function: Callable[..., T],
        points: Sequence[Any],
        pool: Executor,
        sites: Sequence[SiteFacts],
        shown: RunProgress,
        began: float,
        allowed: float | None,
        processors: int | None,
    ) -> None:
        self.futures: dict[int, Future[tuple[float, T]]] = {}
        self.budget: float | None = None
        self._function, self._points, self._pool = function, points, pool
        self._currency = sites[0].currency
        self._width = sum(processors or site.processors for site in sites)
        self._shown, self._began, self._allowed = shown, began, allowed
        self._expected: float | None = None

    def make(self, numbers: Iterable[int]) -> None:
        """
        Make the calls of some points that have none yet, and wait until all have ended.

        Raises
        ------
        DeadlineMissed
            When the deadline passes before.
        """
        for number in numbers:
            if number not in self.futures:
                call = _submit(self._pool, self._function, self._points[number])
                self.futures[number] = call
        pending = [call for call in self.futures.values() if not call.done()]
        ended = _WhenAllEnded(pending)
        while not ended.wait(self._pause()):
            if self._shown.enabled:
                self._shown.update(self._snapshot())
            if self._allowed is not None and time.monotonic() - self._began >= self._allowed:
                raise self._missed(self._allowed)
        if self._shown.enabled:
            self._shown.update(self._snapshot())

    def mean_runtime(self) -> float | None:
        """Return the mean runtime of the calls that succeeded, seconds; None: none did."""
        times = [call.result()[0] for call in self.futures.values() if _succeeded(call)]
        return fmean(times) if times else None

    def expect(self, runtime: float) -> None:
        """Take note of the runtime of one call, seconds, for the progress."""
        left = len(self._points) - len(self.futures)
        waves = math.ceil(left / self._width)
        self._expected = time.monotonic() - self._began + waves * runtime

    def results(self) -> list[T]:
        """
        Return all results in the order of the points.

        Raises
        ------
        BudgetStop
            When the budget did not cover a call.
        MapFailed
            When the function failed for some points.
        """
        results, errors = self._gathered(range(len(self._points)))
        if errors:
            raise MapFailed(self._points, results, errors)
        return results

    def _gathered(self, there: Collection[int]) -> tuple[list[Any], dict[int, Exception]]:
        """Return a result for each point, None where there is none, and the errors."""
        results: list[Any] = []
        errors: dict[int, Exception] = {}
        for number in range(len(self._points)):
            found = None
            if number in there:
                try:
                    found = self.futures[number].result()[1]
                except BudgetStop:
                    raise
                except Exception as error:
                    errors[number] = error
            results.append(found)
        return results, errors

    def _missed(self, deadline: float) -> MapDeadlineMissed:
        there = {number for number, call in self.futures.items() if call.done()}
        missing = [number for number in range(len(self._points)) if number not in there]
        results, errors = self._gathered(there)
        return MapDeadlineMissed(self._points, results, errors, missing, deadline)

    def _pause(self) -> float | None:
        """Return the seconds until the progress or the deadline is to be looked at; None: never."""
        pause = REFRESH if self._shown.enabled else None
        if self._allowed is None:
            return pause
        left = max(0.0, self._allowed - (time.monotonic() - self._began))
        return left if pause is None else min(left, pause)

    def _snapshot(self) -> ProgressSnapshot:
        elapsed = time.monotonic() - self._began
        calls = self.futures.values()
        succeeded = sum(_succeeded(call) for call in calls)
        failed = sum(call.done() for call in calls) - succeeded
        left = len(self._points) - succeeded - failed
        running = min(left, self._width, len(calls) - succeeded - failed)
        spent, held = self._pool.spending()
        pace = elapsed / (len(self._points) - left) * left if left < len(self._points) else None
        return ProgressSnapshot(
            campaign=getattr(self._function, "__name__", "map"),
            elapsed=elapsed,
            total=len(self._points),
            succeeded=succeeded,
            running=running,
            waiting=left - running,
            failed=failed,
            skipped=0,
            spent=spent,
            held=held,
            budget=self.budget,
            currency=self._currency,
            predicted_finish=self._expected,
            current_finish=None if pace is None else elapsed + pace,
            deadline=self._allowed,
        )


class _WhenAllEnded:
    """Waits for futures at a cost for each that does not grow with the number of waits."""

    def __init__(self, futures: Sequence[Future[Any]]) -> None:
        self._left = len(futures)
        self._lock = threading.Lock()
        self._event = threading.Event()
        if not futures:
            self._event.set()
        for future in futures:
            future.add_done_callback(self._count)

    def _count(self, future: Future[Any]) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0:
                self._event.set()

    def wait(self, timeout: float | None) -> bool:
        """Return whether all have ended, after at most ``timeout`` seconds."""
        return self._event.wait(timeout)


def _submit(pool: Executor, function: Callable[..., T], point: Any) -> Future[tuple[float, T]]:
    if isinstance(point, Mapping):
        return pool.submit(timed_call, function, (), dict(point))
    return pool.submit(timed_call, function, point if isinstance(point, tuple) else (point,), {})


def _succeeded(call: Future[Any]) -> bool:
    return call.done() and not call.cancelled() and call.exception() is None


def _check(
    sites: Sequence[SiteFacts],
    number: int,
    runtime: float,
    deadline: float | None,
    budget: float | None,
    processors: int | None,
) -> None:
    """
    Refuse a goal that the calls left cannot keep.

    Parameters
    ----------
    number
        Calls that are left.
    runtime, deadline
        Seconds of one call, and seconds left; None: no deadline.
    budget
        Currency units left; None: no budget.
    """
    if not number:
        return
    tasks = tuple(Task(id=str(n), name="call", runtime=runtime) for n in range(number))
    campaign = Campaign(name="map", workflow=Workflow(tasks))
    # A deadline that has passed cannot be met: any plan takes longer than this.
    left = None if deadline is None else max(deadline, 1e-9)
    quote = plan(
        with_goal(campaign, deadline=left, budget=budget),
        sites,
        processors=processors,
        history=NOWHERE,
    )
    quote.check_goal()
