"""What is known of how long jobs take, beside numpy on the same numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.thoroughness import examples

from bursar.broker.estimates import (
    CONFIDENCE,
    TRUST,
    RuntimeEstimates,
    sizes_of,
    student_quantile,
    worker_starts,
)
from bursar.model.provisioning import BatchScheduler, LearnedStartUp
from bursar.model.site import SiteFacts

SPEEDS = {"near": 1.0, "far": 2.0, "slow": 0.25}

seconds = st.floats(0.01, 1000.0)
jobs = st.lists(
    st.tuples(st.sampled_from(list(SPEEDS)), st.sampled_from([0.5, 1.0, 30.0]), seconds, seconds),
    max_size=30,
)
"""Site, size, seconds that it ran, and seconds before that."""

Seen = list[tuple[str, float, float, float]]


def learnt(seen: Seen, *, known: bool = True) -> RuntimeEstimates:
    """Estimates after jobs that have succeeded."""
    estimates = RuntimeEstimates(SPEEDS, known)
    for site, size, ran, waited in seen:
        estimates.learn(site, size, ran, ran + waited)
    return estimates


def by_site(seen: Seen) -> dict[str, np.ndarray]:
    """Seconds of a job of size 1 until its end was known, by site."""
    return {
        name: np.array([(ran + waited) / size for site, size, ran, waited in seen if site == name])
        for name in SPEEDS
    }


@given(jobs)
@settings(max_examples=examples(100))
def test_a_site_is_believed_by_its_jobs_and_drawn_to_what_is_seen_anywhere(seen: Seen) -> None:
    """The mean of its own jobs and of TRUST jobs that take what sites elsewhere say."""
    estimates = learnt(seen)

    for name, speed in SPEEDS.items():
        for of, told in ((0.0, estimates.runs(name)), (1.0, estimates.takes(name))):
            each = [(site, (ran + of * waited) / size) for site, size, ran, waited in seen]
            own = [value for site, value in each if site == name]
            stretch = np.mean([value * SPEEDS[site] for site, value in each]) if each else 1.0
            weighed = (TRUST * stretch / speed + sum(own)) / (TRUST + len(own))
            assert told == pytest.approx(weighed)
        assert estimates.takes(name) >= estimates.runs(name)
        took = [(ran + waited) / size for site, size, ran, waited in seen if site == name]
        assert estimates.count(name) == len(took)
        mean = estimates.mean(name)
        assert mean == pytest.approx(np.mean(took)) if took else mean is None


@given(jobs)
@settings(max_examples=examples(100))
def test_the_spread_is_that_of_all_jobs_around_their_sites_means(seen: Seen) -> None:
    """Pooled over sites with two jobs or more, relative to each mean."""
    off = [times / times.mean() - 1.0 for times in by_site(seen).values() if len(times) > 1]
    degrees = sum(len(part) - 1 for part in off)
    estimates = learnt(seen)

    if not degrees:
        assert (estimates.spread, estimates.quantile) == (0.0, 0.0)
        return
    assert estimates.spread == pytest.approx(
        math.sqrt(sum(float(part @ part) for part in off) / degrees), abs=1e-9
    )
    assert estimates.quantile == pytest.approx(stats.t.ppf(CONFIDENCE, degrees))


@given(jobs)
@settings(max_examples=examples(100))
def test_sites_differ_by_the_spread_of_their_means_over_what_was_expected(seen: Seen) -> None:
    ratios = [times.mean() * SPEEDS[name] for name, times in by_site(seen).items() if len(times)]
    estimates = learnt(seen)

    if len(ratios) < 2:
        assert estimates.between == 0.0
    else:
        expected = np.std(ratios, ddof=1) / np.mean(ratios)
        assert estimates.between == pytest.approx(expected, abs=1e-9)


def test_the_quantile_holds_as_often_as_it_says() -> None:
    """
    A job stays within mean and quantile times spread with the confidence promised.

    20,000 draws of five jobs and a sixth: the share is CONFIDENCE for a mean that is known.
    With the mean of five it is Student's with the spread larger by sqrt(1 + 1/5); the margin
    leaves that out, as the mean of many jobs is what a plan is made of.
    """
    rng = np.random.default_rng(5)
    draws = rng.normal(100.0, 10.0, (20_000, 6))
    mean, spread = draws[:, :5].mean(axis=1), draws[:, :5].std(axis=1, ddof=1)
    one = learnt([("near", 1.0, float(x), 0.0) for x in draws[0, :5]])
    assert one.spread == pytest.approx(spread[0] / mean[0])

    held = np.mean(draws[:, 5] <= 100.0 + one.quantile * spread)

    # Five standard errors of a share of 0.95 among 20,000 are 0.008.
    assert held == pytest.approx(CONFIDENCE, abs=0.008)


@pytest.mark.parametrize("each", [0.1, 1e-9, 0.0, 1e8 / 3])
def test_jobs_that_all_take_the_same_have_no_spread(each: float) -> None:
    """Nor that of rounding, which would keep time free that a deadline does not leave."""
    estimates = learnt([("near", 1.0, each, 0.0)] * 1000 + [("far", 1.0, each, 0.0)] * 7)

    assert estimates.spread == 0.0


def test_jobs_without_a_length_are_no_trouble() -> None:
    """All that ends at once takes as good as nothing."""
    estimates = learnt([("near", 1.0, 0.0, 0.0)] * 3 + [("far", 1.0, 0.0, 0.0)])

    assert 0.0 < estimates.takes("near") < 1e-5
    assert estimates.runs("near") == 0.0
    assert math.isfinite(estimates.between)


def test_nothing_is_known_before_a_job_has_ended() -> None:
    estimates = RuntimeEstimates(SPEEDS, known=False)
    assert not estimates.is_known
    for ask in (estimates.runs, estimates.takes):
        with pytest.raises(ValueError, match="nothing is known"):
            ask("near")

    estimates.failed("near")
    assert not estimates.is_known

    estimates.learn("near", 1.0, 30.0, 30.0)
    assert estimates.is_known
    # One job at speed 1 took 30: at speed 2 it is believed to take 15.
    assert (estimates.runs("near"), estimates.runs("far")) == (30.0, 15.0)


def test_what_is_estimated_is_believed_until_a_job_has_ended() -> None:
    estimates = RuntimeEstimates(SPEEDS, known=True)

    assert estimates.is_known
    assert [estimates.runs(name) for name in SPEEDS] == [1.0, 0.5, 4.0]
    assert estimates.mean("near") is None


def test_a_site_nobody_tried_is_expected_to_be_off_as_all_others_were() -> None:
    """Jobs were away twice and four times as long as they run: three times as long elsewhere."""
    estimates = RuntimeEstimates({"a": 1.0, "b": 1.0, "new": 1.0}, known=True)
    estimates.learn("a", 10.0, 10.0, 20.0)
    estimates.learn("b", 10.0, 10.0, 40.0)

    assert estimates.takes("new") == pytest.approx(3.0)


def test_failures_are_a_share_of_the_attempts() -> None:
    estimates = RuntimeEstimates(SPEEDS, known=True)
    assert estimates.failures == 0.0

    for site in ("near", "near", "far"):
        estimates.failed(site)
    estimates.learn("far", 1.0, 1.0, 1.0)

    assert estimates.failures == 3 / 4


def test_a_site_is_broken_where_all_fails_and_there_is_a_better_place() -> None:
    """Until one succeeds there; where all sites fail alike, none is left out."""
    estimates = RuntimeEstimates({"near": 1.0, "far": 2.0}, True)
    for _ in range(2):
        estimates.failed("far")
    assert not estimates.is_broken("far")

    estimates.failed("far")
    assert estimates.is_broken("far")
    assert not estimates.is_broken("near")

    for _ in range(3):
        estimates.failed("near")
    assert not estimates.is_broken("far")
    assert not estimates.is_broken("near")

    estimates.learn("near", 1.0, 1.0, 1.0)
    assert estimates.is_broken("far")

    estimates.learn("far", 1.0, 1.0, 1.0)
    assert not estimates.is_broken("far")


@given(st.lists(st.one_of(st.none(), st.floats(0.0, 1e6)), max_size=30))
@settings(max_examples=examples(100))
def test_jobs_without_an_estimate_count_as_the_mean_of_the_others(
    runtimes: list[float | None],
) -> None:
    sizes, known = sizes_of(runtimes)

    given_sizes = [r for r in runtimes if r is not None]
    assert known == bool(given_sizes)
    assert len(sizes) == len(runtimes)
    assert all(size > 0 for size in sizes)
    for size, runtime in zip(sizes, runtimes, strict=True):
        expected = runtime
        if expected is None:
            expected = float(np.mean(given_sizes)) if given_sizes else 1.0
        assert size == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("degrees", [*range(1, 30), 199, 200, 201, 202, 1_000, 10**7])
@pytest.mark.parametrize("probability", [0.5, 0.9, 0.95, 0.975, 0.9995])
def test_quantiles_are_those_of_a_statistics_library(degrees: int, probability: float) -> None:
    """Also where the sum of terms ends and the expansion begins."""
    expected = stats.t.ppf(probability, degrees)
    assert student_quantile(degrees, probability) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_no_quantile_without_freedom() -> None:
    with pytest.raises(ValueError, match="0 degrees of freedom"):
        student_quantile(0, 0.95)


@pytest.mark.parametrize("kind", ["simulated", "batch"])
def test_workers_start_at_once_or_generously_where_no_start_was_seen(kind: str) -> None:
    latest = {"simulated": 0.0, "batch": 5.0}[kind]
    assert worker_starts(SiteFacts(name="s", kind=kind)) == (0.0, latest)


def test_starts_that_were_seen_replace_the_stated_time() -> None:
    """
    Of very many starts half took 20 s and one in ten over 25.6 s: 0.56 of the range lies between,
    so that it is 10 s wide and begins a quarter below the median, at 17.5 s.

    Three starts count half: the soonest is 8.75 s, and what is later than stated is kept.
    """
    many = LearnedStartUp(median=20.0, high=25.6, count=10**9)
    few = replace(many, count=3)
    soon = LearnedStartUp(median=1.0, high=1.0, count=3)
    site = SiteFacts(name="s", kind="batch", batch=BatchScheduler(manager="slurm"))
    seen = {
        one: worker_starts(replace(site, batch=replace(site.batch, learned=one)))
        for one in (many, few, soon)
    }
    assert seen[many] == pytest.approx((17.5, 27.5), rel=1e-6)
    assert (seen[many].at(0.5), seen[many].at(0.9)) == pytest.approx((20.0, 25.6), rel=1e-6)
    assert seen[few] == pytest.approx((8.75, 27.5))
    # One second each time: three starts do not rule out one of 5 s.
    assert seen[soon] == pytest.approx((0.5, 3.0))
