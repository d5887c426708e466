"""The verdict of the simulation of one seed."""

from collections import Counter
from dataclasses import dataclass

from bursar.service.logs import LOGGER
from bursar_devtools.faults.event_trace import EventTrace, tracing_logs
from bursar_devtools.faults.fault_plan import FaultPlan, fault_plan_of
from bursar_devtools.faults.fault_simulation import FaultSimulation
from bursar_devtools.faults.restarting_service import PARTY
from bursar_devtools.faults.simulated_process import ProcessLoop, run_processes


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedVerdict:
    """
    Holds the result of simulating a seed.

    Parameters
    ----------
    wrong
        First violation; empty when there was none.
    seconds, steps, events, lives
        Virtual seconds, steps of all processes, lines of the trace, number of processes.
    faults
        Number of injected faults, by kind.
    digest
        Digest of the whole trace.
    lines
        Last trace lines, or all; empty when nothing is wrong and not all were requested.
    """

    seed: int
    wrong: str
    seconds: float
    steps: int
    events: int
    lives: int
    faults: Counter[str]
    digest: str
    lines: tuple[str, ...]


def simulate(seed: int, plan: FaultPlan | None = None, *, keep_all: bool = False) -> SeedVerdict:
    """
    Simulate a seed until the end or the first violation.

    Parameters
    ----------
    plan
        Faults to inject; None to draw them from the seed.
    keep_all
        Whether the verdict has all lines of the trace, not only the last before something
        went wrong.
    """
    trace = EventTrace(keep_all=keep_all)

    async def narrative(loop: ProcessLoop) -> SeedVerdict:
        trace.now = loop.time
        wrong = await FaultSimulation(loop, seed, plan or fault_plan_of(seed), trace).run()
        return SeedVerdict(
            seed=seed,
            wrong=wrong,
            seconds=loop.time(),
            steps=sum(process.steps for process in loop.lives),
            events=trace.events,
            lives=len(loop.lives),
            faults=trace.faults,
            digest=trace.digest,
            lines=tuple(trace.lines()) if wrong or keep_all else (),
        )

    with tracing_logs(trace, LOGGER, PARTY):
        return run_processes(narrative)
