"""A campaign in simulated time: the same broker, dispatcher and ledger, on simulated sites."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bursar.api.matching import locate_replicas
from bursar.api.paying import payer_of, within_account
from bursar.api.planning import plan, resolve_campaign
from bursar.api.queues import run_outside_loop
from bursar.api.quote import Quote
from bursar.api.quoting import quote_policy
from bursar.api.simulator import RecordedConditions, Simulator
from bursar.api.site_resolution import RUNS, Sites, resolve_sites
from bursar.broker.policy_choice import (
    PolicyRequest,
    ProvisioningMode,
    SupplyPolicy,
    choose_policy,
)
from bursar.broker.strategies import Named, OutOfReach
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import BursarError, InputError
from bursar.model.matching import Brokering
from bursar.model.plan import Plan
from bursar.model.site import BackgroundLoad, SiteFacts
from bursar.planning.policy import Method, Scheduler
from bursar.runs.recording.user_history import NOWHERE
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


def _checked(sites: Sequence[SiteFacts]) -> Sequence[SiteFacts]:
    """Return sites none of which needs what simulated time does not have."""
    for site in sites:
        if site.buying.auction is not None:
            raise InputError(
                "simulated time has no auctions: who else would bid, and how much, is not known",
                where=f"site.{site.name}.market",
                hint="simulate with --market posted, at the price up to which would be bid",
            )
        if site.buying.agreement:
            raise InputError(
                "an agreement with a real service holds on no simulated clock",
                where=f"site.{site.name}.agreement",
                hint="leave it out, and state its price as fixed_price",
            )
    return sites


def simulate(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    provisioning: ProvisioningMode | None = None,
    strategy: Named | None = None,
    out_of_reach: OutOfReach | None = None,
    broker: Brokering | None = None,
    catalogue: str | Path | None = None,
    processors: int | None = None,
    method: Method | None = None,
    scheduler: Scheduler | None = None,
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
        ``"planned"``: by reservations of what a plan buys. ``"dynamic"``: by a pool that acquires
        and releases processors as there is work for them (DRP). ``"best-effort"``: each task is
        sent to a queue when its parents have ended (HPDC'07 section 5). ``"queued"``: all are put
        into the queues at once, each to start after its parents (the competitor of its section 7).
        ``"either"``: whichever of the first and these two is expected to serve the goal best, by
        what can be known at the begin. None: as for :func:`bursar.run`.
    strategy
        See :func:`bursar.run`.
    out_of_reach
        With a strategy, once the goal goes out of reach; see :func:`bursar.run`.
    broker, catalogue
        See :func:`bursar.run`; what the catalogue says of copies is only read.
    processors, method, scheduler
        See :func:`bursar.run`.
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
    wanted = PolicyRequest(
        provisioning=provisioning,
        strategy=strategy,
        out_of_reach=out_of_reach,
        method=method,
        scheduler=scheduler,
        brokering=broker,
        catalogue=catalogue,
        processors=processors,
    )
    # Decided on the real sites, as for a run; from here on they are simulated.
    decision = choose_policy(campaign, _checked(resolve_sites(sites, campaign)), wanted)
    policy, campaign = decision.policy, decision.campaign
    payer = payer_of(campaign, None, None)
    if payer is not None:
        # Nobody is charged, but a run could not spend more than its account has left.
        campaign = within_account(campaign, decision.sites, payer)
    grid = SimulatedGrid(tuple(_as_simulated(site) for site in decision.sites))
    chance = chance or ExecutionUncertainty()
    ExecutionModel(campaign.workflow, grid.sites, chance)  # says what is wrong before any search
    search, placement = method or "auto", scheduler or "heft"
    work: dict[int, float] | None = None
    if chance.hidden:
        if policy.kind != "economy":
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
        method=search,
        scheduler=placement,
        copies=locate_replicas(policy.brokering, campaign),
        recorded=RecordedConditions(work=work),
        progress=progress,
    )

    def make_plan(wanted: Campaign, quick: bool) -> Quote:
        if policy.kind == "queued":
            return _quote_queues(simulator)
        how = "heft" if quick else search
        return plan(
            wanted,
            grid.sites,
            processors=processors,
            method=how,
            scheduler=placement,
            history=NOWHERE,
        )

    def carry_out() -> dict[str, Any]:
        quote = quote_policy(policy, campaign, grid.sites, make_plan, copies=simulator.copies)
        if not anyway and policy.kind != "either":  # the queues may meet what no plan does
            quote.check_goal()
        followed, kind = quote.plan_to_follow(), policy
        if policy.kind == "either":
            kind, followed = _best(campaign.goal, followed, simulator)
        told = quote.to_dict()
        return simulator.carry_out(kind, followed, told, name=name, runs=Path(runs), argv=argv)

    return Simulation(run_outside_loop(carry_out))


def _with_hidden_runtimes(campaign: Campaign) -> tuple[Campaign, dict[int, float]]:
    """Return the campaign without runtimes, and the true seconds of each task at speed 1."""
    workflow = campaign.workflow
    work = {number: task.runtime or 0.0 for number, task in enumerate(workflow.tasks)}
    unknown = replace(workflow, tasks=tuple(replace(task, runtime=None) for task in workflow.tasks))
    return replace(campaign, workflow=unknown), work


def _as_simulated(site: SiteFacts) -> SiteFacts:
    """
    Return a real cluster as an idle simulated one with EASY backfilling, a cloud as its machines.
    """
    if site.cloud is not None:
        from bursar.sites.cloud.machine_choice import machine_slots  # late: few sites are clouds

        slots = site.slots or machine_slots(site.name, site.cloud)
        return replace(site, kind="advertised", cloud=None, slots=slots)
    if site.batch is None:
        return site
    return replace(site, kind="simulated", batch=None, background=BackgroundLoad(policy="easy"))


def _quote_queues(simulator: Simulator) -> Quote:
    plan = simulator.queued()
    if plan is None:
        raise BursarError("not every task gets a start from the queues that they promise to keep")
    return Quote(
        campaign=simulator.campaign,
        currency=plan.currency,
        reason="each task starts when the queues promise now",
        makespan=plan.makespan,
        cost=plan.cost,
        chosen=plan,
    )


def _best(goal: Goal, plan: Plan, simulator: Simulator) -> tuple[SupplyPolicy, Plan]:
    """Return the most promising way of a plan, the queues' plan, and best effort."""
    # In this order, since min() keeps the first of equals: reservations are more certain than
    # queues.
    candidates = [(SupplyPolicy(kind="planned"), plan)]
    queued = simulator.queued()
    if queued is not None:
        candidates.append((SupplyPolicy(kind="queued"), queued))
    candidates.append((SupplyPolicy(kind="best-effort"), simulator.best_effort()))
    expected = [(plan.makespan, plan.cost) for _, plan in candidates]
    fastest = min((m for m, _ in expected if m), default=1.0)
    cheapest = min((c for _, c in expected if c), default=1.0)

    def value(candidate: tuple[SupplyPolicy, Plan]) -> tuple[float, ...]:
        """Return a sort key as :mod:`bursar.planning.plan_choice` does; unknown is worst."""
        makespan, cost = candidate[1].makespan, candidate[1].cost
        time = math.inf if makespan is None else makespan
        money = math.inf if cost is None else cost
        missed = (goal.deadline is not None and time > goal.deadline) + (
            goal.budget is not None and money > goal.budget
        )
        if goal.trade_off is not None:
            weight = goal.trade_off
            return (missed, weight * money / cheapest + (1 - weight) * time / fastest)
        return (missed, money, time) if goal.deadline is not None else (missed, time, money)

    return min(candidates, key=value)
