"""
The tables of a campaign file, as the file writes them.

They are what the JSON Schema is made from; :mod:`bursar.formats.campaign_toml`
turns them into the model.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Duration = Annotated[
    str | int | float,
    Meta(description='A time: seconds, "33m", "1h30m", "01:30:00" or "1-02:00:00".'),
]
Size = Annotated[
    str | int | float, Meta(description='A size: bytes, "4 GB" (10^9) or "10 MiB" (2^20).')
]
Amount = Annotated[str | int | float, Meta(description='Currency units: 126000 or "40 SU".')]
Count = Annotated[
    int | str, Meta(description='A whole number, or text that gives one, as "{cores}".')
]
Command = Annotated[
    str | list[str],
    Meta(
        description="A line for /bin/sh, values quoted; or a list: a program and its arguments, "
        "no shell."
    ),
]


class FileTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file and its size."""

    name: Annotated[str, Meta(description="Relative to the campaign's folder, / between parts.")]
    size: Size | None = None


class InputTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file and its size; or files by pattern; or what other tasks make."""

    name: Annotated[
        str | None, Meta(description="One file, relative to the campaign's folder.")
    ] = None
    size: Size | None = None
    from_: Annotated[
        str | None, Meta(description="All outputs of these tasks, or those that match files.")
    ] = msgspec.field(name="from", default=None)
    files: Annotated[
        str | None,
        Meta(description="Pattern over what the tasks make and the campaign's folder holds."),
    ] = None


class TaskTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a task, or of all tasks of a sweep. Text may hold {parameter}."""

    command: Annotated[Command | None, Meta(description="What it runs.")] = None
    inputs: Annotated[
        list[str | InputTable] | None,
        Meta(description="Files it reads, put into its working directory."),
    ] = None
    outputs: Annotated[
        list[str | FileTable] | None, Meta(description="Files it must have made when it ends.")
    ] = None
    after: Annotated[
        list[str] | None,
        Meta(description="Further tasks that must have succeeded before it starts."),
    ] = None
    processors: Annotated[Count | None, Meta(description="How many it holds; 1.")] = None
    runtime: Annotated[Duration | None, Meta(description="Estimate, on a site of speed 1.")] = None
    wall_limit: Annotated[Duration | None, Meta(description="It is killed after this.")] = None
    memory: Annotated[Size | None, Meta(description="What it needs.")] = None
    retries: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Further tries after a failure; else as in [retry]."),
    ] = None
    requirements: Annotated[
        str | None, Meta(description="Expression that a site must satisfy.")
    ] = None
    rank: Annotated[
        str | None, Meta(description="Expression that orders the sites; greater is better.")
    ] = None
    site: Annotated[
        str | None, Meta(description="The site where it must run, without matchmaking.")
    ] = None
    alpha: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Weight of the rank against the time that files take."),
    ] = None
    beta: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Weight of access to files against their transfer."),
    ] = None
    choice: Annotated[
        str | None, Meta(description="How one of the sites that match is chosen.")
    ] = None
    data: Annotated[
        list[str] | None,
        Meta(description="Logical files it reads, found by the replica catalogue."),
    ] = None
    register: Annotated[
        dict[str, str] | None,
        Meta(description="Outputs put into the replica catalogue: their logical names, by name."),
    ] = None
    attributes: Annotated[
        dict[str, str | int | float | bool] | None,
        Meta(description="Further attributes of the job, for requirements of sites."),
    ] = None
    environment: Annotated[
        dict[str, str | int | float | bool] | None, Meta(description="Variables it gets.")
    ] = None
    on_error: Annotated[
        Literal["fail", "ignore"] | None,
        Meta(description='"ignore": it succeeds whatever its exit status.'),
    ] = None
    id: Annotated[
        str | None,
        Meta(description='Name of the task; of a sweep a pattern, as "run-{beta}".'),
    ] = None
    parameters: Annotated[
        dict[str, Any] | None,
        Meta(description="A sweep of its own, in place of the campaign's."),
    ] = None
    over: Annotated[
        list[str] | None,
        Meta(
            description="Parameters of the campaign's sweep that it runs over; without it all if "
            "it mentions any, else none."
        ),
    ] = None


class CampaignTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The campaign's name and, if it is one command, that."""

    name: Annotated[str | None, Meta(description="For reports; else the file's name.")] = None
    command: Annotated[
        Command | None, Meta(description="The one command of the campaign; settings in [task].")
    ] = None
    account: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="User of the book who pays when it is run; see bursar ledger."),
    ] = None
    book: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="File of that book, relative to this one; else bursar.book."),
    ] = None


class GoalTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted of the campaign."""

    deadline: Annotated[Duration | None, Meta(description="From its start.")] = None
    budget: Annotated[Amount | None, Meta(description="Never exceeded.")] = None
    trade_off: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Weight of cost against time: 0 fastest, 1 cheapest."),
    ] = None
    on_budget: Annotated[
        dict[str, Literal["warn", "drain", "stop"]] | None,
        Meta(
            description='At shares of the budget, as "80%": say so; start nothing more; stop all.'
        ),
    ] = None


class RetryTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens after a failed or lost attempt."""

    attempts: Annotated[int, Meta(description="Tries in all.", ge=1)] = 3
    backoff: Annotated[Duration, Meta(description="Before the second try; then doubled.")] = 1.0
    ceiling: Annotated[Duration, Meta(description="Longest wait between tries.")] = 60.0


class CampaignFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A campaign file: what to run, over which parameters, to what end."""

    campaign: Annotated[
        dict[str, Any] | None, Meta(description="Its name, and its command if it has just one.")
    ] = None
    parameters: Annotated[
        dict[str, Any] | None, Meta(description="The sweep: what each parameter goes through.")
    ] = None
    task: Annotated[
        dict[str, Any] | list[Any] | None,
        Meta(description="As [task]: settings for all tasks. As [[task]]: tasks, one by one."),
    ] = None
    tasks: Annotated[
        dict[str, Any] | None, Meta(description="Tasks, or sweeps of tasks, by name.")
    ] = None
    goal: Annotated[dict[str, Any] | None, Meta(description="Deadline, budget, preference.")] = None
    retry: Annotated[dict[str, Any] | None, Meta(description="How failures are met.")] = None
