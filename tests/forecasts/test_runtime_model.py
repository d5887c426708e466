"""What is learned of run times, and what the ended and running tasks of an execution add."""

import numpy as np
import pytest

from bursar.forecasts.runtime_draws import CampaignTasks, UnknownRuntimes, draw_runtimes
from bursar.forecasts.runtime_model import TOGETHER, RuntimeColumns, learn_runtimes


def columns(kind, execution, work, **fields):
    n = len(work)
    filled = {
        "site": np.zeros(n, np.int64),
        "whole": np.ones(n, np.bool_),
        "failed": np.zeros(n, np.bool_),
        "busy": np.full(n, np.nan),
        "estimate": np.full(n, np.nan),
        "features": np.zeros((n, 0)),
    } | fields
    return RuntimeColumns(
        kind=np.asarray(kind, np.int64),
        execution=np.asarray(execution, np.int64),
        work=np.asarray(work, np.float64),
        **filled,
    )


NOTHING = columns([], [], [])


def tasks(kind, *, estimate=None, elapsed=None, features=None, tries=1):
    n = len(kind)
    return CampaignTasks(
        kind=np.asarray(kind, np.int64),
        features=np.zeros((n, 0)) if features is None else features,
        estimate=np.full(n, np.nan) if estimate is None else np.asarray(estimate, np.float64),
        elapsed=np.zeros(n) if elapsed is None else np.asarray(elapsed, np.float64),
        tries=np.full(n, tries),
    )


def executions(random, count, each, level, between, within):
    """Run times of several executions of one kind."""
    levels = level + random.normal(0, between, count)
    work = np.exp(np.repeat(levels, each) + random.normal(0, within, count * each))
    return columns(np.zeros(count * each), np.repeat(np.arange(count), each), work)


def test_levels_and_spreads_are_found():
    random = np.random.default_rng(1)
    model = learn_runtimes(executions(random, 40, 30, 3.0, 0.3, 0.2), 1, 1)
    kind = model.kinds[0]
    assert kind.level == pytest.approx(3.0, abs=0.15)
    assert kind.between == pytest.approx(0.3, abs=0.08)
    assert kind.within == pytest.approx(0.2, abs=0.03)


def test_one_execution_of_what_computes_is_believed_more_than_one_of_what_waits():
    random = np.random.default_rng(2)
    between = {}
    for busy in (0.98, 0.05):
        seen = executions(random, 1, 30, 3.0, 0.0, 0.2)
        filled = columns(seen.kind, seen.execution, seen.work, busy=np.full(30, busy))
        between[busy] = learn_runtimes(filled, 1, 1).kinds[0].between
    assert between[0.05] > 3 * between[0.98]


def test_tasks_that_end_at_once_do_not_draw_the_level_down():
    work = np.concatenate([np.full(40, 100.0), np.full(10, 0.01)])
    model = learn_runtimes(columns(np.zeros(50), np.zeros(50), work), 1, 1)
    assert np.exp(model.kinds[0].level) == pytest.approx(100.0, rel=0.05)


def test_a_parameter_that_explains_is_used_and_noise_is_not():
    random = np.random.default_rng(3)
    size, noise = np.tile(np.arange(1.0, 41.0), 3), random.normal(size=120)
    work = size**1.5 * np.exp(random.normal(0, 0.05, 120))
    seen = columns(
        np.zeros(120),
        np.repeat([0, 1, 2], 40),
        work,
        features=np.column_stack([noise, np.log(size)]),
    )
    fit = learn_runtimes(seen, 1, 1).kinds[0].covariates
    assert fit.chosen == (1,)
    assert fit.slope[0] == pytest.approx(1.5, abs=0.1)


def test_a_parameter_far_beyond_what_was_seen_has_no_absurd_effect():
    x = np.tile(np.arange(1.0, 41.0), 3)
    seen = columns(
        np.zeros(120),
        np.repeat([0, 1, 2], 40),
        np.exp(0.05 * x),
        features=x[:, None],
    )
    fit = learn_runtimes(seen, 1, 1).kinds[0].covariates
    assert fit.effect(np.array([[1e5]]))[0] < 0.05 * 40


def test_a_slow_site_is_slow_for_all_kinds():
    random = np.random.default_rng(4)
    kind = np.tile([0, 1, 2], 80)
    site = np.repeat([0, 1], 120)
    work = np.exp(kind + 0.5 * site + random.normal(0, 0.1, 240))
    seen = columns(kind, np.repeat(np.arange(8), 30), work, site=site)
    model = learn_runtimes(seen, 3, 3)
    assert model.site_effect[1] - model.site_effect[0] == pytest.approx(0.5, abs=0.15)
    assert model.site_unsure[2] > 2 * model.site_unsure[1]


def test_tasks_of_an_execution_are_slow_together():
    random = np.random.default_rng(5)
    model = learn_runtimes(executions(random, 6, 50, 3.0, 0.4, 0.1), 1, 1)
    drawn, *_ = draw_runtimes(model, tasks(np.zeros(100)), NOTHING, 800, random)
    sums = drawn.sum(axis=1)
    # Independent tasks would make the sum of a hundred nearly certain.
    assert np.std(np.log(sums)) > 0.25


def test_tasks_that_still_run_keep_the_first_ends_from_looking_fast():
    random = np.random.default_rng(6)
    truth = np.sort(np.exp(3.0 + random.normal(0, 0.6, 40)))
    model = learn_runtimes(NOTHING, 1, 1)
    ended, now = truth[:8], truth[7]
    present = columns(np.zeros(8), np.zeros(8), ended)
    waiting = tasks(np.zeros(32), elapsed=np.full(32, now))
    with_running, *_ = draw_runtimes(model, waiting, present, 500, random)
    without, *_ = draw_runtimes(model, tasks(np.zeros(32)), present, 500, random)
    assert (with_running >= now - 1e-9).all()
    real = truth[8:].mean()
    assert np.median(with_running.mean(axis=1)) == pytest.approx(real, rel=0.4)
    assert np.median(without.mean(axis=1)) < 0.6 * real


def test_the_first_tasks_of_a_run_correct_what_the_history_says():
    random = np.random.default_rng(7)
    model = learn_runtimes(executions(random, 3, 40, 3.0, 0.1, 0.2), 1, 1)
    slow = columns(np.zeros(20), np.zeros(20), np.exp(3.5 + random.normal(0, 0.2, 20)))
    drawn, *_ = draw_runtimes(model, tasks(np.zeros(50)), slow, 500, random)
    assert np.median(np.log(drawn)) == pytest.approx(3.45, abs=0.12)


def test_a_user_s_estimates_are_corrected_by_how_wrong_they_were():
    random = np.random.default_rng(8)
    kinds = np.repeat(np.arange(12), 20)
    stated = np.repeat(np.exp(random.normal(3, 1, 12)), 20)
    work = 2.0 * stated * np.exp(random.normal(0, 0.1, 240))
    model = learn_runtimes(columns(kinds, np.zeros(240), work, estimate=stated), 13, 1)
    drawn, *_ = draw_runtimes(model, tasks([12] * 30, estimate=[60.0] * 30), NOTHING, 600, random)
    assert np.median(drawn) == pytest.approx(120.0, rel=0.35)


def test_tasks_that_ended_are_compared_with_their_own_estimates():
    """The long tasks went first and took what was stated: the short ones will, too."""
    random = np.random.default_rng(10)
    stated = np.repeat([300.0, 10.0], [10, 90])
    work = stated * np.exp(random.normal(0, 0.05, 100))
    model = learn_runtimes(NOTHING, 1, 1)
    first = columns(np.zeros(10), np.zeros(10), work[:10], estimate=stated[:10])
    left = tasks(np.zeros(90), estimate=stated[10:])
    drawn, *_ = draw_runtimes(model, left, first, 400, random)
    assert np.median(drawn) == pytest.approx(10.0, rel=0.1)


def test_running_tasks_are_compared_with_their_own_estimates():
    """Tasks run for as long as the others took, as was stated: nothing is slow."""
    random = np.random.default_rng(11)
    stated = np.repeat([10.0, 1000.0, 10.0], [10, 10, 80])
    work = stated * np.exp(random.normal(0, 0.05, 100))
    model = learn_runtimes(NOTHING, 1, 1)
    first = columns(np.zeros(10), np.zeros(10), work[:10], estimate=stated[:10])
    elapsed = np.concatenate([np.full(10, 600.0), np.zeros(80)])
    left = tasks(np.zeros(90), estimate=stated[10:], elapsed=elapsed)
    drawn, *_ = draw_runtimes(model, left, first, 400, random)
    assert np.median(drawn[:, 10:]) == pytest.approx(10.0, rel=0.1)


def test_what_runs_and_what_has_ended_do_not_bias_the_level():
    """Over many executions whose first tenth has ended, the middle of the rest is met."""
    random = np.random.default_rng(12)
    off = []
    for _ in range(40):
        # Learned anew each time: one model's level is wrong by 0.06 itself.
        model = learn_runtimes(executions(random, 12, 60, 3.0, 0.2, 0.6), 1, 1)
        truth = np.sort(np.exp(3.0 + random.normal(0, 0.2) + random.normal(0, 0.6, 40)))
        now = truth[3]
        first = columns(np.zeros(4), np.zeros(4), truth[:4])
        left = tasks(np.zeros(36), elapsed=np.full(36, now))
        drawn, *_ = draw_runtimes(model, left, first, 200, random)
        off.append(np.median(np.log(drawn.sum(axis=1))) - np.log(truth[4:].sum()))
    # The deviation of one is about 0.15: three of its standard errors.
    assert abs(np.mean(off)) < 3 * np.std(off) / np.sqrt(40) + 0.02


def test_a_gather_is_less_certain_when_the_campaign_is_larger():
    """One task each time, but of a campaign with ten times as many parts."""
    random = np.random.default_rng(13)
    kind = np.repeat([0, 1], [40, 2])
    execution = np.concatenate([np.repeat([0, 1], 20), [0, 1]])
    work = np.concatenate([np.full(40, 5.0), [60.0, 61.0]])
    model = learn_runtimes(columns(kind, execution, work), 2, 1)
    spread = {}
    for parts in (20, 200):
        drawn, *_ = draw_runtimes(model, tasks([0] * parts + [1]), NOTHING, 600, random)
        spread[parts] = np.std(np.log(drawn[:, -1]))
    assert spread[200] > spread[20] + 0.15


def test_how_far_tasks_differ_is_as_uncertain_as_the_tasks_seen_are_few():
    """
    The deviation of tasks in a draw is Student's: 4 degrees of freedom of the prior and 1 of two
    tasks put its 95 % quantile at sqrt(4.351 / 1.145) = 1.95 times the median (chi-squared with 5
    degrees), and 199 of 200 tasks near it.
    """
    random = np.random.default_rng(11)
    for count, apart in ((2, 1.95), (200, 1.09)):
        model = learn_runtimes(executions(random, 1, count, 3.0, 0.0, 0.3), 1, 1)
        drawn = draw_runtimes(model, tasks(np.zeros(300)), NOTHING, 4000, random).runtimes
        spread = np.log(drawn).std(axis=1)
        assert np.quantile(spread, 0.95) / np.median(spread) == pytest.approx(apart, rel=0.05)


def test_failed_attempts_take_time():
    random = np.random.default_rng(9)
    work, failed = np.full(100, 10.0), np.arange(100) < 40
    model = learn_runtimes(columns(np.zeros(100), np.zeros(100), work, failed=failed), 1, 1)
    once, *_ = draw_runtimes(model, tasks(np.zeros(50), tries=1), NOTHING, 300, random)
    thrice, *_ = draw_runtimes(model, tasks(np.zeros(50), tries=3), NOTHING, 300, random)
    assert thrice.mean() > 1.15 * once.mean()


def test_without_anything_known_there_is_no_forecast():
    with pytest.raises(UnknownRuntimes):
        draw_runtimes(
            learn_runtimes(NOTHING, 1, 1), tasks([0]), NOTHING, 10, np.random.default_rng(0)
        )


def test_kinds_of_which_nothing_is_known_are_long_or_short_together():
    """What follows a first step is short in some campaigns and long in others, as a whole."""
    model = learn_runtimes(columns([0] * 5, [0] * 5, [10.0] * 5), 3, 1)
    drawn, *_ = draw_runtimes(model, tasks([0, 1, 2]), NOTHING, 4000, np.random.default_rng(1))
    first, second, third = np.log(drawn).T
    # Of levels that deviate by 1.5; a task deviates from them by 0.3.
    expected = TOGETHER * 1.5**2 / (1.5**2 + 0.3**2)
    assert np.corrcoef(second, third)[0, 1] == pytest.approx(expected, abs=0.06)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06
