"""
Ranks of the sites that match, and the choice of one of them by a rule.

The greatest rank is the best one. Cavalieri et al. (2003) say so of the broker they start from
(section 2.1), and their own ranks are minus times; where they say that the deterministic strategy
takes "the lower value of the rank" (section 2.2) they must mean the least of these times.

A rule turns ranks into the probability of each site; one draw then decides. Greater ranks are
better. Sites of undefined rank (nan) come last: they have a chance only where no rank is
defined, and then all have the same. So it is with minus infinity; sites of infinite rank share
all the probability.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bursar.model.errors import InputError, spelling_hint

# Ranks of sites (Cavalieri et al. 2003, equations 1 to 3).

FloatArray = NDArray[np.float64]

T = TypeVar("T", float, FloatArray)

DEFAULT_RANK = "-other.EstimatedTraversalTime"
"""Equation 2."""

DEFAULT_RANKS = frozenset(
    f"-{scope}{name}"
    for scope in ("", "other.", "target.")
    for name in ("estimatedtraversaltime", "gluecestateestimatedresponsetime")
)
"""Ways to write the same, in lower case and without spaces."""


def file_rank(access: T, transfer: T, beta: float) -> T:
    """
    Rank sites by the access and transfer times of a job's files (equation 3).

    Parameters
    ----------
    access
        Seconds to read the files at each site.
    transfer
        Seconds until the files have been brought to each site.
    beta
        Weight of access.
    """
    return -(beta * access + (1 - beta) * transfer)


def rank(expression: T, files: T, alpha: float) -> T:
    """
    Rank of sites (equation 1).

    Parameters
    ----------
    expression
        Value of the rank expression; by default minus the estimated traversal time
        (equation 2). What is undefined is nan, and so is the rank then.
    files
        By equation 3.
    alpha
        Weight of the expression. With 0 it is not looked at, so that it may be undefined.
    """
    if alpha == 0:
        return files
    if alpha == 1:
        return expression
    return alpha * expression + (1 - alpha) * files


# Choose one of the sites that match by a rule.

CANDIDATES = 2
"""Sites that ``best-of-d`` looks at."""

TEMPERATURE = 0.5
"""Temperature of ``softmax``, as a share of the mean absolute rank."""

NOTHING = 1e-6
"""Size below which ``stochastic`` takes a rank for 0 beside costs or merits, in mean sizes of
the ranks. It keeps even the sites that get next to nothing in their order."""

FUZZY_FACTOR = 1.0
"""Factor of ``glite-2012``, by its default setting."""


def probabilities(rule: str, ranks: FloatArray) -> FloatArray:
    """
    Return the probability that each site is chosen.

    Parameters
    ----------
    ranks
        Ranks of the sites; greater is better, nan where undefined.

    Returns
    -------
    ndarray
        Probabilities that add up to 1; empty when there is no site.

    Raises
    ------
    InputError
        When there is no such rule.
    """
    follow = rule_of(rule)
    ranks = np.asarray(ranks, dtype=np.float64)
    chances = np.zeros(len(ranks))
    if not len(ranks):
        return chances
    best = np.fmax.reduce(ranks)
    if math.isnan(best) or best == -math.inf:
        among = np.isnan(ranks) if math.isnan(best) else ranks == best
    elif best == math.inf:
        among = ranks == best
    else:
        among = np.isfinite(ranks)
        weights = follow(ranks[among])
        chances[among] = weights / weights.sum()
        return chances
    chances[among] = 1 / np.count_nonzero(among)
    return chances


def pick(rule: str, ranks: FloatArray, rng: np.random.Generator) -> int:
    """
    Return the number of the site that one draw chooses.

    Raises
    ------
    InputError
        When there is no such rule.
    ValueError
        When there is no site.
    """
    if not len(ranks):
        raise ValueError("there is no site to choose")
    if rule_of(rule) is best:  # the same, without the detour: most choices are such
        greatest = np.fmax.reduce(ranks)
        among = np.flatnonzero(np.isnan(ranks) if math.isnan(greatest) else ranks == greatest)
        # One draw in either branch, so that equal seeds stay in step whatever the rule.
        return int(among[int(rng.random() * len(among))])
    reached = np.cumsum(probabilities(rule, ranks))
    # Of the sum itself, which may be a little off 1; a site of no chance is never met.
    return int(np.searchsorted(reached, rng.random() * reached[-1], side="right"))


def rule_of(name: str) -> Callable[[FloatArray], FloatArray]:
    """
    Return the function of a rule, from finite ranks to weights.

    Raises
    ------
    InputError
        When there is no such rule.
    """
    follow = RULES.get(name)
    if follow is None:
        known = ", ".join(RULES)
        raise InputError(
            f'expected one of {known}, got "{name}"',
            where="choice",
            hint=spelling_hint(name, RULES),
        )
    return follow


def best(ranks: FloatArray) -> FloatArray:
    """Weigh only the best, all equals alike: no site is favoured for its name or place."""
    return np.where(ranks == ranks.max(), 1.0, 0.0)


def stochastic(ranks: FloatArray) -> FloatArray:
    """
    Weigh sites in proportion to rank or to the inverse of rank.

    Cavalieri et al. (2003, section 2.2) write ``P_i = K_i / K_tot`` with ``K_i = 1 / |R_i|`` and
    call these probabilities "proportional to their rank values". Their own ranks are minus times,
    for which the formula gives the better site more; for a job's own positive rank, such as its
    free processors, the same formula would give the worse site more. So the formula is read as
    the inverse of a cost where R is below 0, and R itself is the weight where R is above 0.

    At 0 both have their limit: a cost of nothing has an infinite inverse, so that sites of rank 0
    share all beside costs, and a merit of nothing gets nothing beside merits, but for
    :data:`NOTHING`. Where merits and costs are mixed, 0 is no limit but a point of the scale:
    then ``K_i = 1 + |R_i| / S`` for merits and the inverse of that for costs, where S is the mean
    size of the ranks.
    """
    largest = np.abs(ranks).max()
    if largest == 0:
        return np.ones(len(ranks))
    scaled = ranks / largest  # so that no rank is too large or too small to be inverted
    sizes = np.abs(scaled)
    if scaled.min() < 0 < scaled.max():
        sizes = 1.0 + sizes / sizes.mean()
    elif sizes.min() == 0:
        sizes = 1.0 + sizes / (NOTHING * sizes.mean())
    exponents = np.sign(scaled) * np.log(sizes)
    # Powers by logarithms, relative to the greatest: ranks many decades apart do not overflow.
    weights: FloatArray = np.exp(exponents - exponents.max())
    return weights


def softmax(ranks: FloatArray) -> FloatArray:
    """Weigh by ``exp(R_i / T)``; T is a share of the mean absolute rank, so units cancel."""
    largest = np.abs(ranks).max()
    if largest == 0:
        return np.ones(len(ranks))
    scaled = ranks / largest
    chances: FloatArray = np.exp((scaled - scaled.max()) / (TEMPERATURE * np.mean(np.abs(scaled))))
    return chances


def best_of_some(ranks: FloatArray) -> FloatArray:
    """
    Weigh sites by their chance to be the best of d sites drawn at random.

    Of n sites, one that k others do not beat is it where it is drawn, with d - 1 of these k:
    C(k, d - 1) of C(n, d) cases. Equals share what they have together.
    """
    sites = len(ranks)
    _, group, sizes = np.unique(ranks, return_inverse=True, return_counts=True)
    cases = _cases(sites, min(CANDIDATES, sites))
    shared: FloatArray = np.add.reduceat(cases, np.cumsum(sizes) - sizes) / sizes
    return shared[group]


@lru_cache(maxsize=16)
def _cases(sites: int, drawn: int) -> FloatArray:
    """Count, by the number of sites no better, the draws in which a site is the best."""
    return np.array([math.comb(k, drawn - 1) for k in range(sites)], dtype=np.float64)


def edg_2001(ranks: FloatArray) -> FloatArray:
    """Weigh as the European DataGrid's first release did: ``R_i - 2 min(0, R_min)``."""
    largest = np.abs(ranks).max()
    if largest == 0:
        return np.ones(len(ranks))
    scaled = ranks / largest
    weights: FloatArray = scaled - 2 * min(0.0, float(scaled.min()))
    return weights


def glite_mid(ranks: FloatArray) -> FloatArray:
    """Weigh as middle releases of gLite did: ``atan(pi (R_i - mean) / deviation) + pi``."""
    scaled = ranks / (np.abs(ranks).max() or 1.0)
    spread = scaled.std()
    if spread == 0:
        return np.ones(len(ranks))
    weights: FloatArray = np.arctan(np.pi * (scaled - scaled.mean()) / spread) + np.pi
    return weights


def glite_2012(ranks: FloatArray) -> FloatArray:
    """Weigh as gLite's last release did: ``atan(f (R_i - mean)) + pi / 2``, unit-dependent."""
    largest = np.abs(ranks).max() or 1.0
    mean = np.mean(ranks / largest) * largest
    with np.errstate(over="ignore"):  # the arc tangent of what is too large is known
        above = FUZZY_FACTOR * (ranks - mean)
    # It is at least pi / 2 for the best site; far below the mean, rounding may pass 0.
    weights: FloatArray = np.maximum(np.arctan(above) + np.pi / 2, 0.0)
    return weights


def uniform(ranks: FloatArray) -> FloatArray:
    """Weight all sites alike."""
    return np.ones(len(ranks))


RULES: dict[str, Callable[[FloatArray], FloatArray]] = {
    # Ours: the best, where the rank is minus the expected completion; see inflight.
    "completion": best,
    "best": best,
    "stochastic": stochastic,
    "softmax": softmax,
    "best-of-d": best_of_some,
    "edg-2001": edg_2001,
    "glite-mid": glite_mid,
    "glite-2012": glite_2012,
    "random": uniform,
}
"""Functions from finite ranks, at least one, to weights that are not all 0, by rule name."""
