"""
Workloads made up by models from a given random generator, and traces made heavier or longer.

Equal generators give equal workloads.
"""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bursar.model.errors import InputError
from bursar.model.trace import Trace

# Workloads made up by models, from a generator of random numbers that is handed in.

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST = 10_000_000
"""Jobs that one workload may have; more are a slip, and fill the memory."""


def poisson_background(
    rng: np.random.Generator,
    *,
    processors: int,
    until: float,
    mean_runtime: float = 500.0,
    mean_gap: float = 333.0,
) -> Trace:
    """
    Background load of e-Science 2006, section 4.

    Jobs arrive as a Poisson process; run times are exponential, processors
    uniform from 1 to the machine's. Estimates are exact.

    Parameters
    ----------
    until
        Seconds: the last submission comes before.
    mean_runtime, mean_gap
        Seconds; as in the paper.

    Raises
    ------
    InputError
        When nothing arrives in that time, or an argument is out of range.
    """
    _check(processors=processors, until=until, mean_runtime=mean_runtime, mean_gap=mean_gap)
    _check_count(until / mean_gap)
    submit = poisson_arrivals(rng, until, mean_gap)
    if not len(submit):
        raise InputError(f"no job arrives within {until:g} s")
    runtime = rng.exponential(mean_runtime, len(submit))
    return _trace(
        "poisson-background",
        submit,
        np.maximum(runtime, 1e-3),
        rng.integers(1, processors + 1, len(submit)),
        processors,
    )


# Lublin and Feitelson, JPDC 63(11), 2003: the model without job types.

_SERIAL, _POWER_OF_TWO = 0.244, 0.576
_SIZE_LOW, _SIZE_MEDIUM_BELOW_HIGH, _SIZE_SHARE_SMALL = 0.8, 2.5, 0.86
_SHORT, _LONG = (4.2, 0.94), (312.0, 0.03)  # shape and scale of the log of the run time
_SHORT_SHARE = (-0.0054, 0.78)  # slope over processors, and intercept
_GAP = (10.2303 * 1.0225, 0.4871)  # shape, corrected from rush hours to all day, and scale
_LONGEST_RUN, _LONGEST_GAP = 12.0, 13.0  # logarithms of seconds
_BUCKETS = 48
# Arrivals in each half-hour from midnight, relative to the average one: a gamma distribution of
# shape 8.1737 and scale 3.9631 over half-hours counted from 05:30 on, which a test computes.
# fmt: off
_DAY_WEIGHTS = (
    0.5078207247255931, 0.4561218769284873, 0.40851184836677884, 0.3648632283940927,
    0.3250145977063541, 0.2887792984583628, 0.25595309288773593, 0.22632074162929022,
    0.19966155782333772, 0.17575401034527055, 0.16491787324416007, 0.2388954018543229,
    0.3293018290154567, 0.43511123245615885, 0.5543043477825491, 0.6840301888002731,
    0.8208241814445998, 0.9608534105874805, 1.1001629052268203, 1.2349022689074978,
    1.3615181376252667, 1.4769039881821924, 1.5785041251709748, 1.6643729246083088,
    1.733193503530779, 1.7842619654496144, 1.8174443822054265, 1.8331139006296038,
    1.8320750068055822, 1.8154812301274692, 1.7847515878592783, 1.7414899917823925,
    1.6874107629164183, 1.6242723992615828, 1.5538208599076089, 1.4777428901905074,
    1.3976293239142579, 1.3149478551608267, 1.2310244612094288, 1.1470324622399837,
    1.0639881034418932, 0.9827515212931219, 0.9040319896420203, 0.8283964162369187,
    0.7562801622581277, 0.6879993744621571, 0.6237641424150738, 0.5636919148885673,
)
# fmt: on


def lublin_feitelson(rng: np.random.Generator, *, jobs: int, processors: int = 128) -> Trace:
    """
    Draw jobs from the model of Lublin and Feitelson (2003), with the daily cycle.

    Sizes: serial with probability 0.244; else the logarithm is two-stage uniform, rounded to a
    power of two with probability 0.576. Run times: the logarithm is hyper-gamma, the share of short
    ones falling with the size. Gaps between arrivals: the logarithm is gamma, stretched and shrunk
    by the hour of the day; the clock is 0 at midnight. Estimates are exact: the model has none.

    Parameters
    ----------
    jobs
        How many. Positive.
    processors
        Processors of the machine; a power of two in the paper. At least 2.

    Raises
    ------
    InputError
        When an argument is out of range.

    References
    ----------
    .. [1] Lublin, Feitelson (2003). The workload on parallel supercomputers:
       modeling the characteristics of rigid jobs. JPDC 63(11): 1105-1122.
    """
    _check(jobs=jobs)
    _check_count(jobs)
    if processors < 2:
        raise InputError(f"must be at least 2, got {processors}", where="processors")
    width = _sizes(rng, jobs, processors)
    return _trace("lublin-feitelson", _daily(rng, jobs), _run_times(rng, width), width, processors)


def _sizes(rng: np.random.Generator, jobs: int, processors: int) -> IntArray:
    high = math.log2(processors)
    medium = max(high - _SIZE_MEDIUM_BELOW_HIGH, _SIZE_LOW)
    kind = rng.random(jobs)
    small = rng.random(jobs) <= _SIZE_SHARE_SMALL
    exponent = np.where(
        small, rng.uniform(_SIZE_LOW, medium, jobs), rng.uniform(medium, high, jobs)
    )
    exponent = np.where(kind <= _SERIAL + _POWER_OF_TWO, np.floor(exponent + 0.5), exponent)
    sizes = np.where(kind <= _SERIAL, 1.0, np.floor(np.exp2(exponent) + 0.5))
    return np.clip(sizes, 1, processors).astype(np.int64)


def _run_times(rng: np.random.Generator, width: IntArray) -> FloatArray:
    share = np.clip(_SHORT_SHARE[0] * width + _SHORT_SHARE[1], 0.0, 1.0)
    logarithm = np.full(len(width), math.inf)
    while (again := np.flatnonzero(logarithm > _LONGEST_RUN)).size:
        short = rng.random(again.size) <= share[again]
        logarithm[again] = np.where(
            short, rng.gamma(*_SHORT, again.size), rng.gamma(*_LONG, again.size)
        )
    seconds: FloatArray = np.maximum(1.0, np.floor(np.exp(logarithm)))
    return seconds


def _daily(rng: np.random.Generator, jobs: int) -> FloatArray:
    """Submissions; each gap buys time that is dear in busy half-hours and cheap in quiet ones."""
    gaps = np.full(jobs, math.inf)
    while (again := np.flatnonzero(gaps > _LONGEST_GAP)).size:
        gaps[again] = rng.gamma(*_GAP, again.size)
    # In units of an average half-hour's worth of arrivals, from midnight on.
    worth = np.cumsum(np.exp(gaps)) / (86_400.0 / _BUCKETS)
    weights = np.array(_DAY_WEIGHTS)
    of_a_day = float(weights.sum())
    days, rest = np.divmod(worth, of_a_day)
    edges = np.concatenate(([0.0], np.cumsum(weights)))
    bucket = np.interp(rest, edges, np.arange(_BUCKETS + 1))
    submit: FloatArray = np.floor(days * 86_400.0 + bucket * (86_400.0 / _BUCKETS))
    return submit


def poisson_arrivals(rng: np.random.Generator, until: float, mean_gap: float) -> FloatArray:
    """Draw the moments of a Poisson process in (0, until): seconds, rising."""
    found: list[FloatArray] = []
    last = 0.0
    while last < until:
        more = last + np.cumsum(rng.exponential(mean_gap, 1 + int(until / mean_gap)))
        found.append(more)
        last = float(more[-1])
    moments = np.concatenate(found) if found else np.empty(0)
    return moments[moments < until]


def _trace(
    name: str, submit: FloatArray, runtime: FloatArray, width: IntArray, processors: int
) -> Trace:
    jobs = len(submit)
    return Trace(
        name=name,
        number=np.arange(1, jobs + 1),
        submit=submit,
        runtime=runtime,
        estimate=runtime.copy(),
        processors=width,
        wait=np.full(jobs, math.nan),
        user=np.full(jobs, -1),
        max_processors=processors,
    )


def _check(**positive: float) -> None:
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise InputError(f"must be positive, got {value:g}", where=name)


def _check_count(expected: float) -> None:
    if expected > MOST:
        raise InputError(f"makes about {expected:,.0f} jobs, expected at most {MOST:,}")


# Traces made heavier or longer without changing their jobs.

WEEK = 7 * 86_400.0


def probability_for(
    trace: Trace,
    utilisation: float,
    rng: np.random.Generator,
    *,
    processors: int,
    shift: float = WEEK,
) -> tuple[float, Trace]:
    """
    Return the probability with which to copy jobs for a wanted load, and the loaded trace.

    The trace gets a random part of a copy of itself (HPDC 2007, section 5): each job of the copy is
    submitted ``shift`` seconds later, and kept with that probability. What kind of jobs there are
    does not change.

    The load is the work of the jobs submitted in a window over what the machine
    can do in it. The window is that between the first and the last submission
    of the trace as it was: what the copy adds after it makes the trace longer,
    not heavier. What a policy achieves is less where it cannot fill the machine.

    One set of random numbers decides which jobs are kept at any probability, so the load rises with
    it, job by job; what is found is the greatest that does not exceed what is wanted.

    Parameters
    ----------
    utilisation
        Wanted load, as a share of what the machine can do: 0.8 for 80 %.
    processors
        Processors of the machine. At least 1.
    shift
        Seconds by which the copy is later than the trace.

    Raises
    ------
    InputError
        When the wanted load lies below the trace's own, or above that with the
        whole copy; when all jobs are submitted at once; when there is no processor.
    """
    if processors < 1:
        raise InputError(f"must be at least 1, got {processors}", where="processors")
    last = float(trace.submit[-1])
    span = last - float(trace.submit[0])
    if not span > 0:
        raise InputError("all jobs are submitted at once: there is no load to raise")
    draws = rng.random(len(trace))
    own = trace.work / (processors * span)
    in_window = trace.submit + shift <= last
    added = np.where(in_window, trace.runtime * trace.processors, 0.0) / (processors * span)
    most = own + float(added.sum())
    if not own <= utilisation <= most:
        raise InputError(
            f"a second copy gives a load between {own:.1%} and {most:.1%}, got {utilisation:.1%}",
            hint=None if in_window.any() else f"the log is shorter than the shift of {shift:g} s",
        )
    # Jobs join in the order of their draws: the load after each is a running sum.
    order = np.argsort(draws)
    load = own + np.cumsum(added[order])
    joined = int(np.searchsorted(load, utilisation, side="right"))
    probability = float(draws[order[joined]]) if joined < len(trace) else 1.0
    return probability, with_copies(trace, draws < probability, shift)


def repeated(trace: Trace, times: int) -> Trace:
    """
    Repeat a trace a number of times.

    Raises
    ------
    InputError
        When that is not at least once.
    """
    if times < 1:
        raise InputError(f"at least once, got {times}")
    span = float(trace.submit[-1] - trace.submit[0])
    gap = span / max(1, len(trace) - 1)
    shift = np.repeat(np.arange(times) * (span + gap), len(trace))
    return replace(
        trace,
        name=f"{trace.name}-x{times}",
        number=np.arange(1, times * len(trace) + 1),
        submit=np.tile(trace.submit, times) + shift,
        runtime=np.tile(trace.runtime, times),
        estimate=np.tile(trace.estimate, times),
        processors=np.tile(trace.processors, times),
        wait=np.tile(trace.wait, times),
        user=np.tile(trace.user, times),
        cleaning=(),
    )


def with_copies(trace: Trace, kept: NDArray[np.bool_], shift: float) -> Trace:
    """
    Add copies of some jobs to a trace.

    Parameters
    ----------
    kept
        Which jobs are copied, one entry for each job of the trace.
    shift
        Seconds by which a copy is submitted later.
    """
    submit = np.concatenate((trace.submit, trace.submit[kept] + shift))
    order = np.argsort(submit, kind="stable")
    beyond = int(trace.number.max() - trace.number.min()) + 1

    def both(column: "np.ndarray") -> "np.ndarray":
        return np.concatenate((column, column[kept]))[order]

    return replace(
        trace,
        name=f"{trace.name}-loaded",
        number=np.concatenate((trace.number, beyond + trace.number[kept]))[order],
        submit=submit[order],
        runtime=both(trace.runtime),
        estimate=both(trace.estimate),
        processors=both(trace.processors),
        wait=both(trace.wait),
        user=both(trace.user),
        cleaning=(),
    )
