"""Watch the jobs of a batch scheduler by one query for all, at adaptive intervals."""

import asyncio
import contextlib
from collections.abc import Callable

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.resource_manager import JobReport, ResourceManager

SOONEST = 0.2
"""Seconds between two looks right after something has changed."""

LATEST = 10.0
"""Seconds between two looks when nothing has changed for long: a login node is not ours alone."""

_SLOWER = 1.3
_SHARE = 9  # pause before the next look, in durations of the last: a tenth of the time is asking
_MOST = 60.0  # seconds, so that a scheduler that hangs is asked again

URGENT = 0.5
"""Seconds from one look to the next when a worker has been lost, however slow the scheduler is."""

_URGENT_LOOKS = 3  # after a loss: a job that is being cancelled is said to run for a moment
_MOST_OWED = 60.0  # seconds of pauses that were cut short and not yet made up for

FORGOTTEN = 120.0
"""Seconds for which the scheduler does not know a job before the job counts as gone."""

JobReportListener = Callable[[JobReport], None]
"""Called with the report on a job when the report has changed."""


class JobWatch:
    """
    Watches the jobs of one site.

    Parameters
    ----------
    notify
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
        """Watch a job until :meth:`drop`."""
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
        """Shorten the pauses between looks again, since a change is expected soon."""
        self._pause = SOONEST
        self._changed.set()

    def doubt(self, job: str) -> None:
        """
        Look at once, since a worker of a job has been lost.

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
        """Poll the scheduler for ever."""
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
        """Pause between queries; news cuts the pause to ``least`` seconds, a loss at any time."""
        loop = asyncio.get_running_loop()
        courteous = loop.time() + least
        # Even urgent looks keep this distance: one crashed node loses all its workers in one burst.
        await asyncio.sleep(min(URGENT, least))
        # Cut pauses are a debt that later pauses pay off. At the limit a loss waits like all else,
        # so that a flapping node cannot keep a slow controller busy.
        if self._owed < _MOST_OWED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(courteous):
                    await self._urgent.wait()
        else:
            await asyncio.sleep(courteous - loop.time())
        # A loss cut the pause short.
        if loop.time() < courteous:
            self._owed += courteous - loop.time()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(courteous + pause - least):
                await self._changed.wait()
        # Whatever was rested beyond the courteous part pays off the debt.
        self._owed = max(0.0, self._owed - (loop.time() - courteous))

    def _settle(self, job: str) -> None:
        """End the urgency of a job that has lost a worker."""
        self._doubtful.pop(job, None)
        if not self._doubtful:
            self._urgent.clear()

    async def poll(self) -> None:
        """Ask the scheduler once and pass on what has changed."""
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
            # Several looks each: right after a node is lost the scheduler still says that its job
            # runs.
            self._doubtful[job] = looks - 1
            if looks <= 1:
                self._settle(job)

    def _take(self, job: str, report: JobReport, now: float) -> None:
        if report.state == "unknown":
            since = self._unknown_since.setdefault(job, now)
            # Not listed is not ended: accounting lags, and a restarted controller reads its jobs
            # back first.
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
