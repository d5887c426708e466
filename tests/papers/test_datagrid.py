"""The data grid's figures in small: grids as stated, findings, charts, and their direction."""

from pathlib import Path

import pytest
from tests.papers.checking import check_findings

from bursar_papers.catalogue import find
from bursar_papers.datagrid import datagrid_grids as grids
from bursar_papers.datagrid.datagrid_experiments import HEAVY_WEIGHTS, LIGHT_WEIGHTS
from bursar_papers.datagrid.datagrid_findings import find_heavy, improvements
from bursar_papers.experiment import Experiment, Row

NOWHERE = Path("nowhere")
SMALL = {"jobs": 60, "seed": 0}


@pytest.mark.parametrize("unbalanced", [False, True])
def test_sixteen_elements_as_stated(unbalanced: bool) -> None:
    """
    5, 6 and 5 of 300, 200 and 100 MIPS; each site has one of the two files. Balanced, half of
    the sites of each power have the large one, as nearly as it goes; unbalanced, the faster.
    """
    for seed in range(5):
        grid = grids.light(NOWHERE, seed, unbalanced=unbalanced)
        speeds = {site.name: site.speed for site in grid.sites}
        assert sorted(speeds.values()) == [100] * 5 + [200] * 6 + [300] * 5
        large = [r.site for r in grid.replicas if r.name == grids.LARGE]
        small = [r.site for r in grid.replicas if r.name == grids.SMALL]
        assert sorted(large + small) == sorted(speeds)
        assert {r.size for r in grid.replicas} == {10**9, 50 * 10**6}
        if unbalanced:
            assert min(speeds[s] for s in large) >= max(speeds[s] for s in small)
        else:
            for power in (100, 200, 300):
                has = sum(speeds[s] == power for s in large)
                assert abs(has - sum(speeds[s] == power for s in small)) <= 1


def test_five_heavy_sites_as_stated() -> None:
    for seed in range(5):
        grid = grids.heavy(NOWHERE, seed)
        assert len(grid.sites) == 5
        assert all(20 <= s.processors <= 30 and 100 <= s.speed <= 300 for s in grid.sites)
        assert {r.size for r in grid.replicas} == {10**6, 300_000}


def test_weights_are_the_papers() -> None:
    assert LIGHT_WEIGHTS == (0.75, 0.25)
    assert HEAVY_WEIGHTS == (0.25, 0.25)
    current = grids.policy("current", *LIGHT_WEIGHTS)
    assert (current.choice, current.weights.alpha) == ("best", 1.0)
    assert grids.policy("deterministic", *LIGHT_WEIGHTS).choice == "best"


def test_the_index_is_refreshed_as_often_as_jobs_come() -> None:
    assert grids.services(60.0).levels[0].every == 60.0
    assert grids.services(60.0, slow=10).levels[0].every == 600.0


@pytest.mark.parametrize("experiment", find("datagrid", None), ids=lambda e: e.figure)
def test_small_cells_give_findings_and_charts(experiment: Experiment) -> None:
    """Two seeds and two loads of every policy."""
    every = list(experiment.cells("quick"))
    gaps = sorted({cell["gap"] for cell in every})
    chosen = [c for c in every if c["seed"] < 2 and c["gap"] in (gaps[0], gaps[-1])]
    if experiment.figure == "sensitivity":
        chosen = [c for c in chosen if c["variant"] in list(grids.VARIANTS)[:4]]
    rows = [r for cell in chosen for r in experiment.measure({**cell, "jobs": 12}, NOWHERE)]

    assert len(rows) == len(chosen)
    assert rows[0] == experiment.measure({**chosen[0], "jobs": 12}, NOWHERE)[0]
    check_findings(experiment.findings(rows))
    assert experiment.charts(rows)


@pytest.mark.parametrize("variant", list(grids.VARIANTS))
def test_every_variant_runs(variant: str) -> None:
    (experiment,) = find("datagrid", "sensitivity")
    cell = {"unbalanced": True, "variant": variant, "policy": "completion", "gap": 80, **SMALL}
    (row,) = experiment.measure(cell, NOWHERE)
    assert row["lifetime"] == pytest.approx(row["staged"] + row["queued"] + row["ran"])


def test_policies_that_look_at_files_gain_where_files_lie_unevenly() -> None:
    """Figure 4 at a low load, in small: stochastic and completion below the current policy."""
    (experiment,) = find("datagrid", "4")
    lifetime: dict[str, float] = {}
    for policy in ("current", "stochastic", "completion"):
        rows: list[Row] = []
        for seed in range(3):
            cell = {"unbalanced": True, "policy": policy, "gap": 150, "jobs": 150, "seed": seed}
            rows += experiment.measure(cell, NOWHERE)
        lifetime[policy] = sum(row["lifetime"] for row in rows)
    assert lifetime["completion"] < lifetime["stochastic"] < lifetime["current"]


def test_improvements_are_paired() -> None:
    rows = [
        {"policy": policy, "gap": 50, "seed": seed, "lifetime": value}
        for policy, values in (("current", (100.0, 200.0)), ("stochastic", (80.0, 100.0)))
        for seed, value in enumerate(values)
    ]
    assert [row["improvement"] for row in improvements(rows)] == [pytest.approx(20.0), 50.0]


def test_what_the_toll_was_chosen_by_does_not_count_for_completion() -> None:
    """Its constants were set at 450 and 500 s between heavy jobs, whatever the refresh."""
    rows: list[Row] = [
        {"policy": policy, "refresh": refresh, "gap": gap, "seed": seed, "lifetime": seconds + seed}
        for policy, seconds in (
            ("current", 90.0), ("deterministic", 95.0), ("stochastic", 92.0), ("completion", 80.0)
        )
        for refresh in (1, 10)
        for gap in (450, 500, 720, 1500)
        for seed in range(3)
    ]  # fmt: skip

    told = [finding for finding in find_heavy(rows) if finding.own]

    names = [[each.name.partition(" ")[0] for each in finding.comparisons] for finding in told]
    assert names == [["720", "1500"], ["450", "500"]] * 2
    assert [finding.verdict for finding in told] == ["agrees", "calibrated"] * 2
