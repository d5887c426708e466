"""A campaign as a run: made or resumed, carried out, written up."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from bursar.broker.forecast import Forecast
from bursar.broker.justintime import Supply
from bursar.model.campaign import Campaign
from bursar.model.errors import BursarError, InputError
from bursar.model.money import from_micros
from bursar.model.outcome import Outcome, Status
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.report.progress import Progress, ProgressSnapshot, SiteProgress
from bursar.runs.execution import TICK, Delay, Execution, Replan
from bursar.runs.folder import RunFolder, RunInfo, State
from bursar.runs.reading import read_run, summarise
from bursar.runs.writing import write_up
from bursar.sites.local import LocalSite
from bursar.sites.protocol import Site

REFRESH = 0.25
"""Seconds between two looks at the progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """
    Where a run is carried out: on real sites, or in a simulation.

    Parameters
    ----------
    sites
        By name.
    loop
        Makes the loop; None: the usual one.
    just_in_time, delay, replan, prefetch, look, durable
        See :class:`bursar.runs.execution.Execution`.
    refresh
        Seconds between two looks at the progress.
    """

    sites: Mapping[str, Site]
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    just_in_time: Supply | None = None
    delay: Delay | None = None
    replan: Replan | None = None
    prefetch: bool = True
    look: float = TICK
    durable: bool = True
    refresh: float = REFRESH


def carry_out(
    folder: RunFolder,
    campaign: Campaign,
    plan: Plan,
    *,
    surroundings: Surroundings | None = None,
    changed: bool = False,
    retry_failed: bool = False,
    written_up: bool = True,
    progress: bool = False,
) -> dict[str, Any]:
    """
    Runs what is left to run of a campaign, and writes results, bill and report.

    Parameters
    ----------
    folder
        The run's.
    campaign, plan
        As kept there.
    surroundings
        Where; None: on the sites that the run was planned over.
    changed
        The campaign's goal is not the one that is kept, and takes its place.
    retry_failed
        Whether what failed for good in an earlier life is tried again.
    written_up
        Whether results, bill and report are written.
    progress
        Whether to show it on stderr.

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
    if surroundings is None:
        surroundings = _real(info.sites, folder.name)
    with asyncio.Runner(loop_factory=surroundings.loop) as runner:
        runner.run(
            _carry_out(folder, campaign, plan, info, surroundings, changed, retry_failed, progress)
        )
    record = read_run(folder)
    if written_up:
        write_up(record)
    return summarise(record)


async def _carry_out(
    folder: RunFolder,
    campaign: Campaign,
    plan: Plan,
    info: RunInfo,
    surroundings: Surroundings,
    changed: bool,
    retry_failed: bool,
    progress: bool,
) -> None:
    workflow = campaign.workflow
    forecast = Forecast(workflow, plan)
    with Progress(enabled=progress) as shown:

        def took_in(outcome: Outcome, final: bool) -> None:
            forecast.learn(outcome, final)
            if final and outcome.status is not Status.SUCCEEDED:
                task = workflow.tasks[outcome.task]
                shown.say(f"{task.id} {outcome.status}: {outcome.reason}")

        execution = Execution(
            folder,
            workflow.tasks,
            workflow.parents,
            goal=campaign.goal,
            retry=campaign.retry,
            root=campaign.root,
            plan=plan,
            sites=surroundings.sites,
            just_in_time=surroundings.just_in_time,
            delay=surroundings.delay,
            replan=surroundings.replan,
            prefetch=surroundings.prefetch,
            look=surroundings.look,
            durable=surroundings.durable,
            retry_failed=retry_failed,
            on_outcome=took_in,
            on_event=shown.say,
        )
        owned = False
        state: State = "failed"
        try:
            async with execution:
                owned = True  # the journal is ours: nobody else carries the run out
                info.state, info.finished = "running", None
                folder.write_info(info)
                if changed:
                    folder.write_campaign(campaign)
                for outcome in execution.past:
                    forecast.learn(outcome, True)
                watching = _watch(execution, campaign, plan, forecast, shown, surroundings.refresh)
                await _finish(execution, watching)
                state = _state(execution)
            shown.update(_snapshot(execution, campaign, plan, forecast))
        except (KeyboardInterrupt, asyncio.CancelledError):
            state = "interrupted"
            raise
        finally:
            if owned:
                info.state, info.finished = state, time.time()
                folder.write_info(info)
    if execution.cause == "fault":
        raise BursarError(execution.reason)


async def _finish(execution: Execution, watch: Coroutine[Any, Any, None]) -> None:
    """Waits for the end, with signals heeded and progress shown."""
    forget = _heed_signals(execution)
    watching = asyncio.ensure_future(watch)
    try:
        await execution.finish()
    finally:
        watching.cancel()
        forget()


def _state(execution: Execution) -> State:
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
    return "finished" if done else "failed"


def _heed_signals(execution: Execution) -> Callable[[], None]:
    """First asks the tasks to stop and leaves a resumable run; the second kills."""
    loop = asyncio.get_running_loop()
    asked = 0

    def stop() -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            execution.stop("user", "stopping: running tasks are asked to end; once more kills them")
        else:
            execution.stop("user", "killing what runs", grace=0.0)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        for number in numbers:
            loop.add_signal_handler(number, stop)
    except (ValueError, RuntimeError):  # not the main thread: a notebook, a server
        return lambda: None

    def forget() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    return forget


async def _watch(
    execution: Execution,
    campaign: Campaign,
    plan: Plan,
    forecast: Forecast,
    shown: Progress,
    refresh: float,
) -> None:
    warned = False
    while True:
        shown.update(_snapshot(execution, campaign, plan, forecast))
        deadline = campaign.goal.deadline
        if deadline is not None and not warned and execution.elapsed > deadline:
            warned = True
            execution.say("the deadline has passed; the run goes on")
        await asyncio.sleep(refresh)


def _snapshot(
    execution: Execution, campaign: Campaign, plan: Plan, forecast: Forecast
) -> ProgressSnapshot:
    counts = execution.counts
    now = execution.dispatcher.now()
    busy, running = execution.dispatcher.busy(), execution.dispatcher.running()
    return ProgressSnapshot(
        campaign=campaign.name,
        elapsed=execution.elapsed,
        total=counts.total,
        succeeded=counts.succeeded,
        running=counts.running,
        waiting=counts.waiting,
        failed=counts.failed,
        skipped=counts.skipped,
        spent=from_micros(execution.guard.spent(now)),
        held=from_micros(execution.guard.held),
        budget=campaign.goal.budget,
        currency=plan.currency,
        predicted_finish=plan.makespan,
        current_finish=forecast.finish(execution.elapsed),
        deadline=campaign.goal.deadline,
        sites=tuple(
            SiteProgress(
                name=site,
                processors=processors,
                busy=busy.get(site, 0),
                running=running.get(site, 0),
            )
            for site, processors in execution.provision.processors().items()
        ),
    )


def _real(sites: list[SiteFacts], where: str) -> Surroundings:
    for site in sites:
        if site.kind != "local":
            raise InputError(
                f'site "{site.name}" is {site.kind}, which cannot run tasks', where=where
            )
    return Surroundings(sites={facts.name: LocalSite(facts) for facts in sites})
