"""Run LSF's commands and parse the output."""

import math
import re
import time
from collections.abc import Mapping, Sequence

from bursar.model.errors import InputError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm.command_errors import (
    KnownComplaint,
    check_cancelled,
    command_error,
    unreadable_output_error,
)
from bursar.provisioning.lrm.command_runner import CommandResult, CommandRunner
from bursar.provisioning.lrm.jobscript import check, element, job_script, plain_folder, plain_name
from bursar.provisioning.lrm.listed_job import ListedJob, unknown_report
from bursar.provisioning.lrm.lsf import lsf_output
from bursar.provisioning.lrm.minimal_manager import MinimalManager
from bursar.provisioning.lrm.resource_manager import (
    JobReport,
    JobRequest,
    JobUsage,
    ManagerCapabilities,
    QueueState,
)
from bursar.provisioning.lrm.submission import JobIds, JobSubmitter
from bursar.provisioning.lrm.time_formats import UTC

_GIVEN = re.compile(r"Job <(\d+)> is submitted")
_GONE = r"no matching job found|job has already finished|is not found|no unfinished job"
_ASK = {**UTC, "LSB_DISPLAY_YEAR": "Y"}

COMPLAINTS = (
    KnownComplaint(
        r"cannot connect|please wait|batch system (daemon|is) (not responding|down)"
        r"|lim is down|failed in an lsf library call|communication time|slave lim"
        r"|mbatchd|timed? ?out",
        "LSF does not answer",
        transient=True,
    ),
    KnownComplaint(
        r"no such queue|unknown queue|queue .*not exist", 'name one that "bqueues" lists'
    ),
    KnownComplaint(r"queue (has been|is) closed", 'the queue is closed: name another "queue"'),
    KnownComplaint(r"project", 'look at "account": it is a project of LSF'),
    KnownComplaint(
        r"run ?limit|cannot exceed queue|tasklimit|proclimit|too many processors|hard limit",
        "ask for less time or fewer processors, or name another queue",
    ),
    KnownComplaint(
        r"pending job (slot )?(limit|threshold)|job slot limit|limit .*jobs",
        'your share of jobs is used up: lower "max_pending"',
    ),
    KnownComplaint(
        r"permission denied|not permitted|user .*not", "ask the administrators for access"
    ),
    KnownComplaint(r"bad resource|illegal option|syntax", 'look at the site\'s "directives"'),
)


class LSF(MinimalManager):
    """
    Adapter to an LSF cluster, with the rights of a plain user.

    Not run live: held to outputs recorded by others and to the documentation of 10.1, whose
    ``-o ... -json`` it needs.

    Parameters
    ----------
    batch
        Batch scheduler of the site. Its account is a project; it has no quality of service.
    shell
        Runs the commands; None: a runner for the host that ``batch`` names.

    Raises
    ------
    InputError
        When the site names a quality of service.
    """

    title = "LSF"

    def __init__(self, batch: BatchScheduler, shell: CommandRunner | None = None) -> None:
        if batch.qos is not None:
            raise InputError(
                "LSF has no such thing", where="qos", hint='name a service class by "directives"'
            )
        self._batch = batch
        self._shell = shell or CommandRunner(
            environment=batch.environment, ssh=batch.ssh, scheduler="LSF"
        )
        self._submissions = JobSubmitter()
        self._user: str | None = None

    @property
    def shell(self) -> CommandRunner:
        """Runner of the commands."""
        return self._shell

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of the scheduler."""
        return ManagerCapabilities(arrays=True, node_ranges=True, begin=True, accounting=True)

    async def submit(self, request: JobRequest) -> JobIds:
        """Submit single jobs or one job array."""
        check(request)
        script = await self._script(request)

        async def hand_in() -> JobIds:
            # Without UTC: bsub hands its variables on to the job.
            answer = await self._shell.run(["bsub"], stdin=script, environment={"LC_ALL": "C"})
            if answer.status != 0:
                raise command_error("bsub", answer, COMPLAINTS)
            found = _GIVEN.findall(answer.stdout)
            if not found:
                raise unreadable_output_error("bsub", answer.stdout)
            number = found[-1]
            if request.copies == 1:
                return [number]
            return [f"{number}[{index}]" for index in range(1, request.copies + 1)]

        return await self._submissions.once(plain_name(request), hand_in, self.named)

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs; jobs that have ended already are no error."""
        if not ids:
            return
        answer = await self._run(["bkill", *ids])
        check_cancelled("bkill", answer, _GONE, COMPLAINTS)

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """Report on jobs by one ``bjobs``, and by ``bacct`` for jobs that LSF no longer lists."""
        return {id: seen.report for id, seen in (await self._seen(ids)).items()}

    async def queue(self) -> QueueState:
        """Read the queue by three commands, without reservations."""
        now, user, queue = time.time(), await self._who(), self._batch.queue
        only = ["-q", queue] if queue is not None else []
        jobs = ["bjobs", "-u", "all", *only, "-o", lsf_output.JOB_FIELDS, "-json"]
        records, odd = await self._records(jobs)
        hosts, odd_hosts = await self._records(["bhosts", "-o", lsf_output.HOST_FIELDS, "-json"])
        longest, up = None, True
        if queue is not None:
            answer = await self._run(["bqueues", "-l", queue])
            if answer.status != 0 or not answer.stdout.strip():
                raise command_error("bqueues", answer, COMPLAINTS)
            longest, up = lsf_output.parse_queue(answer.stdout)
        seen = [lsf_output.read_job(entry, now) for entry in records]
        problems = [f"bjobs: {block}" for block in odd] + [f"bhosts: {it}" for it in odd_hosts]
        problems += [f"{job.id}: {job.reason}" for job in seen if job.state == "unknown"]
        nodes = []
        for entry in hosts:
            try:
                nodes.append(lsf_output.read_host(entry))
            except (ValueError, KeyError) as error:  # "-" where there is no limit
                problems.append(f"{entry.get('HOST_NAME', 'a host')}: {error}")
        lines = [line for job in seen if (line := job.queued(user)) is not None]
        return QueueState(
            at=now,
            nodes=tuple(nodes),
            jobs=tuple(sorted(lines, key=lambda line: not line.running)),
            longest=longest,
            up=up,
            odd=tuple(problems),
        )

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Return usage of jobs that ``bjobs`` still lists."""
        now = time.time()
        found = {id: seen.usage(now) for id, seen in (await self._seen(ids)).items()}
        return {id: usage for id, usage in found.items() if usage is not None}

    async def _seen(self, ids: Sequence[str]) -> dict[str, ListedJob]:
        if not ids:
            return {}
        now = time.time()
        records, odd = await self._records(["bjobs", "-o", lsf_output.JOB_FIELDS, "-json", *ids])
        listed = {seen.id: seen for seen in (lsf_output.read_job(entry, now) for entry in records)}
        for block in odd:
            if (id := lsf_output.id_in(block)) is not None:
                listed[id] = unknown_report(id, "bjobs said of it what cannot be read")
        # bjobs forgets ended jobs after CLEAN_PERIOD, an hour by default.
        if gone := [id for id in ids if id not in listed]:
            answer = await self._run(["bacct", "-l", *gone])
            for id, (how, why) in lsf_output.parse_accounting(answer.stdout).items():
                listed[id] = ListedJob(id=id, state="ended", how=how, reason=why)
        nowhere = "neither listed nor in the accounting"
        return {id: listed.get(id) or unknown_report(id, nowhere) for id in ids}

    async def _script(self, request: JobRequest) -> str:
        folder, name = plain_folder(request), plain_name(request)
        array = f"[1-{request.copies}]" if request.copies > 1 else ""
        directives = [
            f'-J "{name}{array}"',
            f"-cwd {folder}",
            f"-o {folder}/{name}.%J.%I.out",
            # Not rerun: a pilot that is started twice would come with the same credential.
            "-rn",
            f"-W {max(1, math.ceil(request.seconds / 60))}",
            *_size(request),
        ]
        if self._batch.queue is not None:
            directives.append(f"-q {self._batch.queue}")
        if self._batch.account is not None:
            directives.append(f"-P {self._batch.account}")
        if request.reservation is not None:
            directives.append(f"-U {request.reservation}")
        if request.begin is not None:
            directives.append(f"-b {await self._date(request.begin)}")
        directives += self._batch.directives
        setup = (f"cd {folder} || exit 1", element("LSB_JOBINDEX", 1), *self._batch.setup)
        return job_script("#BSUB", directives, setup, request)

    async def _date(self, moment: float) -> str:
        """
        Format a time as ``year:month:day:hour:minute`` in the submitting machine's zone, rounded up
        to the minute.
        """
        # bsub takes minutes in the submitting machine's zone, which only that machine knows.
        whole = math.ceil(moment / 60) * 60
        answer = await self._shell.run(["date", "-d", f"@{whole}", "+%Y:%m:%d:%H:%M"])
        if answer.status != 0:
            raise command_error("date", answer, ())
        return answer.stdout.strip()

    async def named(self, name: str) -> JobIds:
        """
        Return ids of this user's jobs with a name, including jobs that ended lately.

        Raises
        ------
        SiteError
            When LSF cannot be asked.
        """
        command = ["bjobs", "-a", "-J", name, "-o", lsf_output.JOB_FIELDS, "-json"]
        records, _ = await self._records(command)
        return [lsf_output.id_of(entry) for entry in records if "JOBID" in entry]

    async def _records(self, command: Sequence[str]) -> tuple[list[lsf_output.Entry], list[str]]:
        answer = await self._run(command)
        found = lsf_output.parse_records(answer.stdout)
        if found is not None:
            return found
        output = f"{answer.stderr}\n{answer.stdout}"
        if re.search(_GONE, output, re.IGNORECASE):
            return [], []
        if answer.status != 0:
            raise command_error(command[0], answer, COMPLAINTS)
        raise unreadable_output_error(command[0], answer.stdout)

    async def _who(self) -> str:
        if self._user is None:
            self._user = (await self._shell.run(["id", "-un"])).stdout.strip()
        return self._user

    async def _run(self, command: Sequence[str]) -> CommandResult:
        return await self._shell.run(command, environment=_ASK)


def _size(request: JobRequest) -> list[str]:
    """Return the directives for the number of slots and the spread over hosts."""
    each = request.processors
    if request.nodes is not None:
        fewest, most = request.nodes[0] * each, request.nodes[1] * each
        slots = str(fewest) if fewest == most else f"{fewest},{most}"
        return [f"-n {slots}", f'-R "span[ptile={each}]"']
    if request.together and each > 1:
        return [f"-n {each}", '-R "span[hosts=1]"']
    return [f"-n {each}"]
