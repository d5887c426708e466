"""Models a space-shared parallel machine with a batch scheduler, step by step."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bursar.cluster import kernels, profile_kernels
from bursar.cluster.job_table import (
    Early,
    JobState,
    JobTable,
    Overrun,
    Policy,
    SchedulingRules,
    Semantics,
)
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
from bursar.model.errors import InputError
from bursar.model.money import Refusal
from bursar.profile_kernel import merged, summed

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_POLICY = {"fcfs": kernels.FCFS, "easy": kernels.EASY, "conservative": kernels.CONSERVATIVE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """
    Processors kept free of jobs for a window.

    Parameters
    ----------
    number
        Identity of the reservation, unique on the machine.
    start, end
        Begin and end of the window, seconds.
    processors
        Number of processors kept free.
    """

    number: int
    start: float
    end: float
    processors: int


class Machine:
    """
    Runs jobs on processors in the order of a scheduling policy.

    A job's true run time only ends it; every decision is made by estimates. Submit
    jobs, reserve windows, move the clock on, look at any time.

    Parameters
    ----------
    processors
        Number of processors, all alike.
    policy, semantics, early, overrun
        Rules of scheduling: :class:`bursar.cluster.job_table.SchedulingRules`.
    now
        Time at which the clock begins, seconds.

    Raises
    ------
    InputError
        When an argument is not one of these, or two do not go together.
    """

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
        rules = SchedulingRules(policy, semantics, early, overrun)
        self.processors = processors
        self.rules = rules
        self.now = now
        self.jobs = JobTable()
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
        Submit a job, now or later.

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
            Number of the job.

        Raises
        ------
        InputError
            When it can never run, or lies in the past.
        """
        at = self.now if at is None else at
        runtime = estimate if runtime is None else runtime
        self._check(processors, estimate, runtime)
        last = self.jobs.submitted[-1] if self.jobs.count else -math.inf
        if not max(self.now, last) <= at < math.inf:
            raise InputError(
                f"jobs are submitted in order, from {max(self.now, last):g} on, got {at:g}"
            )
        self._ensure(1)
        return self.jobs.add(at, processors, estimate, runtime)

    def submit_all(
        self, submit: FloatArray, processors: IntArray, estimate: FloatArray, runtime: FloatArray
    ) -> None:
        """Submit many jobs at once, each valid as for :meth:`submit`, in order of submission."""
        self._ensure(len(submit))
        self.jobs.extend(submit, processors, estimate, runtime)

    def advance(self, until: float) -> None:
        """
        Move the clock: everything up to and at ``until`` happens.

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
            _POLICY[self.rules.policy],
            self.rules.semantics == "pyss",
            self.rules.early == "compress",
            self.rules.overrun == "extend",
            self.jobs.submit,
            self.jobs.width,
            self.jobs.estimate,
            self.jobs.runtime,
            self.jobs.start,
            self.jobs.finish,
            self.jobs.expected,
            self.jobs.promise,
            self.jobs.killed,
            self._queue,
            self._reserved,
            self._heap_time,
            self._heap_event,
            self._heap_order,
            self._times,
            self._free,
            self.jobs.count,
            np.array([*ends, math.inf]),
        )
        # A run to the end stops the clock at the last event: jobs may be submitted later.
        self.now = max(self.now, last) if math.isinf(until) else until
        profile_kernels.trim(self._k, self._times, self._free, self.now)
        self._forget_past_reservations()

    def run(self) -> None:
        """Move the clock to the end of the last job."""
        self.advance(math.inf)

    def cancel(self, job: int) -> bool:
        """
        Withdraw a waiting job, or end a running one.

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
            self.jobs.start[job] = math.nan
        else:
            expected = float(self.jobs.expected[job])
            self._take_from_heap(job)
            self._change(self.now, expected, int(self.jobs.width[job]))
        self.jobs.finish[job] = self.now
        self.jobs.killed[job] = True
        self._room_came_back()
        return True

    # Reservations.

    def reserve(self, start: float, duration: float, processors: int) -> Reservation | Refusal:
        """
        Keep processors free of jobs for a window.

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
        # EASY's promise is put into the profile only while looking: keep the moment found then.
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
        Give back a reservation, or the part that is left.

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
        """Reservations that have not ended, in the order made."""
        return tuple(self._reservations.values())

    # Looking.

    def job(self, number: int) -> JobState:
        """
        Return what is known of a job.

        Raises
        ------
        InputError
            When there is none of that number.
        """
        self.jobs.check(number)
        promise = math.nan
        if math.isnan(self.jobs.start[number]) and self.rules.policy == "conservative":
            (at,) = np.nonzero(self.waiting == number)
            promise = float(self._reserved[at[0]]) if len(at) else math.nan
        return self.jobs.state(number, self.now, promise)

    @property
    def next_event(self) -> float:
        """
        Time of the next event, seconds; infinite when none is due.

        A job submitted for later joins, one ends, one is started as promised, or a
        reservation is over.
        """
        moments = [r.end for r in self._reservations.values() if r.end > self.now]
        if self._k[K_HEAP]:
            moments.append(float(self._heap_time[0]))
        if self._k[K_NEXT] < self.jobs.count:
            moments.append(float(self.jobs.submit[self._k[K_NEXT]]))
        front, count = self._k[K_FRONT], self._k[K_QUEUE]
        if self.rules.policy == "conservative" and count:
            moments.append(float(self._reserved[front : front + count].min()))
        return max(self.now, min(moments, default=math.inf))

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
    def free(self) -> int:
        """Processors that no running job and no reservation holds now."""
        return int(self.profile()[1][0])

    def profile(self) -> tuple[FloatArray, IntArray]:
        """
        Return processors free of running jobs (by their estimates) and reservations.

        Returns
        -------
        times, free : ndarray
            ``free[i]`` are free from ``times[i]`` to ``times[i + 1]``, the last
            ones for ever; the first time is now.
        """
        begin, end, width = self._held()
        times, held = summed(
            np.concatenate(([self.now], np.maximum(begin, self.now))),  # the first step is now
            np.concatenate(([math.inf], end)),
            np.concatenate(([0], width)),
        )
        return merged(times, self.processors - held)

    def expected_starts(self) -> FloatArray:
        """
        Return when each waiting job will start if every job runs as long as estimated.

        Returns
        -------
        ndarray
            Seconds, in the order of :attr:`waiting`. Under conservative
            backfilling these are the promises.
        """
        if self.rules.policy == "conservative":
            return self._reserved[: self._k[K_QUEUE]].copy()
        future = self._future()
        future.run()
        starts: FloatArray = future.jobs.start[len(self.running) : future.jobs.count]
        return starts

    def expected_start(self, processors: int, estimate: float) -> float:
        """
        Return when a job submitted now will start if every job runs as long as estimated.

        Nothing changes. The time taken grows with the jobs that run and wait, not with those
        that have ended.

        Raises
        ------
        InputError
            When it can never run.
        """
        self._check(processors, estimate, estimate)
        if self.rules.policy == "conservative":
            return profile_kernels.earliest(
                self._k, self._times, self._free, processors, estimate, self.now, math.inf
            )
        future = self._future()
        job = future.submit(processors, estimate)
        future.run()
        return float(future.jobs.start[job])

    def schedule(self) -> tuple[FloatArray, FloatArray, IntArray]:
        """
        Return all that is running, reserved or planned.

        Returns
        -------
        begin, end, width : ndarray
            Those of running jobs and reservations, and of waiting jobs where they will
            start by the estimates.
        """
        begin, end, width = self._held()
        waiting, starts = self.waiting, self.expected_starts()
        return (
            np.concatenate((begin, starts)),
            np.concatenate((end, starts + self.jobs.estimate[waiting])),
            np.concatenate((width, self.jobs.width[waiting])),
        )

    def copy(self) -> "Machine":
        """Return another machine in the same state; neither changes the other."""
        twin = object.__new__(Machine)
        for name, value in self.__dict__.items():
            held = value.copy() if isinstance(value, np.ndarray | dict | JobTable) else value
            twin.__dict__[name] = held
        return twin

    # Inside.

    def _check(self, processors: int, estimate: float, runtime: float) -> None:
        """Raise unless the machine could ever run this job."""
        if not 1 <= processors <= self.processors:
            raise InputError(
                f"a job needs between 1 and {self.processors} processors, got {processors}"
            )
        if not (0 < estimate < math.inf and 0 < runtime < math.inf):
            raise InputError(
                f"estimate and runtime must be positive, got {estimate:g} and {runtime:g}"
            )

    def _allocate(self, capacity: int) -> None:
        """Make room for so many jobs; what is there is kept."""
        steps = 2 * capacity + 16
        kinds = (
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
        self.jobs.grow(capacity)
        self._capacity = capacity

    def _ensure(self, more: int) -> None:
        """Make room for more jobs, and for the profile of all there are."""
        needed = self.jobs.count + more + len(self._reservations) + 2
        # Doubling, so that growth job by job seldom copies the arrays.
        if needed > self._capacity:
            self._allocate(max(2 * self._capacity, needed))

    def _change(self, begin: float, end: float, amount: int) -> None:
        self._ensure(0)
        profile_kernels.trim(self._k, self._times, self._free, self.now)
        profile_kernels.change(self._k, self._times, self._free, begin, end, amount)

    def _held(self) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return start, end and width of running jobs and of reservations."""
        running = self.running
        kept = self._reservations.values()
        return (
            np.concatenate((self.jobs.start[running], [r.start for r in kept])),
            np.concatenate((self.jobs.expected[running], [r.end for r in kept])),
            np.concatenate(
                (self.jobs.width[running], np.array([r.processors for r in kept], dtype=np.int64))
            ),
        )

    def _hold_for_head(self, sign: int, head: float | None = None) -> float | None:
        """Add EASY's promise to the first waiting job to the profile, or remove the promise."""
        if self.rules.policy != "easy" or not self._k[K_QUEUE]:
            return None
        job = self._queue[self._k[K_FRONT]]
        if head is None:
            head = profile_kernels.earliest(
                self._k, self._times, self._free, int(self.jobs.width[job]),
                float(self.jobs.estimate[job]), self.now, math.inf,
            )  # fmt: skip
        self._change(head, head + float(self.jobs.estimate[job]), sign * int(self.jobs.width[job]))
        return head

    def _take_from_queue(self, job: int) -> None:
        front, count = int(self._k[K_FRONT]), int(self._k[K_QUEUE])
        at = front + int(np.nonzero(self.waiting == job)[0][0])
        begin = float(self._reserved[at])
        for array in (self._queue, self._reserved):
            array[at : front + count - 1] = array[at + 1 : front + count]
        self._k[K_QUEUE] = count - 1
        if self.rules.policy == "conservative":
            self._change(begin, begin + float(self.jobs.estimate[job]), int(self.jobs.width[job]))

    def _take_from_heap(self, job: int) -> None:
        kernels.remove(self._k, self._heap_time, self._heap_event, self._heap_order, job)

    def _room_came_back(self) -> None:
        """Let waiting jobs start, or move forward, as after an early end."""
        if self.rules.policy == "conservative" and self.rules.early == "compress":
            kernels.compress(
                self._k, self.now, self.jobs.width, self.jobs.estimate, self._queue, self._reserved,
                self._times, self._free,
            )  # fmt: skip
        # No event of this moment wakes the policy, so it is told to look again.
        self._k[K_AGAIN] = 1
        self.advance(self.now)

    def _forget_past_reservations(self) -> None:
        past = [n for n, r in self._reservations.items() if r.end <= self.now]
        for number in past:
            del self._reservations[number]
        self._k[K_RESERVATIONS] = len(self._reservations)

    def _future(self) -> "Machine":
        """
        Return a machine with the jobs that run and wait now, in this order, and no others.

        Each will run as long as estimated, and nobody submits any more.
        """
        running, waiting = self.running, self.waiting
        # Events of one moment keep the order of insertion: jobs that end together, by their starts.
        running = running[np.argsort(self.jobs.start[running], kind="stable")]
        jobs = np.concatenate((running, waiting))
        count, first = len(jobs), len(running)
        twin = Machine(
            self.processors,
            self.rules.policy,
            semantics=self.rules.semantics,
            early=self.rules.early,
            overrun=self.rules.overrun,
            now=self.now,
        )
        twin._reservations = dict(self._reservations)
        twin._ensure(count)
        for ours, theirs in (
            (twin.jobs.submit, self.jobs.submit),
            (twin.jobs.width, self.jobs.width),
            (twin.jobs.estimate, self.jobs.estimate),
            (twin.jobs.runtime, self.jobs.estimate),
            (twin.jobs.start, self.jobs.start),
            (twin.jobs.expected, self.jobs.expected),
            (twin.jobs.finish, self.jobs.expected),
        ):
            ours[:count] = theirs[jobs]
        twin.jobs.count = count
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
                float(twin.jobs.expected[job]),
                job,
            )
        return twin
