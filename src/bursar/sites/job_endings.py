"""Ending jobs at a batch scheduler: soon, by few commands, and until they are seen to be gone."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.resource_manager import ResourceManager
from bursar.sites.job_settlement import LATE
from bursar.sites.pilot_job_journal import JobFinder, PilotJobJournal

PARTING = 15.0
"""Seconds that jobs have to end when the site is closed."""

_GATHERED = 0.02  # seconds in which jobs are gathered that are to be ended by one command


class JobEndings:
    """
    Ends jobs, and remembers jobs whose cancellation has not reached the scheduler.

    Parameters
    ----------
    start
        Starts a coroutine as a task that nobody awaits.
    notify
        Called with a line for people.
    """

    def __init__(
        self,
        manager: ResourceManager,
        record: PilotJobJournal,
        *,
        start: Callable[[Coroutine[object, object, None]], "asyncio.Task[None]"],
        notify: Callable[[str], None],
    ) -> None:
        self._manager = manager
        self._record = record
        self._start = start
        self._notify = notify
        self._to_end: set[str] = set()  # jobs
        self._not_ended: set[str] = set()  # jobs whose cancellation did not reach the scheduler
        self._ending: asyncio.Task[None] | None = None
        # Names of requests whose answer was lost, of this process or an earlier one, and until
        # when they may still become jobs, loop time.
        self._unanswered: dict[str, float] = {}

    @property
    def pending(self) -> set[str]:
        """Jobs that are to end and may still be there."""
        return self._to_end | self._not_ended

    @property
    def is_searching(self) -> bool:
        """Whether requests without an answer may still become jobs."""
        return bool(self._unanswered)

    def end_soon(self, jobs: Iterable[str]) -> "asyncio.Task[None] | None":
        """
        End jobs; jobs named within 0.02 s of each other share one command.

        Returns
        -------
        asyncio.Task or None
            Task that ends them; None when there is nothing to end.
        """
        self._to_end.update(jobs)
        if self._to_end and (self._ending is None or self._ending.done()):
            self._ending = self._start(self._end_gathered())
        return self._ending

    def end_again(self) -> None:
        """Retry the cancellations that did not reach the scheduler."""
        if self._not_ended:
            self.end_soon(self._not_ended)

    async def _end_gathered(self) -> None:
        # A stopped run gives up all pilots at once: one command for hundreds of jobs, not hundreds.
        await asyncio.sleep(_GATHERED)
        # Jobs that came while the command ran are taken up by the same task.
        while self._to_end:
            jobs = sorted(self._to_end)
            self._to_end.clear()
            try:
                await self._manager.cancel(jobs)
                self._not_ended.difference_update(jobs)
            except SiteError as error:
                # Nobody lets their workers in any more, and those that are there leave.
                if not self._not_ended.issuperset(jobs):
                    self._notify(f"jobs {', '.join(jobs)} are to be ended later: {error}")
                self._not_ended.update(jobs)

    # Requests whose answer was lost: they may have become jobs, or become them yet.

    def note_unanswered(self, names: Iterable[str]) -> None:
        """Have the jobs ended that requests of these names have become or still become."""
        until = asyncio.get_running_loop().time() + LATE
        self._unanswered.update(dict.fromkeys(names, until))

    async def end_unanswered(self) -> None:
        """End the jobs that requests without an answer have become."""
        if not isinstance(self._manager, JobFinder):
            return
        now = asyncio.get_running_loop().time()
        with contextlib.suppress(SiteError):  # asked again soon
            for name, until in list(self._unanswered.items()):
                self.end_soon(await self._manager.named(name))
                # Written off only after the search: a job that appears at the last moment is still
                # ended.
                if now >= until:
                    self._record.refused(name)
                    del self._unanswered[name]

    async def find_unanswered(self) -> tuple[list[str], bool]:
        """
        Return the jobs of requests whose answer was lost.

        Returns
        -------
        jobs : list of str
            Ids of the jobs that were found.
        complete : bool
            Whether there are no others; otherwise the next process looks for them.
        """
        found: list[str] = []
        names = self._record.read().names
        if not names:
            return found, True
        if not isinstance(self._manager, JobFinder):
            return found, False
        try:
            for name in names:
                found += await self._manager.named(name)
        except SiteError as error:
            self._notify(str(error))
            return found, False
        return found, True

    # The end of the site.

    async def wait_until_ended(self, jobs: Sequence[str]) -> list[str]:
        """Wait until jobs have ended; return jobs still there or of unknown state."""
        loop = asyncio.get_running_loop()
        left = list(jobs)
        give_up = loop.time() + PARTING
        problem = ""
        while left and loop.time() < give_up:
            try:
                reports = await self._manager.poll(left)
                left = [job for job in left if reports[job].state in ("pending", "held", "running")]
                if left:
                    # Again each time: a job that was just being started may have missed the first
                    # one.
                    await self._manager.cancel(left)
            except SiteError as error:
                if not error.transient:
                    self._notify(str(error))
                    return left
                if not problem:  # a scheduler that is started again comes back in seconds
                    problem = str(error)
                    self._notify(f"{problem}; asked again for {PARTING:g} s")
                await asyncio.sleep(1.0)
            if left:
                await asyncio.sleep(0.2)
        return left
