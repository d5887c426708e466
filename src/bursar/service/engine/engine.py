"""
The engine: instances, tasks and results of all users.

The engine runs on one event loop. Each decision is made at once, without an await, by the plain
data of this package; then it is journalled, and the request is answered when it is durable. Workers
are given tasks as they have credit; see :mod:`bursar.engine.task_scheduler`.

A task runs at least once and is recorded once. A task runs again when its worker was lost, up to
its ``tries``; a task that the service took back runs again without counting as a try. The
first final outcome that is recorded is the result; whatever comes later is acknowledged and
dropped. An exit code other than 0, or a limit, is an end unless the task has ``retries`` left. A
task that comes after others starts when the results of these are durable and all of them
succeeded; else it ends without having run.

What runs where is not journalled. After a restart the workers say what they hold; until all
expected workers have come back, or for some seconds at most, tasks from before the restart are not
given out, while new ones are. Writing down each hand-out would cost a record for each task, and
tell less: it would not say whether the worker ever got it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from bursar.engine.attempt_ends import attempts_failed
from bursar.engine.fair_turns import FairQueue
from bursar.engine.shared_resources import SharedResources
from bursar.engine.task_scheduler import TaskScheduler
from bursar.engine.task_states import ABSENT, CLAIMED, DELAYED, HELD, READY, WAITING
from bursar.model.money import Refusal
from bursar.model.provisioning import ProcessorDemand
from bursar.model.site import SiteFacts
from bursar.remote import messages as api
from bursar.remote.admin_messages import Overview
from bursar.remote.messages import STREAMS
from bursar.service.billing.pool_admission import PoolAdmission
from bursar.service.engine.cancelling import TaskCanceller
from bursar.service.engine.content import check_content, digest_of_instance
from bursar.service.engine.counters import TaskCounters
from bursar.service.engine.delivery import ResultDelivery
from bursar.service.engine.dispatching import ServiceReactions
from bursar.service.engine.engine_limits import EngineLimits
from bursar.service.engine.forecasting import InstanceForecasts
from bursar.service.engine.instance import Instance, InstanceSubmission
from bursar.service.engine.instance_compaction import InstanceCompaction
from bursar.service.engine.instance_homes import InstanceHomes
from bursar.service.engine.instance_index import InstanceIndex
from bursar.service.engine.lifecycle import InstanceLifecycle, run_in_thread
from bursar.service.engine.recording import ResultRecorder, TaskEnd
from bursar.service.engine.restoring import InstanceRestorer
from bursar.service.engine.results import RecentResults, RecordedResults
from bursar.service.engine.submitting import SubmissionRecorder
from bursar.service.engine.task_output import TaskOutputs
from bursar.service.engine.tasks import NAMES
from bursar.service.interfaces import (
    ENGINE_KINDS,
    Clock,
    Entropy,
    ResultBatch,
    ServiceError,
)
from bursar.store import Position, RecordStore
from bursar.supervisor import TaskSupervisor
from bursar.worker.workspace import log_name

GRACE = 30.0
"""Seconds after a restart for which tasks of the earlier life wait for their workers."""

PACE = 0.1
"""Least number of seconds between two changes of an instance that a stream reports."""

SWEEP = 10.0
"""Seconds between two searches for expired instances and keys."""

_PARTING = 5.0  # seconds for the last results to become durable


class ServiceEngine:
    """
    Instances, tasks and results of all users.

    Every method that changes something returns when the change is durable. A handle of another
    user raises ServiceError 404, like a handle that never existed.

    Order of its life: constructed before the journal is opened, :meth:`open` after the journal
    was; :meth:`drain`, :meth:`close` before the journal is closed.

    Parameters
    ----------
    journal, billing, clock, entropy
        See :mod:`bursar.service.interfaces`.
    homes
        Folders of the instances, or the path below which these folders are made.
    limits, own_limits
        Limits of every user (None: the defaults), and of users who have others, by name.
    turns
        Makes the queue of a pool's users; None: their turns are equal.
    site
        The site, whose resources are counted: a task is refused that holds more processors, memory
        or resources than it has. None: no task is refused for these.
    on_event
        Called with one line for people on each notable event.
    grace
        Seconds after a restart for which tasks from before it wait for their workers.
    """

    def __init__(
        self,
        journal: RecordStore,
        billing: PoolAdmission,
        *,
        clock: Clock,
        entropy: Entropy,
        homes: InstanceHomes | Path,
        limits: EngineLimits | None = None,
        own_limits: Mapping[str, EngineLimits] = MappingProxyType({}),
        turns: Callable[[], FairQueue[str]] | None = None,
        site: SiteFacts | None = None,
        on_event: Callable[[str], None] | None = None,
        grace: float = GRACE,
    ) -> None:
        self._journal = journal
        self._billing = billing
        self._clock = clock
        self._homes = InstanceHomes(homes) if isinstance(homes, Path) else homes
        self._notify = on_event or (lambda line: None)
        self._grace = grace
        limits = limits or EngineLimits()
        self.counters = TaskCounters()
        self._index = InstanceIndex(limits, own_limits)
        self._recent = RecentResults(limits.results_in_memory)
        # Attempts begin at a random serial of 40 bits: a worker that comes back from an earlier
        # life holds serials that this life will not use. Journalling the last one would cost a
        # record for each attempt.
        self._scheduler: TaskScheduler[Instance] = TaskScheduler(
            int.from_bytes(entropy(5), "big"), limits.limit
        )
        self._scheduler.turns = turns or FairQueue
        if site is not None and site.resources:
            self._scheduler.resources[site.name] = SharedResources(site.resources)
        self._recorder = ResultRecorder(
            journal=journal,
            billing=billing,
            clock=clock,
            recent=self._recent,
            on_recorded=self._on_recorded,
            on_noted=lambda noted: self.dispatching.reactions.try_again(noted),
            on_fault=self.on_fault,
        )
        self.dispatching = ServiceReactions(
            scheduler=self._scheduler,
            index=self._index,
            recorder=self._recorder,
            billing=billing,
            clock=clock,
            counters=self.counters,
            on_fault=self.on_fault,
        )
        self._background = TaskSupervisor(self._on_failure)
        self._upkeep = InstanceCompaction(journal)
        self._delivery = ResultDelivery(
            index=self._index,
            journal=journal,
            counters=self.counters,
        )
        self._lifecycle = InstanceLifecycle(
            index=self._index,
            journal=journal,
            billing=billing,
            homes=self._homes,
            limits=limits,
            dispatching=self.dispatching,
            recorder=self._recorder,
            upkeep=self._upkeep,
            background=self._background,
            clock=clock,
            entropy=entropy,
        )
        self._submitting = SubmissionRecorder(
            index=self._index,
            journal=journal,
            dispatching=self.dispatching,
            background=self._background,
            counters=self.counters,
            clock=clock,
            directories=limits.directories,
            containers=limits.containers,
            site=site,
        )
        self.outputs = TaskOutputs(self._index, self._scheduler)
        self._cancelling = TaskCanceller(
            journal=journal,
            dispatching=self.dispatching,
            scheduler=self._scheduler,
            recorder=self._recorder,
            upkeep=self._upkeep,
            background=self._background,
            clock=clock,
        )
        self._restoring: InstanceRestorer | None = InstanceRestorer(journal)
        self.forecasts: InstanceForecasts | None = None
        self._draining = False
        self._fault = ""
        self._broken = asyncio.Event()
        self._since = clock()
        self._next_sweep = 0.0
        journal.register(ENGINE_KINDS, self)

    async def open(self) -> None:
        """Continue from the restored records; the journal has been opened, billing restored."""
        assert self._restoring is not None
        restoring, self._restoring = self._restoring, None
        self._lifecycle.restore(restoring)
        if any(instance.tasks.unfinished for instance in self._index):
            # Workers that never come back must not hold up their tasks for ever.
            self._background.start(self._settle_later())
        else:
            self.dispatching.settled = True
        for instance in self._index:
            self._upkeep.forget_cancels(instance)
            for submission in list(instance.submissions):
                self._upkeep.shrink(instance, submission)
        # The only await comes last: until here no other task can see half of what is restored.
        await self._lifecycle.restore_homes(restoring)

    async def make_forecasts(self) -> None:
        """Forecast the instances, until cancelled."""
        self.forecasts = InstanceForecasts(self._index, self._scheduler, self._billing, self._clock)
        await self.forecasts.run()

    def settle(self) -> None:
        """Let restored tasks be given out again that no worker has claimed to hold."""
        if self.dispatching.settled:
            return
        self.dispatching.settled = True
        self._notify("tasks of an earlier life that no worker has may start")
        for instance in list(self._index):
            tasks = instance.tasks
            if not tasks.counts[HELD]:
                continue
            # Only those from before the restart: younger ones are HELD until they are durable.
            held = [t for t in range(instance.tasks.restored) if tasks.states[t] == HELD]
            doomed = [t for t in held if t in instance.tasks.doomed]
            # Cancelled before the crash, and no worker has it: the task ends without being run.
            self.dispatching.start(instance, [t for t in held if t not in instance.tasks.doomed])
            if doomed:
                self._background.start(self._cancelling.wind_up(instance, doomed))

    def drain(self) -> None:
        """Accept no submissions and give out no tasks; running tasks go on and are recorded."""
        self._draining = True
        self.dispatching.filling.close()

    @property
    def running(self) -> int:
        """Number of tasks that workers have."""
        return len(self._scheduler.claims)

    @property
    def draining(self) -> bool:
        """Whether the engine accepts no more work."""
        return self._draining

    async def close(self) -> None:
        """Record what has ended and stop; the journal is to be closed afterwards."""
        self.drain()
        with contextlib.suppress(TimeoutError):  # the disk may have no room; then nobody was told
            async with asyncio.timeout(_PARTING):
                await self._recorder.settle()
        # Background tasks first, as cancellations hand results to the recorder.
        await self._background.close()
        await self._recorder.close()

    async def failed(self) -> str:
        """Wait until the engine cannot go on and return the reason: the service must end then."""
        await self._broken.wait()
        return self._fault

    def relimit(self, limits: EngineLimits, own_limits: Mapping[str, EngineLimits]) -> None:
        """Change the limits of users from now on; limits that are not of users stay."""
        self._index.relimit(limits, own_limits)

    def tick(self) -> None:
        """Handle what time alone brings about; to be called every second or so."""
        now = self._clock()
        self.dispatching.tick()
        if now >= self._next_sweep:
            self._next_sweep = now + SWEEP
            self._lifecycle.sweep(now)

    # As an owner of records; see bursar.store.RecordOwner.

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in a record written before the restart."""
        assert self._restoring is not None
        self._restoring.take(kind, position, payload)

    # Instances.

    async def create(self, user: str, new: api.NewInstance, key: str) -> api.InstanceInfo:
        """
        Make an instance, or return the one that was made with the same key.

        Parameters
        ----------
        key
            Idempotency key; empty: none.

        Raises
        ------
        ServiceError
            422, when the key came with other content before; what
            :meth:`bursar.service.engine.lifecycle.InstanceLifecycle.make` raises.
        """
        instance = self._index.asked.get((user, key)) if key else None
        if instance is None:
            self._check_open()
            try:
                instance = self._lifecycle.make(user, new, key)
            except ServiceError as error:
                if error.kind == "gone":  # see destroy()
                    await self._journal.durable()
                raise
        elif key:
            check_content(instance.digest, digest_of_instance(new))
        # A repeated request waits as the first one does: its answer promises the same.
        await self._lifecycle.wait_for_home(instance)
        await self._journal.durable()
        return self._info(instance)

    def instances(self, user: str) -> list[api.InstanceInfo]:
        """Return the instances of a user."""
        return [self._info(instance) for instance in self._index.of(user)]

    def instance(self, user: str, handle: str) -> api.InstanceInfo:
        """Return one instance of a user."""
        return self._info(self._index.mine(user, handle))

    def home(self, user: str, handle: str) -> Path:
        """Return the folder of an instance with ``files``, ``work`` and ``logs``."""
        return self._lifecycle.home_of(self._index.mine(user, handle))

    def homes(self, user: str) -> list[Path]:
        """Return the folders of all instances of a user."""
        return [self._lifecycle.home_of(instance) for instance in self._index.of(user)]

    async def destroy(self, user: str, handle: str) -> None:
        """Cancel an instance's tasks and delete the instance with all results and files."""
        try:
            self._lifecycle.destroy(self._index.mine(user, handle))
        except ServiceError:
            # An earlier request may have destroyed the instance, and not be durable yet. Whoever
            # repeats that request takes "not found" for success.
            await self._journal.durable()
            raise
        await self._journal.durable()

    # Tasks.

    async def submit(
        self, user: str, handle: str, tasks: Sequence[api.TaskSpec], key: str
    ) -> api.Submitted:
        """
        Add tasks, or return what was added with the same key.

        Parameters
        ----------
        key
            Idempotency key; empty: none.

        Raises
        ------
        ServiceError
            422, when the key came with other content before, or a task makes no sense; 404, when
            the instance is not the user's; what
            :meth:`bursar.service.engine.submitting.SubmissionRecorder.submit` raises.
        """
        # Before the look-up of the instance: hashing awaits, and the instance may go meanwhile.
        digest = await self._submitting.digest(tasks) if key else b""
        instance = self._index.mine(user, handle)
        submission = instance.keys.get(key) if key else None
        if submission is not None:
            # The submission of the first request may not be durable yet; answering now would
            # promise it.
            check_content(submission.digest, digest)
            await self._journal.durable()
            return api.Submitted(first=submission.first, count=submission.count, repeated=True)
        self._check_open()
        bodies = await self._submitting.make_bodies(tasks, self._billing.width(instance.pool, user))
        self._index.mine(user, handle)  # it may have been destroyed meanwhile
        if key and key in instance.keys:  # or somebody else was faster
            return await self.submit(user, handle, tasks, key)
        self._check_open()
        submission = await self._submitting.submit(instance, tasks, bodies, key, digest)
        return api.Submitted(first=submission.first, count=submission.count)

    def tasks(self, user: str, handle: str, after: int, limit: int) -> api.TaskPage:
        """Return the states of tasks, from number ``after`` on."""
        tasks = self._index.mine(user, handle).tasks
        states, labels = tasks.states, tasks.labels
        end = min(after + limit, len(states))
        page = [
            api.TaskInfo(
                task=task,
                state=NAMES[states[task]],
                label=labels.get(task, ""),
                # Attempts lost or failed, and the one under way or final; 0: the task never began.
                attempt=attempts_failed(tasks, task) + (states[task] >= CLAIMED),
            )
            for task in range(after, end)
            if states[task] != ABSENT
        ]
        return api.TaskPage(tasks=page, next=end if end < len(states) else None)

    async def cancel(
        self,
        user: str,
        handle: str,
        tasks: Sequence[int] | None,
        grace: float | None = None,
        *,
        unstarted: bool = False,
    ) -> api.Cancelled:
        """Cancel tasks, or only those that no worker has; a cancelled task gets a result, too."""
        instance = self._index.mine(user, handle)
        if unstarted:
            count = await self._cancelling.cancel_unstarted(instance, tasks)
        else:
            count = await self._cancelling.cancel(instance, tasks, grace)
        return api.Cancelled(count=count)

    # Results.

    def _on_recorded(
        self,
        instance: Instance,
        batch: RecordedResults,
        endings: Sequence[TaskEnd],
        logs: dict[int, int],
    ) -> None:
        """Update counters, waiters and records when results have become durable."""
        tasks, usage = instance.tasks, self._index.usage(instance.user)
        if self.forecasts is not None:
            self.forecasts.take_in(instance, endings)
        instance.results.add(batch)
        instance.results.logs.update(logs)
        touched: dict[int, InstanceSubmission] = {}
        submission: InstanceSubmission | None = None
        freed = tasks.close(batch.tasks, [ending.state for ending in endings])
        for ending in endings:
            task = ending.task
            # Results of a batch are mostly neighbours: the last submission is tried before
            # searching.
            if submission is None or not 0 <= task - submission.first < submission.count:
                submission = instance.submission_of(task)
                touched[submission.first] = submission
            submission.left -= 1
            if instance.lost and task in instance.lost:
                self._journal.kill(instance.lost.pop(task))
        usage.unfinished -= len(endings)
        usage.task_bytes -= freed
        usage.result_bytes += batch.size
        self.counters.finished += len(endings)
        # After the loop: shrinking a submission once for many results, not once for each.
        for submission in touched.values():
            self._upkeep.shrink(instance, submission)
        if instance.cancels:
            self._upkeep.forget_cancels(instance)
        if tasks.dependencies.waiting or tasks.groups is not None:
            self.dispatching.follow(instance, endings)
        instance.wake()

    async def results(
        self, user: str, handle: str, after: int, limit: int, wait: float
    ) -> ResultBatch:
        """Return results after a cursor; wait so many seconds for the first if there is none."""
        return await self._delivery.results(user, handle, after, limit, wait)

    async def forget(self, user: str, handle: str, through: int) -> None:
        """Forget results up to a cursor, which the client has stored."""
        instance = self._index.mine(user, handle)
        # A client cannot forget what it has not been told of yet.
        through = min(through, instance.results.last)
        if through > instance.results.forgotten:
            size, ended = self._upkeep.forget_results(instance, through)
            self._index.usage(user).result_bytes -= size
            logs = [log_name(str(task), serial, name) for task, serial in ended for name in STREAMS]
            if logs:
                # Not awaited: a log that a crash leaves behind goes with its instance's home.
                self._background.start(
                    run_in_thread(self._homes.remove_logs, instance.folder, logs)
                )
        await self._journal.durable()

    # Watching.

    async def changes(self, user: str, handle: str) -> AsyncIterator[api.InstanceInfo]:
        """Yield an instance after each change, at a limited rate."""
        instance = self._index.mine(user, handle)
        sent: api.InstanceInfo | None = None
        while not instance.destroyed:
            info = self._info(instance)
            if info != sent:
                sent = info
                # Slept only after something was sent: a change after a quiet time is told at once,
                # a thousand a second are told ten times.
                yield info
                await asyncio.sleep(PACE)
            else:
                await instance.changed()

    def demand(self) -> Mapping[str, ProcessorDemand]:
        """Return the demand of tasks for processors, by pool."""
        found = {} if self._draining else self.dispatching.demand()
        withholds = self._draining or not self.dispatching.settled
        for instance in self._index:
            counts = instance.tasks.counts
            later = counts[WAITING] + counts[DELAYED]
            # Tasks that are not given out now call for no new workers, but requests in a
            # scheduler's queue are not given up for them either: a place there cannot be had back.
            withheld = counts[HELD] + (counts[READY] if self._draining else 0) if withholds else 0
            if later or withheld:
                known = found.get(instance.pool, ProcessorDemand())
                found[instance.pool] = replace(
                    known,
                    later=known.later + later + withheld,
                    withheld=known.withheld or withheld > 0,
                )
        return found

    def overview(self) -> Overview:
        """Return the state of the whole service, for administrators."""
        counters = self.counters
        instances = list(self._index)
        return Overview(
            at=self._clock(),
            since=self._since,
            instances=[self._info(instance) for instance in instances],
            owners=[instance.user for instance in instances],
            workers=self.dispatching.workers(),
            submitted=counters.submitted,
            started=counters.started,
            finished=counters.finished,
            delivered=counters.delivered,
            journal_bytes=self._journal.size,
            draining=self._draining,
            problem=self._journal.problem,
        )

    def _info(self, instance: Instance) -> api.InstanceInfo:
        spent = self._billing.came_to(instance.user, instance.handle)
        return instance.info(self._note(instance), spent)

    def _note(self, instance: Instance) -> str:
        if instance.is_over:
            return ""
        if self._draining:
            return "the service is draining"
        answer = self._billing.may_run(instance.pool, instance.user, self._clock())
        if isinstance(answer, Refusal):
            return answer.reason
        return self.dispatching.why_waiting(instance)

    def _check_open(self) -> None:
        if self._draining:
            raise ServiceError("draining", 503, "the service takes nothing more", retry_after=10.0)
        if self._restoring is not None:
            raise ServiceError("starting", 503, "the service is starting", retry_after=1.0)

    async def _settle_later(self) -> None:
        await asyncio.sleep(self._grace)
        self.settle()

    def _on_failure(self, error: BaseException) -> None:
        """Stop after the failure of a background task, unless a request is told of the error."""
        if not isinstance(error, ServiceError):
            self.on_fault(error)

    def on_fault(self, error: BaseException) -> None:
        """Stop after an internal error: nothing more is acknowledged."""
        if not self._fault:
            self._fault = f"the engine stopped: {type(error).__name__}: {error}"
            # After a fault of ours nothing that is in memory can be trusted: what is not durable
            # is not acknowledged, and the next life restores what is.
            self._recorder.stop()
            self.dispatching.filling.close()
            self._broken.set()
