"""Programs for joblib, scikit-learn, emcee, SALib and Dask on a Bursar executor."""

import multiprocessing
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import bursar
from bursar.api.executor import Executor
from bursar.worker.attempt_context import PROCESSORS, TASK


@pytest.fixture(scope="module")
def shared() -> Iterator[Executor]:
    """An executor for calls that leave no trace."""
    with Executor(4, history="none") as executor:
        yield executor


@pytest.fixture
def joblib() -> Any:
    """The module joblib, which knows the backend."""
    found = pytest.importorskip("joblib")
    bursar.register_joblib()
    return found


def where(n: int) -> tuple[int, str | None]:
    """Return the argument, and what a worker of ours tells a call of its processors."""
    return n, os.environ.get(PROCESSORS)


def is_worker(_: int) -> bool:
    """Whether this is a process of a worker of ours."""
    return TASK in os.environ


@pytest.mark.ci
def test_joblib_makes_its_calls_on_our_workers(joblib: Any, shared: Executor) -> None:
    """
    In order, in batches, as a generator, with the options of the executor that was given.
    """
    call = joblib.delayed(where)
    with joblib.parallel_config(backend="bursar", executor=shared):
        assert joblib.Parallel(n_jobs=-1)(call(n) for n in range(300)) == [
            (n, "1") for n in range(300)
        ]
        lazily = joblib.Parallel(n_jobs=2, return_as="generator")(call(n) for n in range(5))
        assert [n for n, _ in lazily] == list(range(5))
    wide = shared.options(processors=3)
    with joblib.parallel_config(backend="bursar", executor=wide, n_jobs=-1):
        assert joblib.Parallel()(call(n) for n in range(3)) == [(n, "3") for n in range(3)]
        # Within a call, threads on its processors: a process for each would use those of others.
        nested = joblib.Parallel()(joblib.delayed(joblib.effective_n_jobs)(None) for _ in range(2))
        assert nested == [3, 3]
    assert shared.submit(int, 3).result(30) == 3


@pytest.mark.ci
def test_joblib_raises_what_a_call_raised_and_goes_on(joblib: Any) -> None:
    """
    A failure or a timeout ends the calls of this Parallel, and the next one finds workers.
    """
    with joblib.parallel_config(backend="bursar", n_jobs=2, history="none"):
        with pytest.raises(ZeroDivisionError):
            joblib.Parallel()(joblib.delayed(divmod)(1, n - 3) for n in range(9))
        began = time.monotonic()
        with pytest.raises(multiprocessing.TimeoutError):
            joblib.Parallel(timeout=0.2)(joblib.delayed(time.sleep)(600) for _ in range(3))
        assert time.monotonic() - began < 300
        assert all(joblib.Parallel()(joblib.delayed(is_worker)(n) for n in range(3)))


def test_joblib_uses_as_many_workers_as_are_stated(joblib: Any) -> None:
    """
    Also more than this machine has; one is joblib's own loop, and 0 has no meaning.
    """
    more = len(os.sched_getaffinity(0)) + 2
    with joblib.parallel_config(backend="bursar", history="none"):
        assert joblib.effective_n_jobs(more) == more
        assert joblib.effective_n_jobs(-1) == max(2, len(os.sched_getaffinity(0)))
        assert not any(joblib.Parallel(n_jobs=1)(joblib.delayed(is_worker)(n) for n in range(2)))
        with pytest.raises(ValueError, match="no meaning"):
            joblib.Parallel(n_jobs=0)(joblib.delayed(abs)(n) for n in range(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bugdet": 3}, '"bugdet" is no setting of the backend "bursar"'),
        ({"executor": "shared", "budget": 3}, '"budget" is set where an executor is given'),
    ],
)
def test_joblib_settings_that_are_wrong_are_refused(
    joblib: Any, shared: Executor, settings: dict[str, Any], message: str
) -> None:
    """
    In one line, before any worker starts.
    """
    if "executor" in settings:
        settings = {**settings, "executor": shared}
    with pytest.raises(bursar.InputError, match=message):
        joblib.parallel_config(backend="bursar", **settings)


@pytest.mark.ci
def test_a_grid_search_of_scikit_learn_finds_the_same(joblib: Any, shared: Executor) -> None:
    """
    The same scores and the same best parameters as with joblib's own workers.
    """
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    x, y = load_iris(return_X_y=True)
    grid = {"C": [0.1, 1.0, 10.0], "gamma": [0.01, 0.1]}
    alone = GridSearchCV(SVC(), grid, cv=3).fit(x, y)
    with joblib.parallel_config(backend="bursar", executor=shared):
        ours = GridSearchCV(SVC(), grid, cv=3, n_jobs=-1).fit(x, y)

    assert ours.best_params_ == alone.best_params_
    scores = "mean_test_score"
    assert ours.cv_results_[scores].tolist() == alone.cv_results_[scores].tolist()


def log_probability(point: Any) -> float:
    """Return that of a normal distribution, but for a constant."""
    return float(-0.5 * np.sum(point**2))


def test_emcee_walks_the_same_way(shared: Executor) -> None:
    """
    With an executor as its pool, a chain is the same as without one.
    """
    emcee = pytest.importorskip("emcee")
    begin = np.random.default_rng(1).normal(size=(12, 3))
    chains = []
    for pool in (shared, None):
        np.random.seed(7)
        sampler = emcee.EnsembleSampler(12, 3, log_probability, pool=pool)
        sampler.run_mcmc(begin, 10)
        chains.append(sampler.get_chain())

    assert np.array_equal(chains[0], chains[1])


def model(points: Any) -> Any:
    """Return the model's values at the rows of an array."""
    return points[:, 0] + 2 * points[:, 1]


@pytest.mark.ci
def test_salib_evaluates_on_an_executor(shared: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By ``evaluate`` with ``imap`` and, with our executor as its pool, by ``evaluate_parallel``.
    """
    salib = pytest.importorskip("SALib")
    from SALib.sample import sobol

    problem = salib.ProblemSpec({"names": ["a", "b"], "bounds": [[0, 1]] * 2, "outputs": ["Y"]})
    problem.sample(sobol.sample, 8)

    def everywhere(points: Any) -> Any:
        return np.concatenate(list(shared.imap(model, np.array_split(points, 4))))

    problem.evaluate(everywhere)
    assert np.array_equal(problem.results, model(problem.samples))

    monkeypatch.setattr("SALib.util.problem.Pool", lambda n: Executor(n, history="none"))
    monkeypatch.setattr("SALib.util.problem.ptqdm_available", False, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.evaluate_parallel(model, nprocs=2)
    assert np.array_equal(np.ravel(problem.results), model(problem.samples))


def test_dask_computes_on_an_executor(shared: Executor) -> None:
    """
    As its ``scheduler=``, with as many calls at a time as the executor has processors.
    """
    dask = pytest.importorskip("dask")

    @dask.delayed  # type: ignore[untyped-decorator]
    def part(n: int) -> tuple[int, bool]:
        return n * n, TASK in os.environ

    parts = dask.compute(*[part(n) for n in range(20)], scheduler=shared)

    # Dask fuses a small graph into one call or none of ours; each value is right in any case.
    assert [value for value, _ in parts] == [n * n for n in range(20)]
    assert all(elsewhere for _, elsewhere in parts)
    total = dask.delayed(sum)([part(n)[0] for n in range(20)])
    assert total.compute(scheduler=shared) == sum(n * n for n in range(20))
