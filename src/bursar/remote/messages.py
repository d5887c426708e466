"""
JSON messages between clients and an execution service.

These types are the API: the server decodes requests into them, the client decodes answers into
them, and the OpenAPI document is made of them. Times are seconds since the epoch, durations
seconds, sizes bytes, amounts micro-units of the service's currency.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from bursar.remote.forecast_messages import InstanceForecast

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Count = Annotated[int, Meta(ge=0)]
TaskNumber = Annotated[int, Meta(ge=0, lt=1 << 32)]
Seconds = Annotated[float, Meta(gt=0, le=1e9)]

MOST_TASKS = 20_000
"""Of one submission."""

MOST_WORDS = 4_096
"""Of one command."""

MOST_EDGES = 200_000
"""Numbers in ``after`` of all tasks of one submission together."""

MOST_PARENTS = 10_000
"""Tasks after which one task may come."""

MOST_TRIES = 100
"""Tries of one task."""

MOST_RETRY_DELAY = 86_400.0
"""Seconds between a failure of a task and the next try."""

MOST_GRACE = 3600.0
"""Seconds that a task may take to end when it is cancelled."""

PREFIX = "/v1"
"""Of every path."""

TaskState = Literal[
    "waiting", "running", "succeeded", "failed", "timed-out", "cancelled", "skipped"
]
"""Where a task stands; the last five are final."""


# What comes by the thousand is not followed by the garbage collector (``gc=False``): it holds
# nothing that could lead back to it, and to look at all of it again and again takes its time.


class RequestStruct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of requests, which refuse unknown fields."""


class ResponseStruct(msgspec.Struct, frozen=True, kw_only=True):
    """The base of answers, in which unknown fields of a newer server are ignored."""


# Tasks.


class Hints(RequestStruct, frozen=True, omit_defaults=True, gc=False):
    """
    What the service may use to run a task better (DRP section 4.1).

    Parameters
    ----------
    runtime
        Seconds it should take at speed 1.
    data
        Logical names of files it reads, for caching.
    """

    runtime: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    data: Annotated[tuple[Name, ...], Meta(max_length=1000)] = ()


class TaskSpec(RequestStruct, frozen=True, omit_defaults=True, gc=False):
    """
    A task as it is submitted (DRP section 4.1): a program, a shell line, steps, or sealed.

    Parameters
    ----------
    command
        Program and arguments; never interpreted by a shell.
    shell
        One line for ``/bin/sh -c``.
    steps
        Steps of another Bursar (:mod:`bursar.model.task`), MessagePack in base64.
    sealed
        Base64 of an envelope that only the workers can open, in place of ``command``; see
        :mod:`bursar.sealing`. All else the service reads is in clear beside it.
    directory
        Where it runs: relative to the instance's files, made if it is not there; or absolute,
        below one of the folders that the service allows. Empty: an empty folder of its own.
    environment
        Variables added to the worker's.
    inputs, outputs
        Files of the instance, by relative name: put into its folder before, taken from it after.
    processors, memory
        Processors and bytes of memory that it holds on a worker from start to end.
    resources
        Countable resources of the site that it holds, by name; ``gpu``: its devices.
    limit
        Seconds after which it is killed; None: the service's own limit, if it has one.
    tries
        How often it is tried before it counts as failed, where its worker is lost while it runs.
    retries
        How often it is tried again after an exit code other than 0 or a limit; 0: such an end is
        final.
    retry_delay
        Seconds between such an end and the next try.
    after
        Numbers (from 0, as submitted) of earlier tasks that must succeed, or it is skipped.
    needs
        Share, from 0 to 1, of the tasks in ``after`` that must succeed, one at least; ``"ended"``:
        none. It waits until all of them have ended. None: all must succeed.
    at_once
        How many tasks of its group may run at a time when it does, itself included. None: any
        number; the task belongs to no group then.
    group
        Name of its group in the instance, for ``at_once``.
    label
        The client's own word for it; comes back with the result.
    """

    command: Annotated[tuple[str, ...], Meta(max_length=MOST_WORDS)] = ()
    shell: Annotated[str, Meta(max_length=1 << 20)] = ""
    steps: Annotated[str, Meta(max_length=1 << 26)] = ""
    sealed: Annotated[str, Meta(max_length=1 << 26)] = ""
    directory: Annotated[str, Meta(max_length=4096)] = ""
    environment: dict[str, str] = {}
    inputs: Annotated[tuple[str, ...], Meta(max_length=10_000)] = ()
    outputs: Annotated[tuple[str, ...], Meta(max_length=10_000)] = ()
    processors: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    memory: Annotated[int, Meta(ge=1, le=1 << 60)] | None = None
    resources: Annotated[dict[Name, Annotated[int, Meta(ge=1)]], Meta(max_length=100)] = {}
    limit: Seconds | None = None
    tries: Annotated[int, Meta(ge=1, le=MOST_TRIES)] = 3
    retries: Annotated[int, Meta(ge=0, le=MOST_TRIES)] = 0
    retry_delay: Annotated[float, Meta(ge=0, le=MOST_RETRY_DELAY)] = 0.0
    after: Annotated[tuple[TaskNumber, ...], Meta(max_length=MOST_PARENTS)] = ()
    needs: Annotated[float, Meta(ge=0, le=1)] | Literal["ended"] | None = None
    at_once: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    group: Annotated[str, Meta(max_length=200)] = ""
    label: Annotated[str, Meta(max_length=200)] = ""
    hints: Hints = Hints()


class Submission(RequestStruct, frozen=True):
    """Tasks to add to an instance; as NDJSON, one :class:`TaskSpec` a line instead."""

    tasks: Annotated[list[TaskSpec], Meta(min_length=1, max_length=MOST_TASKS)]


class Submitted(ResponseStruct, frozen=True):
    """
    Tasks are durable: they will run.

    Parameters
    ----------
    first, count
        Their numbers in the instance: ``first`` to ``first + count - 1``.
    repeated
        The same idempotency key had been used for them before: nothing was added.
    """

    first: Count
    count: Count
    repeated: bool = False


class TaskInfo(ResponseStruct, frozen=True, omit_defaults=True):
    """Where a task stands."""

    task: Count
    state: TaskState
    label: str = ""
    attempt: Count = 0


class TaskPage(ResponseStruct, frozen=True):
    """Tasks, from ``after`` on; ``next`` is what to ask for next, None at the end."""

    tasks: list[TaskInfo]
    next: Count | None = None


class CancelRequest(RequestStruct, frozen=True, omit_defaults=True):
    """
    Which tasks are not wanted any more; ``tasks``: their numbers, None: all of the instance.

    Parameters
    ----------
    grace
        Seconds from SIGTERM to SIGKILL for those that run; None: the service's own.
    unstarted
        Whether tasks that a worker has go on.
    """

    tasks: Annotated[list[Count], Meta(max_length=1_000_000)] | None = None
    grace: Annotated[float, Meta(ge=0, le=MOST_GRACE)] | None = None
    unstarted: bool = False


class Cancelled(ResponseStruct, frozen=True):
    """How many will not start, or are being killed; each still has a result."""

    count: Count


class Result(ResponseStruct, frozen=True, omit_defaults=True, gc=False):
    """
    A task's end (DRP section 4.1: return code and output), recorded once.

    Parameters
    ----------
    cursor
        Position among the instance's results, 1 for the first; ask for what comes after it.
    task
        Number in the instance.
    state
        How it ended.
    attempt
        How often it was tried, attempts that were lost with their worker included; 0: never.
    exit_code
        Of the last program; negative: the signal that killed it; None: none ran.
    stdout, stderr
        What it printed, as text; bytes that are not UTF-8 are in ``raw`` instead. Long
        streams are empty here and wait at ``/instances/ID/tasks/N/stdout``.
    raw
        Base64 of streams that are not text, by name ``"stdout"`` or ``"stderr"``.
    stdout_size, stderr_size
        Bytes printed.
    start, end
        When, by the worker's clock; moved to lie between when the service gave it out and when
        it was told.
    host
        Name of the machine it ran on.
    user_seconds, system_seconds, max_rss
        What it used.
    reason
        One line when it did not succeed.
    lost
        Of one that failed without an exit code: whether its worker was lost, as often as it was
        tried, so that nothing is said against the task; None: not said.
    value
        Base64 of a call's value: as data or as a pickle, as the call asked for.
    sealed
        Base64 of an envelope that only the client can open; the rest then says no more than the
        service knows.
    """

    cursor: Count
    task: Count
    state: TaskState
    attempt: Count = 1
    label: str = ""
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    raw: dict[str, str] = {}
    stdout_size: Count = 0
    stderr_size: Count = 0
    start: float = 0.0
    end: float = 0.0
    host: str = ""
    user_seconds: float = 0.0
    system_seconds: float = 0.0
    max_rss: int = 0
    reason: str = ""
    lost: bool | None = None
    value: str = ""
    sealed: str = ""


class ResultPage(ResponseStruct, frozen=True):
    """
    Results after a cursor; as NDJSON, one :class:`Result` a line instead.

    Parameters
    ----------
    next
        Cursor of the last one here: what to ask for next.
    done
        Every task that was submitted has its result at or before ``next``.
    """

    results: list[Result]
    next: Count
    done: bool


# Instances.


class NewInstance(RequestStruct, frozen=True, omit_defaults=True):
    """
    A new instance (DRP section 4.1, the factory's *create resource*).

    Parameters
    ----------
    label
        The user's own word for it.
    agreement
        On whose processors its tasks run, and which pays for them; empty: on shared ones.
    keep
        Seconds for which it is kept after its last task has ended; None: the service's own.
    deadline, budget
        By when its tasks are to have ended, seconds since the epoch, and what they may come to on
        shared processors, micro-units: the service forecasts the odds of both, and ends no task
        for them. None: no odds.
    """

    label: Annotated[str, Meta(max_length=200)] = ""
    agreement: Annotated[str, Meta(max_length=200)] = ""
    keep: Seconds | None = None
    deadline: Annotated[float, Meta(gt=0, le=1e11)] | None = None
    budget: Annotated[int, Meta(ge=0, le=10**15)] | None = None


class Counts(ResponseStruct, frozen=True):
    """Tasks of an instance by where they stand; ``failed`` are those timed out, too."""

    total: Count = 0
    waiting: Count = 0
    running: Count = 0
    succeeded: Count = 0
    failed: Count = 0
    cancelled: Count = 0
    skipped: Count = 0


class InstanceInfo(ResponseStruct, frozen=True, omit_defaults=True):
    """
    An instance.

    Parameters
    ----------
    id
        The handle (the paper's endpoint reference): unguessable; whoever is not its owner is
        told that there is none.
    results
        Cursor of the last result.
    kept_from
        Results up to this cursor were forgotten at the client's word.
    expires
        When it goes unless something happens; None while tasks are unfinished.
    note
        Why nothing of it runs now, for people, such as no money; empty: nothing is amiss.
    spent
        What its tasks came to on shared processors so far, micro-units.
    deadline, budget
        As it was made.
    forecast
        None before the first task has ended, once all have, and where no worker is there.
    """

    id: str
    label: str = ""
    agreement: str = ""
    created: float = 0.0
    counts: Counts = Counts()
    results: Count = 0
    kept_from: Count = 0
    expires: float | None = None
    note: str = ""
    spent: int = 0
    deadline: float | None = None
    budget: int | None = None
    forecast: InstanceForecast | None = None


class InstanceList(ResponseStruct, frozen=True):
    """The caller's instances."""

    instances: list[InstanceInfo]


class FileInfo(ResponseStruct, frozen=True):
    """A file of an instance."""

    name: str
    size: Count
    sha256: str = ""


class FileList(ResponseStruct, frozen=True):
    """Files of an instance."""

    files: list[FileInfo]


class CopyRequest(RequestStruct, frozen=True):
    """
    Files of another instance of the caller's, which need not be sent again.

    Parameters
    ----------
    source
        That instance.
    files
        Names, the same in both; those that are not there are passed over.
    """

    source: Name
    files: Annotated[list[str], Meta(min_length=1, max_length=1000)]


# The site.


class SlotInfo(ResponseStruct, frozen=True):
    """Processors on offer; ``start`` seconds from now, ``seconds`` None: without an end."""

    # The slots of :class:`bursar.model.slot.Slot` in JSON, which has no infinity.
    start: float
    seconds: float | None
    processors: Count
    unit_price: float | None
    fixed_price: float = 0.0


class SiteInfo(ResponseStruct, frozen=True):
    """
    What a service says of itself to whoever would use it: facts and free slots.

    Parameters
    ----------
    name
        Of the site, the owner in its deals.
    processors, free
        That it has, and that nobody holds now.
    speed
        Relative to the machine that runtime estimates hold for.
    unit_price, fixed_price
        Currency units per processor-second and per agreement, as posted now to the caller.
    resources
        Countable ones that it has, by name, ``gpu`` among them.
    protocols
        By which it sells: of ``"posted"``, ``"bargaining"``, ``"tender"``, ``"auction"``.
    must_buy
        Whether tasks run only under an agreement.
    shared_price
        Currency units per processor-second that tasks use without an agreement.
    slots
        What can be bought now.
    waiting
        Seconds until one processor would be there; None: unknown.
    seal
        PEM of the certificate to which tasks may be sealed; empty: the workers cannot open any.
    usage_key
        Ed25519 key by which its usage records are verified, 64 hexadecimal digits; empty: unknown.
    draining
        Whether it takes nothing more.
    version
        Of the program.
    """

    name: str
    processors: Count
    free: Count
    speed: float = 1.0
    memory: int | None = None
    currency: str = "SU"
    unit_price: float | None = None
    fixed_price: float = 0.0
    protocols: tuple[str, ...] = ()
    must_buy: bool = False
    shared_price: float = 0.0
    slots: tuple[SlotInfo, ...] = ()
    waiting: float | None = None
    resources: dict[str, int] = {}
    attributes: dict[str, str | int | float | bool] = {}
    seal: str = ""
    usage_key: str = ""
    draining: bool = False
    version: str = ""


class AgreementInfo(ResponseStruct, frozen=True):
    """
    A deal of the caller's.

    Parameters
    ----------
    state
        ``"signed"`` before it begins, ``"running"``, ``"over"``, ``"cancelled"``.
    begun
        When its processors were all there; None: not yet.
    charged, held, penalty
        Paid, less what came back as a penalty; set aside; and the penalty, micro-units.
    deal
        Negotiation or auction that it came of; empty: unknown.
    """

    id: str
    processors: Count
    start: float
    seconds: float
    unit_price: float
    fixed_price: float
    currency: str
    state: Literal["signed", "running", "over", "cancelled"]
    ready: Count = 0
    begun: float | None = None
    ended: float | None = None
    charged: int = 0
    held: int = 0
    penalty: int = 0
    deal: str = ""


class AgreementList(ResponseStruct, frozen=True):
    """The caller's agreements."""

    agreements: list[AgreementInfo]


class AccountInfo(ResponseStruct, frozen=True):
    """The caller's account, micro-units."""

    user: str
    currency: str
    balance: int
    held: int
    spent: int


class Deposit(RequestStruct, frozen=True):
    """Money for an account; of an administrator. ``key`` makes it count once."""

    amount: Annotated[int, Meta(gt=0, le=10**15)]
    key: Name


# Health and errors.


class Health(ResponseStruct, frozen=True):
    """
    Whether it lives, or is ready for work.

    Parameters
    ----------
    problem
        Why it is not; empty: it is.
    degraded
        What does not work though it is; no names are in it.
    """

    status: Literal["ok", "draining", "failing"]
    problem: str = ""
    degraded: str = ""
    version: str = ""


class Problem(ResponseStruct, frozen=True, omit_defaults=True):
    """
    What went wrong (RFC 9457, ``application/problem+json``).

    Parameters
    ----------
    type
        A URI reference that names the kind of problem: ``/problems/KIND``.
    title
        The kind, for people.
    status
        The HTTP status.
    detail
        This case, one line.
    where
        Field of the request that it is about.
    retry_after
        Seconds after which trying again may help; None: it will not.
    """

    title: str
    status: int
    type: str = "about:blank"
    detail: str = ""
    where: str = ""
    retry_after: float | None = None


# Output of a task.

Stream = Literal["stdout", "stderr"]

STREAMS: tuple[Stream, ...] = ("stdout", "stderr")
