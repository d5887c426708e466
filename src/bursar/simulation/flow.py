"""Defines transfers, and the lanes that alike transfers share."""

import asyncio
from collections.abc import Callable


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
