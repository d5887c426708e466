"""Slurm adapter, by the commands that every user has."""

import asyncio
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import slurm_output, slurm_states
from bursar.provisioning.lrm.command_runner import CommandResult, CommandRunner
from bursar.provisioning.lrm.resource_manager import (
    JobReport,
    JobRequest,
    JobUsage,
    ManagerCapabilities,
    QueueState,
)
from bursar.provisioning.lrm.slurm_output import EPOCH, MOST_LISTED, SlurmRecords
from bursar.provisioning.lrm.slurm_states import MOST_ELEMENTS, check, script

FOUND_AFTER = (0.0, 1.0, 2.0)
"""Seconds after an unanswered submission at which the job is looked for."""

_PREFIXES = ("SBATCH_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_", "SLURM_TIME_")
_ON_LOGIN_NODES = (
    "SBATCH_ACCOUNT", "SBATCH_ARRAY_INX", "SBATCH_EXCLUSIVE", "SBATCH_JOB_NAME", "SBATCH_OUTPUT",
    "SBATCH_PARTITION", "SBATCH_QOS", "SBATCH_REQUEUE", "SBATCH_RESERVATION", "SBATCH_TEST_ONLY",
    "SBATCH_TIMELIMIT", "SBATCH_WAIT", "SINFO_FORMAT", "SINFO_PARTITION", "SACCT_FORMAT",
    "SQUEUE_FORMAT", "SQUEUE_PARTITION", "SQUEUE_STATES", "SQUEUE_USERS",
)  # fmt: skip


def shell_of(batch: BatchScheduler) -> CommandRunner:
    """
    Return the shell in which a site's commands are run.

    What users set for their own use of the commands must not hold for ours: it would overrule
    the directives of a script.
    """
    without: tuple[str, ...] = _ON_LOGIN_NODES
    if batch.ssh is None:
        without = tuple(name for name in os.environ if name.startswith(_PREFIXES))
    return CommandRunner(
        environment=batch.environment, without=without, ssh=batch.ssh, scheduler="Slurm"
    )


class Slurm:
    """
    Adapter to a Slurm cluster, by sbatch, squeue, sinfo, scontrol, scancel and sacct.

    Made for versions 20.11 to 24.11, and run on 22.05.

    Parameters
    ----------
    shell
        Runs the commands; None: a runner for the host that ``batch`` names.

    Notes
    -----
    Names of requests should be a user's only ones: by them a submission that was not answered
    is found again.
    """

    def __init__(self, batch: BatchScheduler, shell: CommandRunner | None = None) -> None:
        self._batch = batch
        self.shell = shell if shell is not None else shell_of(batch)
        self._me: str | None = None
        self._version: str | None = None
        self._doubtful: set[str] = set()
        self._given: dict[str, int] = {}  # jobs and arrays that were handed out, with their sizes
        self._seen: set[str] = set()  # other jobs of this user, known by name
        self._cancelled: set[str] = set()
        self._ran: set[str] = set()  # jobs that were listed as running
        self._requeued: set[str] = set()  # jobs that ran and were put back into the queue
        self._records = SlurmRecords(self.shell)

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of Slurm; whether accounting is kept depends on the site."""
        return ManagerCapabilities(
            arrays=True,
            node_ranges=True,
            time_ranges=True,
            start_estimates=True,
            reservations=True,
            begin=True,
            shrinks=True,
            accounting=self._records.accounting,
        )

    async def version(self) -> str:
        """Return the version, such as ``"22.05.8"``; Slurm is asked once."""
        if self._version is None:
            answer = await self.shell.run(["sbatch", "--version"])
            self._version = answer.stdout.split()[-1] if answer.stdout.split() else "unknown"
        return self._version

    # Jobs.

    async def submit(self, request: JobRequest) -> list[str]:
        """
        Submit jobs by ``sbatch``, with the script on standard input.

        Without an answer nobody knows whether the job was taken. The job is then looked for by
        name, at once and again before the same request is repeated.

        Raises
        ------
        SiteError
            When Slurm says no; transient, when it could not be asked.
        InputError
            When the request is impossible.
        """
        check(request)
        self._must_be_configured()
        ids: list[str] = []
        for first in range(0, request.copies, MOST_ELEMENTS):
            copies = min(MOST_ELEMENTS, request.copies - first)
            name = f"{request.name}-{first}" if first else request.name
            part = replace(request, name=name)
            try:
                job = await self._submit_one(part, first, copies)
            except BaseException:
                if ids:
                    await self.cancel(ids)
                raise
            self._given[job] = copies
            if request.copies == 1:
                ids.append(job)
            else:
                ids.extend(f"{job}_{element}" for element in range(copies))
        return ids

    async def _submit_one(self, request: JobRequest, first: int, copies: int) -> str:
        if request.name in self._doubtful:
            job = await self._named(request.name)
            self._doubtful.discard(request.name)
            if job is not None:
                return job
        text = script(request, self._batch, now=time.time(), first=first, copies=copies)
        what = f"{request.name} was not submitted"
        try:
            answer = await self.shell.run(["sbatch", "--parsable"], stdin=text)
        except asyncio.CancelledError:
            self._doubtful.add(request.name)
            raise
        except SiteError as error:
            if not error.transient:
                raise
            return await self._find(request.name, str(error))
        job = slurm_output.read_submitted(answer.stdout)
        if answer.status == 0 and job is not None:
            return job
        if answer.status == 0:
            return await self._find(request.name, f"sbatch said {answer.words!r}")
        if slurm_states.is_unreachable(answer.words) and not slurm_states.NOT_SENT.search(
            answer.words
        ):
            return await self._find(request.name, answer.words)
        raise slurm_states.slurm_error(what, answer.words)

    async def _find(self, name: str, why: str) -> str:
        """
        Find the job of a submission that was not answered.

        Raises
        ------
        SiteError
            Transient: there is none, or nobody can say; then it is looked for another time.
        """
        self._doubtful.add(name)
        try:
            for seconds in FOUND_AFTER:
                await asyncio.sleep(seconds)
                job = await self._named(name)
                if job is not None:
                    self._doubtful.discard(name)
                    return job
        except SiteError as error:
            raise SiteError(
                f"Slurm: whether {name} was submitted is not known: {why}; {error}", transient=True
            ) from None
        raise SiteError(f"Slurm: {name} was not submitted: {why}", transient=True)

    async def _named(self, name: str) -> str | None:
        """Return a job or array of a name that no request has been given yet."""
        found = slurm_output.parents(await self._listed(name))
        fresh = [job for job in found if job not in self._given]
        # Names recur over months in a site's history: the newest job is this request's.
        return max(fresh, key=int) if fresh else None

    async def named(self, name: str) -> list[str]:
        """
        Return ids of this user's listed jobs with a name, ended or not.

        These include jobs of a process that was killed before the id was on disk.

        Raises
        ------
        SiteError
            When Slurm cannot be asked.
        """
        found = await self._listed(name, "--array")
        self._seen.update(slurm_output.parents(found))
        return found

    async def _listed(self, name: str, *options: str) -> list[str]:
        """Return ids of this user's listed jobs with a name, as ``squeue`` prints them."""
        command = ["squeue", "--noheader", *options, "--me", f"--name={name}", "--states=all"]
        answer = await self.shell.run([*command, slurm_output.STATUS], environment=EPOCH)
        if answer.status != 0:
            raise slurm_states.slurm_error("jobs cannot be listed", answer.words)
        return list(slurm_output.read_status(answer.stdout).reports)

    async def cancel(self, ids: Sequence[str]) -> None:
        """
        Cancel jobs by ``scancel``.

        Raises
        ------
        SiteError
            When Slurm cannot be asked, or says no for a reason other than that a job is gone.
        """
        for part in _portions(self._in_few_words(_ids(ids))):
            answer = await self.shell.run(["scancel", "--quiet", *part])
            lines = [line for line in answer.stderr.splitlines() if line.strip()]
            left = [line for line in lines if not _is_gone(line)]
            if left or (answer.status != 0 and not lines):
                text = "; ".join(line.strip() for line in left[:3]) or answer.words
                raise slurm_states.slurm_error("jobs cannot be cancelled", text)
        # Ids that were never seen may be wrong: nothing may be said of them later.
        there = self._given.keys() | self._seen
        self._cancelled.update(id for id in ids if id.split("_")[0] in there)

    def _in_few_words(self, ids: Sequence[str]) -> list[str]:
        """Return ids for scancel, whole arrays by one id: each id takes scancel a millisecond."""
        elements: dict[str, set[str]] = {}
        for id in ids:
            job, _, element = id.partition("_")
            elements.setdefault(job, set()).add(element)
        found: list[str] = []
        for job, some in elements.items():
            if "" in some or len(some) == self._given.get(job):
                found.append(job)
            else:
                found.extend(f"{job}_{element}" for element in sorted(some, key=int))
        return found

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """
        Report on jobs by one ``squeue`` and, for jobs not listed, one ``sacct``.

        Raises
        ------
        SiteError
            When Slurm cannot be asked, or answers nonsense only.
        """
        if not ids:
            return {}
        status = await self._status(_ids(ids))
        found = {id: report for id in ids if (report := _of(id, status)) is not None}
        missing = [id for id in ids if id not in found]
        if missing:
            found.update(await self._recorded(missing))
        return {id: self._completing(found[id]) for id in ids}

    def _completing(self, report: JobReport) -> JobReport:
        """
        Report a cancelled job as ended once Slurm shows the job as completing.

        Slurm charges it no further. On a node that has died, it is completing for minutes, until
        the node is called down.
        """
        if report.reason != slurm_states.COMPLETING or report.id not in self._cancelled:
            return report
        return replace(report, state="ended", how="cancelled", ended=report.until, until=None)

    async def _status(self, ids: Sequence[str]) -> slurm_output.SqueueStatus:
        """
        Run one ``squeue`` for any number of jobs; for very many, all of this user's are listed.
        """
        jobs = ",".join(slurm_output.parents(ids))
        which = f"--jobs={jobs}" if len(jobs) <= MOST_LISTED else "--me"
        answer = await self.shell.run(
            ["squeue", "--noheader", "--array", "--states=all", which, slurm_output.STATUS],
            environment=EPOCH,
        )
        if answer.status != 0 and "Invalid job id" not in answer.words:
            raise slurm_states.slurm_error("jobs cannot be listed", answer.words)
        status = slurm_output.read_status(answer.stdout)
        if status.odd and not status.reports:
            raise SiteError(
                f"Slurm {await self.version()}: squeue said {status.odd[0]!r}", transient=True
            )
        wanted = set(ids)
        self._records.note({id: raw for id, raw in status.raw.items() if id in wanted})
        for id in wanted & status.reports.keys():
            if _has_begun(status, id):
                self._ran.add(id)
            elif id in self._ran:
                self._requeued.add(id)
        self._seen.update(slurm_output.parents(wanted & status.reports.keys()))
        return status

    async def _recorded(self, ids: Sequence[str]) -> dict[str, JobReport]:
        """Report by the records on jobs that are no longer listed."""
        try:
            status, names = await self._records.read(ids)
        except SiteError as error:
            return {id: JobReport(id=id, state="unknown", reason=str(error)) for id in ids}
        found = {}
        for id in ids:
            report = _of(names.get(id, id), status)
            if report is not None and report.state != "ended":
                # A controller that lost its state leaves such records open for ever.
                found[id] = JobReport(
                    id=id,
                    state="unknown",
                    reason=f"not in the queue, but {report.state} by the records",
                )
            elif report is not None:
                found[id] = replace(report, id=id)
            elif id in self._cancelled and id not in self._ran:
                # Slurm records nothing of an element that is cancelled while it waits.
                found[id] = JobReport(
                    id=id, state="ended", how="cancelled", reason="cancelled, and listed no more"
                )
            else:
                found[id] = JobReport(
                    id=id, state="unknown", reason="neither in the queue nor in the records"
                )
        return found

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """
        Return the usage of jobs: from the controller for recent jobs, else from accounting records.

        Raises
        ------
        SiteError
            When Slurm cannot be asked.
        """
        reports = await self.poll(ids)
        found = {}
        for id, report in reports.items():
            usage = slurm_output.usage_of(report, time.time())
            if usage is not None:
                found[id] = usage
        again = [id for id in found if id in self._requeued and reports[id].state == "ended"]
        for id, stints in (await self._records.stints(again)).items():
            found[id] = replace(
                found[id],
                processors=max(processors for processors, _ in stints),
                seconds=sum(seconds for _, seconds in stints),
                is_whole=True,
            )
        return found

    # The queue.

    async def queue(self) -> QueueState:
        """
        Return the partition, its nodes, the jobs that this user may see, and reservations.

        Raises
        ------
        SiteError
            When Slurm cannot be asked, or there is no such partition.
        """
        self._must_be_configured()
        part = [f"--partition={self._batch.queue}"] if self._batch.queue else []
        sinfo = ["sinfo", "--noheader", "--Node", *part, slurm_output.NODES]
        # Without a name the default partition is meant; which that is, sinfo says.
        squeue = ["squeue", "--noheader", "--array", "--states=PD,R,S,CF,CG,ST,SI", *part]
        now = time.time()
        text, listed, kept = await asyncio.gather(
            self.shell.run(sinfo, environment=EPOCH),
            self.shell.run([*squeue, slurm_output.QUEUE], environment=EPOCH),
            self.shell.run(["scontrol", "-o", "show", "reservation"], environment=EPOCH),
        )
        self._must(text, "nodes cannot be listed")
        self._must(listed, "jobs cannot be listed")
        me = await self._user()
        partition = slurm_output.read_nodes(text.stdout, self._batch.queue)
        if not partition.nodes:
            if partition.odd:
                raise SiteError(f"Slurm: sinfo said {partition.odd[0]!r}", transient=True)
            name = f"partition {self._batch.queue!r}" if self._batch.queue else "default partition"
            raise SiteError(f'Slurm: there is no {name} with nodes ("queue" must name one)')
        jobs = slurm_output.read_queue(listed.stdout, partition.name, me)
        windows = slurm_output.read_windows(
            kept.stdout, nodes=partition.nodes, me=me, account=self._batch.account
        )
        return QueueState(
            at=now,
            nodes=partition.nodes,
            jobs=jobs,
            windows=windows,
            longest=partition.longest,
            up=partition.up,
        )

    async def expected_start(self, request: JobRequest) -> float | None:
        """
        Return a request's expected start by ``sbatch --test-only``.

        Raises
        ------
        SiteError
            When Slurm would not take it, or cannot be asked.
        """
        check(request)
        copies = min(request.copies, MOST_ELEMENTS)
        text = script(request, self._batch, now=time.time(), copies=copies)
        answer = await self.shell.run(["sbatch", "--test-only"], stdin=text, environment=EPOCH)
        start = slurm_output.read_estimate(answer.stderr + answer.stdout)
        if start is None and answer.status != 0:
            raise slurm_states.slurm_error(f"{request.name} would not be taken", answer.words)
        return start

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """
        Keep processors by ``scontrol create reservation``; a start in the past is now.

        Raises
        ------
        SiteError
            When Slurm says no; mostly only operators may.
        """
        if not (processors >= 1 and 0 < seconds < math.inf):
            raise InputError(f"no window: {processors} processors for {seconds} s")
        wait = max(0, math.floor(start - time.time()))
        last = math.ceil(max(start, time.time()) + seconds - time.time())
        command = [
            "scontrol", "create", "reservation", f"ReservationName={name}",
            f"Users={await self._user()}", f"StartTime={f'now+{wait}' if wait else 'now'}",
            f"EndTime=now+{last}", f"CoreCnt={processors}",
        ]  # fmt: skip
        if self._batch.queue:
            command.append(f"PartitionName={self._batch.queue}")
        what = f"{processors} processors cannot be kept in a reservation"
        try:
            answer = await self.shell.run(command)
        except SiteError as error:
            if error.transient and await self._has_window(name):
                return
            raise
        if answer.status == 0:
            return
        if slurm_states.is_unreachable(answer.words) and await self._has_window(name):
            return
        raise slurm_states.slurm_error(what, answer.words)

    async def _has_window(self, name: str) -> bool:
        """Return whether a reservation was made although nothing was answered."""
        answer = await self.shell.run(["scontrol", "-o", "show", "reservation", name])
        return answer.status == 0 and f"ReservationName={name} " in answer.stdout

    async def unreserve(self, name: str) -> None:
        """
        Delete a reservation.

        Raises
        ------
        SiteError
            When Slurm says no, as while jobs run in it.
        """
        answer = await self.shell.run(["scontrol", "delete", f"ReservationName={name}"])
        if "reservation is invalid" in answer.words or "does not exist" in answer.words:
            return
        self._must(answer, f"reservation {name} cannot be taken back")

    # What is asked once.

    async def _user(self) -> str:
        if self._me is None:
            answer = await self.shell.run(["id", "-un"])
            self._me = answer.stdout.strip()
        return self._me

    def _must_be_configured(self) -> None:
        """
        Check that SLURM_CONF's file exists; Slurm's commands report its absence only after a
        minute.
        """
        path = self._batch.environment.get("SLURM_CONF")
        if path is not None and self._batch.ssh is None and not os.path.isfile(path):
            raise SiteError(
                f'Slurm: there is no file {path} (set SLURM_CONF in the site\'s "environment")'
            )

    @staticmethod
    def _must(answer: CommandResult, what: str) -> None:
        if answer.status != 0:
            raise slurm_states.slurm_error(what, answer.words)


def _has_begun(status: slurm_output.SqueueStatus, id: str) -> bool:
    return status.reports[id].began is not None


def _of(id: str, status: slurm_output.SqueueStatus) -> JobReport | None:
    """
    Return the report of a job; None where there is none.

    An array of which all elements that waited were cancelled is listed by its own number: then
    that is said of those elements that are not listed themselves.
    """
    if id in status.reports:
        return status.reports[id]
    array = status.reports.get(id.split("_")[0])
    if array is not None and array.state == "ended" and array.began is None:
        return replace(array, id=id)
    return None


def _is_gone(line: str) -> bool:
    """Return whether scancel only says that a job has ended already."""
    text = line.lower()
    return any(
        word in text
        for word in ("already completing or completed", "invalid job id specified", "already done")
    )


def _ids(ids: Sequence[str]) -> list[str]:
    for id in ids:
        head, _, element = id.partition("_")
        if not (head.isdecimal() and (not element or element.isdecimal())):
            raise InputError(f"no job of Slurm: {id!r}")
    return list(ids)


def _portions(ids: Sequence[str]) -> Iterator[list[str]]:
    """Yield ids in as many parts as command lines are needed; a few thousand go into one."""
    part: list[str] = []
    length = 0
    for id in ids:
        if length + len(id) + 1 > MOST_LISTED:
            yield part
            part, length = [], 0
        part.append(id)
        length += len(id) + 1
    if part:
        yield part
