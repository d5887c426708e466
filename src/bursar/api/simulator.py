"""One campaign simulated in several ways, on copies of one grid."""

import asyncio
import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bursar.api.planning import replanner
from bursar.broker.dynamic_scheduler import JustInTimeScheduler
from bursar.broker.pilot_plan import plan_pilots
from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.trading import CampaignTrader
from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import BursarError, InputError
from bursar.model.matching import Brokering, Replica
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Task
from bursar.planning.policy import Method, Scheduler
from bursar.runs.brokerage import RunBroker
from bursar.runs.campaign_run import economy_of, execute_campaign
from bursar.runs.environment import RunEnvironment
from bursar.runs.folder import RunFolder
from bursar.runs.plan_file import write_plan
from bursar.runs.recording.user_history import NOWHERE
from bursar.runs.run_record import read_run
from bursar.runs.supply import Delay, PlannedSupply, Replan, ScheduledSupply, Supply
from bursar.simulation.data_staging import SimulatedDataStaging
from bursar.simulation.execution_model import ExecutionUncertainty, PilotOverhead
from bursar.simulation.simulated_grid import Arrivals, SimulatedGrid
from bursar.simulation.simulated_site import SimulatedSite
from bursar.simulation.virtual_loop import VirtualLoop


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedConditions:
    """
    Measured figures of a run, in place of the random numbers of a simulation.

    Parameters
    ----------
    work
        Seconds at speed 1 that tasks really take; None: as estimated.
    overheads
        See :class:`bursar.simulation.execution_model.ExecutionModel`.
    epoch
        When the simulation begins, seconds since the epoch: owners' prices follow it.
    """

    work: Mapping[int, float] | None = None
    overheads: Mapping[str, Sequence[PilotOverhead]] | None = None
    epoch: float = 0.0


class Simulator:
    """
    Carries a campaign out in simulated time, as often as asked.

    Parameters
    ----------
    campaign
        Campaign to simulate.
    grid
        Sites; each simulation works on a copy.
    chance
        Spread of runtimes about their estimates, and share of failures.
    method, scheduler
        Methods for plans made on the way, see :func:`bursar.plan`.
    copies
        Replicas of logical files at the begin, by name.
    recorded
        Figures of a recorded run, in place of random ones.
    progress
        Whether to show progress on stderr.
    """

    def __init__(
        self,
        campaign: Campaign,
        grid: SimulatedGrid,
        chance: ExecutionUncertainty,
        *,
        method: Method = "auto",
        scheduler: Scheduler = "heft",
        copies: Mapping[str, Sequence[Replica]] | None = None,
        recorded: RecordedConditions | None = None,
        progress: bool = False,
    ) -> None:
        self.recorded = recorded or RecordedConditions()
        self.copies = copies or {}
        self.campaign = campaign
        self.grid = grid
        self.chance = chance
        self.method: Method = method
        self.scheduler: Scheduler = scheduler
        self.progress = progress

    def best_effort(self) -> Plan:
        """
        Return the expected makespan and cost of best effort, without places for tasks.

        Other users submit the jobs of the week before, and estimates are exact.
        """
        summary, _ = self._undisturbed()._simulate(_BEST_EFFORT, None, {}, "expected")
        makespan = summary["makespan_s"] if _is_whole(summary) else None
        return Plan.on_the_way(
            self.grid.sites[0].currency, str(_BEST_EFFORT), makespan, summary["cost"]
        )

    def queued(self) -> Plan | None:
        """
        Return the plan of all tasks put into the queues now, each to start after the parents.

        Tasks start when best effort would start them if no other job came; as they are
        reserved, no later job delays them. None when there is no such plan.
        """
        summary, records = self._undisturbed()._simulate(_BEST_EFFORT, None, {}, "none")
        if not _is_whole(summary):
            return None
        tasks = self.campaign.workflow.tasks
        plan = _plan_of(records, tasks, self.grid.sites)
        # Reserved all at once, starts may no longer be possible that queues gave one after the
        # other.
        return plan if self.grid.holds(plan_pilots(plan, tasks)) else None

    def carry_out(
        self,
        policy: SupplyPolicy,
        plan: Plan | None,
        proposal: dict[str, Any],
        *,
        name: str | None = None,
        runs: Path = Path(),
        argv: Sequence[str] = (),
    ) -> dict[str, Any]:
        """
        Return the key figures of a run under a policy.

        Parameters
        ----------
        policy
            Policy that brings processors to the tasks.
        plan
            Plan to follow, or the expectations where the policy decides on the way; None: nothing
            is expected.
        proposal
            Quote of the run, as a dictionary.
        name, runs, argv
            Name, parent folder and command line of the run; without a name nothing is kept.
        """
        summary, _ = self._simulate(policy, plan, proposal, "log", name, runs, argv)
        return summary

    def _trading(self, policy: SupplyPolicy) -> CampaignTrader | None:
        """Return who agrees with owners on whole allocations; a strategy buys job by job itself."""
        negotiates = any(site.buying.negotiates for site in self.grid.sites)
        if policy.kind == "economy" or not negotiates:
            return None
        return CampaignTrader(self.grid.sites)

    def _undisturbed(self) -> "Simulator":
        """Return a simulator without random deviations or a goal that could stop the run."""
        campaign = replace(self.campaign, goal=Goal())
        return Simulator(campaign, self.grid, ExecutionUncertainty())

    def _simulate(
        self,
        policy: SupplyPolicy,
        plan: Plan | None,
        proposal: dict[str, Any],
        arrivals: Arrivals,
        name: str | None = None,
        runs: Path = Path(),
        argv: Sequence[str] = (),
    ) -> tuple[dict[str, Any], list[AttemptRecord]]:
        campaign, grid = self.campaign, self.grid
        sites = grid.open(
            campaign.workflow,
            self.chance,
            arrivals=arrivals,
            work=self.recorded.work,
            overheads=self.recorded.overheads,
        )
        brokerage = None
        if policy.brokering is not None:
            brokerage = self._brokerage(sites, policy.brokering)
        environment = RunEnvironment(
            sites=sites,
            loop=partial(VirtualLoop, self.recorded.epoch),
            supply=self._supply(sites, policy, plan, brokerage),
            trading=self._trading(policy),
            lifespan=nullcontext if brokerage is None else brokerage.running,
            delay=self._delay(),
            # Tasks reach simulated workers in no time: prefetching would only change which worker
            # has them.
            prefetch=False,
            # Nothing needs a look now and then: simulated time goes from event to event.
            tick=math.inf,
            # The folder is removed, or written up, when the simulation has ended: no sync is
            # needed.
            durable=False,
            refresh=_refresh(campaign, plan),
            amendable=False,
            has_files=False,
        )
        plan_used = plan or Plan.on_the_way(grid.sites[0].currency, str(policy))
        # Of kind simulated, so that nobody resumes it on real sites.
        kept = tuple(replace(site, kind="simulated", slots=None) for site in grid.sites)
        with _place(runs, name) as (base, called):
            made = RunFolder.create(
                base,
                campaign,
                kept,
                argv=list(argv),
                name=called,
                policy=policy,
                history=NOWHERE,
            )
            with made as folder:
                write_plan(folder, proposal, plan_used)
            summary = execute_campaign(
                folder,
                campaign,
                plan_used,
                environment=environment,
                written_up=name is not None,
                progress=self.progress,
            )
            records = read_run(folder).journal.records
        summary["provisioning"] = str(policy)
        summary["simulated"] = True
        # Only against a log are there other users whose waits could have changed.
        others = grid.others(sites, summary["makespan_s"] or 0.0) if arrivals == "log" else {}
        summary["others"] = {
            site: {
                "jobs": found.jobs,
                "mean_wait_s": found.wait,
                "mean_wait_without_s": found.wait_without,
            }
            for site, found in others.items()
        }
        if name is None:
            summary["folder"] = None
        return summary, records

    def _brokerage(self, sites: dict[str, SimulatedSite], settings: Brokering) -> RunBroker:
        tasks = self.campaign.workflow.tasks
        staging = None
        if any(task.data or task.registers for task in tasks):
            facts = [site.facts for site in sites.values()]
            staging = SimulatedDataStaging(tasks, facts, self.copies)
        return RunBroker(
            self.campaign,
            sites,
            settings,
            clock=lambda: asyncio.get_running_loop().time(),
            copies=None if staging is None else staging.copies,
            staging=staging,
        )

    def _supply(
        self,
        sites: dict[str, SimulatedSite],
        policy: SupplyPolicy,
        plan: Plan | None,
        brokerage: RunBroker | None,
    ) -> Supply:
        """Return what brings the processors of simulated sites to the tasks."""
        if brokerage is not None:
            return ScheduledSupply(brokerage.scheduler)
        match policy.kind:
            case "pool":
                from bursar.provisioning.pool import PilotPool
                from bursar.runs.pool_controller import PoolController

                return PoolController(PilotPool())
            case "best-effort":
                return ScheduledSupply(_just_in_time(self.campaign, sites))
            case "economy":
                facts = [site.facts for site in sites.values()]
                return ScheduledSupply(economy_of(policy, facts, self.campaign))
        assert plan is not None
        return PlannedSupply(plan, self._replan(sites))

    def _delay(self) -> Delay | None:
        facts = {site.name: site for site in self.grid.sites}
        if not any(site.links for site in facts.values()):
            return None
        tasks = self.campaign.workflow.tasks
        return lambda task, ran, child, runs: facts[ran].delay_to(runs, tasks[task], tasks[child])

    def _replan(self, sites: dict[str, SimulatedSite]) -> Replan:
        return replanner(
            self.campaign,
            lambda: [replace(site.facts, slots=site.offers()) for site in sites.values()],
            method=self.method,
            scheduler=self.scheduler,
        )


_BEST_EFFORT = SupplyPolicy(kind="best-effort")


def _just_in_time(campaign: Campaign, sites: dict[str, SimulatedSite]) -> JustInTimeScheduler:
    """Return a scheduler that sends each task to the site with the earliest expected end."""
    tasks = campaign.workflow.tasks
    candidates = list(sites.values())
    for task in tasks:
        _check_width(task, [site.facts for site in candidates])

    def choose(task: int) -> tuple[SiteFacts, float]:
        width, runtime = tasks[task].processors, tasks[task].runtime or 0.0

        def end(site: SimulatedSite) -> float:
            wait = site.expected_wait(width, _seconds(tasks[task], site.facts))
            return wait + runtime / site.facts.speed

        wide = [site for site in candidates if site.facts.processors >= width]
        # Estimating a wait means a simulation of the queue: not for a choice of one.
        best = wide[0] if len(wide) == 1 else min(wide, key=end)
        return best.facts, _seconds(tasks[task], best.facts)

    return JustInTimeScheduler(campaign.workflow, choose)


def _seconds(task: Task, site: SiteFacts) -> float:
    """Return the seconds to request of a site for a task."""
    asked = (task.runtime or 0.0) / site.speed if task.wall_limit is None else task.wall_limit
    return max(asked, _SHORTEST)


def _check_width(task: Task, sites: Sequence[SiteFacts]) -> None:
    widest = max(sites, key=lambda site: site.processors)
    if task.processors > widest.processors:
        raise InputError(
            f'task "{task.id}" needs {task.processors} processors; the widest site, '
            f'"{widest.name}", has {widest.processors}',
            where=f"tasks.{task.id}.processors",
        )


_SHORTEST = 1e-3
"""Seconds that a job requests at least."""


def _refresh(campaign: Campaign, plan: Plan | None) -> float:
    """Return the simulated seconds between updates of the progress: some hundred updates in all."""
    makespan = plan.makespan if plan is not None else None
    if makespan is None:
        makespan = max(task.runtime or 0.0 for task in campaign.workflow.tasks)
    return max(1.0, makespan / 200)


def _is_whole(summary: Mapping[str, Any]) -> bool:
    return bool(summary["succeeded"] == summary["tasks"])


def _plan_of(
    records: Sequence[AttemptRecord], tasks: Sequence[Task], sites: Sequence[SiteFacts]
) -> Plan:
    """Return a run as a plan that buys for each task exactly the processors and time used."""
    by_name = {site.name: site for site in sites}
    bought: dict[str, int] = dict.fromkeys(by_name, 0)
    purchases, placements = [], []
    for record in sorted(records, key=lambda r: (r.outcome.start, r.outcome.task)):
        outcome, site = record.outcome, by_name[record.site]
        width, seconds = tasks[outcome.task].processors, outcome.end - outcome.start
        held: tuple[int, ...] = ()
        if seconds > 0:
            slot = Slot(
                site=site.name,
                start=outcome.start,
                duration=seconds,
                processors=width,
                unit_price=site.unit_price,
                fixed_price=site.fixed_price,
            )
            purchases.append(Purchase(slot=slot, part=width * seconds))
            held = tuple(range(bought[site.name], bought[site.name] + width))
            bought[site.name] += width
        placements.append(Placement(outcome.task, site.name, outcome.start, outcome.end, held))
    costs = [purchase.cost for purchase in purchases]
    return Plan(
        purchases=tuple(purchases),
        placements=tuple(placements),
        makespan=max((p.finish for p in placements), default=0.0),
        cost=None if None in costs else math.fsum(c for c in costs if c is not None),
        currency=sites[0].currency,
        utilisation=1.0,
        algorithm="queued",
    )


@contextlib.contextmanager
def _place(runs: Path, name: str | None) -> Iterator[tuple[Path, str]]:
    """Yield folder and name of the simulated run; remove an unnamed run afterwards."""
    if name is not None:
        yield runs, name
        return
    try:
        # A simulated run is a run like any other and writes a folder; only one that has a name is
        # kept.
        place = tempfile.TemporaryDirectory(prefix="bursar-")
    except OSError as error:
        raise BursarError(f"no place for the simulated run: {error.strerror}") from None
    with place as folder:
        yield Path(folder), "simulated"
