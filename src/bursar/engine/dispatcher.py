"""
The dispatcher of a run: the engine with its journal, its listeners and one owner.

One asyncio loop. Workers connect over the loopback interface and show the run's secret; workers
of pilots connect to the pilot listener, over TLS, each with the secret of its lease; workers of
this process join without a socket. Outcomes that they report go into the journal, many in one
transaction, before they are passed on.
"""

import asyncio
import secrets
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bursar.dispatch.credential import SILENCE
from bursar.dispatch.journal import RunJournal
from bursar.dispatch.journal_records import AttemptRecord, CopyStart
from bursar.dispatch.linux_processes import kill_leftovers
from bursar.dispatch.spending_guard import SpendingGuard
from bursar.dispatch.wire import Hello
from bursar.engine import reactor, run_orders
from bursar.engine.core import (
    DataAt,
    EngineCore,
    EngineSettings,
    PublishOutputs,
    RestoredAttempts,
    RunPaths,
)
from bursar.engine.figures import EngineFigures
from bursar.engine.loop_clock import LoopClock
from bursar.engine.pilot_listener import PilotListener
from bursar.engine.reactor import STUBBORN
from bursar.engine.run_tasks import RetriedFailures, RunTasks
from bursar.engine.run_workers import InProcessEngineLink, RunWorkers
from bursar.engine.shared_resources import SharedResources
from bursar.engine.transactions import GroupCommit
from bursar.engine.worker_link import EngineLink, WorkerLink
from bursar.model.campaign import Retry
from bursar.model.errors import SiteError
from bursar.model.money import Refusal
from bursar.model.task import Outcome, Task

_ROUNDS = 3
"""Turns of the loop, more than enough for a connection that was just accepted to be made."""

_PARTING = 1.0  # seconds for what was written last to be read


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """
    How a run's tasks are handed out.

    Parameters
    ----------
    placed
        Lease whose processors run each task; None: any.
    again_at
        Lease, or what stands for one, to which tasks go that will run again; None: they stay.
    delay, data, prefetch, hears_first, keeps_starts, outlives, absence, secrets, priced_data,
    publish
        See :class:`bursar.engine.core.EngineSettings`.
    restored
        Attempts of the run's earlier life that workers may still have, which went on without the
        run for up to ``outlives`` seconds; where there are none, whatever that life left running is
        killed. None: there are none.
    resources
        Countable resources, by the site whose workers share them.
    listening, token
        Bound socket and secret of that life, by which its workers come back; None and empty: a new
        port and a new secret.
    retry_failed
        Tasks that failed for good in an earlier incarnation and are tried again.
    silence
        Approximate seconds after which a pilot's machine that does not answer is taken to be gone;
        its tasks run again.
    last_seen
        Last moment that the journal has seen, seconds since the epoch: time goes on from there
        when the time of day is behind it.
    epoch
        What the loop's time 0 is in the journal; None: by the time of day.
    """

    placed: Sequence[str] | None = None
    again_at: str | None = None
    delay: Callable[[int, int], float] | None = None
    data: DataAt | None = None
    prefetch: bool = True
    hears_first: bool = False
    keeps_starts: bool = False
    outlives: float = 0.0
    absence: float = 0.0
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    resources: Mapping[str, SharedResources] = field(default_factory=dict)
    priced_data: Collection[str] = ()
    publish: PublishOutputs | None = None
    restored: RestoredAttempts | None = None
    listening: socket.socket | None = None
    token: str = ""
    retry_failed: RetriedFailures = False
    silence: float = SILENCE
    last_seen: float = 0.0
    epoch: float | None = None


class Dispatcher:
    """
    Carries out tasks on whatever workers connect.

    All methods are to be called from the loop it was started on.

    Parameters
    ----------
    tasks
        Tasks to run; more may be submitted later.
    parents
        Numbers of the parents of each task; None: no task has any.
    journal
        Journal for outcomes and movements of money.
    guard
        Guard of the budget, which admits tasks.
    retry
        Rules for tries after failures.
    folders
        Folders of the run's files.
    run
        Identity of the run.
    past
        Attempts that earlier incarnations of the run journalled.
    on_outcome
        Called with the record of each outcome once it is durable.
    on_start
        Called with tasks that are handed to a worker.
    options
        How the tasks are handed out.

    Attributes
    ----------
    store
        Journals events and movements of money.
    figures
        Counts, loads and demand.
    pilot_listener
        Admits workers of pilots.
    address, token
        Where workers of this machine connect once it has started, and the secret they show.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        parents: Sequence[Sequence[int]] | None = None,
        *,
        journal: RunJournal,
        guard: SpendingGuard,
        retry: Retry,
        folders: RunPaths,
        run: str,
        past: Sequence[Outcome] = (),
        on_outcome: Callable[[AttemptRecord], None] | None = None,
        on_start: Callable[[Sequence[int]], None] | None = None,
        options: DispatchOptions | None = None,
    ) -> None:
        options = options or DispatchOptions()
        self._last_seen, self._epoch = options.last_seen, options.epoch
        self._clock = LoopClock()
        queue = RunTasks(retry, options.again_at)
        queue.scheduler.resources.update(options.resources)
        queue.extend(tasks, parents, placed=options.placed)
        restored = options.restored or RestoredAttempts()
        self._expects_workers = bool(restored.starts or restored.missing)
        self._listening = options.listening
        if past or restored.tasks:
            queue.restore(
                past,
                retry_failed=options.retry_failed,
                held=restored.tasks,
                unjudged=restored.unjudged,
            )
        self.store = GroupCommit(journal, self._clock)
        self._core = EngineCore(
            queue=queue,
            tasks=list(tasks),
            guard=guard,
            store=self.store,
            clock=self._clock,
            restored=restored,
            settings=EngineSettings(
                run=run,
                folders=folders,
                delay=options.delay,
                data=options.data,
                prefetch=options.prefetch,
                hears_first=options.hears_first,
                keeps_starts=options.keeps_starts,
                outlives=options.outlives,
                absence=options.absence,
                secrets=options.secrets,
                priced_data=options.priced_data,
                publish=options.publish,
                on_outcome=on_outcome or (lambda record: None),
                on_start=on_start or (lambda tasks: None),
            ),
        )
        reactor.attach(self._core)
        self.store.on_durable = partial(reactor.committed, self._core)
        self.store.on_change = self._core.changed.set
        self.figures = EngineFigures(self._core)
        # Every user of this machine can connect to a port of the loopback interface.
        self.token = options.token or secrets.token_urlsafe(32)
        self.address = ("127.0.0.1", 0)
        self._local_workers = RunWorkers(self._core, token=self.token)
        self.pilot_listener = PilotListener(
            run,
            lambda: self._pilot_workers.protocol(),
            self._turn_out,
            self.store.fail,
            options.silence,
        )
        self._pilot_workers = RunWorkers(self._core, pilots=self.pilot_listener.admission)
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """
        Listen on the loopback interface, on a port of the system's choice or the earlier life's.

        Processes that an earlier incarnation of the run left running are killed first, as their
        tasks will run again; not where its workers are expected back.
        """
        self._loop = asyncio.get_running_loop()
        # Before anything is given out: the same task would else run twice at a time and write the
        # same files. What workers have that outlived the run is known.
        if not self._expects_workers:
            await asyncio.to_thread(kill_leftovers, self._core.settings.run)
        self._clock.start(self._last_seen, self._epoch)
        restored = self._core.restored
        if self._expects_workers:
            # Workers that never come back must not hold up their tasks for ever.
            absence = self._core.settings.absence
            patience = absence if restored.patience is None else restored.patience
            self._clock.at(self._clock.now() + patience, partial(reactor.settle, self._core))
        protocol = self._local_workers.protocol
        # Loopback only: workers of other machines come through the pilot listener, over TLS.
        if self._listening is None:
            server = await self._loop.create_server(protocol, "127.0.0.1", 0, backlog=128)
        else:
            listening, self._listening = self._listening, None
            server = await self._loop.create_server(protocol, sock=listening, backlog=128)
        self._server = server
        self.address = self._server.sockets[0].getsockname()[:2]

    def settle_copies(self) -> None:
        """Let held successes of an earlier life's copies count, if no worker is expected back."""
        if self._core.restored.numbers and not self._expects_workers:
            reactor.settle(self._core)

    def connect(self, hello: Hello, link: WorkerLink) -> EngineLink:
        """Let a worker join."""
        if self._core.closed:
            raise SiteError("the run is ending", transient=True)
        if hello.worker in self._core.workers:
            raise SiteError(f"a worker {hello.worker} is there already")
        worker = reactor.worker_joined(self._core, hello, link)
        worker.shares_files = False  # what it makes is brought here
        return InProcessEngineLink(self._core, worker)

    def now(self) -> float:
        """
        Return the journal's time, seconds since the epoch.

        See :mod:`bursar.dispatch.journal_records`.
        """
        return self._clock.now()

    @property
    def epoch(self) -> float:
        """Time of the journal at the loop's time 0, seconds since the epoch."""
        return self._clock.epoch

    def submit(self, tasks: Sequence[Task]) -> range:
        """Add tasks without parents; return their numbers."""
        return reactor.submit(self._core, tasks)

    def cancel(self, task: int) -> bool:
        """Cancel a task, and kill the attempt that runs."""
        return reactor.cancel(self._core, task)

    async def show_output(
        self, task: int, attempt: int | None, stream: int, offset: int, most: int
    ) -> run_orders.ShownOutput | None:
        """
        Return part of what a running attempt has printed.

        See :func:`bursar.engine.run_orders.show_output`.
        """
        return await run_orders.show_output(self._core, task, attempt, stream, offset, most)

    def copy(self, task: int, worker: str, why: CopyStart) -> Refusal | None:
        """
        Start a copy of a task that runs, at a worker; see :func:`bursar.engine.run_orders.copy`.

        Parameters
        ----------
        why
            What is journalled of it; the engine fills in attempts and lease.
        """
        return run_orders.copy(self._core, task, worker, why)

    def assign(
        self,
        placed: Mapping[int, str],
        order: Mapping[int, int],
        in_order: Collection[str] = (),
    ) -> None:
        """
        Give tasks that have not started another lease and priority.

        See :meth:`bursar.engine.ready_tasks.ReadyTasks.assign`.
        """
        self._core.queue.tasks.ready_tasks.assign(placed, order, in_order)
        reactor.fill_soon(self._core)

    def ends(self, lease: str, moment: float | None, speed: float = 1.0) -> None:
        """
        Set the time at which a lease's processors will be taken away, as far as is known now.

        The lease's workers get no task that should not have ended by then, unless no other may run
        it; see :meth:`bursar.engine.task_scheduler.TaskScheduler.set_end`. Running tasks are not
        touched.

        Parameters
        ----------
        moment
            Seconds since the epoch; None: never.
        speed
            Work per second there, relative to what estimates hold for.
        """
        self._core.queue.scheduler.set_end(lease, moment, speed)
        reactor.fill_soon(self._core)

    async def change(self) -> None:
        """Wait until something may have changed."""
        self._core.changed.clear()
        await self._core.changed.wait()

    def drain(self) -> None:
        """Start nothing more, and let running tasks go on."""
        reactor.drain(self._core)

    async def stop(self, reason: str, *, grace: float = 5.0) -> None:
        """
        Start nothing more and stop the running tasks.

        Parameters
        ----------
        reason
            Text for the outcomes.
        grace
            Seconds between SIGTERM and SIGKILL.
        """
        reactor.stop(self._core, reason, grace)
        # A worker that stands still, as a suspended job's does, must not keep the run from its end.
        late = self._loop.call_later(grace + STUBBORN, reactor.cut_off, self._core)
        try:
            await self.wait()
        finally:
            late.cancel()

    async def vacate(self, lease: str, reason: str) -> None:
        """End a lease: stop the tasks on its processors, which may run again elsewhere."""
        reactor.vacate(self._core, lease, reason)
        late = self._loop.call_later(STUBBORN, reactor.cut_off, self._core, lease)
        try:
            while lease in self.figures.busy_leases() and self.store.fault is None:
                await self.change()
        finally:
            late.cancel()

    def attach(self, lease: str, *, for_copies: bool = False) -> None:
        """
        Have the workers of a lease end with the run, although others outlive the run.

        Parameters
        ----------
        for_copies
            Give them nothing but copies; copies that a kill interrupts are not gone on with.
        """
        self._core.attached.add(lease)
        if for_copies:
            self._core.for_copies.add(lease)

    def limit(self, site: str, processors: int) -> None:
        """Start tasks only on so many processors of a site from now on; running tasks go on."""
        reactor.limit(self._core, site, processors)

    def dismiss(self, lease: str) -> None:
        """Dismiss the workers of a lease, and give the lease no more tasks."""
        reactor.dismiss(self._core, lease)

    async def wait(self) -> None:
        """
        Wait until every task is at an end, or no further task will run.

        Raises
        ------
        BursarError
            When the journal cannot be written.
        """
        while self.store.fault is None and (self.store.is_busy or not self.figures.is_done):
            await self.change()
        if self.store.fault is not None:
            raise self.store.fault

    async def close(self) -> None:
        """Dismiss the workers, and write the rest to the journal."""
        for worker in list(self._core.workers.values()):
            reactor.dismiss_worker(self._core, worker)
        self._core.filling.close()
        # Listeners first: a worker that joined later would not be seen off.
        await self._stop_listening()
        await self.store.flush()
        # After that: an order to leave may have been withheld behind a transaction.
        await self._hang_up()
        if self._server is not None:
            await self._server.wait_closed()
        await self.store.close()

    async def _stop_listening(self) -> None:
        """
        Stop accepting connections, on the loopback interface and at the pilot listener.

        A server that closes between accepting a connection and making it leaves its socket open
        (CPython 3.11), so it closes when those that were accepted are made.
        """
        await self.pilot_listener.close()
        if self._server is None:
            return
        for listening in self._server.sockets:
            if hasattr(listening, "fileno"):  # none, of a network in memory
                self._loop.remove_reader(listening.fileno())
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
        self._server.close()

    async def _hang_up(self) -> None:
        """End all links, also one that is just being made, and wait until all are gone."""
        self._core.closed = True
        self._local_workers.is_closed = self._pilot_workers.is_closed = True
        for link in self._links():
            link.hang_up()
        give_up = self._loop.time() + _PARTING
        while links := self._links():
            if self._loop.time() > give_up:  # a worker does not read what was sent
                for link in links:
                    link.abort()
            await asyncio.sleep(0.001)

    def _links(self) -> list[WorkerLink]:
        return [
            *(worker.link for worker in self._core.workers.values() if worker.connected),
            *self._local_workers.unauthenticated,
            *self._pilot_workers.unauthenticated,
        ]

    def _turn_out(self, lease: str) -> None:
        """Dismiss pilots' workers of a lease whose credential was revoked."""
        for worker in reactor.turn_out(self._core, lease):
            # The pilot may be suspended, or not follow orders: the lease has been given back in any
            # case.
            self._loop.call_later(_PARTING, worker.link.hang_up)
