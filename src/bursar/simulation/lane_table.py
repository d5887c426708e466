"""
Defines transfers, and holds the lanes that alike transfers share as tables.

Progress is counted for a lane, not for its flows: it grows by the lane's pace, and a flow
ends when it has grown by the flow's size over its weight. So what a change costs hangs on
the number of lanes, not of flows.
"""

import asyncio
import heapq
import math
from collections.abc import Callable, Sequence

import numpy as np

from bursar.simulation.fairness import fill_progressively, recompute_rates

# Defines transfers, and the lanes that alike transfers share.


class Flow:
    """
    Describes a transfer; made by :meth:`FlowNetwork.send`, and changed by the network alone.

    Attributes
    ----------
    number
        Number in the order of sending, from 1.
    source, target
        Nodes.
    size
        Bytes.
    weight
        Share of a full wire over that of a flow of weight 1.
    limit
        Greatest rate, bytes per second.
    sent
        Time of sending, seconds on the loop's clock.
    ended
        Time of the last byte's arrival, or of the cancellation; None: under way. A loop may
        call some nanoseconds before that.
    done
        Called with the flow when the last byte has arrived.
    begins
        Timer of the first byte's arrival; None once that has come.
    lane
        Lane of the flow from first byte to last.
    start
        Bytes for each unit of weight that the lane had carried when the flow began.
    transferred
        Bytes of the flow that had arrived when the flow ended.
    """

    __slots__ = (
        "begins",
        "done",
        "ended",
        "lane",
        "limit",
        "number",
        "sent",
        "size",
        "source",
        "start",
        "target",
        "transferred",
        "weight",
    )  # fmt: skip

    def __init__(
        self,
        *,
        number: int,
        source: str,
        target: str,
        size: float,
        weight: float,
        limit: float,
        sent: float,
        done: Callable[["Flow"], object],
    ) -> None:
        self.number = number
        self.source = source
        self.target = target
        self.size = size
        self.weight = weight
        self.limit = limit
        self.sent = sent
        self.done = done
        self.ended: float | None = None
        self.begins: asyncio.Handle | None = None
        self.lane: FlowLane | None = None
        self.start = 0.0
        self.transferred = 0.0

    def __repr__(self) -> str:
        return f"Flow({self.number}, {self.source!r}, {self.target!r}, {self.size:g})"


FlowKey = tuple[str, str, float, float]
"""Source, target, weight and limit, which all flows of a lane have in common."""


class FlowLane:
    """
    Groups all flows on one way with one weight and limit, whose rates are always the same.

    Attributes
    ----------
    key
        Source, target, weight and limit.
    row
        Row of the lane in the tables of :class:`bursar.simulation.lane_table.LaneTable`.
    flows
        Number of flows under way.
    queue
        The flows by what the lane will have carried when each ends, bytes for each unit of
        weight, then by number. Those that were cancelled stay until they are first.
    """

    __slots__ = ("flows", "key", "queue", "row")

    def __init__(self, key: FlowKey, row: int) -> None:
        self.key = key
        self.row = row
        self.flows = 0
        self.queue: list[tuple[float, int, Flow]] = []


# Holds the lanes of a network as tables: pace, progress and next end of a flow.

_SPARE = 256
"""Empty lanes kept beyond the number of busy ones, since the next flow may use one."""

_COLUMNS = (
    "_hops", "_depth", "_stale", "_weight", "_ceiling", "_pace", "_progress", "_since", "_due",
    "_ends",
)  # fmt: skip


class LaneTable:
    """
    Holds the lanes of a network, and tells their rates and which flow ends next.

    Parameters
    ----------
    capacity
        Bytes per second of each channel; changed by :meth:`set_capacity` only.
    """

    def __init__(self, capacity: Sequence[float]) -> None:
        self.busy = 0
        """Lanes with flows."""
        self._capacity = np.array(capacity, dtype=np.float64)
        self._lanes: list[FlowLane] = []
        self._by_key: dict[FlowKey, FlowLane] = {}
        # What these hold: bursar.simulation.fairness.
        self._hops = np.zeros((16, 4), np.int64)
        self._depth = np.zeros(16, np.int64)
        self._stale = np.zeros(16, np.bool_)
        self._weight = np.zeros(16)
        self._ceiling = np.zeros(16)
        self._pace = np.zeros(16)
        self._progress = np.zeros(16)
        self._since = np.zeros(16)
        self._due = np.zeros(16)
        self._ends = np.zeros(16)

    def __len__(self) -> int:
        """Return the number of lanes, empty lanes included."""
        return len(self._lanes)

    def find(self, key: FlowKey) -> FlowLane | None:
        """Return the lane of flows with this key; None if there is none."""
        return self._by_key.get(key)

    def open(self, key: FlowKey, channels: Sequence[int]) -> FlowLane:
        """
        Add a lane.

        Parameters
        ----------
        channels
            Numbers of those that it uses.
        """
        lane = FlowLane(key, self._lay_out(key, channels))
        self._lanes.append(lane)
        self._by_key[key] = lane
        return lane

    def set_capacity(self, channel: int, capacity: float) -> None:
        """Set a channel's capacity; :meth:`recompute_rates` is then due."""
        self._capacity[channel] = capacity
        self._stale[: len(self._lanes)] = True

    def enter(self, lane: FlowLane, flow: Flow, now: float) -> None:
        """Add a flow to a lane at the flow's first byte."""
        row = lane.row
        # A flow that joins must begin at what the lane has carried by now, not when rates last
        # changed.
        if lane.flows:
            self._advance(row, now)
        else:
            # From 0 again: the less lies behind, the finer it counts.
            self.busy += 1
            self._progress[row] = self._pace[row] = 0.0
            self._since[row] = now
        lane.flows += 1
        self._weight[row] = lane.flows * flow.weight
        flow.lane = lane
        flow.start = float(self._progress[row])
        heapq.heappush(lane.queue, (flow.start + flow.size / flow.weight, flow.number, flow))
        self._look_ahead(lane)

    def leave(self, flow: Flow, now: float) -> None:
        """Remove a flow before the last byte."""
        lane = flow.lane
        assert lane is not None
        self._advance(lane.row, now)
        self._drop(lane, flow)
        self._look_ahead(lane)

    def end(self, moment: float) -> list[Flow]:
        """Remove and return the flows that end up to this moment, in the order of sending."""
        ended: list[Flow] = []
        for row in (self._ends[: len(self._lanes)] <= moment).nonzero()[0].tolist():
            lane = self._lanes[row]
            # To the last byte, whatever was lost in rounding.
            reached = lane.queue[0][0]
            self._progress[row] = reached
            self._since[row] = moment
            # Flows of one lane that are equal and were sent together end together, in one event.
            while lane.queue and lane.queue[0][0] <= reached:
                flow = heapq.heappop(lane.queue)[2]
                if flow.lane is lane:
                    self._drop(lane, flow)
                    ended.append(flow)
            self._look_ahead(lane)
        ended.sort(key=_flow_number)
        return ended

    def share_anew(self, now: float) -> float:
        """Compute paces after changes; return the time of the next end of a flow, seconds."""
        first = recompute_rates(
            len(self._lanes), float(now), self._hops, self._depth, self._weight, self._ceiling,
            self._capacity, self._stale, self._pace, self._progress, self._since, self._due,
            self._ends,
        )  # fmt: skip
        moment = float(self._ends[first]) if first >= 0 else math.inf
        # Not at every flow's end: a sweep costs as much as there are lanes, and the same ways are
        # often used again.
        if len(self._lanes) > 2 * self.busy + _SPARE:
            self._sweep()
        return moment

    def pace(self, lane: FlowLane) -> float:
        """Return a lane's bytes per second for each unit of weight."""
        return float(self._pace[lane.row])

    def progress(self, lane: FlowLane, now: float) -> float:
        """Return the bytes that a lane has carried for each unit of weight."""
        row = lane.row
        return float(self._progress[row] + self._pace[row] * (now - self._since[row]))

    def pace_of_one_more(self, key: FlowKey, channels: Sequence[int]) -> float:
        """
        Return the pace that one more flow would have, bytes per second for each unit of weight.

        The table stays as it is.

        Parameters
        ----------
        channels
            Indices of the channels that the flow would use.
        """
        # The row below the last one is written but not counted, and paces go to an array of their
        # own: nothing changes for the lanes that there are.
        row = self._lay_out(key, channels)
        self._weight[row] = key[2]
        pace = np.empty(row + 1)
        everyone = np.ones(row + 1, np.bool_)
        fill_progressively(
            row + 1, self._hops, self._depth, self._weight, self._ceiling, self._capacity,
            everyone, pace,
        )  # fmt: skip
        return float(pace[row])

    def flows(self) -> list[Flow]:
        """Return all flows that are in a lane."""
        entries = (entry[2] for lane in self._lanes for entry in lane.queue)
        return [flow for flow in entries if flow.lane is not None]

    def _drop(self, lane: FlowLane, flow: Flow) -> None:
        flow.lane = None
        lane.flows -= 1
        self.busy -= not lane.flows
        # Not less by less: nothing of a weight may stay behind.
        self._weight[lane.row] = lane.flows * flow.weight

    def _advance(self, row: int, now: float) -> None:
        reached = self._progress[row] + self._pace[row] * (now - self._since[row])
        # Rounding must not carry the lane past the end of its next flow.
        self._progress[row] = min(reached, self._due[row])
        self._since[row] = now

    def _look_ahead(self, lane: FlowLane) -> None:
        """Note the lane's next end, and that paces are to be computed again."""
        # Flows that were cancelled stay in the heap until they come to its top: to take one out
        # of the middle would cost as much as there are flows.
        while lane.queue and lane.queue[0][2].lane is not lane:
            heapq.heappop(lane.queue)
        self._due[lane.row] = lane.queue[0][0] if lane.queue else math.inf
        self._stale[lane.row] = True

    def _lay_out(self, key: FlowKey, channels: Sequence[int]) -> int:
        """Write an empty lane into the row below the last one."""
        row, hops = len(self._lanes), len(channels)
        if row == len(self._depth) or hops > self._hops.shape[1]:
            self._grow(row + 1, hops)
        self._depth[row] = hops
        self._hops[row, :hops] = channels
        _, _, weight, limit = key
        self._ceiling[row] = limit / weight
        self._weight[row] = self._pace[row] = 0.0
        self._due[row] = self._ends[row] = math.inf
        self._stale[row] = False
        return row

    def _grow(self, rows: int, hops: int) -> None:
        more = len(self._depth) if rows > len(self._depth) else 0
        wider = max(0, hops - self._hops.shape[1])
        self._hops = np.pad(self._hops, ((0, 0), (0, wider)))
        for name in _COLUMNS:
            table = getattr(self, name)
            added = np.zeros((more, *table.shape[1:]), table.dtype)
            setattr(self, name, np.concatenate((table, added)))

    def _sweep(self) -> None:
        """Remove the lanes without flows."""
        kept = [lane for lane in self._lanes if lane.flows]
        rows = [lane.row for lane in kept]
        for name in _COLUMNS:
            table = getattr(self, name)
            table[: len(rows)] = table[rows]
        for row, lane in enumerate(kept):
            lane.row = row
        self._lanes = kept
        self._by_key = {lane.key: lane for lane in kept}


def _flow_number(flow: Flow) -> int:
    return flow.number
