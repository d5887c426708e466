"""
Genetic algorithms: those of the two papers, and NSGA-II on the same encoding.

The genetic algorithm of e-Science'06 section 3 searches for the least total cost. Individuals are
sets of slots, all different. In each iteration every individual is paired with another; a pair has
two offspring, the slots in exactly one parent (XOR) and those in both or neither (XNOR). Duplicates
go, and the individuals of least total cost stay. Slots in which nothing runs are not paid, but stay
in the individual: crossover may find a use for them.

The multi-objective algorithm of HPDC'07 section 3 is Fonseca and Fleming's [1]_ in
Deb's account [2]_: an individual's rank is one more than the number that beat it;
fitness falls from rank to rank and is the same within one; individuals of one rank
that lie close together in the objectives share it. Parents are drawn by stochastic
universal sampling, crossed at two points, and each bit is mutated with probability
1/n. The population has no elite: the plans that no other beats are kept beside it.

NSGA-II [3]_ works on the encoding of HPDC'07: a bit for each slot.

References
----------
.. [1] Fonseca, Fleming (1993). Genetic algorithms for multiobjective optimization:
   formulation, discussion and generalization. ICGA 5: 416-423.
.. [2] Deb (2001). Multi-objective optimization using evolutionary algorithms,
   section 5.4.
.. [3] Deb, Pratap, Agarwal, Meyarivan (2002). A fast and elitist multiobjective
   genetic algorithm: NSGA-II. IEEE TEC 6(2): 182-197.
"""

import numpy as np

from bursar.model.campaign import Goal
from bursar.planning.evaluation import PurchaseScores
from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray
from bursar.planning.methods.search import PlanSearch

# Crossover, mutation and selection of bit strings, for the genetic algorithms.

CROSSOVER = 0.9
"""Probability that a pair is crossed; otherwise the offspring are copies."""


def random_subsets(rng: np.random.Generator, count: int, bits: int) -> BoolArray:
    """
    Different bit strings, every one as likely as any other, shape ``(count, bits)``.

    Fewer where there are not so many.
    """
    # There may be fewer different strings than asked for, and the loop below would never end.
    count = min(count, 2**bits) if bits < 20 else count
    seen: dict[bytes, BoolArray] = {}
    while len(seen) < count:
        for row in rng.random((count - len(seen), bits)) < 0.5:
            seen.setdefault(row.tobytes(), row)
    return np.array(list(seen.values()))


def unique(rows: BoolArray) -> BoolArray:
    """Return the rows without repetitions, in the order of first appearance."""
    _, first = np.unique(np.packbits(rows, axis=1), axis=0, return_index=True)
    return rows[np.sort(first)]


def crossed(
    rng: np.random.Generator, first: BoolArray, second: BoolArray, points: int
) -> tuple[BoolArray, BoolArray]:
    """
    Two offspring of each pair, which take turns at the same random cuts.

    Parameters
    ----------
    first, second
        Parents, shape ``(n, bits)``.
    points
        Cuts, at different places between bits; as many as there are places at most.
    """
    n, bits = first.shape
    cuts = np.argsort(rng.random((n, bits - 1)), axis=1)[:, :points] + 1
    marks = np.zeros((n, bits), dtype=np.int64)
    np.put_along_axis(marks, cuts, 1, axis=1)
    swap = np.cumsum(marks, axis=1) % 2 == 1
    return np.where(swap, second, first), np.where(swap, first, second)


def bred(rng: np.random.Generator, parents: BoolArray, points: int, count: int) -> BoolArray:
    """
    The next generation: two offspring of each pair, crossed mostly, each bit mutated at 1/bits.

    Parameters
    ----------
    parents
        Shape ``(2 n, bits)``; the first half is paired with the second.
    points
        Number of cuts of the crossover.
    count
        How many offspring to keep.
    """
    half, bits = len(parents) // 2, parents.shape[1]
    pair = parents[:half], parents[half:]
    if bits > 1:
        offspring = crossed(rng, *pair, min(points, bits - 1))
        cross = rng.random(half)[:, None] < CROSSOVER
        pair = np.where(cross, offspring[0], pair[0]), np.where(cross, offspring[1], pair[1])
    return mutated(rng, np.concatenate(pair)[:count], 1 / bits)


def mutated(rng: np.random.Generator, rows: BoolArray, rate: float) -> BoolArray:
    """Return the rows with each bit flipped with a probability."""
    return rows ^ (rng.random(rows.shape) < rate)


def sampled(rng: np.random.Generator, fitness: FloatArray, count: int) -> IntArray:
    """
    Indices drawn by stochastic universal sampling, in random order, shape ``(count,)``.

    Each is drawn its share of the fitness times ``count``, rounded up or down.
    """
    edges = np.cumsum(fitness / fitness.sum()) * count
    drawn = np.searchsorted(edges, np.arange(count) + rng.random(), side="right")
    return rng.permutation(np.minimum(drawn, len(fitness) - 1))


def domination(objectives: FloatArray) -> BoolArray:
    """
    Whether row i beats row j, shape ``(n, n)``; objectives are to be small.

    What is infinite in both objectives is beaten by all that is finite.
    """
    no_worse = (objectives[:, None, :] <= objectives[None, :, :]).all(axis=2)
    better = (objectives[:, None, :] < objectives[None, :, :]).any(axis=2)
    return np.asarray(no_worse & better)


# The genetic algorithm of e-Science'06 section 3.

GA_POPULATION = 50
GA_ITERATIONS = 20


def genetic(search: PlanSearch, goal: Goal) -> None:
    """
    Searches for the least total cost at the policy's weight.

    Parameters
    ----------
    goal
        Plans that miss its deadline or its budget are rejected.
    """
    size = search.limits.population or GA_POPULATION
    iterations = GA_ITERATIONS if search.limits.generations is None else search.limits.generations
    search.total = size * (iterations + 1)
    rng = search.rng()

    population = random_subsets(rng, size, search.problem.n_slots)
    costs = total_cost(search, search.bits(population), goal)
    for _ in range(iterations):
        if search.out_of_time:
            break
        order = rng.permutation(len(population))
        pairs = len(order) // 2
        first, second = population[order[:pairs]], population[order[pairs : 2 * pairs]]
        offspring = np.concatenate((first ^ second, ~(first ^ second)))
        everyone = unique(np.concatenate((population, offspring)))
        fresh = everyone[len(population) :]
        if len(fresh):
            costs = np.concatenate((costs, total_cost(search, search.bits(fresh), goal)))
        best = np.argsort(costs, kind="stable")[:size]
        population, costs = everyone[best], costs[best]


def total_cost(search: PlanSearch, scores: PurchaseScores, goal: Goal) -> FloatArray:
    """Equation 5, infinite for what is infeasible or misses the goal, shape ``(n,)``."""
    policy = search.evaluator.policy
    weight, worth = policy.weight, policy.worth
    rejected = ~scores.feasible
    if goal.deadline is not None:
        rejected |= scores.makespan > goal.deadline
    if goal.budget is not None:
        rejected |= scores.cost > goal.budget
    # 0 x infinite is nothing that counts.
    makespan, cost = (np.where(rejected, 0.0, v) for v in (scores.makespan, scores.cost))
    return np.where(rejected, np.inf, weight * cost + (1 - weight) * worth * makespan)


# The multi-objective genetic algorithm of HPDC'07 section 3.

MOGA_POPULATION = 10
MOGA_GENERATIONS = 10


def moga(search: PlanSearch) -> None:
    """Searches for the front."""
    size = search.limits.population or MOGA_POPULATION
    generations = (
        MOGA_GENERATIONS if search.limits.generations is None else search.limits.generations
    )
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


# NSGA-II [1]_ on the encoding of HPDC'07: a bit for each slot.

NSGA2_POPULATION = 50
NSGA2_GENERATIONS = 20


def nsga2(search: PlanSearch) -> None:
    """Searches for the front."""
    size = search.limits.population or NSGA2_POPULATION
    generations = (
        NSGA2_GENERATIONS if search.limits.generations is None else search.limits.generations
    )
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
