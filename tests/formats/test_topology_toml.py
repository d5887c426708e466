"""Topology files, as TOML and as tables of links."""

import math
from pathlib import Path

import pytest

from bursar.formats.network_files import read_topology
from bursar.model.errors import InputError
from bursar.model.network import BandwidthProfile

TOML = """\
routing = "widest"

[node.Roma]
router = true

[node.spare]

[[link]]
between = ["CNAF", "Roma"]
bandwidth = "155 Mbit/s"
latency = "5 ms"

[[link]]
between = ["Roma", "Bari"]
bandwidth = "8 Mbit/s"
duplex = "half"
profile = [0.5, "80%"]
step = "30m"

[[link]]
between = ["Bari", "CNAF"]
duplex = "one-way"
"""

CSV = """\
source_id,from,to,mbit_per_s,latency
x,a,b,8,5 ms
y,b,c,16,
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """A file that says all that one can."""
    path = tmp_path / "net.toml"
    path.write_text(TOML)
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of links."""
    path = tmp_path / "net.csv"
    path.write_text(CSV)
    return path


def test_a_file_that_says_all(toml: Path) -> None:
    """Nodes in the order in which they come, those with a table first."""
    topology = read_topology(toml)
    first, second, third = topology.wires

    assert topology.nodes == ("Roma", "spare", "CNAF", "Bari")
    assert topology.sites == ("spare", "CNAF", "Bari")
    assert topology.routing == "widest"
    assert (first.bandwidth, first.latency, first.duplex) == (155e6 / 8, 0.005, "full")
    assert (second.bandwidth, second.duplex) == (1e6, "half")
    assert second.profile == BandwidthProfile(shares=(0.5, 0.8), step=1800.0)
    assert (third.source, third.target, third.duplex) == ("Bari", "CNAF", "one-way")
    assert third.bandwidth == math.inf
    assert topology.find("spare", "Roma") is None


def test_a_table_of_links(table: Path) -> None:
    """Megabits as numbers, latency where it is given."""
    topology = read_topology(table)

    assert topology.nodes == ("a", "b", "c")
    assert topology.sites == topology.nodes
    assert [wire.bandwidth for wire in topology.wires] == [1e6, 2e6]
    assert [wire.latency for wire in topology.wires] == [0.005, 0.0]


def test_a_table_with_units(tmp_path: Path) -> None:
    """A column of bandwidths instead."""
    path = tmp_path / "net.csv"
    path.write_text("to,bandwidth,from\nb,1 GB/s,a\n")

    (wire,) = read_topology(path).wires

    assert (wire.source, wire.target, wire.bandwidth) == ("a", "b", 1e9)


def test_the_table_of_garr(data: Path) -> None:
    """All its links, whichever source they are of."""
    topology = read_topology(data / "datagrid" / "garr_links.csv")

    assert len(topology.wires) == 25
    assert topology.route("Milano", "Napoli").bandwidth == 34e6 / 8


@pytest.mark.parametrize(
    ("good", "bad", "where", "message"),
    [
        ('"8 Mbit/s"', '"-8 Mbit/s"', ":15: link[1].bandwidth", "expected a bandwidth"),
        ('"8 Mbit/s"', "0", ":15: link[1].bandwidth", "must be positive"),
        ('"8 Mbit/s"', '"8 Mb/s"', ":15: link[1].bandwidth", "expected a bandwidth"),
        ('"5 ms"', '"5 miles"', ":11: link[0].latency", "expected a time"),
        ('"Bari", "CNAF"', '"Bari"', ":21: link[2].between", "length >= 2"),
        ('"Bari", "CNAF"', '"Bari", ""', ":21: link[2].between", "printable names"),
        ('"Bari", "CNAF"', '"Bari", "Bari"', ":21: link[2].between", "to itself"),
        ('"Bari", "CNAF"', '"CNAF", "Roma"', ":20: link[2]", "is a link"),
        ('"half"', '"both"', ":16: link[1].duplex", 'expected "full" or "half" or "one-way"'),
        ("[0.5,", "[1.5,", ":17: link[1].profile[0]", "between 0% and 100%"),
        ('[0.5, "80%"]', "[]", ":17: link[1].profile", "at least one share"),
        ('"30m"', "0", ":18: link[1].step", "must be positive"),
        ('profile = [0.5, "80%"]\n', "", ":17: link[1].step", "goes with a profile"),
        ('bandwidth = "8 Mbit/s"\n', "", ":16: link[1].profile", "goes with a bandwidth"),
        ('"widest"', '"best"', ":1: routing", 'expected "latency" or "widest"'),
        ("router = true", "routes = true", ":4: node.Roma.routes", "unknown key"),
        ("router = true", 'router = "yes"', ":4: node.Roma.router", "expected true or false"),
        ('"half"', '"half', ":16:15", "is not TOML"),
        (TOML, "", "", "has no node"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(
    good: str, bad: str, where: str, message: str, toml: Path
) -> None:
    """With the line."""
    assert good in TOML
    toml.write_text(TOML.replace(good, bad, 1))

    with pytest.raises(InputError) as caught:
        read_topology(toml)

    assert caught.value.where == f"{toml}{where}"
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("good", "bad", "where", "message"),
    [
        ("x,a,b,8,5 ms", "x,a,b,eight,5 ms", ":2: mbit_per_s", "positive number of Mbit/s"),
        ("x,a,b,8,5 ms", "x,a,b,0,5 ms", ":2: mbit_per_s", "positive number of Mbit/s"),
        ("x,a,b,8,5 ms", "x,a,b,8,far", ":2: latency", "expected a time"),
        ("x,a,b,8,5 ms", "x,,b,8,5 ms", ":2: from", "the name of a node"),
        ("x,a,b,8,5 ms", "x,b,b,8,5 ms", ":2: to", "to itself"),
        ("x,a,b,8,5 ms", "x,a,b,8", ":2", "4 cells, expected 5"),
        ("x,a,b,8,5 ms", "x,c,b,8,5 ms", ":3", "already"),
        ("mbit_per_s", "speed", ":1", 'expected one column "mbit_per_s" or "bandwidth"'),
        ("source_id", "bandwidth", ":1", 'expected one column "mbit_per_s" or "bandwidth"'),
        ("source_id", "from", ":1", 'the column "from" twice'),
        (",to,", ",till,", ":1", 'no column "to"'),
        ("x,a,b,8,5 ms\ny,b,c,16,\n", "", "", "no links below its heading"),
        (CSV, "", ":1", 'no column "from"'),
        ("x,a", "\0,a", ":2", "NUL"),
        ("x,a", '"x,a', ":3", "is not CSV"),
    ],
)
def test_what_is_wrong_in_a_table(
    good: str, bad: str, where: str, message: str, table: Path
) -> None:
    """With the line and the column."""
    assert good in CSV
    table.write_text(CSV.replace(good, bad, 1))

    with pytest.raises(InputError) as caught:
        read_topology(table)

    assert caught.value.where == f"{table}{where}"
    assert message in caught.value.message
