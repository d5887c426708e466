"""The network like GARR-B."""

import itertools
from pathlib import Path

import pytest

from bursar.model.errors import InputError
from bursar_papers.datagrid.garr import ASSUMED, POINTS, SITES, STATED, garr_network

MEGABIT = 125_000.0


def test_sixteen_sections_on_a_backbone_of_34_megabits() -> None:
    """Each reaches each over at most two points of presence and Torino's."""
    network = garr_network()

    assert len(SITES) == len(set(SITES)) == 16
    assert network.sites == SITES
    for one, other in itertools.combinations(POINTS, 2):
        assert network.route(one, other).nodes == (one, other)
        assert network.route(one, other).bandwidth == 34 * MEGABIT
    for one, other in itertools.permutations(SITES, 2):
        assert network.route(one, other).bandwidth == 34 * MEGABIT
        assert len(network.route(one, other).nodes) <= 5


def test_every_section_stands_in_one_table() -> None:
    """Stated or assumed, not both."""
    assert not set(STATED) & set(ASSUMED)
    assert {point for point, _ in STATED.values()} <= {*POINTS, "Torino"}
    assert set(ASSUMED.values()) <= set(POINTS)


def test_the_table_of_links_says_what_stands_here(data: Path) -> None:
    """From the file, from the folder, and without either."""
    network = garr_network()

    assert garr_network(data / "datagrid" / "garr_links.csv") == network
    assert garr_network(data) == network


def test_a_folder_without_the_table(tmp_path: Path) -> None:
    """The figures that stand here."""
    assert garr_network(tmp_path) == garr_network()


def test_a_table_that_lacks_a_link(tmp_path: Path) -> None:
    """And one that says another bandwidth, which is taken."""
    path = tmp_path / "links.csv"
    rows = ["source_id,from,to,mbit_per_s"]
    rows += [f"bollettino-cilea-66,{a},{b},155" for a, b in itertools.combinations(POINTS, 2)]
    rows += [f"bollettino-cilea-66,{s},GARR-B PoP {p},{r:g}" for s, (p, r) in STATED.items()]
    path.write_text("\n".join(rows))
    assert garr_network(path).route("Milano", "Roma").bandwidth == 155 * MEGABIT

    path.write_text("\n".join(rows[:-1]))
    with pytest.raises(InputError, match='no link between "INFN-Napoli" and "Napoli"'):
        garr_network(path)
