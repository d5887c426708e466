"""The replay of a dispatch: against a plain simulation of events, plain and compiled."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.forecasts.dispatch_replay import ANYWHERE, DispatchProblem, replay_dispatch


@st.composite
def problems(draw):
    """Some leases, and tasks of which some wait for earlier ones."""
    leases = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    count = draw(st.integers(1, 12))
    lease = [draw(st.integers(-1, len(leases) - 1)) for _ in range(count)]
    width = [draw(st.integers(1, max(leases) if at == ANYWHERE else leases[at])) for at in lease]
    parents = [
        draw(st.lists(st.integers(0, task - 1), unique=True, max_size=3)) if task else []
        for task in range(count)
    ]
    return leases, lease, width, parents


def to_arrays(leases, lease, width, parents):
    children = [
        [c for c, above in enumerate(parents) if task in above] for task in range(len(lease))
    ]
    return DispatchProblem(
        lease=np.array(lease, np.int64),
        width=np.array(width, np.int64),
        parents=np.array([len(above) for above in parents], np.int64),
        first_child=np.concatenate([[0], np.cumsum([len(c) for c in children])]).astype(np.int64),
        children=np.array([c for below in children for c in below], np.int64),
        processors=np.array(leases, np.int64),
    )


def simulated(leases, lease, width, parents, seconds, opening, slowness):
    """End of the campaign, last use and processor-seconds of each lease, event by event."""
    free = [0] * len(leases)
    left = [set(above) for above in parents]
    waiting = {task for task in range(len(lease)) if not left[task]}
    events = [(moment, -1, number) for number, moment in enumerate(opening)]
    heapq.heapify(events)
    last, busy, ended = [0.0] * len(leases), [0.0] * len(leases), 0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, task, number = heapq.heappop(events)
            if task < 0:
                free[number] += leases[number]
                continue
            free[number] += width[task]
            ended += 1
            for other, above in enumerate(left):
                if task in above:
                    above.discard(task)
                    if not above:
                        waiting.add(other)
        # Leases by number, then the tasks that may run anywhere; the first in line blocks its line.
        for line in (*range(len(leases)), ANYWHERE):
            for task in sorted(t for t in waiting if lease[t] == line):
                roomy = [
                    n
                    for n in ([line] if line != ANYWHERE else range(len(leases)))
                    if free[n] >= width[task]
                ]
                if not roomy:
                    break
                number = min(roomy, key=lambda n: (slowness[n], n))
                waiting.discard(task)
                free[number] -= width[task]
                took = seconds[task] * slowness[number]
                heapq.heappush(events, (now + took, task, number))
                last[number] = max(last[number], now + took)
                busy[number] += took * width[task]
    return max(last) if ended == len(lease) else np.inf, last, busy


@settings(max_examples=examples(150), deadline=None)
@given(problems(), st.integers(0, 2**32 - 1))
def test_a_replay_is_a_simulation_of_events(problem, seed):
    leases, lease, *_ = problem
    random = np.random.default_rng(seed)
    # Whole seconds, so that several events fall on one moment.
    runtimes = random.integers(0, 5, (4, len(lease))).astype(float)
    opening = random.integers(0, 3, (4, len(leases))).astype(float)
    slowness = random.choice([0.5, 1.0, 2.0], (4, len(leases)))
    found = replay_dispatch.plain(to_arrays(*problem), runtimes, opening, slowness)
    for draw in range(4):
        end, last, busy = simulated(*problem, runtimes[draw], opening[draw], slowness[draw])
        assert found.end[draw] == end
        assert found.last_use[draw].tolist() == last
        assert found.busy[draw] == pytest.approx(busy)


def test_machine_code_and_plain_python_agree():
    random = np.random.default_rng(3)
    count = 60
    parents = [
        sorted(set(random.integers(0, task, 2).tolist())) if task > 8 else []
        for task in range(count)
    ]
    problem = to_arrays([3, 4], random.integers(-1, 2, count), [1] * count, parents)
    runtimes = random.lognormal(0.0, 1.0, (30, count))
    opening, slowness = random.random((30, 2)), 0.5 + random.random((30, 2))
    plain = replay_dispatch.plain(problem, runtimes, opening, slowness)
    machine = replay_dispatch.compiled(problem, runtimes, opening, slowness)
    for one, other in zip(plain, machine, strict=True):
        assert np.array_equal(one, other)


def test_a_task_without_room_never_ends_and_the_campaign_neither():
    problem = to_arrays([1], [0], [2], [[]])
    found = replay_dispatch.plain(problem, np.ones((1, 1)), np.zeros((1, 1)), np.ones((1, 1)))
    assert found.end[0] == np.inf
