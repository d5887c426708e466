"""
A finished run, simulated again under other policies: what each would have come to.

A real run pays for workers that start and stop, and for the moments between its tasks, which
a simulation does not know. So all of that is measured in the run's journal and put into every
simulation, the run itself is simulated again the same way, and the other policies are compared
with that simulation and not with the bill.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from bursar.api.planning import plan as make_plan
from bursar.api.queues import run_outside_loop
from bursar.api.simulator import RecordedConditions, Simulator
from bursar.api.site_resolution import RUNS
from bursar.broker.policy_choice import PolicyRequest, choose_policy
from bursar.broker.strategies import POLICIES, Policy
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.money import Calendar
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status
from bursar.runs.folder import RunFolder
from bursar.runs.run_record import RunRecord, read_run, summarise
from bursar.simulation.execution_model import ExecutionUncertainty, PilotOverhead
from bursar.simulation.simulated_grid import SimulatedGrid

AS_IT_WAS = "as it was"
"""Name of the row with the figures of the run itself."""

SIMULATED = "as it was, simulated"
"""Name of the row with the run's own policy, simulated: the others are compared with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReplay:
    """
    Outcome of a run's replay under one policy.

    Parameters
    ----------
    policy
        Its name; :data:`AS_IT_WAS` for the run itself, :data:`SIMULATED` for the run simulated.
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


class RunReplay:
    """
    A run under several policies.

    Parameters
    ----------
    currency
        Currency of every cost.
    rows
        The run, the run simulated, and each policy simulated.
    """

    exit_status = 0

    def __init__(self, run: str, currency: str, rows: Sequence[PolicyReplay]) -> None:
        self.run = run
        self.currency = currency
        self.rows = tuple(rows)

    @property
    def cost_error(self) -> float | None:
        """Cost of the simulated run less the run's own, currency units."""
        was, again, *_ = self.rows
        return _difference(again.cost, was.cost)

    def saved(self, row: PolicyReplay) -> tuple[float | None, float | None]:
        """Return seconds and currency units that a row saves against the simulated run."""
        base = self.rows[1]
        return _difference(base.makespan, row.makespan), _difference(base.cost, row.cost)

    @property
    def lesson(self) -> str:
        """
        State in one line what another policy would have saved.

        What is smaller than the error of the simulation is not called a saving.
        """
        was, base, *others = self.rows
        # A policy that left tasks undone or missed the deadline may be cheaper, and is no better.
        whole = [r for r in others if r.succeeded >= base.succeeded and r.deadline_met is not False]
        cheaper = [r for r in whole if _saved(was.cost, base.cost, r.cost) > 0]
        if cheaper:
            best = min(cheaper, key=lambda r: (r.cost or 0.0, r.makespan or 0.0))
            saved = _saved(was.cost, base.cost, best.cost)
            return f"{best.policy} would have saved {saved:.4g} {self.currency}"
        faster = [r for r in whole if _saved(was.makespan, base.makespan, r.makespan) > 0]
        if faster:
            best = min(faster, key=lambda r: (r.makespan or 0.0, r.cost or 0.0))
            saved = _saved(was.makespan, base.makespan, best.makespan)
            return f"{best.policy} would have saved {saved:.4g} s, and no money"
        return "no other policy would have done better"

    def to_dict(self) -> dict[str, Any]:
        """Return the rows and the lesson; the keys are in the documentation."""
        return {
            "run": self.run,
            "currency": self.currency,
            "rows": [self._row_to_dict(row) for row in self.rows],
            "cost_error": self.cost_error,
            "lesson": self.lesson,
        }

    def _row_to_dict(self, row: PolicyReplay) -> dict[str, Any]:
        seconds, amount = (None, None) if row is self.rows[0] else self.saved(row)
        return {
            "policy": row.policy,
            "succeeded": row.succeeded,
            "tasks": row.tasks,
            "makespan_s": row.makespan,
            "cost": row.cost,
            "deadline_met": row.deadline_met,
            "saved_s": seconds,
            "saved_cost": amount,
        }

    def print(self) -> None:
        """Print a table."""
        from bursar.report.tables import print_replay

        print_replay(self.to_dict())


def replay(
    name: str | Path, policies: Sequence[Policy] = POLICIES, *, runs: str | Path = RUNS
) -> RunReplay:
    """
    Simulate a run again, under the actual policy and under others.

    Tasks take what they took, on the sites there were, by their speeds; a policy knows what
    was known at the begin: the estimates. A task that did not succeed takes what the others
    took over their estimates. Workers start and stop as slowly as they did in the run, and
    owners ask what they asked then. The own policy of a run that was planned is its plan.

    Parameters
    ----------
    name
        Name of the run, or path of the folder.
    policies
        Policies to try; ``"planned"`` is left out where runtimes are not known.
    runs
        Folder that holds the runs.

    Raises
    ------
    InputError
        When there is no such run, no task of it has succeeded, or its tasks are no bag and
        no policy but a plan could run them.
    """
    record = read_run(RunFolder.open(Path(runs), str(name)))
    if record.info.reused:
        raise InputError(
            f"run {record.folder.name} took {record.info.reused} of {record.info.tasks} results "
            f"from {record.info.reused_from}: its time and cost are no measure of a policy",
            hint="replay a run that was carried out with --fresh",
        )
    took = _seconds(record)
    work = _work(record, took)
    if not work:
        raise InputError(f"no task of run {record.folder.name} has succeeded: nothing to replay")
    answer = summarise(record)
    rows = [_row(AS_IT_WAS, answer)]

    def work_through() -> None:
        again = _ReplaySimulator(record, work)
        own, summary = again.as_it_was()
        rows.append(_row(SIMULATED, summary))
        for policy in policies:
            simulated = summary if policy == own else again.under(policy)
            if simulated is not None:
                rows.append(_row(policy, simulated))

    run_outside_loop(work_through)
    return RunReplay(record.folder.name, answer["currency"], rows)


class _ReplaySimulator:
    """
    Simulates a run with the overheads and durations measured in the journal.

    Parameters
    ----------
    work
        Seconds at speed 1 that each task takes.
    """

    def __init__(self, record: RunRecord, work: Mapping[int, float]) -> None:
        self._record = record
        self._campaign = record.campaign
        self._work = work
        self._overheads = _overheads(record)
        sites = record.info.sites
        self._grid = SimulatedGrid(tuple(sites))
        # Numbers as large as a date cost digits: only where prices follow the date.
        self._epoch = (
            record.incarnations[0][0] if any(_follows_date(site) for site in sites) else 0.0
        )

    def as_it_was(self) -> tuple[Policy | None, dict[str, Any]]:
        """Return the run's policy, None if that has no name, and the simulated figures."""
        policy = self._record.info.policy
        if policy.kind != "planned":
            return policy.strategy, self._simulator(self._campaign).carry_out(policy, None, {})
        proposal, plan = self._record.planned
        return "planned", self._simulator(self._campaign).carry_out(policy, plan, proposal)

    def under(self, policy: Policy) -> dict[str, Any] | None:
        """Return a policy's outcome; None where the campaign cannot be run under the policy."""
        wanted = PolicyRequest(
            strategy=None if policy == "planned" else policy,
            provisioning="planned" if policy == "planned" else None,
        )
        try:
            decision = choose_policy(self._campaign, self._grid.sites, wanted)
        except InputError:
            return None  # its jobs ask for what the broker alone can give
        campaign, chosen = decision.campaign, decision.policy
        if chosen.kind == "economy":
            chosen = replace(chosen, out_of_reach=self._record.info.out_of_reach)
            return self._simulator(campaign).carry_out(chosen, None, {})
        if any(task.runtime is None for task in campaign.workflow.tasks):
            return None
        quote = make_plan(campaign, self._grid.sites, moment=self._epoch)
        followed = quote.plan_to_follow()
        return self._simulator(campaign).carry_out(chosen, followed, quote.to_dict())

    def _simulator(self, campaign: Campaign) -> Simulator:
        return Simulator(
            campaign,
            self._grid,
            ExecutionUncertainty(),
            recorded=RecordedConditions(
                work=self._work, overheads=self._overheads, epoch=self._epoch
            ),
        )


def _follows_date(site: SiteFacts) -> bool:
    return site.pricing is not None and any(isinstance(r, Calendar) for r in site.pricing.rules)


def _by_lease(record: RunRecord) -> dict[str, list[Outcome]]:
    """Return the outcomes of each lease, by start."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    for entry in record.journal.records:
        found[entry.lease].append(entry.outcome)
    return {lease: sorted(of, key=lambda o: o.start) for lease, of in found.items()}


def _overheads(record: RunRecord) -> dict[str, list[PilotOverhead]]:
    """Return the paid overheads of pilots by site, in order; of all pilots for other sites."""
    ran = _by_lease(record)
    measured: dict[str, list[PilotOverhead]] = defaultdict(list)
    for lease in sorted(record.leases, key=lambda lease: lease.start):
        of = ran.get(lease.id)
        if of and lease.end is not None:
            # Without these figures the very policy of the run would seem to save half of the bill:
            # a simulation starts workers in no time.
            starting = max(0.0, of[0].start - lease.start)
            stopping = max(0.0, lease.end - max(o.end for o in of))
            measured[lease.site].append(PilotOverhead(starting, stopping))
    # A policy may buy at a site where the run had no pilot: then all pilots are the best guess.
    everywhere = [one for of in measured.values() for one in of]
    return {
        site.name: found
        for site in record.info.sites
        if (found := measured.get(site.name, everywhere))
    }


def _seconds(record: RunRecord) -> dict[int, float]:
    """
    Return the seconds for which each successful task held processors.

    On a single processor that includes the moment between the task before and it.
    """
    single = {lease.id for lease in record.leases if lease.processors == 1}
    before: dict[int, float] = {}  # the end of what ran before, by task
    for lease, of in _by_lease(record).items():
        if lease in single:
            # With one processor the moment between two tasks is the second one's hand-over, which
            # was paid.
            before |= {b.task: a.end for a, b in pairwise(of)}
    return {
        number: r.outcome.end - min(r.outcome.start, before.get(number, r.outcome.start))
        for number, r in record.final.items()
        if r.outcome.status is Status.SUCCEEDED
    }


def _work(record: RunRecord, seconds: Mapping[int, float]) -> dict[int, float]:
    """Return the seconds at speed 1 that each task took, or would have taken."""
    speeds = {site.name: site.speed for site in record.info.sites}
    tasks = record.campaign.workflow.tasks
    took = {
        number: held * speeds[record.final[number].site]
        for number, held in seconds.items()
        if record.final[number].site in speeds
    }
    if not took:
        return {}
    known = [(seconds, tasks[i].runtime) for i, seconds in took.items() if tasks[i].runtime]
    estimated = sum(runtime for _, runtime in known if runtime)
    ratio = sum(seconds for seconds, _ in known) / estimated if estimated else 1.0
    mean = sum(took.values()) / len(took)
    for number, task in enumerate(tasks):
        if number not in took:
            # Tasks without success: by their estimates, stretched as those of the others were.
            took[number] = mean if task.runtime is None else task.runtime * ratio
    return took


def _row(policy: str, summary: dict[str, Any]) -> PolicyReplay:
    return PolicyReplay(
        policy=policy,
        succeeded=summary["succeeded"],
        tasks=summary["tasks"],
        makespan=summary["makespan_s"],
        cost=summary["cost"],
        deadline_met=summary["deadline_met"],
    )


def _difference(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def _saved(was: float | None, base: float | None, other: float | None) -> float:
    """Return the saving against the simulated run; 0 where below the simulation's error."""
    if was is None or base is None or other is None:
        return 0.0
    saved = base - other
    # The simulated run differs from the real one by this much though nothing was changed.
    return saved if saved > max(abs(base - was), _CLOSE * max(base, other)) else 0.0


_CLOSE = 1e-6
"""Relative tolerance for rounding."""
