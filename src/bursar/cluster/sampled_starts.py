"""When a job that is submitted now may start, if jobs do not run as long as they asked for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.machine import Machine

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LEAST = 1e-3
"""Seconds that a job runs at least."""

FIRST_STEP = 600.0
"""Seconds by which a simulated clock is moved first; each further step is twice as long."""


@dataclass(frozen=True, slots=True, eq=False)
class FutureJobs:
    """
    Jobs that are submitted after now.

    Parameters
    ----------
    submit
        Seconds from now, ascending, not negative, shape ``(n,)``.
    processors, estimate, runtime
        Processors of each job, seconds that the job asks for, and seconds that the job runs.
    """

    submit: FloatArray
    processors: IntArray
    estimate: FloatArray
    runtime: FloatArray

    @classmethod
    def none(cls) -> "FutureJobs":
        """Return no jobs."""
        empty = np.zeros(0)
        return cls(empty, np.zeros(0, dtype=np.int64), empty, empty)


def sampled_starts(
    machine: Machine,
    processors: int,
    seconds: float,
    lasting: FloatArray,
    future: Sequence[FutureJobs],
) -> FloatArray:
    """
    Return when a job submitted now would start, for several guesses of how long jobs run.

    The machine does not change. Every decision of its scheduler rests on the seconds asked for,
    as on the real one; the guesses only say when jobs end.

    Parameters
    ----------
    processors, seconds
        What the job asks for.
    lasting
        A guess in each row, shape ``(guesses, running + waiting)``: seconds from now that each
        running job still runs, in the order of :attr:`Machine.running`, then seconds that each
        waiting job will run, in the order of :attr:`Machine.waiting`. Jobs run no longer than they
        asked for.
    future
        Jobs that are submitted later, for each guess; wider ones than the machine are left out.

    Returns
    -------
    ndarray
        Seconds from now, shape ``(guesses,)``.

    Raises
    ------
    InputError
        When the job can never run.
    """
    jobs, now = machine.jobs, machine.now
    # Processors go to running jobs in the order of their starts.
    order = np.argsort(jobs.start[machine.running], kind="stable")
    running = machine.running[order]
    waiting = machine.waiting
    held = len(running)
    width = np.concatenate((jobs.width[running], jobs.width[waiting]))
    asked = np.concatenate((jobs.expected[running] - now, jobs.estimate[waiting]))
    guesses = np.column_stack((lasting[:, :held][:, order], lasting[:, held:]))
    guesses = np.minimum(np.maximum(guesses, LEAST), asked)
    first, behind, zeros = slice(0, held), slice(held, None), np.zeros(len(width))
    starts = np.empty(len(lasting))
    for row, later in enumerate(future):
        twin = Machine(
            machine.processors,
            machine.rules.policy,
            semantics=machine.rules.semantics,
            early=machine.rules.early,
            overrun=machine.rules.overrun,
        )
        twin.submit_all(zeros[first], width[first], asked[first], guesses[row, first])
        if machine.reservations:
            twin.advance(0.0)
            for kept in machine.reservations:
                begin = max(0.0, kept.start - now)
                twin.reserve(begin, kept.end - now - begin, kept.processors)
        twin.submit_all(zeros[behind], width[behind], asked[behind], guesses[row, behind])
        job = twin.submit(processors, seconds)
        fits = later.processors <= machine.processors
        twin.submit_all(
            later.submit[fits], later.processors[fits], later.estimate[fits], later.runtime[fits]
        )
        starts[row] = _start_of(twin, job)
    return starts


def _start_of(machine: Machine, job: int) -> float:
    """Move the clock until a job has started; return its start, infinite where it never does."""
    step = FIRST_STEP
    while True:
        # In steps: nobody need simulate what happens long after the job's start.
        machine.advance(machine.now + step)
        start = float(machine.jobs.start[job])
        if start <= machine.now:
            return start
        if math.isinf(machine.next_event):
            return math.inf
        step *= 2
