"""Observation of a batch site's queue, and the site's status that follows."""

import asyncio
import contextlib
from collections.abc import Callable

from bursar.cluster.machine import Machine
from bursar.model.errors import InputError, SiteError
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.status import SiteStatus
from bursar.provisioning.lrm.resource_manager import JobRequest, QueueState, ResourceManager
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.sites.projection import backfill_windows_of, project_queue, slots_of

_SEVERAL_NODES = {"slurm": True, "gridengine": False, "pbs": False, "lsf": False, "flux": False}
"""Whether a pilot may hold processors of several nodes: Slurm's script starts it on each node."""


class QueueObserver:
    """
    Keeps the scheduler's last answer about a queue, with the offers and status that follow.

    Parameters
    ----------
    facts
        Facts of the site; they name its batch scheduler.
    manager
        Adapter to the scheduler.
    held
        Processors that pilots of ours hold now.
    clock
        The present time by the scheduler's clock, seconds since the epoch.
    """

    def __init__(
        self,
        facts: SiteFacts,
        manager: ResourceManager,
        *,
        held: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        assert facts.batch is not None
        self.spans_nodes = _SEVERAL_NODES[facts.batch.manager]
        self.asked = 0.0
        """Time of the last question, loop time."""
        self._facts = facts
        self._manager = manager
        self._held = held
        self._clock = clock
        self._state: QueueState | None = None
        self._projected: Machine | None = None
        self._backfill_windows: tuple[Slot, ...] = ()
        self._probed: float | None = None  # seconds until a processor is there, as it says
        self._probe_at = 0.0

    async def refresh(self) -> None:
        """
        Query the queue's present state.

        Raises
        ------
        SiteError
            When the scheduler cannot be asked.
        """
        state = await self._manager.queue()
        # In a thread: a queue of thousands of jobs takes seconds, and workers report meanwhile.
        seen, windows = await asyncio.to_thread(_look_ahead, state)
        self.asked = asyncio.get_running_loop().time()
        self._state, self._projected, self._backfill_windows = state, seen, windows

    async def probe(self, name: str, folder: str) -> None:
        """
        Ask the scheduler for the start of a small request while no processor is free.

        The rules of the site say how often at most, since each question costs the scheduler a
        round of its own.

        Parameters
        ----------
        name, folder
            Name and folder for the request, from which no job results.
        """
        state, now = self._state, asyncio.get_running_loop().time()
        # With a free processor the answer is known, and the question would cost the scheduler a
        # round.
        if state is None or state.free:
            self._probed = None
            return
        rules = self._facts.acquiring
        if now < self._probe_at or not self._manager.abilities.start_estimates:
            return
        self._probe_at = now + rules.probe_every
        request = JobRequest(
            name=name,
            processors=1,
            seconds=min(rules.shortest, self.longest),
            script="exit 0\n",
            folder=folder,
        )
        try:
            start = await self._manager.expected_start(request)
        except SiteError:
            start = None  # a refusal is told when something is asked for in earnest
        self._probed = None if start is None else max(0.0, start - self._clock())

    def offers(self) -> tuple[Slot, ...]:
        """Return slots that our model of the queue leaves free; starts are seconds from now."""
        if self._projected is None:
            return ()
        return slots_of(
            self._projected,
            self._facts.name,
            most=self._facts.processors,
            longest=self.longest,
            unit_price=self._facts.unit_price,
            fixed_price=self._facts.fixed_price,
        )

    def status(self, seconds: float | None) -> SiteStatus:
        """Return the status by the scheduler's last answer; see the Site protocol."""
        state = self._state
        if state is None:
            raise SiteError(f"{self._facts.name}: its scheduler has not been asked", transient=True)
        machine = self._projected
        traversal = self._probed  # the scheduler's own word before our model of it
        if traversal is None and machine is not None:
            with contextlib.suppress(InputError):
                traversal = machine.expected_start(1, seconds or self._usual(state)) - machine.now
        return SiteStatus(
            site=self._facts.name,
            at=self.asked,
            free_processors=self._free(state),
            running=sum(job.running for job in state.jobs),
            waiting=sum(not job.running for job in state.jobs),
            traversal_time=traversal,
            state="Production" if state.up else "Closed",
        )

    def view(self, unwatched: float) -> PoolSite:
        """
        Return the site as an acquiring pool sees it; see the Site protocol.

        Parameters
        ----------
        unwatched
            Seconds for which a pilot may go on after its run was killed.
        """
        state, can = self._state, self._manager.abilities
        return PoolSite(
            name=self._facts.name,
            rules=self._facts.acquiring,
            processors=self._facts.processors,
            per_node=self.per_node,
            spans_nodes=self.spans_nodes,
            speed=self._facts.speed,
            unit_price=self._facts.unit_price,
            fixed_price=self._facts.fixed_price,
            batch=True,
            free=None if state is None else self._free(state),
            probed=self._probed,
            backfill_windows=self._backfill_windows,
            waiting=0 if state is None else sum(not j.running and not j.own for j in state.jobs),
            longest=None if state is None else state.longest,
            arrays=can.arrays,
            node_ranges=can.node_ranges,
            time_ranges=can.time_ranges,
            shrinks=can.shrinks,
            unwatched=unwatched,
        )

    @property
    def longest(self) -> float:
        """Longest time of one allocation, seconds."""
        longest = self._facts.acquiring.longest
        queue = None if self._state is None else self._state.longest
        return longest if queue is None else min(longest, queue)

    @property
    def per_node(self) -> int | None:
        """Processors of the widest node that is up; None while none is known."""
        if self._state is None:
            return None
        return max((node.processors for node in self._state.nodes if node.up), default=None)

    def _free(self, state: QueueState) -> int:
        return max(0, min(state.free, self._facts.processors - self._held()))

    def _usual(self, state: QueueState) -> float:
        """Return the mean time that jobs of the queue ask for, seconds."""
        asked = [job.seconds for job in state.jobs if job.seconds is not None]
        return sum(asked) / len(asked) if asked else self.longest


def _look_ahead(state: QueueState) -> tuple[Machine | None, tuple[Slot, ...]]:
    try:
        machine = project_queue(state)
    except InputError:
        return None, ()
    return machine, backfill_windows_of(machine)
