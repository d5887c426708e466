"""``bursar.map``: a Python function applied to many points, by deadline and budget."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, as_completed
from statistics import median
from typing import Any, TypeVar

from bursar.api.executor import Executor, timed_call
from bursar.api.known_campaign import NO_HISTORY
from bursar.api.measured_runtimes import spread
from bursar.api.planning import plan, with_goal
from bursar.api.site_resolution import Sites, resolve_sites
from bursar.formats.units import parse_amount, parse_duration
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import BudgetStop, BursarError, InputError
from bursar.model.site import SiteFacts
from bursar.model.task import Task

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
        number, error = next(iter(errors.items()))
        shown = repr(points[number])
        if len(shown) > _SHOWN:
            shown = shown[:_SHOWN] + "..."
        super().__init__(
            f"{len(errors)} of {len(points)} points failed; the first is point {number}, {shown}: "
            f"{type(error).__name__}: {error}"
        )
        self.results, self.errors = results, errors


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
) -> list[T]:
    """
    Apply a function to each point on leased processors; return the results in order.

    With a deadline or a budget, the goal is checked by a plan before most of the work starts. If
    no runtime is stated, a few calls spread over the points are made first to measure how long
    they take; their results are kept, and their time counts.

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
        ``"33m"``, or seconds from this call.
    budget
        ``"40 SU"``, or currency units; never exceeded.
    runtime
        Time of one call, as for ``deadline``; None: it is measured where there is a goal.
    probe
        Number of calls that are measured, at most. Positive.

    Raises
    ------
    InputError
        When an argument is wrong.
    GoalOutOfReach
        When the plan says that deadline or budget cannot be kept; calls that were measured have
        been made, no others.
    BudgetStop
        When the calls take longer than planned, and the budget does not cover the rest.
    MapFailed
        When the function failed for some points, after all calls have ended.
    """
    began = time.monotonic()
    arguments = list(points)
    if probe < 1:
        raise InputError(f"must be at least 1, got {probe}", where="probe")
    allowed = None if deadline is None else parse_duration(deadline)
    each = None if runtime is None else parse_duration(runtime)
    if not arguments:
        return []
    facts = resolve_sites(sites)
    has_goal = allowed is not None or budget is not None
    calls: dict[int, Future[Any]] = {}
    with Executor(processors, sites=facts if sites is not None else None, budget=budget) as pool:
        if has_goal and each is None:
            first = spread(range(len(arguments)), probe)
            calls = {n: _submit(pool, function, arguments[n]) for n in first}
            times = [call.result()[0] for call in as_completed(calls.values()) if _ended(call)]
            each = median(times) if times else None
        if has_goal and each is not None:
            left = None if allowed is None else allowed - (time.monotonic() - began)
            amount = None
            spent = len(calls) * each
            if budget is not None:
                amount = max(0.0, parse_amount(budget)[0] - spent * (facts[0].unit_price or 0.0))
            _check(facts, len(arguments) - len(calls), each, left, amount, processors)
        calls |= {
            n: _submit(pool, function, point) for n, point in enumerate(arguments) if n not in calls
        }
    results: list[Any] = []
    errors: dict[int, Exception] = {}
    for number in range(len(arguments)):
        try:
            results.append(calls[number].result()[1])
        except BudgetStop:
            raise
        except Exception as error:
            results.append(None)
            errors[number] = error
    if errors:
        raise MapFailed(arguments, results, errors)
    return results


def _submit(pool: Executor, function: Callable[..., T], point: Any) -> Future[tuple[float, T]]:
    if isinstance(point, Mapping):
        return pool.submit(timed_call, function, (), dict(point))
    return pool.submit(timed_call, function, point if isinstance(point, tuple) else (point,), {})


def _ended(call: Future[Any]) -> bool:
    return not call.cancelled() and call.exception() is None


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
        history=NO_HISTORY,
    )
    quote.check_goal()
