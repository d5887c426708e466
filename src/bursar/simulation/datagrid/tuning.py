"""
Weights of the rank found by simulation (section 2.2: "by using offline simulation tools").

Candidates are compared under the same submissions and the same luck, replication by
replication, so that little but the weights differs between them. Of a coarse lattice the worse
half is dropped, and the others get twice the replications, until few are left (successive
halving); around the best of these the lattice is made finer.

References
----------
.. [1] Jamieson, Talwalkar (2016). Non-stochastic best arm identification and hyperparameter
   optimization. AISTATS, PMLR 51: 240-248.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from bursar.model.matching import RankWeights
from bursar.simulation.datagrid.grid_outcome import ConfidenceInterval, interval

MeasureLifetime = Callable[[RankWeights, int], float]
"""Mean lifetime under some weights in one replication, seconds."""

STEPS = (0.25, 0.125, 0.0625)
"""Steps of the lattice of weights, and of the finer ones."""
FIRST = 2
"""Replications of every candidate."""
FEW = 3
"""Candidates at which halving ends."""
SHORT = 4
"""Share of the replications, as its inverse, in which the neighbours of the best are compared
before the better ones get all."""
CHECKS = 20
"""Replications in which the best is compared with the default, none of them used before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedWeights:
    """
    Weights that were found.

    Parameters
    ----------
    best_lifetime, default_lifetime
        Mean lifetimes under them, seconds, over replications that played no part in the search.
    gain
        Difference of the mean lifetimes, default less best, seconds, pair by pair.
    tried
        Weights with their mean lifetime and number of replications in the search.
    """

    best: RankWeights
    default: RankWeights
    best_lifetime: ConfidenceInterval
    default_lifetime: ConfidenceInterval
    gain: ConfidenceInterval
    tried: tuple[tuple[RankWeights, float, int], ...] = field(repr=False)


class WeightSearch:
    """
    Looks for the weights with the shortest lifetimes.

    Parameters
    ----------
    measure
        A function of weights and replication; always the same for the same.
    on_progress
        Called with the number of simulations done, and the most that there will be.
    """

    def __init__(
        self,
        measure: MeasureLifetime,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._measure = measure
        self._report_progress = on_progress
        self._found: dict[RankWeights, list[float]] = {}
        self._done = 0
        self._total = max_simulations()

    def run(self, default: RankWeights) -> TunedWeights:
        """
        The best, against the default.

        It is the default itself where nothing was better.
        """
        candidates = weight_lattice(STEPS[0])
        if default not in candidates:
            candidates.append(default)
        replications = FIRST
        while True:
            candidates = self._ranked(candidates, replications)
            if len(candidates) <= FEW:
                break
            candidates = candidates[: max(FEW, len(candidates) // 2)]
            replications *= 2
        best = candidates[0]
        for step in STEPS[1:]:
            near = self._ranked(neighbouring_weights(best, step), replications // SHORT)[:FEW]
            best = self._ranked([best, *near], replications)[0]
        return self._compared(best, default, first=replications)

    def _ranked(self, candidates: Sequence[RankWeights], replications: int) -> list[RankWeights]:
        """Return the candidates by mean lifetime, best first."""
        for weights in candidates:
            found = self._found.setdefault(weights, [])
            for replication in range(len(found), replications):
                found.append(self._once(weights, replication))
        return sorted(candidates, key=lambda w: float(np.mean(self._found[w][:replications])))

    def _compared(self, best: RankWeights, default: RankWeights, first: int) -> TunedWeights:
        # Replications that the search has not seen: the best of many candidates looks better than
        # it is on those that chose it.
        checks = range(first, first + CHECKS)
        ours = np.array([self._once(best, i) for i in checks])
        theirs = ours if best == default else np.array([self._once(default, i) for i in checks])
        self._report_progress(self._total, self._total)
        return TunedWeights(
            best=best,
            default=default,
            best_lifetime=interval(ours),
            default_lifetime=interval(theirs),
            # Pair by pair on common random numbers, whose noise is the same on both sides and
            # falls out.
            gain=interval(theirs - ours),
            tried=tuple((w, float(np.mean(v)), len(v)) for w, v in self._found.items()),
        )

    def _once(self, weights: RankWeights, replication: int) -> float:
        value = self._measure(weights, replication)
        self._done += 1
        self._report_progress(min(self._done, self._total), self._total)
        return value


def weight_lattice(step: float) -> list[RankWeights]:
    """Alpha and beta from 0 to 1; with alpha 1 beta counts for nothing, and is 0."""
    marks = [i * step for i in range(round(1 / step) + 1)]
    # With alpha 1 all values of beta are the same policy: one candidate for all of these.
    return [RankWeights(alpha=a, beta=b) for a in marks[:-1] for b in marks] + [
        RankWeights(alpha=1.0, beta=0.0)
    ]


def neighbouring_weights(weights: RankWeights, step: float) -> list[RankWeights]:
    """Neighbours a step away in either weight or both."""
    found: dict[RankWeights, None] = {}
    for a in (-step, 0.0, step):
        for b in (-step, 0.0, step):
            alpha, beta = weights.alpha + a, weights.beta + b
            if (a or b) and 0 <= alpha <= 1 and 0 <= beta <= 1:
                found[RankWeights(alpha=alpha, beta=beta)] = None
    return list(found)


def max_simulations() -> int:
    """Return how many simulations a search takes, at most."""
    left, replications, total = len(weight_lattice(STEPS[0])) + 1, FIRST, 0
    made = 0
    while True:
        total += left * (replications - made)
        made = replications
        if left <= FEW:
            break
        left = max(FEW, left // 2)
        replications *= 2
    near = 8 * (replications // SHORT) + FEW * (replications - replications // SHORT)
    return total + (len(STEPS) - 1) * near + 2 * CHECKS
