"""From a proposal to a run, and from a run that was stopped to its end."""

import asyncio
import ctypes
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bursar.api.brokering import choose_brokering, suitable
from bursar.api.copies import copies_now
from bursar.api.matched import Matched, look_for_matches
from bursar.api.planning import plan as make_plan
from bursar.api.planning import resolve_campaign
from bursar.api.proposal import Proposal
from bursar.api.prospect import Prospect, choose_strategy, prospect, unplanned
from bursar.api.result import RunResult
from bursar.api.sites import Sites, resolve_sites
from bursar.broker.strategies import Named, OutOfReach
from bursar.formats.units import parse_amount
from bursar.model.brokering import Brokering
from bursar.model.campaign import Campaign
from bursar.model.errors import Infeasible, InputError
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.runs.folder import RunFolder
from bursar.runs.haulage import check_storages
from bursar.runs.planned import read_plan, write_plan

T = TypeVar("T")

RUNS = Path("runs")
"""Folder that holds the runs, unless another is named."""


class GoalOutOfReach(Infeasible):
    """
    The goal cannot be met, and nothing was started.

    Attributes
    ----------
    proposal
        With the counter-offers.
    """

    def __init__(self, proposal: Proposal | Prospect | Matched) -> None:
        super().__init__(proposal.reason)
        self.proposal = proposal


def run(
    campaign: Campaign | str | Path,
    sites: Sites = None,
    *,
    processors: int | None = None,
    strategy: Named | None = None,
    out_of_reach: OutOfReach = "fit",
    broker: Brokering | None = None,
    catalogue: str | Path | None = None,
    anyway: bool = False,
    name: str | None = None,
    runs: str | Path = RUNS,
    progress: bool = False,
    argv: Sequence[str] = (),
) -> RunResult:
    """
    Plans a campaign, leases the processors, runs it and writes it up.

    Parameters
    ----------
    campaign
        A campaign, or the path of a file that holds one.
    sites
        A sites file or the sites; None: this machine.
    processors
        Lease exactly so many; None: as the goal picks.
    strategy
        Brings the jobs of a bag to the sites one by one, by deadline and budget, see
        :mod:`bursar.broker.strategies`; a workflow is planned by the trade-off it stands
        for. None: a plan; or ``"adaptive"`` for a bag with a deadline or a budget on
        several sites.
    out_of_reach
        With a strategy, once the goal goes out of reach: do as many jobs as ``"fit"``, or
        ``"refuse"`` to start any more.
    broker
        Match each job to a site by its requirements and rank, and how; None: only where
        tasks ask for what the broker alone can give, see :mod:`bursar.api.brokering`.
    catalogue
        File of the replica catalogue, for tasks that read or register logical files.
    anyway
        Start even if the goal cannot be met; the budget still holds.
    name
        Of the run; None: made of the campaign's name and the time.
    runs
        Folder that holds the runs.
    progress
        Whether to show it on stderr.
    argv
        The command line, for the record.

    Raises
    ------
    InputError
        When a file is wrong, or the name is taken.
    GoalOutOfReach
        When no plan meets the goal; a :class:`bursar.Infeasible`.
    BursarError
        When the run could not go on; it can be resumed.
    """
    campaign = resolve_campaign(campaign)
    facts = resolve_sites(sites)
    if campaign.recorded:
        raise InputError(
            "is a recorded workflow: its tasks have no programs",
            where=str(campaign.source or campaign.name),
            hint="--replay SCALE runs stand-ins that take the recorded times",
        )
    _check_sites(facts)
    brokering = choose_brokering(
        campaign, facts, broker, catalogue=catalogue, strategy=strategy, processors=processors
    )
    if brokering is None:
        facts = suitable(campaign, facts)
        if processors is None:
            strategy, campaign = choose_strategy(campaign, facts, strategy)
        elif strategy is not None:
            raise InputError("a strategy leases processors as it goes", where="processors")
    proposal: Proposal | Prospect | Matched
    if brokering is not None:
        if any(task.data or task.registers for task in campaign.workflow.tasks):
            check_storages(facts)
        proposal = look_for_matches(campaign, facts, brokering, copies_now(brokering, campaign))
        chosen = unplanned(facts, f"broker, {brokering.choice}")
        if not proposal.feasible and not anyway:
            raise GoalOutOfReach(proposal)
    elif strategy is not None:
        proposal = prospect(campaign, facts, strategy)
        chosen = unplanned(facts, strategy, proposal.makespan, proposal.cost)
        if not proposal.feasible and not anyway:
            raise GoalOutOfReach(proposal)
    else:
        proposal = make_plan(campaign, facts, processors=processors)
        if proposal.chosen is None and not anyway:
            raise GoalOutOfReach(proposal)
        chosen = proposal.chosen or proposal.nearest()
    created = RunFolder.create(
        Path(runs),
        campaign,
        facts,
        argv=list(argv),
        name=name,
        strategy=strategy,
        out_of_reach=out_of_reach,
        brokering=brokering,
    )
    with created as folder:
        write_plan(folder, proposal.to_dict(), chosen)
        _make_initial_files(folder, campaign)
    return _carry_out(folder, campaign, chosen, progress=progress)


def resume(
    name: str | Path,
    *,
    runs: str | Path = RUNS,
    budget: str | float | tuple[float, str | None] | None = None,
    retry_failed: bool = False,
    progress: bool = False,
) -> RunResult:
    """
    Goes on with a run that was stopped or killed, or that its budget stopped.

    Parameters
    ----------
    name
        Of the run, or its folder.
    runs
        Folder that holds the runs.
    budget
        Takes the place of the run's budget: ``"40 SU"``, a number, or amount and
        currency; None: as it was.
    retry_failed
        Whether what failed for good is tried again.
    progress
        Whether to show it on stderr.

    Raises
    ------
    InputError
        When there is no such run, another process carries it out, or the budget
        is none.
    BursarError
        When it could not go on.
    """
    folder = RunFolder.open(Path(runs), str(name))
    campaign = folder.read_campaign()
    _, plan = read_plan(folder)
    if budget is not None:
        amount, currency = budget if isinstance(budget, tuple) else parse_amount(budget)
        if currency not in (None, plan.currency):
            raise InputError(f"the run counts in {plan.currency}, got {currency}", where="budget")
        campaign = replace(campaign, goal=replace(campaign.goal, budget=amount))
    return _carry_out(
        folder,
        campaign,
        plan,
        changed=budget is not None,
        retry_failed=retry_failed,
        progress=progress,
    )


def _carry_out(folder: RunFolder, campaign: Campaign, plan: Plan, **how: Any) -> RunResult:
    from bursar.api.replanning import replanner
    from bursar.runs.running import carry_out

    facts = tuple(folder.read_info().sites)
    replan = replanner(campaign, lambda: facts)
    summary = outside_loops(lambda: carry_out(folder, campaign, plan, replan=replan, **how))
    return RunResult(folder, summary, summary["exit_status"])


def outside_loops(work: Callable[[], T]) -> T:
    """What ``work``, which runs a loop of its own, returns; in a notebook, for one, too."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    return _in_thread(work)  # a thread has one loop at a time


def _in_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns, done in a thread of its own; an interrupt is passed on to it."""
    done: Future[T] = Future()

    def do() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=do, name="bursar-run")
    thread.start()
    try:
        return done.result()
    except KeyboardInterrupt:
        # Tasks must not go on spending behind an interrupted cell.
        if thread.is_alive() and not done.done():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
            )
        raise
    finally:
        thread.join()


_NOT_THERE = {
    "advertised": "known by the slots it advertises only",
    "simulated": "simulated",
}


def _check_sites(sites: Sequence[SiteFacts]) -> None:
    for site in sites:
        if site.kind != "local":
            raise InputError(
                f'site "{site.name}" is {_NOT_THERE[site.kind]}: it can be planned on, not run on',
                where=f"site.{site.name}.kind",
                hint="see what would happen with bursar simulate",
            )


def _make_initial_files(folder: RunFolder, campaign: Campaign) -> None:
    """What a replay reads and nobody makes: files of the recorded sizes, without content."""
    if campaign.recording is None:
        return
    from bursar.formats.replay import make_initial_files

    make_initial_files(campaign, folder.files)
