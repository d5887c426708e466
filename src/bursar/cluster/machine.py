"""A space-shared parallel machine and its batch scheduler, moved forward step by step."""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bursar.cluster import kernels, profile_kernels
from bursar.cluster.profile_kernels import (
    K_AGAIN,
    K_FRONT,
    K_HEAP,
    K_HIGH,
    K_LOW,
    K_NEXT,
    K_QUEUE,
    K_RESERVATIONS,
    K_SIZE,
)
from bursar.cluster.slots import FreeSlot, free_slots
from bursar.model.admission import Refusal
from bursar.model.errors import InputError, spelling_hint

Policy = Literal["fcfs", "easy", "conservative"]
Semantics = Literal["batch", "pyss"]
Early = Literal["compress", "keep"]
Overrun = Literal["kill", "extend"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

DAY = 86_400.0

_POLICY = {
    "fcfs": kernels.FCFS,
    "easy": kernels.EASY,
    "conservative": kernels.CONSERVATIVE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """
    What a machine knows of a job.

    Parameters
    ----------
    number
        In order of submission, from 0.
    processors, estimate
        What was asked for; seconds.
    submit
        When it was submitted.
    start, finish
        When it began and ended; None while it has not.
    expected
        When it will have ended by its estimate; None before it starts.
    promise
        Under conservative backfilling, the start it is promised now; None once
        it has started, and under other policies.
    killed
        Whether it was ended before it was done: at its estimate, or cancelled.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """
    Processors kept free of jobs for a window.

    Parameters
    ----------
    number
        Unique on the machine.
    start, end
        Of the window, seconds.
    processors
        How many.
    """

    number: int
    start: float
    end: float
    processors: int


class Machine:
    """
    A machine whose jobs are started by a policy.

    It knows a job's true run time only to end it; every decision is made by
    estimates. Submit jobs, reserve windows, move the clock on, look at any time.

    Parameters
    ----------
    processors
        How many, all alike.
    policy
        ``"fcfs"``, ``"easy"`` or ``"conservative"``.
    semantics
        ``"batch"``: all events of one moment are taken together and the policy
        runs once. ``"pyss"``: it runs after every single event; not with
        ``overrun="extend"``.
    early
        Under conservative backfilling, when a job ends before its estimate:
        ``"compress"`` moves each waiting job, in order of submission, to the
        earliest start there is; ``"keep"`` leaves them where they are.
    overrun
        A job that outlives its estimate: ``"kill"`` it, or ``"extend"`` it, its
        estimate doubled as often as it takes. Extensions break promises, but
        never an advance reservation: a job in the way of one is killed.
    now
        Where the clock begins.

    Raises
    ------
    InputError
        When an argument is not one of these, or two do not go together.
    """

    _submit: FloatArray
    _width: IntArray
    _estimate: FloatArray
    _runtime: FloatArray
    _start: FloatArray
    _finish: FloatArray
    _expected: FloatArray
    _promise: FloatArray
    _killed: NDArray[np.bool_]
    _queue: IntArray
    _reserved: FloatArray
    _heap_time: FloatArray
    _heap_event: IntArray
    _heap_order: IntArray
    _times: FloatArray
    _free: IntArray

    def __init__(
        self,
        processors: int,
        policy: Policy = "conservative",
        *,
        semantics: Semantics = "batch",
        early: Early = "compress",
        overrun: Overrun = "kill",
        now: float = 0.0,
    ) -> None:
        if processors < 1:
            raise InputError(f"processors must be at least 1, got {processors}")
        for what, value, known in (
            ("policy", policy, get_args(Policy)),
            ("semantics", semantics, get_args(Semantics)),
            ("early", early, get_args(Early)),
            ("overrun", overrun, get_args(Overrun)),
        ):
            if value not in known:
                raise InputError(
                    f'unknown {what} "{value}", expected one of {", ".join(known)}',
                    hint=spelling_hint(value, known),
                )
        if semantics == "pyss" and overrun == "extend":
            raise InputError(
                'goes with "pyss" semantics no further than "kill": one event at a time, a job '
                "submitted at the end of an estimate would start before it is extended",
                where="overrun",
            )
        self.processors = processors
        self.policy = policy
        self.semantics = semantics
        self.early = early
        self.overrun = overrun
        self.now = now
        self._jobs = 0
        self._k = np.zeros(K_SIZE, dtype=np.int64)
        self._k[K_HIGH] = 1
        self._reservations: dict[int, Reservation] = {}
        self._reserved_so_far = 0
        self._allocate(16)
        self._times[0] = -math.inf
        self._free[0] = processors

    # Jobs.

    def submit(
        self,
        processors: int,
        estimate: float,
        *,
        runtime: float | None = None,
        at: float | None = None,
    ) -> int:
        """
        A job, now or later.

        Parameters
        ----------
        processors
            How many it holds.
        estimate
            Seconds it asks for.
        runtime
            Seconds it will really run, which no decision looks at; None: its estimate.
        at
            When; None: now. Not before a job submitted earlier.

        Returns
        -------
        int
            Its number.

        Raises
        ------
        InputError
            When it can never run, or lies in the past.
        """
        at = self.now if at is None else at
        runtime = estimate if runtime is None else runtime
        self._check(processors, estimate, runtime)
        last = self.submitted[-1] if self._jobs else -math.inf
        if not max(self.now, last) <= at < math.inf:
            raise InputError(
                f"jobs are submitted in order, from {max(self.now, last):g} on, got {at:g}"
            )
        self._ensure(1)
        number = self._jobs
        self._submit[number] = at
        self._width[number] = processors
        self._estimate[number] = estimate
        self._runtime[number] = runtime
        self._jobs += 1
        return number

    def submit_all(
        self, submit: FloatArray, processors: IntArray, estimate: FloatArray, runtime: FloatArray
    ) -> None:
        """Many jobs at once, as :meth:`submit` takes them; each valid and in order."""
        first, count = self._jobs, len(submit)
        self._ensure(count)
        for array, values in (
            (self._submit, submit),
            (self._width, processors),
            (self._estimate, estimate),
            (self._runtime, runtime),
        ):
            array[first : first + count] = values
        self._jobs += count

    def advance(self, until: float) -> None:
        """
        Moves the clock: everything up to and at ``until`` happens.

        Jobs submitted at the same moment after this are a later event of it.

        Raises
        ------
        InputError
            When that is in the past.
        """
        if until < self.now:
            raise InputError(f"the clock is at {self.now:g} and does not go back to {until:g}")
        ends = sorted(r.end for r in self._reservations.values() if r.end > self.now)
        last = kernels.advance(
            self._k,
            until,
            self.now,
            _POLICY[self.policy],
            self.semantics == "pyss",
            self.early == "compress",
            self.overrun == "extend",
            self._submit,
            self._width,
            self._estimate,
            self._runtime,
            self._start,
            self._finish,
            self._expected,
            self._promise,
            self._killed,
            self._queue,
            self._reserved,
            self._heap_time,
            self._heap_event,
            self._heap_order,
            self._times,
            self._free,
            self._jobs,
            np.array([*ends, math.inf]),
        )
        self.now = max(self.now, last) if math.isinf(until) else until
        profile_kernels.trim(self._k, self._times, self._free, self.now)
        self._forget_past_reservations()

    def run(self) -> None:
        """Moves the clock to the end of the last job."""
        self.advance(math.inf)

    def cancel(self, job: int) -> bool:
        """
        A job is not wanted any more; waiting, it goes, running, it is ended.

        Returns
        -------
        bool
            False when it had ended before.

        Raises
        ------
        InputError
            When there is no such job, or it has not been submitted yet.
        """
        state = self.job(job)
        if job >= self._k[K_NEXT]:
            raise InputError(f"job {job} has not been submitted yet")
        if state.finish is not None:
            return False
        if state.start is None:
            self._take_from_queue(job)
            self._start[job] = math.nan
        else:
            expected = float(self._expected[job])
            self._take_from_heap(job)
            self._change(self.now, expected, int(self._width[job]))
        self._finish[job] = self.now
        self._killed[job] = True
        self._room_came_back()
        return True

    # Reservations.

    def reserve(self, start: float, duration: float, processors: int) -> Reservation | Refusal:
        """
        Keeps processors free of jobs for a window.

        Returns
        -------
        Reservation or Refusal
            Refused when they are not free for all of it, by running jobs'
            estimates, other reservations, and what waiting jobs are promised:
            under conservative backfilling all of them, under EASY the first.

        Raises
        ------
        InputError
            When the window lies in the past, or is empty.
        """
        if not (self.now <= start < math.inf and 0 < duration < math.inf):
            raise InputError(
                f"a window begins at {self.now:g} or later and lasts, "
                f"got {duration:g} s from {start:g}"
            )
        if processors < 1:
            raise InputError(f"processors must be at least 1, got {processors}")
        end = start + duration
        self._ensure(0)
        head = self._hold_for_head(-1)
        least = profile_kernels.least_free(self._k, self._times, self._free, start, end)
        if head is not None:
            self._hold_for_head(+1, head)
        if least < processors:
            return Refusal(
                f"{least} processors are free from {start:g} to {end:g}, {processors} are asked",
                final=False,
            )
        self._reserved_so_far += 1
        made = Reservation(
            number=self._reserved_so_far, start=start, end=end, processors=processors
        )
        self._reservations[made.number] = made
        self._k[K_RESERVATIONS] = len(self._reservations)
        self._change(start, end, -processors)
        return made

    def release(self, reservation: Reservation) -> None:
        """
        Gives a reservation back, or what is left of it.

        Raises
        ------
        InputError
            When it is not there (any more).
        """
        if self._reservations.pop(reservation.number, None) is None:
            raise InputError(f"there is no reservation {reservation.number}")
        self._k[K_RESERVATIONS] = len(self._reservations)
        self._change(max(self.now, reservation.start), reservation.end, reservation.processors)
        self._room_came_back()

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """Those that have not ended, in the order made."""
        return tuple(self._reservations.values())

    # Looking.

    def job(self, number: int) -> JobState:
        """
        What is known of a job.

        Raises
        ------
        InputError
            When there is none of that number.
        """
        if not 0 <= number < self._jobs:
            raise InputError(f"there is no job {number}, the last one is {self._jobs - 1}")
        start, finish = float(self._start[number]), float(self._finish[number])
        # A running job's true end lies in the future, and is nobody's to know.
        ended = not math.isnan(finish) and finish <= self.now
        promise = math.nan
        if math.isnan(start) and self.policy == "conservative":
            (at,) = np.nonzero(self.waiting == number)
            promise = float(self._reserved[at[0]]) if len(at) else math.nan
        return JobState(
            number=number,
            processors=int(self._width[number]),
            estimate=float(self._estimate[number]),
            submit=float(self._submit[number]),
            start=_known(start),
            finish=finish if ended else None,
            expected=_known(float(self._expected[number])),
            promise=_known(promise),
            killed=bool(self._killed[number]) and ended,
        )

    def times(self, number: int) -> tuple[float | None, float | None]:
        """
        Return when a job began and ended; None for what has not happened yet.

        Cheaper than :meth:`job`, which says the same and more.
        """
        start, finish = float(self._start[number]), float(self._finish[number])
        return _known(start), finish if finish <= self.now else None

    def outcome(self) -> tuple[FloatArray, FloatArray, NDArray[np.bool_], FloatArray]:
        """
        What became of every job, or will by what has been decided so far.

        Returns
        -------
        start, finish, killed, promised : ndarray
            By job; NaN for what has not happened.
        """
        n = self._jobs
        return (
            self._start[:n].copy(),
            self._finish[:n].copy(),
            self._killed[:n].copy(),
            self._promise[:n].copy(),
        )

    @property
    def next_event(self) -> float:
        """
        When something happens next by itself, seconds; infinite when nothing will.

        A job submitted for later joins, one ends, one is started as promised, or a
        reservation is over.
        """
        moments = [r.end for r in self._reservations.values() if r.end > self.now]
        if self._k[K_HEAP]:
            moments.append(float(self._heap_time[0]))
        if self._k[K_NEXT] < self._jobs:
            moments.append(float(self._submit[self._k[K_NEXT]]))
        front, count = self._k[K_FRONT], self._k[K_QUEUE]
        if self.policy == "conservative" and count:
            moments.append(float(self._reserved[front : front + count].min()))
        return max(self.now, min(moments, default=math.inf))

    def ended(self, jobs: IntArray) -> NDArray[np.bool_]:
        """Which of the jobs have ended by now, shape of ``jobs``."""
        return np.asarray(self._finish[jobs] <= self.now)  # NaN where it has not started

    def started(self, jobs: IntArray) -> NDArray[np.bool_]:
        """Which of the jobs have started by now, shape of ``jobs``."""
        return np.asarray(self._start[jobs] <= self.now)  # NaN where it has not

    @property
    def waiting(self) -> IntArray:
        """Numbers of the jobs that wait, in order of submission."""
        front = self._k[K_FRONT]
        return self._queue[front : front + self._k[K_QUEUE]].copy()

    @property
    def running(self) -> IntArray:
        """Numbers of the jobs that run, ascending."""
        events = self._heap_event[: self._k[K_HEAP]]
        return np.sort(np.where(events < 0, ~events, events))

    @property
    def submitted(self) -> FloatArray:
        """When each job is submitted, those in the future included; a view."""
        return self._submit[: self._jobs]

    @property
    def estimates(self) -> FloatArray:
        """Seconds that each job asks for; a view."""
        return self._estimate[: self._jobs]

    @property
    def free(self) -> int:
        """Processors that no running job and no reservation holds now."""
        return int(self.profile()[1][0])

    def profile(self) -> tuple[FloatArray, IntArray]:
        """
        Processors free of running jobs (by their estimates) and reservations.

        Returns
        -------
        times, free : ndarray
            ``free[i]`` are free from ``times[i]`` to ``times[i + 1]``, the last
            ones for ever; the first time is now.
        """
        begin, end, width = self._held()
        times = np.concatenate(([self.now], np.maximum(begin, self.now), end))
        steps = np.concatenate(([self.processors], -width, width))
        times, at = np.unique(times, return_inverse=True)
        free = np.cumsum(np.bincount(at, weights=steps, minlength=len(times))).astype(np.int64)
        changes = np.concatenate(([True], np.diff(free) != 0))
        return times[changes], free[changes]

    def expected_starts(self) -> FloatArray:
        """
        When each waiting job will start if every job runs as long as estimated.

        Returns
        -------
        ndarray
            Seconds, in the order of :attr:`waiting`. Under conservative
            backfilling these are the promises.
        """
        if self.policy == "conservative":
            return self._reserved[: self._k[K_QUEUE]].copy()
        future = self._future()
        future.run()
        starts: FloatArray = future._start[len(self.running) : future._jobs]
        return starts

    def expected_start(self, processors: int, estimate: float) -> float:
        """
        When a job that is submitted now will start if every job runs as long as estimated.

        Nothing changes. It costs what runs and waits, whatever has ended before.

        Raises
        ------
        InputError
            When it can never run.
        """
        self._check(processors, estimate, estimate)
        if self.policy == "conservative":
            return profile_kernels.earliest(
                self._k, self._times, self._free, processors, estimate, self.now, math.inf
            )
        future = self._future()
        job = future.submit(processors, estimate)
        future.run()
        return float(future._start[job])

    def slot_horizon(self) -> float:
        """The first multiple of 24 hours from now strictly after the last reservation's end."""
        last = max(self.schedule()[1].tolist(), default=self.now)
        return self.now + DAY * (math.floor((last - self.now) / DAY) + 1)

    def schedule(self) -> tuple[FloatArray, FloatArray, IntArray]:
        """
        All that is running, reserved or planned.

        Returns
        -------
        begin, end, width : ndarray
            Of running jobs and reservations, and of each waiting job where it
            will start by the estimates.
        """
        begin, end, width = self._held()
        waiting, starts = self.waiting, self.expected_starts()
        return (
            np.concatenate((begin, starts)),
            np.concatenate((end, starts + self._estimate[waiting])),
            np.concatenate((width, self._width[waiting])),
        )

    def free_slots(self, horizon: float | None = None) -> list[FreeSlot]:
        """
        What the machine can offer (HPDC'07 section 4), by start.

        Parameters
        ----------
        horizon
            Until when; None: :meth:`slot_horizon`.
        """
        horizon = self.slot_horizon() if horizon is None else horizon
        return free_slots(self.processors, self.now, horizon, *self.schedule())

    def free_area(self) -> list[FreeSlot]:
        """
        What the schedule leaves until its own end (e-Science 2006, section 4), by start.

        Rectangles as :meth:`free_slots` cuts them, but none past the last
        planned end, and none that could be divided or extended. Empty when
        nothing is planned.
        """
        end = max(self.schedule()[1].tolist(), default=self.now)
        slots = free_slots(self.processors, self.now, end, *self.schedule())
        return [replace(slot, divisible=False, extensible=False) for slot in slots]

    def copy(self) -> "Machine":
        """Another machine in the same state; what happens to one is not the other's."""
        twin = object.__new__(Machine)
        for name, value in self.__dict__.items():
            held = value.copy() if isinstance(value, np.ndarray | dict) else value
            twin.__dict__[name] = held
        return twin

    # Inside.

    def _check(self, processors: int, estimate: float, runtime: float) -> None:
        """That there can be such a job."""
        if not 1 <= processors <= self.processors:
            raise InputError(
                f"a job needs between 1 and {self.processors} processors, got {processors}"
            )
        if not (0 < estimate < math.inf and 0 < runtime < math.inf):
            raise InputError(
                f"estimate and runtime must be positive, got {estimate:g} and {runtime:g}"
            )

    def _allocate(self, capacity: int) -> None:
        """Room for so many jobs; what is there is kept."""
        steps = 2 * capacity + 16
        kinds = (
            ("_submit", np.float64, capacity),
            ("_width", np.int64, capacity),
            ("_estimate", np.float64, capacity),
            ("_runtime", np.float64, capacity),
            ("_start", np.float64, capacity),
            ("_finish", np.float64, capacity),
            ("_expected", np.float64, capacity),
            ("_promise", np.float64, capacity),
            ("_killed", np.bool_, capacity),
            ("_queue", np.int64, capacity),
            ("_reserved", np.float64, capacity),
            ("_heap_time", np.float64, capacity),
            ("_heap_event", np.int64, capacity),
            ("_heap_order", np.int64, capacity),
            ("_times", np.float64, steps),
            ("_free", np.int64, steps),
        )
        for name, kind, size in kinds:
            array = np.full(size, math.nan) if kind is np.float64 else np.zeros(size, dtype=kind)
            old = self.__dict__.get(name)
            if old is not None:
                array[: len(old)] = old
            self.__dict__[name] = array
        self._capacity = capacity

    def _ensure(self, more: int) -> None:
        """Room for more jobs, and for the profile of all there are."""
        needed = self._jobs + more + len(self._reservations) + 2
        if needed > self._capacity:
            self._allocate(max(2 * self._capacity, needed))

    def _change(self, begin: float, end: float, amount: int) -> None:
        self._ensure(0)
        profile_kernels.trim(self._k, self._times, self._free, self.now)
        profile_kernels.change(self._k, self._times, self._free, begin, end, amount)

    def _held(self) -> tuple[FloatArray, FloatArray, IntArray]:
        """Start, end and width of running jobs and of reservations."""
        running = self.running
        kept = self._reservations.values()
        return (
            np.concatenate((self._start[running], [r.start for r in kept])),
            np.concatenate((self._expected[running], [r.end for r in kept])),
            np.concatenate(
                (self._width[running], np.array([r.processors for r in kept], dtype=np.int64))
            ),
        )

    def _hold_for_head(self, sign: int, head: float | None = None) -> float | None:
        """EASY promises its first waiting job a start: put it in the profile, or take it out."""
        if self.policy != "easy" or not self._k[K_QUEUE]:
            return None
        job = self._queue[self._k[K_FRONT]]
        if head is None:
            head = profile_kernels.earliest(
                self._k, self._times, self._free, int(self._width[job]),
                float(self._estimate[job]), self.now, math.inf,
            )  # fmt: skip
        self._change(head, head + float(self._estimate[job]), sign * int(self._width[job]))
        return head

    def _take_from_queue(self, job: int) -> None:
        front, count = int(self._k[K_FRONT]), int(self._k[K_QUEUE])
        at = front + int(np.nonzero(self.waiting == job)[0][0])
        begin = float(self._reserved[at])
        for array in (self._queue, self._reserved):
            array[at : front + count - 1] = array[at + 1 : front + count]
        self._k[K_QUEUE] = count - 1
        if self.policy == "conservative":
            self._change(begin, begin + float(self._estimate[job]), int(self._width[job]))

    def _take_from_heap(self, job: int) -> None:
        kernels.remove(self._k, self._heap_time, self._heap_event, self._heap_order, job)

    def _room_came_back(self) -> None:
        """Waiting jobs may start, or move forward, as after an early end."""
        if self.policy == "conservative" and self.early == "compress":
            kernels.compress(
                self._k, self.now, self._width, self._estimate, self._queue, self._reserved,
                self._times, self._free,
            )  # fmt: skip
        self._k[K_AGAIN] = 1
        self.advance(self.now)

    def _forget_past_reservations(self) -> None:
        past = [n for n, r in self._reservations.items() if r.end <= self.now]
        for number in past:
            del self._reservations[number]
        self._k[K_RESERVATIONS] = len(self._reservations)

    def _future(self) -> "Machine":
        """
        A machine with the jobs that run and wait now, in this order, and no others.

        Each will run as long as estimated, and nobody submits any more.
        """
        running, waiting = self.running, self.waiting
        running = running[np.argsort(self._start[running], kind="stable")]
        jobs = np.concatenate((running, waiting))
        count, first = len(jobs), len(running)
        twin = Machine(
            self.processors,
            self.policy,
            semantics=self.semantics,
            early=self.early,
            overrun=self.overrun,
            now=self.now,
        )
        twin._reservations = dict(self._reservations)
        twin._ensure(count)
        for ours, theirs in (
            (twin._submit, self._submit),
            (twin._width, self._width),
            (twin._estimate, self._estimate),
            (twin._runtime, self._estimate),
            (twin._start, self._start),
            (twin._expected, self._expected),
            (twin._finish, self._expected),
        ):
            ours[:count] = theirs[jobs]
        twin._jobs = count
        twin._queue[: len(waiting)] = np.arange(first, count)
        low, high = int(self._k[K_LOW]), int(self._k[K_HIGH])
        twin._times[: high - low] = self._times[low:high]
        twin._free[: high - low] = self._free[low:high]
        k = twin._k
        k[K_NEXT], k[K_QUEUE], k[K_HIGH] = count, len(waiting), high - low
        k[K_RESERVATIONS] = len(twin._reservations)
        for job in range(first):
            kernels.push(
                k,
                twin._heap_time,
                twin._heap_event,
                twin._heap_order,
                float(twin._expected[job]),
                job,
            )
        return twin


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
