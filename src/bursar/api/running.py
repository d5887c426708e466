"""Running of campaigns, resuming of runs that were stopped, and their result."""

import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bursar.api.known_campaign import ForeseenCampaign, foresee
from bursar.api.paying import payer_of, within_account
from bursar.api.planning import plan, resolve_campaign, with_goal
from bursar.api.queues import run_outside_loop
from bursar.api.quote import Quote
from bursar.api.quoting import quote_on_real_sites
from bursar.api.reusing import (
    Changed,
    ReusingCampaign,
    changes_since,
    check_unchanged,
    finish_reused,
    present_campaign,
    reusing,
)
from bursar.api.run_result import RunResult
from bursar.api.site_resolution import (
    RUNS,
    Sites,
    check_runnable,
    free_now,
    notes_on_sharing,
    resolve_sites,
    with_learned,
)
from bursar.broker.policy_choice import PolicyRequest, ProvisioningMode, choose_policy
from bursar.broker.strategies import Named, OutOfReach
from bursar.dispatch.journal import is_written
from bursar.engine.run_tasks import RetriedFailures
from bursar.formats.job_files.snakefile import is_snakefile
from bursar.formats.projects_toml import project_weight
from bursar.formats.units import parse_amount
from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.matching import Brokering
from bursar.model.plan import Plan
from bursar.model.task import Status
from bursar.planning.policy import Method, Scheduler
from bursar.report.progress import RunProgress
from bursar.runs.data_mover import check_storages
from bursar.runs.detached_runs import start_detached, stop_run
from bursar.runs.environment import RecordListener
from bursar.runs.folder import RunFolder, find_task
from bursar.runs.notices import check_target, keep_targets
from bursar.runs.plan_file import read_plan, write_plan
from bursar.runs.recording.user_history import NOWHERE, stated_history
from bursar.runs.run_record import read_run, summarise
from bursar.runs.task_needs import check_needs, memory_note

# Running of campaigns, and resuming of runs that were stopped.


def run(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    deadline: str | float | None = None,
    budget: str | float | None = None,
    trade_off: float | None = None,
    processors: int | None = None,
    provisioning: ProvisioningMode | None = None,
    strategy: Named | None = None,
    out_of_reach: OutOfReach | None = None,
    broker: Brokering | None = None,
    catalogue: str | Path | None = None,
    seed: int | None = None,
    method: Method | None = None,
    scheduler: Scheduler | None = None,
    account: str | None = None,
    book: str | Path | None = None,
    oversubscribe: bool = False,
    project: str | None = None,
    anyway: bool = False,
    name: str | None = None,
    runs: str | Path = RUNS,
    probe: int | None = None,
    progress: bool = False,
    argv: Sequence[str] = (),
    detach: bool = False,
    notify: Sequence[str] = (),
    fresh: bool = False,
    reuse_from: str | None = None,
    explain: bool = False,
    history: str | Path | None = None,
    listener: RecordListener | None = None,
) -> RunResult:
    """
    Plan a campaign, lease processors, run the tasks and write results, bill and report.

    Parameters
    ----------
    campaign
        A campaign, or the path of a file that holds one.
    sites
        A sites file or the sites; None: this machine.
    deadline, budget, trade_off
        Take the place of the campaign's own, in the words of the command: ``"33m"`` or seconds,
        ``"40 SU"`` or a number, and 0 (fastest) to 1 (cheapest). None: as the campaign says.
    processors
        Number of processors that the plan leases; None: as the goal picks.
    provisioning
        ``"planned"``: what a plan buys is reserved. ``"dynamic"``: a pool acquires and releases
        processors as there is work for them (DRP), by the rules of the sites file. None: as
        :func:`bursar.broker.policy_choice.choose_policy` decides. The other ways depend on what
        queues will do, and can only be simulated.
    strategy
        Brings the jobs of a bag to the sites one by one, by deadline and budget, see
        :mod:`bursar.broker.strategies`; a workflow is planned by the trade-off it stands
        for. None: a plan; or ``"adaptive"`` for a bag with a deadline or a budget on
        several sites.
    out_of_reach
        With a strategy, once the goal goes out of reach: do as many jobs as ``"fit"``, or
        ``"refuse"`` to start any more. None: ``"fit"``.
    broker
        Match each job to a site by its requirements and rank, and how; None: only where
        tasks ask for what the broker alone can give, see :mod:`bursar.broker.policy_choice`.
    catalogue
        File of the replica catalogue, for tasks that read or register logical files.
    seed
        Seed of the choices of a broker whose settings are not stated (``broker``), refused where
        no job is matched; None: not stated.
    method, scheduler
        Methods that search for and place what a plan buys; see :func:`bursar.plan`. None:
        ``"auto"`` and ``"heft"``. Refused where no plan is followed.
    account
        User of a book who pays (see ``bursar ledger``). What the run may come to, the lesser
        of its budget and what allocation and quota leave, is set aside there before work
        starts; leases are charged as they end, and the rest is given back. None: as the
        campaign says, else nobody is charged.
    book
        File of that book; None: as the campaign says, else ``bursar.book``.
    oversubscribe
        Use all processors of local sites, also those that other runs use, instead of sharing
        them or waiting until they are free.
    project
        Project by whose weight the run shares this machine; None: that of the campaign, if any.
    anyway
        Start even if the goal cannot be met, or a program is not found; the budget still holds.
    name
        Name of the run; None: made of the campaign's name and the time.
    runs
        Folder that holds the runs.
    probe
        Number of tasks of each kind that are run on the local site before the plan is made,
        where tasks state no runtime; the mean of what they took is the runtime of that kind.
        A planned run on local sites keeps their results. None: nothing is measured.
    progress
        Whether to show it on stderr.
    argv
        The command line, for the record.
    detach
        Whether another process carries the run out, which goes on without this one and its
        terminal; the result then says how the run stands at its begin.
    notify
        Where notices of the run's end, of the first failed task and of a deadline that passes are
        sent to: ``"desktop"``, ``"mailto:ADDRESS"``, or the URL of a web hook.
    fresh
        Whether all tasks run, also those that have a result in an earlier run.
    reuse_from
        Run whose results are reused where command, inputs, code, environment and outputs are as
        they were: its name or the begin of it, or ``"last"``. None: the latest run of the same
        campaign file; none for a campaign that was made in Python.
    explain
        Whether to say on stderr why each task runs.
    history
        File of the history of ended tasks: run times and odds are learned from it, and this run's
        tasks are added; ``"none"``: neither; None: as the
        variable ``BURSAR_HISTORY`` says, else the user's.

    listener
        Hears of each attempt once it is durable, in the loop of the run, which it may end; None:
        nobody does.

    Raises
    ------
    InputError
        When a file is wrong, or the name is taken.
    GoalOutOfReach
        When no plan meets the goal; a :class:`bursar.Infeasible`.
    BudgetStop
        When the account that pays has too little left.
    BursarError
        When the run could not go on; it can be resumed.
    """
    targets = [check_target(target) for target in notify]
    campaign = with_goal(
        resolve_campaign(campaign), deadline=deadline, budget=budget, trade_off=trade_off
    )
    facts = resolve_sites(sites, campaign)
    project_weight(project := project or campaign.project or "")  # finds a faulty file at once
    payer = payer_of(campaign, account, book)
    if campaign.recorded and campaign.source is not None and is_snakefile(campaign.source):
        raise InputError(
            "is a workflow of Snakemake, which is planned here, and run by Snakemake itself",
            where=str(campaign.source),
            hint="snakemake --executor bursar, of the package snakemake-executor-plugin-bursar",
        )
    if campaign.recorded:
        raise InputError(
            "is a recorded workflow: its tasks have no programs",
            where=str(campaign.source or campaign.name),
            hint="--replay SCALE runs stand-ins that take the recorded times",
        )
    check_runnable(facts)
    wanted = PolicyRequest(
        provisioning=provisioning,
        strategy=strategy,
        out_of_reach=out_of_reach,
        method=method,
        scheduler=scheduler,
        brokering=broker,
        catalogue=catalogue,
        processors=processors,
        seed=seed,
    )
    decision = choose_policy(campaign, facts, wanted)
    policy, campaign = decision.policy, decision.campaign
    facts = with_learned(decision.sites, Path(runs))
    if policy.kind in _FORECAST_ONLY:
        raise InputError(
            f'"{policy.kind}" depends on what queues will do, which only a simulation knows',
            where="provisioning",
            hint="see what would happen with bursar simulate",
        )
    if any(task.data or task.registers for task in campaign.workflow.tasks):
        check_storages(facts)
    check_needs(
        campaign,
        facts,
        anywhere=policy.kind in ("economy", "matched"),
        programs=not anyway,
        tell=partial(print, file=sys.stderr) if progress else None,
    )

    # What the account holds bounds the cost; only a stated budget is there for a plan to spend.
    allowed = campaign if payer is None else within_account(campaign, facts, payer)
    create = partial(
        RunFolder.create,
        Path(runs),
        sites=facts,
        argv=list(argv),
        name=name,
        policy=policy,
        payer=payer,
        oversubscribe=oversubscribe,
        project=project,
        history=stated_history(history),
    )
    # What a probe measures is nearer than what earlier runs have.
    known_from: ForeseenCampaign | str = NOWHERE
    if probe is None:
        # In the run's own campaign, too: what waits longest goes first, and the rest of a run is
        # planned by these times.
        known_from = foresee(campaign, facts, history)
        campaign = known_from.campaign
        allowed = replace(allowed, workflow=campaign.workflow)
    ahead = reusing(campaign, Path(runs), fresh=fresh, reuse_from=reuse_from)
    if progress or explain:
        for line in ahead.notes(explain):
            print(line, file=sys.stderr)

    measured = None
    if probe is not None and not ahead.is_done:
        from bursar.api.probing import probe_for_run  # late: few runs measure

        make = partial(_begun, create, allowed, ahead, targets)
        measured = probe_for_run(ahead, facts, probe, policy, make, processors, progress)
        allowed = replace(allowed, workflow=measured.campaign.workflow)
        ahead = replace(ahead, whole=measured.campaign, ended=measured.ended)

    def make_plan(wanted: Campaign, quick: bool) -> Quote:
        if quick:
            # HEFT is enough to say what to expect; the pool decides by itself.
            expected = plan(wanted, facts, method="heft", history=known_from, runs=runs)
            if expected.feasible:
                return expected
            return plan(wanted, facts, history=known_from, runs=runs)
        # Planned for what is free, the run begins at once; else it would wait until other runs
        # have ended.
        free = facts if processors or oversubscribe else free_now(wanted, facts)
        return plan(
            wanted,
            free,
            processors=processors,
            method=method or "auto",
            scheduler=scheduler or "heft",
            history=known_from,
            runs=runs,
            is_pool=False,
        )

    def quoted(wanted: Campaign) -> Quote:
        customer = None if payer is None else payer.account
        learned = None if isinstance(known_from, str) else known_from.of_part(wanted)
        return quote_on_real_sites(policy, wanted, facts, make_plan, customer, learned, Path(runs))

    if ahead.is_done:
        quote = ahead.nothing_left(policy, facts[0].currency)
    else:
        rest = ahead.rest()
        limited = replace(rest, goal=allowed.goal)
        if measured is not None:
            rest = replace(rest, goal=measured.goal_left(rest.goal))
            limited = replace(rest, goal=measured.goal_left(limited.goal))
        follows_plan = policy.kind in ("planned", "pool")
        quote = quoted(rest if follows_plan else limited)
        if _is_dearer(quote, limited.goal.budget):
            quote = quoted(limited)
        create = partial(create, policy=quote.policy)  # a strategy may keep some time in reserve
    chosen = ahead.plan_of_whole(quote.plan_to_follow())
    if measured is not None:
        quote, chosen = measured.of_whole(quote), measured.plan_of_run(chosen)
        # Before the goal is checked: what the probe made and cost stays, and can be resumed.
        measured.extend_run(allowed, quote, chosen)
    if measured is not None and measured.folder is not None and not quote.feasible and not anyway:
        name = measured.folder.name
        print(
            f"the measured tasks are kept as run {name}, and the next run reuses them; bursar run "
            f"--resume {name} runs the rest all the same, bursar clean {name} deletes them",
            file=sys.stderr,
        )
    if not anyway:
        # Before a folder is made: nothing of a run that was never begun stays behind.
        quote.check_goal()
    if progress and not ahead.is_done:
        notes = () if oversubscribe else notes_on_sharing(facts)
        found = () if measured is None else measured.summary.words()
        memory = memory_note(campaign.workflow.tasks, facts)
        for line in (*found, quote.note, *quote.purchase_lines(), *notes, memory):
            if line:
                print(line, file=sys.stderr)
    if measured is not None and measured.folder is not None:
        folder, is_done = measured.folder, False
    else:
        with _begun(create, allowed, ahead, targets) as folder:
            write_plan(folder, quote.to_dict(), chosen)
        is_done = ahead.is_done
    del ahead  # holds all that the tasks of the earlier run had printed
    if is_done:
        summary = finish_reused(folder)
        return RunResult(folder, summary, summary["exit_status"])
    if detach:
        words = ["run", "--resume", str(folder.path), *["--anyway"] * anyway]
        return _detached(folder, words, progress)
    return _carry_out(folder, allowed, chosen, progress=progress, anyway=anyway, listener=listener)


@contextmanager
def _begun(
    create: Callable[..., AbstractContextManager[RunFolder]],
    campaign: Campaign,
    ahead: ReusingCampaign,
    targets: Sequence[str],
) -> Iterator[RunFolder]:
    """Make the folder of a run with the results that it reuses, as a context for the plan."""
    # Within the context: a run folder without its plan cannot be resumed, and must not stay behind.
    with create(campaign=campaign, reused=ahead.origin) as folder:
        if targets:
            keep_targets(folder.path, targets)
        _make_initial_files(folder, campaign)
        ahead.take_over(folder)
        yield folder


_FORECAST_ONLY = ("best-effort", "queued", "either")
"""Policies that depend on a forecast of queues, and so can be simulated only."""


def resume(
    name: str | Path,
    *,
    runs: str | Path = RUNS,
    budget: str | float | tuple[float, str | None] | None = None,
    retry_failed: bool | Collection[str] = False,
    anyway: bool = False,
    progress: bool = False,
    detach: bool = False,
    changed: Changed | None = None,
) -> RunResult:
    """
    Resume a run that was stopped or killed, or that ran out of budget.

    Parameters
    ----------
    name
        Name of the run, or path of the folder.
    runs
        Folder that holds the runs.
    budget
        Takes the place of the run's budget: ``"40 SU"``, a number, or amount and
        currency; None: as it was.
    retry_failed
        Whether tasks that failed for good are tried again; or which of them, by id, by its begin,
        or by number.
    anyway
        Begin a run that was never begun though the account that pays has less than the plan costs.
    progress
        Whether to show it on stderr.
    detach
        See :func:`run`.
    changed
        Which campaign is meant where its file, inputs or code have changed since the run began:
        ``"as-it-was"``: the one that the run began with. ``"as-it-is"``: the present one, as a new
        run, which reuses what has not changed. None: a change is refused.

    Raises
    ------
    InputError
        When there is no such run, another process carries it out, it was cancelled for good, or the
        budget is none; when the campaign has changed and ``changed`` is None.
    BursarError
        When it could not go on.
    """
    folder = RunFolder.open(Path(runs), str(name))
    if folder.read_info().state == "cancelled":
        raise InputError(f"run {folder.name} was cancelled for good, and cannot be resumed")
    campaign = folder.read_campaign()
    retried = _retried(folder, campaign, retry_failed)
    _, plan = read_plan(folder)
    if budget is not None:
        amount, currency = budget if isinstance(budget, tuple) else parse_amount(budget)
        if currency not in (None, plan.currency):
            raise InputError(f"the run counts in {plan.currency}, got {currency}", where="budget")
        campaign = replace(campaign, goal=replace(campaign.goal, budget=amount))
    notes: list[str] = []
    # A run that only waits for what sites charge has nothing left that could be meant otherwise.
    if folder.read_info().state != "unsettled" and not is_written(folder.journal_file):
        changes = changes_since(folder, campaign)
        notes = check_unchanged(folder, changes, changed)
        if changes and changed == "as-it-is":
            limit = None if budget is None else amount
            return _as_it_is(folder, campaign, limit, anyway, progress, detach)
    if progress:
        for line in notes:
            print(line, file=sys.stderr)
    if detach:
        options = [] if budget is None else ["--budget", f"{amount!r} {plan.currency}"]
        options += ["--anyway"] * anyway + [f"--{changed}"] * (changed is not None)
        if isinstance(retried, bool):
            options += ["--retry-failed"] * retried
            return _detached(folder, ["run", "--resume", str(folder.path), *options], progress)
        if options:
            raise InputError(f"{options[0]} goes with all failed tasks only", where="detach")
        ids = [campaign.workflow.tasks[number].id for number in retried]
        return _detached(folder, ["retry", str(folder.path), "--", *ids], progress)
    return _carry_out(
        folder,
        campaign,
        plan,
        changed=budget is not None,
        retry_failed=retried,
        anyway=anyway,
        progress=progress,
    )


def _retried(
    folder: RunFolder, campaign: Campaign, asked: bool | Collection[str]
) -> RetriedFailures:
    """Return the numbers of the failed tasks that are named, all or none of them."""
    if isinstance(asked, bool):
        return asked
    tasks = campaign.workflow.tasks
    ids = [task.id for task in tasks]
    ends = read_run(folder).final
    numbers = {find_task(ids, name, f"run {folder.name}") for name in asked}
    for number in sorted(numbers):
        end = ends.get(number)
        if end is None or end.outcome.status is Status.SUCCEEDED:
            state = "has not failed" if end is None else "has succeeded"
            raise InputError(
                f'task "{ids[number]}" {state}',
                hint=f"bursar tasks {folder.name} --failed lists those that failed",
            )
    return frozenset(numbers)


def _as_it_is(
    folder: RunFolder,
    was: Campaign,
    budget: float | None,
    anyway: bool,
    progress: bool,
    detach: bool,
) -> RunResult:
    """Begin a run of the present campaign in place of one that was stopped, on the same terms."""
    now = present_campaign(folder, was)
    if budget is not None:
        now = replace(now, goal=replace(now.goal, budget=budget))
    with suppress(InputError):  # no worker of a killed process is left, as a rule
        stop_run(folder)
    info = folder.read_info()
    policy, payer = info.policy, info.payer
    modes: Mapping[str, ProvisioningMode] = {"pool": "dynamic", "planned": "planned"}
    return run(
        now,
        tuple(info.sites),
        provisioning=modes.get(policy.kind),
        strategy=policy.strategy,
        out_of_reach=None if policy.strategy is None else policy.out_of_reach,
        broker=policy.brokering,
        account=None if payer is None else payer.account,
        book=None if payer is None else payer.book,
        oversubscribe=info.oversubscribe,
        anyway=anyway,
        runs=folder.path.parent,
        progress=progress,
        argv=info.argv,
        detach=detach,
        reuse_from=str(folder.path),
        history=info.history or None,
    )


def _detached(folder: RunFolder, words: Sequence[str], progress: bool) -> RunResult:
    """Have another process carry a run out; return how the run stands at its begin."""
    before = time.time()
    told: set[str] = set()
    with RunProgress(enabled=progress) as shown:

        def tell(message: str) -> None:
            if message not in told:
                told.add(message)
                shown.notify(message)

        status = start_detached(folder, words, tell)
        record = read_run(folder)
        if status is not None:
            # What was said after the last look at the run, all of which is in its journal by now.
            for event in record.journal.events:
                if event.kind == "message" and event.time >= before:
                    tell(event.text)
    summary = summarise(record)
    if status is None:
        summary |= {"exit_status": 0}
    return RunResult(folder, summary, summary["exit_status"])


def _carry_out(folder: RunFolder, campaign: Campaign, plan: Plan, **how: Any) -> RunResult:
    from bursar.api.planning import replanner
    from bursar.runs.campaign_run import execute_campaign

    proposal, _ = read_plan(folder)
    # What is left is searched and placed as the whole was, also when the run is resumed.
    method, scheduler = proposal.get("method", "auto"), proposal.get("scheduler", "heft")
    # The sites as they were when the run was made (a sites file may have changed since), and those
    # that were added while it went on.
    replan = replanner(
        campaign, lambda: tuple(folder.read_info().sites), method=method, scheduler=scheduler
    )
    summary = run_outside_loop(
        lambda: execute_campaign(folder, campaign, plan, replan=replan, **how)
    )
    return RunResult(folder, summary, summary["exit_status"])


def _is_dearer(quote: Quote, budget: float | None) -> bool:
    """Whether the goal was refused, or the expected cost is unknown or above the budget."""
    if budget is None or quote.campaign.goal.budget == budget:
        return False
    return not quote.feasible or quote.cost is None or quote.cost > budget


def _make_initial_files(folder: RunFolder, campaign: Campaign) -> None:
    """
    Make the files that a replay reads and no task makes: sparse, of the recorded sizes.

    Does nothing for a campaign that is not a recorded one.
    """
    if campaign.recording is None:
        return
    from bursar.formats.recorded_tasks import make_initial_files

    make_initial_files(campaign, folder.files)
