"""Watch the jobs of a batch scheduler by one query for all, as often as it pays."""

import asyncio
import contextlib
from collections.abc import Callable

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.resource_manager import JobReport, ResourceManager

SOONEST = 0.2
"""Seconds between two looks right after something has changed."""

LATEST = 10.0
"""Seconds between two looks when nothing has for long: a login node is not ours alone."""

_SLOWER = 1.3
_SHARE = 9  # times as long as a look takes it is waited before the next
_MOST = 60.0  # seconds, so that a scheduler that hangs is asked again

URGENT = 0.5
"""Seconds from one look to the next when a worker has been lost, however slow the scheduler is."""

_URGENT_LOOKS = 3  # after a loss: a job that is being cancelled is said to run for a moment
_MOST_OWED = 60.0  # seconds of pauses that were cut short and not yet made up for

FORGOTTEN = 120.0
"""Seconds for which nobody knows of a job before it is taken to be gone."""

JobReportListener = Callable[[JobReport], None]
"""Told what is known of a job, when that has changed."""


class JobWatch:
    """
    Watches the jobs of one site.

    Parameters
    ----------
    manager
        Adapter to the scheduler.
    say
        Called with a line for people when the scheduler cannot be asked, and when it can again.
    """

    def __init__(self, manager: ResourceManager, notify: Callable[[str], None]) -> None:
        self._manager = manager
        self._notify = notify
        self._reports: dict[str, JobReport | None] = {}
        self._listeners: dict[str, JobReportListener] = {}
        self._unknown_since: dict[str, float] = {}
        self._pause = SOONEST
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        self._doubtful: dict[str, int] = {}  # jobs that lost a worker: urgent looks left
        self._owed = 0.0
        self._silent = False

    @property
    def jobs(self) -> tuple[str, ...]:
        """Ids of the watched jobs."""
        return tuple(self._listeners)

    def add(self, job: str, listener: JobReportListener) -> None:
        """Watches a job until it is dropped."""
        self._listeners[job] = listener
        self._reports[job] = None
        self.poll_soon()

    def drop(self, job: str) -> None:
        """Stop watching a job."""
        self._listeners.pop(job, None)
        self._reports.pop(job, None)
        self._unknown_since.pop(job, None)
        self._settle(job)

    def poll_soon(self) -> None:
        """Expects a change soon: the next looks follow each other as closely as courtesy allows."""
        self._pause = SOONEST
        self._changed.set()

    def doubt(self, job: str) -> None:
        """
        Looks at once, since a worker of a job has been lost.

        A loss does not wait for the pause that a slow scheduler is left in peace for: that time is
        made up for by later pauses, and no more than a minute of it is ever owed.

        Parameters
        ----------
        job
            Identity of the job; one that is not watched is ignored.
        """
        if job in self._listeners:
            self._doubtful[job] = _URGENT_LOOKS
            self._urgent.set()
            self.poll_soon()

    async def run(self) -> None:
        """Looks again and again, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._listeners:
                self._changed.clear()
                await self._changed.wait()
            self._changed.clear()
            began = loop.time()
            await self.poll()
            # A slow scheduler is not asked more than a tenth of the time, but for losses.
            least = min(max(SOONEST, _SHARE * (loop.time() - began)), _MOST)
            pause = max(self._pause, least)
            self._pause = min(self._pause * _SLOWER, LATEST)
            await self._rest(least, pause)

    async def _rest(self, least: float, pause: float) -> None:
        """Waits for a pause, or for news once its least part is over, or for a loss before that."""
        loop = asyncio.get_running_loop()
        courteous = loop.time() + least
        await asyncio.sleep(min(URGENT, least))
        if self._owed < _MOST_OWED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(courteous):
                    await self._urgent.wait()
        else:
            await asyncio.sleep(courteous - loop.time())
        if loop.time() < courteous:
            self._owed += courteous - loop.time()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(courteous + pause - least):
                await self._changed.wait()
        self._owed = max(0.0, self._owed - (loop.time() - courteous))

    def _settle(self, job: str) -> None:
        """Ends the urgency of a job that has lost a worker."""
        self._doubtful.pop(job, None)
        if not self._doubtful:
            self._urgent.clear()

    async def poll(self) -> None:
        """Asks once, and tells what has changed."""
        jobs = list(self._listeners)
        if not jobs:
            return
        try:
            reports = await self._manager.poll(jobs)
        except SiteError as error:
            self._unknown_since.clear()  # who is not asked cannot forget
            if not self._silent:
                self._silent = True
                self._notify(f"{error}; asked again until it answers")
            return
        if self._silent:
            self._silent = False
            self._notify("the scheduler answers again")
        now = asyncio.get_running_loop().time()
        for job in jobs:
            report = reports.get(job) or JobReport(id=job, state="unknown")
            if job in self._listeners:
                self._take(job, report, now)
        for job, looks in list(self._doubtful.items()):
            self._doubtful[job] = looks - 1
            if looks <= 1:
                self._settle(job)

    def _take(self, job: str, report: JobReport, now: float) -> None:
        if report.state == "unknown":
            since = self._unknown_since.setdefault(job, now)
            if now - since < FORGOTTEN:
                return
            report = JobReport(
                id=job,
                state="ended",
                how="unknown",
                reason=report.reason or "the scheduler does not know it any more",
            )
        else:
            self._unknown_since.pop(job, None)
        if report != self._reports[job]:
            self._reports[job] = report
            self._pause = SOONEST
            self._listeners[job](report)
