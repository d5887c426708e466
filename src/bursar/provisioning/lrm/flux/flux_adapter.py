"""Run Flux's commands and parse the output."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm.command_errors import (
    KnownComplaint,
    check_cancelled,
    command_error,
    unreadable_output_error,
)
from bursar.provisioning.lrm.command_runner import CommandResult, CommandRunner
from bursar.provisioning.lrm.flux import flux_output
from bursar.provisioning.lrm.jobscript import check, job_script, plain_folder
from bursar.provisioning.lrm.listed_job import ListedJob, unknown_report
from bursar.provisioning.lrm.minimal_manager import MinimalManager
from bursar.provisioning.lrm.resource_manager import (
    JobReport,
    JobRequest,
    JobUsage,
    ManagerCapabilities,
    QueueState,
)
from bursar.provisioning.lrm.submission import JobIds, JobSubmitter

_GONE = r"unknown|invalid or|inactive|no such job|not found|job is not active"
_ENGLISH = {"LC_ALL": "C.UTF-8"}

COMPLAINTS = (
    KnownComplaint(
        r"unable to connect|connection refused|no route|timed? ?out|broker .*not|"
        r"function not implemented|flux_open",
        "the Flux instance does not answer",
        transient=True,
    ),
    KnownComplaint(r"queue", 'name one that "flux queue list" lists as "queue"'),
    KnownComplaint(
        r"bank|accounting|user/bank|association", 'look at "account": it is a bank of Flux'
    ),
    KnownComplaint(
        r"duration|time limit|exceeds policy", "ask for less time, or name another queue"
    ),
    KnownComplaint(
        r"unsatisfiable|infeasible|feasib|nnodes|ncores|exceeds .*limit",
        "ask for fewer processors, or name another queue",
    ),
    KnownComplaint(r"max.*jobs|limit", 'your share of jobs is used up: lower "max_pending"'),
    KnownComplaint(r"permission|not permitted", "ask the administrators for access"),
    KnownComplaint(r"unrecognized|usage:|invalid", 'look at the site\'s "directives"'),
)


class Flux(MinimalManager):
    """
    Adapter to a Flux instance, with the rights of a plain user.

    Not run live: held to outputs recorded by others and to the documentation; it needs
    ``flux jobs --json`` (flux-core 0.50). ``flux batch`` takes one script at a time, so equal
    jobs are handed in one by one.

    Parameters
    ----------
    batch
        Batch scheduler of the site. Its account is a bank; it has no quality of service.
    shell
        Runs the commands; None: a runner for the host that ``batch`` names.

    Raises
    ------
    InputError
        When the site names a quality of service.
    """

    title = "Flux"

    def __init__(self, batch: BatchScheduler, shell: CommandRunner | None = None) -> None:
        if batch.qos is not None:
            raise InputError("Flux has no such thing", where="qos")
        self._batch = batch
        self._shell = shell or CommandRunner(
            environment=batch.environment, ssh=batch.ssh, scheduler="Flux"
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
        return ManagerCapabilities(begin=True, accounting=True)

    async def submit(self, request: JobRequest) -> JobIds:
        """Submit jobs one by one; when one is refused, cancel the earlier ones."""
        check(request)
        if request.copies == 1:
            return await self._submit(request, 0)
        ids: JobIds = []
        for copy in range(request.copies):
            one = replace(request, name=f"{request.name}-{copy}", copies=1)
            try:
                ids += await self._submit(one, copy)
            except SiteError:
                await self.cancel(ids)
                raise
        return ids

    async def _submit(self, request: JobRequest, number: int) -> JobIds:
        script = self._script(request, number)

        async def hand_in() -> JobIds:
            answer = await self._run(["batch"], stdin=script)
            if answer.status != 0:
                raise command_error("flux batch", answer, COMPLAINTS)
            words = answer.stdout.split()
            id = flux_output.job_number(words[-1]) if words else None
            if id is None:
                raise unreadable_output_error("flux batch", answer.stdout)
            return [id]

        async def find(name: str) -> JobIds:
            jobs, _ = await self._jobs(["jobs", "-a", f"--name={name}", "--json"])
            return [str(job["id"]) for job in jobs if job.get("name") == name]

        return await self._submissions.once(request.name, hand_in, find)

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs; jobs that have ended already are no error."""
        if not ids:
            return
        answer = await self._run(["cancel", *ids])
        check_cancelled("flux cancel", answer, _GONE, COMPLAINTS)

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """Report on jobs by one command, which also lists jobs that have ended."""
        return {id: seen.report for id, seen in (await self._seen(ids)).items()}

    async def queue(self) -> QueueState:
        """Read the queue by four commands; an instance may hide details of other users' jobs."""
        user = await self._who()
        only = [f"--queue={self._batch.queue}"] if self._batch.queue is not None else []
        jobs, odd = await self._jobs(
            ["jobs", "-A", "--filter=pending,running", "--count=0", *only, "--json"]
        )
        parts = []
        for states in ("all", "allocated", "down"):
            answer = await self._run(["resource", "R", "-s", states])
            if answer.status != 0:
                raise command_error("flux resource", answer, COMPLAINTS)
            parts.append(answer.stdout)
        try:
            nodes = flux_output.nodes_of(*parts)
        except ValueError:
            raise unreadable_output_error("flux resource R", parts[0]) from None
        seen = [flux_output.read_job(job) for job in jobs]
        problems = [f"flux jobs: {block}" for block in odd]
        problems += [f"{job.id}: {job.reason}" for job in seen if job.state == "unknown"]
        lines = [line for job in seen if (line := job.queued(user)) is not None]
        return QueueState(
            at=time.time(),
            nodes=tuple(nodes),
            jobs=tuple(sorted(lines, key=lambda line: not line.running)),
            odd=tuple(problems),
        )

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Return usage of jobs by the scheduler's record."""
        now = time.time()
        found = {id: seen.usage(now) for id, seen in (await self._seen(ids)).items()}
        return {id: usage for id, usage in found.items() if usage is not None}

    async def _seen(self, ids: Sequence[str]) -> dict[str, ListedJob]:
        if not ids:
            return {}
        jobs, odd = await self._jobs(["jobs", "-a", "--json", *ids])
        listed = {seen.id: seen for seen in map(flux_output.read_job, jobs)}
        for block in odd:
            if (id := flux_output.id_in(block)) is not None:
                listed.setdefault(
                    id, unknown_report(id, "flux jobs said of it what cannot be read")
                )
        return {id: listed.get(id) or unknown_report(id, "Flux knows no such job") for id in ids}

    def _script(self, request: JobRequest, number: int) -> str:
        folder = plain_folder(request)
        directives = [
            f"--job-name={request.name}",
            f"--cwd={folder}",
            f"--output={folder}/{request.name}.{{{{id}}}}.out",
            f"--time-limit={math.ceil(request.seconds)}s",
            *_size(request),
        ]
        if self._batch.queue is not None:
            directives.append(f"--queue={self._batch.queue}")
        if self._batch.account is not None:
            directives.append(f"--bank={self._batch.account}")
        if request.begin is not None:
            wait = max(0, math.ceil(request.begin - time.time()))
            directives.append(f"--begin-time=+{wait}s")
        if request.reservation is not None:
            raise SiteError("Flux has no reservations")
        directives += self._batch.directives
        setup = (f"BURSAR_ELEMENT={number}; export BURSAR_ELEMENT", *self._batch.setup)
        return job_script("# flux:", directives, setup, request)

    async def _jobs(self, command: Sequence[str]) -> tuple[list[flux_output.Entry], list[str]]:
        answer = await self._run(command)
        if (found := flux_output.parse_jobs(answer.stdout)) is not None:
            return found
        if not answer.stdout.strip():
            told = re.search(r"job ?id.*(unknown|invalid|not found)", answer.stderr, re.IGNORECASE)
            if told or answer.status == 0:
                return [], []
            raise command_error("flux jobs", answer, COMPLAINTS)
        raise unreadable_output_error("flux jobs", answer.stdout)

    async def _who(self) -> str:
        if self._user is None:
            self._user = (await self._shell.run(["id", "-un"])).stdout.strip()
        return self._user

    async def _run(self, command: Sequence[str], stdin: str = "") -> CommandResult:
        return await self._shell.run(["flux", *command], stdin=stdin, environment=_ENGLISH)


def _size(request: JobRequest) -> list[str]:
    """Return options for slots of one core, together or anywhere; least of a range of nodes."""
    each = request.processors
    if request.nodes is not None:
        nodes = request.nodes[0]
        return [f"--nodes={nodes}", f"--nslots={nodes}", f"--cores-per-slot={each}"]
    if request.together:
        return ["--nslots=1", f"--cores-per-slot={each}"]
    return [f"--nslots={each}", "--cores-per-slot=1"]
