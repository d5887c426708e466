"""
The life of an allocation as a pure state machine: events go in, decisions come out.

::

                 ask            grant            man
    ASKED ----------> (asking) -------> GRANTED -----> READY
      |                  |                 |             |
      | finish           | refuse,         | refuse      |-- lose ------------------> LOST
      v                  | withdraw        |             |                             |
    ENDED <--------------+-----------------'             '-- finish, time over: ENDED  |
      |                                                           |    (release)       |
      '-----------------------------------------------------------+--------------------'
                                                                  v
                                                               SETTLED

The machine keeps no clock and does no input or output. Whoever carries an allocation out
(:mod:`bursar.sites.allocation_keeper`) asks :meth:`AllocationLife.next_step` what is to be done,
does it, and reports what came of it. An event that comes too late, or twice, changes nothing.

An allocation whose request was refused is over: a new try is a new allocation with a name of its
own, since names are keys of journals and of schedulers' jobs. When a new try is due is decided
by whoever asks (:mod:`bursar.provisioning.pool_memory` for pools,
:mod:`bursar.service.provisioner.pool_backoffs` for services). Workers that come and go change the
load of an allocation and not its state: it is lost when the site says so.
"""

import math
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from bursar.model.allocation import Allocation, AllocationLoss

LATE = 0.05
"""Seconds by which processors may come late and still count as on time."""


class LifeAction(Enum):
    """
    What is to be done for an allocation now.

    ``WAIT``: nothing, until something happens or a moment comes. ``ASK``: ask the site for the
    processors. ``WITHDRAW``: take back the request, whose processors may come nevertheless.
    ``EXPIRE``: prolong the allocation, or finish it. ``RELEASE``: give the processors back.
    ``SETTLE``: pay what it came to. ``NONE``: nothing any more.
    """

    WAIT = "wait"
    ASK = "ask"
    WITHDRAW = "withdraw"
    EXPIRE = "expire"
    RELEASE = "release"
    SETTLE = "settle"
    NONE = "none"


class LifeStep(NamedTuple):
    """
    A decision of the life cycle.

    Parameters
    ----------
    until
        Moment at which to decide again if nothing happens before; infinite: none.
    """

    action: LifeAction
    until: float = math.inf


class AllocationLife:
    """
    Moves one allocation through its life.

    Parameters
    ----------
    allocation
        The allocation, with times on one clock.
    due
        When to ask the site; minus infinity: now.
    grace
        Seconds for which the processors are kept past the end, for tasks that end just then.
    keeps_start
        Whether it is paid from the agreed start on however late the processors come, since whoever
        asks for them is late.

    Attributes
    ----------
    allocation, due
        As given; the allocation changes with each event.
    """

    def __init__(
        self,
        allocation: Allocation,
        *,
        due: float = -math.inf,
        grace: float = 0.0,
        keeps_start: bool = False,
    ) -> None:
        self.allocation = allocation
        self.due = due
        self._grace = grace
        self._keeps_start = keeps_start
        self._was_asked = False
        self._holds = False
        self._awaited = -math.inf  # until when workers of before a restart may come back
        self._free_since: float | None = None  # from when on nothing is held and nothing asked

    @property
    def was_asked(self) -> bool:
        """Whether the site was asked for the processors."""
        return self._was_asked

    @property
    def holds(self) -> bool:
        """Whether the site holds processors that are to be given back some time."""
        return self._holds

    # What is to be done.

    def next_step(self, now: float, present: int = 0) -> LifeStep:
        """
        Return what is to be done now.

        Parameters
        ----------
        present
            Processors of workers that are connected: an allocation that is not needed any more, and
            whose tasks are not stopped, is released when there are none.
        """
        a = self.allocation
        if self._holds:
            is_empty = not present and now >= self._awaited
            if a.is_over or a.stopped or (a.leaving and is_empty):
                return LifeStep(LifeAction.RELEASE)
            last = a.until + self._grace
            if now >= last:
                return LifeStep(LifeAction.EXPIRE)
            moments = [last]
            if a.leaving and now < self._awaited:
                moments.append(self._awaited)
            return LifeStep(LifeAction.WAIT, min(moments))
        if a.settled is not None:
            return LifeStep(LifeAction.NONE)
        if a.is_over:
            return LifeStep(LifeAction.SETTLE)
        if self._was_asked:
            return LifeStep(LifeAction.WITHDRAW if a.leaving else LifeAction.WAIT)
        return LifeStep(LifeAction.ASK) if now >= self.due else LifeStep(LifeAction.WAIT, self.due)

    def payable(self, *, is_metered: bool) -> float | None:
        """
        Return the moment up to which an allocation that is over is paid; None: the site counts.

        What is bought as a whole is paid to its agreed end, used or not. A booking is paid from its
        agreed start. Elsewhere the record of a site that meters decides, and otherwise our clock.

        Parameters
        ----------
        is_metered
            Whether the site counts for how long processors were held.
        """
        a = self.allocation
        if a.whole:
            return a.latest_end
        if is_metered and self._was_asked and a.works and not a.booked:
            return None
        return self._free_since

    # What has happened.

    def ask(self) -> bool:
        """Note that the site is being asked; return False if it was asked before or need not be."""
        if self._was_asked or self.allocation.is_over or self.allocation.leaving:
            return False
        self._was_asked = True
        return True

    def grant(
        self,
        now: float,
        processors: int | None = None,
        seconds: float | None = None,
        *,
        may_be_longer: bool = False,
    ) -> bool:
        """
        Note that the site gives the processors, before any worker is there.

        The time counts from here, or from the agreed start if the site keeps that; an agreed end
        stays. Once only: what is granted again, or after the end, changes nothing.

        Parameters
        ----------
        processors, seconds
            Number of processors and their time; None: as asked for.
        may_be_longer
            Whether more time than asked for is taken.
        """
        a = self.allocation
        if a.granted is not None or a.is_over:
            return False
        paid_from = now
        if a.start is not None and (self._keeps_start or now <= a.start + LATE):
            paid_from = a.start
        changed: dict[str, Any] = {"granted": now, "paid_from": paid_from}
        if processors is not None and processors != a.processors:
            # What the site gives is what is paid, not what was asked for.
            changed.update(processors=processors, unpaid=0)
        if seconds is not None and (may_be_longer or seconds < a.duration):
            changed["duration"] = seconds
        if math.isinf(a.until):
            changed["until"] = paid_from + changed.get("duration", a.duration)
        self.allocation = replace(a, **changed)
        return True

    def man(self, now: float) -> bool:
        """Note that workers were started: from here on there is something to give back."""
        a = self.allocation
        if a.ready is not None or a.is_over:
            return False
        self._holds = True
        self.allocation = replace(a, ready=now)
        return True

    def adopt(self, now: float, awaited: float = -math.inf) -> bool:
        """
        Note that processors of before a restart are still there.

        Parameters
        ----------
        awaited
            Until when its workers may come back with tasks; until then it is not taken for idle.
        """
        if not self.man(now):
            return False
        self._was_asked = True
        self._awaited = awaited if self.allocation.granted is not None else -math.inf
        return True

    def is_awaited(self, now: float) -> bool:
        """Return whether workers of before a restart may still come back."""
        return now < self._awaited

    def returned(self) -> None:
        """Note that a worker of before a restart has come back."""
        self._awaited = -math.inf

    def prolong(self, until: float, duration: float | None = None) -> None:
        """
        Move the end of processors that are there; ``duration`` is a new length, in seconds.

        Before the grant nothing changes: the time as asked for counts from then on.
        """
        if self.allocation.granted is not None and not self.allocation.is_over:
            changed = self.allocation.duration if duration is None else duration
            self.allocation = replace(self.allocation, until=until, duration=changed)

    def finish(self, now: float, *, at_once: bool) -> bool:
        """
        Note that nobody needs the allocation any more; return whether that is new.

        Parameters
        ----------
        at_once
            Whether tasks that run there are stopped; otherwise it is released once it is empty.
        """
        a = self.allocation
        if a.is_over or (a.leaving and (a.stopped or not at_once)):
            return False
        self.allocation = replace(a, leaving=True, stopped=a.stopped or at_once)
        if not self._was_asked:
            self._end(now, "ended", "")
        return True

    def refuse(self, now: float, loss: AllocationLoss, reason: str) -> bool:
        """Note that the site does not give the processors, or failed before workers were there."""
        return not self._holds and self._end(now, loss, reason)

    def withdraw(self, now: float) -> bool:
        """Note that the request was taken back before the site gave any processors."""
        return not self._holds and self._end(now, "ended", "")

    def lose(self, now: float, loss: AllocationLoss, reason: str) -> bool:
        """Note that the processors are gone, or their workers have left by themselves."""
        return self._holds and self._end(now, loss, reason)

    def released(self, now: float) -> bool:
        """Note that the processors are back at the site; return False if they were before."""
        if not self._holds:
            return False
        self._holds = False
        self._end(now, "ended", "")
        self._free_since = now
        return True

    def settle(self, now: float) -> bool:
        """Note that the allocation is paid; return False if it was before, or is not over."""
        a = self.allocation
        if a.settled is not None or not a.is_over or self._holds:
            return False
        self.allocation = replace(a, settled=now)
        return True

    def expire(self, now: float) -> bool:
        """Note that its time is over, and that it is not prolonged."""
        return self._holds and self._end(now, "ended", "")

    def _end(self, now: float, loss: AllocationLoss, reason: str) -> bool:
        """Note the end, once; whatever comes later is a consequence of it."""
        a = self.allocation
        if a.is_over:
            return False
        if not self._holds:
            self._free_since = now
        moment = {"lost": now} if loss == "lost" else {"ended": now}
        self.allocation = replace(a, loss=loss, reason=reason, **moment)  # type: ignore[arg-type]
        return True


class AllocationObserver:
    """Observer of allocations, which does nothing; subclasses override the methods."""

    def began(self, allocation: Allocation) -> None:
        """Note that an allocation has processors with workers."""

    def moved(self, allocation: Allocation) -> None:
        """Note that another site serves a request than the one that was asked."""

    def ended(self, allocation: Allocation, loss: AllocationLoss, reason: str) -> None:
        """Note that an allocation is over or was never granted."""
