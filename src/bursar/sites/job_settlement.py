"""
Determine the time that each lease's jobs held processors, by the scheduler's record.

The same questions are asked for a lease that was just given back and for one of a killed life:
which job was it, has it ended, and from when to when does the scheduler say that it ran? A job
that is there still is ended first. Where the scheduler has no record any more, the most that the
job may have held is taken.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bursar.market.lease import Lease
from bursar.model.errors import SiteError
from bursar.provisioning.accounting import PilotUsage, append_usage
from bursar.provisioning.lrm.resource_manager import JobReport, JobUsage, ResourceManager
from bursar.sites.job_watch import LATEST
from bursar.sites.pilot_job_journal import (
    HoldingInterval,
    JobFinder,
    PilotJobJournal,
    PilotJobLine,
    RecoveredJobs,
)
from bursar.sites.protocol import MeteredTime
from bursar.supervisor import TaskSupervisor

LATE = 120.0
"""
Seconds in which a request that a killed process made may still become a job: the command that
carries it waits for the scheduler, and outlives who started it.
"""

SUBMITTERS = frozenset({"sbatch", "qsub", "bsub", "flux"})
"""Names of the commands that carry requests."""

UNRECORDED = 10.0
"""Seconds in no list and no record after which a job counts as unrecorded for good:
accounting may lag behind the queue."""

_SOONEST, _SLOWER, _LATEST = 0.2, 1.3, 2.0  # seconds between two questions, and their growth
_CANCEL_AGAIN = 5.0  # seconds
_STOPPED = 3.0  # seconds that a job which has stopped has to end before its end is taken as final
_EARLIER, _LATER = 2.0, 30.0  # seconds around a request in which its command was started
_SKEW = 60.0  # seconds by which the scheduler's clock may differ from ours
_THERE = ("pending", "held", "running")


@dataclass(slots=True, eq=False)
class _UnsettledLease:
    """A lease whose held time is not known yet."""

    lease: Lease
    watched: float | None
    found: "asyncio.Future[MeteredTime]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class JobSettlement:
    """
    Determines for how long the jobs of one site's leases held processors.

    Parameters
    ----------
    record
        Journal of submissions, of this process and of earlier ones of the run.
    usage
        File that keeps the scheduler's own usage figure of each job.
    ready
        Returns when jobs that an earlier process left have been cancelled; raises SiteError when
        the scheduler cannot be asked.
    clock
        The present time by the scheduler's clock, seconds since the epoch.
    notify
        Called with a line for people when the scheduler cannot be asked.
    """

    def __init__(
        self,
        manager: ResourceManager,
        record: PilotJobJournal,
        usage: Path,
        *,
        ready: Callable[[], Awaitable[None]],
        clock: Callable[[], float],
        notify: Callable[[str], None],
    ) -> None:
        self._manager = manager
        self._record = record
        self._usage = usage
        self._ready = ready
        self._clock = clock
        self._notify = notify
        self._owed: dict[str, _UnsettledLease] = {}
        self._tasks = TaskSupervisor(self._on_failure)  # one at the most
        self._pause = _SOONEST
        self._began: dict[str, float] = {}  # of jobs, as it was heard last
        self._cancel_at: dict[str, float] = {}  # when jobs are to be told again, loop time
        self._unknown: dict[str, float] = {}  # since when jobs are, loop time
        self._stopped: dict[str, float] = {}  # since when jobs are stopping, loop time
        self._under_way: set[str] = set()  # names of this process's requests
        self._unanswered: set[str] = set()  # submissions without a clear answer
        self.notified: set[str] = set()
        """Jobs of which the scheduler's figure is in the file."""
        self.is_owed = False
        """Whether a caller stopped waiting before a lease was settled."""

    async def meter(self, lease: Lease, watched: float | None) -> MeteredTime:
        """Wait for a lease's held time; see :class:`bursar.sites.protocol.MeteringSite`."""
        owed = self._owed[lease.id] = _UnsettledLease(lease, watched)
        self._pause = _SOONEST
        if self._tasks.is_idle:
            self._tasks.start(self._ask_on())
        try:
            return await owed.found
        except asyncio.CancelledError:
            self.is_owed = True
            raise
        finally:
            self._owed.pop(lease.id, None)

    def record_report(self, report: JobReport) -> None:
        """Journal the time at which a job began, since the scheduler may forget that time."""
        known = self._began.get(report.id)
        if report.state == "running" and report.began is not None and report.began != known:
            self._began[report.id] = report.began
            self._record.began(report.id, report.began, report.until)
        elif report.state in ("pending", "held") and known is not None:
            del self._began[report.id]
            # Some schedulers record only the last time that a job ran: earlier ones are known only
            # here.
            self._record.requeued(report.id, self._clock())

    def asks(self, name: str) -> None:
        """Note that a request of this process is about to be submitted."""
        self._under_way.add(name)

    def answered(self, name: str, *, clearly: bool) -> None:
        """
        Record the end of a submission command, and whether the answer settles the request's fate.
        """
        self._under_way.discard(name)
        if not clearly:
            self._unanswered.add(name)

    async def close(self) -> None:
        """Stop asking the scheduler."""
        await self._tasks.close()

    async def adopt(self, left: RecoveredJobs) -> dict[str, str]:
        """
        Find the jobs of requests whose answer was not recorded; return pilot names by job id.

        A name is a run's own, but a run of the same folder may have had it before: what ended
        before the request was made is not meant.

        Raises
        ------
        SiteError
            When the scheduler cannot be asked.
        """
        jobs: dict[str, str] = {}
        if not isinstance(self._manager, JobFinder):
            return jobs
        for name, handed in left.requests.items():
            found = [job for job in await self._manager.named(name) if job not in left.jobs]
            # Job names recur when a folder is used again; only jobs that ended after the request
            # can be its own. The skew allows for the scheduler's clock.
            if found and handed.at:
                reports = await self._manager.poll(found)
                oldest = handed.at - _SKEW
                found = [job for job in found if (reports[job].ended or oldest) >= oldest]
            if not found:
                continue
            # Requests of lasting sites name no pilots: their jobs are only ended, never billed.
            pilots = handed.pilots or ("",) * len(found)
            # Schedulers number jobs in the order of submission, the order in which pilots were
            # written down.
            mine = dict(zip(sorted(found, key=_number), pilots, strict=False))
            jobs |= mine
            if handed.pilots:
                self._record.has(name, mine)
        return jobs

    # Asking.

    async def _ask_on(self) -> None:
        notified = False
        while self._owed:
            try:
                await self._ready()
                await self._ask()
                notified = False
            except SiteError as error:
                if not notified:
                    # Once per outage, not once per attempt.
                    self._notify(f"{error}; asked again until its jobs are settled")
                notified = True
            await asyncio.sleep(self._pause)
            self._pause = min(self._pause * _SLOWER, _LATEST)

    def _on_failure(self, error: BaseException) -> None:
        """Pass a fault of ours on to all that wait for a lease."""
        for owed in self._owed.values():
            if not owed.found.done():
                owed.found.set_exception(error)

    async def _ask(self) -> None:
        """Ask the scheduler once about all leases that are not settled."""
        left = self._record.read()
        waiting = [owed for owed in self._owed.values() if not owed.found.done()]
        jobs = {pilot: job for job, pilot in left.jobs.items()}
        doubtful = [owed for owed in waiting if owed.lease.id not in jobs]
        if doubtful and left.requests:
            # Before the scheduler is asked: what a command does in between is seen there.
            never_arriving = {
                name for name, handed in left.requests.items() if not self._may_arrive(handed)
            }
            found = await self.adopt(left)
            # Judged only now, after the jobs were looked for: a request that arrived meanwhile has
            # its job recorded and is no longer in doubt.
            jobs |= {pilot: job for job, pilot in found.items()}
            self._judge_requests(left, never_arriving)
        known = [owed for owed in waiting if owed.lease.id in jobs]
        for owed in doubtful:
            if owed.lease.id not in jobs and not _is_awaited(owed.lease.id, self._record.read()):
                self._find(owed, MeteredTime(seconds=None))  # it was never handed in
        if not known:
            return
        ids = [jobs[owed.lease.id] for owed in known]
        reports = await self._manager.poll(ids)
        for job in ids:
            self.record_report(reports[job])
        there = [job for job in ids if reports[job].state in _THERE]
        await self._cancel(there)
        over = [job for job in ids if reports[job].state == "ended"]
        # Only of ended jobs: the usage of a job that still runs is not final.
        usage = await self._manager.usage(over) if over else {}
        # Read again: the reports just taken may have added times at which jobs ran.
        left = self._record.read()
        for owed in known:
            job = jobs[owed.lease.id]
            self._settle(owed, job, reports[job], usage.get(job), left.stints.get(job, []))

    def _may_arrive(self, handed: PilotJobLine) -> bool:
        """Whether a request of a killed process may still become a job."""
        # Bounds the wait where the submitting host cannot be looked into.
        if handed.at and self._clock() - handed.at > LATE:
            return False
        # A submission command survives the kill of its parent and may still reach the scheduler.
        return handed.host != socket.gethostname() or is_submitting(handed.at)

    def _judge_requests(self, left: RecoveredJobs, never_arriving: Collection[str]) -> None:
        """Requests that have not become jobs, and will not any more, are written off."""
        # A request that this process is just submitting is in the journal, too, and must not go.
        written_off = (self._unanswered | set(never_arriving)) - self._under_way
        for name in self._record.read().requests:
            if name in left.requests and name in written_off:
                self._record.refused(name)

    async def _cancel(self, jobs: Sequence[str]) -> None:
        """Cancel jobs, and repeat the cancellation for jobs that do not end."""
        now = asyncio.get_running_loop().time()
        due = [job for job in jobs if now >= self._cancel_at.get(job, now)]
        if due:
            await self._manager.cancel(due)
            # A cancellation can be lost with the controller; repeated, but not at every question.
            self._cancel_at.update(dict.fromkeys(due, now + _CANCEL_AGAIN))

    def _settle(
        self,
        owed: _UnsettledLease,
        job: str,
        report: JobReport,
        usage: JobUsage | None,
        stints: Sequence[HoldingInterval],
    ) -> None:
        now = asyncio.get_running_loop().time()
        if report.state in _THERE:
            self._unknown.pop(job, None)
            usage = self._stopping(job, report, now)
            if usage is None:
                return
        # Times before the job was put back: paid unless the scheduler's figure includes them.
        before = sum(s.requeued - s.began for s in stints if s.requeued is not None)
        if usage is not None and usage.is_whole:
            before = 0.0
        if usage is not None and usage.how is not None:
            has_run = usage.seconds > 0 or report.began is not None or before > 0
            seconds = usage.seconds + before
            # The first time counts of a job that was put back into the queue.
            began = stints[0].began if stints else report.began
            self._keep(owed, job, usage, seconds)
            self._find(owed, MeteredTime(began=began, seconds=seconds if has_run else None))
            return
        # Neither listed nor recorded: accounting may lag, so the worst case waits a little.
        since = self._unknown.setdefault(job, now)
        if now - since >= UNRECORDED:
            self._find(owed, self._worst(owed, stints))

    def _stopping(self, job: str, report: JobReport, now: float) -> JobUsage | None:
        """Return the held time of a stopped job without waiting for unresponsive nodes."""
        began, ended = report.began, report.ended
        # Slurm gives a completing job an end time at once; a crashed node would keep it completing,
        # and the run's end waiting, until the node is declared down.
        if began is None or ended is None or report.processors is None:
            return None
        # A moment of grace: the controller may still correct the end while epilogs run.
        if now - self._stopped.setdefault(job, now) < _STOPPED:
            return None
        seconds = max(0.0, ended - began)
        return JobUsage(id=job, processors=report.processors, seconds=seconds, how="unknown")

    def _worst(self, owed: _UnsettledLease, stints: Sequence[HoldingInterval]) -> MeteredTime:
        """
        Return the longest time that a job without a record may have held its processors.

        It ends at the earliest of the moments by which the job must have been over, but lasts no
        less than the journal saw.

        Parameters
        ----------
        stints
            Intervals, in order, in which the journal saw the job hold its processors; empty: the
            journal saw none.
        """
        lease, now = owed.lease, self._clock()
        ends = [now]
        if owed.watched is not None:
            # A pilot ends itself when its run has been silent for `unwatched` seconds.
            ends.append(owed.watched + lease.unwatched)
        if lease.until is not None:
            ends.append(lease.until + lease.unwatched)
        if stints:
            began = stints[0].began
            if stints[-1].until is not None:
                ends.append(stints[-1].until + lease.unwatched)
        elif lease.asked:  # whoever watched did not see it begin
            began = lease.start
            ends.append(began + lease.unwatched)
        else:
            began = lease.start - LATEST  # it is there a look before we see it
        # Moments of different clocks may be compared here. What the journal has seen to be held
        # was told by one, and is not taken back by another.
        seconds = max(_seen(owed), min(ends) - began)
        self._notify(
            f"no record of {lease.id} is left: it is paid for the {seconds:.0f} s that it may "
            "have held at the most"
        )
        return MeteredTime(began=began, seconds=seconds, is_recorded=False)

    def _keep(self, owed: _UnsettledLease, job: str, usage: JobUsage, seconds: float) -> None:
        row = PilotUsage(
            pilot=owed.lease.id,
            job=job,
            # Schedulers report no processors for a job cancelled after it was put back.
            processors=usage.processors or (owed.lease.processors if seconds else 0),
            seconds=seconds,
            how=usage.how or "unknown",
        )
        append_usage(self._usage, [row])
        self.notified.add(job)

    async def keep_usage(self, pilots: Mapping[str, str]) -> None:
        """
        Append the scheduler's figures of jobs that no settlement has reported.

        Parameters
        ----------
        pilots
            Pilots by the ids of their jobs.
        """
        jobs = [job for job in pilots if job not in self.notified]
        if not jobs:
            return
        try:
            said = await self._manager.usage(jobs)
        except SiteError as error:
            self._notify(f"no record of what was used: {error}")
            return
        rows = [
            PilotUsage(
                pilot=pilots[job],
                job=job,
                processors=used.processors,
                seconds=used.seconds,
                how=used.how or "unknown",
            )
            for job, used in said.items()
        ]
        append_usage(self._usage, rows)

    def _find(self, owed: _UnsettledLease, metering: MeteredTime) -> None:
        if not owed.found.done():
            owed.found.set_result(metering)


def is_submitting(asked: float) -> bool:
    """
    Whether a command that may carry a request still runs on this machine, for this user.

    Parameters
    ----------
    asked
        Moment at which the request was written down, seconds since the epoch; 0 if unknown. Its
        command was started then; those of other runs, started at other times, are not meant.
    """
    booted = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    ticks = os.sysconf("SC_CLK_TCK")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if process.stat().st_uid != os.getuid():
                continue
            name, _, fields = (process / "stat").read_text().partition("(")[2].rpartition(")")
            started = booted + int(fields.split()[19]) / ticks
            # Commands of the user's other runs, started at other times, once kept a resumed run
            # waiting for two minutes.
            is_near = not asked or -_EARLIER <= started - asked <= _LATER
            if name in SUBMITTERS and is_near:
                return True
    return False


def _seen(owed: _UnsettledLease) -> float:
    """Return for how many seconds a lease was seen to be held, by the journal's clock alone."""
    lease = owed.lease
    moments = [moment for moment in (owed.watched, lease.until) if moment is not None]
    # A lease only asked for has a planned start, not one that anybody saw.
    if lease.asked or not moments:
        return 0.0
    return max(0.0, min(moments) - lease.start)


def _is_awaited(pilot: str, left: RecoveredJobs) -> bool:
    """Whether a request for a pilot may still become a job."""
    return any(pilot in handed.pilots for handed in left.requests.values())


def _number(job: str) -> tuple[int, int]:
    """Return a key that sorts jobs by submission, elements of an array by index."""
    head, _, element = job.partition("_")
    digits = "".join(c for c in head if c.isdigit())
    return int(digits or 0), int(element) if element.isdigit() else 0
