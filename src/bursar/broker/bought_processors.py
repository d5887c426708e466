"""Processors that a campaign has bought for its jobs, one pilot each."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bursar.model.allocation import Allocation
from bursar.model.site import SiteFacts


@dataclass(slots=True)
class BoughtProcessor:
    """
    A pilot that runs our jobs one after the other.

    Parameters
    ----------
    name
        Name of the pilot's lease.
    price
        Currency units per processor-second.
    since
        When the job that runs now was sent, seconds since the begin of the run.
    until
        Expected end of all jobs on the processor.
    tasks
        Unfinished jobs sent to the processor, in order.
    again
        Whether the processor may get more jobs.
    agreements
        Agreements with the owner by the task that each was made for.
    begin
        When what was booked ahead begins; minus infinite when nothing was.
    """

    name: str
    site: str
    price: float
    since: float
    until: float
    tasks: list[int] = field(default_factory=list)
    again: bool = True
    agreements: dict[int, str] = field(default_factory=dict)
    begin: float = -math.inf

    def is_ahead(self, now: float) -> bool:
        """Return whether the processor was booked and has not begun."""
        return now < self.begin

    def pilot(self, site: SiteFacts, tasks: Sequence[int], now: float) -> Allocation:
        """Return the pilot that runs jobs on this processor, a new one or one to be extended."""
        return Allocation(
            name=self.name,
            site=self.site,
            processors=1,
            start=None if math.isinf(self.begin) else self.begin,
            booked=not math.isinf(self.begin),
            duration=self.until - max(now, self.begin),
            unit_price=None if site.unit_price is None else self.price,
            fixed_price=site.fixed_price,
            extensible=not site.is_shared,
            tasks=tuple(tasks),
        )


class BoughtProcessors:
    """
    Records our processors by site, and the processor of each job.
    """

    def __init__(self, sites: Sequence[str]) -> None:
        self._held: dict[str, BoughtProcessor] = {}
        self._at: dict[str, dict[str, BoughtProcessor]] = {site: {} for site in sites}
        self._where: dict[int, str] = {}
        self.leases = 0
        """Number of the last lease that was made."""

    def __iter__(self) -> Iterator[BoughtProcessor]:
        return iter(list(self._held.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._held

    def __getitem__(self, name: str) -> BoughtProcessor:
        return self._held[name]

    def get(self, name: str) -> BoughtProcessor | None:
        """Return the processor of a lease; None for a lease that has been dropped."""
        return self._held.get(name)

    @property
    def are_busy(self) -> bool:
        """Whether any job is on a processor."""
        return bool(self._where)

    def has(self, task: int) -> bool:
        """Return whether a job is on a processor."""
        return task in self._where

    def new_lease(self) -> str:
        """Return the name of another lease."""
        self.leases += 1
        return f"lease-{self.leases}"

    def add(self, held: BoughtProcessor) -> None:
        """Add a processor."""
        self._held[held.name] = self._at[held.site][held.name] = held

    def forget(self, name: str) -> BoughtProcessor | None:
        """Drop the processor of a lease; return the processor, or None for an unknown lease."""
        held = self._held.pop(name, None)
        if held is not None:
            del self._at[held.site][name]
        return held

    def put(self, task: int, held: BoughtProcessor) -> None:
        """Add a job to a processor's queue."""
        held.tasks.append(task)
        self._where[task] = held.name

    def take_off(self, task: int) -> BoughtProcessor | None:
        """Take a job off its processor; return the processor, or None if the job had none."""
        return self._held.get(self._where.pop(task, ""))

    def ahead_at(self, site: str, now: float) -> list[BoughtProcessor]:
        """Return the processors of a site that were booked and have not begun."""
        return [held for held in self._at[site].values() if held.is_ahead(now)]

    def promised(self, now: float) -> float:
        """Return the cost that jobs on our processors may still reach, currency units."""
        return sum(
            held.price * max(0.0, held.until - max(now, held.begin))
            for held in self._held.values()
            if held.tasks
        )

    def has_room(self, site: SiteFacts, now: float, depth: int) -> bool:
        """
        Return whether a job can be sent to a site now.

        It can while fewer processors have jobs than the site has, or while a processor that takes
        more jobs has fewer than ``depth``. Processors booked for a later time do not count.

        Parameters
        ----------
        now
            Seconds since the begin of the run.
        depth
            Most jobs that a processor is given, the one that runs included.
        """
        there = self._begun_at(site.name, now)
        if sum(bool(held.tasks) for held in there) < site.processors:
            return True
        return any(held.again and len(held.tasks) < depth for held in there)

    def processor_at(
        self, site: SiteFacts, price: float, seconds: float, now: float, depth: int
    ) -> BoughtProcessor | None:
        """
        Return a processor that has room: idle, new, or with the fewest jobs before this one.

        Parameters
        ----------
        price
            Price at which the job was bought; a processor has one price for all its jobs.
        seconds
            Time for which the job was bought.
        depth
            Jobs that a processor is given at most, the one that runs included.

        Returns
        -------
        BoughtProcessor or None
            None when none has room.
        """
        there = self._begun_at(site.name, now)
        # A lease has one price: a job bought at another needs a processor of its own.
        # Bargaining ends at whole micro-units for each job, so that equal prices differ by those.
        usable = [
            held for held in there if held.again and abs(held.price - price) * seconds <= _ROUNDING
        ]
        best = min(usable, key=lambda held: len(held.tasks), default=None)
        if best is not None and not best.tasks:
            return best
        if sum(bool(held.tasks) for held in there) < site.processors:
            made = BoughtProcessor(self.new_lease(), site.name, price, now, now)
            # At a shared site each job queues for its own processor, which ends with the job.
            made.again = not site.is_shared
            self.add(made)
            return made
        return best if best is not None and len(best.tasks) < depth else None

    def _begun_at(self, site: str, now: float) -> list[BoughtProcessor]:
        return [held for held in self._at[site].values() if not held.is_ahead(now)]


_ROUNDING = 3e-6
"""Currency units for one job, three micro-units, by which prices of equal bargains may differ."""
