"""Simulates a local resource manager on virtual time."""

import asyncio
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bursar.cluster.machine import Reservation
from bursar.model.errors import InputError, SiteError
from bursar.model.money import Refusal
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobEnding,
    JobReport,
    JobRequest,
    JobUsage,
    ManagerCapabilities,
    QueuedJob,
    QueueReservation,
    QueueState,
)
from bursar.simulation.loaded_cluster import LoadedCluster
from bursar_devtools.simulated_jobs import (
    OnJobStart,
    SchedulerLatency,
    SimulatedJob,
    check_request,
    filled_nodes,
)

_ESTIMATES = 12
"""Times that are tried between the least and the most that a job asks for."""


class SimulatedResourceManager:
    """
    The manager of a machine on virtual time. Seconds since the epoch are those of the loop.

    Parameters
    ----------
    cluster
        The machine with its own jobs. It is moved on from now, or from the loop's second 0
        where none runs yet.
    launch
        Is told of jobs that start; None: each runs until its limit.
    latency
        Of the scheduler.
    rng
        Draws the spread of starts.
    name
        Of its one node, or the beginning of its nodes' names.
    per_node
        Processors of a node; None: all are of one. Jobs are placed on processors, wherever
        these are; only sizes count.
    longest
        Most seconds that a job may ask for; None: no limit.
    may_reserve
        Whether its users may keep processors in advance.

    Attributes
    ----------
    is_reachable
        Set to False, nothing is answered, and jobs run on.
    commands
        How often it was asked.

    Notes
    -----
    A job over a range of nodes waits for the fewest, and takes at its start what else is free. A
    job whose time may be cut is cut when it is submitted, to the longest that lets it start then.
    """

    def __init__(
        self,
        cluster: LoadedCluster,
        launch: OnJobStart | None = None,
        *,
        latency: SchedulerLatency | None = None,
        rng: np.random.Generator | None = None,
        name: str = "simulated",
        per_node: int | None = None,
        longest: float | None = None,
        may_reserve: bool = False,
    ) -> None:
        if per_node is not None and (per_node < 1 or cluster.machine.processors % per_node):
            raise InputError(
                f"{cluster.machine.processors} processors are no nodes of {per_node} each"
            )
        self._cluster = cluster
        self._machine = cluster.machine
        self._launch = launch
        self._latency = latency or SchedulerLatency()
        self._rng = rng or np.random.default_rng(0)
        self._name = name
        self._per_node = per_node
        self._longest = longest
        self._may_reserve = may_reserve
        self._shift = cluster.now - _loop_time()  # of its clock against the loop's
        self._turn = asyncio.Lock()
        self._jobs: dict[str, SimulatedJob] = {}
        self._of_number: dict[int, SimulatedJob] = {}
        self._waiting: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._running: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._windows: dict[str, Reservation] = {}
        self._in_windows: dict[str, list[SimulatedJob]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf  # for which the timer is set, on the cluster's clock
        self._last = 0
        self.is_reachable = True
        self.commands = 0

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities: all but giving back a bundle in part."""
        return ManagerCapabilities(
            arrays=True,
            node_ranges=self._per_node is not None,
            time_ranges=True,
            start_estimates=True,
            reservations=self._may_reserve,
            begin=True,
            accounting=True,
        )

    @property
    def cluster(self) -> LoadedCluster:
        """The simulated cluster, advanced to the present."""
        self._go_on()
        return self._cluster

    @property
    def jobs(self) -> list[SimulatedJob]:
        """All jobs that were handed in, the ended ones included, in the order of submission."""
        return list(self._jobs.values())

    # Jobs.

    async def submit(self, request: JobRequest) -> list[str]:
        """Submit jobs; see :class:`bursar.provisioning.lrm.resource_manager.ResourceManager`."""
        self._asked()
        width = self._check(request)
        async with self._turn:
            # One submission at a time, as a scheduler's command takes its lock: the next one waits
            # for its turn.
            await asyncio.sleep(self._latency.submission)
            self._must_be_reachable()
            now = asyncio.get_running_loop().time()
            self._last += 1
            jobs = []
            for element in range(request.copies):
                id = f"{self._last}" if request.copies == 1 else f"{self._last}_{element}"
                job = SimulatedJob(
                    id=id,
                    element=element,
                    request=request,
                    processors=width,
                    seconds=request.seconds,
                    submitted=now,
                )
                job._finish = self._end
                self._jobs[id] = job
                jobs.append(job)
            if request.reservation is not None:
                for job in jobs:
                    self._place_in_window(job, request.reservation)
            elif request.begin is not None and request.begin > now:
                for job in jobs:
                    job.reason = "waits for its begin"
                loop = asyncio.get_running_loop()
                loop.call_at(request.begin, self._enqueue, jobs)
            else:
                self._enqueue(jobs)
            return [job.id for job in jobs]

    async def cancel(self, ids: Sequence[str]) -> None:
        """End jobs at once; ended and unknown ones are no error."""
        self._asked()
        self._go_on()
        for id in ids:
            job = self._jobs.get(id)
            if job is not None:
                self._stop(job, "cancelled")
        self._go_on()

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """Return the states of jobs."""
        self._asked()
        self._go_on()
        starts = self._expected_starts() if any(self._waits(id) for id in ids) else {}
        return {id: self._report(id, starts) for id in ids}

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Return the usage of jobs that have started."""
        self._asked()
        now = self._go_on()
        found = {}
        for id in ids:
            job = self._jobs.get(id)
            if job is None or job.state not in ("running", "ended"):
                continue
            end = now if job.ended is None else job.ended
            held = 0.0 if job.began is None else end - job.began
            processors = 0 if job.began is None else job.processors
            found[id] = JobUsage(id=id, processors=processors, seconds=held, how=job.how)
        return found

    def lose(self, id: str, how: JobEnding = "node-fail") -> None:
        """Make a job fail, as after the loss of a node."""
        self._go_on()
        self._stop(self._jobs[id], how)
        self._go_on()

    # The queue.

    async def queue(self) -> QueueState:
        """Return the nodes, the jobs of all users, and the reservations."""
        self._asked()
        now = self._go_on()
        machine, shift = self._machine, self._shift
        jobs = []
        for number in (*machine.running.tolist(), *machine.waiting.tolist()):
            state = machine.job(number)
            mine = self._of_number.get(number)
            jobs.append(
                QueuedJob(
                    id=mine.id if mine is not None else f"m{number}",
                    running=state.start is not None,
                    processors=state.processors,
                    submitted=state.submit - shift,
                    began=None if state.start is None else state.start - shift,
                    seconds=state.estimate,
                    own=mine is not None,
                )
            )
        own = {kept.number: name for name, kept in self._windows.items()}
        windows = tuple(
            QueueReservation(
                name=own.get(kept.number, f"r{kept.number}"),
                start=kept.start - shift,
                seconds=kept.end - kept.start,
                processors=kept.processors,
                own=kept.number in own,
            )
            for kept in machine.reservations
        )
        return QueueState(
            at=now,
            nodes=self._nodes(sum(job.processors for job in jobs if job.running)),
            jobs=tuple(jobs),
            windows=windows,
            longest=self._longest,
        )

    async def expected_start(self, request: JobRequest) -> float | None:
        """Return when a request would start by the estimates of running and waiting jobs."""
        self._asked()
        width = self._check(request)
        now = self._go_on()
        if request.reservation is not None:
            kept = self._windows.get(request.reservation)
            return None if kept is None else max(now, kept.start - self._shift)
        begin = self._machine.expected_start(width, request.seconds) - self._shift
        return begin if request.begin is None else max(begin, request.begin)

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """
        Reserve processors; a start in the past means now.

        Raises
        ------
        SiteError
            When nobody may, they are not free, or the name is taken.
        """
        self._asked()
        if not self._may_reserve:
            raise SiteError(
                f"{self._name}: permission denied: only operators may keep processors in advance"
            )
        now = self._go_on()
        if name in self._windows:
            raise SiteError(f"{self._name}: there is a reservation {name!r} already")
        begin = max(start, now) + self._shift
        answer = self._machine.reserve(begin, seconds, processors)
        if isinstance(answer, Refusal):
            raise SiteError(f"{self._name}: {answer.reason}")
        self._windows[name] = answer
        self._in_windows[name] = []
        self._set_timer()

    async def unreserve(self, name: str) -> None:
        """Cancel a reservation and the jobs inside; an unknown one is no error."""
        self._asked()
        self._go_on()
        for job in self._in_windows.pop(name, []):
            self._stop(job, "cancelled")
        kept = self._windows.pop(name, None)
        if kept is not None and kept in self._machine.reservations:
            self._machine.release(kept)
        self._go_on()

    # Inside.

    def _asked(self) -> None:
        self.commands += 1
        self._must_be_reachable()

    def _must_be_reachable(self) -> None:
        if not self.is_reachable:
            raise SiteError(f"{self._name} gives no answer", transient=True)

    def _check(self, request: JobRequest) -> int:
        """Check a request and return the least number of processors requested."""
        fewest = check_request(request)
        per_node = self._per_node or self._machine.processors
        whole = request.nodes is not None or request.together
        if whole and request.processors > per_node:
            raise SiteError(
                f"{self._name}: nodes have {per_node} processors, {request.processors} are asked"
            )
        width = request.processors * fewest
        if width > self._machine.processors:
            raise SiteError(
                f"{self._name} has {self._machine.processors} processors, {width} are asked"
            )
        if self._longest is not None and request.seconds > self._longest:
            raise SiteError(
                f"{self._name}: jobs have {self._longest:g} s at most, {request.seconds:g} are "
                'asked (lower "longest" of the pool)'
            )
        return width

    def _enqueue(self, jobs: Sequence[SimulatedJob]) -> None:
        if self._cluster.has_jobs or any(job.request.least_seconds is not None for job in jobs):
            self._go_on()  # its own jobs of the time until now come before these
        moment = asyncio.get_running_loop().time() + self._shift
        moment = max(moment, self._machine.now)
        numbers = []
        for job in jobs:
            if job.state != "pending":
                continue
            job.reason = "waits for processors"
            job.seconds = self._seconds_for(job)
            number = self._machine.submit(job.processors, job.seconds, at=moment)
            job._numbers.append(number)
            self._of_number[number] = job
            numbers.append(number)
        self._waiting = np.concatenate((self._waiting, np.array(numbers, dtype=np.int64)))
        self._go_on()

    def _seconds_for(self, job: SimulatedJob) -> float:
        """Return the longest time with which a job starts now; if none, the requested time."""
        least, most = job.request.least_seconds, job.request.seconds
        machine = self._machine
        if least is None or machine.expected_start(job.processors, most) <= machine.now:
            return most
        if machine.expected_start(job.processors, least) > machine.now:
            return most
        low, high = least, most
        # By bisection: a shorter job never starts later, so what starts now is an interval from the
        # shortest on.
        for _ in range(_ESTIMATES):
            middle = (low + high) / 2
            if machine.expected_start(job.processors, middle) <= machine.now:
                low = middle
            else:
                high = middle
        return low

    def _place_in_window(self, job: SimulatedJob, name: str) -> None:
        kept = self._windows.get(name)
        if kept is None:
            job.state, job.how, job.ended = "ended", "rejected", job.submitted
            job.reason = f"there is no reservation {name!r}"
            return
        job._window = name
        self._in_windows[name].append(job)
        begin = max(job.submitted, kept.start - self._shift)
        job._timer = asyncio.get_running_loop().call_at(begin, self._open_window, name)

    def _open_window(self, name: str) -> None:
        """Start the jobs that fit into an open reservation."""
        kept = self._windows.get(name)
        if kept is None:
            return
        now = self._go_on()
        inside = self._in_windows[name]
        left = kept.processors - sum(job.processors for job in inside if job.state == "running")
        end = kept.end - self._shift
        for job in inside:
            if job.state != "pending" or job.processors > left or end <= now:
                continue
            left -= job.processors
            job.seconds = min(job.seconds, end - now)
            self._begin(job, now)
            # The machine knows the reservation only, not the jobs inside: their limits are kept
            # here.
            asyncio.get_running_loop().call_at(job.until, self._stop, job, "timeout")

    def _go_on(self) -> float:
        """Advance the machine to the loop's time, follow all events, and return the time."""
        now = asyncio.get_running_loop().time()
        moment = now + self._shift
        # What starts may end at once and let others start, until nothing happens any more.
        while True:
            self._cluster.advance(max(moment, self._cluster.now))
            if not (self._follow_ends(now) | self._follow_starts(now)):
                break
        self._set_timer()
        return now

    def _follow_starts(self, now: float) -> bool:
        begun = self._machine.jobs.started(self._waiting, self._machine.now)
        if not begun.any():
            return False
        numbers = self._waiting[begun]
        self._waiting = self._waiting[~begun]
        self._running = np.concatenate((self._running, numbers))
        for number in numbers.tolist():
            job = self._of_number[number]
            if job.request.nodes is not None and job.request.nodes[1] > job.request.nodes[0]:
                self._widen(job)
            self._begin(job, now)
        return True

    def _widen(self, job: SimulatedJob) -> None:
        """Give a starting job with a range of nodes the processors that are still free."""
        assert job.request.nodes is not None
        fewest, most = job.request.nodes
        # As a second job of the machine, which knows no ranges; both end together.
        more = min(most - fewest, self._machine.free // job.request.processors)
        more *= job.request.processors
        if more < 1:
            return
        number = self._machine.submit(more, job.seconds)
        self._cluster.advance(self._cluster.now)
        if self._machine.job(number).start is None:  # others come first
            self._machine.cancel(number)
            return
        job._numbers.append(number)
        job.processors += more
        self._of_number[number] = job

    def _follow_ends(self, now: float) -> bool:
        over = self._machine.jobs.ended(self._running, self._machine.now)
        if not over.any():
            return False
        numbers = self._running[over]
        self._running = self._running[~over]
        for number in numbers.tolist():
            job = self._of_number[number]
            if job.state == "running":
                self._stop(job, "timeout")
        return True

    def _begin(self, job: SimulatedJob, now: float) -> None:
        job.state, job.began, job.reason = "running", now, ""
        if self._launch is None:
            return
        # Real schedulers start a job's script some time after the job counts as running.
        late = self._latency.start
        if self._latency.spread > 0:
            late += float(self._rng.uniform(0.0, self._latency.spread))
        job._timer = asyncio.get_running_loop().call_later(late, self._run, job)

    def _run(self, job: SimulatedJob) -> None:
        job._timer = None
        if self._launch is not None and job.state == "running":
            kill = self._launch(job)
            if job.state == "running":
                job._kill = kill

    def _end(self, job: SimulatedJob, how: JobEnding) -> None:
        """End a job whose script has ended."""
        job._kill = None
        self._stop(job, how)
        self._soon()

    def _stop(self, job: SimulatedJob, how: JobEnding) -> None:
        """A job comes to its end now. One that has ended is left as it is."""
        if job.state == "ended":
            return
        now = asyncio.get_running_loop().time()
        job.state, job.how, job.ended = "ended", how, now
        job.reason = how
        if job._timer is not None:
            job._timer.cancel()
        for number in job._numbers:
            self._machine.cancel(number)
        gone = np.array(job._numbers, dtype=np.int64)
        if len(gone):
            self._waiting = self._waiting[~np.isin(self._waiting, gone)]
        kill, job._kill = job._kill, None
        if kill is not None:
            kill()
        if job._window is not None and job._window in self._windows:
            asyncio.get_running_loop().call_soon(self._open_window, job._window)

    def _soon(self) -> None:
        """Looks again within this moment: others may start."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._due = -math.inf
        self._timer = loop.call_at(loop.time(), self._on_timer)

    def _set_timer(self) -> None:
        self._due = math.inf  # with nothing that anybody waits for
        if len(self._waiting) or len(self._running):
            self._due = self._cluster.next_event
        event = self._due - self._shift
        if self._timer is not None:
            if not self._timer.cancelled() and self._timer.when() == event:
                return
            self._timer.cancel()
            self._timer = None
        # An unchanged timer was kept above, as a cancelled one stays in the loop's heap.
        if event < math.inf:
            self._timer = asyncio.get_running_loop().call_at(event, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # From one clock to the other and back, the moment must not be missed by a rounding.
        self._cluster.advance(max(self._due, self._cluster.now))
        self._go_on()

    def _waits(self, id: str) -> bool:
        job = self._jobs.get(id)
        return job is not None and job.state == "pending"

    def _expected_starts(self) -> dict[int, float]:
        """Return the expected start of each waiting job, loop time, by job number."""
        starts = self._machine.expected_starts() - self._shift
        return dict(zip(self._machine.waiting.tolist(), starts.tolist(), strict=True))

    def _report(self, id: str, starts: Mapping[int, float]) -> JobReport:
        job = self._jobs.get(id)
        if job is None:
            return JobReport(id=id, state="unknown", reason="there is no such job")
        expected = None
        if job.state == "pending" and job._numbers:
            expected = starts.get(job._numbers[0])
        elif job.state == "pending":
            expected = job.request.begin
        return JobReport(
            id=id,
            state=job.state,
            how=job.how,
            reason=job.reason,
            began=job.began,
            ended=job.ended,
            until=job.until if job.state == "running" else None,
            processors=job.processors,
            expected=expected,
        )

    def _nodes(self, held: int) -> tuple[ClusterNode, ...]:
        """Return the nodes, filled one after the other with the processors in use."""
        kept = sum(
            r.processors
            for r in self._machine.reservations
            if r.start <= self._machine.now
            and r.number not in {window.number for window in self._windows.values()}
        )
        held += sum(
            job.processors
            for jobs in self._in_windows.values()
            for job in jobs
            if job.state == "running"
        )
        size = self._per_node or self._machine.processors
        left = min(held + kept, self._machine.processors)
        return filled_nodes(
            self._name, self._machine.processors // size, size, left, are_one=self._per_node is None
        )


def _loop_time() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return 0.0
