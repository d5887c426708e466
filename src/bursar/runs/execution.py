"""A run being carried out: the journal, the money, the dispatcher and the sites together."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from bursar.dispatch.journal import Event, Journal, JournalState
from bursar.dispatch.launch import Endpoint
from bursar.dispatch.orphans import kill_leftovers
from bursar.dispatch.queue import Counts
from bursar.dispatch.server import Dispatcher, Folders
from bursar.market.guard import BudgetGuard, budget_of
from bursar.market.lease import Lease
from bursar.market.threshold import Drain, Effect, Stop
from bursar.model.campaign import Retry
from bursar.model.errors import BudgetStop, SiteError
from bursar.model.goal import Goal
from bursar.model.outcome import Outcome, Status
from bursar.model.plan import Plan
from bursar.model.task import Task
from bursar.runs.folder import RunFolder
from bursar.sites.protocol import Site

TICK = 0.2
"""Seconds between looks at the money."""

BEAT = 5.0
"""Seconds between signs of life in the journal: what a killed run may be paid too little for."""

Cause = Literal["user", "budget", "fault"]
"""Who ended a run before its tasks were done."""


class Execution:
    """
    Carries out tasks on leased processors, from the first worker to the last transfer.

    Use it as an asynchronous context: entering opens the journal, starts the
    dispatcher and leases the processors of the plan; leaving gives them back
    and settles what is owed, whatever happened in between.

    Parameters
    ----------
    folder
        The run's. What an earlier life left in its journal counts as done.
    tasks, parents
        What to run; more may be submitted later.
    goal, retry, root
        As in the campaign.
    plan
        What to lease, and in which order and where tasks run.
    sites
        By name, one for each in the plan's purchases.
    rigid
        Whether some task may hold several processors.
    on_outcome
        Told of each outcome once it is durable, and whether it is final.
    on_start
        Told of tasks that were handed to a worker.
    on_event
        Told, in one line for people, of what is worth saying.

    Attributes
    ----------
    past
        Outcomes of earlier lives that stand.
    cause, reason
        Who ended it before its tasks were done, and why; None while nobody has.

    Raises
    ------
    InputError
        When another process carries the run out.
    BudgetStop
        When the budget does not even pay the begin of the leases.
    SiteError
        When a site fails.
    """

    def __init__(
        self,
        folder: RunFolder,
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None,
        *,
        goal: Goal,
        retry: Retry,
        root: Path,
        plan: Plan,
        sites: dict[str, Site],
        rigid: bool | None = None,
        retry_failed: bool = False,
        on_outcome: Callable[[Outcome, bool], None] | None = None,
        on_start: Callable[[Sequence[int]], None] | None = None,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self._folder = folder
        self._tasks = list(tasks)
        self._parents = parents
        self._goal = goal
        self._retry = retry
        self._root = root
        self._plan = plan
        self._sites = sites
        self._rigid = any(t.processors > 1 for t in tasks) if rigid is None else rigid
        self._retry_failed = retry_failed
        self._on_outcome = on_outcome
        self._on_start = on_start
        self._on_event = on_event
        self._acquired: list[Site] = []
        self._last_beat = 0.0
        self.past: list[Outcome] = []
        self._first = 0.0
        self._stopping: asyncio.Task[None] | None = None
        self.cause: Cause | None = None
        self.reason = ""

    async def __aenter__(self) -> "Execution":
        self._journal = Journal(self._folder.journal_file)
        try:
            journal = self._journal.load()
            self.past = [
                outcome
                for outcome in journal.outcomes
                if outcome.status is Status.SUCCEEDED or not self._retry_failed
            ]
            await self._begin(journal)
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    # While it runs.

    async def finish(self) -> None:
        """
        Returns when every task is at its end, or the run was stopped.

        Raises
        ------
        BursarError
            When the journal cannot be written.
        """
        waiting = asyncio.ensure_future(self.dispatcher.wait())
        try:
            while not waiting.done():
                await asyncio.wait({waiting}, timeout=TICK)
                self.tick()
            await waiting
            if self._stopping is not None:
                await self._stopping
        finally:
            waiting.cancel()
        if self.cause is None and self.counts.refused:
            self.cause, self.reason = "budget", self.dispatcher.refusal

    def tick(self) -> None:
        """Looks at the money and at the workers; to be called a few times a second."""
        now = self.dispatcher.now()
        for effect in self.guard.tick(now):
            self._apply(effect)
        transfers = self.guard.transfers()
        if transfers:
            self.dispatcher.post(transfers)
        if now - self._last_beat >= BEAT:
            self._last_beat = now
            self.dispatcher.beat()
        if self.cause is None and self._acquired and not any(s.workers for s in self._acquired):
            self.stop("fault", "no worker is left", grace=0.0)

    def stop(self, cause: Cause, reason: str, *, grace: float = 5.0) -> None:
        """Starts nothing more, and stops what runs; a second call with less grace hurries it."""
        if self.cause is None:
            self.cause, self.reason = cause, reason
            self.say(reason)
        stopping = asyncio.ensure_future(self.dispatcher.stop(reason, grace=grace))
        if self._stopping is None:
            self._stopping = stopping

    def submit(self, task: Task) -> int:
        """Adds a task without parents; its number."""
        self._tasks.append(replace(task, steps=()))  # for its limits; a call may be large
        return self.dispatcher.submit(task)

    def say(self, message: str) -> None:
        """Journals a message, and tells it."""
        self.dispatcher.note("message", message)
        if self._on_event is not None:
            self._on_event(message)

    @property
    def elapsed(self) -> float:
        """Seconds since the first lease of any life of the run."""
        return max(0.0, self.dispatcher.now() - self._first)

    @property
    def counts(self) -> Counts:
        """Tasks by where they stand."""
        return self.dispatcher.counts

    # Begin and end.

    async def _begin(self, past: JournalState) -> None:
        goal = self._goal
        if past.events:
            await asyncio.to_thread(kill_leftovers, self._journal.identity)
        self.guard = BudgetGuard(
            budget_of(goal.budget),
            limit_of=lambda task: self._tasks[task].wall_limit,
            on_budget=dict(goal.on_budget),
            currency=self._plan.currency,
            rows=past.transfers,
        )
        folder = self._folder
        self.dispatcher = Dispatcher(
            self._tasks,
            self._parents,
            journal=self._journal,
            guard=self.guard,
            retry=self._retry,
            folders=Folders(
                root=self._root, files=folder.files, work=folder.work, logs=folder.logs
            ),
            run=self._journal.identity,
            order=_order(self._plan, len(self._tasks)),
            placed=_placed(self._plan, len(self._tasks)),
            past=past.attempts,
            retry_failed=self._retry_failed,
            on_outcome=self._on_outcome,
            on_start=self._on_start,
            on_event=self._on_event,
        )
        await self.dispatcher.start()
        now = self.dispatcher.now()
        self.guard.begin(now)
        leases = leases_of(past.events)
        self._first = min((lease.start for lease in leases.values()), default=now)
        for lease in leases.values():
            if lease.end is None:
                ended = self.guard.close_lost(lease, min(past.last_seen, now))
                self._note_lease(ended)
        self.dispatcher.post(self.guard.transfers())
        if not self._tasks or not self.dispatcher.is_done:
            await self._lease_processors(len(leases))

    async def _lease_processors(self, before: int) -> None:
        endpoint = Endpoint(
            address=self.dispatcher.address,
            token=self.dispatcher.token,
            run=self._journal.identity,
        )
        for number, purchase in enumerate(self._plan.purchases, before + 1):
            slot = purchase.slot
            lease = Lease(
                id=f"lease-{number}",
                site=slot.site,
                processors=slot.processors,
                unit_price=slot.unit_price,
                fixed_price=slot.fixed_price,
                currency=self._plan.currency,
                start=self.dispatcher.now(),
            )
            refusal = self.guard.open(lease)
            if refusal is not None:
                raise BudgetStop(f"{slot.site}: {refusal.reason}")
            self._note_lease(lease)
            site = self._sites[slot.site]
            self._acquired.append(site)
            await site.acquire(slot.processors, endpoint, rigid=self._rigid, on_event=self.say)

    def _note_lease(self, lease: Lease) -> None:
        text = msgspec.json.encode(lease).decode()
        self.dispatcher.note("lease", text, self.guard.transfers())

    async def _end(self) -> None:
        """Gives everything back; every step is tried, whatever became of the others."""
        try:
            if hasattr(self, "dispatcher"):
                await self.dispatcher.close()
            released = await asyncio.gather(
                *(site.release() for site in self._acquired), return_exceptions=True
            )
            for problem in released:
                if isinstance(problem, SiteError) and self._on_event is not None:
                    self._on_event(str(problem))
            if hasattr(self, "dispatcher"):
                self._close_leases(self.dispatcher.now())
        finally:
            self._journal.close()

    def _close_leases(self, now: float) -> None:
        for site in list(self.guard.leased):
            lease = self.guard.close(site, now)
            text = msgspec.json.encode(lease).decode()
            self._journal.commit((), self.guard.transfers(), [Event(now, "lease", text)])

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Stop(reason):
                if self.cause != "budget":
                    self.stop("budget", reason, grace=0.0)
            case Drain(reason):
                self.cause, self.reason = self.cause or "budget", reason
                self.say(reason)
                self.dispatcher.drain()
            case _:
                self.say(effect.reason)


def leases_of(events: Sequence[Event]) -> dict[str, Lease]:
    """Leases by id, each as it was last journalled."""
    leases: dict[str, Lease] = {}
    for event in events:
        if event.kind == "lease":
            lease = msgspec.json.decode(event.text, type=Lease)
            leases[lease.id] = lease
    return leases


def _order(plan: Plan, tasks: int) -> list[int] | None:
    """Priority of each task: as planned, by start; as listed where nothing is planned."""
    if len(plan.placements) != tasks:
        return None
    order = [0] * tasks
    for position, placement in enumerate(plan.placements):
        order[placement.task] = position
    return order


def _placed(plan: Plan, tasks: int) -> list[str] | None:
    """Site of each task as planned; None where any will do."""
    if len(plan.placements) != tasks or len(plan.purchases) < 2:
        return None
    placed = [""] * tasks
    for placement in plan.placements:
        placed[placement.task] = placement.site
    return placed
