"""The epidemic example says what theory says."""

import csv
import json
import math
from pathlib import Path

import epidemic
import gather
import numpy as np
import pytest
import theory
from scipy.special import lambertw
from scipy.stats import binomtest, chi2

PEOPLE = epidemic.PEOPLE


def test_contacts_are_mutual_and_r0_is_what_was_asked() -> None:
    """A contact has two sides; the next-generation matrix has R0 as its largest eigenvalue."""
    meetings = epidemic.CONTACTS * PEOPLE[:, None]
    eigenvalues = np.linalg.eigvals(epidemic.infections_per_case(2.5))

    np.testing.assert_allclose(meetings, meetings.T)
    assert max(abs(eigenvalues)) == pytest.approx(2.5)


def test_theory_reduces_to_the_textbook_for_one_kind_of_people(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    With contacts alike for all, both results are known in closed form.

    Final size: z = 1 + W(-R0 exp(-R0)) / R0. Extinction: the least root of
    q = p e / (1 - (1 - p) e), e = exp(-p R0 (1 - q)), a geometric sum of
    Poisson infections with p the chance to recover in a step.
    """
    for module in (epidemic, theory):
        monkeypatch.setattr(module, "ARRIVING", np.array([0, 1, 0]))
    monkeypatch.setattr(epidemic, "CONTACTS", np.outer(np.ones(3), PEOPLE / PEOPLE.sum()))

    size = theory.final_size(2.0, 0.0) @ PEOPLE / PEOPLE.sum()
    dies_out = theory.extinction_probability(2.0, 0.0)

    known = 1 + lambertw(-2.0 * math.exp(-2.0)).real / 2.0  # 0.79681
    assert size == pytest.approx(known, abs=1e-4)  # one arriving case in 50,000
    p = theory.RECOVER
    e = math.exp(-p * 2.0 * (1 - dies_out))
    assert dies_out == pytest.approx(p * e / (1 - (1 - p) * e), abs=1e-9)
    # In steps of half a day a little below the 1 / R0 of continuous time.
    assert 0.45 < dies_out < 0.5


@pytest.mark.parametrize(("r0", "vaccinated"), [(1.75, 0.0), (2.5, 0.2), (3.5, 0.4)])
def test_major_outbreaks_have_the_final_size(r0: float, vaccinated: float) -> None:
    """
    In each age group the mean over major outbreaks is the final-size equation's.

    The equation holds in the limit of a large town: the mean of a finite one
    is off by O(1 / people), here some 20 persons, and the standard error of
    the mean is below 0.1 % of the town, so 0.5 % would show a wrong model.
    """
    random = np.random.default_rng([20, round(100 * r0), round(100 * vaccinated)])
    found = epidemic.spread(r0, vaccinated, 300, random)
    infected = (found.infected[found.major] / PEOPLE).mean(axis=0)
    error = (found.infected[found.major] / PEOPLE).std(axis=0) / found.major.sum() ** 0.5

    assert error.max() < 0.0015
    np.testing.assert_allclose(infected, theory.final_size(r0, vaccinated), atol=0.005)


@pytest.mark.ci
def test_outbreaks_die_out_as_often_as_the_branching_process() -> None:
    """
    Over six points of the sweep the counts fit the branching process.

    Chi-square of the standardised counts, six degrees of freedom, at the
    0.1 % level; that 10 % more contagion would be seen is asserted too.
    """
    points = [(1.5, 0.0), (2.0, 0.0), (3.0, 0.0), (2.0, 0.4), (3.0, 0.4), (4.0, 0.6)]
    trials = 800
    died_out = [
        trials - epidemic.spread(*point, trials, np.random.default_rng([7, number])).major.sum()
        for number, point in enumerate(points)
    ]

    def misfit(times: float) -> float:
        expected = [theory.extinction_probability(r0 * times, v) for r0, v in points]
        return sum(
            (seen - trials * q) ** 2 / (trials * q * (1 - q))
            for seen, q in zip(died_out, expected, strict=True)
        )

    limit = chi2.ppf(0.999, len(points))  # 22.5
    assert misfit(1.0) < limit < misfit(1.1)


def test_below_the_threshold_nothing_takes_off() -> None:
    """R0 1.5 with 60 % vaccinated makes an effective 0.69: theory and runs agree on none."""
    found = epidemic.spread(1.5, 0.6, 200, np.random.default_rng(3))

    assert theory.extinction_probability(1.5, 0.6) == pytest.approx(1.0, abs=1e-6)
    assert not found.major.any()


def test_people_are_conserved_and_a_seed_repeats() -> None:
    """Nobody falls ill twice; the same job gives the same result, another seed another."""
    found = epidemic.spread(4.0, 0.2, 50, np.random.default_rng(1))

    assert (found.infected <= PEOPLE).all()
    assert (found.infected >= epidemic.ARRIVING).all()
    assert (found.peak_day <= found.end_day).all()
    assert epidemic.one_job(2.0, 0.2, 1, 20) == epidemic.one_job(2.0, 0.2, 1, 20)
    assert epidemic.one_job(2.0, 0.2, 1, 20) != epidemic.one_job(2.0, 0.2, 2, 20)


def test_the_interval_is_wilsons() -> None:
    """10 of 50: 0.1124 to 0.3304, as SciPy has it; at the ends it stays in [0, 1]."""
    for hits in (0, 10, 50):
        known = binomtest(hits, 50).proportion_ci(method="wilson")
        assert gather.wilson_interval(hits, 50) == pytest.approx((known.low, known.high))


def test_results_are_gathered_into_a_table_and_a_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every job is one line, in order; a mean over no major outbreak is an empty field."""
    results = tmp_path / "results"
    results.mkdir()
    for number, (r0, vaccinated) in enumerate([(3.0, 0.0), (1.25, 0.0), (1.25, 0.6)]):
        job = epidemic.one_job(r0, vaccinated, 1, 20)
        (results / f"result.{number}.json").write_text(json.dumps(job))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["gather.py", "results"])

    gather.main()

    with (tmp_path / "epidemic.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["r0"], row["vaccinated"]) for row in rows] == [
        ("1.25", "0.0"),
        ("1.25", "0.6"),
        ("3.0", "0.0"),
    ]
    assert rows[1]["attack_rate"] == ""
    assert (tmp_path / "epidemic.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "epidemic.svg").read_text().startswith("<svg")


def test_no_results_is_an_error_one_can_read(tmp_path: Path) -> None:
    """An empty folder must not give an empty table."""
    with pytest.raises(SystemExit, match=r"found no \*\.json"):
        gather.read_results(tmp_path)
