"""Distributions of waits: scales, quantiles, samples."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bursar.model.errors import InputError
from bursar.provisioning.wait_forecast import SHARES, ProjectedWaits
from bursar.provisioning.wait_prediction import WaitPredictor

PROJECTED = st.builds(
    lambda waits, stated: ProjectedWaits(tuple(sorted(map(float, waits))), float(stated)),
    st.lists(st.integers(0, 10_000), min_size=1, max_size=30),
    st.integers(0, 100_000),
)


def test_places_by_hand() -> None:
    """
    Three waits divide 0 to 1 into quarters; half of the way from 30 s to 130 s is 1.375.

    The last stretch leads from 0.75 to 2 at the stated 130 s, and twice that lies at 3.
    """
    waits = ProjectedWaits((10.0, 20.0, 30.0), 130.0)

    places = [waits.place_of(wait) for wait in (0.0, 5.0, 10.0, 25.0, 80.0, 130.0, 260.0)]

    assert places == pytest.approx([0.0, 0.125, 0.25, 0.625, 1.375, 2.0, 3.0])
    assert [waits.wait_at(place) for place in places] == pytest.approx(
        [0.0, 5.0, 10.0, 25.0, 80.0, 130.0, 260.0]
    )


@given(waits=PROJECTED, first=st.floats(0, 1e6), second=st.floats(0, 1e6))
def test_places_rise_with_waits(waits: ProjectedWaits, first: float, second: float) -> None:
    """Property: a longer wait has no lower place, and a higher place no shorter wait."""
    assume(first <= second)
    assert waits.place_of(first) <= waits.place_of(second) + 1e-12
    assert waits.wait_at(first / 1e5) <= waits.wait_at(second / 1e5) + 1e-6


@given(waits=PROJECTED, wait=st.floats(0, 1e6))
def test_a_place_leads_back_to_its_wait(waits: ProjectedWaits, wait: float) -> None:
    assert waits.wait_at(waits.place_of(wait)) == pytest.approx(wait, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    ("waits", "stated"),
    [
        ((), 1.0),
        ((2.0, 1.0), 1.0),
        ((-1.0,), 1.0),
        ((float("inf"),), 1.0),
        ((1.0,), float("nan")),
        ((1.0,), float("inf")),
    ],
)
def test_what_is_no_projection_is_refused(waits: tuple[float, ...], stated: float) -> None:
    with pytest.raises(InputError):
        ProjectedWaits(waits, stated)


def projected(rng: np.random.Generator, level: float) -> ProjectedWaits:
    """Projections that are half as long as the truth, with too little spread."""
    waits = np.sort(level / 2 * np.exp(rng.normal(0.0, 0.2, 30)))
    return ProjectedWaits(tuple(waits.tolist()), 3.0 * level)


def learned(rng: np.random.Generator, count: int = 1500) -> WaitPredictor:
    """A site whose waits follow a level that nobody but the projections knows."""
    waits = WaitPredictor()
    for number in range(count):
        level = float(np.exp(rng.normal(7.0, 2.0)))
        name, at = f"j{number}", 1e7 * number
        waits.asked(name, "a", 1, 60.0, at, projected(rng, level))
        waits.began(name, at + level * float(np.exp(rng.normal(0.0, 0.5))))
    return waits


@pytest.mark.parametrize("seed", range(3))
def test_wrong_projections_are_corrected_at_every_share(seed: int) -> None:
    """Half as long as the truth and too narrow: each bound holds as often as it should."""
    waits = learned(np.random.default_rng(seed))
    for share in SHARES:
        score = waits.score("a", share)
        assert score.given > 1400
        assert score.held / score.given == pytest.approx(share, abs=0.035)


def test_projections_make_forecasts_sharper_than_waits_alone() -> None:
    """Waits of a known level spread by a half; those of all levels by a hundred times."""
    rng = np.random.default_rng(5)
    forecast = learned(rng).forecast("a", 1, 60.0, projected(rng, 1000.0))
    assert forecast is not None
    low, high = forecast.wait_quantiles((0.05, 0.95))
    # The truth: 1000 s times exp(-1.645 / 2) to exp(1.645 / 2), 440 to 2,276 s.
    assert 250 < low < 600
    assert 1700 < high < 3500
    assert (forecast.basis, forecast.seen) == ("queue", 1000)


def test_quantiles_do_not_fall_and_samples_follow_them() -> None:
    """Also where the shares were adapted, each by its own."""
    rng = np.random.default_rng(6)
    forecast = learned(rng, 200).forecast("a", 1, 60.0, projected(rng, 1000.0))
    assert forecast is not None
    shares = [n / 50 for n in range(1, 50)]
    quantiles = forecast.wait_quantiles(shares)
    assert all(a <= b for a, b in itertools.pairwise(quantiles))
    drawn = forecast.sample(4000, rng)
    assert drawn.shape == (4000,)
    for share in (0.1, 0.5, 0.9):
        (bound,) = forecast.wait_quantiles((share,))
        assert (drawn <= bound).mean() == pytest.approx(share, abs=0.03)


def test_shares_that_have_crossed_make_no_quantile_fall() -> None:
    """Each is adapted by itself, so that the median's may come to lie above a higher one's."""
    waits = learned(np.random.default_rng(7), 300)
    kept = waits.kept()
    for control in kept["controls"]:
        control["shares"] = [0.2, 0.1, 0.7, 0.6, 0.5, 0.95, 0.9]
    projection = projected(np.random.default_rng(8), 1000.0)
    forecast = WaitPredictor.of_kept(kept).forecast("a", 1, 60.0, projection)
    assert forecast is not None
    quantiles = forecast.wait_quantiles([n / 100 for n in range(1, 100)])
    assert all(a <= b for a, b in itertools.pairwise(quantiles))


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_lies_between_0_and_1(share: float) -> None:
    forecast = WaitPredictor().forecast("a", 1, 60.0, ProjectedWaits((1.0,), 2.0))
    assert forecast is not None
    with pytest.raises(InputError, match="between 0 and 1"):
        forecast.wait_quantiles((share,))


def test_a_projection_counts_as_it_is_until_waits_are_known() -> None:
    """The median of 10, 20 and 30 s is 20 s; that a request starts at once is said as 0 s."""
    waits = WaitPredictor()
    forecast = waits.forecast("a", 1, 60.0, ProjectedWaits((10.0, 20.0, 30.0), 130.0))
    at_once = waits.forecast("a", 1, 60.0, ProjectedWaits((0.0,), 0.0))
    assert forecast is not None
    assert at_once is not None
    assert forecast.wait_quantiles((0.5,)) == [20.0]
    assert at_once.wait_quantiles((0.5, 0.9)) == [0.0, 0.0]
    assert (forecast.seen, waits.forecast("a", 1, 60.0)) == (0, None)


def test_requests_that_start_at_once_wait_as_such_requests_did() -> None:
    """A scheduler takes 30 s to start what fits: no other wait tells that."""
    waits = WaitPredictor()
    for number in range(60):
        for name, wait, projection in (
            ("now", 30.0 + number % 3, ProjectedWaits((0.0,), 0.0)),
            ("late", 5000.0, ProjectedWaits((4000.0, 6000.0), 9000.0)),
        ):
            waits.asked(f"{name}{number}", "a", 1, 60.0, 1e5 * number, projection)
            waits.began(f"{name}{number}", 1e5 * number + wait)
    forecast = waits.forecast("a", 1, 60.0, ProjectedWaits((0.0,), 0.0))
    assert forecast is not None
    assert all(30.0 <= wait <= 32.0 for wait in forecast.wait_quantiles((0.1, 0.5, 0.9)))


def test_a_forecast_does_not_change_when_more_becomes_known() -> None:
    waits = WaitPredictor()
    for number in range(30):
        waits.asked(f"{number}", "a", 1, 60.0, 1000.0 * number)
        waits.began(f"{number}", 1000.0 * number + 10.0 + number)
    forecast = waits.forecast("a", 1, 60.0)
    assert forecast is not None
    before = forecast.wait_quantiles(SHARES)
    waits.asked("x", "a", 1, 60.0, 1e6)
    waits.began("x", 2e6)
    assert forecast.wait_quantiles(SHARES) == before
    assert forecast.basis == "history"
