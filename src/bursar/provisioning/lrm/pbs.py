"""PBS adapter, for OpenPBS and Torque: not run live, tested on recorded outputs."""

import re
import time
from collections.abc import Mapping, Sequence

from bursar.model.errors import SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import pbs_output
from bursar.provisioning.lrm.command_runner import (
    CommandResult,
    CommandRunner,
    KnownComplaint,
    check_cancelled,
    command_error,
    unreadable_output_error,
)
from bursar.provisioning.lrm.listed_job import UTC, ListedJob, format_walltime, unknown_report
from bursar.provisioning.lrm.resource_manager import (
    JobReport,
    JobRequest,
    JobUsage,
    ManagerCapabilities,
    MinimalManager,
    QueueState,
)
from bursar.provisioning.lrm.submission import (
    JobIds,
    JobSubmitter,
    check,
    element,
    job_script,
    plain_folder,
    plain_name,
)

# Run PBS's commands and parse the output.

_GIVEN = re.compile(r"^(\d+)(\[\])?(\.\S+)?\s*$", re.MULTILINE)
_GONE = r"unknown job id|job has finished|invalid state for job|request invalid for state"
_NO_HISTORY = "not configured to maintain job history"

COMPLAINTS = (
    KnownComplaint(
        r"cannot connect to server|connection (refused|timed out|reset)|communication failure"
        r"|end of file|server shutting down|no server to connect|errno=1500[78]|errno=15010"
        r"|protocol \(asn\.1\)|premature end",
        "the server does not answer",
        transient=True,
    ),
    KnownComplaint(r"unknown queue|no default queue", 'name one that "qstat -Q" lists as "queue"'),
    KnownComplaint(r"queue is not enabled|not accept", 'the queue is closed: name another "queue"'),
    KnownComplaint(
        r"exceeds? queue|violates queue|resource limits|exceed .*(walltime|ncpus|nodect)",
        "ask for less time or fewer processors, or name another queue",
    ),
    KnownComplaint(
        r"would exceed|maximum number of jobs|per-user limit|limit on number|job limit",
        'your share of jobs is used up: lower "max_pending"',
    ),
    KnownComplaint(r"invalid account|account", 'look at "account"'),
    KnownComplaint(
        r"unauthorized|permission denied|not allowed", "ask the administrators for access"
    ),
    KnownComplaint(r"unknown resource|illegal|usage:", 'look at the site\'s "directives"'),
)


class PBS(MinimalManager):
    """
    Adapter to OpenPBS (also PBS Professional) or Torque, with the rights of a plain user.

    Not run live: held to outputs recorded by others and to the documentation. Which of the two
    it is, is asked once. Of jobs that are gone OpenPBS tells where it keeps a history; Torque
    lists them for a while only (``keep_completed``).

    Parameters
    ----------
    batch
        Batch scheduler of the site.
    shell
        Runs the commands; None: a runner for the host that ``batch`` names.
    """

    title = "PBS"

    def __init__(self, batch: BatchScheduler, shell: CommandRunner | None = None) -> None:
        self._batch = batch
        self._shell = shell or CommandRunner(
            environment=batch.environment, ssh=batch.ssh, scheduler="PBS"
        )
        self._submissions = JobSubmitter()
        self._torque: bool | None = None
        self._history = True
        self._user: str | None = None

    @property
    def shell(self) -> CommandRunner:
        """Runner of the commands."""
        return self._shell

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of the scheduler."""
        return ManagerCapabilities(arrays=True, begin=True, accounting=self._torque is not True)

    async def submit(self, request: JobRequest) -> JobIds:
        """Submit single jobs or one job array."""
        check(request)
        torque = await self._is_torque()
        script = self._script(request, torque)

        async def hand_in() -> JobIds:
            answer = await self._run(["qsub"], stdin=script)
            if answer.status != 0:
                raise command_error("qsub", answer, COMPLAINTS)
            return _elements(answer.stdout, request.copies)

        async def find(name: str) -> JobIds:
            answer = await self._run(["qselect", "-N", name, "-u", await self._who()])
            if answer.status != 0:
                raise command_error("qselect", answer, COMPLAINTS)
            return _elements(answer.stdout, request.copies) if answer.stdout.strip() else []

        return await self._submissions.once(plain_name(request), hand_in, find)

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs; jobs that have ended already are no error."""
        if not ids:
            return
        answer = await self._run(["qdel", *ids])
        check_cancelled("qdel", answer, _GONE, COMPLAINTS)

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """Report on jobs, finished ones included, by one command."""
        return {id: seen.report for id, seen in (await self._seen(ids)).items()}

    async def queue(self) -> QueueState:
        """
        Read the queue by three commands; reservations are not read, and their nodes count as full.
        """
        user, queue = await self._who(), self._batch.queue
        torque = await self._is_torque()
        jobs, odd_jobs = self._entries("qstat", await self._output_of(self._status(torque)), "Jobs")
        text = await self._output_of(["pbsnodes", "-a", *self._format(torque)])
        nodes, odd_nodes = self._entries("pbsnodes", text, "nodes")
        text = await self._output_of(["qstat", "-Q", "-f", *self._format(torque)])
        queues, _ = self._entries("qstat -Q", text, "Queue")
        if queue is not None and queues and queue not in queues:
            raise SiteError(f"PBS has no queue {queue}, but {', '.join(sorted(queues))}")
        odd = [f"{name}: {why}" for name, why in (*odd_jobs.items(), *odd_nodes.items())]
        there = []
        for name, entry in nodes.items():
            if not pbs_output.serves(entry, queue):
                continue
            try:
                there.append(pbs_output.read_node(name, entry))
            except (ValueError, KeyError, TypeError) as error:
                odd.append(f"{name}: {error}")
        seen = [pbs_output.read_job(id, entry) for id, entry in jobs.items()]
        odd += [f"{job.id}: {job.reason}" for job in seen if job.state == "unknown"]
        ours = [job for job in seen if queue in (None, job.queue)]
        lines = [line for job in ours if (line := job.queued(user)) is not None]
        longest, up = pbs_output.read_queue(queues[queue]) if queue in queues else (None, True)
        return QueueState(
            at=time.time(),
            nodes=tuple(there),
            jobs=tuple(sorted(lines, key=lambda line: not line.running)),
            longest=longest,
            up=up,
            odd=tuple(odd),
        )

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Return usage of jobs by the scheduler's record."""
        now = time.time()
        found = {id: seen.usage(now) for id, seen in (await self._seen(ids)).items()}
        return {id: usage for id, usage in found.items() if usage is not None}

    async def _seen(self, ids: Sequence[str]) -> dict[str, ListedJob]:
        if not ids:
            return {}
        torque = await self._is_torque()
        answer = await self._run([*self._status(torque, history=True), *ids])
        # Sites may switch the history off; asked once, then only listed jobs are looked up.
        if _NO_HISTORY in answer.stderr:
            self._history = False
            answer = await self._run([*self._status(torque, history=True), *ids])
        job_is_gone = not answer.stdout.strip() and re.search(_GONE, answer.stderr, re.IGNORECASE)
        if answer.status != 0 and not answer.stdout.strip() and not job_is_gone:
            raise command_error("qstat", answer, COMPLAINTS)
        jobs, odd = self._entries("qstat", answer.stdout, "Jobs")
        by_number = {_short(name): (name, entry) for name, entry in jobs.items()}
        odd = {_short(name): why for name, why in odd.items()}
        seen = {}
        for id in ids:
            if (found := by_number.get(_short(id))) is not None:
                seen[id] = pbs_output.read_job(id, found[1])
            else:
                why = odd.get(_short(id), "neither listed nor in the history")
                seen[id] = unknown_report(id, why)
        return seen

    def _script(self, request: JobRequest, torque: bool) -> str:
        folder = plain_folder(request)
        directives = [
            f"-N {plain_name(request)}",
            f"-o {folder}/" + ("$PBS_JOBID.out" if torque else ""),
            "-j oe",
            # A pilot that is started twice would come with the same credential.
            "-r n",
            f"-l walltime={format_walltime(request.seconds)}",
            *self._size(request, torque),
        ]
        queue = request.reservation or self._batch.queue  # a reservation is a queue
        if queue is not None:
            directives.append(f"-q {queue}")
        if self._batch.account is not None:
            directives.append(f"-A {self._batch.account}")
        if self._batch.qos is not None:
            directives.append(f"-l qos={self._batch.qos}")
        if request.copies > 1:
            directives.append(f"{'-t' if torque else '-J'} 0-{request.copies - 1}")
        if request.begin is not None:
            begin = time.gmtime(-(-request.begin // 1))
            directives.append(f"-a {time.strftime('%Y%m%d%H%M.%S', begin)}")
        directives += self._batch.directives
        number = element("PBS_ARRAYID" if torque else "PBS_ARRAY_INDEX", 0)
        setup = (f"cd {folder} || exit 1", number, *self._batch.setup)
        return job_script("#PBS", directives, setup, request)

    def _size(self, request: JobRequest, torque: bool) -> list[str]:
        """Options for nodes and processors; of a range of nodes PBS is asked for the least."""
        each = request.processors
        if request.nodes is not None:
            nodes = request.nodes[0]
            if torque:
                return [f"-l nodes={nodes}:ppn={each}"]
            return [f"-l select={nodes}:ncpus={each}", "-l place=scatter"]
        if request.together or each == 1:
            return [f"-l nodes=1:ppn={each}" if torque else f"-l select=1:ncpus={each}"]
        return [f"-l procs={each}" if torque else f"-l select={each}:ncpus=1"]

    def _status(self, torque: bool, *, history: bool = False) -> list[str]:
        if torque:
            return ["qstat", "-f", "-1", "-t"]
        asked = ["-x"] if history and self._history else []
        return ["qstat", "-f", "-F", "json", "-t", *asked]

    def _format(self, torque: bool) -> list[str]:
        return [] if torque else ["-F", "json"]

    def _entries(
        self, doing: str, text: str, kind: str
    ) -> tuple[dict[str, pbs_output.Entry], dict[str, str]]:
        found = pbs_output.parse_entries(text, kind)
        if found is None:
            raise unreadable_output_error(doing, text)
        return found

    async def _is_torque(self) -> bool:
        if self._torque is None:
            answer = await self._run(["qstat", "--version"])
            output = f"{answer.stdout}{answer.stderr}"
            if not re.search(r"version", output, re.IGNORECASE):
                raise command_error("qstat --version", answer, COMPLAINTS)
            self._torque = "pbs_version" not in output
        return self._torque

    async def _who(self) -> str:
        if self._user is None:
            self._user = (await self._shell.run(["id", "-un"])).stdout.strip()
        return self._user

    async def _output_of(self, command: Sequence[str]) -> str:
        answer = await self._run(command)
        if answer.status != 0:
            raise command_error(" ".join(command[:2]), answer, COMPLAINTS)
        return answer.stdout

    async def _run(self, command: Sequence[str], stdin: str = "") -> CommandResult:
        return await self._shell.run(command, stdin=stdin, environment=UTC)


def _elements(text: str, copies: int) -> JobIds:
    """Return the ids of a submission: ``7.server``, or ``7[0].server`` and so on for an array."""
    found = _GIVEN.findall(text)
    if not found:
        raise unreadable_output_error("qsub", text)
    number, array, server = found[-1]
    if not array:
        return [f"{number}{server}"]
    return [f"{number}[{index}]{server}" for index in range(copies)]


def _short(id: str) -> str:
    """Return an id without the server, whose name commands may print shortened."""
    return id.partition(".")[0]
