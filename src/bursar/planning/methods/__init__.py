"""
Searches for what to buy.

A purchase is written as processors of each slot that may be used; the genetic
algorithms of the papers choose whole slots, a bit for each.

``heft`` (:mod:`sweep`)
    No search: slots join in a few orders, cheapest first, earliest first, site by site.
``minmin`` (:mod:`minmin`)
    Min-Min on total cost, e-Science'06 figures 1 and 2.
``ga`` (:mod:`ga`)
    The genetic algorithm of e-Science'06.
``moga`` (:mod:`moga`)
    The multi-objective genetic algorithm of HPDC'07.
``nsga2`` (:mod:`nsga2`)
    NSGA-II on the same encoding.
``auto`` (:mod:`elitist`)
    Ours: seeded, elitist, with moves of single slots and of the tasks' order.
"""
