"""
Bounds on waits by the binomial method, the baseline of ``waits.py``.

Written from the description of BMBP in the paper. What the paper leaves open is decided here: a run
of misses is rare where it is no likelier than three misses in a row of independent waits, and how
likely it is for waits that depend on each other comes from a simulation of a first-order
autoregressive process in the logarithm of the waits, as the paper's table does.

References
----------
.. [1] Brevik, Nurmi, Wolski (2006). Predicting bounds on queuing delay for batch-scheduled
   parallel machines. PPoPP '06, sections 3 and 4.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

CONFIDENCE = 0.95
"""Certainty with which a bound is no less than the quantile."""

CLASSES = (4, 16, 64)
"""Most processors of each class of requests but the last: 1-4, 5-16, 17-64, and more."""

TRAINING = 0.1
"""Part of a class's waits from which the dependence of neighbours is taken."""

EXACT = 20.0
"""Waits expected on the rarer side of the quantile up to which the binomial distribution is summed;
beyond, it is taken to be normal, as in the paper."""

STEPS = 1_000_000
"""Simulated waits behind one entry of the table of rare runs."""

LONGEST_RUN = 200
"""Misses in a row that are rare however much waits depend on each other."""


def fewest(quantile: float, confidence: float = CONFIDENCE) -> int:
    """Return the waits from which on there is a bound: 59 for 0.95, 29 for 0.9."""
    return math.ceil(math.log(1 - confidence) / math.log(quantile) - 1e-12)


@lru_cache(maxsize=200_000)
def bound_index(count: int, quantile: float, confidence: float = CONFIDENCE) -> int | None:
    """
    Return which of so many ascending waits bounds the quantile, from 1; None with too few.

    The least k of which it is so certain that at least k of the next as many waits would lie below
    the quantile: P(Bin(count, quantile) <= k - 1) >= confidence.
    """
    if count < fewest(quantile, confidence):
        return None
    if count * min(quantile, 1 - quantile) > EXACT:
        spread = math.sqrt(count * quantile * (1 - quantile))
        place = count * quantile + NormalDist().inv_cdf(confidence) * spread + 0.5
        return min(math.ceil(place), count)
    # From the top, where few terms are: the least k with P(Bin >= k) <= 1 - confidence.
    above, chances = 0.0, math.lgamma(count + 1)
    for k in range(count, 0, -1):
        above += math.exp(
            chances
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * math.log(quantile)
            + (count - k) * math.log(1 - quantile)
        )
        if above > 1 - confidence + 1e-12:
            return k + 1 if k < count else count
    return 1


@lru_cache(maxsize=16)
def dependent_levels(tenths: int) -> FloatArray:
    """Return a standard normal process whose neighbours correlate so, shape ``(STEPS,)``."""
    rho = tenths / 10
    noise = np.random.default_rng(2006).normal(size=STEPS) * math.sqrt(1 - rho * rho)
    level, levels = 0.0, np.empty(STEPS)
    for i, step in enumerate(noise.tolist()):
        level = rho * level + step
        levels[i] = level
    return levels


@lru_cache(maxsize=4096)
def rare_run(quantile: float, tenths: int) -> int:
    """
    Return how many misses in a row are rare.

    Parameters
    ----------
    tenths
        Correlation of a wait's logarithm with the one before, in tenths, from 0 to 9.
    """
    if tenths == 0:
        return 3
    misses = dependent_levels(tenths) > NormalDist().inv_cdf(quantile)
    allowed = (1 - quantile) ** 3
    run = misses
    for length in range(1, LONGEST_RUN):
        if run.mean() <= allowed:
            return length
        run = run[:-1] & misses[length:]
    return LONGEST_RUN


def dependence(waits: list[float]) -> int:
    """Return the correlation of neighbours' logarithms, in tenths from 0 to 9, rounded."""
    logs = np.log1p(np.array(waits))
    if len(logs) < 3 or logs.std() == 0:
        return 0
    early, late = logs[:-1] - logs.mean(), logs[1:] - logs.mean()
    found = float((early * late).mean() / logs.var())
    return min(max(round(10 * found), 0), 9)


class _ClassHistory:
    """Waits of one class of requests since the last change, and the run of misses."""

    def __init__(self, quantile: float, training: int) -> None:
        self._quantile = quantile
        self._training = training
        self._trained: list[float] | None = []
        self._rare = rare_run(quantile, 0)
        self._waits: deque[float] = deque()
        self._ordered: list[float] = []
        self._misses = 0

    def bound(self) -> float | None:
        index = bound_index(len(self._ordered), self._quantile)
        return None if index is None else self._ordered[index - 1]

    def lower(self) -> float | None:
        index = bound_index(len(self._ordered), self._quantile)
        return None if index is None else self._ordered[-index]

    def add(self, wait: float) -> None:
        bound = self.bound()
        self._misses = self._misses + 1 if bound is not None and wait > bound else 0
        self._waits.append(wait)
        insort(self._ordered, wait)
        if self._trained is not None:
            self._trained.append(wait)
            if len(self._trained) >= self._training:
                self._rare = rare_run(self._quantile, dependence(self._trained))
                self._trained = None
        if self._misses >= self._rare:
            # What was before the change says nothing any more: as few are kept as make a bound.
            while len(self._waits) > fewest(self._quantile):
                del self._ordered[bisect_left(self._ordered, self._waits.popleft())]
            self._misses = 0


class BinomialBounds:
    """
    Bounds on the waits of a site's requests, by classes of processors.

    Parameters
    ----------
    quantile
        Share of the waits that a bound is to cover at least.
    training
        Waits of a class from which its dependence is taken: a tenth of its log in the paper.
    """

    def __init__(self, quantile: float, training: int) -> None:
        self._histories = [_ClassHistory(quantile, training) for _ in (*CLASSES, None)]

    def bound(self, processors: int) -> float | None:
        """Return the bound for a request that is made now, seconds; None: too few waits."""
        return self._history(processors).bound()

    def lower(self, processors: int) -> float | None:
        """Return, likewise, a lower bound on the wait that the rest of the waits do not exceed."""
        return self._history(processors).lower()

    def add(self, processors: int, wait: float) -> None:
        """Record the wait of a request that has begun, seconds."""
        self._history(processors).add(wait)

    def _history(self, processors: int) -> _ClassHistory:
        return self._histories[bisect_left(CLASSES, processors)]
