"""Many tasks through a service: submitted, processed and delivered at the same time."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from bursar.model.errors import BursarError
from bursar.remote.async_client import AsyncServiceClient, AsyncSession
from bursar.remote.messages import Result, TaskSpec
from bursar.supervisor import TaskSupervisor
from bursar_papers.drp.serving import MeasuredService

ECHO = TaskSpec(command=("/bin/echo", "hello"))
NOTHING = TaskSpec(steps="kA==")
"""Without any step."""

PIECE = 5_000
"""Tasks of one submission."""


@dataclass(slots=True)
class PhaseTimes:
    """
    When tasks went through each phase; moments are seconds since the epoch.

    Parameters
    ----------
    began
        When the first was about to be submitted.
    submitted, delivered
        Moments, and how many tasks were acknowledged then, or had their results here.
    ended
        When each was processed, by the worker's clock.
    """

    began: float
    submitted: list[tuple[float, int]] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    delivered: list[tuple[float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds from the first submission to the last result."""
        return self.delivered[-1][0] - self.began

    def over_time(self, step: float) -> Iterator[tuple[float, dict[str, float]]]:
        """
        Tasks a second in each phase, up to the last result.

        Parameters
        ----------
        step
            Seconds over which they are counted.

        Yields
        ------
        tuple
            Seconds since the begin, in the middle of a step, and the rate of each phase there.
        """
        phases = {
            "submission": self.submitted,
            "processing": [(moment, 1) for moment in self.ended],
            "delivery": self.delivered,
        }
        steps = int(self.seconds / step) + 1
        counts = {name: [0] * steps for name in phases}
        for name, events in phases.items():
            for moment, count in events:
                index = int((moment - self.began) / step)
                counts[name][min(max(index, 0), steps - 1)] += count
        for i in range(steps):
            yield (i + 0.5) * step, {name: counts[name][i] / step for name in phases}


async def measure_phases(
    service: MeasuredService, spec: TaskSpec, count: int, *, piece: int = PIECE
) -> PhaseTimes:
    """
    Submit many copies of a task to a new instance, while results are fetched.

    Raises
    ------
    BursarError
        When one of them does not succeed.
    """
    async with AsyncServiceClient(service.access) as client:
        info = await client.create_instance()
        session = client.attach(info.id, seal=service.sealer())
        phases = PhaseTimes(time.time())
        try:
            async with TaskSupervisor() as tasks:
                delivering = tasks.start(_deliver(session, phases, count))
                await _submit(session, phases, spec, count, piece)
                await delivering
        finally:
            await session.destroy()
    return phases


async def _submit(
    session: AsyncSession, phases: PhaseTimes, spec: TaskSpec, count: int, piece: int
) -> None:
    while count:
        some = min(count, piece)
        await session.submit([spec] * some)
        phases.submitted.append((time.time(), some))
        count -= some


async def _deliver(session: AsyncSession, phases: PhaseTimes, count: int) -> None:
    async for batch in session.batches(until="closed"):
        phases.delivered.append((time.time(), len(batch)))
        phases.ended += [_end_of(result) for result in batch]
        if len(phases.ended) >= count:
            return


def _end_of(result: Result) -> float:
    if result.state != "succeeded":
        raise BursarError(f"task {result.task} has {result.state}: {result.reason}")
    return result.end
