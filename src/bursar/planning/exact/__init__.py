"""
Finds the best schedule of small and medium problems, and proves that none is better.

CP-SAT [1]_ is asked for the least makespan or the least cost. A task is one start variable and one
way to be placed: in one slot, or in several slots of a site together, a number of processors from
each. Each slot is a cumulative resource, bought if anything runs in it, and paid by its own rule.

Time is counted in steps of 2^k seconds, so multiples of a step are floats without error. If all of
a problem's times are multiples of one, nothing is lost. Else the solver gets a *relaxation*:
begins, ends, run times, transfers and the deadline are all rounded down. This is valid, for if a
schedule with starts s is feasible, one with starts floor(s) is feasible there: what begins after
another's end, s' >= s + d, still does, floor(s') >= floor(s + d) >= floor(s) + floor(d). Its bound
therefore holds for the problem itself (to within the float's own error, as all bounds do). Each
solution found is put back on the real clock: tasks by start, each as soon as its processors are
free; what then misses an end or the deadline is dropped. If the best is dropped, or not as good as
its bound, the time that is left goes to finer steps, and then to the opposite rounding, whose
solutions always keep their ends and whose bound is not used.

Prices are rounded down likewise, unless they are multiples of 10^-k.

References
----------
.. [1] Perron, Didier, Gay (2023). The CP-SAT-LP solver. CP 2023, LIPIcs 280: 3:1-3:2.
"""

from bursar.planning.exact.solving import polish, reason_not_solved
from bursar.planning.exact.units import Crossing, ExactSolution, Objective, cost_of

__all__ = ["Crossing", "ExactSolution", "Objective", "cost_of", "polish", "reason_not_solved"]
