"""A finished run, simulated again under other policies: what each would have come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bursar.api.loops import outside_loops
from bursar.api.planning import plan as make_plan
from bursar.api.prospect import choose_strategy
from bursar.api.running import RUNS
from bursar.api.simulator import Simulator
from bursar.broker.strategies import POLICIES, Named, Policy
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.outcome import Status
from bursar.runs.folder import RunFolder
from bursar.runs.reading import RunRecord, read_run, summarise
from bursar.simulation.grid import Grid
from bursar.simulation.world import Chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """
    What a policy came to.

    Parameters
    ----------
    policy
        Which; ``"as it was"`` for the run itself.
    succeeded, tasks
        How many of how many.
    makespan, cost
        Seconds, currency units; None when unknown.
    deadline_met
        None where there is no deadline.
    """

    policy: str
    succeeded: int
    tasks: int
    makespan: float | None
    cost: float | None
    deadline_met: bool | None

    def to_dict(self) -> dict[str, Any]:
        """As ``bursar simulate --replay --json`` prints it."""
        return {
            "policy": self.policy,
            "succeeded": self.succeeded,
            "tasks": self.tasks,
            "makespan_s": self.makespan,
            "cost": self.cost,
            "deadline_met": self.deadline_met,
        }


class Replay:
    """
    A run under several policies, the way it was first.

    Parameters
    ----------
    run
        Its name.
    currency
        Of every cost.
    rows
        The run, and each policy.
    """

    exit_status = 0

    def __init__(self, run: str, currency: str, rows: Sequence[Replayed]) -> None:
        self.run = run
        self.currency = currency
        self.rows = tuple(rows)

    @property
    def lesson(self) -> str:
        """What another policy would have saved, in a line."""
        was, *others = self.rows
        whole = [r for r in others if r.succeeded >= was.succeeded and r.deadline_met is not False]
        cheaper = [r for r in whole if _saved(was.cost, r.cost) > 0]
        if cheaper:
            best = min(cheaper, key=lambda r: (r.cost or 0.0, r.makespan or 0.0))
            saved = _saved(was.cost, best.cost)
            return f"{best.policy} would have saved {saved:.4g} {self.currency}"
        faster = [r for r in whole if _saved(was.makespan, r.makespan) > 0]
        if faster:
            best = min(faster, key=lambda r: (r.makespan or 0.0, r.cost or 0.0))
            saved = _saved(was.makespan, best.makespan)
            return f"{best.policy} would have saved {saved:.4g} s, and no money"
        return "no other policy would have done better"

    def to_dict(self) -> dict[str, Any]:
        """The rows and the lesson; the keys are in the documentation."""
        return {
            "run": self.run,
            "currency": self.currency,
            "rows": [row.to_dict() for row in self.rows],
            "lesson": self.lesson,
        }

    def print(self) -> None:
        """As a table."""
        from bursar.report.reasons import print_replay

        print_replay(self.to_dict())


def replay(
    name: str | Path, policies: Sequence[Policy] = POLICIES, *, runs: str | Path = RUNS
) -> Replay:
    """
    Simulates a run again under other policies.

    Tasks take what they took, on the sites there were, by their speeds; a policy knows what
    was known at the begin: the estimates. A task that did not succeed takes what the others
    took over their estimates. What starting workers took is left out.

    Parameters
    ----------
    name
        Of the run, or its folder.
    policies
        Which; ``"planned"`` is left out where runtimes are not known.
    runs
        Folder that holds the runs.

    Raises
    ------
    InputError
        When there is no such run, no task of it has succeeded, or its tasks are no bag and
        no policy but a plan could run them.
    """
    record = read_run(RunFolder.open(Path(runs), str(name)))
    campaign = record.campaign
    work = _work(record)
    if not work:
        raise InputError(f"no task of run {record.folder.name} has succeeded: nothing to replay")
    idle = (replace(s, kind="simulated") if s.kind == "local" else s for s in record.info.sites)
    grid = Grid(tuple(idle))
    told = summarise(record)
    rows = [_row("as it was", told)]

    def work_through() -> None:
        for policy in policies:
            summary = _simulated(campaign, grid, policy, work)
            if summary is not None:
                rows.append(_row(policy, summary))

    outside_loops(work_through)
    return Replay(record.folder.name, told["currency"], rows)


def _simulated(
    campaign: Campaign, grid: Grid, policy: Policy, work: dict[int, float]
) -> dict[str, Any] | None:
    strategy: Named | None = None
    if policy != "planned":
        strategy, campaign = choose_strategy(campaign, grid.sites, policy)
    if strategy is None and any(t.runtime is None for t in campaign.workflow.tasks):
        return None
    simulator = Simulator(campaign, grid, Chance(), strategy=strategy, work=work)
    if strategy is not None:
        return simulator.carry_out(None, {})
    proposal = make_plan(campaign, grid.sites)
    plan = proposal.chosen or proposal.nearest()
    return simulator.carry_out(plan, proposal.to_dict())


def _work(record: RunRecord) -> dict[int, float]:
    """Seconds at speed 1 that each task took, or would have taken."""
    speeds = {site.name: site.speed for site in record.info.sites}
    tasks = record.campaign.workflow.tasks
    took = {
        number: (r.outcome.end - r.outcome.start) * speeds[r.site]
        for number, r in record.final.items()
        if r.outcome.status is Status.SUCCEEDED and r.site in speeds
    }
    if not took:
        return {}
    known = [(seconds, tasks[i].runtime) for i, seconds in took.items() if tasks[i].runtime]
    estimated = sum(runtime for _, runtime in known if runtime)
    ratio = sum(seconds for seconds, _ in known) / estimated if estimated else 1.0
    mean = sum(took.values()) / len(took)
    for number, task in enumerate(tasks):
        if number not in took:
            took[number] = mean if task.runtime is None else task.runtime * ratio
    return took


def _row(policy: str, summary: dict[str, Any]) -> Replayed:
    return Replayed(
        policy=policy,
        succeeded=summary["succeeded"],
        tasks=summary["tasks"],
        makespan=summary["makespan_s"],
        cost=summary["cost"],
        deadline_met=summary["deadline_met"],
    )


def _saved(before: float | None, after: float | None) -> float:
    if before is None or after is None:
        return 0.0
    saved = before - after
    return saved if saved > _CLOSE * max(before, after) else 0.0


_CLOSE = 1e-6
