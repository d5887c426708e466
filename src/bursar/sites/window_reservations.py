"""Reservations that a batch scheduler keeps for pilots which begin later."""

import math
from collections.abc import Callable, Collection, Sequence

from bursar.model.allocation import Allocation
from bursar.model.errors import SiteError
from bursar.provisioning.lrm.resource_manager import ResourceManager
from bursar.sites.pilot_job_journal import PilotJobJournal

_AT_ONCE = 1.0  # seconds ahead up to which a pilot is due now
_SLACK = 60.0  # seconds of a reservation beyond its pilot: limits are in whole minutes


class WindowReservations:
    """
    Tracks which pilots begin later, and which of these the scheduler keeps a window for.

    A reservation is on disk before the scheduler is asked for it, so that a later process of
    the run gives back what this one could not.

    Parameters
    ----------
    job_name
        Returns the name of a pilot's job and reservation.
    longest
        Returns the longest time of one allocation, seconds.
    clock
        The present time by the scheduler's clock, seconds since the epoch.
    notify
        Called with a line for people.
    """

    def __init__(
        self,
        manager: ResourceManager,
        record: PilotJobJournal,
        *,
        job_name: Callable[[str], str],
        longest: Callable[[], float],
        clock: Callable[[], float],
        notify: Callable[[str], None],
    ) -> None:
        self._manager = manager
        self._record = record
        self._job_name = job_name
        self._longest = longest
        self._clock = clock
        self._notify = notify
        self._due: dict[str, float] = {}  # pilots with a start, seconds since the epoch
        self._reserved: set[str] = set()  # names of reservations
        self._may_reserve = manager.abilities.reservations

    def __len__(self) -> int:
        """Return how many reservations may be there."""
        return len(self._reserved)

    def start_of(self, pilot: str) -> float | None:
        """Return when a pilot is to begin, seconds since the epoch; None: at once."""
        return self._due.get(pilot)

    def name_for(self, pilot: str) -> str | None:
        """Return the name of a pilot's reservation; None where there is none."""
        name = self._job_name(pilot)
        return name if name in self._reserved else None

    async def reserve(self, pilots: Sequence[Allocation], kept: Collection[str]) -> float:
        """
        Reserve windows for pilots that begin later, where this user may.

        Parameters
        ----------
        pilots
            All pilots that are planned; their starts replace those of an earlier plan.
        kept
            Names of pilots that exist already, whose reservations stay.

        Returns
        -------
        float
            Seconds ahead of its start at which a pilot is to be handed in: 0, or infinite where
            it is handed in at once as a job that may not begin before.

        Raises
        ------
        SiteError
            When the scheduler cannot be asked now.
        """
        now = self._clock()
        for name in sorted(self._reserved - {self._job_name(pilot) for pilot in kept}):
            await self.release(name)
        self._due = {
            pilot.name: now + pilot.start
            for pilot in pilots
            # A pilot due now asks for its processors directly: a reservation would begin too late
            # for it.
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
                # All or none: half of a plan's windows would cost processors and help no task.
                for name in made:
                    await self.release(name)
                if error.transient:
                    raise
                # Most users may not reserve; asked once per process, then jobs with a begin time do
                # instead.
                self._may_reserve = False
                self._notify(f"no reservations ({error}): pilots are handed in ahead")
        return math.inf if self._manager.abilities.begin else 0.0

    async def _reserve(self, pilot: Allocation) -> None:
        seconds = math.ceil(min(pilot.duration, self._longest()) / 60) * 60 + _SLACK
        name = self._job_name(pilot.name)
        self._record.keeps(name)
        self._reserved.add(name)  # whatever happens while it is made
        await self._manager.reserve(name, self._due[pilot.name], seconds, pilot.processors)

    async def release_earlier(self, names: Collection[str]) -> None:
        """Give back reservations of an earlier process."""
        for name in names:
            self._reserved.add(name)
            await self.release(name)

    async def release_all(self) -> None:
        """Give back all reservations."""
        for name in sorted(self._reserved):
            await self.release(name)

    async def release(self, name: str) -> None:
        """Give a reservation back; retry at the end if the scheduler cannot be reached."""
        try:
            await self._manager.unreserve(name)
        except SiteError as error:
            self._notify(f"{error}; tried again at the end")  # where it does not end before
            return
        self._reserved.discard(name)
        self._record.keeps_no_more(name)
