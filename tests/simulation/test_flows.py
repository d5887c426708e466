"""Transfers that share a network, to the second and the byte."""

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.errors import InputError
from bursar.model.network import BandwidthProfile, Duplex, NetworkLink, Topology
from bursar.simulation.flow_network import Flow, FlowNetwork
from bursar.simulation.virtual_loop import VirtualLoop


def wire(
    source: str,
    target: str,
    bandwidth: float,
    latency: float = 0.0,
    duplex: Duplex = "full",
    profile: BandwidthProfile | None = None,
) -> NetworkLink:
    """Short for a wire."""
    return NetworkLink(
        source=source,
        target=target,
        bandwidth=bandwidth,
        latency=latency,
        duplex=duplex,
        profile=profile,
    )


class World:
    """A network on virtual time, and when each flow ended."""

    made: ClassVar[list["World"]] = []

    def __init__(self, *wires: NetworkLink) -> None:
        self.made.append(self)
        nodes = dict.fromkeys(end for one in wires for end in (one.source, one.target))
        self.loop = VirtualLoop()
        self.network = FlowNetwork(Topology(nodes=tuple(nodes), wires=wires), self.loop)
        self.ended: dict[int, float] = {}

    def send(self, source: str, target: str, size: float, **more: float) -> Flow:
        """Begins a flow now."""
        return self.network.send(source, target, size, self._note, **more)

    def at(self, moment: float, call: Callable[[], object]) -> None:
        """Lets something happen."""
        self.loop.call_at(moment, call)

    def run(self, seconds: float = 1e9) -> dict[int, float]:
        """So long; when each flow ended, by its number."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        return self.ended

    def _note(self, flow: Flow) -> None:
        assert flow.number not in self.ended
        assert flow.ended == pytest.approx(self.loop.time(), abs=1e-9)
        self.ended[flow.number] = self.loop.time()


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """No loop is left open."""
    yield
    for world in World.made:
        world.loop.close()
    World.made.clear()


@pytest.fixture
def line() -> World:
    """a, b, c and d in a line, 10 bytes a second each way."""
    return World(wire("a", "b", 10.0), wire("b", "c", 10.0), wire("c", "d", 10.0))


def test_flows_on_one_wire_share_it_evenly(line: World) -> None:
    """Four of 100 bytes on 10 a second: all end after 40 s, in the order they were sent."""
    for _ in range(4):
        line.send("a", "b", 100.0)

    assert list(line.run().items()) == [(1, 40.0), (2, 40.0), (3, 40.0), (4, 40.0)]


def test_a_short_flow_ends_first_and_leaves_its_share(line: World) -> None:
    """
    100 and 20 bytes at 5 a second: the short one ends after 4 s; the other has 80 left, 8 s.
    """
    line.send("a", "b", 100.0)
    line.send("a", "b", 20.0)

    assert line.run() == {2: 4.0, 1: 12.0}


def test_an_arrival_in_the_middle(line: World) -> None:
    """
    At 4 s the first has 60 of 100 bytes left. Both at 5 a second: the second, of 20, ends at
    8 s, when the first has 40 left: 12 s.
    """
    line.send("a", "b", 100.0)
    line.at(4.0, lambda: line.send("a", "b", 20.0))

    assert line.run() == {2: 8.0, 1: 12.0}


def test_the_line_of_three(line: World) -> None:
    """
    One flow over all three wires and one over each: 5 a second each. The short ones of 50
    end after 10 s; the long one of 100 has then 50 left at 10 a second: 15 s.
    """
    line.send("a", "d", 100.0)
    for ends in ("ab", "bc", "cd"):
        line.send(*ends, 50.0)

    assert line.run() == {2: 10.0, 3: 10.0, 4: 10.0, 1: 15.0}


def test_different_bottlenecks() -> None:
    """
    x-y of 2, y-z of 10. Two flows over x-y have 1 each; one of them goes on over y-z and
    leaves 9 to a third: after 10 s it has carried 90.
    """
    world = World(wire("x", "y", 2.0), wire("y", "z", 10.0))
    flows = [world.send("x", "y", 1e3), world.send("x", "z", 1e3), world.send("y", "z", 1e3)]
    world.run(10.0)

    assert [world.network.rate(flow) for flow in flows] == [1.0, 1.0, 9.0]
    assert [world.network.transferred(flow) for flow in flows] == [10.0, 10.0, 90.0]
    assert world.network.total_transferred == 110.0
    assert world.network.sending == 3


def test_directions_do_not_meet_but_on_a_half_duplex_wire() -> None:
    """100 bytes there and back: 10 s, or 20 s."""
    full, half = World(wire("a", "b", 10.0)), World(wire("a", "b", 10.0, duplex="half"))
    for world in (full, half):
        world.send("a", "b", 100.0)
        world.send("b", "a", 100.0)

    assert full.run() == {1: 10.0, 2: 10.0}
    assert half.run() == {1: 20.0, 2: 20.0}


def test_latency_comes_before_the_first_byte() -> None:
    """
    The second begins 3 s later, over 3 s of latency; until then the first has all: 30 bytes.
    The 70 left of it and the 70 of the second take 14 s together.
    """
    world = World(wire("a", "b", 10.0), wire("z", "a", math.inf, latency=3.0))
    world.send("a", "b", 100.0)
    late = world.send("z", "b", 70.0)
    world.run(2.0)
    before = (world.network.rate(late), world.network.transferred(late))

    assert before == (0.0, 0.0)
    assert world.run() == {1: 17.0, 2: 17.0}
    assert world.network.latency("z", "b") == 3.0


def test_within_a_node_it_takes_no_time_and_no_bytes_take_the_latency_only() -> None:
    """Neither is done within the call."""
    world = World(wire("a", "b", 10.0, latency=2.0))
    world.send("a", "a", 1e12)
    world.send("a", "b", 0.0)

    assert world.ended == {}
    assert world.run() == {1: 0.0, 2: 2.0}


def test_an_infinite_wire_is_no_bottleneck() -> None:
    """Over infinite wires only, it ends at once; else the finite ones decide."""
    world = World(wire("a", "b", math.inf), wire("b", "c", 10.0))
    world.send("a", "b", 1e12)
    world.send("a", "c", 100.0)
    world.send("a", "b", 100.0, limit=5.0)

    assert world.run() == {1: 0.0, 2: 10.0, 3: 20.0}


def test_weights_and_limits(line: World) -> None:
    """
    10 a second for a limit of 1, and weights 1 and 2 of what is left, 3 and 6: 10 s for 10,
    30 and 60 bytes.
    """
    line.send("a", "b", 10.0, limit=1.0)
    line.send("a", "b", 30.0)
    line.send("a", "b", 60.0, weight=2.0)

    assert line.run() == {1: 10.0, 2: 10.0, 3: 10.0}


def test_a_cancelled_flow_is_never_done_and_leaves_its_share(line: World) -> None:
    """
    At 4 s both have carried 20; the other 80 take 8 s. Cancelled again, nothing changes.
    """
    first = line.send("a", "b", 100.0)
    line.send("a", "b", 100.0)
    carried: list[float] = []
    for moment in (4.0, 5.0):
        line.at(moment, lambda: carried.append(line.network.cancel(first)))

    assert line.run() == {2: 12.0}
    assert carried == [20.0, 20.0]
    assert first.ended == 4.0
    assert line.network.rate(first) == 0.0
    assert line.network.total_transferred == 120.0


def test_a_flow_can_be_cancelled_before_its_first_byte_and_after_its_last() -> None:
    """The one carries nothing, the other stays done; what takes no time is there already."""
    world = World(wire("a", "b", 10.0, latency=1.0))
    early = world.send("a", "b", 10.0)
    done = world.send("a", "b", 10.0)
    within = world.send("a", "a", 10.0)

    assert world.network.cancel(early) == 0.0
    assert world.network.cancel(within) == 10.0
    assert world.run() == {2: 2.0}
    assert world.network.cancel(done) == 10.0
    assert done.ended == 2.0


def test_who_is_told_may_cancel_another_that_ended_at_that_moment(line: World) -> None:
    """It had carried all, is counted so, and is not told."""
    carried: list[float] = []

    def stop(_: Flow) -> None:
        carried.extend((line.network.total_transferred, line.network.cancel(second)))

    line.network.send("a", "b", 50.0, stop)
    second = line.send("a", "b", 50.0)

    assert line.run() == {}
    assert carried == [100.0, 50.0]
    assert second.ended == 10.0
    assert line.network.total_transferred == 100.0


def test_who_is_told_may_send_the_next(line: World) -> None:
    """Three files one after the other, each at the moment the one before it is there."""

    def again(flow: Flow) -> None:
        line.ended[flow.number] = line.loop.time()
        if flow.number < 3:
            line.network.send("a", "d", 50.0, again)

    line.network.send("a", "d", 50.0, again)

    assert line.run() == {1: 5.0, 2: 10.0, 3: 15.0}


def test_a_failure_of_one_who_is_told_does_not_keep_the_others_waiting(line: World) -> None:
    """Its error reaches the loop; the second flow of the same moment is told."""
    errors: list[object] = []
    line.loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))

    def fail(_: Flow) -> None:
        raise RuntimeError("out of luck")

    line.network.send("a", "b", 50.0, fail)
    line.send("a", "b", 50.0)
    line.send("a", "b", 100.0)

    assert line.run() == {2: 15.0, 3: 20.0}
    assert [str(error) for error in errors] == ["out of luck"]


def test_something_new_at_the_very_moment_at_which_a_flow_ends(line: World) -> None:
    """
    At 10 s the first is at its last byte when a short one is sent on the same way, by a timer
    that was set before: both are right, the short one takes its 1 s.
    """
    line.at(10.0, lambda: line.send("a", "b", 10.0))
    line.send("a", "b", 100.0)

    assert line.run() == {1: 10.0, 2: 11.0}


def test_what_a_flow_would_get() -> None:
    """
    Idle: the narrowest wire. With two flows on b-c of 10, a third gets 10/3; on a-b of 2,
    with one of them, half of it. Asking changes nothing.
    """
    world = World(wire("a", "b", 2.0), wire("b", "c", 10.0), wire("x", "y", 1.0))
    network = world.network
    idle = network.share("a", "c")
    world.send("a", "c", 1e3)
    through = world.send("b", "c", 1e3)

    assert idle == 2.0
    assert network.share("a", "c") == 1.0
    assert network.share("b", "c") == 4.0
    assert network.rate(through) == 8.0
    assert [network.bandwidth(*ends) for ends in ("ac", "bc", "cc", "ax")] == [
        2.0,
        10.0,
        math.inf,
        0.0,
    ]
    assert (network.share("a", "a"), network.share("a", "x")) == (math.inf, 0.0)
    assert network.latency("a", "x") == math.inf


def test_a_profile_changes_the_rate_on_the_way() -> None:
    """
    10 a second, all of it for 5 s, then half, and so on: 100 bytes are 50 + 25 + 25 of the
    50 in the third step: 12.5 s. After a silence it is as the hour has it: at 27 s half.
    """
    world = World(wire("a", "b", 10.0, profile=BandwidthProfile(shares=(1.0, 0.5), step=5.0)))
    world.send("a", "b", 100.0)
    world.at(27.0, lambda: world.send("a", "b", 15.0))

    assert world.network.bandwidth("a", "b") == 10.0
    assert world.run(26.0) == {1: 12.5}
    assert world.network.bandwidth("a", "b") == 5.0
    assert world.network.share("a", "b") == 5.0
    assert world.run() == {1: 12.5, 2: 30.0}


def test_a_flow_waits_while_there_is_nothing_of_its_wire() -> None:
    """Nothing for 5 s, all for 5 s: 70 bytes end at 17 s."""
    world = World(wire("a", "b", 10.0, profile=BandwidthProfile(shares=(0.0, 1.0), step=5.0)))
    world.send("a", "b", 70.0)

    assert world.run() == {1: 17.0}


@pytest.mark.parametrize(
    ("size", "more", "message"),
    [
        (-1.0, {}, "size must be finite and not negative"),
        (math.inf, {}, "size must be finite and not negative"),
        (math.nan, {}, "size must be finite and not negative"),
        (1.0, {"weight": 0.0}, "weight must be from 0.001 to 1000"),
        (1.0, {"limit": 0.0}, "limit must be positive"),
    ],
)
def test_what_cannot_be_sent(
    line: World, size: float, more: dict[str, float], message: str
) -> None:
    """Numbers out of range."""
    with pytest.raises(ValueError, match=message):
        line.send("a", "b", size, **more)


def test_there_must_be_a_way() -> None:
    """Unknown nodes, and known ones that nothing joins."""
    world = World(wire("a", "b", 1.0), wire("x", "y", 1.0))
    with pytest.raises(InputError, match="there is no way"):
        world.send("a", "x", 1.0)
    with pytest.raises(InputError, match='no node "q"'):
        world.send("a", "q", 1.0)


sent = st.tuples(
    st.integers(0, 12),  # when
    st.sampled_from(list(itertools.permutations("abcd", 2))),
    st.integers(1, 40),  # bytes
    st.sampled_from([None, 1, 3]),  # limit
    st.integers(1, 3),  # weight
)


def ends_by_hand(
    capacity: dict[tuple[str, str], int],
    flows: Sequence[tuple[int, tuple[str, str], int, int | None, int]],
) -> list[Fraction]:
    """When each flow over a line of nodes ends, event by event, in fractions."""

    def hops(source: str, target: str) -> list[tuple[str, str]]:
        step = 1 if target > source else -1
        nodes = [chr(c) for c in range(ord(source), ord(target) + step, step)]
        return list(itertools.pairwise(nodes))

    now = Fraction(0)
    left = {i: Fraction(size) for i, (_, _, size, _, _) in enumerate(flows)}
    ends: dict[int, Fraction] = {}
    while left:
        active = [i for i in left if flows[i][0] <= now]
        rate: dict[int, Fraction] = {}
        while len(rate) < len(active):
            levels: list[tuple[Fraction, list[int]]] = []
            for edge, room in capacity.items():
                through = [i for i in active if edge in hops(*flows[i][1])]
                rising = [i for i in through if i not in rate]
                if rising:
                    taken = sum((rate[i] for i in through if i in rate), Fraction(0))
                    levels.append(((room - taken) / sum(flows[i][4] for i in rising), rising))
            for i in active:
                limit = flows[i][3]
                if i not in rate and limit is not None:
                    levels.append((Fraction(limit, flows[i][4]), [i]))
            level, stopped = min(levels, key=lambda found: found[0])
            rate |= {i: level * flows[i][4] for i in stopped}
        moments = [now + left[i] / rate[i] for i in active]
        moments += [Fraction(flows[i][0]) for i in left if flows[i][0] > now]
        then = min(moments)
        for i in active:
            left[i] -= rate[i] * (then - now)
        for i in [i for i in active if left[i] == 0]:
            ends[i] = then
            del left[i]
        now = then
    return [ends[i] for i in range(len(flows))]


@settings(max_examples=examples(40))
@example(
    flows=[
        *[(0, ("a", "b"), 1, None, 1)] * 6,
        (0, ("a", "c"), 1, None, 1),
        (1, ("b", "c"), 2, None, 1),
    ],
    widths=(1, 1, 1),
)
@given(flows=st.lists(sent, min_size=1, max_size=9), widths=st.tuples(*[st.integers(1, 9)] * 3))
def test_flows_end_when_fractions_say(
    flows: list[tuple[int, tuple[str, str], int, int | None, int]],
    widths: tuple[int, int, int],
) -> None:
    """Any flows over a line of four nodes, against the same sums done exactly and one by one."""
    edges = list(itertools.pairwise("abcd"))
    world = World(*(wire(*edge, float(width)) for edge, width in zip(edges, widths, strict=True)))
    numbers: dict[int, int] = {}

    def begin(i: int) -> None:
        _, (source, target), size, limit, weight = flows[i]
        flow = world.send(
            source, target, size, weight=weight, limit=math.inf if limit is None else limit
        )
        numbers[flow.number] = i

    for i in range(len(flows)):
        world.at(flows[i][0], lambda i=i: begin(i))  # type: ignore[misc]
    ended = world.run()

    capacity = dict(zip(edges, widths, strict=True))
    capacity |= {edge[::-1]: width for edge, width in capacity.items()}
    by_hand = [float(end) for end in ends_by_hand(capacity, flows)]
    assert [ended[number] for number in sorted(ended, key=numbers.__getitem__)] == pytest.approx(
        by_hand, rel=1e-12, abs=2e-9
    )
    assert world.network.sending == 0
    assert world.network.total_transferred == sum(size for _, _, size, _, _ in flows)


def _busy_day(seed: int) -> tuple[list[tuple[int, float]], float, float]:
    """Flows at random over a ring, some cancelled: when each ended, bytes by two counts."""
    rng = random.Random(seed)
    nodes = [f"n{i}" for i in range(12)]
    profile = BandwidthProfile(shares=(1.0, 0.3, 0.0), step=60.0)
    world = World(
        *(
            wire(
                one, other, rng.uniform(1e3, 1e5), rng.choice([0.0, 0.1]),
                profile=rng.choice([None, profile]),
            )
            for one, other in itertools.pairwise([*nodes, nodes[0]])
        )
    )  # fmt: skip
    network = world.network
    flows: list[Flow] = []
    log: list[tuple[int, float]] = []

    def begin() -> None:
        source, target = rng.sample(nodes, 2)
        flow = network.send(
            source, target, rng.uniform(0, 1e6), lambda f: log.append((f.number, world.loop.time()))
        )
        flows.append(flow)
        if rng.random() < 0.1:
            world.loop.call_later(rng.uniform(0, 20), network.cancel, flow)

    for _ in range(150):
        world.at(rng.randrange(400) / 4, begin)
    world.run()
    finished = {number for number, _ in log}
    assert all(flow.ended is not None for flow in flows)
    assert all(network.transferred(flow) == flow.size for flow in flows if flow.number in finished)
    assert 0 < len(finished) < len(flows)
    return log, network.total_transferred, math.fsum(network.transferred(flow) for flow in flows)


def test_the_same_seed_gives_the_same_trace() -> None:
    """To the bit."""
    assert _busy_day(7) == _busy_day(7)
    assert _busy_day(7) != _busy_day(8)


def test_bytes_are_conserved_on_a_busy_day() -> None:
    """What the network says it carried is what all flows say, cancelled ones included."""
    _, total, by_flows = _busy_day(11)

    assert total == pytest.approx(by_flows, rel=1e-12)


def test_no_wire_carries_more_than_it_has() -> None:
    """At any moment of many flows with many weights, and every flow has a full wire on its way."""
    rng = random.Random(5)
    nodes = [f"n{i}" for i in range(10)]
    world = World(
        *(
            wire(one, other, rng.uniform(1.0, 9.0))
            for one, other in itertools.combinations(nodes, 2)
            if rng.random() < 0.4 or int(other[1:]) == int(one[1:]) + 1
        )
    )
    topology, network = world.network.topology, world.network
    flows: list[Flow] = []
    for _ in range(300):
        source, target = rng.sample(nodes, 2)
        flows.append(world.send(source, target, 1e6, weight=rng.uniform(0.5, 2.0)))
    for _ in range(20):
        network.cancel(flows.pop(rng.randrange(len(flows))))
        used = [0.0] * len(topology.channels)
        for flow in flows:
            for channel in topology.route(flow.source, flow.target).channels:
                used[channel] += network.rate(flow)
        for channel, load in zip(topology.channels, used, strict=True):
            assert load <= channel.bandwidth * (1 + 1e-9)
        for flow in flows:
            way = topology.route(flow.source, flow.target).channels
            assert any(used[c] >= topology.channels[c].bandwidth * (1 - 1e-9) for c in way)


def test_ways_that_nobody_takes_are_forgotten() -> None:
    """Many flows, each with a limit of its own: the tables do not grow with those that ended."""
    world = World(wire("a", "b", 10.0))
    for i in range(2000):
        world.at(float(i), lambda i=i: world.send("a", "b", 1.0, limit=1.0 + i))  # type: ignore[misc]

    assert len(world.run()) == 2000
    assert len(world.network._lanes) < 300
