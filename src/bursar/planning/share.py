"""
Finds how many tasks fit a deadline and a budget that are too tight for all tasks.

A share is honest when it can be run by itself: with each task, all its parents.
Tasks join in order of their work, least first, parents before children, so the
count is large; a share is the first so many of that order, and it counts only
once it has been planned and its plan meets the goal.
"""

import functools
import heapq
from collections.abc import Callable

import numpy as np

from bursar.planning.front import ParetoFront, PlanOption
from bursar.planning.kernels.availability import IntArray
from bursar.planning.policy import ScheduleRecipe
from bursar.planning.problem import PlanningProblem
from bursar.planning.trade_off_solver import evaluate_recipe, problem_of


def largest_share(
    front: ParetoFront, meets: Callable[[PlanOption], bool], miss: Callable[[PlanOption], float]
) -> tuple[int, PlanOption] | None:
    """
    Return the most tasks that a purchase of the front can do within the goal, and the option.

    Each purchase first has to beat the best share so far by one task; how far it
    then gets is found by halving. That takes a longer share to need no less time
    and money, as it does up to what a list scheduler gains by accident.

    Parameters
    ----------
    meets
        Whether an option meets the goal.
    miss
        How far an option is from the goal; the nearest purchases are tried first.

    Returns
    -------
    tuple or None
        None when not one task can be done within the goal, or a runtime is unknown.
    """
    problem = problem_of(front)
    if not problem.known.all():
        return None
    order = least_work_first(front, problem)
    part = functools.lru_cache(maxsize=4)(lambda count: problem.restricted(order[:count]))

    def planned(count: int, caps: tuple[int, ...]) -> PlanOption | None:
        option = evaluate_recipe(part(count), ScheduleRecipe(caps=caps))
        return option if option is not None and meets(option) else None

    best: tuple[int, PlanOption] | None = None
    for caps in dict.fromkeys(o.recipe.caps for o in sorted(front.options, key=miss)):
        low = best[0] if best else 0
        high = problem.n_tasks - 1
        step = low + 1
        while low < high:
            option = planned(step, caps)
            if option is not None:
                low, best = step, (step, option)
            # Not one task more than the best so far: the purchase is done with after one
            # schedule. Without this test, 100,000 tasks took over a minute instead of a few
            # seconds.
            elif step == low + 1:
                break
            else:
                high = step - 1
            step = (low + high + 1) // 2
    return best


def least_work_first(front: ParetoFront, problem: PlanningProblem) -> IntArray:
    """
    Return the tasks by work, least first, parents before children, shape ``(n_tasks,)``.

    Work is the runtime on the fastest site times the width, processor-seconds. Of tasks with
    equal work the one listed first in the workflow goes first.

    Parameters
    ----------
    front
        Front of the same workflow, of which only the dependencies are read.
    problem
        Tells runtimes, all of them known, and widths.
    """
    work = (problem.runtimes.min(axis=1) * problem.widths).tolist()
    parents, children = front.workflow.parents, front.workflow.children
    missing = [len(p) for p in parents]
    ready = [(work[i], i) for i, n in enumerate(missing) if not n]
    heapq.heapify(ready)
    order = []
    while ready:
        _, task = heapq.heappop(ready)
        order.append(task)
        for child in children[task]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, (work[child], child))
    return np.array(order, dtype=np.int64)
