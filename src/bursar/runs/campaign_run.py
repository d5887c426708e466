"""A campaign as a run: made or resumed, carried out, written up."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from bursar.broker.policy_choice import SupplyPolicy
from bursar.broker.trading import CampaignTrader
from bursar.dispatch.folders import remove_unfinished
from bursar.dispatch.journal import read_journal
from bursar.dispatch.journal_records import AttemptRecord
from bursar.engine.run_tasks import RetriedFailures
from bursar.formats.projects_toml import project_weight
from bursar.market.account_records import paid_to
from bursar.market.ledger import Ledger
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError
from bursar.model.matching import Brokering
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.model.task import Status
from bursar.report.progress import RunProgress
from bursar.runs.amendments import (
    AMENDED,
    Amendment,
    AmendmentReply,
    receive_amendments,
)
from bursar.runs.data_mover import StagedDataMover
from bursar.runs.detached_runs import RunViews, answered
from bursar.runs.environment import (
    AddedSites,
    LifespanFactory,
    RecordListener,
    RunEnvironment,
    RunWork,
    make_site,
)
from bursar.runs.execution import RunExecution
from bursar.runs.folder import RunFolder, RunManifest, RunState, record_budget
from bursar.runs.forecasting.forecast_truths import STOPPED, complete_truths
from bursar.runs.forecasting.run_forecast import RunForecast
from bursar.runs.forecasting.straggler_watch import straggler_watch
from bursar.runs.notices import RunNotices, read_targets
from bursar.runs.payments import RunPayments
from bursar.runs.recording.history_recorder import HistoryRecorder, run_recorder
from bursar.runs.recording.user_history import history_to_write
from bursar.runs.reuse_store import ReuseRecorder
from bursar.runs.run_market import prepare_lots
from bursar.runs.run_record import read_run, summarise
from bursar.runs.run_reports import write_reports
from bursar.runs.run_watchers import (
    ProbeSupply,
    ReplanMonitor,
    RunSignals,
    add_site,
    end_by_signals,
    show_progress,
    snapshot_of,
)
from bursar.runs.supply import PlannedSupply, Replan, ScheduledSupply
from bursar.runs.surviving_workers import WorkerContactFile, outlives
from bursar.runs.task_needs import secrets_withheld
from bursar.sites.owners import OwnersBook
from bursar.sites.owners_database import is_named, owners_file, user_name
from bursar.sites.protocol import LastingSite, OpenableSite, Site
from bursar.supervisor import TaskSupervisor

if TYPE_CHECKING:
    from bursar.broker.economy import EconomyScheduler
    from bursar.provisioning.pool import PilotPool

CHECK_INTERVAL = 1.0
"""Seconds between checks whether the goal will be met, at least."""


def execute_campaign(
    folder: RunFolder,
    campaign: Campaign,
    plan: Plan,
    *,
    environment: RunEnvironment | None = None,
    replan: Replan | None = None,
    changed: bool = False,
    retry_failed: RetriedFailures = False,
    written_up: bool = True,
    progress: bool = False,
    anyway: bool = False,
    only: Collection[int] = (),
    listener: RecordListener | None = None,
) -> dict[str, Any]:
    """
    Run the remaining tasks of a campaign, and write results, bill and report.

    Parameters
    ----------
    environment
        Environment of the run; None: the sites that the run was planned over.
    replan
        Plans the remaining tasks again when the goal would be missed; None: no replanning.
    changed
        Whether the campaign's goal differs from the one kept in the folder, and replaces it.
    retry_failed
        Tasks that failed for good in an earlier incarnation and are tried again.
    written_up
        Whether results, bill and report are written.
    progress
        Whether the run's progress is shown on stderr.
    anyway
        Whether to begin though the account that pays has less than the plan costs.
    only
        Numbers of the tasks after which the run ends; empty: all.
    listener
        Hears of each attempt, and may end the run; None: nobody does.

    Returns
    -------
    dict
        The run's key figures.

    Raises
    ------
    BursarError
        When the run could not go on; what had happened is kept.
    """
    info = folder.read_info()
    notices = RunNotices(folder.name, read_targets(folder.path) if environment is None else [])
    with ExitStack() as paying:
        payments = None
        if info.payer is not None and environment is None:  # a simulation costs nothing
            if changed:
                info.payer = msgspec.structs.replace(info.payer, budget=campaign.goal.budget)
            needed = (plan.cost or 0.0) if info.state == "new" and not anyway else 0.0
            # Around the whole run: the account is settled after the journal is closed, when nothing
            # more can be paid.
            payments = paying.enter_context(RunPayments(folder, info.payer, needed=needed))
            changed = changed or campaign.goal.budget != payments.budget
            # What the account allows is the budget that the guard watches.
            campaign = replace(campaign, goal=replace(campaign.goal, budget=payments.budget))
        if environment is None:
            values = paying.enter_context(secrets_withheld(campaign.workflow.tasks, info.sites))
            environment = _real(info, campaign, plan, folder, replan)
            if only:
                environment = replace(
                    environment, supply=ProbeSupply(plan, only), is_forecast=False
                )
            judged = listener is not None and listener.may_stop
            environment = replace(
                environment,
                secrets=values,
                prefetch=environment.prefetch and not judged,
                hears_first=judged,
            )
        with asyncio.Runner(loop_factory=environment.loop) as runner:
            try:
                recorder = runner.run(
                    _carry_out(
                        folder,
                        campaign,
                        plan,
                        info,
                        environment,
                        changed,
                        retry_failed,
                        progress,
                        payments,
                        notices,
                        listener,
                    )
                )
            except asyncio.CancelledError:  # by a signal, before anything ran
                raise KeyboardInterrupt from None
        record = read_run(folder)
        recorder.complete(record)
        complete_truths(environment.history, record)
        if written_up:
            write_reports(record)
    summary = summarise(record)
    for failure in notices.ended(summary):
        print(failure, file=sys.stderr)
    return summary


async def _carry_out(
    folder: RunFolder,
    campaign: Campaign,
    plan: Plan,
    info: RunManifest,
    environment: RunEnvironment,
    changed: bool,
    retry_failed: RetriedFailures,
    progress: bool,
    payments: RunPayments | None,
    notices: RunNotices,
    listener: RecordListener | None,
) -> HistoryRecorder:
    """Carry out one incarnation of a run; return what recorded the attempts in a history."""
    workflow = campaign.workflow
    end_by_signals()
    views = RunViews(folder)
    with RunProgress(enabled=progress) as shown:

        def tell(message: str) -> None:
            shown.notify(message)
            views.notify(message)

        if payments is not None:
            tell(payments.message)

        results = ReuseRecorder(folder, campaign, tell)
        observed = run_recorder(environment.history, folder, info, campaign, tell)
        forecast = RunForecast(folder, info, campaign, plan, environment, tell)

        def took_in(record: AttemptRecord) -> None:
            outcome = record.outcome
            results.take_in(record)
            observed.take_in(record)
            forecast.take_in(record)
            if stragglers is not None:
                stragglers.learn(record)
            if record.final and outcome.status is not Status.SUCCEEDED:
                task = workflow.tasks[outcome.task]
                text = f"{task.id} {outcome.status}: {outcome.reason}"
                tell(text)
                notices.trouble("failure", text)
            if listener is not None and (order := listener.heard(folder, record)) is not None:
                if order.at_once:
                    execution.stop("user", order.reason, grace=0.0)
                elif execution.cause is None:
                    execution.drain("user", order.reason)

        execution = RunExecution(
            folder,
            RunWork.of(campaign),
            environment,
            currency=plan.currency,
            retry_failed=retry_failed,
            on_outcome=took_in,
            on_event=tell,
        )
        stragglers = straggler_watch(execution, campaign, environment, forecast, plan.currency)
        signals = RunSignals(execution, tell)
        owned = False
        state: RunState = "failed"
        try:
            # Queues and storages outlive the execution, whose end still asks sites what leases came
            # to.
            async with environment.lifespan(), execution:
                owned = True  # the journal is ours: no other process carries the run out
                # Only with the journal's lock: another process could be writing those files now.
                remove_unfinished(folder.path)
                info.state, info.finished = "running", None
                folder.write_info(info)
                if changed:
                    # Not before: a run that another process carries out must keep its goal.
                    folder.write_campaign(campaign)
                observed.begin(execution.dispatcher.now(), execution.past)
                forecast.take_in_past(execution.past)
                showing = show_progress(
                    execution, campaign, plan, forecast, shown, environment.refresh, notices
                )
                watches = {
                    "the progress display": showing,
                    "the results": results.batches.watch(),
                    "the history": observed.batches.watch(),
                    "the forecast": forecast.watch(execution, notices),
                }
                supply = environment.supply
                if isinstance(supply, PlannedSupply) and supply.can_rebuy:
                    # A forecast of a long run changes slowly, and each check may make a plan.
                    every = max(CHECK_INTERVAL, (plan.makespan or 0.0) / 100)
                    monitor = ReplanMonitor(execution, supply, forecast, every)
                    watches["the watch for a better plan"] = monitor.watch()
                if stragglers is not None:
                    watches["the watch for tasks that take long"] = stragglers.watch()
                if environment.amendable:
                    amend = partial(_amend, execution, folder, campaign, info, payments)
                    add = partial(add_site, execution, environment, folder, info)
                    watches["the watch for a changed goal"] = receive_amendments(folder, amend, add)
                    watches["the view for other processes"] = views.serve(
                        lambda: snapshot_of(execution, campaign, plan, forecast),
                        partial(answered, execution.dispatcher),
                    )
                if payments is not None:
                    ledger = execution.guard.ledger
                    follow = payments.follow(lambda: ledger.spent, execution.notify)
                    watches["the charging of the account"] = follow
                signals.install()
                try:
                    await _finish(execution, watches)
                finally:
                    signals.tasks_ended()
                if execution.cause is not None:
                    execution.note(STOPPED, execution.cause)
                await results.batches.flush()
                await observed.batches.flush()
                state = _state(execution)
            if state == "finished" and execution.unsettled:
                # The tasks are done, but what they cost is not known: a resumption asks the sites
                # again.
                state = "unsettled"
            shown.update(snapshot_of(execution, campaign, plan, forecast))
        except (KeyboardInterrupt, asyncio.CancelledError):
            state = "interrupted"
            raise
        finally:
            signals.remove()
            if owned:
                info.state, info.finished = state, time.time()
                folder.write_info(info)
    if execution.cause == "fault":
        raise BursarError(execution.reason)
    return observed


def _amend(
    execution: RunExecution,
    folder: RunFolder,
    campaign: Campaign,
    info: RunManifest,
    payments: RunPayments | None,
    amendment: Amendment,
) -> None:
    """Change the goal of a run, in the book first, and journal the answer."""
    goal = amendment.of(execution.goal)
    refused = None
    if payments is not None and goal.budget is not None:
        # The book first: a run must not spend what its account has not set aside.
        refused = payments.amend(goal.budget)
    if refused is None:
        was = execution.goal.budget
        refused = execution.amend(goal, lambda: folder.write_campaign(replace(campaign, goal=goal)))
        if refused is None and goal.budget != was:
            record_budget(folder, info, goal.budget)
    now = execution.goal
    answer = AmendmentReply(
        id=amendment.id,
        deadline=now.deadline,
        budget=now.budget,
        refused="" if refused is None else refused.reason,
        expected_finish=amendment.expected_finish,
        expected_cost=amendment.expected_cost,
    )
    execution.note(AMENDED, msgspec.json.encode(answer).decode())


async def _finish(
    execution: RunExecution, watches: Mapping[str, Coroutine[Any, Any, None]]
) -> None:
    """
    Wait for the end, with watches beside the run.

    A watch that fails does not end the run, which may have gone on for days; its owner is told.
    """

    def tell(what: str, error: BaseException) -> None:
        execution.notify(f"{what} has failed, the run goes on: {type(error).__name__}: {error}")

    async with TaskSupervisor() as watching:
        for what, watch in watches.items():
            watching.start(watch, what, on_failure=partial(tell, what))
        await execution.finish()


def _state(execution: RunExecution) -> RunState:
    counts = execution.counts
    done = counts.succeeded == counts.total
    match execution.cause:
        case "user":
            return "interrupted"
        case "fault":
            return "failed"
        case "budget" if not done:
            return "budget-stopped"
        case "goal" if not done:
            return "goal-stopped"
        case "probe" if not done:
            return "probed"
    return "finished" if done else "failed"


def _real(
    info: RunManifest, campaign: Campaign, plan: Plan, folder: RunFolder, replan: Replan | None
) -> RunEnvironment:
    """Return the environment of a run on real sites, by the policy of the run."""
    owners = open_owners_book(info, folder)
    # A strategy and the broker buy processors job by job: each job waits for its own.
    by_task = info.policy.kind not in ("economy", "matched")
    sites = {facts.name: make_site(facts, folder, owners, by_task) for facts in info.sites}
    late = AddedSites(sites, lambda facts: make_site(facts, folder, owners, by_task))
    prepare_lots(sites, info.policy.kind, campaign.goal.deadline)
    queues = [site for site in sites.values() if isinstance(site, OpenableSite)]
    match info.policy:
        case SupplyPolicy(kind="matched", brokering=Brokering() as settings):
            made = _matched(folder, campaign, sites, settings)
        case SupplyPolicy(kind="pool"):
            from bursar.provisioning.pool import PilotPool
            from bursar.runs.pool_controller import PoolController, read_waits

            pool = PilotPool(read_waits(folder.path.parent))
            made = RunEnvironment(
                sites=sites, supply=PoolController(pool), lifespan=_remembered(pool, folder)
            )
        case SupplyPolicy(kind="economy") as policy:
            trading = CampaignTrader(info.sites, owners=owners)
            economy = economy_of(policy, info.sites, campaign, trading)
            made = RunEnvironment(sites=sites, supply=ScheduledSupply(economy))
        case _:
            made = RunEnvironment(sites=sites, supply=PlannedSupply(plan, replan))
    if info.policy.kind != "economy" and any(facts.buying.negotiates for facts in info.sites):
        made = replace(made, trading=CampaignTrader(info.sites, owners=owners))
    # What a simulation tells is no history, and nobody waits for its end.
    made = replace(made, history=history_to_write(info.history), is_forecast=True)
    made = replace(made, lifespan=_ending(sites, folder, made.lifespan))
    if seconds := outlives():
        made = replace(made, contact=WorkerContactFile(folder.worker_contact, seconds))
    if owners is not None:
        made = replace(made, lifespan=_sharing(owners, info, folder, made.lifespan))
    if queues:
        made = replace(made, lifespan=_all_open(queues, made.lifespan))
    return replace(made, lifespan=late.around(made.lifespan), added=late)


def open_owners_book(info: RunManifest, folder: RunFolder) -> OwnersBook | None:
    """Open the owners' book for a run; None where nothing is shared."""
    path = owners_file()
    if path is None:
        return None
    # One file for all runs of this machine: with owners of its own, each run took all processors,
    # and demand never saw a second buyer.
    owners = OwnersBook(
        path,
        run=folder.name,
        identity=f"{folder.identity} {info.created!r}",
        customer=user_name() if info.payer is None else info.payer.account,
        insist=info.oversubscribe,
        project=(info.project, project_weight(info.project)),
    )
    # Where the user's own folder cannot be written, runs go on as if each were alone.
    return owners if is_named() or owners.is_usable else None


def _sharing(
    owners: OwnersBook, info: RunManifest, folder: RunFolder, lifespan: LifespanFactory
) -> LifespanFactory:
    """Return a lifespan that releases a run's claims at the end and reports payments to owners."""

    def note_paid() -> None:
        priced = [site for site in info.sites if site.pricing is not None]
        if priced:
            ledger = Ledger(read_journal(folder.journal_file).transfers)
            owners.note_paid([(site, ledger.balance(paid_to(site.name))) for site in priced])

    @asynccontextmanager
    async def shared() -> AsyncIterator[None]:
        note_paid()  # what an earlier incarnation was killed too early to note
        try:
            async with lifespan():
                yield
            # Only after the journal: a run that could not write it asks the book again.
            owners.forget_leases()
        finally:
            try:
                note_paid()
            finally:
                owners.close()

    return shared


def _ending(
    sites: Mapping[str, Site], folder: RunFolder, lifespan: LifespanFactory
) -> LifespanFactory:
    """Return a lifespan after which no worker goes on, also when signals cut the end short."""

    @asynccontextmanager
    async def ended() -> AsyncIterator[None]:
        try:
            async with lifespan():
                yield
        finally:
            for site in sites.values():
                if isinstance(site, LastingSite):
                    site.kill_workers()
            with suppress(OSError):  # no worker has complained, as a rule
                if not folder.worker_log.stat().st_size:
                    folder.worker_log.unlink()

    return ended


def _remembered(pool: "PilotPool", folder: RunFolder) -> LifespanFactory:
    """Return a lifespan that keeps the pool's queue wait history for the next run."""

    @asynccontextmanager
    async def learning() -> AsyncIterator[None]:
        from bursar.runs.pool_controller import write_waits

        try:
            yield
        finally:
            write_waits(folder.path.parent, pool.waits)

    return learning


def _all_open(queues: Sequence[OpenableSite], lifespan: LifespanFactory) -> LifespanFactory:
    """Return a lifespan in which the queues of sites are watched from first to last."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for site in queues:
                await stack.enter_async_context(site.opened())
            await stack.enter_async_context(lifespan())
            yield

    return opened


def _matched(
    folder: RunFolder, campaign: Campaign, sites: Mapping[str, Site], settings: Brokering
) -> RunEnvironment:
    """Return an environment in which the resource broker brings jobs to sites."""
    # Late: planned runs need neither the broker nor its language.
    from bursar.runs.brokerage import RunBroker

    tasks = campaign.workflow.tasks
    staging = None
    if settings.catalogue is not None and any(task.data or task.registers for task in tasks):
        facts = [site.facts for site in sites.values()]
        staging = StagedDataMover(tasks, facts, settings.catalogue, folder.name, folder.files)
    try:
        brokerage = RunBroker(
            campaign,
            sites,
            settings,
            clock=time.monotonic,
            copies=None if staging is None else staging.copies,
            staging=staging,
        )
    except BaseException:
        if staging is not None:
            staging.close()
        raise

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if staging is not None:
                await stack.enter_async_context(staging.open())
            await stack.enter_async_context(brokerage.running())
            yield

    return RunEnvironment(
        sites=sites,
        supply=ScheduledSupply(brokerage.scheduler),
        data=None if staging is None else staging.paths,
        lifespan=lifespan,
    )


def economy_of(
    policy: SupplyPolicy,
    sites: Sequence[SiteFacts],
    campaign: Campaign,
    trading: CampaignTrader | None = None,
) -> "EconomyScheduler":
    """Make the scheduler of a strategy, which buys by ``trading`` where that is given."""
    from bursar.broker.economy import EconomyScheduler  # late: planned runs follow no strategy

    assert policy.strategy is not None
    return EconomyScheduler(
        campaign.workflow.tasks,
        sites,
        campaign.goal,
        policy.strategy,
        trading=trading,
        out_of_reach=policy.out_of_reach,
        retry=campaign.retry,
        spare=policy.spare,
    )
