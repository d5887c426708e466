"""A batch site's queue, projected onto our model of a cluster, and the status that follows."""

import asyncio
import contextlib
import math
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bursar.cluster.machine import Machine
from bursar.cluster.slots import offered_slots
from bursar.model.allocation import Allocation
from bursar.model.errors import InputError, SiteError
from bursar.model.matching import SiteStatus
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot, limit_offers
from bursar.provisioning.lrm.resource_manager import (
    JobRequest,
    QueuedJob,
    QueueState,
    ResourceManager,
)
from bursar.provisioning.pool_snapshot import PoolSite
from bursar.provisioning.queue_forecaster import ProjectedQueue, QueueForecaster, user_of
from bursar.provisioning.wait_forecast import WaitForecast
from bursar.sites.start_ups import RECENT, WORKER_STARTS, note_worker_start

# Projects a real queue onto our model of a batch-scheduled cluster to see what will be free.

UNLIMITED = 30 * 86_400.0
"""Seconds that a job without a known limit is taken to last."""

SHORTEST = 60.0
"""Seconds of the shortest slot worth advertising."""


def project_queue(state: QueueState) -> ProjectedQueue:
    """
    Return the queue on a simulated machine whose clock reads 0 now.

    Running jobs last to their limits, waiting ones start by EASY backfilling, which is what
    Slurm and its like do with the default priorities; held ones do not. Reservations are
    kept from all.

    Raises
    ------
    InputError
        When no node is up.
    """
    if not state.processors:
        raise InputError("no node is up")
    machine = Machine(state.processors, "easy", overrun="extend")
    asked: list[float] = []
    elapsed: list[float] = []
    users: list[str] = []

    def submit(width: int, seconds: float, gone: float, left: float, user: str = "") -> None:
        machine.submit(width, left)
        asked.append(seconds)
        elapsed.append(gone)
        users.append(user)

    left = machine.processors
    for job in state.jobs:
        width = min(_on_nodes_that_are_up(job, state), left) if job.running else 0
        if width:
            left -= width
            gone = 0.0 if job.began is None else max(state.at - job.began, 0.0)
            # A job past its limit is being killed: it holds its processors a little longer, never
            # less.
            still = max(_asked(job.seconds) - gone, 1.0)
            submit(width, gone + still, gone, still, user_of(job))
    # Held by jobs that this user does not see.
    held = sum(min(node.allocated, node.processors) for node in state.nodes if node.up)
    # Sites may hide other users' jobs, but their nodes show that processors are taken.
    hidden = min(held - (machine.processors - left), left)
    if hidden > 0:
        submit(hidden, UNLIMITED, 0.0, UNLIMITED)
    machine.advance(machine.now)
    for window in state.windows:
        start = max(0.0, window.start - state.at)
        _keep(machine, start, window.start + window.seconds - state.at, window.processors)
    for job in state.jobs:
        # Wider ones than the nodes that are up can never start, and the model would refuse them.
        if not job.running and not job.held and 1 <= job.processors <= machine.processors:
            seconds = _asked(job.seconds)
            submit(job.processors, seconds, 0.0, seconds, user_of(job))
    machine.advance(machine.now)
    # Those that the model starts at once lie behind those that run: in the order of their numbers.
    order = np.concatenate((machine.running, machine.waiting))
    return ProjectedQueue(
        machine,
        state.at,
        np.array(asked)[order],
        np.array(elapsed)[order],
        tuple(users[number] for number in order.tolist()),
    )


def _on_nodes_that_are_up(job: QueuedJob, state: QueueState) -> int:
    """Count processors of a running job on nodes that are up; draining nodes offer nothing."""
    if not job.nodes:
        return job.processors
    up = {node.name for node in state.nodes if node.up}
    there = sum(name in up for name in job.nodes)
    # Schedulers list nodes, not processors on each: an even share, rounded up to promise too
    # little.
    return -(-job.processors * there // len(job.nodes))


def _keep(machine: Machine, start: float, end: float, processors: int) -> None:
    """
    Keep processors from jobs for a window, as many at each time as are free then.

    Jobs hold the others: jobs of the reservation itself, or jobs that overrun its start.
    """
    if not end > start:
        return
    times, free = machine.profile()
    ends = [*times[1:].tolist(), math.inf]
    for begin, until, count in zip(times.tolist(), ends, free.tolist(), strict=True):
        first, last = max(begin, start), min(until, end)
        width = min(processors, count)
        if last > first and width > 0:
            machine.reserve(first, last - first, width)


def slots_of(
    machine: Machine,
    site: str,
    *,
    most: int,
    longest: float,
    unit_price: float | None,
    fixed_price: float | None,
) -> tuple[Slot, ...]:
    """
    Return slots that a projected queue leaves free; starts are seconds from now.

    Parameters
    ----------
    most
        Processors that may be held at a time.
    longest
        Longest duration of one slot, seconds.
    """
    # Early and long first, since these take their share of the processors that may be held at all.
    free = sorted(offered_slots(machine), key=lambda slot: (slot.start, -slot.duration))
    offers = (
        replace(
            slot,
            site=site,
            duration=min(slot.duration, longest),
            unit_price=unit_price,
            fixed_price=fixed_price,
            divisible=True,
            extensible=False,
        )
        for slot in free
        if min(slot.duration, longest) >= SHORTEST
    )
    return tuple(limit_offers(offers, most))


def backfill_windows_of(machine: Machine) -> tuple[Slot, ...]:
    """Return the free slots as a pool's backfill windows; starts are seconds from now."""
    return tuple(offered_slots(machine, since=machine.now))


def _asked(seconds: float | None) -> float:
    return seconds if seconds is not None and 0 < seconds < math.inf else UNLIMITED


# Observation of a batch site's queue, and the site's status that follows.

_SEVERAL_NODES = {"slurm": True, "gridengine": False, "pbs": False, "lsf": False, "flux": False}
"""Whether a pilot may hold processors of several nodes: Slurm's script starts it on each node."""


class QueueObserver:
    """
    Keeps the scheduler's last answer about a queue, with the offers and status that follow.

    Parameters
    ----------
    facts
        Facts of the site; they name its batch scheduler.
    held
        Processors that pilots of ours hold now.
    clock
        The present time by the scheduler's clock, seconds since the epoch.
    history
        Folder in which what is learned of waits is kept between runs; None: nowhere.
    """

    def __init__(
        self,
        facts: SiteFacts,
        manager: ResourceManager,
        *,
        held: Callable[[], int],
        clock: Callable[[], float],
        history: Path | None = None,
    ) -> None:
        assert facts.batch is not None
        self.spans_nodes = _SEVERAL_NODES[facts.batch.manager]
        self.asked = 0.0
        """Time of the last question, loop time."""
        name = "".join(c if c.isalnum() else "-" for c in facts.name)
        self._history = None if history is None else history / f"queue-{name}.json"
        self._forecaster = read_forecaster(self._history)
        self._starts_noted = 0
        self._facts = facts
        self._manager = manager
        self._held = held
        self._clock = clock
        self._state: QueueState | None = None
        self._projected: ProjectedQueue | None = None
        self._backfill_windows: tuple[Slot, ...] = ()
        self._probed: float | None = None  # seconds until a processor is there, as it says
        self._probe_at = 0.0
        self._using = threading.Lock()  # looks and forecasts are made in threads
        self._expected: dict[str, Callable[[], WaitForecast | None]] = {}

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
        seen, windows = await asyncio.to_thread(self._look_ahead, state)
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
            self._projected.machine,
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
        traversal = self._probed  # the scheduler's own word before our model of it
        if traversal is None and self._projected is not None:
            machine = self._projected.machine
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

    def wait_forecast(self, processors: int, seconds: float) -> WaitForecast | None:
        """
        Return how long a request would wait that is made now, as a distribution.

        The last answer about the queue counts (see :meth:`refresh`); nothing is asked or submitted.
        The call takes some milliseconds for a queue of a hundred jobs, and grows with the queue.
        The forecast does not change afterwards. It is sampled by ``sample(count, rng)`` and read by
        ``wait_quantiles(shares)``, both in seconds, and has an atom at 0 where the request is
        expected to start at once. Its ``seen`` tells with how many earlier waits the forecast is
        calibrated: below 9, none, and the projections are given as they are. Waits of one forecast
        are of one request; those of several requests depend on each other.

        Parameters
        ----------
        processors, seconds
            What the request would ask for.

        Returns
        -------
        WaitForecast or None
            None before the first answer, and for a request that the nodes that are up could never
            run.
        """
        with self._using:
            return self._forecaster.forecast(processors, seconds)

    def note_worker_start(self, seconds: float) -> None:
        """Keep for later runs how long after the begin of its job a worker joined."""
        if self._history is not None and self._starts_noted < RECENT:  # no more are looked at
            self._starts_noted += 1
            path = self._history.with_name(WORKER_STARTS)
            note_worker_start(path, self._facts, seconds, self._clock())

    def expect(self, pilot: Allocation) -> None:
        """Note a pilot that is about to be asked for: the queue is as it was seen before."""
        # Its own job would be one that the request waits for in a later look. To project takes time
        # in long queues: not before somebody wants to know.
        look = self._forecaster.last_look
        seconds = min(pilot.duration, self.longest)

        def forecast() -> WaitForecast | None:
            if look is None:
                return None
            with self._using:
                return self._forecaster.forecast(pilot.processors, seconds, look)

        self._expected[pilot.name] = cache(forecast)

    def expected_wait(self, pilot: str) -> WaitForecast | None:
        """
        Return how long a pilot should wait from its request on, by the queue before it.

        May be called in any thread; the first call for a pilot projects the queue. Pilots that were
        asked for together know nothing of each other.

        Returns
        -------
        WaitForecast or None
            None for a pilot that was not asked for here, or where the queue says nothing.
        """
        forecast = self._expected.get(pilot)
        return None if forecast is None else forecast()

    def forget(self, pilot: str) -> None:
        """Forget a pilot that is gone."""
        self._expected.pop(pilot, None)

    def keep_history(self) -> None:
        """Write what was learned of waits for the next run, where there is a file for it."""
        if self._history is not None:
            write_history(self._history, self._forecaster.kept())

    def _look_ahead(self, state: QueueState) -> tuple[ProjectedQueue | None, tuple[Slot, ...]]:
        try:
            queue = project_queue(state)
        except InputError:
            queue = None
        with self._using:
            self._forecaster.observe(state, queue)
        if queue is None:
            return None, ()
        return queue, backfill_windows_of(queue.machine)

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


# What was learned of waits, kept in files for later runs.


def read_forecaster(file: Path | None) -> QueueForecaster:
    """Read what earlier runs have learned of a queue; nothing, where that is missing or damaged."""
    rng = np.random.default_rng()
    try:
        kept = b"" if file is None else file.read_bytes()
        return QueueForecaster.of_kept(msgspec.json.decode(kept), rng)
    except (OSError, msgspec.MsgspecError, InputError, TypeError):
        return QueueForecaster(rng)


def write_history(file: Path, kept: Mapping[str, Any]) -> None:
    """
    Write a history of waits; of runs that end at one time, the last one's is kept.

    The history is a help only: where the file cannot be written, the old one stays.
    """
    part = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        part.write_bytes(msgspec.json.encode(kept))
        # In one step: another run may read it now.
        os.replace(part, file)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
