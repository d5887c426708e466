"""A task: what to run, what it needs, what it makes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bursar.model.matching import Matching
from bursar.model.step import Step

Value = str | int | float | bool
"""A parameter value."""


@dataclass(frozen=True, slots=True)
class File:
    """
    A file, named in the campaign's name space.

    Parameters
    ----------
    name
        Relative path, ``/`` between parts, never leaving its folder. Kept in its
        shortest form: ``./a//b`` is ``a/b``.
    size
        Bytes; None when unknown. Not negative.
    """

    name: str
    size: int | None = None

    def __post_init__(self) -> None:
        parts = self.name.split("/")
        shortest = "/".join(part for part in parts if part not in ("", "."))
        if not shortest or self.name.startswith("/") or ".." in parts or "\0" in self.name:
            raise ValueError(f'file name must be a relative path without "..", got "{self.name}"')
        if shortest != self.name:
            object.__setattr__(self, "name", shortest)
        if self.size is not None and self.size < 0:
            raise ValueError(f'file "{self.name}": size must not be negative, got {self.size}')


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """
    A rigid task: it holds ``processors`` processors of one site from start to end.

    Parameters
    ----------
    id
        Unique in its workflow, never empty.
    name
        Kind of task (the program, the recorded type); for reports.
    steps
        Steps to carry out. Empty for a task that only exists in a plan.
    inputs, outputs
        Files it reads and files it must have made when it ends.
    after
        Ids of further tasks that must have succeeded before it starts. The
        makers of its inputs are parents without being named here.
    processors
        Positive.
    runtime
        Estimate at speed 1, seconds; None when unknown. Not negative.
    wall_limit
        Seconds after which it is killed; None for no limit. Positive.
    memory
        Bytes it needs; None when unknown.
    environment
        Variables added to the worker's.
    matching
        Requirements, rank and weights for the broker.
    data
        Logical names of files that it reads, to be found by the replica catalogue; put
        into its working directory under these names.
    registers
        Outputs that are registered in the replica catalogue when it succeeds: their
        logical names, by name.
    retries
        How often it is tried again after a failure; None for the campaign's default.
    parameters
        The point of the sweep it stands for, or empty.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    id: str
    name: str = ""
    steps: tuple[Step, ...] = ()
    inputs: tuple[File, ...] = ()
    outputs: tuple[File, ...] = ()
    after: tuple[str, ...] = ()
    processors: int = 1
    runtime: float | None = None
    wall_limit: float | None = None
    memory: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    matching: Matching = field(default_factory=Matching)
    data: tuple[str, ...] = ()
    registers: Mapping[str, str] = field(default_factory=dict)
    retries: int | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.id or "\0" in self.id:
            raise ValueError("id must not be empty")
        if self.processors < 1:
            raise ValueError(f"processors must be at least 1, got {self.processors}")
        if self.runtime is not None and not (0 <= self.runtime < math.inf):
            raise ValueError(f"runtime must be finite and not negative, got {self.runtime}")
        if self.wall_limit is not None and not (0 < self.wall_limit < math.inf):
            raise ValueError(f"wall_limit must be finite and positive, got {self.wall_limit}")
        if self.memory is not None and self.memory < 0:
            raise ValueError(f"memory must not be negative, got {self.memory}")
        if self.retries is not None and self.retries < 0:
            raise ValueError(f"retries must not be negative, got {self.retries}")
