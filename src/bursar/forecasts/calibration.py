"""
Distributions of a forecast, corrected by how earlier forecasts came out.

A forecast is draws of a quantity that lies ahead: seconds until a campaign ends, money that is
still to be spent. Past forecasts have scores: how far the truth lay from the median, in units of
the distance from the median to the forecast's own 5 % or 95 % quantile. If the next score is as
likely as each of those before to stand at any place among them, the share of them below a bound is
the probability that the bound holds, whatever the distribution is (conformal prediction). The next
score is one of them: of n runs with equal weights a bound at the k-th score holds with probability
k / (n + 1). What counts is runs, since the scores of one run share its truth. Few scores say
little, so that the draws themselves count as some scores, too, and so do scores of recorded
executions (:mod:`bursar.forecasts.score_prior`) while a user has few of their own.

References
----------
.. [1] Lei, G'Sell, Rinaldo, Tibshirani, Wasserman (2018). Distribution-free predictive inference
   for regression. JASA 113, section 2 (split conformal prediction) and section 5.2 (scores in units
   of a forecast's own spread).
.. [2] Gibbs, Candes (2021). Adaptive conformal inference under distribution shift. NeurIPS 34.
.. [3] Dunn, Wasserman, Ramdas (2023). Distribution-free prediction sets for two-layer hierarchical
   models. JASA 118, section 3 (groups that share a truth, each of the same weight).
.. [4] Barber, Candes, Ramdas, Tibshirani (2023). Conformal prediction beyond exchangeability.
   Annals of Statistics 51, section 3 (the next score among weighted ones).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LOW, HIGH = 0.05, 0.95
"""Shares whose distance from the median is the unit of scores."""

WEIGHT_OF_DRAWS = 2.0
"""Number of scores that the draws of a forecast count for."""

WEIGHT_OF_OTHERS = 0.3
"""Weight of the score of another campaign's forecast."""

BEYOND = 0.25
"""Distance to the farthest score that is thought of, as a share of the distance of all known."""

ENOUGH = 20
"""
Runs of a user's own whose scores replace those of recorded executions; each an equal part of them.
"""

MEMORY = 300
"""Scores that a correction looks at, the newest."""

NEAREST = 0.02
"""Smallest unit of scores (logarithm): no forecast is sure to less than two per cent."""

FARTHEST = 2.0
FARTHER = 0.25
"""Farthest score that counts as what it is, without any run and with each further one."""

MOST_FACTOR = math.log(10.0)
"""
Distance from the median to which scores of recorded executions move a quantile, at most, unless the
draws go further themselves (logarithm).
"""

LEAST = 1e-6
"""Smallest quantity; less counts as much, since scores compare factors."""


class EarlierScore(NamedTuple):
    """
    Score of an earlier forecast.

    Parameters
    ----------
    score
        How far the truth lay from the median; see :meth:`Distribution.score`.
    weight
        1 for a forecast of the same campaign, :data:`WEIGHT_OF_OTHERS` for one of another.
    part
        Part of a run that the score stands for: scores that share a run's truth add up to one.
    """

    score: float
    weight: float = 1.0
    part: float = 1.0

    @classmethod
    def of_found(cls, found: Sequence[tuple[float, bool]]) -> "list[EarlierScore]":
        """Return scores that come with whether they are of forecasts of the same campaign."""
        return [cls(score, 1.0 if is_own else WEIGHT_OF_OTHERS) for score, is_own in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """
    Distribution of a quantity that is not negative.

    Parameters
    ----------
    draws
        Draws of the quantity, ascending, at least one; those that are infinite never come.
    scores
        Scores of earlier forecasts, ascending; empty: none is known.
    weights
        Weight of each score.
    unseen
        Weight of the score that this forecast will have, which may stand below all or above all.
    offset
        What has come already: seconds since the begin, money spent. Added to each quantile.
    """

    draws: FloatArray
    scores: FloatArray = field(default_factory=lambda: np.zeros(0))
    weights: FloatArray = field(default_factory=lambda: np.zeros(0))
    unseen: float = 0.0
    offset: float = 0.0

    @classmethod
    def of(
        cls,
        draws: FloatArray,
        *,
        scores: Sequence["EarlierScore"] = (),
        prior: Sequence["EarlierScore"] = (),
        offset: float = 0.0,
    ) -> "Distribution":
        """
        Return the distribution of draws in any order.

        Parameters
        ----------
        scores
            Scores of the user's earlier forecasts, newest last.
        prior
            Scores of other people's campaigns, which these replace as they come: none of the prior
            is left with :data:`ENOUGH` runs.
        """
        draws = np.sort(np.asarray(draws, dtype=np.float64))
        newest = [one._replace(weight=one.weight * one.part) for one in scores[-MEMORY:]]
        runs = sum(one.part for one in newest)
        # One run that missed badly must not make the next forecast absurd.
        most = FARTHEST + FARTHER * runs
        left = max(1 - runs / ENOUGH, 0.0)
        quantiles = _own_quantiles(draws)
        if not math.isfinite(sum(quantiles)):
            # Of what never comes in many draws there is no distance to the median.
            return cls(draws=draws, offset=offset)
        known = list(newest)
        if prior and left:
            _, low, high = _units_of(quantiles)
            # Draws that are spread widely are not spread to absurd values.
            down, up = -max(MOST_FACTOR / low, 1.0), max(MOST_FACTOR / high, 1.0)
            known += [
                EarlierScore(min(max(one.score, down), up), one.weight * one.part * left)
                for one in prior
            ]
        known.sort()
        return cls(
            draws=draws,
            scores=np.array([min(max(one.score, -most), most) for one in known]),
            weights=np.array([one.weight for one in known]),
            # The next run is one like the user's: it weighs what these do on average.
            unseen=sum(one.weight for one in newest) / runs if runs else 0.0,
            offset=offset,
        )

    def quantile(self, share: float) -> float:
        """Return the value that the quantity does not exceed with this probability."""
        if not len(self.scores):
            return self.offset + _own_quantile(self.draws, share)
        values, places = self._placed_scores()
        return self.offset + self._value(float(np.interp(share, places, values)))

    def probability(self, most: float) -> float:
        """Return the probability that the quantity, with what has come, is at most this."""
        ahead = most - self.offset
        if ahead < 0:
            return 0.0
        if not len(self.scores):
            # The share of draws, with half a draw at each end: nothing is certain.
            below = float(np.searchsorted(self.draws, ahead, side="right"))
            return _inner(below, len(self.draws), float(self.draws[-1]) == ahead)
        values, places = self._placed_scores()
        return float(np.interp(self.score(most), values, places))

    def mean(self) -> float:
        """Return the mean of the draws with what has come already, without any correction."""
        return self.offset + float(self.draws.mean())

    def score(self, truth: float) -> float:
        """Return how far a truth lies from the median, 1 being as far as the 95 % quantile."""
        return score_beside(truth - self.offset, self.own_quantiles())

    def own_quantiles(self) -> tuple[float, float, float]:
        """Return the 5 %, 50 % and 95 % quantiles of the draws, without what has come already."""
        return _own_quantiles(self.draws)

    def _units(self) -> tuple[float, float, float]:
        return _units_of(self.own_quantiles())

    def _value(self, score: float) -> float:
        middle, low, high = self._units()
        return math.exp(min(middle + score * (high if score > 0 else low), 700.0))

    def _placed_scores(self) -> tuple[FloatArray, FloatArray]:
        """
        Return scores, ascending, and the probability that the next score is below each.

        The next score falls into each gap between known ones with equal probability, those before
        the first and after the last included. That is so by its own weight, half of which lies
        below all others and half above.
        """
        middle, low, high = self._units()
        moved = np.log(np.maximum(self.draws, LEAST)) - middle
        own = np.where(moved > 0, moved / high, moved / low)
        values = np.concatenate([self.scores, own])
        weights = np.concatenate([self.weights, np.full(len(own), WEIGHT_OF_DRAWS / len(own))])
        order = np.argsort(values, kind="stable")
        values, weights = values[order], weights[order]
        places = np.cumsum(weights) - weights / 2 + self.unseen / 2
        places /= weights.sum() + self.unseen
        beyond = BEYOND * max(float(values[-1] - values[0]), 1e-9)
        values = np.concatenate([[values[0] - beyond], values, [values[-1] + beyond]])
        return values, np.concatenate([[0.0], places, [1.0]])


def score_beside(ahead: float, quantiles: tuple[float, float, float]) -> float:
    """
    Return the score of a truth by the quantiles of a forecast that is not at hand any more.

    Parameters
    ----------
    ahead
        What came after the forecast was made.
    quantiles
        As :meth:`Distribution.own_quantiles` returned them.
    """
    middle, low, high = _units_of(quantiles)
    moved = math.log(max(ahead, LEAST)) - middle
    return moved / (high if moved > 0 else low)


def _units_of(quantiles: tuple[float, float, float]) -> tuple[float, float, float]:
    """Return the logarithm of the median, and the distances to the quantiles on each side."""
    low, middle, high = (math.log(max(value, LEAST)) for value in quantiles)
    return middle, max(middle - low, NEAREST), max(high - middle, NEAREST)


def _own_quantiles(draws: FloatArray) -> tuple[float, float, float]:
    low, middle, high = (_own_quantile(draws, share) for share in (LOW, 0.5, HIGH))
    return low, middle, high


def _own_quantile(draws: FloatArray, share: float) -> float:
    place = min(max(share, 0.0), 1.0) * len(draws) - 0.5
    low = min(max(math.floor(place), 0), len(draws) - 1)
    high = min(low + 1, len(draws) - 1)
    part = min(max(place - low, 0.0), 1.0)
    if not part or draws[low] == draws[high]:
        return float(draws[low])
    return float(draws[low] + part * (draws[high] - draws[low]))


def _inner(below: float, count: int, is_last: bool) -> float:
    """Return the share of draws below a value, a little inside of 0 and 1 but for sure things."""
    if is_last or below not in (0.0, float(count)):
        return below / count
    return 0.5 / (count + 1) if below == 0.0 else 1 - 0.5 / (count + 1)
