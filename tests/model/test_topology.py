"""Networks, and the way data take through them."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.errors import InputError
from bursar.model.network import Duplex, NetworkLink, Routing, Topology


def wire(
    source: str,
    target: str,
    bandwidth: float = 1.0,
    latency: float = 0.0,
    duplex: Duplex = "full",
) -> NetworkLink:
    """Short for a wire."""
    return NetworkLink(
        source=source, target=target, bandwidth=bandwidth, latency=latency, duplex=duplex
    )


def network(*wires: NetworkLink, routing: Routing = "latency") -> Topology:
    """The network of these wires."""
    nodes = dict.fromkeys(end for one in wires for end in (one.source, one.target))
    return Topology(nodes=tuple(nodes), wires=wires, routing=routing)


def test_the_least_latency_comes_first() -> None:
    """a-b-c takes 3 ms, a-c 5 ms although it is one hop and wider."""
    way = network(
        wire("a", "c", 9.0, 0.005), wire("a", "b", 1.0, 0.001), wire("b", "c", 1.0, 0.002)
    ).route("a", "c")

    assert way.nodes == ("a", "b", "c")
    assert way.latency == pytest.approx(0.003)
    assert way.bandwidth == 1.0


def test_then_the_fewest_hops() -> None:
    """All latencies are 0: the direct wire, narrow as it is."""
    way = network(wire("a", "b", 9.0), wire("b", "c", 9.0), wire("a", "c", 1.0)).route("a", "c")

    assert way.nodes == ("a", "c")


def test_then_the_least_time_for_a_byte() -> None:
    """Two hops either way: 1/2 + 1/8 s by x, 1/4 + 1/4 s by y."""
    way = network(
        wire("a", "x", 2.0), wire("x", "c", 8.0), wire("a", "y", 4.0), wire("y", "c", 4.0)
    ).route("a", "c")

    assert way.nodes == ("a", "y", "c")


def test_then_the_order_of_the_wires() -> None:
    """Nothing tells them apart: the way whose wires stand first, each time."""
    wires = [wire("a", "y"), wire("y", "c"), wire("a", "x"), wire("x", "c")]

    assert network(*wires).route("a", "c").nodes == ("a", "y", "c")
    assert network(*wires[2:], *wires[:2]).route("a", "c").nodes == ("a", "x", "c")


def test_the_widest_way_may_be_long() -> None:
    """2 by three hops, not 1 by one; a wider first hop that ends in a narrow one is no help."""
    way = network(
        wire("a", "d", 1.0),
        wire("a", "b", 2.0),
        wire("b", "c", 2.0),
        wire("c", "d", 2.0),
        wire("a", "e", 9.0),
        wire("e", "d", 1.5),
        routing="widest",
    ).route("a", "d")

    assert way.nodes == ("a", "b", "c", "d")
    assert way.bandwidth == 2.0


def test_of_widest_ways_the_shortest() -> None:
    """Both are 2 wide at the end; the beginning of the shorter one is the narrower."""
    way = network(
        wire("a", "b", 9.0),
        wire("b", "c", 9.0),
        wire("a", "c", 3.0),
        wire("c", "d", 2.0),
        routing="widest",
    ).route("a", "d")

    assert way.nodes == ("a", "c", "d")


def test_directions_of_a_wire() -> None:
    """Full: a channel each; half: one for both; one-way: no way back."""
    both = network(wire("a", "b", duplex="full"), wire("b", "c", duplex="half"))
    single = network(wire("a", "b", duplex="one-way"))

    assert both.route("a", "c").channels == (0, 2)
    assert both.route("c", "a").channels == (2, 1)
    assert [channel.name for channel in both.channels] == ["a > b", "b > a", "b = c"]
    assert single.route("a", "b").channels == (0,)
    assert single.find("b", "a") is None
    with pytest.raises(InputError, match='there is no way from "b" to "a"'):
        single.route("b", "a")


def test_within_a_node_there_is_nothing_in_the_way() -> None:
    """No wire, no latency."""
    way = network(wire("a", "b")).route("a", "a")

    assert (way.nodes, way.channels, way.latency, way.bandwidth) == (("a",), (), 0.0, math.inf)


def test_a_router_is_no_site() -> None:
    """Sites are the other nodes, in their order."""
    topology = Topology(
        nodes=("r", "b", "a"), wires=(wire("a", "r"), wire("b", "r")), routers=frozenset("r")
    )

    assert topology.sites == ("b", "a")


def test_who_asks_for_an_unknown_node_is_told_a_near_one() -> None:
    """A slip of the pen."""
    with pytest.raises(InputError, match='no node "Milan"') as caught:
        network(wire("Milano", "Roma")).route("Roma", "Milan")

    assert caught.value.hint == 'did you mean "Milano"?'


@pytest.mark.parametrize(
    ("nodes", "wires", "routers", "routing", "message"),
    [
        (("a", "a"), (), (), "latency", 'two nodes "a"'),
        (("a", ""), (), (), "latency", "must not be empty"),
        (("a",), (wire("a", "b"),), (), "latency", 'no node "b"'),
        (("a",), (), ("r",), "latency", 'no node "r"'),
        (("a", "b"), (wire("a", "b"), wire("b", "a")), (), "latency", "two wires from"),
        (("a",), (), (), "longest", 'routing must be "latency" or "widest"'),
    ],
)
def test_a_network_checks_itself(
    nodes: tuple[str, ...],
    wires: tuple[NetworkLink, ...],
    routers: tuple[str, ...],
    routing: Routing,
    message: str,
) -> None:
    """Names that are not there, and wires that would be told apart by nothing."""
    with pytest.raises(ValueError, match=message):
        Topology(nodes=nodes, wires=wires, routers=frozenset(routers), routing=routing)


def test_two_one_way_wires_may_face_each_other() -> None:
    """So that one direction can be faster."""
    topology = network(wire("a", "b", 3.0, duplex="one-way"), wire("b", "a", 1.0, duplex="one-way"))

    assert topology.route("a", "b").bandwidth == 3.0
    assert topology.route("b", "a").bandwidth == 1.0


NODES = "abcde"
PAIRS = [(s, t) for s in NODES for t in NODES if s < t]

networks = st.lists(
    st.tuples(
        st.sampled_from(PAIRS),
        st.sampled_from([1.0, 2.0, 4.0]),
        st.sampled_from([0.0, 0.001, 0.002]),
        st.sampled_from(["full", "half", "one-way"]),
    ),
    unique_by=lambda drawn: drawn[0],
    max_size=len(PAIRS),
)


@settings(max_examples=examples(60))
@given(drawn=networks, routing=st.sampled_from(["latency", "widest"]))
def test_no_other_way_is_better(
    drawn: list[tuple[tuple[str, str], float, float, Duplex]], routing: Routing
) -> None:
    """Against all ways without a node twice."""
    wires = tuple(wire(s, t, width, lag, duplex) for (s, t), width, lag, duplex in drawn)
    topology = Topology(nodes=tuple(NODES), wires=wires, routing=routing)
    joined = {(one.source, one.target): one for one in wires}
    joined |= {(one.target, one.source): one for one in wires if one.duplex != "one-way"}

    def cost(nodes: tuple[str, ...]) -> tuple[float, ...] | None:
        hops = [joined.get(pair) for pair in itertools.pairwise(nodes)]
        found = [hop for hop in hops if hop is not None]
        if len(found) < len(hops):
            return None
        way = (
            round(sum(hop.latency for hop in found) * 1e9),
            len(found),
            sum(1 / hop.bandwidth for hop in found),
        )
        width = min((hop.bandwidth for hop in found), default=math.inf)
        return way if routing == "latency" else (-width, *way)

    for source, target in itertools.permutations(NODES, 2):
        rest = [node for node in NODES if node not in (source, target)]
        ways = (
            cost((source, *between, target))
            for length in range(len(rest) + 1)
            for between in itertools.permutations(rest, length)
        )
        best = min((way for way in ways if way is not None), default=None)
        found = topology.find(source, target)
        assert (None if found is None else cost(found.nodes)) == best
