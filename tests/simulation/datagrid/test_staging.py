"""Files on their way: jobs wait for them, and for nothing else."""

import numpy as np
import pytest
from tests.simulation.datagrid.grids import ONCE, job, load_of, replica, site, star

from bursar.model.network import Link
from bursar.simulation.datagrid.grid_outcome import GridOutcome
from bursar.simulation.datagrid.grid_simulation import simulate
from bursar.simulation.datagrid.scenario import DataGrid, GridFaults, GridServices, SiteOutage
from bursar.simulation.datagrid.staging import GridStaging

NAMES = ("a", "b", "c")


def grid(*replicas: tuple[str, str, int], limit: int | None = None) -> DataGrid:
    """Three sites around a router, 10 bytes a second each."""
    return DataGrid(
        sites=tuple(site(name, 9, storage_limit=limit) for name in NAMES),
        replicas=tuple(replica(*given) for given in replicas),
        topology=star(NAMES, 10.0),
    )


def started(outcome: GridOutcome) -> list[float]:
    return [float(t) for t in outcome.began]


def test_a_job_starts_when_its_last_file_is_there() -> None:
    """Of 100 and 50 bytes from two sites over one access link: both take 10 s at half of it,
    and the longer 5 s more."""
    outcome = simulate(
        grid(("x", "a", 100), ("y", "b", 50)),
        load_of(job(0.0, 1.0, "x", "y", site="c")),
        services=ONCE,
    )
    assert started(outcome) == pytest.approx([15.0])


def test_transfers_share_a_link_by_what_is_under_way() -> None:
    """
    200 bytes from a to b from 0 s, to c from 10 s: alone 100 bytes until 10 s; both at 5 bytes
    a second until 30 s, when b has all; c has 100 and gets the rest alone by 40 s.
    """
    outcome = simulate(
        grid(("x", "a", 200)),
        load_of(job(0.0, 1.0, "x", site="b"), job(10.0, 1.0, "x", site="c")),
        services=ONCE,
    )
    assert started(outcome) == pytest.approx([30.0, 40.0])


def test_a_file_that_is_there_is_not_brought() -> None:
    outcome = simulate(grid(("x", "a", 100)), load_of(job(3.0, 1.0, "x", site="a")), services=ONCE)
    assert started(outcome) == [3.0]


def test_reading_holds_the_processor() -> None:
    """100 bytes at 20 bytes a second, and then 1 s of work."""
    where = DataGrid(
        sites=(site("a", storage="/a", storage_rate=20.0),), replicas=(replica("x", "a", 100),)
    )
    outcome = simulate(where, load_of(job(0.0, 1.0, "x"), job(0.0, 1.0, "x")), services=ONCE)
    assert outcome.ended.tolist() == pytest.approx([6.0, 12.0])


@pytest.mark.parametrize(("keeps", "expected"), [(False, [20.0, 20.0, 61.0]), (True, [10, 10, 51])])
def test_copies_stay_and_are_shared_where_they_are_kept(keeps: bool, expected: list[float]) -> None:
    """
    Two jobs at once and one later. Each brings its own: 5 bytes a second each, 20 s, and 10 s
    for the last; or one transfer for both, and none for the last.
    """
    services = GridServices(levels=ONCE.levels, keeps=keeps)
    outcome = simulate(
        grid(("x", "a", 100)),
        load_of(*(job(at, 1.0, "x", site="b") for at in (0.0, 0.0, 51.0))),
        services=services,
    )
    assert started(outcome) == pytest.approx(expected)


def test_what_is_least_recently_used_goes_for_what_comes() -> None:
    """Room for two copies of 100 bytes: x goes for z, and is brought again."""
    services = GridServices(levels=ONCE.levels, keeps=True)
    jobs = [job(100.0 * i, 1.0, name, site="b") for i, name in enumerate("xyyzx")]
    outcome = simulate(
        grid(*((name, "a", 100) for name in "xyz"), limit=200), load_of(*jobs), services=services
    )
    brought = outcome.began - outcome.submitted
    assert brought.tolist() == pytest.approx([10, 10, 0, 10, 10])


def test_a_file_too_large_to_keep_is_brought_for_the_job_alone() -> None:
    services = GridServices(levels=ONCE.levels, keeps=True)
    outcome = simulate(
        grid(("x", "a", 100), limit=50),
        load_of(job(0.0, 1.0, "x", site="b"), job(50.0, 1.0, "x", site="b")),
        services=services,
    )
    assert started(outcome) == pytest.approx([10.0, 60.0])


def test_a_copy_that_cannot_be_read_is_passed_over() -> None:
    """The nearest of two copies that are as near is the first; it does not answer."""
    outcome = simulate(
        grid(("x", "a", 100), ("x", "b", 100)),
        load_of(job(0.0, 1.0, "x", site="c")),
        services=ONCE,
        faults=GridFaults(unreachable=frozenset({("x", "a")})),
    )
    assert started(outcome) == pytest.approx([10.0])
    assert not outcome.failed


def test_a_job_whose_file_cannot_be_had_fails_with_a_reason() -> None:
    outcome = simulate(
        grid(("x", "a", 100)),
        load_of(job(0.0, 1.0, "x", site="c")),
        services=ONCE,
        faults=GridFaults(unreachable=frozenset({("x", "a")})),
    )
    assert dict(outcome.reasons) == {'no copy of "x" can be reached': 1}
    assert outcome.attempts.tolist() == [4]


def test_a_copy_that_is_not_what_it_was_said_to_be_is_brought_once() -> None:
    """
    The copy at a has 40 bytes of 100. 4 s are lost, then the other comes; the next job does
    not try the bad one.
    """
    outcome = simulate(
        grid(("x", "a", 100), ("x", "b", 100)),
        load_of(job(0.0, 1.0, "x", site="c"), job(50.0, 1.0, "x", site="c")),
        services=ONCE,
        faults=GridFaults(lies={("x", "a"): 40}),
    )
    assert started(outcome) == pytest.approx([14.0, 60.0])


def test_whoever_asks_for_a_file_as_it_is_given_up_is_told_too() -> None:
    """Two wait for a file whose only copy is bad; the first that fails makes way for a third."""
    services = GridServices(levels=ONCE.levels, keeps=True, stagings=2, retries=0)
    outcome = simulate(
        grid(("x", "a", 100)),
        load_of(*(job(0.0, 1.0, "x", site="c") for _ in range(4))),
        services=services,
        faults=GridFaults(lies={("x", "a"): 40}),
    )
    assert dict(outcome.reasons) == {'no copy of "x" can be reached': 4}


def test_a_transfer_from_a_site_that_goes_is_begun_anew_from_another() -> None:
    outcome = simulate(
        grid(("x", "a", 100), ("x", "b", 100)),
        load_of(job(0.0, 1.0, "x", site="c")),
        services=ONCE,
        faults=GridFaults(outages=(SiteOutage(site="a", begin=5.0),)),
    )
    assert started(outcome) == pytest.approx([15.0])


def test_sites_without_a_link_share_their_files() -> None:
    """A link of 10 bytes a second from a to b; none from a to c."""
    sites = (site("a", links={"b": Link(1.0, 10.0)}), site("b"), site("c"))
    outcome = simulate(
        DataGrid(sites=sites, replicas=(replica("x", "a", 100),)),
        load_of(job(0.0, 1.0, "x", site="b"), job(0.0, 1.0, "x", site="c")),
        services=ONCE,
    )
    assert started(outcome) == pytest.approx([11.0, 0.0])


def test_a_job_that_started_without_its_files_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GridStaging, "bring", lambda self, job: self._staged(job))
    with pytest.raises(RuntimeError, match="before its files are there"):
        simulate(grid(("x", "a", 100)), load_of(job(0.0, 1.0, "x", site="c")), services=ONCE)


def test_few_jobs_are_staged_and_handed_over_at_a_time() -> None:
    """
    One at a time is staged, 10 s each; handing over takes 4 s and goes on beside it.
    """
    services = GridServices(levels=ONCE.levels, stagings=1, channels=1, overhead=4.0)
    outcome = simulate(
        grid(("x", "a", 100)),
        load_of(*(job(0.0, 1.0, "x", site="b") for _ in range(3))),
        services=services,
    )
    assert started(outcome) == pytest.approx([14.0, 24.0, 34.0])


def test_many_jobs_without_files_wait_their_turn() -> None:
    """Deep queues do not mean deep calls."""
    services = GridServices(levels=ONCE.levels, stagings=1, channels=1, overhead=0.5)
    first = job(0.0, 1.0, "x", site="b")
    others = [job(0.0, 0.0, site="b") for _ in range(3000)]
    outcome = simulate(grid(("x", "a", 100)), load_of(first, *others), services=services)
    assert outcome.arrived[-1] == pytest.approx(10.0 + 0.5 * 3001)
    assert np.isfinite(outcome.ended).all()
