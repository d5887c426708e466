"""
The genetic algorithm of e-Science'06 section 3.

Individuals are sets of slots, all different. In each iteration every individual
is paired with another; a pair has two offspring, the slots in exactly one parent
(XOR) and those in both or neither (XNOR). Duplicates go, and the individuals of
least total cost stay. Slots in which nothing runs are not paid, but stay in the
individual: crossover may find a use for them.
"""

import numpy as np

from bursar.model.campaign import Goal
from bursar.planning.evaluation import PurchaseScores
from bursar.planning.kernels.availability import FloatArray
from bursar.planning.methods.search import PlanSearch
from bursar.planning.methods.variation import random_subsets, unique

POPULATION = 50
ITERATIONS = 20


def genetic(search: PlanSearch, goal: Goal) -> None:
    """
    Searches for the least total cost at the policy's weight.

    Parameters
    ----------
    goal
        Plans that miss its deadline or its budget are rejected.
    """
    size = search.limits.population or POPULATION
    iterations = ITERATIONS if search.limits.generations is None else search.limits.generations
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
