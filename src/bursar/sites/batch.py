"""A cluster with a batch scheduler as a site: each pilot is an ordinary job there."""

import asyncio
import contextlib
import math
import socket
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bursar.broker.pilot_plan import Pilot
from bursar.cluster.machine import Machine
from bursar.dispatch import credential as credentials
from bursar.market.lease import Lease
from bursar.model.errors import InputError, SiteError
from bursar.model.provisioning import PATIENCE, BatchScheduler
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.status import SiteStatus
from bursar.provisioning.lrm.command_runner import CommandRunner
from bursar.provisioning.lrm.manager_selection import manager_of
from bursar.provisioning.lrm.resource_manager import (
    JobReport,
    JobRequest,
    QueueState,
    ResourceManager,
)
from bursar.provisioning.pilot_usage import USAGE, PilotUsage
from bursar.provisioning.pool_snapshot import AllocationLoss, BackfillWindow, PoolSite
from bursar.sites.bundling import SubmissionBundles
from bursar.sites.job_settlement import LATE, JobSettlement
from bursar.sites.job_watch import JobWatch
from bursar.sites.pilot_job import complaints_of, pilot_script
from bursar.sites.pilot_job_journal import JobFinder, PilotJobJournal
from bursar.sites.projection import backfill_windows_of, project_queue, slots_of
from bursar.sites.protocol import MeteredTime, PilotBeginListener
from bursar.worker.launch import Endpoint, PilotAdmission

FRESH = 5.0
"""Seconds for which what the queue said is good after something of ours has changed there."""

PARTING = 15.0
"""Seconds that jobs have to end when the site is closed."""

STARTING = 30.0
"""Seconds that a job gets on top of those of a plan, in which its workers start."""

MOST_LINES = 1_000
"""Of the record of jobs; then those that are gone are left out."""

_AT_ONCE = 1.0  # seconds ahead up to which a pilot is due now
_GATHERED = 0.02  # seconds in which jobs are gathered that are to be ended by one command
_SLACK = 60.0  # seconds of a reservation beyond its pilot: limits are in whole minutes
_LAST_WORDS = 400  # bytes of what a pilot complained of that are repeated


@dataclass(slots=True, eq=False)
class _BatchPilot:
    """A pilot between its request and its end."""

    pilot: Pilot
    begin: PilotBeginListener
    say: Callable[[str], None]
    together: bool
    credential: str  # file
    job: str = ""
    seconds: float = math.inf  # of its job
    processors: int | None = None  # of its job, where they are others than it asks for
    has_begun: bool = False
    has_run: bool = False  # by the scheduler's word
    submitted: asyncio.Future[None] = field(default_factory=lambda: _future())
    begun: asyncio.Future[None] = field(default_factory=lambda: _future())
    lost: asyncio.Future[tuple[AllocationLoss, str]] = field(default_factory=lambda: _future())


class BatchSite:
    """
    Provides processors of a cluster whose batch scheduler runs our pilots as jobs.

    It is to be open while it is used, see :meth:`opened`.

    Parameters
    ----------
    facts
        Facts of the site; they name its batch scheduler.
    run
        Identity of the run; the names of its jobs begin with it.
    folder
        Folder for the files of pilots, unless the facts name one.
    manager
        Adapter to the batch scheduler; None: the one that the facts name.
    shell
        Runner that writes files at the site; None: the one that the facts describe.
    clock
        The present time by the scheduler's clock, seconds since the epoch.
    lasting
        Whether pilots go on when the site is closed, or this process killed, until a later process
        of the run adopts them.
    """

    def __init__(
        self,
        facts: SiteFacts,
        *,
        run: str,
        folder: Path,
        manager: ResourceManager | None = None,
        shell: CommandRunner | None = None,
        clock: Callable[[], float] = time.time,
        lasting: bool = False,
    ) -> None:
        if facts.batch is None:
            raise InputError("has no batch scheduler", where=f"site.{facts.name}.kind")
        self._facts = facts
        self._batch: BatchScheduler = facts.batch
        self._shell = shell or CommandRunner(
            environment=self._batch.environment,
            ssh=self._batch.ssh,
            scheduler=self._batch.manager,
        )
        # An adapter's own shell keeps away what users set for their use of its commands.
        self._manager = manager or manager_of(self._batch, shell)
        self._clock = clock
        self._lasts = lasting
        self._run = run
        self._name = "".join(c if c.isalnum() else "-" for c in f"{facts.name}")
        self._folder = f"{self._batch.folder or folder.absolute()}/{run[:12]}-{self._name}"
        self._record = PilotJobJournal(folder / f"{self._name}.jobs")
        self._usage = folder / f"{self._name}{USAGE}"
        self._on_event: Callable[[str], None] = lambda message: None
        self._settlement = JobSettlement(
            self._manager,
            self._record,
            self._usage,
            ready=self._make_ready,
            clock=clock,
            say=self._say,
        )
        self._watch = JobWatch(self._manager, self._say)
        self._pilots: dict[str, _BatchPilot] = {}  # by name
        self._bundles: SubmissionBundles[_BatchPilot] = SubmissionBundles(self._hand_in)
        self._jobs: dict[str, str] = {}  # to their pilots, of all that there were
        self._state: QueueState | None = None
        self._projected: Machine | None = None
        self._holes: tuple[BackfillWindow, ...] = ()
        self._asked = 0.0
        self._is_ready = False
        self._has_adopted = not lasting  # until then, nobody knows which jobs are left over
        self._probed: float | None = None  # seconds until a processor is there, as it says
        self._probe_at = 0.0
        self._readying: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._due: dict[str, float] = {}  # pilots with a start, seconds since the epoch
        self._reserved: set[str] = set()  # names of reservations
        self._may_reserve = self._manager.abilities.reservations
        self._tasks: set[asyncio.Task[None]] = set()  # that end by themselves
        self._to_end: set[str] = set()  # jobs
        self._not_ended: set[str] = set()  # jobs of which the scheduler could not be told
        # Names of requests whose answer was lost, of this process or an earlier one, and until
        # when they may still become jobs, loop time.
        self._unanswered: dict[str, float] = {}
        self._ending: asyncio.Task[None] | None = None

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site."""
        return self._facts

    def _say(self, message: str) -> None:
        """Tell the caller that last requested a pilot, in one line."""
        self._on_event(f"{self._facts.name}: {message}")

    # Open and closed.

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """
        Watch the queue while the context lasts. Unless pilots outlive the process, what an earlier
        process left is ended first and all pilots are ended last; otherwise see :meth:`adopt` and
        :meth:`end_others`.
        """
        if not self._lasts:
            with contextlib.suppress(SiteError):  # told, and tried again, when a pilot is asked for
                await self._make_ready()
        watching = [
            asyncio.create_task(self._lasting(self._watch.run)),
            asyncio.create_task(self._lasting(self._keep_fresh)),
        ]
        try:
            yield
        finally:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await (self._leave() if self._lasts else self._close())

    async def adopt(
        self, pilots: Sequence[Pilot], endpoints: Mapping[str, Endpoint], say: Callable[[str], None]
    ) -> dict[str, "HeldPilot"]:
        """
        Take over pilots of an earlier process of the run whose jobs are still there; return them by
        name.

        Parameters
        ----------
        endpoints
            Where their workers report, by the names of the pilots.
        say
            Told, in one line for people, of what becomes of them.
        """
        self._on_event = say
        jobs = {pilot: job for job, pilot in self._record.read().jobs.items()}
        held: dict[str, HeldPilot] = {}
        for pilot in pilots:
            door = endpoints[pilot.name].door
            if pilot.name not in jobs or door is None:
                continue
            entry = _BatchPilot(
                pilot,
                lambda processors=None, seconds=None: None,
                say,
                together=False,
                credential=f"{self._folder}/{pilot.name}.json",
                job=jobs[pilot.name],
                has_begun=True,
            )
            for future in (entry.submitted, entry.begun):
                future.set_result(None)
            self._pilots[pilot.name] = entry
            self._watch.add(entry.job, lambda report, entry=entry: self._hear(entry, report))  # type: ignore[misc]
            held[pilot.name] = HeldPilot(entry, self._releaser(entry, door))
        return held

    async def end_others(self, pilots: Collection[str]) -> None:
        """End jobs of an earlier process that belong to no pilot of this one."""
        self._has_adopted = True
        with contextlib.suppress(SiteError):  # tried again when the queue is asked for next
            await self._make_ready()

    async def leave(self) -> None:
        """Pilots are let alone: they are the scheduler's, and go on, or wait on."""
        await self._leave()  # at once: one that waits is about to be given up

    def _releaser(self, entry: _BatchPilot, door: PilotAdmission) -> Callable[[], Awaitable[None]]:
        return lambda: self._release(entry, door)

    async def _leave(self) -> None:
        """Stop watching, and leave the pilots to the run's next process."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _lasting(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a background task; its failure reaches the pilots that rely on it."""
        try:
            await work()
        except Exception as error:
            told = SiteError(f"{self._facts.name}: {type(error).__name__}: {error}")
            self._say(f"is not watched any more: {type(error).__name__}: {error}")
            for entry in list(self._pilots.values()):
                self._fail(entry, told)
            raise

    async def _make_ready(self) -> None:
        """However many ask for it: once at a time."""
        if self._is_ready:
            return
        if self._readying is None or self._readying.done():
            self._readying = self._go_on(self._become_ready())
        await asyncio.shield(self._readying)

    async def _become_ready(self) -> None:
        await self._end_leftovers()
        await self.refresh()
        self._is_ready = True

    async def refresh(self) -> None:
        """
        Asks for the queue as it is now.

        Raises
        ------
        SiteError
            When the scheduler cannot be asked.
        """
        state = await self._manager.queue()
        seen, holes = await asyncio.to_thread(_look_ahead, state)  # of a long queue it takes long
        self._asked = asyncio.get_running_loop().time()
        self._state, self._projected, self._holes = state, seen, holes

    # What it says of itself.

    def offers(self) -> tuple[Slot, ...]:
        """Slots that our model of the queue leaves free; starts are seconds from now."""
        if self._projected is None:
            return ()
        return slots_of(
            self._projected,
            self._facts.name,
            most=self._facts.processors,
            longest=self._longest,
            unit_price=self._facts.unit_price,
            fixed_price=self._facts.fixed_price,
        )

    def status(self, seconds: float | None = None) -> SiteStatus:
        """Status from the scheduler's last answer; see the Site protocol."""
        state = self._state
        if state is None:
            raise SiteError(f"{self._facts.name}: its scheduler has not been asked", transient=True)
        machine = self._projected
        traversal = self._probed  # its own word before our model of it
        if traversal is None and machine is not None:
            with contextlib.suppress(InputError):
                traversal = machine.expected_start(1, seconds or self._usual(state)) - machine.now
        return SiteStatus(
            site=self._facts.name,
            at=self._asked,
            free_processors=self._free(state),
            running=sum(job.running for job in state.jobs),
            waiting=sum(not job.running for job in state.jobs),
            traversal_time=traversal,
            state="Production" if state.up else "Closed",
        )

    def view(self) -> PoolSite:
        """The site as an acquiring pool sees it; see the Site protocol."""
        state, can = self._state, self._manager.abilities
        return PoolSite(
            name=self._facts.name,
            rules=self._facts.acquiring,
            processors=self._facts.processors,
            per_node=_per_node(state),
            spans_nodes=_SEVERAL_NODES[self._batch.manager],
            speed=self._facts.speed,
            unit_price=self._facts.unit_price,
            fixed_price=self._facts.fixed_price,
            batch=True,
            free=None if state is None else self._free(state),
            probed=self._probed,
            holes=self._holes,
            waiting=0 if state is None else sum(not j.running and not j.own for j in state.jobs),
            longest=None if state is None else state.longest,
            arrays=can.arrays,
            node_ranges=can.node_ranges,
            time_ranges=can.time_ranges,
            shrinks=can.shrinks,
            unwatched=self.unwatched,
        )

    @property
    def _longest(self) -> float:
        """Longest time of one allocation, seconds."""
        longest = self._facts.acquiring.longest
        queue = None if self._state is None else self._state.longest
        return longest if queue is None else min(longest, queue)

    def _free(self, state: QueueState) -> int:
        held = sum(p.pilot.processors for p in self._pilots.values() if p.has_begun)
        return max(0, min(state.free, self._facts.processors - held))

    def _usual(self, state: QueueState) -> float:
        """Seconds that jobs ask for there, in the mean."""
        asked = [job.seconds for job in state.jobs if job.seconds is not None]
        return sum(asked) / len(asked) if asked else self._longest

    async def _keep_fresh(self) -> None:
        """Asks for the queue now and then, and soon when something of ours has changed there."""
        loop = asyncio.get_running_loop()
        every = self._facts.acquiring.probe_every
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(self._asked + every):
                    await self._wanted.wait()
            await asyncio.sleep(max(0.0, self._asked + min(FRESH, every) - loop.time()))
            self._wanted.clear()
            try:
                if self._has_adopted:
                    await self._make_ready()  # maybe nobody asks for a pilot any more
                await self.refresh()
            except SiteError:
                self._asked = loop.time()  # the watch says so when it matters
                continue
            await self._probe()
            if self._not_ended:
                self._end_soon(self._not_ended)
            await self._end_unanswered()

    async def _probe(self) -> None:
        """
        Asks the scheduler itself when a small request would start, where nothing is free.

        No more often than the rules' courtesy allows: it costs the scheduler a round.
        """
        state, now = self._state, asyncio.get_running_loop().time()
        if state is None or state.free:
            self._probed = None
            return
        rules = self._facts.acquiring
        if now < self._probe_at or not self._manager.abilities.start_estimates:
            return
        self._probe_at = now + rules.probe_every
        request = JobRequest(
            name=self._job_name("probe"),
            processors=1,
            seconds=min(rules.shortest, self._longest),
            script="exit 0\n",
            folder=self._folder,
        )
        try:
            start = await self._manager.expected_start(request)
        except SiteError:
            start = None  # a refusal is told when something is asked for in earnest
        self._probed = None if start is None else max(0.0, start - self._clock())

    # Reservations.

    async def reserve(self, pilots: Sequence[Pilot]) -> float:
        """
        Reservations of the scheduler where this user may make them; else pilots with a start
        are handed in at once as jobs that may not begin before it.
        """
        now = self._clock()
        kept = {self._job_name(name) for name in self._pilots}
        for name in sorted(self._reserved - kept):
            await self._unreserve(name)
        self._due = {
            pilot.name: now + pilot.start
            for pilot in pilots
            if pilot.works and pilot.start is not None and pilot.start > _AT_ONCE
        }
        if not self._due:
            return 0.0
        if self._may_reserve:
            made: list[str] = []
            try:
                for pilot in pilots:
                    if pilot.name in self._due:
                        made.append(self._job_name(pilot.name))
                        await self._reserve(pilot)
                return 0.0
            except SiteError as error:
                for name in made:
                    await self._unreserve(name)
                if error.transient:
                    raise self._in_its_name(error) from None
                self._may_reserve = False
                self._say(f"no reservations ({error}): pilots are handed in ahead")
        return math.inf if self._manager.abilities.begin else 0.0

    async def _reserve(self, pilot: Pilot) -> None:
        seconds = math.ceil(min(pilot.duration, self._longest) / 60) * 60 + _SLACK
        name = self._job_name(pilot.name)
        self._record.keeps(name)
        self._reserved.add(name)  # whatever happens while it is made
        await self._manager.reserve(name, self._due[pilot.name], seconds, pilot.processors)

    async def _unreserve(self, name: str) -> None:
        try:
            await self._manager.unreserve(name)
        except SiteError as error:
            self._say(f"{error}; tried again at the end")  # where it does not end before
            return
        self._reserved.discard(name)
        self._record.keeps_no_more(name)

    def _job_name(self, pilot: str) -> str:
        return f"bursar-{self._run[:12]}-{pilot}"

    # What leases come to.

    @property
    def unwatched(self) -> float:
        """Seconds for which a pilot may go on after its run was killed; see Settles."""
        return 0.0 if self._lasts else self._facts.unwatched

    async def meter(self, lease: Lease, watched: float | None) -> MeteredTime:
        """When a lease's job began and ended, by the scheduler's record; see MeteringSite."""
        return await self._settlement.meter(lease, watched)

    # Pilots.

    async def acquire(
        self,
        pilot: Pilot,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> "HeldPilot":
        """
        Hands in a job, and waits until it runs or its workers report.

        Pilots of one bundle are one submission.
        """
        door = endpoint.door
        if door is None:
            raise SiteError(f"{self._facts.name}: nobody listens for pilots from elsewhere")
        entry = _BatchPilot(
            pilot,
            begin,
            on_event,
            together=rigid,
            credential=f"{self._folder}/{pilot.name}.json",
        )
        self._pilots[pilot.name] = entry
        self._on_event = on_event
        try:
            await self._hand_over(entry, door)
            await entry.begun
        except BaseException as error:
            door.revoke(pilot.name)
            await self._give_up(entry)
            if isinstance(error, SiteError):
                raise self._in_its_name(error) from None
            raise
        return HeldPilot(entry, self._releaser(entry, door))

    async def _hand_over(self, entry: _BatchPilot, door: PilotAdmission) -> None:
        """Its credential lies there, and its job is in the queue."""
        pilot = entry.pilot
        bundle = pilot.bundle if pilot.copies > 1 else ""
        if bundle:
            self._bundles.comes(bundle, pilot.copies)
        try:
            await self._make_ready()
            terms = credentials.PilotTerms(
                lease=pilot.name,
                site=self._facts.name,
                host=self._batch.reach or socket.getfqdn(),
                processors=pilot.processors,
                idle=self._facts.acquiring.idle if self._leaves_by_itself(pilot) else None,
                patience=PATIENCE,
                on_join=lambda: self._joined(entry),
                on_leave=lambda: self._watch.doubt(entry.job),
            )
            secret = await door.credential(terms)
            await self._shell.make_folder(self._folder)
            await self._shell.write(entry.credential, secret)
        except BaseException:
            if bundle:
                self._bundles.stays_away(bundle)
            raise
        if bundle:
            self._bundles.ready(bundle, entry)
        else:
            self._hand_in([entry])
        await entry.submitted

    def _in_its_name(self, error: SiteError) -> SiteError:
        name = self._facts.name
        if f"{error}".startswith(f"{name}: "):
            return error
        return SiteError(f"{name}: {error}", transient=error.transient)

    def _leaves_by_itself(self, pilot: Pilot) -> bool:
        """Whether the pilot's workers may leave when idle: no task is planned on them."""
        rules = self._facts.acquiring
        return rules.release in ("adaptive", "idle") and not rules.fewest and not pilot.tasks

    def _hand_in(self, entries: Sequence[_BatchPilot]) -> None:
        """Submit a bundle in one request, which goes on though some of its pilots are cancelled."""
        self._go_on(self._submit(entries))

    def _go_on(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, SiteError):  # that is told elsewhere
            self._say(f"{type(error).__name__}: {error}")

    async def _submit(self, entries: Sequence[_BatchPilot]) -> None:
        wanted = [entry for entry in entries if not entry.submitted.done()]
        if not wanted:
            return
        jobs: list[str] = []
        try:
            request = self._request(wanted)
            pilots = [entry.pilot.name for entry in wanted]
            if self._lasts:
                self._record.asks(request.name)
            else:
                host = socket.gethostname() if self._batch.ssh is None else ""
                self._record.asks(request.name, pilots, self._clock(), host)
            self._settlement.asks(request.name)
            is_answered = False
            try:
                jobs = await self._manager.submit(request)
                is_answered = True
            except SiteError as error:
                if not error.transient:
                    self._record.refused(request.name)
                    is_answered = True
                elif self._lasts:  # this process does not end soon, and only then looks for jobs
                    self._look_for([request.name])
                raise
            finally:
                self._settlement.answered(request.name, clearly=is_answered)
            self._jobs.update(zip(jobs, pilots, strict=True))
            self._record.has(request.name, dict(zip(jobs, pilots, strict=True)))
            if self._lasts and self._record.lines > MOST_LINES:
                self._tidy()
        except Exception as error:
            if isinstance(error, InputError):  # no job can be so here; elsewhere it may
                error = SiteError(f"{error}")
            elif isinstance(error, OSError | ValueError):
                error = SiteError(f"{type(error).__name__}: {error}")
            for entry in wanted:
                if not entry.submitted.done():
                    entry.submitted.set_exception(error)
            self._end_soon(jobs)
            return
        for job, entry in zip(jobs, wanted, strict=True):
            entry.job = job
            if entry.submitted.cancelled():
                self._end_soon([job])
                continue
            self._watch.add(job, lambda report, entry=entry: self._hear(entry, report))  # type: ignore[misc]
            entry.submitted.set_result(None)
        self._wanted.set()

    def _request(self, entries: Sequence[_BatchPilot]) -> JobRequest:
        pilot, together = entries[0].pilot, entries[0].together
        # A pool thinks of the start itself, a plan of tasks does not.
        seconds = min(pilot.duration + (STARTING if pilot.tasks else 0.0), self._longest)
        nodes, processors = None, pilot.processors
        per_node = _per_node(self._state)
        several = _SEVERAL_NODES[self._batch.manager]
        if per_node and several and pilot.least_processors is not None:
            nodes = (
                max(1, pilot.least_processors // per_node),
                max(1, -(-pilot.processors // per_node)),
            )
            processors = per_node
        elif per_node and several and together and processors > per_node:
            # As many on each node: a wide task finds its processors on one.
            count = -(-processors // per_node)
            nodes, processors = (count, count), processors // count
            if count * processors != pilot.processors:
                for entry in entries:
                    entry.processors = count * processors
        for entry in entries:
            entry.seconds = seconds
        due = self._due.get(pilot.name)
        name = self._job_name(pilot.name)
        reserved = name in self._reserved
        least = pilot.least_duration
        return JobRequest(
            name=name,
            processors=processors,
            seconds=seconds,
            script=pilot_script(self._batch, [entry.credential for entry in entries]),
            folder=self._folder,
            copies=len(entries),
            nodes=nodes,
            together=nodes is None and (together or not several),
            least_seconds=least if least is None else min(least, seconds),
            begin=None if due is None or reserved else due,
            reservation=name if reserved else None,
        )

    # What becomes of them.

    def _hear(self, entry: _BatchPilot, report: JobReport) -> None:
        """Handle a change in what is known of a pilot's job."""
        self._wanted.set()
        if not self._lasts:  # whose pilots are not settled lease by lease
            self._settlement.heard(report)
        what = f"{entry.pilot.name} (job {report.id})"
        match report.state:
            case "running":
                entry.has_run = True
                self._began(entry, report)
            case "pending" | "held" if entry.has_run:
                # Put back into the queue, whatever we said of that: what it was is gone.
                reason = f": {report.reason}" if report.reason else ""
                self._lose(entry, "lost", f"{what} was put back into the queue{reason}")
                self._end_soon([report.id])
            case "held" if entry.begun.done():  # adopted, and it will not begin
                self._lose(entry, "lost", f"{what} is held: {report.reason}")
                self._end_soon([report.id])
            case "held":
                self._fail(entry, SiteError(f"{what} is held: {report.reason}"))
            case "ended":
                loss: AllocationLoss = "ended" if report.how in ("completed", "timeout") else "lost"
                reason = f", {report.reason}" if report.reason else ""
                said = f"{what} has ended: {report.how}{reason}"
                if report.how == "failed":
                    self._go_on(self._lose_with_reason(entry, loss, said))
                else:
                    self._lose(entry, loss, said)

    def _joined(self, entry: _BatchPilot) -> None:
        """A worker has come from there, maybe before the scheduler says that the job runs."""
        pilot = entry.pilot
        if pilot.least_processors is None and pilot.least_duration is None:
            self._began(entry, None)
        else:
            self._watch.hurry()  # how much it got, the scheduler has to say

    def _began(self, entry: _BatchPilot, report: JobReport | None) -> None:
        """Note that the pilot has its processors."""
        if entry.has_begun or entry.begun.done():
            return
        entry.has_begun = True
        pilot = entry.pilot
        processors, seconds = entry.processors, None
        if report is not None and pilot.least_processors is not None:
            processors = report.processors
        if report is not None and pilot.least_duration is not None and report.until is not None:
            seconds = min(report.until - self._clock(), pilot.duration)
        elif entry.seconds != pilot.duration:
            seconds = entry.seconds
        try:
            entry.begin(processors, seconds)
        except Exception as error:
            self._fail(entry, error)
            return
        entry.begun.set_result(None)

    async def _lose_with_reason(self, entry: _BatchPilot, loss: AllocationLoss, said: str) -> None:
        """The scheduler has an exit status only; the program may have said more."""
        words = ""
        with contextlib.suppress(SiteError):
            # On a shared file system it may come late; what was said is a help, no more.
            path = complaints_of(entry.credential)
            answer = await self._shell.run(["tail", "-c", str(_LAST_WORDS), path])
            words = "; ".join(answer.stdout.split("\n")).strip("; \r") if not answer.status else ""
        self._lose(entry, loss, f'{said}; it said "{words}"' if words else said)

    def _fail(self, entry: _BatchPilot, error: Exception) -> None:
        """Report to those who wait for the pilot that it will not begin."""
        for future in (entry.submitted, entry.begun):
            if not future.done():
                future.set_exception(error)

    def _lose(self, entry: _BatchPilot, loss: AllocationLoss, reason: str) -> None:
        if entry.job:
            self._watch.drop(entry.job)
        if not entry.begun.done():
            self._fail(entry, SiteError(reason))
        elif not entry.lost.done():
            entry.lost.set_result((loss, reason))

    async def _release(self, entry: _BatchPilot, door: PilotAdmission) -> None:
        door.revoke(entry.pilot.name)
        await self._give_up(entry)

    async def _give_up(self, entry: _BatchPilot) -> None:
        """The job ends, whatever state it is in."""
        self._pilots.pop(entry.pilot.name, None)
        for future in (entry.submitted, entry.begun):
            if not future.done():
                future.cancel()  # a job that is just being handed in is ended then
            elif not future.cancelled():
                future.exception()  # is told elsewhere
        ending = None
        if entry.job:
            self._watch.drop(entry.job)
            if not entry.lost.done():
                ending = self._end_soon([entry.job])
        self._wanted.set()
        if ending is not None:
            await asyncio.shield(ending)
        if self._job_name(entry.pilot.name) in self._reserved:
            await self._unreserve(self._job_name(entry.pilot.name))
        for file in (entry.credential, complaints_of(entry.credential)):
            with contextlib.suppress(SiteError):
                await self._shell.remove(file)

    def _end_soon(self, jobs: Iterable[str]) -> "asyncio.Task[None] | None":
        """Jobs that go at about the same time go by one command; the task that ends them."""
        self._to_end.update(jobs)
        if self._to_end and (self._ending is None or self._ending.done()):
            self._ending = self._go_on(self._end_gathered())
        return self._ending

    async def _end_gathered(self) -> None:
        await asyncio.sleep(_GATHERED)
        while self._to_end:
            jobs = sorted(self._to_end)
            self._to_end.clear()
            try:
                await self._manager.cancel(jobs)
                self._not_ended.difference_update(jobs)
            except SiteError as error:
                # Nobody lets their workers in any more, and those that are there leave.
                if not self._not_ended.issuperset(jobs):
                    self._say(f"jobs {', '.join(jobs)} are to be ended later: {error}")
                self._not_ended.update(jobs)

    # What is left behind.

    async def _end_leftovers(self) -> None:
        """End what an earlier process requested and could not give back."""
        left = self._record.read()
        if not left:
            return
        jobs = {job: pilot for job, pilot in left.jobs.items() if pilot not in self._pilots}
        jobs |= await self._settlement.adopt(left)
        if jobs:
            # What waits when it is cancelled has never run, even if nothing is kept of it.
            for report in (await self._manager.look(list(jobs))).values():
                self._settlement.heard(report)
            await self._manager.cancel(list(jobs))
        for name in left.windows:
            self._reserved.add(name)
            await self._unreserve(name)
        if self._lasts:
            self._look_for(left.names)
            self._tidy()
        else:
            self._jobs.update(jobs)  # seen to be gone at the end, with what they took

    def _look_for(self, names: Iterable[str]) -> None:
        """Have jobs ended that requests of these names became, or become while that may be."""
        until = asyncio.get_running_loop().time() + LATE
        self._unanswered.update(dict.fromkeys(names, until))
        self._wanted.set()

    async def _end_unanswered(self) -> None:
        """End the jobs of submissions whose answer was lost."""
        if not isinstance(self._manager, JobFinder):
            return
        now = asyncio.get_running_loop().time()
        with contextlib.suppress(SiteError):  # asked again soon
            for name, until in list(self._unanswered.items()):
                self._end_soon(await self._manager.named(name))
                if now >= until:
                    self._record.refused(name)
                    del self._unanswered[name]
        if self._unanswered:
            self._wanted.set()

    def _tidy(self) -> None:
        """The record has no more jobs than may be there; nor do we."""
        there = {entry.job for entry in self._pilots.values()} | self._to_end | self._not_ended
        self._record.forget(lambda job: job not in there)
        self._jobs = {job: pilot for job, pilot in self._jobs.items() if job in there}

    async def _close(self) -> None:
        """Whatever of ours is there goes, and is seen to be gone."""
        await self._settlement.close()
        for entry in list(self._pilots.values()):
            await self._give_up(entry)
        while self._tasks:
            done, late = await asyncio.wait(self._tasks, timeout=PARTING)
            if not done:  # what they ask for is written down for the next process
                for task in late:
                    task.cancel()
                await asyncio.wait(late)
        for name in sorted(self._reserved):
            await self._unreserve(name)
        are_known = await self._find_unanswered()
        left = await self._see_them_gone()
        if left:
            self._say(f"jobs {', '.join(left)} may still be there")
        elif (
            are_known
            and not self._reserved
            and not self._settlement.is_owed
            and (self._is_ready or not self._record.read())
        ):
            self._record.clear()
        await self._keep_usage()
        with contextlib.suppress(SiteError):
            await self._shell.remove(self._folder)

    async def _find_unanswered(self) -> bool:
        """
        Jobs of submissions whose answer was lost are ours, too.

        Returns
        -------
        bool
            Whether all of them are known; otherwise the next process looks for them.
        """
        names = self._record.read().names
        if not names:
            return True
        if not isinstance(self._manager, JobFinder):
            return False
        try:
            for name in names:
                self._jobs.update(dict.fromkeys(await self._manager.named(name), ""))
        except SiteError as error:
            self._say(str(error))
            return False
        return True

    async def _see_them_gone(self) -> list[str]:
        """Wait until the jobs have ended; report those that have not, or whose state is unknown."""
        loop = asyncio.get_running_loop()
        left = list(self._jobs)
        give_up = loop.time() + PARTING
        told = ""
        while left and loop.time() < give_up:
            try:
                reports = await self._manager.look(left)
                left = [job for job in left if reports[job].state in ("pending", "held", "running")]
                if left:
                    await self._manager.cancel(left)
            except SiteError as error:
                if not error.transient:
                    self._say(str(error))
                    return left
                if not told:  # a scheduler that is started again comes back in seconds
                    told = str(error)
                    self._say(f"{told}; asked again for {PARTING:g} s")
                await asyncio.sleep(1.0)
            if left:
                await asyncio.sleep(0.2)
        return left

    async def _keep_usage(self) -> None:
        """Append the scheduler's usage figures of jobs that the settlement did not report."""
        jobs = [job for job in self._jobs if job not in self._settlement.told]
        if not jobs:
            return
        try:
            said = await self._manager.usage(jobs)
        except SiteError as error:
            self._say(f"no record of what was used: {error}")
            return
        with contextlib.suppress(OSError), self._usage.open("ab") as file:
            for job, used in said.items():
                row = PilotUsage(
                    pilot=self._jobs[job],
                    job=job,
                    processors=used.processors,
                    seconds=used.seconds,
                    how=used.how or "unknown",
                )
                file.write(msgspec.json.encode(row) + b"\n")


class HeldPilot:
    """
    Handle of a pilot at a batch site.

    Parameters
    ----------
    entry
        State of the pilot.
    release
        Coroutine function that ends the pilot.
    """

    def __init__(self, entry: _BatchPilot, release: Callable[[], Awaitable[None]]) -> None:
        self._entry = entry
        self._release = release

    @property
    def workers(self) -> int:
        """One while the pilot's job is there, else zero."""
        return int(not self._entry.lost.done())

    async def lost(self) -> tuple[AllocationLoss, str]:
        """
        Return when the job that holds the processors has ended by itself.

        See :class:`bursar.sites.protocol.HeldProcessors`.
        """
        return await asyncio.shield(self._entry.lost)

    async def release(self) -> None:
        """End the pilot's job."""
        await self._release()


_SEVERAL_NODES = {"slurm": True, "gridengine": False, "pbs": False, "lsf": False, "flux": False}
"""Whether a pilot may hold processors of several nodes: whose scripts start it on each."""


def _future() -> "asyncio.Future[Any]":
    return asyncio.get_running_loop().create_future()


def _look_ahead(state: QueueState) -> tuple[Machine | None, tuple[BackfillWindow, ...]]:
    try:
        machine = project_queue(state)
    except InputError:
        return None, ()
    return machine, backfill_windows_of(machine)


def _per_node(state: QueueState | None) -> int | None:
    if state is None:
        return None
    return max((node.processors for node in state.nodes if node.up), default=None)
