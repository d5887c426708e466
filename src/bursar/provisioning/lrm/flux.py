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
from typing import ClassVar

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.command_adapter import (
    CommandAdapter,
    Entry,
    ListedJob,
    expand_hostlist,
    expand_numbers,
    parse_json_list,
    read_or_unknown,
    table_in,
    unknown_report,
)
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
from bursar.provisioning.lrm.submission import JobIds, check, plain_folder

# Parse the output of ``flux jobs --json`` and ``flux resource R``.

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
        one = json.loads(text, strict=False)
        if isinstance(one, dict) and "id" in one:
            return [one], []
    return parse_json_list(text, "jobs")


def id_in(block: str) -> str | None:
    """Number of a job that cannot be read."""
    found = re.search(r'"id"\s*:\s*(\d+)', block)
    return found[1] if found else None


def read_job(entry: Entry) -> ListedJob:
    """Parse one job; one that cannot be read has the state ``"unknown"`` and a reason."""
    id = str(entry.get("id", ""))
    return read_or_unknown(id, "flux jobs", lambda: _read_job(id, entry))


def _read_job(id: str, entry: Entry) -> ListedJob:
    word = str(entry["state"])
    state = _STATES.get(word, "unknown")
    sched = table_in(table_in(entry, "annotations"), "sched")
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
        nodes=expand_hostlist(str(entry.get("nodelist", "") or "")),
        spent=_number(entry.get("runtime")) if began is not None else None,
    )


def _end_of(entry: Entry) -> tuple[JobEnding, str]:
    problem = table_in(entry, "exception")
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
        names = [name for part in execution["nodelist"] for name in expand_hostlist(part)]
        cores: dict[int, int] = {}
        for part in execution["R_lite"]:
            for rank in expand_numbers(part["rank"]):
                cores[rank] = len(expand_numbers(part["children"].get("core", "")))
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

    A site's account is a bank; there is no quality of service.
    """

    title = "Flux"
    command = ("flux",)
    environment: ClassVar = {"LC_ALL": "C.UTF-8"}
    complaints = COMPLAINTS
    cancelling = ("cancel",)
    mark = "# flux:"
    options: ClassVar = {"queue": "--queue={}", "account": "--bank={}"}
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
        text = await self._output_of(["batch"], stdin=script)
        id = job_number(text.split()[-1]) if text.split() else None
        if id is None:
            raise unreadable_output_error("flux batch", text)
        return [id]

    async def _named(self, name: str, copies: int) -> JobIds:
        jobs, _ = await self._jobs(["jobs", "-a", f"--name={name}", "--json"])
        return [str(job["id"]) for job in jobs if job.get("name") == name]

    async def queue(self) -> QueueState:
        """Read the queue by four commands; an instance may hide details of other users' jobs."""
        only = [f"--queue={self._batch.queue}"] if self._batch.queue is not None else []
        jobs, _ = await self._jobs(
            ["jobs", "-A", "--filter=pending,running", "--count=0", *only, "--json"]
        )
        parts = []
        for states in ("all", "allocated", "down"):
            parts.append(await self._output_of(["resource", "R", "-s", states]))
        try:
            nodes = nodes_of(*parts)
        except ValueError:
            raise unreadable_output_error("flux resource R", parts[0]) from None
        return await self._queue_of(map(read_job, jobs), nodes)

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
            *self._site_options(),
        ]
        if request.begin is not None:
            wait = max(0, math.ceil(request.begin - time.time()))
            directives.append(f"--begin-time=+{wait}s")
        if request.reservation is not None:
            raise SiteError("Flux has no reservations")
        element = f"BURSAR_ELEMENT={number}; export BURSAR_ELEMENT"
        return self._job_script(request, directives, element)

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
