"""Describes how the resource broker brings a run's jobs to sites."""

import math
from dataclasses import dataclass
from typing import Literal

from bursar.model.matching import CHOICES, Matching


@dataclass(frozen=True, slots=True, kw_only=True)
class Brokering:
    """
    Matchmaking settings of all jobs that state none of their own.

    Parameters
    ----------
    choice
        Name of the rule by which one of the matching sites is chosen.
    alpha, beta
        Weights of the rank, see :class:`bursar.model.matching.Matching`.
    catalogue
        File of the replica catalogue; None: there is none.
    refresh
        Seconds between two times that the information index asks a site. Positive.
    rank_by
        Whether ranks are made of what a ``"site"`` says when it is asked then, or of what the
        ``"index"`` knows.
    seed
        Seed of random choices.

    Raises
    ------
    ValueError
        When a value is out of range.
    """

    choice: str = CHOICES[0]
    alpha: float = 0.5
    beta: float = 0.5
    catalogue: str | None = None
    refresh: float = 5.0
    rank_by: Literal["site", "index"] = "site"
    seed: int = 0

    def __post_init__(self) -> None:
        Matching(choice=self.choice, alpha=self.alpha, beta=self.beta)  # says what is wrong
        if not 0 < self.refresh < math.inf:
            raise ValueError(f"refresh must be finite and positive, got {self.refresh}")
        if self.seed < 0:
            raise ValueError(f"seed must not be negative, got {self.seed}")
