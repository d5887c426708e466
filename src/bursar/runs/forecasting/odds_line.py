"""The line that tells when the odds of a goal fall under the confidence, and what would help."""

import math
import time
from dataclasses import dataclass
from typing import Literal

from bursar.forecasts.fan import ForecastFan
from bursar.model.campaign import Goal, odds_in_words
from bursar.report.tables import amount, amount_above, span_above

CLEAR = 0.1
"""Odds that lie so far under the confidence are told at once; others when they are found twice."""

RECOVERED = 0.5
"""Part of the way from the confidence to 1 that odds rise before another fall is told."""


class OddsWatch:
    """Notices when odds fall under the confidence: once for each fall, and again after recovery."""

    def __init__(self) -> None:
        self._is_low = False
        self._was_below = False
        self._confidence: float | None = None

    def has_fallen(self, fan: ForecastFan) -> bool:
        """Take in a forecast; return whether people are to be told now that the odds are low."""
        if fan.odds is None:
            return False
        if fan.odds >= fan.confidence:
            self._was_below = False
            if fan.odds >= fan.confidence + RECOVERED * (1 - fan.confidence):
                self._is_low = False
            return False
        # Draws vary: one forecast that is a little below may be chance.
        told = fan.odds < fan.confidence - CLEAR or self._was_below
        self._was_below = True
        if self._is_low or not told:
            return False
        self._is_low = True
        return True

    def goal_changed(self) -> None:
        """Forget what was told, since another goal has other odds."""
        self._is_low = self._was_below = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalRemedy:
    """
    A change by which a run keeps a goal with the confidence.

    Parameters
    ----------
    kind
        ``"processors"``: more of them, at one site. ``"deadline"``: a later one.
    odds
        Probability that the changed goal is kept.
    processors
        Number of additional processors.
    site
        Where they are.
    cost
        Currency units that the change costs, expected.
    deadline, budget
        Limits to ask for; None: as they are.
    """

    kind: Literal["processors", "deadline"]
    odds: float
    processors: int = 0
    site: str = ""
    cost: float | None = None
    deadline: float | None = None
    budget: float | None = None


def odds_line(
    run: str,
    fan: ForecastFan,
    goal: Goal,
    remedy: GoalRemedy | None,
    *,
    begin: float,
    currency: str,
) -> str:
    """
    Return the line for people.

    Parameters
    ----------
    run
        Name of the run or its path, as ``bursar amend`` takes it.
    begin
        When the run began, seconds since the epoch.
    """
    assert fan.odds is not None
    asked = f"{100 * fan.confidence:g} % asked"
    text = f"odds {odds_in_words(fan.odds)} to {_limits(goal, begin, currency)} ({asked})"
    if remedy is None:
        return text
    better = f"{odds_in_words(remedy.odds)} "
    if remedy.kind == "processors":
        plural = "" if remedy.processors == 1 else "s"
        better += f"with {remedy.processors} more processor{plural} at {remedy.site}"
        if remedy.cost is not None:
            sign = "+" if remedy.cost >= 0 else "-"
            better += f", {sign}{amount(abs(remedy.cost), currency)}"
    elif remedy.deadline is not None:
        better += f"by {clock_time(begin + remedy.deadline, begin)}"
    elif remedy.budget is not None:
        better += f"with a budget of {amount(amount_above(remedy.budget), currency)}"
    text = f"{text}; {better}"
    options = amend_options(remedy, currency)
    if not options:
        return text
    return f"{text}: bursar amend {run} {options}"


def amend_options(remedy: GoalRemedy, currency: str) -> str:
    """Return the options of ``bursar amend`` that ask for a remedy; empty: none is needed."""
    options = []
    if remedy.deadline is not None:
        options.append(f"--deadline {_duration(remedy.deadline)}")
    if remedy.budget is not None:
        options.append(f'--budget "{amount_above(remedy.budget):g} {currency}"')
    return " ".join(options)


def clock_time(moment: float, now: float) -> str:
    """Return a time of day, with seconds if near, with the date on another day."""
    then, today = time.localtime(moment), time.localtime(now)
    text = time.strftime("%H:%M:%S" if abs(moment - now) < 3600 else "%H:%M", then)
    return text if then[:3] == today[:3] else f"{time.strftime('%Y-%m-%d', then)} {text}"


def _limits(goal: Goal, begin: float, currency: str) -> str:
    parts = []
    if goal.deadline is not None:
        parts.append(f"end by {clock_time(begin + goal.deadline, begin)}")
    if goal.budget is not None:
        parts.append(f"stay within {amount(goal.budget, currency)}")
    return " and ".join(parts)


def _duration(seconds: float) -> str:
    """Return a duration as options take it, no shorter than it is."""
    whole = math.ceil(span_above(seconds))
    if whole < 600:
        return f"{whole}s"
    minutes = math.ceil(whole / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours}h{rest}m" if hours and rest else f"{hours}h" if hours else f"{rest}m"
