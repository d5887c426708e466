"""
Decide by one rule whether a figure of ours is equivalent to what a paper states.

A comparison names, before anything is measured, the bounds within which ours counts as the
paper's. Then it

- *agrees* when the whole 95 % interval of ours lies within the bounds,
- *differs* when the whole interval lies outside,
- is *open* otherwise: the measurement is too coarse to tell.

A claim with one side ("at least as good", "never slower") has one bound. A figure without any
chance in it has a point for an interval. So noise earns nothing: a wide interval is open.

References
----------
.. [1] Schuirmann (1987). A comparison of the two one-sided tests procedure and the power
   approach for assessing the equivalence of average bioavailability. Journal of
   Pharmacokinetics and Biopharmaceutics 15(6): 657-680.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from bursar_papers.summary import Summary, rounded

Judgement = Literal["agrees", "differs", "open"]
Uncounted = Literal["identity", "calibrated", "impossible"]
"""
Why a comparison does not count: it is true by construction; its figure, or one that it follows
from, was used to set our model; or what is published cannot be in the paper's own model.
"""

RELATIVE = 0.05
"""Share of a stated figure by which ours may differ, unless a study states a narrower one."""
POINTS = 5.0
"""Points by which a percentage of ours may differ from a stated one."""
EFFECT = 0.25
"""Share of a small percentage by which ours may differ, so that no effect is not an effect."""

ABOVE, BELOW = 1e-9, -1e-9
"""
Bounds of what is more, and less, than nothing. ``at_least=BELOW`` is the bound of "at least as
good": equal figures are, and a mean whose interval reaches below is open.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """
    A figure of ours with an interval, and the bounds within which both figures agree.

    Parameters
    ----------
    name
        What tells it from the others of the same finding, with its unit; may be empty.
    mean, low, high
        The figure and its 95 % interval, in the unit of the finding; the interval of a figure
        without chance is a point, that of a single random value infinite.
    at_least, at_most
        Bounds, in the same unit; infinite where there is none.
    """

    name: str = ""
    mean: float
    low: float
    high: float
    at_least: float = -math.inf
    at_most: float = math.inf

    @property
    def judgement(self) -> Judgement:
        """Agrees where the interval lies within the bounds, differs outside, open otherwise."""
        if self.at_least <= self.low and self.high <= self.at_most:
            return "agrees"
        return "differs" if self.high < self.at_least or self.low > self.at_most else "open"

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON, in which an infinite bound is null."""
        figures = {"mean": self.mean, "low": self.low, "high": self.high}
        bounds = {"at_least": self.at_least, "at_most": self.at_most}
        finite = {k: v if math.isfinite(v) else None for k, v in (figures | bounds).items()}
        return {"name": self.name} | finite


def compare_with_bounds(
    ours: Summary | float,
    at_least: float = -math.inf,
    at_most: float = math.inf,
    *,
    name: str = "",
) -> Comparison:
    """
    Compare a figure with bounds.

    Parameters
    ----------
    ours
        A sample, of whose mean the interval is taken, or a figure without chance. A sample
        without values leaves the comparison open.
    at_least, at_most
        Bounds, in the unit of the figure; infinite where there is none.
    name
        What is compared, where a finding has several comparisons.
    """
    if isinstance(ours, Summary):
        low, high = ours.mean - ours.half_width, ours.mean + ours.half_width
        # An infinite interval leaves the comparison open.
        if math.isnan(ours.mean):  # nothing was measured
            low, high = -math.inf, math.inf
        mean = ours.mean
    else:
        mean = low = high = float(ours)
    return Comparison(name=name, mean=mean, low=low, high=high, at_least=at_least, at_most=at_most)


def compare_with_stated(
    ours: Summary | float, stated: float, *, share: float = RELATIVE, name: str = ""
) -> Comparison:
    """Compare with a stated figure, from which ours may differ by a share."""
    margin = share * abs(stated)
    return compare_with_bounds(ours, stated - margin, stated + margin, name=name)


def compare_per_cent(ours: Summary | float, stated: float, *, name: str = "") -> Comparison:
    """Compare percentages: within :data:`POINTS`, or within :data:`EFFECT` if that is less."""
    # Five points of a stated 4 % would let "no effect" agree.
    margin = min(POINTS, EFFECT * abs(stated))
    return compare_with_bounds(ours, stated - margin, stated + margin, name=name)


def describe_comparison(comparison: Comparison) -> str:
    """Describe a comparison by name, figure and half the interval."""
    width = comparison.high - comparison.mean
    spread = f" ± {rounded(width)}" if width else ""
    return f"{comparison.name} {rounded(comparison.mean, 4)}{spread}".strip()


def combine_judgements(judgements: Iterable[Judgement]) -> Judgement:
    """Say of several comparisons: agrees if all do, differs if one does, else open."""
    found = set(judgements)
    if "differs" in found:
        return "differs"
    return "open" if "open" in found else "agrees"
