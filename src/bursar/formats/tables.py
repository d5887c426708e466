"""
The tables of a campaign file, as the file writes them.

The JSON Schema is made from them; :mod:`bursar.formats.campaign_file` turns them into the model.
"""

import math
from itertools import combinations
from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from bursar.formats.axes import NAME, Parameters
from bursar.formats.decoding import TomlTable
from bursar.formats.file_text import joined
from bursar.formats.quantities import (
    SHARE_PATTERN,
    Amount,
    Count,
    Deadline,
    Duration,
    NeededShare,
    Schema,
    TaskDuration,
    TaskSize,
)
from bursar.formats.units import at_field, parse_confidence, parse_share
from bursar.model.campaign import CONFIDENCE, Goal, Retry
from bursar.model.errors import InputError
from bursar.model.matching import CHOICES
from bursar.model.results import RESULT_FORMS, ResultForm
from bursar.model.surroundings import Runtime
from bursar.model.task import GPU

FileName = Annotated[
    str,
    Meta(extra_json_schema={"minLength": 1, "not": {"pattern": r"^/|(^|/)\.\.(/|$)"}}),
]
"""Name of a file: relative, and never leaving its folder."""

Command = (
    Annotated[str, Meta(extra_json_schema={"pattern": r"\S"})]
    | Annotated[
        list[str],
        Meta(
            extra_json_schema={
                "minItems": 1,
                "prefixItems": [{"type": "string", "minLength": 1}],
            }
        ),
    ]
)
"""A line for /bin/sh, values quoted; or a list: a program and its arguments, no shell."""


class FileTable(TomlTable, frozen=True):
    """A file and its size."""

    name: Annotated[
        FileName, Meta(description="Relative to the campaign's folder, / between parts.")
    ]
    size: TaskSize | None = None


class InputTable(TomlTable, frozen=True):
    """A file and its size; or files by pattern; or what other tasks make."""

    schema_rules: ClassVar[Schema] = {
        "oneOf": [
            {"required": ["name"], "properties": {"from": False, "files": False}},
            {
                "anyOf": [{"required": ["from"]}, {"required": ["files"]}],
                "properties": {"name": False, "size": False},
            },
        ]
    }

    name: Annotated[
        FileName | None, Meta(description="One file, relative to the campaign's folder.")
    ] = None
    size: TaskSize | None = None
    from_: Annotated[
        str | None, Meta(description="Task whose outputs are read: all, or those that match files.")
    ] = msgspec.field(name="from", default=None)
    files: Annotated[
        str | None,
        Meta(description="Pattern over what the tasks make and the campaign's folder holds."),
    ] = None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.from_ is None and self.files is None):
            raise InputError("expected either a name, or from or files")
        if self.name is None and self.size is not None:
            raise InputError("goes with a name only", where="size")


Words = list[Annotated[str, Meta(extra_json_schema={"pattern": r"^[^\s-]"})]]
"""Names that a command line can hold, none of which looks like an option."""


class ContainerTable(TomlTable, frozen=True):
    """A container and its settings."""

    image: Annotated[
        str,
        Meta(
            description="Image: docker://NAME, another URI for Apptainer, or an image file (.sif).",
            min_length=1,
        ),
    ]
    runtime: Annotated[
        Runtime | None,
        Meta(description="Program that starts it; default: the first that the machine has."),
    ] = None
    options: Annotated[
        list[str] | None, Meta(description="Further options for the runtime, before the image.")
    ] = None
    binds: Annotated[
        list[str] | None,
        Meta(
            description="Folders and files of the machine that the container has: SOURCE, "
            "SOURCE:TARGET or SOURCE:TARGET:ro."
        ),
    ] = None
    gpu: Annotated[
        bool | None,
        Meta(description="Whether it has GPUs; default: those that the task holds."),
    ] = None


class UvTable(TomlTable, frozen=True):
    """A Python environment, by one of three contents."""

    schema_rules: ClassVar[Schema] = {
        "oneOf": [{"required": [key]} for key in ("requirements", "project", "packages")]
    }

    requirements: Annotated[FileName | None, Meta(description="File that lists requirements.")] = (
        None
    )
    project: Annotated[
        FileName | None,
        Meta(description="Folder with pyproject.toml, whose dependencies are installed."),
    ] = None
    packages: Annotated[Words | None, Meta(description="Requirements.")] = None
    python: Annotated[
        str | None, Meta(description="Version of the interpreter; default: as uv chooses.")
    ] = None

    def __post_init__(self) -> None:
        given = (self.requirements, self.project, self.packages)
        if sum(value is not None for value in given) != 1:
            raise InputError("expected one of requirements, project and packages")


EXCLUSIVE = ("container", "conda", "uv")
"""Settings of which a task has one at most."""


class TaskTable(TomlTable, frozen=True):
    """Settings of a task, or of all tasks of a sweep. Text may hold {parameter}."""

    schema_rules: ClassVar[Schema] = {
        "not": {
            "anyOf": [
                {"required": ["over", "parameters"]},
                {"required": ["stdin", "stdin_text"]},
                *({"required": list(pair)} for pair in combinations(EXCLUSIVE, 2)),
            ]
        }
    }

    command: Annotated[Command | None, Meta(description="Command that the task runs.")] = None
    inputs: Annotated[
        list[FileName | InputTable] | None,
        Meta(description="Files that the task reads, put into its working directory."),
    ] = None
    outputs: Annotated[
        list[FileName | FileTable] | None,
        Meta(description="Files that the task must have made when it ends."),
    ] = None
    after: Annotated[
        list[str] | None,
        Meta(description="Further tasks that must have succeeded before it starts."),
    ] = None
    processors: Annotated[Count | None, Meta(description="Number of processors; default: 1.")] = (
        None
    )
    runtime: Annotated[
        TaskDuration | None, Meta(description="Estimated run time on a site of speed 1.")
    ] = None
    wall_limit: Annotated[
        TaskDuration | None, Meta(description="Time after which the task is killed.")
    ] = None
    memory: Annotated[TaskSize | None, Meta(description="Memory that the task needs.")] = None
    resources: Annotated[
        dict[str, Count] | None,
        Meta(description="Countable resources of the site that the task holds, by name."),
    ] = None
    gpus: Annotated[
        Count | None, Meta(description="Number of GPUs: short for resources = { gpu = ... }.")
    ] = None
    retries: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="Further tries after a failure; default: as in [retry]."),
    ] = None
    needs: Annotated[
        NeededShare | None,
        Meta(description='Share of the tasks it waits for that must succeed: "all", "any", "95%".'),
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
        Annotated[str, Meta(extra_json_schema={"enum": list(CHOICES)})] | None,
        Meta(description="How one of the sites that match is chosen."),
    ] = None
    data: Annotated[
        list[str] | None,
        Meta(description="Logical files that the task reads, found by the replica catalogue."),
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
        dict[str, str | int | float | bool] | None,
        Meta(description="Environment variables of the task."),
    ] = None
    stdin: Annotated[
        FileName | None,
        Meta(description="File that the command reads as its standard input; an input, too."),
    ] = None
    stdin_text: Annotated[
        str | None, Meta(description="Text that the command reads as its standard input.")
    ] = None
    inherit: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"minLength": 1})]] | None,
        Meta(
            description="Names or patterns of the variables that the task inherits of those of "
            "the run or pilot; default: all."
        ),
    ] = None
    secret: Annotated[
        list[Annotated[str, Meta(extra_json_schema={"pattern": "^[^=]+$"})]] | None,
        Meta(
            description="Variables whose values come from the environment of the run or "
            "[secrets] file, and are written nowhere."
        ),
    ] = None
    container: Annotated[
        str | ContainerTable | None,
        Meta(description='Container that the command runs in: its image, or a table; or "none".'),
    ] = None
    conda: Annotated[
        str | None,
        Meta(
            description="Conda environment that the command runs in: environment.yml, or name or "
            'path of one that exists; or "none".'
        ),
    ] = None
    uv: Annotated[
        str | Words | UvTable | None,
        Meta(
            description="Python environment that the command runs in: requirements.txt, a folder "
            'with pyproject.toml, or a list of packages; or "none".'
        ),
    ] = None
    modules: Annotated[
        Words | None, Meta(description="Environment modules that are loaded before the command.")
    ] = None
    on_error: Annotated[
        Literal["fail", "ignore"] | None,
        Meta(description='"ignore": the task succeeds whatever its exit status.'),
    ] = None
    id: Annotated[
        str | None,
        Meta(description='Name of the task; of a sweep a pattern, as "run-{beta}".'),
    ] = None
    parameters: Annotated[
        Parameters | None,
        Meta(description="The task's own sweep, in place of the campaign's."),
    ] = None
    over: Annotated[
        list[str] | None,
        Meta(
            description="Parameters of the campaign's sweep over which the task runs; default: all "
            "if the task mentions any, else none."
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.gpus is not None and GPU in (self.resources or {}):
            raise InputError("stands in resources, too", where="gpus")
        if self.over is not None and self.parameters is not None:
            raise InputError("expected over or parameters, not both", where="over")
        if self.stdin is not None and self.stdin_text is not None:
            raise InputError("expected stdin or stdin_text, not both", where="stdin_text")
        stated = [key for key in EXCLUSIVE if getattr(self, key) is not None]
        if len(stated) > 1:
            raise InputError(f"expected {' or '.join(stated)}, not both", where=stated[1])


class CampaignTable(TomlTable, frozen=True):
    """The campaign's name and, if it is one command, that."""

    name: Annotated[str | None, Meta(description="Name for reports; default: the file's name.")] = (
        None
    )
    command: Annotated[
        Command | None, Meta(description="The one command of the campaign; settings in [task].")
    ] = None
    account: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="User of the book who pays when it is run; see bursar ledger."),
    ] = None
    book: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="File of that book, relative to this file; default: bursar.book."),
    ] = None
    code: Annotated[
        list[FileName] | None,
        Meta(
            description="Files of the tasks' programs, by name or pattern: results of an earlier "
            "run are reused only while these are as they were."
        ),
    ] = None
    project: Annotated[
        Annotated[str, Meta(min_length=1)] | None,
        Meta(description="Project, by whose weight it shares this machine with other runs."),
    ] = None
    resources: Annotated[
        dict[Annotated[str, Meta(min_length=1)], Annotated[int, Meta(ge=1)]],
        Meta(description="Countable resources that tasks hold, over all sites together, by name."),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        if GPU in self.resources:
            raise InputError("belongs to sites: state it in a sites file", where="resources.gpu")
        if self.book is not None and self.account is None:
            raise InputError("goes with account", where="book")


class GoalTable(TomlTable, frozen=True):
    """Deadline, budget, and the preference between time and cost."""

    deadline: Annotated[
        Deadline | None,
        Meta(description="Deadline: time from the campaign's start, or a moment."),
    ] = None
    budget: Annotated[Amount | None, Meta(description="Budget, which is never exceeded.")] = None
    trade_off: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="Weight of cost against time: 0 fastest, 1 cheapest."),
    ] = None
    confidence: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | Annotated[str, Meta(pattern=SHARE_PATTERN)],
        Meta(
            description="Probability with which deadline and budget are to be kept, where earlier "
            "runs say how long tasks take."
        ),
    ] = CONFIDENCE
    on_budget: Annotated[
        dict[str, Literal["warn", "drain", "stop"]],
        Meta(
            description='Effect of shares of the budget, such as "80%": a warning is printed, '
            "no further task starts, or all tasks stop.",
            extra_json_schema={"propertyNames": {"pattern": SHARE_PATTERN}},
        ),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.goal()

    def goal(self) -> Goal:
        """
        Return the goal.

        Raises
        ------
        InputError
            At the field.
        """
        if self.deadline == 0:
            raise InputError("must be positive, got 0", where="deadline")
        if self.trade_off is not None and not math.isfinite(self.trade_off):
            raise InputError("expected a number between 0 and 1", where="trade_off")
        on_budget = {}
        for text, action in self.on_budget.items():
            place = joined("on_budget", text)
            share = at_field(place, parse_share, text)
            if share == 0 or share in on_budget:
                reason = "must be above 0%" if share == 0 else "stands there twice"
                raise InputError(f'"{text}" {reason}', where=place)
            on_budget[share] = action
        budget, currency = self.budget or (None, None)
        return Goal(
            deadline=self.deadline,
            budget=budget,
            currency=currency,
            trade_off=None if self.trade_off is None else float(self.trade_off),
            on_budget=on_budget,
            confidence=at_field("confidence", parse_confidence, self.confidence),
        )


class RetryTable(TomlTable, frozen=True):
    """Rules for another try after a failed or lost attempt."""

    attempts: Annotated[int, Meta(description="Number of tries in all.", ge=1)] = 3
    backoff: Annotated[
        Duration, Meta(description="Wait before the second try; doubled before each further one.")
    ] = 1.0
    ceiling: Annotated[Duration, Meta(description="Longest wait between tries.")] = 60.0
    copies: Annotated[
        bool | Literal["buy"],
        Meta(
            description="Whether a task that takes longer than others of its kind may begin a "
            "second time meanwhile, on processors that nothing else needs; the first success "
            'counts. "buy": also on processors bought for that, where this improves the odds '
            "of the deadline, or the expected end, within the budget. Only for tasks that do "
            "nothing but print and make their outputs."
        ),
    ] = False

    def retry(self) -> Retry:
        """Return the rules for tries."""
        return Retry(
            attempts=self.attempts,
            backoff=self.backoff,
            ceiling=self.ceiling,
            copies=bool(self.copies),
            buys_copies=self.copies == "buy",
        )


class SecretsTable(TomlTable, frozen=True):
    """Where values of secret variables are that the environment of the run lacks."""

    file: Annotated[
        str,
        Meta(
            description="File of lines NAME=VALUE, readable by you alone (mode 600); relative to "
            "this file, or ~/...",
            min_length=1,
        ),
    ]


class ResultColumnTable(TomlTable, frozen=True):
    """A column of the table of results: where its value stands, and what it is."""

    schema_rules: ClassVar[Schema] = {
        "oneOf": [{"required": [form]} for form in RESULT_FORMS],
        "dependentSchemas": {
            "row": {"required": ["csv"]},
            "separator": {"required": ["csv"]},
            "match": {"required": ["regex"]},
        },
    }

    from_: Annotated[
        Annotated[str, Meta(min_length=1)],
        Meta(description='"stdout", "stderr", or a file that the task makes.'),
    ] = msgspec.field(name="from", default="stdout")
    task: Annotated[
        str | None, Meta(description="Task, or set of tasks, that has it; default: all that can.")
    ] = None
    text: Annotated[
        Annotated[bool, Meta(extra_json_schema={"const": True})] | None,
        Meta(description="true: the whole text is the value."),
    ] = None
    json: Annotated[str | None, Meta(description="JSON Pointer, such as /metrics/loss.")] = None
    csv: Annotated[
        str | Annotated[int, Meta(ge=0)] | None,
        Meta(description="Title of a column; or a field's number, from 0, where there are none."),
    ] = None
    regex: Annotated[
        str | None, Meta(description="Regular expression; its first group is the value.")
    ] = None
    xml: Annotated[str | None, Meta(description="Path such as /run/loss or //fit/@loss.")] = None
    row: Annotated[
        Literal["first", "last"] | int | None,
        Meta(description="Which row of a CSV file: first, last (the default) or a number, from 0."),
    ] = None
    match: Annotated[
        Literal["first", "last"] | int | None,
        Meta(description="Which match of the expression, likewise."),
    ] = None
    separator: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1)] | None,
        Meta(description="Character between fields; default: a tab in .tsv files, else a comma."),
    ] = None
    type: Annotated[
        Literal["number", "integer", "text"] | None,
        Meta(description="Type of the values; default: a number where the text is one."),
    ] = None
    required: Annotated[
        bool, Meta(description="Whether a table without a value of a task is refused.")
    ] = False

    def __post_init__(self) -> None:
        stated = [form for form in RESULT_FORMS if getattr(self, form) is not None]
        if len(stated) != 1:
            found = f", got {' and '.join(stated)}" if stated else ""
            raise InputError(f"expected one of {', '.join(RESULT_FORMS)}{found}")
        if self.text is False:
            raise InputError("expected true", where="text")
        for key, form in (("row", "csv"), ("separator", "csv"), ("match", "regex")):
            if getattr(self, key) is not None and stated != [form]:
                raise InputError(f"goes with {form}", where=key)

    @property
    def form(self) -> ResultForm:
        """How the value is found."""
        return next(form for form in RESULT_FORMS if getattr(self, form) is not None)


_COMMAND: Schema = {"required": ["command"]}


class CampaignFile(TomlTable, frozen=True):
    """A campaign file: what to run, over which parameters, to what end."""

    schema_rules: ClassVar[Schema] = {
        "anyOf": [
            {
                "required": ["campaign"],
                "properties": {
                    "campaign": _COMMAND,
                    "task": {"type": "object", "not": _COMMAND},
                    "tasks": {"maxProperties": 0},
                },
            },
            {
                "properties": {"campaign": {"not": _COMMAND}},
                "anyOf": [
                    {"required": ["tasks"], "properties": {"tasks": {"minProperties": 1}}},
                    {
                        "required": ["task"],
                        "properties": {"task": {"type": "array", "minItems": 1}},
                    },
                    {"required": ["task"], "properties": {"task": {"type": "object"} | _COMMAND}},
                ],
            },
        ]
    }

    campaign: Annotated[
        CampaignTable, Meta(description="Name, and command if there is only one.")
    ] = msgspec.field(default_factory=CampaignTable)
    parameters: Annotated[
        Parameters | None, Meta(description="The sweep: what each parameter goes through.")
    ] = None
    task: Annotated[
        TaskTable | Annotated[list[TaskTable], Meta(extra_json_schema={"items": _COMMAND})] | None,
        Meta(description="As [task]: settings for all tasks. As [[task]]: tasks, one by one."),
    ] = None
    tasks: Annotated[
        Annotated[
            dict[str, TaskTable], Meta(extra_json_schema={"propertyNames": {"minLength": 1}})
        ],
        Meta(description="Tasks, or sweeps of tasks, by name."),
    ] = msgspec.field(default_factory=dict)
    results: Annotated[
        Annotated[
            dict[str, ResultColumnTable],
            Meta(extra_json_schema={"propertyNames": {"pattern": f"^{NAME}$"}}),
        ],
        Meta(description="Columns of the table of results, by name."),
    ] = msgspec.field(default_factory=dict)
    goal: Annotated[GoalTable, Meta(description="Deadline, budget, preference.")] = msgspec.field(
        default_factory=GoalTable
    )
    secrets: Annotated[
        SecretsTable | None, Meta(description="File with the values of secret variables.")
    ] = None
    retry: Annotated[RetryTable, Meta(description="Rules for tries after failures.")] = (
        msgspec.field(default_factory=RetryTable)
    )
