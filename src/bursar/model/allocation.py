"""Processors of one site that are asked for, held and paid as one: the request and its life."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

AllocationLoss = Literal["refused", "unreachable", "ended", "lost"]
"""Why an allocation is over: the scheduler refused it, the scheduler could not be asked, its time
was over or it was given back, or it broke down."""


class AllocationState(StrEnum):
    """
    Stages of an allocation's life, in their order; an allocation is lost or has ended, never both.

    ``ASKED``: somebody wants it. ``GRANTED``: the site has given processors, which are paid from
    here on. ``READY``: workers were started there. ``LOST``: the site took the processors away,
    or they broke down. ``ENDED``: they were given back, their time was over, or the site refused.
    ``SETTLED``: what they came to is paid.
    """

    ASKED = "asked"
    GRANTED = "granted"
    READY = "ready"
    LOST = "lost"
    ENDED = "ended"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationLoad:
    """
    Connected and busy processors of an allocation.

    Parameters
    ----------
    ready
        Processors whose workers are connected.
    busy
        Number of these that have tasks.
    idle_since
        Time since which none is busy, seconds since the epoch; None while one is.
    joined
        The most processors that were ever connected at one time; None where nobody counts them,
        and then no processor of the allocation is ever taken to be silent.
    silent_since
        Time at which the last of the missing workers disconnected without taking leave, seconds
        since the epoch; None while none is missing.
    """

    ready: int = 0
    busy: int = 0
    idle_since: float | None = None
    joined: int | None = None
    silent_since: float | None = None


NO_LOAD = AllocationLoad()
"""The load of an allocation without workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationRequest:
    """
    A decision to ask for processors of a site.

    Parameters
    ----------
    site
        Name of the site; empty: not chosen yet.
    pool
        Pool of a service whose tasks are to run there; empty in a run.
    start
        Agreed start, seconds on the clock of whoever asks; None: when the site grants them.
    duration
        Longest duration, seconds; infinite: until released, or to an agreed end.
    until
        End of its time, seconds on the clock of whoever asks. Before the grant an agreed end, which
        holds whenever the site grants; infinite: the duration counts from the grant.
    least_processors
        Smaller number to accept if it starts sooner; None: no smaller one. Both numbers then are
        whole nodes.
    least_duration
        Shorter duration to accept if it starts sooner; None: no shorter one.
    bundle
        Label of the submission; allocations of one submission are released together. Empty: alone.
    race
        Label of the race; its first allocation to start is kept and the others are withdrawn.
    fits
        Whether the request should start at once, as far as the scheduler's queue tells.
    """

    site: str = ""
    pool: str = ""
    processors: int
    start: float | None = None
    duration: float = math.inf
    until: float = math.inf
    least_processors: int | None = None
    least_duration: float | None = None
    bundle: str = ""
    race: str = ""
    fits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation(AllocationRequest):
    """
    Processors of one site, from when to when, at what price, and how far their life has come.

    Times of the life are on the clock of whoever holds the allocation, seconds since the epoch in
    a run or a service. :class:`bursar.provisioning.allocation_life.AllocationLife` moves an
    allocation from one state to the next.

    Parameters
    ----------
    name
        Name of the allocation and of its lease in the journal, unique in a run or service.
    account
        Local account of its workers; empty: that of whoever holds it.
    unpaid
        Number of its processors that other allocations pay for, where a task spans both.
    unit_price
        Currency units per processor-second; None when unknown.
    fixed_price
        Currency units charged once; None when unknown.
    whole
        Whether the whole duration is paid, used or not.
    works
        Whether workers are started on it; otherwise it only pays for those of others.
    extensible
        Whether it outlasts its duration while a task runs, as far as the money goes.
    booked
        Whether it was booked ahead: the processors are kept, and paid, from the agreed start on.
    tasks
        Numbers of its own tasks, in order of execution; empty: it serves whatever comes.
    copy_of
        Number of the task for whose copy it was bought, which alone runs there; None: it is an
        allocation like any other.
    copies
        Number of allocations of its bundle.
    asked
        When somebody asked for it.
    granted
        When the site gave the processors; None while it waits.
    paid_from
        From when its processors are paid; None while it waits.
    ready
        When its workers were started; None before.
    lost
        When the site took its processors away; None: it did not.
    ended
        When it was over in any other way; None: it is not.
    settled
        When what it came to was paid; None before.
    loss, reason
        How it came to be over, in one word and in the site's own; empty before.
    leaving
        Whether it gets no more tasks, since nobody needs it.
    stopped
        Whether tasks that still run there are stopped, to run again elsewhere.
    workload
        What its workers do now.
    """

    name: str
    account: str = ""
    unpaid: int = 0
    unit_price: float | None = None
    fixed_price: float | None = None
    whole: bool = False
    works: bool = True
    extensible: bool = False
    booked: bool = False
    tasks: tuple[int, ...] = ()
    copy_of: int | None = None
    copies: int = 1
    asked: float = 0.0
    granted: float | None = None
    paid_from: float | None = None
    ready: float | None = None
    lost: float | None = None
    ended: float | None = None
    settled: float | None = None
    loss: AllocationLoss | None = None
    reason: str = ""
    leaving: bool = False
    stopped: bool = False
    workload: AllocationLoad = NO_LOAD

    @property
    def paid(self) -> int:
        """Number of processors that the allocation pays for itself."""
        return self.processors - self.unpaid

    @property
    def latest_end(self) -> float:
        """Latest end by start and duration, on the clock of the start; infinite without one."""
        return math.inf if self.start is None else self.start + self.duration

    @property
    def is_over(self) -> bool:
        """Whether the allocation was lost, has ended or was never granted."""
        return self.lost is not None or self.ended is not None

    @property
    def state(self) -> AllocationState:
        """The last stage of life that it has reached."""
        for state, moment in (
            (AllocationState.SETTLED, self.settled),
            (AllocationState.LOST, self.lost),
            (AllocationState.ENDED, self.ended),
            (AllocationState.READY, self.ready),
            (AllocationState.GRANTED, self.granted),
        ):
            if moment is not None:
                return state
        return AllocationState.ASKED

    def seen_from(self, now: float) -> "Allocation":
        """
        Return the allocation with start and duration as a site wants them, in seconds from now.

        An agreed end becomes a duration from the start on.
        """
        start = None if self.start is None else max(0.0, self.start - now)
        if math.isinf(self.until):
            return replace(self, start=start)
        begin = now if self.start is None else max(now, self.start)
        return replace(self, start=start, duration=max(0.0, self.until - begin))
