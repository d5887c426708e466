"""Simulates a whole trace on a machine, and measures what became of its jobs."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.job_table import Early, Overrun, Policy, Semantics
from bursar.cluster.machine import Machine
from bursar.model.errors import InputError, spelling_hint
from bursar.model.trace import Trace
from bursar.profile_kernel import integral_until, summed

# Simulates a whole trace on a machine: the start and end of each job.

REPORTS = 50
"""Number of progress reports in a simulation."""

Estimates = Literal["user", "actual"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedSchedule:
    """
    Simulated schedule of a trace's jobs; arrays in the trace's order.

    Parameters
    ----------
    start, finish
        Seconds on the trace's clock.
    killed
        Whether the job was ended at its estimate.
    promised
        Start promised to the job at submission, under conservative backfilling; NaN under
        other policies.
    processors, policy, estimates, semantics, early, overrun
        Settings of the simulation.
    """

    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    killed: NDArray[np.bool_]
    promised: NDArray[np.float64]
    processors: int
    policy: Policy
    estimates: Estimates
    semantics: Semantics
    early: Early
    overrun: Overrun


def simulate(
    trace: Trace,
    *,
    processors: int,
    policy: Policy,
    estimates: Estimates = "user",
    semantics: Semantics = "batch",
    early: Early = "compress",
    overrun: Overrun = "kill",
    on_progress: Callable[[float], None] | None = None,
) -> SimulatedSchedule:
    """
    Runs a trace on a machine of so many processors.

    Parameters
    ----------
    estimates
        What decisions go by: what ``"user"`` s asked for, or the ``"actual"`` run times.
    policy, semantics, early, overrun
        See :class:`bursar.cluster.machine.Machine`.
    on_progress
        Told, now and then, which share of the jobs has been submitted.

    Raises
    ------
    InputError
        When an argument is not one of these or does not go with another, there
        is no job, or one is wider than the machine.
    """
    if estimates not in get_args(Estimates):
        raise InputError(
            f'unknown estimates "{estimates}", expected one of user, actual',
            hint=spelling_hint(estimates, get_args(Estimates)),
        )
    if not len(trace):
        raise InputError("holds no job", where=trace.name)
    machine = Machine(
        processors,
        policy,
        semantics=semantics,
        early=early,
        overrun=overrun,
        now=min(0.0, float(trace.submit[0])),
    )
    wide = np.flatnonzero(trace.processors > processors)
    if len(wide):
        first = int(trace.number[wide[0]])
        raise InputError(
            f"{len(wide)} jobs need more than {processors} processors, "
            f"the first is job {first} with {int(trace.processors[wide[0]])}",
            where=trace.name,
        )
    machine.submit_all(
        trace.submit,
        trace.processors,
        trace.estimate if estimates == "user" else trace.runtime,
        trace.runtime,
    )
    if on_progress is not None:
        for i in range(1, REPORTS):
            machine.advance(float(trace.submit[i * len(trace) // REPORTS]))
            on_progress(i / REPORTS)
    machine.run()
    start, finish, killed, promised = machine.jobs.outcome()
    return SimulatedSchedule(
        start=start,
        finish=finish,
        killed=killed,
        promised=promised,
        processors=processors,
        policy=policy,
        estimates=estimates,
        semantics=semantics,
        early=early,
        overrun=overrun,
    )


# Metrics of schedules. Pure functions of a trace and what became of it.

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TAU = 10.0
"""Seconds below which a run counts as this long in the bounded slowdown (Feitelson 1997)."""

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMetrics:
    """
    Figures by which schedules of one trace are compared.

    Parameters
    ----------
    jobs, killed
        How many there are, and how many were ended at their estimate.
    average_wait_s, average_response_s
        Means over the jobs: start less submission, end less submission.
    average_bounded_slowdown
        Mean of max(1, response / max(run, tau)).
    tau_s
        Seconds.
    makespan_s
        Last end less first submission.
    utilisation
        Processor-seconds run over processors times makespan.
    waits_s, bounded_slowdowns
        Percentiles: the least value that so many per cent of the jobs do not exceed.
    longest_queue
        Jobs that waited at once, at most.
    average_queue
        Jobs waiting, averaged over the makespan.
    """

    jobs: int
    killed: int
    average_wait_s: float
    average_response_s: float
    average_bounded_slowdown: float
    tau_s: float
    makespan_s: float
    utilisation: float
    waits_s: dict[int, float]
    bounded_slowdowns: dict[int, float]
    longest_queue: int
    average_queue: float

    def to_dict(self) -> dict[str, Any]:
        """Convert the metrics to a JSON document."""
        found = asdict(self)
        for key in ("waits_s", "bounded_slowdowns"):
            found[key] = {str(p): value for p, value in found[key].items()}
        return found


def measure(trace: Trace, result: SimulatedSchedule, *, tau: float = TAU) -> ScheduleMetrics:
    """
    Compute all metrics of a schedule.

    Parameters
    ----------
    tau
        Run time, seconds, below which runs count as this long in the bounded slowdown. Positive.
    """
    wait = result.start - trace.submit
    slowdown = bounded_slowdowns(trace, result, tau)
    makespan = float(result.finish.max() - trace.submit[0])
    work = float((result.finish - result.start) @ trace.processors)
    _, length = queue_length(trace, result)
    return ScheduleMetrics(
        jobs=len(trace),
        killed=int(result.killed.sum()),
        average_wait_s=float(wait.mean()),
        average_response_s=float((result.finish - trace.submit).mean()),
        average_bounded_slowdown=float(slowdown.mean()),
        tau_s=tau,
        makespan_s=makespan,
        utilisation=work / (result.processors * makespan),
        waits_s=_percentiles(wait),
        bounded_slowdowns=_percentiles(slowdown),
        longest_queue=int(length.max()),
        average_queue=float(wait.sum()) / makespan,
    )


def bounded_slowdowns(trace: Trace, result: SimulatedSchedule, tau: float = TAU) -> FloatArray:
    """max(1, response / max(run, tau)) of each job."""
    run = np.maximum(result.finish - result.start, tau)
    slowdown: FloatArray = np.maximum(1.0, (result.finish - trace.submit) / run)
    return slowdown


def queue_length(trace: Trace, result: SimulatedSchedule) -> tuple[FloatArray, IntArray]:
    """
    Jobs submitted and not started, over time.

    Returns
    -------
    times, length : ndarray
        ``length[i]`` jobs wait from ``times[i]`` to ``times[i + 1]``.
    """
    return summed(trace.submit, result.start, np.ones(len(trace), dtype=np.int64))


def processors_busy(trace: Trace, result: SimulatedSchedule) -> tuple[FloatArray, IntArray]:
    """Processors that jobs hold over time; as :func:`queue_length`."""
    return summed(result.start, result.finish, trace.processors)


def averaged(times: FloatArray, values: IntArray, points: int) -> tuple[FloatArray, FloatArray]:
    """
    Return the averages of a step function over equal pieces of time.

    Parameters
    ----------
    times, values
        Step function, as returned by :func:`queue_length`.
    points
        How many pieces, at most.

    Returns
    -------
    begins, means : ndarray
        When each piece begins, and the average over it.
    """
    if len(times) < 2:
        return times[:0], times[:0]
    edges = np.linspace(times[0], times[-1], min(points, len(times)) + 1)
    return edges[:-1], np.diff(integral_until(times, values, edges)) / np.diff(edges)


def _percentiles(values: FloatArray) -> dict[int, float]:
    found = np.percentile(values, PERCENTILES, method="inverted_cdf")
    return {p: float(value) for p, value in zip(PERCENTILES, found, strict=True)}
