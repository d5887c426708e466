"""Metrics of schedules. Pure functions of a trace and what became of it."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.simulation import SimulatedSchedule
from bursar.model.trace import Trace
from bursar.profile_kernel import integral_until, summed

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
