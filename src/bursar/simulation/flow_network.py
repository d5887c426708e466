"""
Simulates transfers over a network, each with a fair share of every wire used.

A fluid model: a flow has a rate at every moment, and rates change only when a flow begins
or ends or a wire's bandwidth does. Nothing happens between, so that a simulation costs as
much as its transfers, however long they take.
"""

import asyncio
import itertools
import math
from collections import deque
from collections.abc import Callable

from bursar.model.network import Route, Topology
from bursar.simulation.lane_table import Flow, LaneTable

__all__ = ["Flow", "FlowNetwork"]

_LIGHTEST, _HEAVIEST = 1e-3, 1e3


class FlowNetwork:
    """
    Carries the flows of a network.

    Flows share each wire by max-min fairness: no flow could get more but at the cost of one
    that gets no more than it.

    References
    ----------
    .. [1] Bertsekas, Gallager (1992). Data Networks, 2nd edition, section 6.5.2.
    """

    def __init__(self, topology: Topology, loop: asyncio.AbstractEventLoop) -> None:
        self.topology = topology
        self._loop = loop
        self._latest = loop.time()
        self._numbers = itertools.count(1)
        self._transferred = 0.0  # by flows that have ended
        self._unreported: deque[Flow] = deque()  # that have ended, and nobody knows
        self._dirty = False  # rates are to be found anew
        self._reporting = False
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf  # when it calls
        self._change: asyncio.TimerHandle | None = None
        # An infinite wire is no bottleneck: no lane is said to use it.
        bandwidths = [channel.bandwidth for channel in topology.channels]
        self._finite = [math.isfinite(bandwidth) for bandwidth in bandwidths]
        self._lanes = LaneTable([b if math.isfinite(b) else 0.0 for b in bandwidths])
        self._varying = [i for i, c in enumerate(topology.channels) if c.profile is not None]

    # What is asked of it.

    def send(
        self,
        source: str,
        target: str,
        size: float,
        done: Callable[[Flow], object],
        *,
        weight: float = 1.0,
        limit: float = math.inf,
    ) -> Flow:
        """
        Begin a transfer.

        Parameters
        ----------
        source, target
            Nodes. Within one node it takes no time.
        size
            Bytes. Finite, not negative.
        done
            Called with the flow once its last byte has arrived; never from within this call.
        weight
            A flow of weight 2 gets twice what one of weight 1 gets on a full wire. From
            0.001 to 1000.
        limit
            Greatest rate, bytes per second. Positive.

        Raises
        ------
        InputError
            When there is no such node, or no way.
        ValueError
            When a number is out of range.
        """
        if not 0 <= size < math.inf:
            raise ValueError(f"size must be finite and not negative, got {size}")
        if not _LIGHTEST <= weight <= _HEAVIEST:
            raise ValueError(f"weight must be from {_LIGHTEST:g} to {_HEAVIEST:g}, got {weight}")
        if not limit > 0:
            raise ValueError(f"limit must be positive, got {limit}")
        route = self.topology.route(source, target)
        now = self._now()
        flow = Flow(
            number=next(self._numbers), source=source, target=target, size=size, weight=weight,
            limit=limit, sent=now, done=done,
        )  # fmt: skip
        if route.latency > 0:
            flow.begins = self._loop.call_at(now + route.latency, self._begin, flow, route)
        else:
            self._begin(flow, route)
        return flow

    def cancel(self, flow: Flow) -> float:
        """
        Cancel a flow, and return the bytes that have arrived.

        Its ``done`` is not called any more, also if it ended at this very moment. One that
        has ended stays as it is.
        """
        # First of all: a flow that ended at this very moment may be among those of whom
        # `_report_ended` has still to tell.
        flow.done = _ignore_cancelled
        transferred = self.transferred(flow)
        if flow.ended is not None:
            return transferred
        if flow.begins is not None:
            flow.begins.cancel()
        now = self._now()
        if flow.lane is not None:
            self._lanes.leave(flow, now)
            self._change_rates()
        self._close(flow, now, transferred)
        return transferred

    def rate(self, flow: Flow) -> float:
        """Return a flow's bytes per second now; 0 before the first byte and after the last."""
        if flow.lane is None:
            return 0.0
        self._settle()
        return self._lanes.pace(flow.lane) * flow.weight

    def transferred(self, flow: Flow) -> float:
        """Return the bytes of a flow that have arrived."""
        if flow.lane is None:
            return flow.transferred
        gone = self._lanes.progress(flow.lane, self._now()) - flow.start
        return min(flow.size, max(0.0, gone) * flow.weight)

    @property
    def total_transferred(self) -> float:
        """Bytes of all flows that have arrived, cancelled flows included."""
        return self._transferred + math.fsum(map(self.transferred, self._lanes.flows()))

    @property
    def sending(self) -> int:
        """Number of flows that have bytes on the way now."""
        return len(self._lanes.flows())

    def bandwidth(self, source: str, target: str) -> float:
        """
        Return the bandwidth for a flow without competition, bytes per second.

        Infinite within a node, 0 where there is no way.

        Raises
        ------
        InputError
            When there is no such node.
        """
        route = self.topology.find(source, target)
        if route is None:
            return 0.0
        if not self._varying:
            return route.bandwidth
        now = self._now()
        return min((self._bandwidth_of(c, now) for c in route.channels), default=math.inf)

    def latency(self, source: str, target: str) -> float:
        """
        Return the seconds until a first byte would arrive; infinite where there is no way.

        Raises
        ------
        InputError
            When there is no such node.
        """
        route = self.topology.find(source, target)
        return math.inf if route is None else route.latency

    def share(self, source: str, target: str) -> float:
        """
        Return the rate that one more flow of weight 1 would get now, bytes per second.

        Others would then have less. Infinite within a node, 0 where there is no way.

        Raises
        ------
        InputError
            When there is no such node.
        """
        self._settle()
        route = self.topology.find(source, target)
        if route is None or not self._lanes.busy or not self._is_finite(route):
            return self.bandwidth(source, target)
        return self._lanes.pace_of_one_more((source, target, 1.0, math.inf), self._hops(route))

    # What happens in it.

    def _begin(self, flow: Flow, route: Route) -> None:
        """Start a flow when the first byte has arrived."""
        flow.begins = None
        if flow.size == 0 or (flow.limit == math.inf and not self._is_finite(route)):
            # No byte, or no bottleneck: no lane, but `done` is still called in the loop's next
            # round, as `send` promises.
            self._close(flow, self._now(), flow.size)
            self._unreported.append(flow)
            self._touch()
            return
        key = (flow.source, flow.target, flow.weight, flow.limit)
        lane = self._lanes.find(key) or self._lanes.open(key, self._hops(route))
        self._lanes.enter(lane, flow, self._now())
        self._change_rates()

    def _finish(self) -> None:
        """End the flows that are due now."""
        self._timer = None
        moment, self._next = self._next, math.inf
        # The loop may call up to its clock's resolution early; the flow ends at the moment that
        # was worked out.
        self._latest = max(self._latest, moment)
        if self._dirty:  # something else has happened at this very moment, before
            self._settle()
            return
        for flow in self._lanes.end(moment):
            self._close(flow, self._latest, flow.size)
            self._unreported.append(flow)
        self._dirty = True
        self._report_ended()

    def _report_ended(self) -> None:
        """Report the flows that have ended; callbacks may send more flows, or cancel some."""
        # Called ahead of the round that was asked for, so that round has nothing left to do.
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._reporting = True
        try:
            # One at a time: who is told may cancel a flow that is still in this queue. Rates are
            # found once, after all have been told, for the new flows that they send as well.
            while self._unreported:
                flow = self._unreported.popleft()
                flow.done(flow)
        finally:
            self._reporting = False
            if self._unreported:  # what was called has failed; the others are told all the same
                self._touch()
            self._settle()

    def _vary(self) -> None:
        """Find rates anew, as a wire's bandwidth changes now."""
        self._change = None
        self._dirty = True
        self._settle()

    def _close(self, flow: Flow, now: float, transferred: float) -> None:
        flow.ended = now
        flow.transferred = transferred
        self._transferred += transferred

    def _change_rates(self) -> None:
        self._dirty = True
        self._touch()

    def _touch(self) -> None:
        """Schedule one report and one computation of rates for all that happens at this moment."""
        if self._soon is None and not self._reporting:
            self._soon = self._loop.call_soon(self._report_ended)

    def _settle(self) -> None:
        """Find the rates after changes, and the next end of a flow."""
        if not self._dirty:
            return
        self._dirty = False
        now = self._now()
        # While nothing is sent no change of bandwidth is waited for, so that an idle network
        # keeps no timer.
        if self._varying and self._lanes.busy and self._change is None:
            self._check_profiles(now)
        moment = self._lanes.share_anew(now)
        if moment == self._next and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next = moment
        if moment < math.inf:
            self._timer = self._loop.call_at(moment, self._finish)

    def _check_profiles(self, now: float) -> None:
        """Set each wire's bandwidth as of now, and a timer for the next change."""
        change = math.inf
        for number in self._varying:
            self._lanes.set_capacity(number, self._bandwidth_of(number, now))
            profile = self.topology.channels[number].profile
            assert profile is not None
            change = min(change, profile.change_after(now))
        self._change = self._loop.call_at(change, self._vary)

    def _bandwidth_of(self, number: int, now: float) -> float:
        channel = self.topology.channels[number]
        if channel.profile is None:
            return channel.bandwidth
        return channel.bandwidth * channel.profile.share_at(now)

    def _is_finite(self, route: Route) -> bool:
        return any(self._finite[c] for c in route.channels)

    def _hops(self, route: Route) -> list[int]:
        return [c for c in route.channels if self._finite[c]]

    def _now(self) -> float:
        """Return the loop's time; never less than before, though a loop may call a little early."""
        self._latest = max(self._latest, self._loop.time())
        return self._latest


def _ignore_cancelled(_: Flow) -> None:
    """Do nothing at the end of a cancelled flow."""
