"""Traces made heavier or longer without changing their jobs."""

from dataclasses import replace

import numpy as np

from bursar.model.errors import InputError
from bursar.model.trace import Trace

WEEK = 7 * 86_400.0


def with_second_copy(
    trace: Trace, probability: float, rng: np.random.Generator, *, shift: float = WEEK
) -> Trace:
    """
    Add a random part of a shifted copy to a trace (HPDC 2007, section 5).

    Each job of the copy is submitted ``shift`` seconds later, and kept with the
    same probability. What kind of jobs there are does not change.

    Parameters
    ----------
    probability
        Probability that a job is copied: 0 gives the trace itself, 1 twice the load.
    shift
        Seconds.

    Raises
    ------
    InputError
        When the probability does not lie between 0 and 1.
    """
    if not 0 <= probability <= 1:
        raise InputError(f"a probability lies between 0 and 1, got {probability:g}")
    draws = rng.random(len(trace))
    return _merged(trace, draws < probability, shift)


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

    The trace is what :func:`with_second_copy` makes with that probability and the same
    random numbers.

    The load is the work of the jobs submitted in a window over what the machine
    can do in it. The window is that between the first and the last submission
    of the trace as it was: what the copy adds after it makes the trace longer,
    not heavier. What a policy achieves is less where it cannot fill the machine.

    One set of random numbers decides which jobs are kept at any probability, so
    the load rises with it, job by job; what is found is the greatest that does
    not exceed what is wanted.

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
    return probability, _merged(trace, draws < probability, shift)


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


def _merged(trace: Trace, kept: "np.ndarray", shift: float) -> Trace:
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
