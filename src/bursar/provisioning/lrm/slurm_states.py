"""
Meanings of Slurm's states, reasons and messages, and job scripts with ``#SBATCH`` lines.

Sources: squeue(1), "JOB STATE CODES", and https://slurm.schedmd.com/job_reason_codes.html, of
Slurm 20.11 to 24.11.
"""

import math
import re
from typing import NamedTuple

from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import BatchScheduler
from bursar.provisioning.lrm import submission
from bursar.provisioning.lrm.resource_manager import JobEnding, JobRequest, JobState

# Meanings of Slurm's states, reasons and error messages.


class SlurmStateMeaning(NamedTuple):
    """
    Meaning of a Slurm state in our terms.

    Parameters
    ----------
    how
        Ending of the job; None before the end.
    """

    state: JobState
    how: JobEnding | None = None


STATES = {
    "PENDING": SlurmStateMeaning("pending"),
    # The nodes are the job's, but they still boot or run a prologue.
    "CONFIGURING": SlurmStateMeaning("pending"),
    "POWER_UP_NODE": SlurmStateMeaning("pending"),
    "REQUEUED": SlurmStateMeaning("pending"),
    "REQUEUE_FED": SlurmStateMeaning("pending"),
    "REQUEUE_HOLD": SlurmStateMeaning("held"),
    "SPECIAL_EXIT": SlurmStateMeaning("held"),
    "RESV_DEL_HOLD": SlurmStateMeaning("held"),
    "RUNNING": SlurmStateMeaning("running"),
    "EXPEDITING": SlurmStateMeaning("pending"),
    "RESIZING": SlurmStateMeaning("running"),
    "SIGNALING": SlurmStateMeaning("running"),
    "STAGE_OUT": SlurmStateMeaning("running"),
    "STOPPED": SlurmStateMeaning("running"),
    "SUSPENDED": SlurmStateMeaning("running"),
    # It has stopped, its processors are not free yet, and nothing says how it came to its end:
    # see `of_job`.
    "COMPLETING": SlurmStateMeaning("running"),
    "COMPLETED": SlurmStateMeaning("ended", "completed"),
    "CANCELLED": SlurmStateMeaning("ended", "cancelled"),
    "REVOKED": SlurmStateMeaning("ended", "cancelled"),
    "FAILED": SlurmStateMeaning("ended", "failed"),
    "OUT_OF_MEMORY": SlurmStateMeaning("ended", "failed"),
    "TIMEOUT": SlurmStateMeaning("ended", "timeout"),
    "DEADLINE": SlurmStateMeaning("ended", "timeout"),
    "NODE_FAIL": SlurmStateMeaning("ended", "node-fail"),
    "BOOT_FAIL": SlurmStateMeaning("ended", "node-fail"),
    "LAUNCH_FAILED": SlurmStateMeaning("ended", "node-fail"),
    "RECONFIG_FAIL": SlurmStateMeaning("ended", "node-fail"),
    "PREEMPTED": SlurmStateMeaning("ended", "preempted"),
}

COMPLETING = "COMPLETING"
"""Reason of a completing job for which Slurm gives no other reason."""

_ENDING = (
    (re.compile(r"TimeLimit"), SlurmStateMeaning("ended", "timeout")),
    (re.compile(r"NonZeroExitCode|RaisedSignal|OutOfMemory"), SlurmStateMeaning("ended", "failed")),
    (re.compile(r"NodeDown|JobLaunchFailure|BootFail"), SlurmStateMeaning("ended", "node-fail")),
    (re.compile(r"Preempt"), SlurmStateMeaning("ended", "preempted")),
)
"""Reasons of a job that is completing; where the reason is "None", it may have been cancelled or
may have ended well, and is said to run until Slurm says which: mostly a moment later."""

_STUCK = (
    (r"JobHeldUser", 'release it ("scontrol release") or cancel it'),
    (r"JobHeldAdmin", "ask the administrators why they hold it"),
    (r"JobHoldMaxRequeue|launch failed|Requeued?Held", "it could not be launched; see its nodes"),
    (r"PartitionTimeLimit|PartitionTime", 'ask for less time: lower "longest" of its pool'),
    # Said of time limits as well, by the main scheduler of 22.05.
    (r"PartitionNodeLimit|PartitionConfig",
     'ask for fewer processors or, lowering "longest" of its pool, less time; or name another '
     '"queue"'),
    (r"(Assoc|QOS|Association)Max(Wall|Time)\w*|(Association|QOS)TimeLimit",
     'ask for less time: lower "longest" of its pool'),
    (r"(Assoc|QOS)Max\w+Per(Job|Node)\w*", "ask for fewer processors in one request"),
    # Not that of processor time which running jobs may still take: that becomes free with them.
    (r"(Assoc|QOS)Grp(?!\w*Run)\w*Minutes\w*",
     'the quota does not have so much processor time left: ask for less, lowering "longest" of its '
     'pool, or name another "account"'),
    (r"QOSMin\w+", "ask for more processors in one request, or name another qos"),
    (r"QOSNotAllowed|InvalidQOS", 'name another "qos"'),
    (r"AccountNotAllowed|InvalidAccount", 'name another "account"'),
    (r"BadConstraints", 'no node is as asked for: see "directives"'),
    (r"DependencyNeverSatisfied", 'take the dependency out of "directives"'),
    (r"DeadLine", 'take the deadline out of "directives"'),
    (r"ReservationDeleted|InvalidReservation", "the reservation is gone"),
    (r"FedJobLock|JobArrayTaskLimit0", "ask the administrators"),
)  # fmt: skip
"""Reasons for which a job that waits never starts as things stand, and what to change."""

_STUCK_FOR = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in _STUCK]


def of_job(state: str, reason: str) -> tuple[SlurmStateMeaning, str]:
    """
    Return the meaning of a job's state and reason, with words for people.

    Parameters
    ----------
    state
        In capitals; several are parted by ``,`` or ``+`` in some versions.
    reason
        ``"None"`` or empty: none.

    Returns
    -------
    SlurmStateMeaning
        ``"unknown"`` for a state that we have no name for.
    str
        Slurm's words, and what to change where a job never starts.
    """
    words = [word for word in re.split(r"[,+ ]", state.strip().upper()) if word]
    known = [STATES[word] for word in words if word in STATES]
    reason = "" if reason.strip() in ("", "None", "(null)") else reason.strip().strip("()")
    if not known:
        return SlurmStateMeaning("unknown"), f"state {state.strip()!r} has no meaning here"
    meaning = known[0]
    if "COMPLETING" in words:
        ended = [m for m in known if m.state == "ended"]
        ended += [m for pattern, m in _ENDING if pattern.search(reason)]
        return (ended[0] if ended else meaning), reason or COMPLETING
    if meaning.state == "pending":
        for pattern, advice in _STUCK_FOR:
            if pattern.search(reason):
                return SlurmStateMeaning("held"), f"{reason}: {advice}"
        return meaning, reason or words[0]
    if meaning.how == "failed" and _is_refusal(reason):
        return SlurmStateMeaning("ended", "rejected"), reason
    if meaning.state == "ended":
        return meaning, f"{words[0]} ({reason})" if reason else words[0]
    return meaning, reason or ("" if words[0] == "RUNNING" else words[0])


def _is_refusal(reason: str) -> bool:
    """Whether a failed job was never able to start."""
    return any(word in reason for word in ("BadConstraints", "InvalidAccount", "InvalidQOS"))


_UNREACHABLE = re.compile(
    r"unable to contact slurm controller|socket timed out|connection (refused|reset|timed out)"
    r"|connect failure|zero bytes were transmitted|transport endpoint|communication connection"
    r"|in standby|temporarily unable|try again in a bit|resource temporarily unavailable"
    r"|failed to access socket|munged? .*(down|not running)|no route to host|unable to establish"
    r"|failed to open persistent connection|slurm_persist_conn|unable to connect to database"
    r"|slurmdbd: .*(unable|error)|shutdown in progress|message receive failure"
    r"|unable to resolve|temporary failure in name resolution",
    re.IGNORECASE,
)

NOT_SENT = re.compile(r"unable to contact slurm controller \(connect failure\)", re.IGNORECASE)
"""Message after which a request was surely not received; other failures leave that open."""

_ADVICE = tuple(
    (re.compile(pattern, re.IGNORECASE), advice)
    for pattern, advice in (
        (r"reservation.*(permission|access)|(creating|updating|deleting).*reservation.*"
         r"(denied|invalid user id)", "only operators of this Slurm may keep processors in "
         "advance; jobs with a begin time serve instead"),
        (r"invalid partition", '"queue" must name a partition; sinfo lists them'),
        (r"invalid account",
         '"account" must be one that this user may charge on this partition'),
        (r"invalid qos", '"qos" must be one that this user has; sacctmgr show assoc lists them'),
        (r"time limit is invalid|invalid time limit|requested time limit|time.*exceeds",
         'the partition allows less time: lower "longest" of the pool'),
        (r"invalid time-min", "the least time is above the time asked for"),
        (r"node count specification invalid|more processors requested than permitted"
         r"|node configuration is not available|cpu count per node|too many (nodes|cpus|tasks)",
         'no such nodes: ask for fewer processors ("most" of the pool) or name another "queue"'),
        (r"violates accounting/qos policy|submit limit|qos\w*(max|grp)\w*|assoc\w*(max|grp)\w*",
         'the user\'s or account\'s quota is used up: lower "max_pending", "most" or "longest" '
         "of the pool, or wait for jobs to end"),
        (r"invalid job array", "fewer jobs in one submission"),
        (r"access denied to requested reservation|requested reservation is invalid",
         "the reservation is not there, or another's"),
        (r"group not permitted|user.*not (permitted|allowed)|account.*not permitted",
         'this user may not use the partition; name another "queue" or "account"'),
        (r"partition.*(down|inactive)|partition or configuration required",
         'the partition starts no jobs now; name another "queue"'),
        (r"requested nodes are busy|nodes? (are|is) not available|requested time",
         "the processors are promised to others then; ask for another time, or for fewer"),
        (r"(unrecognized|unrecognised|invalid) option|unrecognized.*specification",
         'see "directives" of the site'),
        (r"memory specification can not be satisfied|memory.*exceeds",
         'ask for less memory in "directives"'),
        (r"access/permission denied", "this user may not"),
        (r"protocol authentication|authentication credential|incompatible versions",
         "client and controller must be of one Slurm with one key: see SLURM_CONF in "
         '"environment"'),
        (r"unable to (open|read|process).*(config|slurm\.conf)|could not establish a "
         r"configuration source|no such file.*slurm\.conf|fatal: ",
         'set SLURM_CONF in the site\'s "environment"'),
    )
)  # fmt: skip
"""Hints on what to change, by Slurm's message."""


def is_unreachable(words: str) -> bool:
    """Whether a message says that Slurm could not be reached at all."""
    return _UNREACHABLE.search(words) is not None


def slurm_error(what: str, words: str) -> SiteError:
    """
    Return an error in Slurm's words, with a hint on what to change.

    Parameters
    ----------
    words
        Slurm's message, on one line.
    """
    words = re.sub(r"^(sbatch|scontrol|scancel|squeue|sinfo|sacct): (error: )?", "", words)
    if is_unreachable(words):
        return SiteError(f"Slurm: {what}: {words}", transient=True)
    for pattern, advice in _ADVICE:
        if pattern.search(words):
            return SiteError(f"Slurm: {what}: {words} ({advice})")
    return SiteError(f"Slurm: {what}: {words}")


# Write job scripts with Slurm's options in ``#SBATCH`` lines.

MOST_ELEMENTS = 1000
"""Most elements of one array: numbers stay below MaxArraySize, by default 1001."""

_WORD = re.compile(r"[^\s'\"\\]+")


def check(request: JobRequest) -> None:
    """
    Check that a request describes a job that Slurm can run.

    Raises
    ------
    InputError
        When no job can be as a request says.
    """
    submission.check(request)
    if request.least_seconds is not None and not 0 < request.least_seconds <= request.seconds:
        raise InputError(
            f"0 < least_seconds <= seconds must hold, got {request.least_seconds} "
            f"and {request.seconds}"
        )
    if not request.folder.startswith("/") or re.search(r"[\n\0\"\\]", request.folder):
        raise InputError(
            f"folder must be a path from the root without quotes, got {request.folder!r}"
        )


def minutes(seconds: float) -> int:
    """Slurm counts in minutes: what is not a whole one is rounded up."""
    return max(1, math.ceil(seconds / 60 - 1e-9))


def script(
    request: JobRequest, batch: BatchScheduler, *, now: float, first: int = 0, copies: int = 1
) -> str:
    """
    Write a job script.

    Parameters
    ----------
    batch
        Settings of the site. Its directives come first, so that ours override them.
    now
        Seconds since the epoch. A moment before which a job is not to start is given as so many
        seconds from now, since the scheduler's zone is its own.
    first, copies
        Jobs of the request that this script is for.

    Raises
    ------
    InputError
        When a word cannot stand in a directive.
    """
    lines = [_one_line(directive) for directive in batch.directives]
    for option, word in (
        ("partition", batch.queue),
        ("account", batch.account),
        ("qos", batch.qos),
        ("reservation", request.reservation),
    ):
        if word is not None:
            if not _WORD.fullmatch(word):
                raise InputError(f"no name of a {option}: {word!r}")
            lines.append(f"--{option}={word}")
    lines.append(f"--job-name={request.name}")
    lines.append(f'--chdir="{request.folder}"')
    lines.append(f"--output={request.name}-%j.out")  # in that folder
    lines.append("--no-requeue")  # whoever asked decides what is asked again
    lines.append(f"--time={minutes(request.seconds)}")
    if request.least_seconds is not None:
        lines.append(f"--time-min={minutes(request.least_seconds)}")
    if request.nodes is not None:
        fewest, most = request.nodes
        lines.append(f"--nodes={fewest}-{most}" if fewest < most else f"--nodes={most}")
        lines.append(f"--ntasks-per-node={request.processors}")
    else:
        lines.append(f"--ntasks={request.processors}")
        if request.together:
            lines.append("--nodes=1")
    if request.begin is not None and request.begin > now:
        lines.append(f"--begin=now+{math.ceil(request.begin - now)}")
    if request.copies > 1:
        lines.append(f"--array=0-{copies - 1}")
    head = ["#!/bin/sh", *(f"#SBATCH {line}" for line in lines)]
    element = f"BURSAR_ELEMENT=$(({first} + ${{SLURM_ARRAY_TASK_ID:-0}}))"
    body = [element, "export BURSAR_ELEMENT", *batch.setup, request.script]
    return "\n".join([*head, *body]).rstrip("\n") + "\n"


def _one_line(directive: str) -> str:
    directive = directive.strip()
    if "\n" in directive or not directive.startswith("-"):
        raise InputError(
            f"no directive: {directive!r}",
            where="directives",
            hint='as in a job script, without its #SBATCH: "--mem-per-cpu=2G"',
        )
    return directive
