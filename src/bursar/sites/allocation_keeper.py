"""Carries one allocation through its life at a site: waits, asks, holds, and gives back."""

import asyncio
import contextlib
import math
from typing import Protocol

from bursar.model.allocation import Allocation, AllocationLoss
from bursar.model.errors import BudgetStop, BursarError
from bursar.provisioning.allocation_life import AllocationLife, LifeAction
from bursar.sites.protocol import HeldProcessors
from bursar.supervisor import TaskSupervisor, heard_by_waiter


class AllocationHolder(Protocol):
    """Whoever holds allocations: what differs between a run and a service."""

    def now(self) -> float:
        """Return the present time on the clock of the allocations."""

    def present(self, keeper: "AllocationKeeper") -> int:
        """Return the processors whose workers are connected, see :class:`AllocationLife`."""

    async def acquire(self, keeper: "AllocationKeeper") -> HeldProcessors:
        """Ask the site for the processors; cancelled when nobody needs these any more."""

    async def begun(self, keeper: "AllocationKeeper") -> None:
        """Note that workers were started."""

    async def expired(self, keeper: "AllocationKeeper") -> None:
        """Prolong an allocation whose time is over, or finish it."""

    def dismiss(self, keeper: "AllocationKeeper") -> None:
        """Keep tasks from the allocation's workers: its processors are about to go."""


class AllocationKeeper:
    """
    Does what the life cycle of one allocation decides, and reports what comes of it.

    Parameters
    ----------
    held
        Processors of before a restart; None: the site is to be asked.

    Attributes
    ----------
    held
        Processors at the site; None: there are none yet, or no workers of its own.
    """

    def __init__(
        self, life: AllocationLife, holder: AllocationHolder, held: HeldProcessors | None = None
    ) -> None:
        self.life = life
        self.held = held
        self._holder = holder
        self._changed = asyncio.Event()

    @property
    def allocation(self) -> Allocation:
        """The allocation as it is now."""
        return self.life.allocation

    @property
    def name(self) -> str:
        """Name of the allocation."""
        return self.life.allocation.name

    def wake(self) -> None:
        """Decide anew: the allocation, or the load of its workers, has changed."""
        self._changed.set()

    def finish(self, *, at_once: bool = True) -> bool:
        """Note that nobody needs the allocation any more; return whether that is new."""
        is_new = self.life.finish(self._holder.now(), at_once=at_once)
        self.wake()
        return is_new

    async def run(self) -> None:
        """
        Carry the allocation until its processors are back at the site.

        A caller that is cancelled leaves the processors as they are, see :meth:`release`.

        Raises
        ------
        BursarError, OSError
            When the site refuses the processors, or fails.
        """
        lost: asyncio.Task[None] | None = None
        try:
            async with TaskSupervisor() as tasks:
                while True:
                    if self.held is not None and lost is None:
                        lost = tasks.start(self._watch(self.held), on_failure=heard_by_waiter)
                    if lost is not None and lost.done():
                        lost.result()
                    step = self.life.next_step(self._holder.now(), self._holder.present(self))
                    match step.action:
                        case LifeAction.WAIT:
                            await self.pause(step.until)
                        case LifeAction.ASK:
                            await self._ask()
                        case LifeAction.EXPIRE:
                            await self._holder.expired(self)
                        case _:
                            break
        except (BursarError, OSError):
            # The caller forgets the allocation: processors that nobody knows of would stay held.
            await self.release()
            raise
        await self.release()

    async def release(self) -> None:
        """Give the processors back; do nothing where none are held."""
        if not self.life.holds:
            return
        # Workers first, so that no task is given to processors that are about to go.
        self._holder.dismiss(self)
        try:
            if self.held is not None:
                await self.held.release()
        finally:
            self.life.released(self._holder.now())

    async def pause(self, until: float) -> None:
        """Wait until a moment, or until something changes."""
        self._changed.clear()
        if math.isinf(until):
            await self._changed.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - self._holder.now())):
                await self._changed.wait()

    async def _watch(self, held: HeldProcessors) -> None:
        """
        Note the loss of the processors at the moment at which the site tells of it.

        The holder may be stopping tasks just then (:meth:`AllocationHolder.expired`), after which
        the allocation would count as ended.
        """
        try:
            loss = await held.lost()
            self.life.lose(self._holder.now(), *loss)
        finally:
            self._changed.set()

    async def _ask(self) -> None:
        """Ask the site, unless that comes to be needless meanwhile: a queue may take days."""
        self.life.ask()
        try:
            if self.allocation.works and not await self._acquire():
                self.life.withdraw(self._holder.now())
                return
        except (BursarError, OSError) as error:
            self.life.refuse(self._holder.now(), loss_of(error), str(error))
            raise
        now, start = self._holder.now(), self.allocation.start
        # Processors that only pay for others' workers come with the agreement, without a word.
        self.life.grant(now if start is None else start)
        self.life.man(now)
        await self._holder.begun(self)

    async def _acquire(self) -> bool:
        async with TaskSupervisor() as tasks:
            asking = tasks.start(self._holder.acquire(self), on_failure=heard_by_waiter)
            asking.add_done_callback(lambda _: self._changed.set())
            while not asking.done() and not self.allocation.leaving:
                await self.pause(math.inf)
        # Processors that came although the request was cancelled count: they are to be released.
        if asking.cancelled():
            return False
        self.held = asking.result()
        return True


def loss_of(error: BursarError | OSError) -> AllocationLoss:
    """Return how an error counts against the site: as a refusal, or as one that passes."""
    # That there is no money is not the site's fault.
    passing = isinstance(error, OSError | BudgetStop) or error.transient
    return "unreachable" if passing else "refused"
