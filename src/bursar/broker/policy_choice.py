"""
The one decision which policy brings processors to a campaign's tasks.

Running, simulating, replaying and tuning all ask :func:`choose_policy`, so that one question has
one answer and one refusal, whichever command asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bursar.broker.strategies import Named, OutOfReach
from bursar.model.campaign import Campaign, Goal
from bursar.model.errors import InputError
from bursar.model.matching import Brokering
from bursar.model.site import SiteFacts
from bursar.model.task import Task

ProvisioningMode = Literal["planned", "dynamic", "best-effort", "queued", "either"]
"""Ways to get processors that a caller may state: ``planned`` by a plan's reservations; ``dynamic``
by a pool that acquires and releases processors with the load; ``best-effort`` task by task from
the sites' queues; ``queued`` from the queues, all at once; ``either`` by whichever of ``planned``,
``best-effort`` and ``queued`` is expected to serve the goal best."""

PolicyKind = Literal["planned", "economy", "matched", "pool", "best-effort", "queued", "either"]
"""What brings processors to tasks: a plan, a strategy by deadline and budget, matchmaking, a pool,
best effort, a plan made of the queues' promises, or the best of plan, queues and best effort."""

WEIGHTS: dict[Named, float | None] = {
    "time": 0.0,
    "conservative-time": 0.0,
    "cost": 1.0,
    "cost-time": 1.0,
    "none": None,
    "adaptive": None,
}
"""The trade-off that a strategy stands for, where a workflow is planned instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SupplyPolicy:
    """
    Policy by which processors come to a campaign's tasks.

    Parameters
    ----------
    strategy
        Strategy of an economy; None otherwise.
    out_of_reach
        What an economy does once not all jobs can be done in time and within the budget.
    brokering
        Settings of the broker where jobs are matched; None otherwise.
    spare
        Share of the time left that an economy keeps for jobs that take longer than estimated.
    """

    kind: PolicyKind = "planned"
    strategy: Named | None = None
    out_of_reach: OutOfReach = "fit"
    brokering: Brokering | None = None
    spare: float = 0.0

    def __str__(self) -> str:
        match self.kind:
            case "economy":
                return str(self.strategy)
            case "matched":
                assert self.brokering is not None
                return f"broker, {self.brokering.choice}"
            case "pool":
                return "dynamic"
        return self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRequest:
    """
    A caller's statements about the policy; what is None or unset is left to the decision.

    Parameters
    ----------
    strategy
        Strategy that brings the jobs of a bag to sites, or sets the trade-off of a workflow.
    out_of_reach
        What a strategy does once the goal is out of reach; None: ``"fit"``.
    method, scheduler
        Methods that choose what a plan buys, and place its tasks; None: not stated.
    catalogue
        File of the replica catalogue, for tasks with logical files.
    processors
        Exact number of processors to lease by a plan.
    seed
        Seed of the broker's random choices, of a broker without other settings; None: not stated.
    """

    provisioning: ProvisioningMode | None = None
    strategy: Named | None = None
    out_of_reach: OutOfReach | None = None
    method: str | None = None
    scheduler: str | None = None
    brokering: Brokering | None = None
    catalogue: str | Path | None = None
    processors: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDecision:
    """
    The policy of a campaign, with what the policy works on.

    Parameters
    ----------
    campaign
        Campaign with the goal to serve: a strategy may set a workflow's trade-off.
    """

    policy: SupplyPolicy
    campaign: Campaign
    sites: tuple[SiteFacts, ...]


def choose_policy(
    campaign: Campaign, sites: Sequence[SiteFacts], wanted: PolicyRequest
) -> PolicyDecision:
    """
    Decide which policy brings processors to a campaign's tasks.

    In this order: the broker, where the caller or the tasks ask for what only matching gives; a
    stated strategy; a stated way to get processors; a pool where processors come from queues; the
    adaptive strategy for a bag with limits on several sites; else a plan. What a caller states
    and the decision cannot honour is an error, never ignored.

    Raises
    ------
    InputError
        When what is stated contradicts itself or the campaign; when no site meets what all tasks
        require; when logical files are read and there is no catalogue or storage for them.
    """
    sites = tuple(sites)
    brokered = _reason_to_match(campaign, wanted)
    if brokered:
        _refuse_needs(campaign, brokered)
        _refuse_beside_broker(brokered, wanted)
        _refuse_clouds(sites, "sites", f"{brokered}: the broker asks for processors job by job")
        policy = SupplyPolicy(kind="matched", brokering=_brokering(campaign, sites, wanted))
        _refuse_unused(policy.kind, wanted)
        return PolicyDecision(policy=policy, campaign=campaign, sites=sites)
    sites = suitable_sites(campaign, sites)
    if wanted.strategy is not None and campaign.workflow.is_bag:
        _refuse_clouds(sites, "strategy", "a strategy buys processors one by one")
    if wanted.seed is not None:
        raise InputError(
            "only the broker draws at random, and no job of this campaign is matched by it",
            where="seed",
            hint="leave it out, or name a rule of choice with --choice",
        )
    policy, goal = _without_broker(campaign, sites, wanted)
    if policy.kind not in ("planned", "pool"):
        _refuse_needs(campaign, f'"{policy.kind}" sends each task when its inputs are there')
    _refuse_unused(policy.kind, wanted)
    return PolicyDecision(policy=policy, campaign=replace(campaign, goal=goal), sites=sites)


def _refuse_needs(campaign: Campaign, reason: str) -> None:
    """Refuse tasks that run without some of their inputs where tasks are sent one by one."""
    for task in campaign.workflow.tasks:
        if task.needs is not None:
            raise InputError(
                f"{reason}, and this task would do without some of them",
                where=f"tasks.{task.id}.needs",
                hint="use a plan or a pool: --provisioning planned or dynamic",
            )


def _refuse_clouds(sites: Sequence[SiteFacts], where: str, reason: str) -> None:
    """Refuse clouds where each job would buy a machine of its own."""
    for site in sites:
        if site.cloud is not None:
            raise InputError(
                f'{reason}, and "{site.name}" sells whole machines',
                where=where,
                hint="use a plan or a pool there: --provisioning planned or dynamic",
            )


def _without_broker(
    campaign: Campaign, sites: Sequence[SiteFacts], wanted: PolicyRequest
) -> tuple[SupplyPolicy, Goal]:
    goal, is_bag = campaign.goal, campaign.workflow.is_bag
    stated, strategy = wanted.provisioning, wanted.strategy
    if strategy is not None and is_bag:
        for what, given in (("provisioning", stated), ("processors", wanted.processors)):
            if given is not None:
                raise InputError("a strategy leases processors as it goes", where=what)
        return _economy(strategy, wanted), goal
    if strategy is not None:
        # A workflow's strategy is a plan by the trade-off that the strategy stands for.
        if stated not in (None, "planned", "either"):
            raise InputError("a strategy plans a workflow beforehand", where="provisioning")
        weight = WEIGHTS[strategy]
        if weight is not None and goal.trade_off is None:
            goal = replace(goal, trade_off=weight)
        return SupplyPolicy(kind=_PROVISIONED[stated or "planned"]), goal
    if stated is not None:
        if wanted.processors is not None and stated in _LEASES_AS_IT_GOES:
            raise InputError(
                f"{_LEASES_AS_IT_GOES[stated]} leases processors as it goes", where="provisioning"
            )
        return SupplyPolicy(kind=_PROVISIONED[stated]), goal
    if wanted.processors is None:
        # When queues give processors nobody knows, so that a plan's reservations cannot be kept;
        # a pool takes what it gets.
        if any(site.batch is not None or site.remote is not None for site in sites):
            return SupplyPolicy(kind="pool"), goal
        limited = goal.deadline is not None or goal.budget is not None
        # A strategy buys job by job, which neither a shared queue nor advertised slots allow.
        # Nor a cloud, which sells whole machines.
        open_ended = all(
            not site.is_shared and site.kind not in ("advertised", "cloud") for site in sites
        )
        if is_bag and limited and open_ended and len(sites) > 1:
            return _economy("adaptive", wanted), goal
    return SupplyPolicy(kind="planned"), goal


def _economy(strategy: Named, wanted: PolicyRequest) -> SupplyPolicy:
    rule = wanted.out_of_reach or "fit"
    return SupplyPolicy(kind="economy", strategy=strategy, out_of_reach=rule)


_PROVISIONED: dict[ProvisioningMode, PolicyKind] = {
    "planned": "planned",
    "dynamic": "pool",
    "best-effort": "best-effort",
    "queued": "queued",
    "either": "either",
}

_LEASES_AS_IT_GOES: dict[ProvisioningMode, str] = {
    "dynamic": "a pool",
    "best-effort": "best effort",
    "queued": "a queue",
}
"""Ways to get processors that leave no number of processors to be stated, in words."""


_IN_WORDS: dict[PolicyKind, str] = {
    "planned": "a plan",
    "economy": "a strategy",
    "matched": "the broker",
    "pool": "a pool",
    "best-effort": "best effort",
    "queued": "a queue",
    "either": "a plan or a queue",
}

_PLANS: tuple[PolicyKind, ...] = ("planned", "queued", "either")
"""Policies with a plan: where the goal is in danger, the rest of a queue's is searched anew."""


def _refuse_unused(kind: PolicyKind, wanted: PolicyRequest) -> None:
    """Refuse what the caller states about another policy than the one that was decided on."""
    chosen = _IN_WORDS[kind]
    if kind not in _PLANS:
        purposes = (
            ("method", wanted.method, "chooses what a plan buys"),
            ("scheduler", wanted.scheduler, "places the tasks of a plan"),
        )
        for what, given, purpose in purposes:
            if given is not None:
                raise InputError(
                    f"{purpose}, and {chosen} follows none", where=what, hint="leave it out"
                )
    if kind != "economy" and wanted.out_of_reach is not None:
        raise InputError(
            f"says what a strategy does, and {chosen} brings the processors",
            where="out-of-reach",
            hint="leave it out, or name a strategy for a bag of tasks",
        )


def suitable_sites(campaign: Campaign, sites: Sequence[SiteFacts]) -> tuple[SiteFacts, ...]:
    """
    Return the sites that meet the requirements of all tasks.

    Requirements that cannot be checked before the begin do not exclude a site.

    Raises
    ------
    InputError
        When no site meets them.
    """
    tasks = campaign.workflow.tasks
    if not tasks[0].matching.requirements or not _is_one_kind(tasks):
        return tuple(sites)
    from bursar.broker.matchmaking.ads import may_satisfy

    found = tuple(site for site in sites if may_satisfy(site, tasks[0].matching))
    if not found:
        raise InputError(
            f"no site meets {tasks[0].matching.requirements}",
            where="requirements",
            hint="bursar match says what each lacks",
        )
    return found


def _reason_to_match(campaign: Campaign, wanted: PolicyRequest) -> str:
    """Return why jobs are matched to sites one by one; empty: they are not."""
    if wanted.brokering is not None:
        return "--choice and its like"
    tasks = campaign.workflow.tasks
    needed = next((what for task in tasks if (what := _asks(task))), "")
    if needed or not any(task.matching.requirements for task in tasks):
        return needed
    if not _is_one_kind(tasks):
        return "requirements"
    # Requirements that all tasks share leave a set of sites, on which plans and strategies serve
    # a goal, and whatever the caller states, better than job-by-job matching.
    stated = (wanted.provisioning, wanted.strategy, wanted.processors)
    goal = campaign.goal
    limits = (goal.deadline, goal.budget, goal.trade_off)
    return "requirements" if all(one is None for one in (*stated, *limits)) else ""


def _refuse_beside_broker(reason: str, wanted: PolicyRequest) -> None:
    if wanted.provisioning is not None:
        raise InputError(f"{reason}: the broker sends these jobs", where="provisioning")
    if wanted.strategy is not None:
        raise InputError(f"{reason}: the broker sends these jobs, not a strategy", where="strategy")
    if wanted.processors is not None:
        raise InputError("the broker leases processors as it goes", where="processors")


def _brokering(campaign: Campaign, sites: Sequence[SiteFacts], wanted: PolicyRequest) -> Brokering:
    """Return the broker's settings, once logical files have a catalogue and a storage."""
    asked, catalogue = wanted.brokering or Brokering(seed=wanted.seed or 0), wanted.catalogue
    tasks = campaign.workflow.tasks
    reader = next((task for task in tasks if task.data or task.registers), None)
    if reader is not None:
        if catalogue is None:
            raise InputError(
                f'task "{reader.id}" has logical files, and there is no replica catalogue',
                where="catalogue",
                hint="name one with --catalogue FILE; bursar replicas add makes it",
            )
        if not any(site.storage for site in sites):
            raise InputError(
                f'task "{reader.id}" has logical files, and no site has a storage',
                where="sites",
                hint="give sites a storage in the sites file",
            )
        for task in tasks:
            _check_names(task)
    return replace(asked, catalogue=None if catalogue is None else str(Path(catalogue).resolve()))


def _asks(task: Task) -> str:
    """Name what a task asks for that only the broker gives; empty for nothing."""
    matching = task.matching
    if task.data or task.registers:
        return "logical files"
    for name in ("rank", "site", "alpha", "beta", "choice"):
        if getattr(matching, name) is not None:
            return f"a {name}"
    return ""


def _check_names(task: Task) -> None:
    """Refuse a logical file whose name is also that of an input or output."""
    others = {file.name for file in (*task.inputs, *task.outputs)}
    for name in task.data:
        if name in others:
            raise InputError(
                f'"{name}" is a logical file, and an input or output of the task as well',
                where=f"tasks.{task.id}.data",
            )


def _is_one_kind(tasks: Sequence[Task]) -> bool:
    first = tasks[0].matching
    return all(task.matching == first for task in tasks)
