"""Means and ratios of rows."""

import math

import pytest

from bursar_papers.summary import Summary, grouped, paired

ROWS = [
    {"seed": 0, "kind": "a", "makespan": 4.0},
    {"seed": 0, "kind": "b", "makespan": 2.0},
    {"seed": 1, "kind": "a", "makespan": 9.0},
    {"seed": 1, "kind": "b", "makespan": 3.0},
    {"seed": 2, "kind": "a", "makespan": None},
]


def test_a_sample_has_mean_deviation_and_error() -> None:
    found = Summary.of([1.0, 2.0, 3.0])
    assert (found.mean, found.deviation, found.count) == (2.0, 1.0, 3)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert found.half_width == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)  # t(0.975, 2)
    assert str(found) == "2 ± 2.5"
    assert str(Summary.of([1000.0, 2000.0])) == "1,500 ± 6,400"
    assert str(Summary.of([5.0])) == "5 ± ?"
    assert str(found.scaled(-10.0, 100.0)) == "80 ± 25"
    assert Summary.of([5.0]).deviation == 0.0
    assert math.isnan(Summary.of([]).mean)


def test_groups_leave_out_what_was_not_measured() -> None:
    found = grouped(ROWS, ("kind",), "makespan")
    assert {key: s.count for key, s in found.items()} == {("a",): 2, ("b",): 2}
    assert found[("a",)].mean == 6.5


def test_ratios_are_of_rows_that_belong_together() -> None:
    found = paired(ROWS, ("seed",), "makespan", {"kind": "a"}, {"kind": "b"})
    assert (found.mean, found.count) == (2.5, 2)


def test_a_pair_that_is_not_told_is_refused() -> None:
    rows = [*ROWS, {"seed": 0, "kind": "b", "makespan": 1.0}]
    with pytest.raises(ValueError, match="comes twice"):
        paired(rows, ("seed",), "makespan", {"kind": "a"}, {"kind": "b"})
