"""
Flux adapter: not run live, tested on recorded outputs.

Job numbers are told in decimal here; on submission they come in base 58 (Flux RFC 19).
"""

import contextlib
import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.command_adapter import CommandAdapter, ListedJob, unknown_report
from bursar.provisioning.lrm.command_runner import (
    KnownComplaint,
    unreadable_output_error,
)
from bursar.provisioning.lrm.resource_manager import (
    ClusterNode,
    JobEnding,
    JobRequest,
    JobState,
    ManagerCapabilities,
    QueueState,
)
from bursar.provisioning.lrm.submission import JobIds, check, job_script, plain_folder

# Parse the output of ``flux jobs --json`` and ``flux resource R``.

Entry = Mapping[str, Any]

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_STATES: Mapping[str, JobState] = {
    "NEW": "pending",
    "DEPEND": "pending",  # for its begin, or for another job
    "PRIORITY": "pending",
    "SCHED": "pending",
    "RUN": "running",
    "CLEANUP": "running",  # at its end, but it has its nodes yet
    "INACTIVE": "ended",
}
_RESULTS: Mapping[str, JobEnding] = {
    "COMPLETED": "completed",
    "FAILED": "failed",
    "CANCELED": "cancelled",
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
}
_EXCEPTIONS: Mapping[str, JobEnding] = {
    "alloc": "rejected",
    "dependency": "rejected",
    "validate": "rejected",
    "feasibility": "rejected",
    "node-failure": "node-fail",
    "lost-contact": "node-fail",
    "preempt": "preempted",
}
_HELD = 0
"""Urgency of a job that is on hold."""

_FOREVER = 10 * 365 * 86400.0
"""Seconds: an allocation without a limit is said to expire in a hundred years."""


def job_number(text: str) -> str | None:
    """Decimal of what a submission printed: ``ƒ2oKEW``, ``f2oKEW`` or a decimal; None: neither."""
    word = text.strip()
    if word.isascii() and word.isdigit():
        return str(int(word))
    if len(word) < 2 or word[0] not in "ƒf":
        return None
    number = 0
    for letter in word[1:]:
        value = _BASE58.find(letter)
        if value < 0:
            return None
        number = number * 58 + value
    return str(number)


def parse_jobs(text: str) -> tuple[list[Entry], list[str]] | None:
    """
    Parse jobs and unreadable blocks; None when the text is no listing of jobs.

    Asked for one job it prints that alone, without a list around it.
    """
    with contextlib.suppress(ValueError):
        whole = json.loads(text, strict=False)
        if not isinstance(whole, dict):
            return None
        if "id" in whole:
            return [whole], []
        jobs = whole.get("jobs")
        if not isinstance(jobs, list):
            return None
        odd = [str(job) for job in jobs if not isinstance(job, dict)]
        return [job for job in jobs if isinstance(job, dict)], odd
    if '"id"' not in text:
        return None
    return _each(text)


def _each(text: str) -> tuple[list[Entry], list[str]]:
    """Jobs of a listing that is no valid JSON: each from where its braces begin."""
    jobs: list[Entry] = []
    odd = []
    _, bracket, rest = text.partition("[")
    decoder = json.JSONDecoder(strict=False)
    at = 0
    body = rest if bracket else text
    while (start := body.find("{", at)) >= 0:
        try:
            job, at = decoder.raw_decode(body, start)
        except ValueError:
            # On to what looks like the next job.
            ahead = re.compile(r"\}\s*,\s*(?=\{)").search(body, start + 1)
            odd.append(body[start : ahead.start() if ahead else len(body)])
            at = ahead.end() if ahead else len(body)
            continue
        if isinstance(job, dict) and "id" in job:
            jobs.append(job)
    return jobs, odd


def id_in(block: str) -> str | None:
    """Number of a job that cannot be read."""
    found = re.search(r'"id"\s*:\s*(\d+)', block)
    return found[1] if found else None


def read_job(entry: Entry) -> ListedJob:
    """Parse one job; one that cannot be read has the state ``"unknown"`` and a reason."""
    id = str(entry.get("id", ""))
    try:
        return _read_job(id, entry)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return unknown_report(id, f"flux jobs said of it what cannot be read: {error!r}")


def _read_job(id: str, entry: Entry) -> ListedJob:
    word = str(entry["state"])
    state = _STATES.get(word, "unknown")
    sched = _table(_table(entry, "annotations"), "sched")
    how: JobEnding | None = None
    reason = str(sched.get("reason_pending", ""))
    if state == "ended":
        how, reason = _end_of(entry)
    elif state == "unknown":
        reason = f"in a state that is not known: {word!r}"
    elif state == "pending":
        if int(entry.get("urgency", 16)) == _HELD:
            state, reason = "held", "its urgency is 0: on hold"
        elif word == "DEPEND":
            reason = ", ".join(str(one) for one in entry.get("dependencies") or ()) or "waiting"
        reason = reason or word.lower()
    began = _number(entry.get("t_run"))
    return ListedJob(
        id=id,
        state=state,
        how=how,
        reason=reason,
        name=str(entry.get("name", "")),
        owner=str(entry.get("username", "")),
        queue=str(entry.get("queue", "")),
        submitted=_number(entry.get("t_submit")),
        began=began,
        ended=_number(entry.get("t_inactive")) or _number(entry.get("t_cleanup")),
        expected=_number(sched.get("t_estimate")),
        limit=_limit(entry, began),
        processors=int(entry.get("ncores") or entry.get("ntasks") or 1),
        nodes=expand(str(entry.get("nodelist", "") or "")),
        spent=_number(entry.get("runtime")) if began is not None else None,
    )


def _end_of(entry: Entry) -> tuple[JobEnding, str]:
    problem = _table(entry, "exception")
    kind = str(problem.get("type", "") or "")
    code = entry.get("returncode", "")
    errors = [f"{kind}: {problem.get('note', '')}".strip(": ")] if problem.get("occurred") else []
    if code not in ("", 0, None):
        errors.append(f"return code {code}")
    how = _RESULTS.get(str(entry.get("result", "")), "unknown")
    if how == "failed":
        how = _EXCEPTIONS.get(kind, "failed")
    return how, ", ".join(errors)


def parse_resources(text: str) -> dict[str, int]:
    """
    Cores by node, of an object R (Flux RFC 20).

    Raises
    ------
    ValueError
        When it is none.
    """
    try:
        execution = json.loads(text)["execution"]
        names = [name for part in execution["nodelist"] for name in expand(part)]
        cores: dict[int, int] = {}
        for part in execution["R_lite"]:
            for rank in _numbers(part["rank"]):
                cores[rank] = len(_numbers(part["children"].get("core", "")))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"no object R: {error!r}") from None
    # Names stand in the order of the ranks.
    return dict(zip(names, (cores[rank] for rank in sorted(cores)), strict=False))


def nodes_of(everything: str, allocated: str, down: str) -> list[ClusterNode]:
    """
    Nodes, from the objects R of all, of what jobs hold, and of what is down.

    Raises
    ------
    ValueError
        When one of them is none.
    """
    taken = parse_resources(allocated) if allocated.strip() else {}
    gone = parse_resources(down) if down.strip() else {}
    return [
        ClusterNode(
            name=name,
            processors=cores,
            allocated=min(cores, taken.get(name, 0)),
            up=name not in gone,
            state="down" if name in gone else "allocated" if taken.get(name) else "free",
        )
        for name, cores in parse_resources(everything).items()
    ]


def expand(hosts: str) -> tuple[str, ...]:
    """Expand a host list, for example ``n[1-3,7],m`` (Flux RFC 29), to names."""
    names = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\][^,\[\]]*)?", hosts):
        found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part.strip())
        if found is None:
            names.append(part.strip())
            continue
        for piece in found[2].split(","):
            first, dash, last = piece.partition("-")
            width = len(first)
            for number in range(int(first), int(last if dash else first) + 1):
                names.append(f"{found[1]}{number:0{width}d}{found[3]}")
    return tuple(name for name in names if name)


def _numbers(text: object) -> list[int]:
    """Expand an id set, for example ``0-3,7`` or ``[0-3,7]`` (Flux RFC 22), to numbers."""
    numbers: list[int] = []
    for piece in str(text).strip("[]").split(","):
        if piece.strip():
            first, dash, last = piece.partition("-")
            numbers += range(int(first), int(last if dash else first) + 1)
    return numbers


def _limit(entry: Entry, began: float | None) -> float | None:
    duration = _number(entry.get("duration"))
    if duration:
        return duration
    expiration = _number(entry.get("expiration"))
    if expiration and began is not None and 0 < expiration - began < _FOREVER:
        return expiration - began
    return None


def _number(value: object) -> float | None:
    """Parse a number; None also for 0 and for an empty string, Flux's "not yet"."""
    if value in ("", None, 0):
        return None
    return float(str(value))


def _table(entry: Entry, name: str) -> Entry:
    found = entry.get(name)
    return found if isinstance(found, Mapping) else {}


# Run Flux's commands and parse the output.


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


class Flux(CommandAdapter):
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
    command = ("flux",)
    environment: ClassVar = {"LC_ALL": "C.UTF-8"}
    complaints = COMPLAINTS
    cancelling = ("cancel",)
    gone = r"unknown|invalid or|inactive|no such job|not found|job is not active"
    quality = ""

    @property
    def abilities(self) -> ManagerCapabilities:
        """Capabilities of the scheduler."""
        return ManagerCapabilities(begin=True, accounting=True)

    async def submit(self, request: JobRequest) -> JobIds:
        """Submit jobs one by one; when one is refused, cancel the earlier ones."""
        check(request)
        if request.copies == 1:
            return await self._submit_one(request, 0)
        ids: JobIds = []
        for copy in range(request.copies):
            one = replace(request, name=f"{request.name}-{copy}", copies=1)
            try:
                ids += await self._submit_one(one, copy)
            except SiteError:
                await self.cancel(ids)
                raise
        return ids

    async def _submit_one(self, request: JobRequest, number: int) -> JobIds:
        return await self._submit_once(request.name, request, self._numbered(request, number))

    async def _hand_in(self, request: JobRequest, script: str) -> JobIds:
        answer = await self._run(["batch"], stdin=script)
        if answer.status != 0:
            raise self._error("flux batch", answer)
        words = answer.stdout.split()
        id = job_number(words[-1]) if words else None
        if id is None:
            raise unreadable_output_error("flux batch", answer.stdout)
        return [id]

    async def _named(self, name: str, copies: int) -> JobIds:
        jobs, _ = await self._jobs(["jobs", "-a", f"--name={name}", "--json"])
        return [str(job["id"]) for job in jobs if job.get("name") == name]

    async def queue(self) -> QueueState:
        """Read the queue by four commands; an instance may hide details of other users' jobs."""
        only = [f"--queue={self._batch.queue}"] if self._batch.queue is not None else []
        jobs, odd = await self._jobs(
            ["jobs", "-A", "--filter=pending,running", "--count=0", *only, "--json"]
        )
        parts = []
        for states in ("all", "allocated", "down"):
            parts.append(await self._output_of(["resource", "R", "-s", states]))
        try:
            nodes = nodes_of(*parts)
        except ValueError:
            raise unreadable_output_error("flux resource R", parts[0]) from None
        problems = [f"flux jobs: {block}" for block in odd]
        return await self._queue_of(map(read_job, jobs), nodes, problems)

    async def _seen(self, ids: Sequence[str]) -> dict[str, ListedJob]:
        jobs, odd = await self._jobs(["jobs", "-a", "--json", *ids])
        listed = {seen.id: seen for seen in map(read_job, jobs)}
        for block in odd:
            if (id := id_in(block)) is not None:
                listed.setdefault(
                    id, unknown_report(id, "flux jobs said of it what cannot be read")
                )
        return {id: listed.get(id) or unknown_report(id, "Flux knows no such job") for id in ids}

    def _numbered(self, request: JobRequest, number: int) -> str:
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

    async def _jobs(self, command: Sequence[str]) -> tuple[list[Entry], list[str]]:
        answer = await self._run(command)
        if (found := parse_jobs(answer.stdout)) is not None:
            return found
        if not answer.stdout.strip():
            told = re.search(r"job ?id.*(unknown|invalid|not found)", answer.stderr, re.IGNORECASE)
            if told or answer.status == 0:
                return [], []
            raise self._error("flux jobs", answer)
        raise unreadable_output_error("flux jobs", answer.stdout)


def _size(request: JobRequest) -> list[str]:
    """Return options for slots of one core, together or anywhere; least of a range of nodes."""
    each = request.processors
    if request.nodes is not None:
        nodes = request.nodes[0]
        return [f"--nodes={nodes}", f"--nslots={nodes}", f"--cores-per-slot={each}"]
    if request.together:
        return ["--nslots=1", f"--cores-per-slot={each}"]
    return [f"--nslots={each}", "--cores-per-slot=1"]
