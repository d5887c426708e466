"""Simulates a whole trace on a machine: the start and end of each job."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.machine import Machine
from bursar.cluster.scheduling_rules import (
    Early,
    Overrun,
    Policy,
    Semantics,
)
from bursar.model.errors import InputError, spelling_hint
from bursar.model.trace import Trace

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
        What decisions go by: what ``"user"`` s asked for, or the ``"actual"``
        run times.
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
