"""Scores of recorded executions correct first forecasts, and give way to a user's own."""

import json

import numpy as np
import pytest

from benchmarks import forecasts, score_prior
from bursar.forecasts.calibration import ENOUGH, WEIGHT_OF_OTHERS, Distribution, EarlierScore
from bursar.forecasts.score_prior import ScoreTable, recorded_scores, recorded_table
from bursar.history.forecast_records import SHARES

BASES = ("estimates", "history", "nothing", "other size")
DRAWS = np.exp(np.random.default_rng(1).normal(3.0, 0.2, 400))


def width(found: Distribution) -> float:
    return found.quantile(0.95) - found.quantile(0.05)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("share", SHARES)
def test_recorded_scores_widen_a_first_forecast_or_leave_it(basis, share):
    prior = recorded_scores(basis, share)
    plain = Distribution.of(DRAWS)
    for scores in prior:
        assert {one.weight for one in scores} == {WEIGHT_OF_OTHERS}
        assert sum(one.part for one in scores) == pytest.approx(ENOUGH)
        assert width(Distribution.of(DRAWS, prior=scores)) >= 0.98 * width(plain)


def test_what_is_foretold_from_nothing_is_much_less_sure_than_the_model_says():
    prior = recorded_scores("nothing", 0.1).end
    assert width(Distribution.of(DRAWS, prior=prior)) > 1.5 * width(Distribution.of(DRAWS))


def test_scores_of_a_users_own_replace_the_recorded_ones():
    prior = recorded_scores("nothing", 0.1).end
    own = [EarlierScore(s) for s in np.random.default_rng(2).normal(0.0, 0.5, ENOUGH)]
    assert Distribution.of(DRAWS, scores=own, prior=prior).quantile(0.9) == pytest.approx(
        Distribution.of(DRAWS, scores=own).quantile(0.9)
    )
    widths = [
        width(Distribution.of(DRAWS, scores=own[:count], prior=prior)) for count in (0, 10, 15, 19)
    ]
    assert widths == sorted(widths, reverse=True)


def test_a_basis_that_was_never_recorded_corrects_nothing():
    assert recorded_scores("hearsay", 0.1) == ((), ())


def test_each_workflow_counts_as_much_as_any_other_and_may_be_left_out():
    table = ScoreTable(
        end={"history": {0.0: {"a": [-1.0, 1.0], "b": [-9.0, -5.0, 0.0, 6.0]}}}, cost={}
    )
    both = table.scores("history", 0.6).end
    assert sum(one.part for one in both[:2]) == pytest.approx(ENOUGH / 2)
    alone = table.scores("history", 0.6, without="b").end
    assert alone == tuple(EarlierScore(at, WEIGHT_OF_OTHERS, ENOUGH / 2) for at in (-1.0, 1.0))


def test_quantiles_nearer_to_the_median_than_draws_are_moved_out():
    table = ScoreTable(end={"history": {0.0: {"a": [-0.01, 0.01, 0.1, 3.0]}}}, cost={})
    moved = [one.score for one in table.scores("history", 0.0).end]
    # Quantiles at 1/8, 3/8, ...: -1.150 and -0.319 of a normal variable, whose 95 % one is 1.645.
    assert moved == pytest.approx([-0.6993, -0.1937, 0.1937, 3.0], abs=1e-3)


@pytest.mark.ci
def test_the_table_is_what_the_recorded_executions_give():
    folder = forecasts.DATA / "executions"
    if not folder.is_dir():
        pytest.skip(f"recorded executions: {folder} is not there")
    executions = forecasts.read_executions(folder)
    # One workflow: all of them take minutes.
    names = [name for name, one in executions.items() if one.workflow == "soykb"]
    found = score_prior.table_of(score_prior.all_trials(executions, names))
    kept = json.loads(score_prior.TABLE.read_bytes())
    for what, by_basis in found.items():
        for basis, by_share in by_basis.items():
            for share, cell in by_share.items():
                for workflow, scores in cell.items():
                    assert kept[what][basis][str(share)][workflow] == pytest.approx(
                        scores, abs=0.02
                    )
    assert set(recorded_table().end) == set(BASES)


def test_draws_that_are_spread_widely_are_not_spread_to_absurd_values():
    wide = np.exp(np.random.default_rng(3).normal(3.0, 1.2, 400))
    prior = [EarlierScore(score, 1.0) for score in (-2.0, 2.0) * 10]
    plain, found = Distribution.of(wide), Distribution.of(wide, prior=prior)
    assert found.quantile(0.95) < 1.05 * max(10 * plain.quantile(0.5), plain.quantile(0.95))


def test_what_never_comes_is_not_corrected():
    never = Distribution.of(np.full(10, np.inf), prior=recorded_scores("nothing", 0.1).end)
    assert never.quantile(0.5) == np.inf
    half = Distribution.of(np.array([1.0] * 9 + [np.inf]), scores=[EarlierScore(1.0)])
    assert half.quantile(0.5) == 1.0
