"""
Scores of recorded executions, for users who have few scores of their own.

The intervals of a model alone are too narrow for campaigns that it was not made on. Forecasts of
recorded executions miss in ways that say by how much: their scores are in ``score_prior.json``
beside this module, a few quantiles for each workflow. ``benchmarks/score_prior.py`` makes the file.
"""

from functools import cache
from importlib.resources import files
from statistics import NormalDist
from typing import NamedTuple

import msgspec

from bursar.forecasts.calibration import ENOUGH, HIGH, WEIGHT_OF_OTHERS, EarlierScore


class RecordedScores(NamedTuple):
    """Scores of forecasts of the ends and of the costs of recorded executions."""

    end: tuple[EarlierScore, ...]
    cost: tuple[EarlierScore, ...]


class ScoreTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Scores of recorded executions: by basis, share of the tasks done, and workflow.

    Parameters
    ----------
    end, cost
        Quantiles of the scores, equally far apart, ascending.
    """

    end: dict[str, dict[float, dict[str, list[float]]]]
    cost: dict[str, dict[float, dict[str, list[float]]]]

    def scores(self, basis: str, share: float, without: str = "") -> RecordedScores:
        """
        Return the scores of a basis at the nearest share.

        Each workflow counts as much as any other, however often it was executed: the next campaign
        is another workflow rather than another execution of one of these.

        Parameters
        ----------
        without
            Workflow that is left out; empty: none is.
        """
        return RecordedScores(
            end=_weighted(self.end.get(basis, {}), share, without),
            cost=_weighted(self.cost.get(basis, {}), share, without),
        )


def _weighted(
    by_share: dict[float, dict[str, list[float]]], share: float, without: str
) -> tuple[EarlierScore, ...]:
    if not by_share:
        return ()
    nearest = min(by_share, key=lambda one: abs(one - share))
    chosen = [_widened(own) for name, own in by_share[nearest].items() if name != without]
    # Together they weigh as much as ENOUGH runs of other campaigns do.
    return tuple(
        EarlierScore(score, WEIGHT_OF_OTHERS, ENOUGH / (len(chosen) * len(scores)))
        for scores in chosen
        for score in scores
    )


def _widened(scores: list[float]) -> list[float]:
    """
    Return quantiles of scores, no nearer to the median than the draws of a forecast are.

    The model was made on these executions, so that their scores show how far forecasts of other
    campaigns miss at least, and are no reason for a narrower interval than its own.
    """
    unit = NormalDist().inv_cdf(HIGH)
    found = []
    for number, score in enumerate(scores):
        own = NormalDist().inv_cdf((number + 0.5) / len(scores)) / unit
        found.append(max(score, own) if own > 0 else min(score, own))
    return found


@cache
def recorded_table() -> ScoreTable:
    """Return the table that comes with the package."""
    text = files("bursar.forecasts").joinpath("score_prior.json").read_bytes()
    return msgspec.json.decode(text, type=ScoreTable)


def recorded_scores(basis: str, share: float) -> RecordedScores:
    """
    Return the scores of forecasts of recorded executions that are most like one.

    Parameters
    ----------
    basis
        What the run times are known from.
    share
        Share of the tasks that have ended.
    """
    return recorded_table().scores(basis, share)
