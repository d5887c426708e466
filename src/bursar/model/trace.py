"""A workload trace: the jobs that a batch-scheduled machine was given."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    IntArray = NDArray[np.int64]
    FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFinding:
    """
    Something in a log that was dropped, changed, or is worth knowing.

    Parameters
    ----------
    reason
        Finding, in plain words.
    dropped
        Whether they were left out.
    line
        Line of the first such job, counted from 1; None where there are no lines.
    """

    reason: str
    jobs: int
    dropped: bool
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """
    Jobs in order of submission; arrays of one length, one entry for each job.

    Parameters
    ----------
    number
        Number of each job in the log.
    submit
        Seconds from the log's begin. Ascending.
    runtime
        Seconds the job ran. Positive.
    estimate
        Seconds that were asked for; the runtime where nothing is known. Positive.
    processors
        Processors that each job holds. At least 1.
    wait
        Seconds it waited, as recorded; NaN where unknown.
    user
        Number of its user; -1 where unknown.
    status
        How it ended, as the Standard Workload Format numbers it; None when the log does not say.
    application
        Number of its program; -1 where unknown. None when the log does not say.
    max_processors
        Processors of the machine by the header; None where the header does not say.
    begin
        Seconds since the epoch at which the log's clock is 0; None when unknown.
    header
        Comment lines of the log without their marker.
    cleaning
        Jobs dropped or changed, and why.
    """

    name: str
    number: "IntArray"
    submit: "FloatArray"
    runtime: "FloatArray"
    estimate: "FloatArray"
    processors: "IntArray"
    wait: "FloatArray"
    user: "IntArray"
    status: "IntArray | None" = None
    application: "IntArray | None" = None
    max_processors: int | None = None
    begin: float | None = None
    header: tuple[str, ...] = ()
    cleaning: tuple[TraceFinding, ...] = ()

    def __len__(self) -> int:
        return len(self.number)

    @property
    def work(self) -> float:
        """Processor-seconds of all jobs together."""
        return float(self.runtime @ self.processors)
