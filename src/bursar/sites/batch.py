"""A cluster with a batch scheduler as a site: each pilot is an ordinary job there."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from bursar.market.lease import Lease
from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import InputError, SiteError
from bursar.model.matching import SiteStatus
from bursar.model.provisioning import BatchScheduler
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.provisioning.accounting import USAGE
from bursar.provisioning.lrm import manager_of
from bursar.provisioning.lrm.command_runner import CommandRunner
from bursar.provisioning.lrm.resource_manager import JobReport, ResourceManager
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.sites.batch_pilot import BatchPilot, HeldPilot, SubmissionBundles
from bursar.sites.job_endings import PARTING, JobEndings
from bursar.sites.job_settlement import JobSettlement
from bursar.sites.job_watch import JobWatch
from bursar.sites.pilot_job import complaints_of, pilot_request, pilot_terms, read_complaint
from bursar.sites.pilot_job_journal import PilotJobJournal
from bursar.sites.protocol import MeteredTime, PilotBeginListener
from bursar.sites.queue_observer import QueueObserver
from bursar.sites.window_reservations import WindowReservations
from bursar.supervisor import TaskSupervisor
from bursar.worker.launch import Endpoint, PilotAdmission

FRESH = 5.0
"""Seconds for which an answer about the queue is used after a job of ours has changed there."""

MOST_LINES = 1_000
"""Lines from which on the journal of jobs is rewritten without jobs that are gone."""


class BatchSite:
    """
    Provides processors of a cluster whose batch scheduler runs our pilots as jobs.

    The site is used within the context :meth:`opened`.

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
    history
        Folder in which what is learned of waits is kept between runs; None: nowhere.
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
        history: Path | None = None,
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
            notify=self._notify,
        )
        self._watch = JobWatch(self._manager, self._notify)
        self._pilots: dict[str, BatchPilot] = {}  # by name
        self._bundles: SubmissionBundles[BatchPilot] = SubmissionBundles(self._hand_in)
        self._jobs: dict[str, str] = {}  # to their pilots, every job of this process
        self.queue = QueueObserver(
            facts, self._manager, held=self._held_processors, clock=clock, history=history
        )
        self._is_ready = False
        self._has_adopted = not lasting  # until then, nobody knows which jobs are left over
        self._readying: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._windows = WindowReservations(
            self._manager,
            self._record,
            job_name=self._job_name,
            longest=lambda: self.queue.longest,
            clock=clock,
            notify=self._notify,
        )
        self._tasks = TaskSupervisor(self._on_failure)  # tasks that end by themselves
        self._endings = JobEndings(
            self._manager, self._record, start=self._tasks.start, notify=self._notify
        )

    @property
    def facts(self) -> SiteFacts:
        """Facts of the site."""
        return self._facts

    def _notify(self, message: str) -> None:
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
        try:
            async with TaskSupervisor(self._on_unwatched) as watching:
                watching.start(self._watch.run())
                watching.start(self._keep_fresh())
                yield
        finally:
            self.queue.keep_history()
            await (self.leave() if self._lasts else self._close())

    async def adopt(
        self,
        pilots: Sequence[Allocation],
        endpoints: Mapping[str, Endpoint],
        notify: Callable[[str], None],
    ) -> dict[str, "HeldPilot"]:
        """
        Take over an earlier process's pilots whose jobs are still there; return the pilots by name.

        Parameters
        ----------
        endpoints
            Where the workers of each pilot report, by pilot name.
        notify
            Called with a line for people on what becomes of a pilot.
        """
        self._on_event = notify
        jobs = {pilot: job for job, pilot in self._record.read().jobs.items()}
        held: dict[str, HeldPilot] = {}
        for pilot in pilots:
            admission = endpoints[pilot.name].admission
            if pilot.name not in jobs or admission is None:
                continue
            entry = BatchPilot.adopted(
                pilot, notify, credential=f"{self._folder}/{pilot.name}.json", job=jobs[pilot.name]
            )
            self._pilots[pilot.name] = entry
            self._watch.add(entry.job, lambda report, entry=entry: self._on_report(entry, report))  # type: ignore[misc]
            held[pilot.name] = entry.held(partial(self._release, entry, admission))
        return held

    async def end_others(self, pilots: Collection[str]) -> None:
        """End jobs of an earlier process that belong to no pilot of this one."""
        # Only from now on: before, a job of a pilot still to be adopted would look left over.
        self._has_adopted = True
        with contextlib.suppress(SiteError):  # tried again when the queue is asked for next
            await self._make_ready()

    async def leave(self) -> None:
        """Leave the pilots to the run's next process: from now on none of them is ended."""
        await self._tasks.close()

    def _on_unwatched(self, error: BaseException) -> None:
        """Fail the pilots: what becomes of their jobs is not seen any more."""
        # Without a watch nobody would hear that a job ended: the run would wait for ever.
        failure = SiteError(f"{self._facts.name}: {type(error).__name__}: {error}")
        self._notify(f"is not watched any more: {type(error).__name__}: {error}")
        for entry in list(self._pilots.values()):
            entry.fail(failure)

    async def _make_ready(self) -> None:
        """Give back what an earlier process left, once for all concurrent callers."""
        if self._is_ready:
            return
        if self._readying is None or self._readying.done():
            self._readying = self._tasks.start(self._become_ready())
        # Shielded: one caller that gives up must not abort what the others wait for.
        await asyncio.shield(self._readying)

    async def _become_ready(self) -> None:
        # Before the queue is read, so that leftovers are not counted as somebody else's load.
        await self._end_leftovers()
        await self.refresh()
        self._is_ready = True

    async def refresh(self) -> None:
        """Query the queue's present state; raise SiteError when the scheduler does not answer."""
        await self.queue.refresh()

    def offers(self) -> tuple[Slot, ...]:
        """Slots that our model of the queue leaves free; starts are seconds from now."""
        return self.queue.offers()

    def status(self, seconds: float | None = None) -> SiteStatus:
        """Status from the scheduler's last answer; see the Site protocol."""
        return self.queue.status(seconds)

    def view(self) -> PoolSite:
        """Return the site as an acquiring pool sees it; see the Site protocol."""
        return self.queue.view(self.unwatched)

    def _held_processors(self) -> int:
        return sum(p.pilot.processors for p in self._pilots.values() if p.has_begun)

    async def _keep_fresh(self) -> None:
        """Ask for the queue now and then, and soon after a job of ours has changed there."""
        loop = asyncio.get_running_loop()
        every = self._facts.acquiring.probe_every
        while True:
            with contextlib.suppress(TimeoutError):
                # A change of our own jobs cuts the wait short; the sleep keeps questions apart.
                async with asyncio.timeout_at(self.queue.asked + every):
                    await self._wanted.wait()
            await asyncio.sleep(max(0.0, self.queue.asked + min(FRESH, every) - loop.time()))
            self._wanted.clear()
            try:
                if self._has_adopted:
                    await self._make_ready()  # maybe nobody asks for a pilot any more
                await self.refresh()
            except SiteError:
                self.queue.asked = loop.time()  # the watch says so when it matters
                continue
            await self.queue.probe(self._job_name("probe"), self._folder)
            # The scheduler has just answered, so what it could not be told before has a chance now.
            self._endings.end_again()
            await self._endings.end_unanswered()
            if self._endings.is_searching:
                self._wanted.set()

    # Reservations.

    async def reserve(self, pilots: Sequence[Allocation]) -> float:
        """
        Make reservations of the scheduler where this user may; otherwise pilots with a start are
        handed in at once as jobs that may not begin before it.
        """
        try:
            return await self._windows.reserve(pilots, list(self._pilots))
        except SiteError as error:
            raise self._in_its_name(error) from None

    def _job_name(self, pilot: str) -> str:
        return f"bursar-{self._run[:12]}-{pilot}"

    @property
    def unwatched(self) -> float:
        """Seconds for which a pilot may go on after its run was killed; see MeteringSite."""
        return 0.0 if self._lasts else self._facts.unwatched

    async def meter(self, lease: Lease, watched: float | None) -> MeteredTime:
        """Return when a lease's job began and ended, by the scheduler; see MeteringSite."""
        return await self._settlement.meter(lease, watched)

    # Pilots.

    async def acquire(
        self,
        pilot: Allocation,
        endpoint: Endpoint,
        *,
        rigid: bool,
        begin: PilotBeginListener,
        on_event: Callable[[str], None],
    ) -> "HeldPilot":
        """
        Submit a job, and wait until the job runs or a worker of the job reports.

        Pilots of one bundle are one submission.
        """
        admission = endpoint.admission
        if admission is None:
            raise SiteError(f"{self._facts.name}: nobody listens for pilots from elsewhere")
        entry = BatchPilot(
            pilot,
            begin,
            on_event,
            together=rigid,
            credential=f"{self._folder}/{pilot.name}.json",
            on_start=self.queue.note_worker_start,
        )
        self._pilots[pilot.name] = entry
        self.queue.expect(pilot)
        self._on_event = on_event
        try:
            await self._hand_over(entry, admission)
            await entry.begun
        except BaseException as error:
            admission.revoke(pilot.name)
            await self._give_up(entry)
            if isinstance(error, SiteError):
                raise self._in_its_name(error) from None
            raise
        return entry.held(partial(self._release, entry, admission))

    async def _hand_over(self, entry: BatchPilot, admission: PilotAdmission) -> None:
        """Write the pilot's credential at the site, and wait until the job is in the queue."""
        pilot = entry.pilot
        bundle = pilot.bundle if pilot.copies > 1 else ""
        if bundle:
            self._bundles.arrive(bundle, pilot.copies)
        try:
            await self._make_ready()
            terms = pilot_terms(
                self._facts,
                pilot,
                reach=self._batch.reach,
                on_join=lambda: self._joined(entry),
                on_leave=lambda: self._watch.doubt(entry.job),
            )
            # The credential lies at the site before the job is queued, which may start at once.
            secret = await admission.credential(terms)
            await self._shell.make_folder(self._folder)
            await self._shell.write(entry.credential, secret)
        except BaseException:
            if bundle:
                self._bundles.withdraw(bundle)
            raise
        if bundle:
            self._bundles.ready(bundle, entry)
        else:
            self._hand_in([entry])
        await entry.submitted

    def _in_its_name(self, error: SiteError) -> SiteError:
        start = f"{self._facts.name}: "
        told = f"{error}".startswith(start)
        return error if told else SiteError(f"{start}{error}", transient=error.transient)

    def _hand_in(self, entries: Sequence[BatchPilot]) -> None:
        """Submit a bundle in one request, which goes on if some of the pilots are cancelled."""
        if not self._tasks.is_closed:  # otherwise nobody waits for them any more
            self._tasks.start(self._submit(entries))

    def _on_failure(self, error: BaseException) -> None:
        if not isinstance(error, SiteError):  # that is failure elsewhere
            self._notify(f"{type(error).__name__}: {error}")

    async def _submit(self, entries: Sequence[BatchPilot]) -> None:
        # Pilots given up while their bundle was gathered are cancelled futures: no job for them.
        wanted = [entry for entry in entries if not entry.submitted.done()]
        if not wanted:
            return
        jobs: list[str] = []
        try:
            name = wanted[0].pilot.name
            request = pilot_request(
                self._batch,
                wanted,
                name=self._job_name(name),
                folder=self._folder,
                queue=self.queue,
                begin=self._windows.start_of(name),
                reservation=self._windows.name_for(name),
            )
            # On disk before the command runs: after a kill, the job is looked for by its name.
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
                # A clear refusal: no job can come of the request, and nobody needs to look for one.
                if not error.transient:
                    self._record.refused(request.name)
                    is_answered = True
                elif self._lasts:  # this process does not end soon, and only then looks for jobs
                    self._endings.note_unanswered([request.name])
                    self._wanted.set()
                raise
            finally:
                self._settlement.answered(request.name, clearly=is_answered)
            # Recorded before anybody is told: the next process must know of each pilot that began.
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
            self._endings.end_soon(jobs)
            return
        for job, entry in zip(jobs, wanted, strict=True):
            entry.job = job
            # The pilot was given up while the command ran: its job is there and has to end.
            if entry.submitted.cancelled():
                self._endings.end_soon([job])
                continue
            self._watch.add(job, lambda report, entry=entry: self._on_report(entry, report))  # type: ignore[misc]
            entry.submitted.set_result(None)
        self._wanted.set()

    def _on_report(self, entry: BatchPilot, report: JobReport) -> None:
        """Handle a change in what is known of a pilot's job."""
        self._wanted.set()
        entry.note_start(began=report.began)
        if not self._lasts:  # whose pilots are not settled lease by lease
            self._settlement.record_report(report)
        what = f"{entry.pilot.name} (job {report.id})"
        match report.state:
            case "running":
                entry.has_run = True
                self._began(entry, report)
            case "pending" | "held" if entry.has_run:
                # Put back into the queue, whatever we said of that: what it was is gone.
                reason = f": {report.reason}" if report.reason else ""
                self._lose(entry, "lost", f"{what} was put back into the queue{reason}")
                self._endings.end_soon([report.id])
            case "held" if entry.begun.done():  # adopted, and it will not begin
                self._lose(entry, "lost", f"{what} is held: {report.reason}")
                self._endings.end_soon([report.id])
            case "held":
                entry.fail(SiteError(f"{what} is held: {report.reason}"))
            case "ended":
                loss: AllocationLoss = "ended" if report.how in ("completed", "timeout") else "lost"
                entry.has_quit = report.how in ("completed", "failed")
                reason = f", {report.reason}" if report.reason else ""
                message = f"{what} has ended: {report.how}{reason}"
                if report.how == "failed":
                    self._tasks.start(self._lose_with_reason(entry, loss, message))
                else:
                    self._lose(entry, loss, message)

    def _joined(self, entry: BatchPilot) -> None:
        """Note that a worker has reported, maybe before the scheduler says that the job runs."""
        entry.note_start(joined=self._clock())
        # A fixed size is known without the scheduler, whose answer may be seconds away.
        if entry.pilot.least_processors is None and entry.pilot.least_duration is None:
            self._began(entry, None)
        else:
            self._watch.poll_soon()  # how much it got, the scheduler has to say

    def _began(self, entry: BatchPilot, report: JobReport | None) -> None:
        """Record that the pilot has received its processors."""
        # Worker and scheduler both announce the begin, in any order: the first one counts.
        if entry.has_begun or entry.begun.done():
            return
        entry.has_begun = True
        processors, seconds = entry.granted(report, self._clock())
        try:
            # The guard may refuse here for want of money; the processors then go back unused.
            entry.begin(processors, seconds)
        except Exception as error:
            entry.fail(error)
            return
        entry.begun.set_result(None)

    async def _lose_with_reason(self, entry: BatchPilot, loss: AllocationLoss, reason: str) -> None:
        """Report a job's end with the pilot's message; the scheduler has only an exit status."""
        words = await read_complaint(self._shell, entry.credential)
        self._lose(entry, loss, f'{reason}; it said "{words}"' if words else reason)

    def _lose(self, entry: BatchPilot, loss: AllocationLoss, reason: str) -> None:
        if entry.job:
            self._watch.drop(entry.job)
        if not entry.begun.done():
            entry.fail(SiteError(reason))
        elif not entry.lost.done():
            entry.lost.set_result((loss, reason))

    async def _release(self, entry: BatchPilot, admission: PilotAdmission) -> None:
        admission.revoke(entry.pilot.name)
        await self._give_up(entry)

    async def _give_up(self, entry: BatchPilot) -> None:
        """End the job in whatever state."""
        self._pilots.pop(entry.pilot.name, None)
        self.queue.forget(entry.pilot.name)
        entry.abandon()
        ending = None
        if entry.job:
            self._watch.drop(entry.job)
            if not entry.lost.done():
                if self._tasks.is_closed:  # left to the run's next process
                    return
                ending = self._endings.end_soon([entry.job])
        self._wanted.set()
        if ending is not None:
            # A cancelled caller must not leave a job in the queue.
            await asyncio.shield(ending)
        # After the job has ended: Slurm refuses to delete a reservation with jobs in it.
        reservation = self._windows.name_for(entry.pilot.name)
        if reservation is not None:
            await self._windows.release(reservation)
        for file in (entry.credential, complaints_of(entry.credential)):
            with contextlib.suppress(SiteError):
                await self._shell.remove(file)

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
            for report in (await self._manager.poll(list(jobs))).values():
                self._settlement.record_report(report)
            await self._manager.cancel(list(jobs))
        await self._windows.release_earlier(left.windows)
        if self._lasts:
            self._endings.note_unanswered(left.names)
            self._wanted.set()
            self._tidy()
        else:
            self._jobs.update(jobs)  # seen to be gone at the end, with what they took

    def _tidy(self) -> None:
        """Drop jobs that are gone from the record on disk and from memory."""
        # Jobs that are to end stay on record until the scheduler has been told.
        there = {entry.job for entry in self._pilots.values()} | self._endings.pending
        self._record.forget(lambda job: job not in there)
        self._jobs = {job: pilot for job, pilot in self._jobs.items() if job in there}

    async def _close(self) -> None:
        """End all jobs and give back all windows; wait until none is listed."""
        # First: it would go on asking about jobs that are cancelled here.
        await self._settlement.close()
        for entry in list(self._pilots.values()):
            await self._give_up(entry)
        while self._tasks:
            # Submissions under way still record their jobs, which are then ended below.
            done, _ = await asyncio.wait(self._tasks, timeout=PARTING)
            if not done:  # what they ask for is written down for the next process
                self._tasks.cancel()
                await self._tasks.wait()
        await self._windows.release_all()
        found, all_found = await self._endings.find_unanswered()
        self._jobs.update(dict.fromkeys(found, ""))
        left = await self._endings.wait_until_ended(list(self._jobs))
        if left:
            self._notify(f"jobs {', '.join(left)} may still be there")
        # The journal is emptied only if no doubt is left: no job, request, window or unpaid lease.
        elif (
            all_found
            and not self._windows
            and not self._settlement.is_owed
            and (self._is_ready or not self._record.read())
        ):
            self._record.clear()
        # After the jobs have gone: only then are the scheduler's figures final.
        await self._settlement.keep_usage(self._jobs)
        with contextlib.suppress(SiteError):
            await self._shell.remove(self._folder)
        await self._tasks.close()
