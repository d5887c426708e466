"""A campaign: a workflow, a goal, how failures are met, and facts of a recorded execution."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bursar.model.money import check_currency
from bursar.model.workflow import Workflow

# Goals of campaigns: deadline, budget and the trade-off between them.

BudgetAction = Literal["warn", "drain", "stop"]
"""At a share of the budget: say so; start nothing more; stop what runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """
    Deadline, budget and preference. All may be absent.

    Parameters
    ----------
    deadline
        Seconds from the start of the run; None for none. Positive.
    budget
        Currency units; None for none. Not negative.
    currency
        The budget's currency; None: the sites' own.
    trade_off
        Weight of cost against makespan, 0 (only time counts) to 1 (only cost),
        as alpha in HPDC'07 equation 8; None: no preference given.
    on_budget
        Share of the budget, in (0, 1], to what happens when spending reaches it.
    """

    deadline: float | None = None
    budget: float | None = None
    currency: str | None = None
    trade_off: float | None = None
    on_budget: Mapping[float, BudgetAction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.deadline is not None and not (0 < self.deadline < math.inf):
            raise ValueError(f"deadline must be positive, got {self.deadline}")
        if self.budget is not None and not (0 <= self.budget < math.inf):
            raise ValueError(f"budget must not be negative, got {self.budget}")
        if self.currency is not None:
            check_currency(self.currency)
        if self.trade_off is not None and not (0 <= self.trade_off <= 1):
            raise ValueError(f"trade_off must be between 0 and 1, got {self.trade_off}")
        for share in self.on_budget:
            if not (0 < share <= 1):
                raise ValueError(f"on_budget: a share must be in (0 %, 100 %], got {share:.0%}")


# Facts of the execution that a recorded workflow comes from.


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedMachine:
    """
    A machine that tasks were recorded on.

    Parameters
    ----------
    name
        Host name of the machine.
    processors
        Cores; None when unknown. Positive.
    megahertz
        Clock; None when unknown. Positive.
    memory
        Bytes as recorded; None when unknown. Positive.
    architecture, system
        Architecture and operating system, as recorded; empty if unknown.
    """

    name: str
    processors: int | None = None
    megahertz: float | None = None
    memory: int | None = None
    architecture: str = ""
    system: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        for what, value in (
            ("processors", self.processors),
            ("megahertz", self.megahertz),
            ("memory", self.memory),
        ):
            if value is not None and not (0 < value < math.inf):
                raise ValueError(f"{what} must be positive, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """
    The execution as a whole.

    Parameters
    ----------
    makespan
        Seconds from the first start to the last end; None when unknown.
    machines
        In the order of the source.
    machine_of
        Id of a task to the names of the machines it ran on, where known.
    """

    makespan: float | None = None
    machines: tuple[RecordedMachine, ...] = ()
    machine_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.makespan is not None and not (0 <= self.makespan < math.inf):
            raise ValueError(f"makespan must be finite and not negative, got {self.makespan}")


# A campaign: a workflow, a goal, and how failures are met.


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """
    Policy of repeating a task after a failed or lost attempt.

    Parameters
    ----------
    attempts
        Tries in all, the first included. Positive.
    backoff
        Seconds before the second try; doubled for each further one.
    ceiling
        Longest wait between tries, seconds.
    """

    attempts: int = 3
    backoff: float = 1.0
    ceiling: float = 60.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, got {self.attempts}")
        if self.backoff < 0 or self.ceiling < 0:
            raise ValueError("backoff and ceiling must not be negative")

    def wait_before(self, attempt: int) -> float:
        """Seconds to wait before try number ``attempt`` (2 for the first retry)."""
        # Beyond 1000 doublings the wait is the ceiling, and a float would soon overflow.
        return min(self.backoff * 2.0 ** min(attempt - 2, 1000), self.ceiling)


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """
    A campaign as stated by the user: tasks, files, goal and settings.

    Parameters
    ----------
    name
        For reports and run folders.
    workflow
        The tasks.
    goal
        Deadline, budget, preference.
    root
        Folder that relative input files are found in.
    retry
        Policy for failures.
    recorded
        True when the tasks come from a recorded execution and have no program
        of their own; running them needs a replay.
    recording
        What is known of the recorded execution, also in its replay; None for
        a campaign that was not recorded.
    source
        The file it was read from; None when built in Python.
    account
        User of a book who pays when the campaign is run; None: nobody is charged.
    book
        File of that book; None: the usual one.
    """

    name: str
    workflow: Workflow
    goal: Goal = field(default_factory=Goal)
    root: Path = field(default_factory=Path.cwd)
    retry: Retry = field(default_factory=Retry)
    recorded: bool = False
    recording: Recording | None = None
    source: Path | None = None
    account: str | None = None
    book: Path | None = None
