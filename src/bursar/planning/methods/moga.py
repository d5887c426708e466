"""
The multi-objective genetic algorithm of HPDC'07 section 3.

Fonseca and Fleming's [1]_, as Deb tells it [2]_: an individual's rank is one
more than the number that beat it; fitness falls from rank to rank and is the
same within one; individuals of one rank that lie close together in the
objectives share it. Parents are drawn by stochastic universal sampling, crossed
at two points, and each bit is mutated with probability 1/n. The population has
no elite: the plans that no other beats are kept beside it.

References
----------
.. [1] Fonseca, Fleming (1993). Genetic algorithms for multiobjective optimization:
   formulation, discussion and generalization. ICGA 5: 416-423.
.. [2] Deb (2001). Multi-objective optimization using evolutionary algorithms,
   section 5.4.
"""

import numpy as np

from bursar.planning.kernels.availability import FloatArray, IntArray
from bursar.planning.methods.search import PlanSearch
from bursar.planning.methods.variation import bred, domination, sampled

POPULATION = 10
GENERATIONS = 10


def moga(search: PlanSearch) -> None:
    """Searches for the front."""
    size = search.limits.population or POPULATION
    generations = GENERATIONS if search.limits.generations is None else search.limits.generations
    n_slots = search.problem.n_slots
    search.total = size * (generations + 1)
    rng = search.rng()

    population = rng.random((size, n_slots)) < 0.5
    for generation in range(generations + 1):
        scores = search.bits(population)
        if generation == generations or search.out_of_time:
            break
        objectives = np.column_stack((scores.makespan, scores.cost))
        parents = population[sampled(rng, shared_fitness(objectives), size + size % 2)]
        population = bred(rng, parents, search.limits.crossover_points, size)


def ranks(objectives: FloatArray) -> IntArray:
    """One more than the number of individuals that beat each, shape ``(n,)``."""
    return np.asarray(1 + domination(objectives).sum(axis=0))


def shared_fitness(objectives: FloatArray) -> FloatArray:
    """
    Fitness by rank, shared within the rank, shape ``(n,)``; positive.

    Parameters
    ----------
    objectives
        Makespan and cost, shape ``(n, 2)``; infinite where infeasible.
    """
    n = len(objectives)
    rank = ranks(objectives)
    # From n for the best to 1 for the worst, averaged over equal ranks.
    position = np.argsort(np.argsort(rank, kind="stable"), kind="stable")
    raw = n - position.astype(float)
    _, level = np.unique(rank, return_inverse=True)
    sums = np.bincount(level, raw)
    members = np.bincount(level)
    mean = (sums / members)[level]

    shared = mean / niche_counts(objectives, rank)
    # Sharing moves fitness within a rank, not out of it.
    scale = (np.bincount(level, mean) / np.bincount(level, shared))[level]
    return np.asarray(shared * scale)


def niche_counts(objectives: FloatArray, rank: IntArray) -> FloatArray:
    """
    Return the number of individuals of the same rank close to each, shape ``(n,)``.

    Distance is taken in objectives scaled to [0, 1]. The niche is as wide as would
    let n individuals spread along a front without touching: the sum of the
    objectives' ranges over n - 1 (Fonseca and Fleming, section 3.2).
    """
    n = len(objectives)
    finite = np.asarray(np.isfinite(objectives).all(axis=1))
    if n < 2 or not finite.any():
        return np.ones(n)
    low, high = objectives[finite].min(axis=0), objectives[finite].max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    scaled = np.where(finite[:, None], (objectives - low) / span, 0.0)
    width = 2 / (n - 1)
    distance = np.sqrt(((scaled[:, None] - scaled[None]) ** 2).sum(axis=2))
    near = np.clip(1 - distance / width, 0.0, 1.0)
    together = np.equal.outer(rank, rank) & np.logical_and.outer(finite, finite)
    return np.asarray(np.maximum((near * together).sum(axis=1), 1.0))
