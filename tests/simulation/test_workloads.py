"""Made-up workloads have the moments that their models state."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import gamma
from tests.thoroughness import examples

from bursar.formats.trace_files import read_swf
from bursar.model.errors import InputError
from bursar.model.trace import Trace
from bursar.simulation.workloads import (
    _DAY_WEIGHTS,
    lublin_feitelson,
    poisson_background,
    probability_for,
    repeated,
    with_copies,
)


def test_the_poisson_background_has_its_means() -> None:
    """Run times of 500 s, gaps of 333 s, processors evenly from 1 to all: within 3 %."""
    trace = poisson_background(np.random.default_rng(1), processors=40, until=3e6)

    assert len(trace) == pytest.approx(3e6 / 333, rel=0.03)
    assert trace.runtime.mean() == pytest.approx(500, rel=0.03)
    assert np.diff(trace.submit).mean() == pytest.approx(333, rel=0.03)
    assert np.diff(trace.submit).std() == pytest.approx(333, rel=0.05)
    counts = np.bincount(trace.processors, minlength=41)[1:]
    assert counts.min() > 0.7 * counts.mean()
    assert trace.processors.max() == 40
    assert (trace.estimate == trace.runtime).all()


def test_the_lublin_feitelson_model_is_like_its_authors(data: Path) -> None:
    """
    Beside 10,000 jobs of a published run of the model for 256 nodes: sizes, run
    times and the logarithms of the gaps. Each tolerance is four to five standard
    deviations of 10,000 jobs, as 30 seeds have them; two runs differ by
    sqrt(2) of one, so a right model stays well within and a wrong constant
    does not. The mean gap itself is left out: single gaps of days make it 8 %
    wide.
    """
    theirs = read_swf(data / "swf" / "lublin_256.swf.xz")
    ours = lublin_feitelson(np.random.default_rng(3), jobs=10_000, processors=256)

    def serial(trace: Trace) -> float:
        return float((trace.processors == 1).mean())

    def power_of_two(trace: Trace) -> float:
        return float((trace.processors & (trace.processors - 1) == 0).mean())

    def log_gap(trace: Trace) -> float:
        return float(np.log(np.maximum(1, np.diff(trace.submit))).mean())

    def by_hour_pair(trace: Trace) -> np.ndarray:
        counts = np.bincount(((trace.submit % 86_400) // 7200).astype(int), minlength=12)
        return counts / len(trace)

    assert serial(ours) == pytest.approx(serial(theirs), abs=0.02)
    assert power_of_two(ours) == pytest.approx(power_of_two(theirs), abs=0.015)
    for share, tolerance in ((25, 0.2), (50, 0.3), (75, 0.12), (90, 0.08)):
        mine, other = (np.percentile(np.log(t.runtime), share) for t in (ours, theirs))
        assert mine == pytest.approx(other, abs=tolerance)
    assert np.log2(ours.processors).mean() == pytest.approx(
        np.log2(theirs.processors).mean(), abs=0.1
    )
    assert log_gap(ours) == pytest.approx(log_gap(theirs), abs=0.1)
    # Few days are drawn, so each two hours are only roughly alike: those of the
    # morning rush and of the small hours must be the same ones.
    assert np.abs(by_hour_pair(ours) - by_hour_pair(theirs)).max() < 0.05


def test_the_day_has_busy_and_quiet_hours() -> None:
    """Some ten times as many arrive at the busiest half-hour as at the quietest."""
    trace = lublin_feitelson(np.random.default_rng(5), jobs=60_000)

    counts = np.bincount(((trace.submit % 86_400) // 1800).astype(int), minlength=48)
    assert counts.max() > 5 * counts.min()
    assert (np.diff(trace.submit) >= 0).all()
    # Busiest in the late morning, as the clock of the model is 0 at midnight.
    assert 18 <= int(counts.argmax()) <= 32


def small(rows: list[tuple[int, int, int]]) -> Trace:
    """Submit, run time and processors of each job."""
    submit, runtime, width = (np.array(c) for c in zip(*sorted(rows), strict=True))
    count = len(rows)
    return Trace(
        name="t",
        number=np.arange(1, count + 1),
        submit=submit.astype(float),
        runtime=runtime.astype(float),
        estimate=runtime.astype(float) * 2,
        processors=width,
        wait=np.full(count, np.nan),
        user=np.arange(count),
    )


def second_copy(trace: Trace, probability: float, seed: int, shift: float) -> Trace:
    """Add a copy of each job, later by a shift, with a probability."""
    return with_copies(trace, np.random.default_rng(seed).random(len(trace)) < probability, shift)


JOBS = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 50), st.integers(1, 8)), min_size=2, max_size=30
).filter(lambda rows: len({submit for submit, _, _ in rows}) > 1)


@given(JOBS, st.floats(0, 1), st.integers(0, 10))
def test_a_second_copy_is_the_same_jobs_a_week_later(
    rows: list[tuple[int, int, int]], probability: float, seed: int
) -> None:
    """All of the first, a part of the second, in order; numbers stay unique."""
    trace = small(rows)

    loaded = second_copy(trace, probability, seed, 100.0)

    assert (np.diff(loaded.submit) >= 0).all()
    assert len(set(loaded.number.tolist())) == len(loaded)
    top = int(trace.number.max())
    first = loaded.number <= top
    assert first.sum() == len(trace)
    for number, submit, runtime, user in zip(
        loaded.number, loaded.submit, loaded.runtime, loaded.user, strict=True
    ):
        at = (int(number) - 1) % top
        assert submit == trace.submit[at] + (100.0 if number > top else 0.0)
        assert (runtime, user) == (trace.runtime[at], trace.user[at])
    if probability in (0.0, 1.0):
        assert len(loaded) == len(trace) * (1 + int(probability))


@given(JOBS, st.floats(0, 1), st.floats(0, 1200), st.integers(0, 10))
@settings(max_examples=examples(60))
def test_the_probability_for_a_load_is_found(
    rows: list[tuple[int, int, int]], share: float, shift: float, seed: int
) -> None:
    """The load it gives in the trace's own window is the greatest not above what is wanted."""
    trace = small(rows)
    last = trace.submit[-1]
    span = last - trace.submit[0]

    def load_of(jobs: Trace) -> float:
        work = (jobs.runtime * jobs.processors)[jobs.submit <= last]
        return float(work.sum()) / (8 * span)

    own = load_of(trace)
    whole = load_of(second_copy(trace, 1.0, seed, shift))
    wanted = min(own + share * (whole - own), whole - 1e-12)
    if wanted < own:
        return

    probability, loaded = probability_for(
        trace, wanted, np.random.default_rng(seed), processors=8, shift=shift
    )

    assert load_of(loaded) <= wanted + 1e-9
    heaviest = float((trace.runtime * trace.processors).max()) / (8 * span)
    assert load_of(loaded) >= wanted - heaviest - 1e-9
    again = second_copy(trace, probability, seed, shift)
    assert np.array_equal(again.number, loaded.number)


def test_the_load_of_a_real_log_is_raised(data: Path) -> None:
    """KTH, 69 % of 100 processors, to 85 %: to a tenth of a percent in its own window."""
    trace = read_swf(data / "swf" / "KTH-SP2-1996-2.1-cln.swf.xz")
    last = trace.submit[-1]

    probability, loaded = probability_for(trace, 0.85, np.random.default_rng(1), processors=100)

    inside = loaded.submit <= last
    work = float((loaded.runtime * loaded.processors)[inside].sum())
    assert work / (100 * (last - trace.submit[0])) == pytest.approx(0.85, abs=0.001)
    assert 0.1 < probability < 0.4


def test_a_load_out_of_reach_is_refused() -> None:
    """With what could be had, and why a week is too much for a short log."""
    trace = small([(0, 10, 1), (100, 10, 1)])
    rng = np.random.default_rng(1)

    with pytest.raises(InputError, match=r"between 2\.5% and 3\.8%"):
        probability_for(trace, 0.9, rng, processors=8, shift=50.0)
    with pytest.raises(InputError, match=r"between 2\.5% and 2\.5%") as caught:
        probability_for(trace, 0.9, rng, processors=8)
    assert caught.value.hint == "the log is shorter than the shift of 604800 s"
    with pytest.raises(InputError, match="at once"):
        probability_for(small([(5, 1, 1), (5, 1, 1)]), 0.9, rng, processors=8)


def test_a_repeated_trace_is_that_much_longer() -> None:
    """Ten times the jobs, ten times the span, the same load."""
    trace = small([(0, 10, 1), (50, 10, 2), (100, 5, 3)])

    ten = repeated(trace, 10)

    assert len(ten) == 30
    assert ten.work == pytest.approx(10 * trace.work)
    assert (np.diff(ten.submit) > 0).all()
    assert ten.submit[3] == 150.0
    with pytest.raises(InputError, match="at least once"):
        repeated(trace, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda rng: poisson_background(rng, processors=0, until=10.0),
        lambda rng: poisson_background(rng, processors=2, until=1e-9),
        lambda rng: poisson_background(rng, processors=2, until=1e12),
        lambda rng: lublin_feitelson(rng, jobs=0),
        lambda rng: lublin_feitelson(rng, jobs=10**12),
        lambda rng: lublin_feitelson(rng, jobs=5, processors=1),
    ],
)
def test_what_makes_no_sense_is_refused(call: object) -> None:
    """One line."""
    with pytest.raises(InputError):
        call(np.random.default_rng(1))  # type: ignore[operator]


def test_the_weights_of_the_day_are_a_gamma_distribution() -> None:
    """The table is what a statistics library computes of Lublin and Feitelson's shape and scale."""
    half_hours = np.arange(11, 59)
    share = gamma.cdf(half_hours + 0.5, 8.1737, scale=3.9631) - gamma.cdf(
        half_hours - 0.5, 8.1737, scale=3.9631
    )
    expected = np.empty(48)
    expected[(half_hours - 1) % 48] = share / share.mean()
    np.testing.assert_allclose(_DAY_WEIGHTS, expected, rtol=1e-12)
