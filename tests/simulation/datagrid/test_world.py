"""The grid as a whole: jobs are conserved, whatever goes wrong, and traces repeat."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.datagrid.grids import ONCE, job, load_of, replica, site, star
from tests.thoroughness import examples

from bursar.broker.status_feeds import IndexLevel
from bursar.cluster.job_table import Policy as Discipline
from bursar.model.errors import InputError
from bursar.model.matching import CHOICES
from bursar.model.site import BackgroundLoad
from bursar.simulation.datagrid.grid_outcome import GridOutcome
from bursar.simulation.datagrid.grid_simulation import DataGridSimulation, simulate
from bursar.simulation.datagrid.scenario import (
    CURRENT,
    BrokerPolicy,
    DataGrid,
    GridFaults,
    GridJobClass,
    GridServices,
    GridWorkload,
    SiteOutage,
    poisson,
)
from bursar.simulation.simulated_grid import SimulatedGrid as Clusters

NAMES = ("a", "b", "c", "d")
FILES = ("x", "y", "z")


@st.composite
def situations(draw: Callable[..., object]) -> dict[str, object]:
    """A small grid, a load, services, and what goes wrong."""
    count = draw(st.integers(1, 4))
    names = NAMES[:count]  # type: ignore[misc]
    places = st.sampled_from(names)
    copies = draw(st.sets(st.tuples(st.sampled_from(FILES), places), max_size=6))
    grid = DataGrid(
        sites=tuple(
            site(
                name,
                draw(st.integers(1, 3)),  # type: ignore[arg-type]
                speed=draw(st.sampled_from((0.5, 1.0, 2.0))),
                storage_limit=draw(st.sampled_from((None, 0, 60, 120))),
            )
            for name in names
        ),
        replicas=tuple(replica(name, at, 50) for name, at in sorted(copies)),  # type: ignore[misc,attr-defined]
        topology=star(names, 10.0),
    )
    known = sorted({copy.name for copy in grid.replicas})
    kinds = [
        GridJobClass(
            runtime=draw(st.sampled_from((0.0, 1.0, 30.0))),  # type: ignore[arg-type]
            processors=draw(st.sampled_from((1, 1, 2))),  # type: ignore[arg-type]
            data=tuple(known[: draw(st.integers(0, len(known)))]),  # type: ignore[misc]
            told=draw(st.sampled_from(("exact", "mean", "nothing"))),  # type: ignore[arg-type]
            spread="exponential",
        )
        for _ in range(2)
    ]
    load = poisson(
        np.random.default_rng(draw(st.integers(0, 9))),  # type: ignore[arg-type]
        kinds,
        gap=draw(st.sampled_from((0.5, 5.0, 20.0))),  # type: ignore[arg-type]
        jobs=draw(st.integers(1, 20)),  # type: ignore[arg-type]
    )
    services = GridServices(
        levels=(IndexLevel(every=draw(st.sampled_from((1.0, 30.0)))),),  # type: ignore[arg-type]
        expiry=draw(st.sampled_from((40.0, float("inf")))),  # type: ignore[arg-type]
        overhead=draw(st.sampled_from((0.0, 2.0))),  # type: ignore[arg-type]
        channels=draw(st.sampled_from((None, 1))),  # type: ignore[arg-type]
        stagings=draw(st.sampled_from((None, 1, 2))),  # type: ignore[arg-type]
        keeps=draw(st.booleans()),  # type: ignore[arg-type]
        retries=draw(st.integers(0, 3)),  # type: ignore[arg-type]
        pause=10.0,
    )
    begin = draw(st.sampled_from((0.0, 7.0, 25.0)))
    faults = GridFaults(
        outages=tuple(
            SiteOutage(site=name, begin=begin, end=draw(st.sampled_from((33.0, float("inf")))))  # type: ignore[arg-type]
            for name in draw(st.sets(places, max_size=2))  # type: ignore[attr-defined]
        ),
        unreachable=frozenset(draw(st.sets(st.tuples(st.sampled_from(FILES), places), max_size=2))),  # type: ignore[arg-type]
        lies=dict.fromkeys(
            draw(st.sets(st.tuples(st.sampled_from(FILES), places), max_size=2)),  # type: ignore[call-overload]
            20,
        ),
        mute=frozenset(draw(st.sets(places, max_size=1))),  # type: ignore[arg-type]
    )
    policy = BrokerPolicy(choice=draw(st.sampled_from(CHOICES)), direct=draw(st.booleans()))  # type: ignore[arg-type]
    return {
        "grid": grid,
        "load": load,
        "services": services,
        "faults": faults,
        "policy": policy,
    }


@settings(max_examples=examples(100))
@given(situations())
def test_every_job_is_at_one_place_at_every_event(situation: dict[str, object]) -> None:
    """
    Submitted is finished and running and queued and staged and paused and failed, whatever
    sites go, copies fail or sizes lie; in the end each job has finished, or failed with a
    reason. No job starts before its files are there: that would be an error. Equal seeds give
    equal traces.
    """
    looks = 0

    def watch(world: DataGridSimulation) -> None:
        nonlocal looks
        looks += 1
        assert sum(world.census.values()) == world.submitted

    outcome = simulate(**situation, watch=watch)  # type: ignore[arg-type]

    load: GridWorkload = situation["load"]  # type: ignore[assignment]
    assert looks
    assert outcome.finished + outcome.failed == len(load)
    assert sum(outcome.reasons.values()) == outcome.failed
    done = np.isfinite(outcome.ended)
    assert (outcome.submitted[done] <= outcome.arrived[done]).all()
    assert (outcome.arrived[done] <= outcome.began[done]).all()
    assert (outcome.began[done] <= outcome.ended[done]).all()
    assert simulate(**situation).digest == outcome.digest  # type: ignore[arg-type]


def steady(grid: DataGrid, jobs: int, gap: float, **more: object) -> GridOutcome:
    load = poisson(
        np.random.default_rng(1),
        [GridJobClass(runtime=10.0, spread="exponential")],
        gap=gap,
        jobs=jobs,
    )
    return simulate(grid, load, **more)  # type: ignore[arg-type]


def drawn(*, gap: float, jobs: int) -> GridWorkload:
    return poisson(np.random.default_rng(0), [GridJobClass(runtime=1.0)], gap=gap, jobs=jobs)


def test_another_seed_gives_another_trace() -> None:
    grid = DataGrid(sites=(site("a"), site("b"), site("c")))
    digests = {
        steady(grid, 60, 5.0, policy=BrokerPolicy(choice="stochastic"), seed=seed).digest
        for seed in (1, 2, 1)
    }
    assert len(digests) == 2


def test_stale_information_sends_bursts_to_one_site() -> None:
    """The index is asked at 0 s only: the best by it may be asked for ever; ours counts what
    it sent itself."""
    grid = DataGrid(sites=(site("a", 2), site("b", 2, speed=0.9), site("c", 2, speed=0.8)))

    def mean(policy: BrokerPolicy, every: float) -> float:
        services = GridServices(levels=(IndexLevel(every=every),))
        return steady(grid, 300, 2.5, services=services, policy=policy).mean_lifetime()

    assert mean(CURRENT, 100.0) > 2 * mean(CURRENT, 1.0)
    assert mean(BrokerPolicy(), 100.0) < 0.6 * mean(CURRENT, 100.0)


def test_asking_the_sites_themselves_mends_what_is_stale() -> None:
    grid = DataGrid(sites=(site("a", 2), site("b", 2)))
    stale = steady(
        grid, 200, 4.0, services=GridServices(levels=(IndexLevel(every=200.0),)), policy=CURRENT
    )
    fresh = steady(
        grid,
        200,
        4.0,
        services=GridServices(levels=(IndexLevel(every=200.0),)),
        policy=BrokerPolicy(choice="best", weights=CURRENT.weights, direct=True),
    )
    assert fresh.mean_lifetime() < 0.7 * stale.mean_lifetime()


def test_jobs_of_a_site_that_goes_are_done_elsewhere() -> None:
    grid = DataGrid(sites=(site("a", 4), site("b", 4)))
    outcome = steady(
        grid,
        40,
        2.0,
        faults=GridFaults(outages=(SiteOutage(site="a", begin=30.0),)),
        services=GridServices(),
    )
    assert outcome.finished == 40
    assert outcome.attempts.max() > 1
    late = outcome.began > 30.0
    assert set(outcome.site[late].tolist()) == {1}


def test_where_no_site_is_left_jobs_fail_with_a_reason() -> None:
    outcome = simulate(
        DataGrid(sites=(site("a"),)),
        load_of(job(0.0, 5.0), job(1.0, 5.0)),
        faults=GridFaults(outages=(SiteOutage(site="a", begin=3.0),)),
        services=GridServices(levels=(IndexLevel(every=10.0),), expiry=20.0, retries=2, pause=30.0),
    )
    assert outcome.failed == 2
    assert all(outcome.reasons)
    assert outcome.mean_lifetime() != outcome.mean_lifetime()  # there is none


def test_a_job_that_is_too_wide_fails_at_once() -> None:
    outcome = simulate(
        DataGrid(sites=(site("a", 2),)), load_of((0.0, GridJobClass(runtime=1.0, processors=3)))
    )
    assert (outcome.failed, outcome.attempts.tolist()) == (1, [0])


@pytest.mark.parametrize("discipline", ["fcfs", "easy", "conservative"])
def test_a_batch_scheduler_may_serve_a_site(discipline: Discipline) -> None:
    """
    Two processors; jobs of 2, 2 and 1 processors and 10, 10 and 5 s, in that order. First come,
    first served, the last begins at 20 s; nothing can be filled in before, for all is taken.
    """
    facts = site("a", 2, background=BackgroundLoad(policy=discipline))
    kinds = [GridJobClass(runtime=t, processors=p) for t, p in ((10.0, 2), (10.0, 2), (5.0, 1))]
    outcome = simulate(
        DataGrid(sites=(facts,)),
        load_of(*((0.5 * i, kind) for i, kind in enumerate(kinds))),
        clusters=Clusters([facts]).clusters(),
        services=ONCE,
    )
    assert outcome.began.tolist() == pytest.approx([0.0, 10.0, 20.0])


def test_a_batch_scheduler_fills_gaps_where_first_come_first_served_does_not() -> None:
    """One of two processors is busy until 10 s; a job of both waits; one of 5 s fits beside."""
    kinds = [GridJobClass(runtime=t, processors=p) for t, p in ((10.0, 1), (10.0, 2), (5.0, 1))]
    load = load_of(*((0.5 * i, kind) for i, kind in enumerate(kinds)))
    plain, facts = site("a", 2), site("a", 2, background=BackgroundLoad(policy="easy"))

    first = simulate(DataGrid(sites=(plain,)), load, services=ONCE)
    filled = simulate(
        DataGrid(sites=(facts,)), load, clusters=Clusters([facts]).clusters(), services=ONCE
    )

    assert first.began.tolist() == pytest.approx([0.0, 10.0, 20.0])
    assert filled.began.tolist() == pytest.approx([0.0, 10.0, 1.0])


def test_an_error_in_the_middle_ends_the_simulation() -> None:
    def watch(world: DataGridSimulation) -> None:
        raise ValueError("seen")

    with pytest.raises(ValueError, match="seen"):
        simulate(DataGrid(sites=(site("a"),)), load_of(job(0.0, 1.0)), watch=watch)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: DataGrid(sites=()), "at least one site"),
        (lambda: DataGrid(sites=(site("a"), site("a"))), 'two sites are called "a"'),
        (
            lambda: DataGrid(sites=(site("a"),), replicas=(replica("x", "aa", 1),)),
            'unknown site "aa"',
        ),
        (
            lambda: DataGrid(
                sites=(site("a"), site("b")),
                replicas=(replica("x", "a", 1), replica("x", "b", 2)),
            ),
            "differ in size",
        ),
        (lambda: DataGrid(sites=(site("e"),), topology=star("ab", 1.0)), 'no node "e"'),
        (lambda: BrokerPolicy(choice="bets"), 'unknown choice "bets"'),
        (lambda: GridServices(channels=0), "channels must be at least 1"),
        (lambda: GridServices(overhead=-1.0), "overhead"),
        (lambda: GridServices(retries=-1), "retries"),
        (lambda: GridServices(pause=0.0), "pause"),
        (lambda: GridJobClass(runtime=-1.0), "runtime"),
        (
            lambda: poisson(np.random.default_rng(0), [GridJobClass(runtime=1.0)], gap=0.0, jobs=1),
            "between",
        ),
        (
            lambda: poisson(np.random.default_rng(0), [GridJobClass(runtime=1.0)], gap=1.0, jobs=0),
            "one job",
        ),
        (lambda: load_of(job(2.0, 1.0), job(1.0, 1.0)), "in order of time"),
    ],
)
def test_wrong_input_is_said(make: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()
