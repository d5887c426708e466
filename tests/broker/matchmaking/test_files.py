"""What files take, by links and copies."""

import math

from tests.broker.matchmaking.broker_rig import site

from bursar.broker.matchmaking.broker_interfaces import LinkedFileTimes
from bursar.model.matching import Replica
from bursar.model.network import Link

SITES = [
    site("a", links={"b": Link(2.0, 100.0), "c": Link(0.0, 10.0)}, storage_rate=50.0),
    site("b", links={"a": Link(2.0, 100.0), "c": Link(1.0, 1000.0)}),
    site("c", links={"a": Link(0.0, 10.0), "b": Link(1.0, 1000.0)}, storage_rate=500.0),
    site("d"),
]
COPIES = {
    "x": [Replica(name="x", site="a", url="ax", size=1000)],
    "y": [
        Replica(name="y", site="a", url="ay", size=5000),
        Replica(name="y", site="c", url="cy", size=5000),
    ],
    "web": [Replica(name="web", site="", url="http://x/web", size=100)],
    "strange": [Replica(name="strange", site="a", url="as")],
}
FILES = LinkedFileTimes(SITES, lambda name: COPIES.get(name, []), outside=Link(3.0, 100.0))
NAMES = ["a", "b", "c", "d"]


def test_a_file_comes_by_the_link_from_its_copy() -> None:
    """1000 bytes: nothing at a; 2 + 10 s to b; 100 s to c; d shares its files with a."""
    assert FILES.transfer_times(("x",), NAMES).tolist() == [0.0, 12.0, 100.0, 0.0]


def test_the_copy_that_is_there_first_is_taken() -> None:
    """5000 bytes to b: 52 s from a, 6 s from c."""
    assert FILES.transfer_times(("y",), NAMES).tolist() == [0.0, 6.0, 0.0, 0.0]


def test_files_come_one_after_the_other() -> None:
    assert FILES.transfer_times(("x", "y"), ["b", "c"]).tolist() == [18.0, 100.0]


def test_a_copy_that_no_site_holds_comes_from_outside() -> None:
    assert FILES.transfer_times(("web",), NAMES).tolist() == [4.0] * 4


def test_a_file_without_a_copy_never_comes() -> None:
    assert FILES.transfer_times(("x", "z"), NAMES).tolist() == [math.inf] * 4


def test_reading_takes_the_rate_of_the_storage() -> None:
    """6000 bytes at 50 and 500 bytes/s; where no rate is given, no time."""
    assert FILES.access_times(("x", "y"), NAMES).tolist() == [120.0, 0.0, 12.0, 0.0]


def test_a_size_that_is_not_known_counts_nothing() -> None:
    """But for the latency of the link."""
    assert FILES.transfer_times(("strange",), NAMES).tolist() == [0.0, 2.0, 0.0, 0.0]
    assert FILES.access_times(("strange",), ["a"]).tolist() == [0.0]
