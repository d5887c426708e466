"""
NSGA-II [1]_ on the encoding of HPDC'07: a bit for each slot.

References
----------
.. [1] Deb, Pratap, Agarwal, Meyarivan (2002). A fast and elitist multiobjective
   genetic algorithm: NSGA-II. IEEE TEC 6(2): 182-197.
"""

import numpy as np

from bursar.planning.kernels.availability import FloatArray, IntArray
from bursar.planning.methods.search import PlanSearch
from bursar.planning.methods.variation import (
    bred,
    domination,
    random_subsets,
    unique,
)

POPULATION = 50
GENERATIONS = 20


def nsga2(search: PlanSearch) -> None:
    """Searches for the front."""
    size = search.limits.population or POPULATION
    generations = GENERATIONS if search.limits.generations is None else search.limits.generations
    n_slots = search.problem.n_slots
    search.total = size * (generations + 1)
    rng = search.rng()

    population = random_subsets(rng, size, n_slots)
    scores = search.bits(population)
    objectives = np.column_stack((scores.makespan, scores.cost))
    for _ in range(generations):
        if search.out_of_time:
            break
        front = fronts(objectives)
        order = crowded_order(objectives, front)
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        # Binary tournaments between members drawn at random.
        duels = rng.integers(0, len(population), (size + size % 2, 2))
        winners = np.where(place[duels[:, 0]] <= place[duels[:, 1]], duels[:, 0], duels[:, 1])
        parents = population[winners]
        young = bred(rng, parents, search.limits.crossover_points, size)
        everyone = unique(np.concatenate((population, young)))
        # `unique` keeps the order of first appearance and the population has no repetitions, so
        # that it stays in front with its objectives.
        fresh = everyone[len(population) :]
        if len(fresh):
            scores = search.bits(fresh)
            young_objectives = np.column_stack((scores.makespan, scores.cost))
            objectives = np.concatenate((objectives, young_objectives))
        best = crowded_order(objectives, fronts(objectives))[:size]
        population, objectives = everyone[best], objectives[best]


def fronts(objectives: FloatArray) -> IntArray:
    """Front that each individual belongs to, 0 the best, shape ``(n,)``."""
    beats = domination(objectives)
    beaten_by = beats.sum(axis=0)
    front = np.full(len(objectives), -1)
    level = 0
    while (front < 0).any():
        members = (front < 0) & (beaten_by == 0)
        front[members] = level
        beaten_by = beaten_by - beats[members].sum(axis=0)
        level += 1
    return front


def crowding(objectives: FloatArray) -> FloatArray:
    """Return the crowding distance within one front, shape ``(n,)``; infinite at both ends."""
    n = len(objectives)
    distance = np.zeros(n)
    for values in objectives.T:
        order = np.argsort(values, kind="stable")
        span = values[order[-1]] - values[order[0]]
        distance[order[[0, -1]]] = np.inf
        if n > 2 and 0 < span < np.inf:
            distance[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / span
    return distance


def crowded_order(objectives: FloatArray, front: IntArray) -> IntArray:
    """Return individuals by front, then by falling crowding distance, shape ``(n,)``."""
    distance = np.zeros(len(objectives))
    for level in range(front.max() + 1):
        members = np.flatnonzero(front == level)
        if np.isfinite(objectives[members]).all():
            distance[members] = crowding(objectives[members])
    # Ties by index, so that a seed gives the same generations.
    return np.lexsort((np.arange(len(front)), -distance, front))
