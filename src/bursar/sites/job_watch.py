"""Jobs of a batch scheduler, watched: one question for all of them, asked as often as it pays."""

import asyncio
import contextlib
from collections.abc import Callable

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.manager import JobReport, ResourceManager

SOONEST = 0.2
"""Seconds between two looks right after something has changed."""

LATEST = 10.0
"""Seconds between two looks when nothing has for long: a login node is not ours alone."""

_SLOWER = 1.3
_SHARE = 9  # times as long as a look takes it is waited before the next
_MOST = 60.0  # seconds, so that a scheduler that hangs is asked again

FORGOTTEN = 120.0
"""Seconds for which nobody knows of a job before it is taken to be gone."""

Hear = Callable[[JobReport], None]
"""Told what is known of a job, when that has changed."""


class JobWatch:
    """
    Looks after the jobs of one site.

    Parameters
    ----------
    manager
        Who is asked.
    say
        Told, in one line for people, when the scheduler cannot be asked, and can again.
    """

    def __init__(self, manager: ResourceManager, say: Callable[[str], None]) -> None:
        self._manager = manager
        self._say = say
        self._heard: dict[str, JobReport | None] = {}
        self._hear: dict[str, Hear] = {}
        self._unknown_since: dict[str, float] = {}
        self._pause = SOONEST
        self._news = asyncio.Event()
        self._silent = False

    @property
    def jobs(self) -> tuple[str, ...]:
        """That are watched."""
        return tuple(self._hear)

    def add(self, job: str, hear: Hear) -> None:
        """Watches a job until it is dropped."""
        self._hear[job] = hear
        self._heard[job] = None
        self.hurry()

    def drop(self, job: str) -> None:
        """Watches it no more."""
        self._hear.pop(job, None)
        self._heard.pop(job, None)
        self._unknown_since.pop(job, None)

    def hurry(self) -> None:
        """Something is about to change."""
        self._pause = SOONEST
        self._news.set()

    async def run(self) -> None:
        """Looks again and again, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._hear:
                self._news.clear()
                await self._news.wait()
            self._news.clear()
            began = loop.time()
            await self.look()
            # A slow scheduler is not asked more than a tenth of the time, whatever the news.
            least = min(max(SOONEST, _SHARE * (loop.time() - began)), _MOST)
            pause = max(self._pause, least)
            self._pause = min(self._pause * _SLOWER, LATEST)
            await asyncio.sleep(least)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause - least):
                    await self._news.wait()

    async def look(self) -> None:
        """Asks once, and tells what has changed."""
        jobs = list(self._hear)
        if not jobs:
            return
        try:
            reports = await self._manager.look(jobs)
        except SiteError as error:
            self._unknown_since.clear()  # who is not asked cannot forget
            if not self._silent:
                self._silent = True
                self._say(f"{error}; asked again until it answers")
            return
        if self._silent:
            self._silent = False
            self._say("the scheduler answers again")
        now = asyncio.get_running_loop().time()
        for job in jobs:
            report = reports.get(job) or JobReport(id=job, state="unknown")
            if job in self._hear:
                self._take(job, report, now)

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
        if report != self._heard[job]:
            self._heard[job] = report
            self._pause = SOONEST
            self._hear[job](report)
