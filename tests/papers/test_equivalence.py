"""The one rule by which a figure of ours agrees, differs, or is left open; and where it is used."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar_papers import nimrodg
from bursar_papers.catalogue import find
from bursar_papers.drp import drp_findings
from bursar_papers.equivalence import (
    ABOVE,
    BELOW,
    Comparison,
    combine_judgements,
    compare_per_cent,
    compare_with_bounds,
    compare_with_stated,
)
from bursar_papers.experiment import PaperFinding
from bursar_papers.summary import Summary, deviation_ratio

NUMBERS = st.floats(-1e6, 1e6)


def comparison(mean: float, half: float, at_least: float, at_most: float) -> Comparison:
    return Comparison(
        mean=mean, low=mean - half, high=mean + half, at_least=at_least, at_most=at_most
    )


@pytest.mark.parametrize(
    ("mean", "half", "expected"),
    [(10.0, 1.0, "agrees"), (10.0, 3.0, "open"), (13.0, 0.5, "differs"), (12.5, 1.0, "open")],
)
def test_the_whole_interval_decides(mean: float, half: float, expected: str) -> None:
    """Bounds 8 to 12: inside, across, outside, and across with the mean outside."""
    assert comparison(mean, half, 8.0, 12.0).judgement == expected


def test_noise_does_not_agree() -> None:
    """+16.9 with an error of 5.8 against +7.7: twice the error away, once called agreement."""
    few = Summary(16.9, 5.8 * math.sqrt(2), 2)
    many = Summary(16.9, 5.8 * math.sqrt(50), 50)
    assert compare_per_cent(few, 7.7).judgement == "open"
    assert compare_per_cent(many, 7.7).judgement == "open"
    assert compare_per_cent(Summary(16.9, 0.1 * math.sqrt(50), 50), 7.7).judgement == "differs"


def test_an_interval_that_holds_nothing_is_not_as_good() -> None:
    assert compare_with_bounds(Summary(-0.4, 1.0, 10), at_least=BELOW).judgement == "open"
    assert compare_with_bounds(Summary(0.4, 1.0, 10), at_least=BELOW).judgement == "open"
    assert compare_with_bounds(Summary(2.0, 1.0, 10), at_least=BELOW).judgement == "agrees"
    assert compare_with_bounds(Summary(-2.0, 1.0, 10), at_least=BELOW).judgement == "differs"


def test_a_figure_without_chance_is_a_point() -> None:
    """Equal is as good, and no gain; a single random value says nothing."""
    assert compare_with_bounds(0.0, at_least=BELOW).judgement == "agrees"
    assert compare_with_bounds(0.0, at_least=ABOVE).judgement == "differs"
    assert compare_with_stated(95.0, 100.0).judgement == "agrees"
    assert compare_with_stated(94.0, 100.0).judgement == "differs"
    assert compare_with_stated(Summary.of([100.0]), 100.0).judgement == "open"
    assert compare_with_stated(Summary.of([]), 100.0).judgement == "open"


def test_margins_of_small_percentages_leave_no_room_for_no_effect() -> None:
    """3 % may be 2.25 to 3.75 %, 56 % may be 51 to 61 %."""
    small, large = compare_per_cent(0.0, 3.0), compare_per_cent(50.0, 56.0)
    assert (small.at_least, small.at_most, small.judgement) == (2.25, 3.75, "differs")
    assert (large.at_least, large.at_most) == (51.0, 61.0)


@given(mean=NUMBERS, half=st.floats(0, 1e6), more=st.floats(0, 1e6), a=NUMBERS, b=NUMBERS)
def test_a_wider_interval_never_decides_what_a_narrower_one_left_open(
    mean: float, half: float, more: float, a: float, b: float
) -> None:
    at_least, at_most = sorted((a, b))
    narrow = comparison(mean, half, at_least, at_most).judgement
    wide = comparison(mean, half + more, at_least, at_most).judgement
    assert wide in (narrow, "open")


def test_all_comparisons_of_a_finding_must_agree() -> None:
    assert combine_judgements(["agrees", "agrees"]) == "agrees"
    assert combine_judgements(["agrees", "open"]) == "open"
    assert combine_judgements(["agrees", "open", "differs"]) == "differs"


def test_what_is_not_counted_has_no_judgement() -> None:
    wrong = compare_with_bounds(7.0, at_least=8.0)
    assert PaperFinding(what="", paper="", ours="", comparisons=(wrong,)).verdict == "differs"
    for why in ("identity", "calibrated", "impossible"):
        finding = PaperFinding(what="", paper="", ours="", comparisons=(wrong,), uncounted=why)  # type: ignore[arg-type]
        assert finding.verdict == why
    assert PaperFinding(what="", paper="", ours="").verdict is None


def test_the_ratio_of_deviations_has_an_interval() -> None:
    """Samples of deviations 1 and 3: the logarithm of their ratio is -1.10."""
    narrow = [math.sin(7.1 * i) * math.sqrt(2) for i in range(60)]
    wide = [3 * math.cos(3.3 * i) * math.sqrt(2) for i in range(60)]
    ratio = deviation_ratio(narrow, wide)
    assert ratio.mean == pytest.approx(-math.log(3), abs=0.05)
    assert 0.05 < ratio.half_width < 0.4
    assert deviation_ratio(narrow[:2], wide[:2]).count == 0


# The studies.


def test_a_row_of_table_2_that_cannot_be_is_not_counted() -> None:
    """
    Within 946 s a queue does 10 jobs of 90 s. 85 jobs: 80 at 10 to 24 a second, 900 x 136 =
    122,400, and 5 at 26, 11,700: 134,100 at least. The paper has 125,820.
    """
    assert nimrodg.cost_range(85, 946)[0] == 134_100
    impossible = {k for k, row in nimrodg.STATED.items() if not nimrodg.is_possible(*row)}
    assert impossible == {("cost", 990, 126_000)}


def row_of_table_2(**other: Any) -> dict[str, Any]:
    """A row that is the paper's to the unit."""
    completed, seconds, cost = nimrodg.STATED["time", 1980, 171_000]
    cell = {"strategy": "time", "deadline": 1980, "budget": 171_000}
    measures = {"completed": completed, "time": seconds, "cost": cost, "optimum": 900.0}
    return cell | measures | other


@pytest.mark.parametrize(
    ("measure", "value"), [("completed", 94), ("time", 960.0), ("cost", 180_000.0)]
)
def test_each_of_completion_time_and_cost_must_agree(measure: str, value: float) -> None:
    (experiment,) = find("nimrodg", "table-2")
    same, other = (
        experiment.findings([row_of_table_2(by="stated", **more), row_of_table_2(by="own")])[0]
        for more in ({}, {measure: value})
    )
    assert (same.verdict, other.verdict) == ("agrees", "differs")


def test_only_additive_and_exponential_are_predictions_of_table_1() -> None:
    (experiment,) = find("drp", "table-1")
    cells = experiment.cells("quick")
    findings = experiment.findings([r for c in cells for r in experiment.measure(c, None)])  # type: ignore[arg-type]
    of_paper = [f for f in findings if f.paper and not f.own]
    counted = {f.what.split(",")[0] for f in of_paper if f.uncounted is None}
    assert len(of_paper) == 10
    assert counted == {"additive", "exponential"}


def test_what_the_paper_says_of_exponential_does_not_go_together() -> None:
    """
    Busy: 17 workers from 160 s on have 20 + 19.5 + ... + 12 = 272 s, so the first 31 have 3,995
    of 31 x 140 = 4,340: 345 s lost. Idle: 48 x 140 - 5,702 = 1,018 lost, 673 by the last 17.
    """
    assert drp_findings.mean_delay_of_last() == pytest.approx(673 / 17)
    assert drp_findings.mean_delay_of_last() > drp_findings.LONGEST_SPAN


def test_what_was_put_in_is_not_found() -> None:
    """The light grid's processors were chosen to be saturated at 50 s; the heavy grid's not."""
    for figure, gap, verdict in (("3", 50, "calibrated"), ("5", 720, "agrees")):
        (experiment,) = find("datagrid", figure)
        rows = [
            {"policy": policy, "gap": at, "seed": seed, "refresh": 1, "lifetime": value + seed}
            for policy in ("current", "deterministic", "stochastic", "completion")
            for at, value in ((gap, 1000.0), (2000, 100.0))
            for seed in range(3)
        ]
        (found,) = [f for f in experiment.findings(rows) if f.paper.startswith("saturated")]
        assert found.verdict == verdict


@pytest.mark.parametrize(("least", "verdict"), [(5.0, "open"), (-5.0, "differs")])
def test_a_sample_cannot_show_that_something_never_happens(least: float, verdict: str) -> None:
    """The GA is never worse, as figure 7 has it: one counterexample ends it, none proves it."""
    (experiment,) = find("escience06", "7")
    rows = [
        {"seed": seed, "kind": kind, "total": 1.0, "reduction": reduction}
        for seed, reduction in enumerate((20.0, least))
        for kind in ("GA", "Min-Min", "ours")
    ]
    assert experiment.findings(rows)[0].verdict == verdict


def test_an_invented_schedule_is_no_agreement(tmp_path: Any) -> None:
    (experiment,) = find("hpdc07", "4")
    (finding,) = experiment.findings(experiment.measure({"seed": 0}, tmp_path))
    assert (finding.ours, finding.verdict) == ("6", "identity")
