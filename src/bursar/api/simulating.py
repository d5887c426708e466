"""A campaign in simulated time: the same broker, dispatcher and ledger, on simulated sites."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bursar.api.brokering import asked_of_broker, choose_brokering, suitable
from bursar.api.loops import run_outside_loop
from bursar.api.match_proposal import look_for_matches
from bursar.api.planning import plan as make_plan
from bursar.api.planning import resolve_campaign
from bursar.api.replica_lookup import locate_replicas
from bursar.api.running import RUNS, GoalOutOfReach
from bursar.api.simulator import RecordedConditions, Simulator
from bursar.api.site_resolution import Sites, resolve_sites
from bursar.api.strategy_forecast import choose_strategy, prospect
from bursar.broker.provisioning_mode import ProvisioningMode
from bursar.broker.strategies import Named, OutOfReach
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import BursarError, InputError
from bursar.model.matching import Brokering
from bursar.model.plan import Plan
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.planning.policy import Method, Scheduler
from bursar.simulation.execution_model import ExecutionModel, ExecutionUncertainty
from bursar.simulation.simulated_grid import SimulatedGrid


class Simulation:
    """
    A campaign that was simulated.

    Parameters
    ----------
    summary
        Its key figures, as ``bursar simulate --json`` prints them.

    Attributes
    ----------
    exit_status
        As ``bursar run``'s: 0 when every task succeeded in time.
    """

    def __init__(self, summary: dict[str, Any]) -> None:
        self._summary = summary
        self.exit_status: int = summary["exit_status"]

    @property
    def makespan(self) -> float | None:
        """Seconds from the begin to the last end of a task; None when nothing ran."""
        makespan: float | None = self._summary["makespan_s"]
        return makespan

    @property
    def cost(self) -> float | None:
        """Amount paid, currency units; None when a price is unknown."""
        cost: float | None = self._summary["cost"]
        return cost

    @property
    def succeeded(self) -> bool:
        """Whether every task succeeded."""
        return bool(self._summary["succeeded"] == self._summary["tasks"])

    def to_dict(self) -> dict[str, Any]:
        """Return the key figures; the keys are in the documentation."""
        return dict(self._summary)

    def __repr__(self) -> str:
        done, tasks = self._summary["succeeded"], self._summary["tasks"]
        return f"<Simulation: {done} of {tasks} succeeded in {self.makespan} s, {self.cost}>"


def simulate(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    provisioning: ProvisioningMode = "planned",
    strategy: Named | None = None,
    out_of_reach: OutOfReach = "fit",
    broker: Brokering | None = None,
    catalogue: str | Path | None = None,
    processors: int | None = None,
    method: Method = "auto",
    scheduler: Scheduler = "heft",
    chance: ExecutionUncertainty | None = None,
    anyway: bool = False,
    name: str | None = None,
    runs: str | Path = RUNS,
    progress: bool = False,
    argv: Sequence[str] = (),
) -> Simulation:
    """
    Carries a campaign out in simulated time.

    Parameters
    ----------
    campaign
        A campaign, or the path of a file that holds one. Every runtime must be known.
    sites
        A sites file or the sites, of any kind; None: this machine, as if it were idle.
    provisioning
        ``"planned"``: by reservations of what a plan buys. ``"dynamic"``: by a pool that
        acquires and releases processors as there is work for them (DRP).
        ``"best-effort"``: each task is sent to a queue when its parents have ended (HPDC'07
        section 5). ``"queued"``: all are put into the queues at once, each to start after its
        parents (the competitor of its section 7). ``"either"``: whichever of the first and
        these two is expected to serve the goal best, by what can be known at the begin.
    strategy
        Takes the place of all these: the jobs of a bag are brought to the sites one by one
        as a deadline-and-budget strategy says (Nimrod/G), see
        :mod:`bursar.broker.strategies`; a workflow is planned by the trade-off it stands
        for. None: with ``"planned"``, as :func:`bursar.run` does.
    out_of_reach
        With a strategy, once the goal goes out of reach; see :func:`bursar.run`.
    broker, catalogue
        See :func:`bursar.run`; what the catalogue says of copies is only read.
    processors, method, scheduler
        Of the plan; see :func:`bursar.plan`.
    chance
        How far runtimes differ from their estimates, and which attempts fail.
    anyway
        Start even if no plan meets the goal; the budget still holds.
    name
        Keeps the simulated run as a folder of this name; None: nothing is kept.
    runs
        Folder that holds the runs.
    progress
        Whether to show it on stderr.
    argv
        The command line, for the record.

    Raises
    ------
    InputError
        When a file is wrong, a runtime is unknown, or the name is taken.
    GoalOutOfReach
        When no plan meets the goal.
    BursarError
        When the run could not go on.
    """
    campaign = resolve_campaign(campaign)
    facts = resolve_sites(sites)
    brokering = None
    if provisioning != "planned":
        needed = "--choice and its like" if broker is not None else asked_of_broker(campaign)
        if needed:
            raise InputError(f"{needed}: the broker sends these jobs", where="provisioning")
    else:
        brokering = choose_brokering(
            campaign, facts, broker, catalogue=catalogue, strategy=strategy, processors=processors
        )
    facts = tuple(_as_simulated(site) for site in facts)
    grid = SimulatedGrid(suitable(campaign, facts) if brokering is None else facts)
    chance = chance or ExecutionUncertainty()
    ExecutionModel(campaign.workflow, grid.sites, chance)  # says what is wrong before any search
    if brokering is None and (
        strategy is not None or (provisioning == "planned" and processors is None)
    ):
        strategy, campaign = choose_strategy(campaign, grid.sites, strategy)
    work: dict[int, float] | None = None
    if chance.hidden:
        if strategy is None:
            raise InputError(
                "only a strategy can do without runtimes, for a bag of tasks: "
                "name one with --strategy",
                where="hide-runtimes",
            )
        campaign, work = _with_hidden_runtimes(campaign)
    simulator = Simulator(
        campaign,
        grid,
        chance,
        method=method,
        scheduler=scheduler,
        strategy=strategy,
        out_of_reach=out_of_reach,
        brokering=brokering,
        copies=locate_replicas(brokering, campaign),
        dynamic=provisioning == "dynamic",
        recorded=RecordedConditions(work=work),
        progress=progress,
    )

    def carry_out() -> dict[str, Any]:
        plan: Plan | None = None
        proposal: dict[str, Any] = {}
        if brokering is not None:
            matched = look_for_matches(campaign, grid.sites, brokering, simulator.copies)
            proposal = matched.to_dict()
            if not matched.feasible and not anyway:
                raise GoalOutOfReach(matched)
        elif strategy is not None:
            prospects = prospect(campaign, grid.sites, strategy, simulated=True)
            proposal = prospects.to_dict()
            if not prospects.feasible and not anyway:
                raise GoalOutOfReach(prospects)
        elif provisioning == "dynamic":
            pass  # the pool decides as it goes
        elif provisioning == "queued":
            plan = _queued(simulator)
        elif provisioning != "best-effort":
            proposed = make_plan(
                campaign, grid.sites, processors=processors, method=method, scheduler=scheduler
            )
            proposal, plan = proposed.to_dict(), proposed.chosen
            if plan is None:
                if not anyway and provisioning == "planned":
                    raise GoalOutOfReach(proposed)
                plan = proposed.nearest()
            if provisioning == "either":
                plan = _best(campaign.goal, plan, simulator)
        return simulator.carry_out(plan, proposal, name=name, runs=Path(runs), argv=argv)

    return Simulation(run_outside_loop(carry_out))


def _with_hidden_runtimes(campaign: Campaign) -> tuple[Campaign, dict[int, float]]:
    """Return the campaign without runtimes, and the true seconds of each task at speed 1."""
    workflow = campaign.workflow
    work = {number: task.runtime or 0.0 for number, task in enumerate(workflow.tasks)}
    unknown = replace(workflow, tasks=tuple(replace(task, runtime=None) for task in workflow.tasks))
    return replace(campaign, workflow=unknown), work


def _as_simulated(site: SiteFacts) -> SiteFacts:
    """Return a real cluster as an idle simulated one with EASY backfilling."""
    if site.batch is None:
        return site
    return replace(site, kind="simulated", batch=None, background=BackgroundLoad(policy="easy"))


def _queued(simulator: Simulator) -> Plan:
    plan = simulator.queued()
    if plan is None:
        raise BursarError("not every task gets a start from the queues that they promise to keep")
    return plan


def _best(goal: Goal, plan: Plan, simulator: Simulator) -> Plan | None:
    """Return the most promising way: the plan, the queues' plan, or None for best effort."""
    # In this order, since min() keeps the first of equals: reservations are more certain than
    # queues.
    candidates: list[tuple[Plan | None, float | None, float | None]] = [
        (plan, plan.makespan, plan.cost)
    ]
    queued = simulator.queued()
    if queued is not None:
        candidates.append((queued, queued.makespan, queued.cost))
    candidates.append((None, *simulator.expected()))
    fastest = min((m for _, m, _ in candidates if m), default=1.0)
    cheapest = min((c for _, _, c in candidates if c), default=1.0)

    def value(candidate: tuple[Plan | None, float | None, float | None]) -> tuple[float, ...]:
        """Return a sort key as :mod:`bursar.planning.plan_choice` does; unknown is worst."""
        _, makespan, cost = candidate
        time = math.inf if makespan is None else makespan
        money = math.inf if cost is None else cost
        missed = (goal.deadline is not None and time > goal.deadline) + (
            goal.budget is not None and money > goal.budget
        )
        if goal.trade_off is not None:
            weight = goal.trade_off
            return (missed, weight * money / cheapest + (1 - weight) * time / fastest)
        return (missed, money, time) if goal.deadline is not None else (missed, time, money)

    return min(candidates, key=value)[0]
