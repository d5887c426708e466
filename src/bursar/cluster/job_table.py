"""The jobs of a machine as columns, and the rules by which they start."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bursar.model.errors import InputError, spelling_hint

# The jobs of a machine as columns: what each asked for, and what became of each.

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

_COLUMNS = {
    "submit": np.float64,
    "width": np.int64,
    "estimate": np.float64,
    "runtime": np.float64,
    "start": np.float64,
    "finish": np.float64,
    "expected": np.float64,
    "promise": np.float64,
    "killed": np.bool_,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """
    State of a job at one moment.

    Parameters
    ----------
    number
        Position in the order of submission, from 0.
    processors
        Processors that the job asks for.
    estimate
        Run time that the job asks for, seconds.
    submit
        When the job was submitted, seconds.
    start, finish
        When the job began and ended; None while it has not.
    expected
        When the job will have ended by its estimate; None before it starts.
    promise
        Start that conservative backfilling promises now; None once the job has started, and
        under other policies.
    killed
        Whether the job was ended before it was done: at its estimate, or cancelled.
    """

    number: int
    processors: int
    estimate: float
    submit: float
    start: float | None
    finish: float | None
    expected: float | None
    promise: float | None
    killed: bool


class JobTable:
    """
    Holds the jobs of a machine as columns, jobs submitted for later included.

    The kernels read and write the columns directly, so these are longer than the table:
    only the first :attr:`count` entries are jobs. Times are NaN until they are known; the
    finish of a running job is known ahead, and nobody who decides may look at it.

    Attributes
    ----------
    count
        Number of jobs.
    submit, width, estimate, runtime
        Time of submission, processors, seconds asked for, and seconds that the job will run.
    start, finish, expected
        Times of start and end, and the end by the estimate.
    promise
        First start that was promised.
    killed
        Whether the job was, or will be, ended before it is done.
    """

    submit: FloatArray
    width: IntArray
    estimate: FloatArray
    runtime: FloatArray
    start: FloatArray
    finish: FloatArray
    expected: FloatArray
    promise: FloatArray
    killed: BoolArray

    def __init__(self) -> None:
        self.count = 0

    def grow(self, capacity: int) -> None:
        """Make room for so many jobs in all; what is there is kept."""
        for name, kind in _COLUMNS.items():
            column = np.full(capacity, math.nan) if kind is np.float64 else np.zeros(capacity, kind)
            column[: self.count] = self.__dict__.get(name, column)[: self.count]
            self.__dict__[name] = column

    def add(self, submit: float, width: int, estimate: float, runtime: float) -> int:
        """Append a job, for which there must be room; return the job's number."""
        number = self.count
        self.submit[number] = submit
        self.width[number] = width
        self.estimate[number] = estimate
        self.runtime[number] = runtime
        self.count += 1
        return number

    def extend(
        self, submit: FloatArray, width: IntArray, estimate: FloatArray, runtime: FloatArray
    ) -> None:
        """Append many jobs, for which there must be room."""
        added = slice(self.count, self.count + len(submit))
        self.submit[added], self.width[added] = submit, width
        self.estimate[added], self.runtime[added] = estimate, runtime
        self.count += len(submit)

    @property
    def submitted(self) -> FloatArray:
        """Submission time of each job, future submissions included; a view."""
        return self.submit[: self.count]

    @property
    def estimates(self) -> FloatArray:
        """Seconds that each job asks for; a view."""
        return self.estimate[: self.count]

    def check(self, number: int) -> None:
        """
        Raise unless there is a job of this number.

        Raises
        ------
        InputError
            When there is none.
        """
        if not 0 <= number < self.count:
            raise InputError(f"there is no job {number}, the last one is {self.count - 1}")

    def state(self, number: int, now: float, promise: float) -> JobState:
        """Return what is known of a job by now; NaN for the promise of none."""
        start, finish = self.times(number, now)
        return JobState(
            number=number,
            processors=int(self.width[number]),
            estimate=float(self.estimate[number]),
            submit=float(self.submit[number]),
            start=start,
            finish=finish,
            expected=_known(float(self.expected[number])),
            promise=_known(promise),
            killed=bool(self.killed[number]) and finish is not None,
        )

    def times(self, number: int, now: float) -> tuple[float | None, float | None]:
        """
        Return when a job began and ended; None for what has not happened by now.

        A running job's true end lies in the future, and nobody may know it.
        """
        start, finish = float(self.start[number]), float(self.finish[number])
        return _known(start), finish if finish <= now else None

    def started(self, jobs: IntArray, now: float) -> BoolArray:
        """Return which of the jobs have started by a moment, shape of ``jobs``."""
        return np.asarray(self.start[jobs] <= now)  # NaN, of jobs that have not, is not

    def ended(self, jobs: IntArray, now: float) -> BoolArray:
        """Return which of the jobs have ended by a moment, shape of ``jobs``."""
        return np.asarray(self.finish[jobs] <= now)  # NaN, of jobs that have not started, is not

    def outcome(self) -> tuple[FloatArray, FloatArray, BoolArray, FloatArray]:
        """
        Return what became of every job, or will by what has been decided so far.

        Returns
        -------
        start, finish, killed, promised : ndarray
            One entry for each job; NaN for what has not happened.
        """
        n = self.count
        return (
            self.start[:n].copy(),
            self.finish[:n].copy(),
            self.killed[:n].copy(),
            self.promise[:n].copy(),
        )

    def copy(self) -> "JobTable":
        """Return another table with the same jobs."""
        twin = JobTable()
        twin.count = self.count
        for name in _COLUMNS:
            twin.__dict__[name] = self.__dict__[name].copy()
        return twin


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


# Rules by which a machine starts jobs.

Policy = Literal["fcfs", "easy", "conservative"]
Semantics = Literal["batch", "pyss"]
Early = Literal["compress", "keep"]
Overrun = Literal["kill", "extend"]


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """
    The rules by which a machine starts, moves and ends jobs.

    Parameters
    ----------
    policy
        Order in which waiting jobs start: first come first served, EASY or conservative
        backfilling.
    semantics
        ``"batch"``: all events of one moment are taken together and the policy runs once.
        ``"pyss"``: it runs after every single event; not with ``overrun="extend"``.
    early
        Under conservative backfilling, when a job ends before its estimate:
        ``"compress"`` moves each waiting job, in order of submission, to the
        earliest start there is; ``"keep"`` leaves them where they are.
    overrun
        What happens to a job that outlives its estimate: ``"kill"`` ends it, ``"extend"``
        doubles the estimate as often as it takes. Extensions break promises, but
        never an advance reservation: a job in the way of one is killed.

    Raises
    ------
    InputError
        When a rule is not one of these, or two do not go together.
    """

    policy: Policy
    semantics: Semantics = "batch"
    early: Early = "compress"
    overrun: Overrun = "kill"

    def __post_init__(self) -> None:
        for what, value, known in (
            ("policy", self.policy, get_args(Policy)),
            ("semantics", self.semantics, get_args(Semantics)),
            ("early", self.early, get_args(Early)),
            ("overrun", self.overrun, get_args(Overrun)),
        ):
            if value not in known:
                raise InputError(
                    f'unknown {what} "{value}", expected one of {", ".join(known)}',
                    hint=spelling_hint(value, known),
                )
        if self.semantics == "pyss" and self.overrun == "extend":
            raise InputError(
                'goes with "pyss" semantics no further than "kill": one event at a time, a job '
                "submitted at the end of an estimate would start before it is extended",
                where="overrun",
            )
