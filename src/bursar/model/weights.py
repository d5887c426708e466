"""How much the terms of a rank weigh."""

from dataclasses import dataclass

from bursar.model.matching import Matching


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWeights:
    """
    Weights of a rank (Cavalieri et al. 2003, equations 1 and 3).

    Parameters
    ----------
    alpha
        Of the rank expression, against the files; from 0 to 1.
    beta
        Of access to files, against bringing them; from 0 to 1.

    Raises
    ------
    ValueError
        When one is out of range.
    """

    alpha: float = 0.5
    beta: float = 0.5

    def __post_init__(self) -> None:
        Matching(alpha=self.alpha, beta=self.beta)  # says what is wrong
