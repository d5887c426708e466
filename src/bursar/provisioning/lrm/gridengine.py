"""Grid Engine adapter: run live under Debian's Son of Grid Engine 8.1.9."""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from bursar.model.errors import SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import gridengine_output
from bursar.provisioning.lrm.command_adapter import CommandAdapter
from bursar.provisioning.lrm.command_runner import (
    CommandResult,
    CommandRunner,
    KnownComplaint,
    unreadable_output_error,
)
from bursar.provisioning.lrm.gridengine_output import QacctRecord, QstatJob, parse_records
from bursar.provisioning.lrm.resource_manager import (
    JobReport,
    JobRequest,
    JobUsage,
    ManagerCapabilities,
    QueueReservation,
    QueueState,
)
from bursar.provisioning.lrm.submission import JobIds, check, element, plain_folder, plain_name

# Parallel environments: how Grid Engine is asked for several slots.

_PE = re.compile(r"-pe\s+(\S+)\s*$")


@dataclass(frozen=True, slots=True)
class ParallelEnvironment:
    """
    A parallel environment of Grid Engine.

    Parameters
    ----------
    rule
        Its ``allocation_rule``: ``$pe_slots``, ``$fill_up``, ``$round_robin`` or a number of slots
        on each host.
    """

    name: str
    rule: str


def parse_environment(text: str) -> ParallelEnvironment | None:
    """Parse the output of ``qconf -sp``."""
    values = dict(line.split(None, 1) for line in text.splitlines() if len(line.split(None, 1)) > 1)
    if "pe_name" not in values or "allocation_rule" not in values:
        return None
    return ParallelEnvironment(values["pe_name"].strip(), values["allocation_rule"].strip())


def named(directives: Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """
    The environment that a site's directives name by ``-pe NAME``, and the other directives.

    How many slots are wanted differs from request to request, so a site names it without.
    """
    names = [found[1] for line in directives if (found := _PE.fullmatch(line.strip()))]
    others = tuple(line for line in directives if not _PE.fullmatch(line.strip()))
    return (names[-1] if names else None), others


def needs_environment(request: JobRequest) -> bool:
    """Whether one slot of one host is not enough."""
    return request.processors > 1 or (request.nodes is not None and request.nodes != (1, 1))


def slots(request: JobRequest) -> str:
    """Slots in the form that ``-pe`` takes: a number or a range."""
    fewest, most = request.nodes or (1, 1)
    low, high = fewest * request.processors, most * request.processors
    return str(low) if low == high else f"{low}-{high}"


def choose(environments: Sequence[ParallelEnvironment], request: JobRequest) -> ParallelEnvironment:
    """
    Choose the environment that spreads a request's slots as requested.

    Raises
    ------
    SiteError
        When there is none.
    """
    per_host = str(request.processors)
    several = request.nodes is not None and request.nodes != (1, 1)
    if several:
        rules: tuple[str, ...] = (per_host,)
    elif request.together or request.nodes is not None:
        rules = ("$pe_slots", per_host)
    else:
        rules = ("$fill_up", "$pe_slots", "$round_robin")
    for rule in rules:
        for environment in environments:
            if environment.rule == rule:
                return environment
    there = ", ".join(f"{e.name} ({e.rule})" for e in environments) or "none"
    raise SiteError(
        f"no parallel environment of Grid Engine gives {slots(request)} slots with"
        f" allocation_rule {' or '.join(rules)}; there are: {there}; name one by a directive"
        ' "-pe NAME"'
    )


# Known error messages of Grid Engine, with hints on what to change.

UNREACHABLE = (
    r"unable to (send message|contact|initialize environment because of error: commlib)"
    r"|got select error|commlib error|can't connect|cannot connect|failed receiving gdi"
    r"|got (send|read) error|timeout|answer list from qmaster"
)

COMPLAINTS = (
    KnownComplaint(
        r"SGE_ROOT directory|set the environment variable SGE_ROOT|cell directory",
        'set SGE_ROOT and SGE_CELL in the site\'s "environment"',
    ),
    KnownComplaint(UNREACHABLE, "the queue master does not answer", transient=True),
    KnownComplaint(r"unknown queue", 'name one that "qconf -sql" lists as "queue"'),
    KnownComplaint(
        r"project", '"account" names a project that you may charge ("qconf -sprjl" lists them)'
    ),
    KnownComplaint(
        r"parallel environment",
        'name one that "qconf -spl" lists by a directive "-pe NAME"',
    ),
    KnownComplaint(
        r"no suitable queues",
        "no queue could ever run it: ask for less time or fewer processors, or name another queue",
    ),
    KnownComplaint(
        r'in userset "arusers"|must be (manager|operator)',
        "reservations are for members of arusers here; pilots with a begin time are used instead",
    ),
    KnownComplaint(
        r"no suitable resources|not enough .*slots", "ask for fewer, or for another time"
    ),
    KnownComplaint(
        r"only \d+ jobs? (are|is) allowed|job .*limit|jobs? .*per user",
        'your share of jobs is used up: lower "max_pending"',
    ),
    KnownComplaint(
        r"no permission|permission denied|not allowed|denied: (host|user)|no submit host",
        "ask the administrators for access from this host",
    ),
    KnownComplaint(
        r"unknown resource|invalid option|invalid argument|not a (time|valid)",
        'look at the site\'s "directives"',
    ),
)
"""Error messages of Son of Grid Engine 8.1.9; the first match counts."""


# Run Grid Engine's commands and parse the output.

_GIVEN = re.compile(r"^(\d+)(?:\.(\d+)-(\d+):(\d+))?$", re.MULTILINE)
_ID = re.compile(r"(\d+)(?:\.(\d+))?")
_MOST_ENVIRONMENTS = 20
_MOST_TASKS = 1000
"""Tasks of another user's waiting array that are listed one by one, at most."""

_SLACK = 3600.0
"""Seconds by which the clock here may be ahead of the clock there, when records are looked up."""


class GridEngine(CommandAdapter):
    """
    Adapter to a Grid Engine, with the rights of a plain user.

    Run live under Son of Grid Engine 8.1.9; Univa's and Altair's answer alike where documented.

    A site's account is a project; there is no quality of service. A directive ``-pe NAME`` names
    the parallel environment of requests for several processors; without one, one that fits is
    looked for.
    """

    title = "Grid Engine"
    complaints = COMPLAINTS
    quality = ""
    mark = "#$"
    options: ClassVar = {"queue": "-q {}", "account": "-P {}"}

    def __init__(self, batch: BatchScheduler, shell: CommandRunner | None = None) -> None:
        super().__init__(batch, shell)
        self._parallel, self._directives = named(batch.directives)
        self._environments: list[ParallelEnvironment] | None = None
        self._submitted: dict[str, float] = {}
        self._deleted: set[str] = set()

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of Grid Engine, which estimates no start beyond "at once" or not."""
        return ManagerCapabilities(arrays=True, reservations=True, begin=True, accounting=True)

    async def _hand_in(self, request: JobRequest, script: str) -> JobIds:
        # What no queue could ever run is refused at once (-w e), with what -w v says of it.
        answer = await self._run(["qsub", "-terse", "-w", "e"], stdin=script)
        if answer.status != 0:
            if "no suitable queues" in answer.words:
                why = await self._run(["qsub", "-w", "v"], stdin=script)
                complaints = re.sub(r"\bJob \d+ |verification: no suitable queues", "", why.stderr)
                answer = CommandResult(answer.status, "", f"{answer.stderr}\n{complaints}")
            raise self._error("qsub", answer)
        found = _GIVEN.findall(answer.stdout)
        if not found:
            raise unreadable_output_error("qsub", answer.stdout)
        number, first, last, step = found[-1]
        self._submitted[number] = time.time()
        if not first:
            return [number]
        return [f"{number}.{task}" for task in range(int(first), int(last) + 1, int(step))]

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs by one ``qdel``, naming tasks of an array by ranges."""
        if not ids:
            return
        # By ranges: thousands of tasks one by one would exceed the length of a command line.
        answer = await self._run(["qdel", *_ranges(ids)])
        gone = re.compile(r"does not exist|do(es)? not exist:")
        bad = [
            line
            for line in (answer.stdout + "\n" + answer.stderr).splitlines()
            if re.search(r"denied|error|unable|failed", line, re.IGNORECASE)
            and not gone.search(line)
        ]
        if answer.status != 0 and bad:
            raise self._error("qdel", CommandResult(answer.status, "", "\n".join(bad)))
        self._deleted.update(_deleted(answer.stdout))

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """
        Report where jobs stand.

        ``qstat`` lists the last that ended too (state z), but not how: that is in the
        accounting, which a job that was deleted before it began never enters. Why jobs are in
        error takes one command more.
        """
        if not ids:
            return {}
        listed = await self._listed()
        found = {id: _line_of(id, listed) for id in ids}
        reports: dict[str, JobReport] = {}
        gone = []
        for id, line in found.items():
            if line is None or line.state == "z":
                gone.append(id)
            else:
                reports[id] = gridengine_output.listed_job(id, line).report
        if gone:
            records, missing = await self._records(gone)
            for id in gone:
                reports[id] = self._ended(id, found[id], records.get(id), missing)
        if errors := [id for id, line in found.items() if line is not None and "E" in line.state]:
            for id, why in (await self._errors(errors)).items():
                reports[id] = replace(reports[id], reason=why)
        return {id: reports[id] for id in ids}

    async def queue(self) -> QueueState:
        """Read the queue by two commands, and one more where there are reservations."""
        user = await self._who()
        text = await self._output_of(
            ["qstat", "-f", "-xml", "-r", "-u", "*", "-F", "slots,h_rt,mem_total"]
        )
        if not gridengine_output.is_listing(text):
            raise unreadable_output_error("qstat", text)
        instances = gridengine_output.parse_instances(text)
        queue = self._batch.queue
        ours = [instance for instance in instances if queue in (None, instance.queue)]
        if queue is not None and instances and not ours:
            there = ", ".join(sorted({instance.queue for instance in instances}))
            raise SiteError(f"Grid Engine has no queue {queue}, but {there}")
        lines = [
            *gridengine_output.running_of(instances, queue),
            *gridengine_output.waiting_jobs(text, queue),
        ]
        jobs = [
            gridengine_output.listed_job(id, line)
            for line in lines
            if not line.odd
            for id in islice(line.ids, _MOST_TASKS)
        ]
        return await self._queue_of(
            jobs,
            gridengine_output.nodes_of(instances, queue),
            windows=(await self._reservations(user)).values(),
            longest=gridengine_output.longest_of(ours),
            up=any(not instance.state for instance in ours),
        )

    async def expected_start(self, request: JobRequest) -> float | None:
        """Return the present time if a request would start at once (``-w p``), else None."""
        check(request)
        now = time.time()
        if request.begin is not None and request.begin > now:
            return None
        answer = await self._run(["qsub", "-w", "p"], stdin=await self._script(request))
        if "found suitable queue" in answer.stdout + answer.stderr:
            return now
        if "no suitable queues" in answer.stdout + answer.stderr:
            return None
        raise self._error("qsub -w p", answer)

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """Make an advance reservation, which only users in the list ``arusers`` may do."""
        request = JobRequest(
            name=name, processors=processors, seconds=seconds, script="", folder="/"
        )
        check(request)
        there = await self._reservations(await self._who())
        if any(window.name == _plain(name) for window in there.values()):
            raise SiteError(f"Grid Engine has a reservation {name} already; name another one")
        command = ["qrsub", "-N", plain_name(request), "-a", _date(start)]
        command += ["-d", str(math.ceil(seconds))]
        if self._batch.queue is not None:
            command += ["-q", self._batch.queue]
        if needs_environment(request):
            environment = await self._environment(request)
            command += ["-pe", environment, str(processors)]
        answer = await self._run(command)
        if answer.status != 0 or "granted" not in answer.stdout + answer.stderr:
            raise self._error("qrsub", answer)

    async def unreserve(self, name: str) -> None:
        """Delete a reservation, which ends the jobs that run in the reservation."""
        plain = _plain(name)
        answer = await self._run(["qrdel", plain])
        if answer.status != 0 and "does not exist" not in answer.words:
            raise self._error("qrdel", answer)

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Return usage of running jobs by ``qstat`` and of ended jobs by the accounting."""
        if not ids:
            return {}
        now, listed = time.time(), await self._listed()
        used = {}
        for id in ids:
            line = _line_of(id, listed)
            if line is not None and (spent := gridengine_output.listed_job(id, line).usage(now)):
                used[id] = spent
        if rest := [id for id in ids if id not in used]:
            records, _ = await self._records(rest)
            for id, record in records.items():
                used[id] = JobUsage(
                    id=id, processors=record.slots, seconds=record.seconds, how=record.how
                )
        return used

    async def _script(self, request: JobRequest) -> str:
        directives = [
            f"-N {plain_name(request)}",
            "-S /bin/sh",
            f"-wd {plain_folder(request)}",
            f"-o {request.folder}/",
            "-j y",
            "-r n",  # a pilot that is started twice would come with the same credential
            f"-l h_rt={math.ceil(request.seconds)}",
            *self._site_options(),
        ]
        if needs_environment(request):
            environment = await self._environment(request)
            directives.append(f"-pe {environment} {slots(request)}")
        if request.copies > 1:
            directives.append(f"-t 1-{request.copies}")
        if request.begin is not None:
            directives.append(f"-a {_date(request.begin)}")
        if request.reservation is not None:
            directives.append(f"-ar {await self._reservation(request.reservation)}")
        return self._job_script(request, directives, element("SGE_TASK_ID", 1))

    async def _environment(self, request: JobRequest) -> str:
        """Return the name of a parallel environment that fits a request."""
        if self._parallel is not None:
            return self._parallel
        if self._environments is None:
            names = (await self._output_of(["qconf", "-spl"])).split()
            found = []
            for name in names[:_MOST_ENVIRONMENTS]:
                text = await self._output_of(["qconf", "-sp", name])
                if (environment := parse_environment(text)) is not None:
                    found.append(environment)
            self._environments = found
        return choose(self._environments, request).name

    async def _named(self, name: str, copies: int) -> JobIds:
        user = await self._who()
        lines = await self._listed()
        ours = [line for line in lines if line.name == name and line.owner in ("", user)]
        ids = [id for line in ours for id in line.ids]
        return sorted(set(ids), key=lambda id: [int(part) for part in id.split(".")])

    async def _listed(self) -> list[QstatJob]:
        """List our jobs, and the jobs that ended last."""
        text = await self._output_of(["qstat", "-xml", "-r", "-s", "prsz"])
        if not gridengine_output.is_listing(text):
            raise unreadable_output_error("qstat", text)
        return gridengine_output.parse_jobs(text)

    async def _records(self, ids: Sequence[str]) -> tuple[dict[str, QacctRecord], str]:
        """
        Return the last record of each job, and why records may be missing.

        ``qacct`` takes one job, or all of a user's since a time.
        """
        numbers = list(dict.fromkeys(id.partition(".")[0] for id in ids))
        command = ["qacct", "-j", numbers[0]]
        if len(numbers) > 1:
            command = ["qacct", "-o", await self._who()]
            if all(number in self._submitted for number in numbers):
                since = min(self._submitted[number] for number in numbers)
                # Without a begin, qacct reads the whole accounting file, which holds years.
                command += ["-b", _date(since - _SLACK)]
            command.append("-j")
        try:
            answer = await self._run(command)
        except SiteError as error:
            if error.transient:
                raise
            return {}, str(error)  # many login nodes have no accounting
        found: dict[str, QacctRecord] = {}
        wanted = set(ids)
        for record in parse_records(answer.stdout):
            id = record.number if record.task is None else f"{record.number}.{record.task}"
            if id in wanted:
                found[id] = record
        lost = answer.status != 0 and "not found" not in answer.words
        return found, f"qacct: {answer.words}" if lost else ""

    def _ended(
        self, id: str, line: QstatJob | None, record: QacctRecord | None, missing: str
    ) -> JobReport:
        if record is not None and record.how != "preempted":
            how = "cancelled" if id in self._deleted and record.how == "failed" else record.how
            return JobReport(
                id=id,
                state="ended",
                how=how,
                reason=record.reason,
                began=record.began,
                ended=record.ended,
                processors=record.slots,
                nodes=(record.host,) if record.host else (),
            )
        if id in self._deleted:
            # Its own word: qdel took it, and it is listed no more.
            return JobReport(
                id=id, state="ended", how="cancelled", reason="deleted before it began"
            )
        if line is not None:
            why = missing or "the accounting does not say how, or not yet"
            return JobReport(id=id, state="ended", how="unknown", reason=why, processors=line.slots)
        if not _ID.fullmatch(id):
            return JobReport(id=id, state="unknown", reason="no job number of Grid Engine")
        return JobReport(
            id=id, state="unknown", reason=missing or "neither listed nor in the accounting"
        )

    async def _errors(self, ids: Sequence[str]) -> dict[str, str]:
        """Return why jobs are in error, in Grid Engine's words."""
        numbers = list(dict.fromkeys(id.partition(".")[0] for id in ids))
        answer = await self._run(["qstat", "-j", ",".join(numbers)])
        complaints: dict[str, str] = {}
        number = ""
        for text in answer.stdout.splitlines():
            name, _, value = text.partition(":")
            if name.strip() == "job_number":
                number = value.strip()
            elif name.startswith("error reason"):
                complaints.setdefault(number, value.strip())
        hint = '; clear it with "qmod -cj", or withdraw the job'
        return {
            id: complaints[number] + hint
            for id in ids
            if (number := id.partition(".")[0]) in complaints
        }

    async def _reservations(self, user: str) -> dict[str, QueueReservation]:
        answer = await self._run(["qrstat", "-xml", "-u", "*"])
        if answer.status != 0:
            return {}  # versions without reservations
        owners = gridengine_output.parse_owners(answer.stdout)
        if not owners:
            return {}
        detail = await self._run(["qrstat", "-ar", ",".join(owners), "-xml"])
        windows = gridengine_output.parse_reservations(answer.stdout)
        windows.update(gridengine_output.parse_reservations(detail.stdout))
        return {
            number: gridengine_output.owned(window, owners.get(number) == user)
            for number, window in windows.items()
        }

    async def _reservation(self, name: str) -> str:
        """Return the number of a reservation of ours."""
        user = await self._who()
        plain = _plain(name)
        for number, window in (await self._reservations(user)).items():
            if window.own and window.name == plain:
                return number
        raise SiteError(f"Grid Engine has no reservation {name} of yours")

    def _error(self, doing: str, answer: CommandResult) -> SiteError:
        """Return Grid Engine's complaint as an error, without the phrases common to all."""
        plain = re.sub(r"Unable to run job: |\bExiting\.|\berror: ", "", answer.stderr)
        return super()._error(doing, CommandResult(answer.status, answer.stdout, plain))


def _line_of(id: str, listed: Iterable[QstatJob]) -> QstatJob | None:
    """Return the line of a job, preferring a line of a job that has not ended."""
    found = _ID.fullmatch(id)
    if found is None:
        return None
    task = int(found[2]) if found[2] else None
    ended = None
    for line in listed:
        if line.number == found[1] and (line.odd or task in line):
            if line.state != "z":
                return line
            ended = line
    return ended


def _plain(name: str) -> str:
    """Return a reservation's name, prefixed with "j" unless the name begins with a letter."""
    return name if name[:1].isalpha() else f"j{name}"


def _deleted(text: str) -> set[str]:
    """Return the jobs that ``qdel`` reports as deleted or as about to be."""
    found = set()
    for words in re.findall(r"(?:has deleted|has registered the) (job.*)", text):
        if plain := re.match(r"job(?:-array task)? (\d+(?:\.\d+)?)\b", words):
            found.add(plain[1])
        elif several := re.match(r"job-array tasks (\d+)-(\d+)(?::(\d+))? of job (\d+)", words):
            first, last, step, number = several.groups()
            tasks = range(int(first), int(last) + 1, int(step or 1))
            found.update(f"{number}.{task}" for task in tasks)
    return found


def _ranges(ids: Sequence[str]) -> list[str]:
    """Join array tasks to ranges: ``["7", "9.1", "9.2", "9.3"]`` to ``["7", "9.1-3"]``."""
    words = []
    runs: dict[str, list[tuple[int, int]]] = {}
    for id in sorted(set(ids), key=lambda id: [int(part) for part in re.findall(r"\d+", id)]):
        number, dot, task = id.partition(".")
        if not dot or not task.isdigit():
            words.append(id)
            continue
        of_it = runs.setdefault(number, [])
        if of_it and of_it[-1][1] == int(task) - 1:
            of_it[-1] = (of_it[-1][0], int(task))
        else:
            of_it.append((int(task), int(task)))
    for number, of_it in runs.items():
        words += [f"{number}.{a}" if a == z else f"{number}.{a}-{z}" for a, z in of_it]
    return words


def _date(moment: float) -> str:
    """Format a time as ``[[CC]YY]MMDDhhmm[.SS]`` in UTC, rounded up to the second."""
    return time.strftime("%Y%m%d%H%M.%S", time.gmtime(math.ceil(moment)))
