"""A campaign: a workflow, a goal, and how failures are met."""

from dataclasses import dataclass, field
from pathlib import Path

from bursar.model.goal import Goal
from bursar.model.recording import Recording
from bursar.model.workflow import Workflow


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
        return min(self.backoff * 2.0 ** (attempt - 2), self.ceiling)


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
