"""What is said of each site, and why."""

import pytest
from tests.broker.matchmaking.broker_rig import Asked, Grid, job, site, status

from bursar.broker.matchmaking.broker_interfaces import LinkedFileTimes
from bursar.broker.matchmaking.explaining import MatchExplanation
from bursar.model.matching import Replica


def reasons(found: MatchExplanation) -> dict[str, tuple[str, ...]]:
    return {one.site: one.reasons for one in found.outsiders}


def test_each_site_says_which_clauses_it_fails_with_what_was_seen() -> None:
    """Values as they are published, by the names that the user wrote; what is missing is said
    to be."""
    grid = Grid(
        [
            site("a", 4, attributes={"OpSys": "Solaris", "Level": 3}),
            site("b", 4, attributes={"OpSys": "LINUX"}),
            site("c", 4, attributes={"OpSys": "LINUX", "Level": "high"}),
            site("d", 4, attributes={"OpSys": "LINUX", "Level": 7}),
        ]
    )

    found = grid.broker.explain(
        job(requirements='other.OpSys == "LINUX" && other.Level > 5 && other.FreeCPUs > 2')
    )

    assert [one.site for one in found.candidates] == ["d"]
    assert reasons(found) == {
        "a": (
            'fails other.OpSys == "LINUX" (OpSys = "Solaris")',
            "fails other.Level > 5 (Level = 3)",
        ),
        "b": ("fails other.Level > 5 (undefined: attribute Level missing)",),
        "c": ('fails other.Level > 5 (error; Level = "high")',),
    }
    assert found.refusal is None


def test_attributes_that_a_site_lacks_are_all_named() -> None:
    grid = Grid([site("a", 4)])

    found = grid.broker.explain(job(requirements="other.Level > other.Rank"))

    assert reasons(found) == {
        "a": ("fails other.Level > other.Rank (undefined: attributes Level, Rank missing)",)
    }


def test_what_is_not_in_the_requirements_is_said_as_well() -> None:
    """Size, state, the index, the site's own requirements, and files that cannot be had."""
    sites = [
        site("small", 1),
        site("little", 8, memory=10),
        site("closed", 8),
        site("gone", 8),
        site("picky", 8, attributes={"Requirements": "other.Runtime < 1"}),
        site("mute", 8),
        site("good", 8),
    ]
    said = [status(s.name, free=s.processors) for s in sites if s.name not in ("gone", "closed")]
    said.append(status("closed", state="Draining"))
    answers = {s.name: status(s.name, free=8) for s in sites if s.name != "mute"}
    grid = Grid(sites, said, direct=Asked(**answers))
    grid.clock.now = 30.0

    found = grid.broker.explain(job(processors=2, memory=2**20))

    assert [(one.site, one.probability) for one in found.candidates] == [("good", 1.0)]
    assert reasons(found) == {
        "small": ("has fewer than 2 processors",),
        "little": ("has less memory than 1 MiB",),
        "closed": ("is not in production",),
        "gone": ("is not in the index",),
        "picky": ("does not take it by its own requirements",),
        "mute": ("does not answer",),
    }
    assert {one.site: one.age for one in found.outsiders}["gone"] is None
    assert {one.site: one.age for one in found.outsiders}["small"] == 30.0


def test_candidates_stand_in_order_with_terms_and_chances() -> None:
    """Waits of 100, 200 and 400 s: chances of 4, 2 and 1 sevenths."""
    said = [status("a", wait=400.0), status("b", wait=100.0), status("c", wait=200.0)]
    grid = Grid([site(n) for n in "abc"], said)

    found = grid.broker.explain(job(choice="stochastic"))

    assert [one.site for one in found.candidates] == ["b", "c", "a"]
    assert [one.probability for one in found.candidates] == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert [one.terms.expression for one in found.candidates] == [-100, -200, -400]
    assert found.rank == "-other.EstimatedTraversalTime"


def test_where_a_file_has_no_copy_it_is_said_of_each_site() -> None:
    sites = [site("a"), site("b")]
    copies = {"x": [Replica(name="x", site="a", url="x")]}
    grid = Grid(sites, files=LinkedFileTimes(sites, lambda name: copies.get(name, [])))

    found = grid.broker.explain(job(data=("x", "y")))

    assert reasons(found)["a"] == ('no copy of "y" can be brought there',)
    assert found.refusal is not None
    assert found.refusal.reason == 'no copy of "y" can be brought to the 2 sites that match'


def test_a_named_site_is_certain() -> None:
    grid = Grid([site("a"), site("b")])

    found = grid.broker.explain(job(site="b"))

    assert {one.site: one.probability for one in found.candidates} == {"a": 0.0, "b": 1.0}
    assert grid.broker.explain(job(site="c")).refusal is not None


def test_a_runtime_that_is_not_stated_is_said_to_be_assumed() -> None:
    grid = Grid([site("a")])

    assert grid.broker.explain(job(runtime=5.0)).assumed_runtime is None
    assert grid.broker.explain(job(runtime=None)).assumed_runtime == 3600.0


def test_explaining_draws_no_number() -> None:
    """So that looking does not change what is chosen."""
    grids = [Grid([site(n) for n in "abcdefgh"], seed=4) for _ in range(2)]
    grids[0].broker.explain(job(choice="random"))

    one, other = (grid.broker.choose(job(choice="random")) for grid in grids)

    assert one == other
