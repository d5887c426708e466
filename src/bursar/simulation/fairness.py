"""
Computes max-min fair rates, in compiled code.

Flows that take the same way with the same weight and limit always have the same rate, so
that they are counted, not listed: a *lane* stands for all of them. What a lane gets is its
*pace*, bytes per second for each unit of weight.
"""

import numpy as np
import numpy.typing as npt

from bursar.compiling import compiled, compiled_part, inlined

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_ALIKE = 1 + 1e-12
"""Levels that differ by less than this factor are one level, rounded differently."""


@compiled_part
def mark_component(
    lanes: int, hops: IntArray, depth: IntArray, weight: FloatArray, chosen: BoolArray
) -> None:
    """
    Add to the chosen lanes all lanes that share a channel, directly or through others.

    Parameters
    ----------
    lanes, hops, depth, weight
        As in :func:`fill_progressively`; a lane of weight 0 that is not chosen joins nothing.
    chosen
        Changed in place.
    """
    channels = 0
    for i in range(lanes):
        for h in range(depth[i]):
            channels = max(channels, hops[i, h] + 1)
    touched = np.zeros(channels, np.bool_)
    for i in range(lanes):
        if chosen[i]:
            for h in range(depth[i]):
                touched[hops[i, h]] = True
    # Until nothing is added: a lane joins by a channel that a lane after it in the table may be
    # the first to touch.
    growing = True
    while growing:
        growing = False
        for i in range(lanes):
            if chosen[i] or weight[i] == 0.0:
                continue
            for h in range(depth[i]):
                if touched[hops[i, h]]:
                    chosen[i] = True
                    break
            if chosen[i]:
                for h in range(depth[i]):
                    growing |= not touched[hops[i, h]]
                    touched[hops[i, h]] = True


@compiled_part
def lanes_by_channel(
    lanes: int, hops: IntArray, depth: IntArray, rising: BoolArray, left: IntArray
) -> tuple[IntArray, IntArray]:
    """
    Index the rising lanes by channel: ``through[begin[c]:begin[c + 1]]`` are those of ``c``.

    Parameters
    ----------
    left
        How many there are of each channel.
    """
    begin = np.zeros(len(left) + 1, np.int64)
    for c in range(len(left)):
        begin[c + 1] = begin[c] + left[c]
    through = np.empty(begin[-1], np.int64)
    place = begin.copy()
    for i in range(lanes):
        if rising[i]:
            for h in range(depth[i]):
                through[place[hops[i, h]]] = i
                place[hops[i, h]] += 1
    return begin, through


@inlined
def freeze_lane(
    i: int,
    level: float,
    hops: IntArray,
    depth: IntArray,
    weight: FloatArray,
    rising: BoolArray,
    pace: FloatArray,
    room: FloatArray,
    load: FloatArray,
    left: IntArray,
) -> None:
    """Fix a lane's pace, and take the lane's part from each channel used."""
    rising[i] = False
    pace[i] = level
    for h in range(depth[i]):
        room[hops[i, h]] -= level * weight[i]
        load[hops[i, h]] -= weight[i]
        left[hops[i, h]] -= 1


@compiled
def fill_progressively(
    lanes: int,
    hops: IntArray,
    depth: IntArray,
    weight: FloatArray,
    ceiling: FloatArray,
    capacity: FloatArray,
    chosen: BoolArray,
    pace: FloatArray,
) -> None:
    """
    Compute max-min fair paces by progressive filling.

    All paces rise together. When a channel is full, the lanes through it stay at that level;
    when a lane is at its ceiling, it stays there; the others rise on.

    Parameters
    ----------
    lanes
        Number of lanes, which are the first rows of the tables.
    hops
        Numbers of the channels that each lane uses, shape ``(rows, most hops)``.
    depth
        How many of these, shape ``(rows,)``.
    weight
        Sum of the weights of each lane's flows; a lane of weight 0 gets nothing.
    ceiling
        Greatest pace; may be infinite.
    capacity
        Capacity of each channel, bytes per second. Finite.
    chosen
        Which lanes to look at: no other may use a channel of theirs.
    pace
        Receives the paces. Infinite for a lane without channels and ceiling.

    References
    ----------
    .. [1] Bertsekas, Gallager (1992). Data Networks, 2nd edition, section 6.5.2. Weights and
       ceilings: the pace is what is made fair, and a ceiling is a channel of the lane's own.
    """
    count = len(capacity)
    room = capacity.copy()
    load = np.zeros(count)
    left = np.zeros(count, np.int64)
    rising = np.zeros(lanes, np.bool_)
    limited = False
    todo = 0
    for i in range(lanes):
        if not chosen[i]:
            continue
        pace[i] = 0.0
        if weight[i] == 0.0:
            continue
        rising[i] = True
        limited |= depth[i] == 0 or ceiling[i] < np.inf
        todo += 1
        for h in range(depth[i]):
            load[hops[i, h]] += weight[i]
            left[hops[i, h]] += 1
    begin, through = lanes_by_channel(lanes, hops, depth, rising, left)
    busy = np.flatnonzero(left)
    used = len(busy)
    height = np.empty(used)
    full = np.empty(used, np.int64)
    level = 0.0
    while todo > 0:
        lowest = np.inf
        still = 0
        for k in range(used):
            c = busy[k]
            if left[c] > 0:
                busy[still] = c
                height[still] = room[c] / load[c]
                lowest = min(lowest, height[still])
                still += 1
        used = still
        if limited:
            for i in range(lanes):
                if rising[i]:
                    lowest = min(lowest, ceiling[i])
        # What is left of a channel is rounded: a level never falls.
        level = max(level, lowest)
        alike = level * _ALIKE
        # Before a lane stays, for that may round another channel of this level off it.
        filled = 0
        for k in range(used):
            if height[k] <= alike:
                full[filled] = busy[k]
                filled += 1
        if limited:
            for i in range(lanes):
                if rising[i] and ceiling[i] <= alike:
                    freeze_lane(i, ceiling[i], hops, depth, weight, rising, pace, room, load, left)
                    todo -= 1
        for k in range(filled):
            for p in range(begin[full[k]], begin[full[k] + 1]):
                i = through[p]
                if rising[i]:
                    freeze_lane(i, level, hops, depth, weight, rising, pace, room, load, left)
                    todo -= 1


@compiled
def recompute_rates(
    lanes: int,
    now: float,
    hops: IntArray,
    depth: IntArray,
    weight: FloatArray,
    ceiling: FloatArray,
    capacity: FloatArray,
    stale: BoolArray,
    pace: FloatArray,
    transferred: FloatArray,
    since: FloatArray,
    due: FloatArray,
    ends: FloatArray,
) -> int:
    """
    Recompute paces after changes, and return the lane where a flow ends first.

    Parameters
    ----------
    lanes, hops, depth, weight, ceiling, capacity
        As in :func:`fill_progressively`.
    now
        Seconds.
    stale
        Lanes whose flows or channels have changed; none is afterwards.
    pace
        Pace of each lane, bytes per second and weight: before the call the old, afterwards the new.
    transferred, since
        Bytes that each lane had carried for each unit of weight, and at what time, seconds.
    due
        Bytes for each unit of weight at which the lane's next flow ends.
    ends
        Time at which the lane's next flow ends, seconds; infinite when never.

    Returns
    -------
    int
        -1 when no flow ends.
    """
    chosen = stale[:lanes].copy()
    stale[:lanes] = False
    # Lanes that share no channel with what has changed, directly or through others, keep their
    # paces.
    mark_component(lanes, hops, depth, weight, chosen)
    for i in range(lanes):
        if chosen[i]:
            # Up to now at the old pace, before there is a new one.
            transferred[i] = min(due[i], transferred[i] + pace[i] * (now - since[i]))
            since[i] = now
    fill_progressively(lanes, hops, depth, weight, ceiling, capacity, chosen, pace)
    first = -1
    for i in range(lanes):
        if chosen[i]:
            ends[i] = now + (due[i] - transferred[i]) / pace[i] if pace[i] > 0.0 else np.inf
        if ends[i] < np.inf and (first < 0 or ends[i] < ends[first]):
            first = i
    return first
