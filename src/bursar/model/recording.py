"""Facts of the execution that a recorded workflow comes from."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


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
