"""The work that waits for processors, in numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorDemand:
    """
    The work that waits for processors.

    Parameters
    ----------
    tasks
        Tasks that could start now if there were processors.
    processors
        Processors that these tasks would hold.
    widest
        Processors of the widest of them.
    work
        Processor-seconds of these at speed 1; those without an estimate count as the mean of
        what ended so far, or a guess.
    longest
        Seconds of the longest of them at speed 1, likewise.
    running
        Processors that tasks hold now.
    later
        Tasks that cannot start yet: others come before them, or they are withheld.
    withheld
        Whether any of the later tasks is withheld, by a service that has restarted or drains.
        Which processors these tasks need is unknown meanwhile: requests that wait in a queue are
        kept for them, and none are made.
    """

    tasks: int = 0
    processors: int = 0
    widest: int = 0
    work: float = 0.0
    longest: float = 0.0
    running: int = 0
    later: int = 0
    withheld: bool = False
