"""
A base of adapters to schedulers that are commands only: run one, read its listing of jobs.

A subclass says which command and how its output reads. What schedulers have in common stands here:
a submission whose answer is lost, a cancelled job that has ended already, reports and usage from
one listing, and refusals of what a scheduler cannot do.
"""

import calendar
import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm.command_runner import (
    CommandResult,
    CommandRunner,
    KnownComplaint,
    command_error,
)
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobEnding,
    JobReport,
    JobRequest,
    JobState,
    JobUsage,
    QueuedJob,
    QueueReservation,
    QueueState,
)
from bursar.provisioning.lrm.submission import (
    JobIds,
    JobSubmitter,
    check,
    job_script,
    plain_name,
)

# Parse times, durations, ranges and listings as schedulers print them.

Entry = Mapping[str, Any]
"""What a scheduler lists of one job, node or queue, by attribute."""

MOST_NAMES = 100_000
"""Nodes that one expression may stand for."""

UTC = {"TZ": "UTC0", "LC_ALL": "C"}
"""Variables that make commands print times in UTC and speak English: many leave out the zone."""

_ENDLESS = re.compile(r"(infinity|inf|unlimited|none|undefined|-+)?", re.IGNORECASE)


def parse_moment(text: str, *formats: str) -> float | None:
    """
    Parse a time in UTC to seconds since the epoch; None when no format fits.

    Parameters
    ----------
    text
        Time as printed under :data:`UTC`.
    formats
        Formats of :func:`time.strptime`.
    """
    for form in formats:
        try:
            return float(calendar.timegm(time.strptime(" ".join(text.split()), form)))
        except ValueError:
            continue
    return None


def seconds(text: str) -> float | None:
    """
    Seconds of ``[[[days:]hours:]minutes:]seconds``; None where there is no limit.

    Raises
    ------
    ValueError
        When it is neither.
    """
    if _ENDLESS.fullmatch(text.strip()):
        return None
    total = 0.0
    for part, unit in zip(reversed(text.strip().split(":")), (1, 60, 3600, 86400), strict=False):
        total += float(part) * unit
    if text.count(":") > 3 or not 0 <= total < float("inf"):
        raise ValueError(f"no duration: {text!r}")
    return total


def format_walltime(duration: float) -> str:
    """``HH:MM:SS`` of at least so many seconds."""
    whole = int(duration) + (duration > int(duration))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def expand_numbers(text: object) -> list[int]:
    """Expand a set of numbers, for example ``0-3,7`` or ``[0-3,7]``."""
    numbers: list[int] = []
    for piece in str(text).strip("[],").split(","):
        if piece.strip():
            first, dash, last = piece.partition("-")
            numbers += range(int(first), int(last if dash else first) + 1)
    return numbers


def expand_hostlist(expression: str) -> tuple[str, ...]:
    """
    Expand a list of nodes like ``n[1-3,07],login`` to names.

    Raises
    ------
    ValueError
        When it is none, or stands for more than :data:`MOST_NAMES`.
    """
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", expression.strip()):
        if part in ("(null)", "None assigned", "N/A"):
            continue
        spread = [""]
        for text, ranges in re.findall(r"([^\[\]]+)|\[([^\]]*)\]", part):
            ends = [text] if text else list(padded_numbers(ranges))
            if len(spread) * len(ends) + len(found) > MOST_NAMES:
                raise ValueError(f"too many nodes: {expression[:80]!r}")
            spread = [head + end for head in spread for end in ends]
        found.extend(spread)
    if re.search(r"[^\w.,\[\]\-]", expression) and found:
        raise ValueError(f"no names of nodes: {expression[:80]!r}")
    return tuple(found)


def padded_numbers(ranges: str) -> Iterator[str]:
    """Expand ranges, for example ``08-10,3``, to numbers with their leading zeros."""
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal()):
            raise ValueError(f"no numbers of nodes: {ranges[:80]!r}")
        if int(last) - int(first) >= MOST_NAMES:
            raise ValueError(f"too many nodes: {ranges[:80]!r}")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))


def table_in(entry: Entry, name: str) -> Entry:
    """Return an attribute that is a table itself; an empty one where it is none or absent."""
    found = entry.get(name)
    return found if isinstance(found, Mapping) else {}


def parse_json_list(text: str, key: str) -> tuple[list[Entry], list[str]] | None:
    """
    Parse a list of records, and return the unreadable ones as they were printed.

    Where the whole is no valid JSON, each record is read alone, so that one does not hide the
    others.

    Parameters
    ----------
    text
        JSON that warnings may precede, such as "Cannot connect to LSF. Please wait".
    key
        Under which key the records stand, such as ``"jobs"``.

    Returns
    -------
    tuple or None
        None when the text holds no such list.
    """
    start = text.find("{")
    if start < 0 or f'"{key}"' not in text:
        return None
    with contextlib.suppress(ValueError):
        records = json.loads(text[start:], strict=False).get(key)
        if not isinstance(records, list):
            return None
        odd = [str(record) for record in records if not isinstance(record, dict)]
        return [record for record in records if isinstance(record, dict)], odd
    decoder = json.JSONDecoder(strict=False)
    found: list[Entry] = []
    odd = []
    body = text.partition(f'"{key}"')[2]
    at = 0
    while (start := body.find("{", at)) >= 0:
        try:
            record, at = decoder.raw_decode(body, start)
            found.append(record)
        except ValueError:
            # On to what looks like the next record.
            ahead = re.compile(r"\}\s*,\s*(?=\{)").search(body, start + 1)
            odd.append(body[start : ahead.start() if ahead else len(body)])
            at = ahead.end() if ahead else len(body)
    return found, odd


# A scheduler's listing of one job, not yet turned into a report or a queue entry.


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """
    A job as the scheduler listed it.

    Parameters
    ----------
    state, how, reason
        See :class:`~bursar.provisioning.lrm.resource_manager.JobReport`.
    name, owner, queue
        Name, owner and queue of the job; empty where not said.
    submitted, began, ended, expected
        Seconds since the epoch; None: not yet, or not said.
    limit
        Wall-clock limit, seconds; None: no limit, or unknown.
    processors
        Number of processors held or requested; None if not listed.
    nodes
        Nodes on which the job runs or ran.
    spent
        Seconds that the job ran, by the scheduler's own count; None without one.
    """

    id: str
    state: JobState
    how: JobEnding | None = None
    reason: str = ""
    name: str = ""
    owner: str = ""
    queue: str = ""
    submitted: float | None = None
    began: float | None = None
    ended: float | None = None
    expected: float | None = None
    limit: float | None = None
    processors: int | None = None
    nodes: tuple[str, ...] = ()
    spent: float | None = None

    @property
    def report(self) -> JobReport:
        """Return the report on the job for the job's listener."""
        running = self.state == "running"
        over = self.began is not None and self.limit is not None and running
        return JobReport(
            id=self.id,
            state=self.state,
            how=self.how,
            reason=self.reason,
            began=self.began if running or self.state == "ended" else None,
            ended=self.ended if self.state == "ended" else None,
            until=(self.began or 0.0) + (self.limit or 0.0) if over else None,
            processors=self.processors,
            nodes=self.nodes if running or self.state == "ended" else (),
            expected=self.expected if self.state == "pending" else None,
        )

    def queued(self, user: str) -> QueuedJob | None:
        """Return the job's entry in the queue; None for an ended job or an unknown state."""
        if self.state in ("ended", "unknown") or self.processors is None:
            return None
        running = self.state == "running"
        return QueuedJob(
            id=self.id,
            running=running,
            processors=self.processors,
            submitted=self.submitted,
            began=self.began if running else None,
            seconds=self.limit,
            own=self.owner == user,
            held=self.state == "held",
            nodes=self.nodes if running else (),
        )

    def usage(self, now: float) -> JobUsage | None:
        """Return the job's usage until now; None for a job not known to have begun."""
        if self.processors is None or self.state not in ("running", "ended"):
            return None
        spent = self.spent
        if self.began is not None and self.ended is not None and self.state == "ended":
            spent = self.ended - self.began if spent is None else spent
        elif self.began is not None and self.state == "running":
            spent = max(0.0, now - self.began)
        if spent is None:
            return None
        return JobUsage(id=self.id, processors=self.processors, seconds=spent, how=self.how)


def unknown_report(id: str, reason: str) -> ListedJob:
    """Listing of a job whose state cannot be determined."""
    return ListedJob(id=id, state="unknown", reason=reason)


def read_or_unknown(id: str, command: str, read: Callable[[], ListedJob]) -> ListedJob:
    """Return what is read of a job; a job that cannot be read is unknown, and no other is."""
    try:
        return read()
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return unknown_report(id, f"{command} said of it what cannot be read: {error!r}")


# A base of adapters to schedulers without a programming interface: run a command, parse its output.


class CommandAdapter:
    """
    Runs a scheduler's commands with the rights of a plain user.

    Starts are not estimated and nothing is reserved, unless a subclass says how.

    Parameters
    ----------
    shell
        Runs the commands; None: a runner for the host that ``batch`` names.

    Attributes
    ----------
    title
        Name of the scheduler, for people.
    command
        Words before each command, such as ``flux``.
    environment
        Variables under which commands print what is parsed here.
    complaints
        Messages of the scheduler that are known, with hints.
    cancelling
        Command that ends jobs, without their ids.
    mark
        Prefix of a directive in a job script.
    options
        Directives for the site's ``queue``, ``account`` and ``qos``, with ``{}`` for the name.
    gone
        Pattern of a line that says that a job is gone, whatever its case.
    quality
        Hint for a site that names a quality of service; None: the scheduler knows these.

    Raises
    ------
    InputError
        When the site names a quality of service that the scheduler does not know.
    """

    title: ClassVar[str]
    command: ClassVar[tuple[str, ...]] = ()
    environment: ClassVar[Mapping[str, str]] = UTC
    complaints: ClassVar[tuple[KnownComplaint, ...]]
    cancelling: ClassVar[tuple[str, ...]]
    gone: ClassVar[str]
    mark: ClassVar[str]
    options: ClassVar[Mapping[str, str]]
    quality: ClassVar[str | None] = None

    def __init__(self, batch: BatchScheduler, shell: CommandRunner | None = None) -> None:
        if batch.qos is not None and self.quality is not None:
            raise InputError(f"{self.title} has no such thing", where="qos", hint=self.quality)
        self._batch = batch
        self._directives = batch.directives
        self._shell = shell or CommandRunner(
            environment=batch.environment, ssh=batch.ssh, scheduler=self.title
        )
        self._submissions = JobSubmitter()
        self._user: str | None = None

    @property
    def shell(self) -> CommandRunner:
        """Runner of the commands."""
        return self._shell

    async def submit(self, request: JobRequest) -> JobIds:
        """Submit single jobs or one job array."""
        check(request)
        return await self._submit_once(plain_name(request), request, await self._script(request))

    async def cancel(self, ids: Sequence[str]) -> None:
        """Cancel jobs; jobs that have ended already are no error."""
        if not ids:
            return
        answer = await self._run([*self.cancelling, *ids])
        bad = [
            line
            for line in answer.stderr.splitlines()
            if line.strip() and not re.search(self.gone, line, re.IGNORECASE)
        ]
        if answer.status != 0 and bad:
            failed = CommandResult(answer.status, "", "\n".join(bad))
            raise self._error(self._words(self.cancelling), failed)

    async def poll(self, ids: Sequence[str]) -> Mapping[str, JobReport]:
        """Report on jobs, with those that the scheduler still lists after their end."""
        found = await self._seen(ids) if ids else {}
        return {id: seen.report for id, seen in found.items()}

    async def usage(self, ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """Return usage of jobs by the scheduler's record."""
        now = time.time()
        found = await self._seen(ids) if ids else {}
        return {id: usage for id, seen in found.items() if (usage := seen.usage(now)) is not None}

    async def expected_start(self, request: JobRequest) -> float | None:
        """Return None: no estimate is available."""
        return None

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """Raise SiteError: reservations are not supported."""
        raise SiteError(
            f"no reservations are made with {self.title}; pilots with a begin time are used instead"
        )

    async def unreserve(self, name: str) -> None:
        """Do nothing: there are no reservations."""

    # What a subclass says.

    async def _script(self, request: JobRequest) -> str:
        """Return the job script of a request, with directives."""
        raise NotImplementedError

    async def _hand_in(self, request: JobRequest, script: str) -> JobIds:
        """Submit a script and return the ids that the scheduler gives."""
        raise NotImplementedError

    async def _named(self, name: str, copies: int) -> JobIds:
        """Return ids of this user's jobs of a name, including jobs that ended lately."""
        raise NotImplementedError

    async def _seen(self, ids: Sequence[str]) -> Mapping[str, ListedJob]:
        """List jobs, each of those asked for; one at least is asked for."""
        raise NotImplementedError

    # What subclasses use.

    async def _submit_once(self, name: str, request: JobRequest, script: str) -> JobIds:
        """Submit a script unless a job of this name is found after an answer that was lost."""

        async def hand_in() -> JobIds:
            return await self._hand_in(request, script)

        async def find(name: str) -> JobIds:
            return await self._named(name, request.copies)

        return await self._submissions.once(name, hand_in, find)

    async def _queue_of(
        self,
        seen: Iterable[ListedJob],
        nodes: Iterable[ClusterNode],
        *,
        windows: Iterable[QueueReservation] = (),
        longest: float | None = None,
        up: bool = True,
    ) -> QueueState:
        """Put a queue together, without jobs of an unknown state."""
        user = await self._who()
        lines = [line for job in seen if (line := job.queued(user)) is not None]
        return QueueState(
            at=time.time(),
            nodes=tuple(nodes),
            jobs=tuple(sorted(lines, key=lambda line: not line.running)),
            windows=tuple(windows),
            longest=longest,
            up=up,
        )

    async def _who(self) -> str:
        """Return the name of the user whose jobs are ours."""
        if self._user is None:
            self._user = (await self._shell.run(["id", "-un"])).stdout.strip()
        return self._user

    def _site_options(self, queue: str | None = None) -> list[str]:
        """Return directives for a queue, by default the site's, the account and the quality."""
        batch = self._batch
        names = {"queue": queue or batch.queue, "account": batch.account, "qos": batch.qos}
        return [self.options[key].format(name) for key, name in names.items() if name is not None]

    def _job_script(self, request: JobRequest, directives: Iterable[str], *setup: str) -> str:
        """Return the script of a request, with the site's own directives and setup last."""
        lines = [*directives, *self._directives]
        return job_script(self.mark, lines, [*setup, *self._batch.setup], request)

    async def _output_of(
        self, command: Sequence[str], *, stdin: str = "", doing: str | None = None
    ) -> str:
        """Return what a command prints; raise the scheduler's complaint if there is one."""
        answer = await self._run(command, stdin)
        if answer.status != 0:
            raise self._error(doing or self._words(command), answer)
        return answer.stdout

    async def _run(self, command: Sequence[str], stdin: str = "") -> CommandResult:
        return await self._shell.run(
            [*self.command, *command], stdin=stdin, environment=self.environment
        )

    def _error(self, doing: str, answer: CommandResult) -> SiteError:
        """Return a complaint of the scheduler as an error."""
        return command_error(doing, answer, self.complaints)

    def _words(self, command: Sequence[str]) -> str:
        return " ".join([*self.command, *command][:2])
