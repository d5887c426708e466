"""The answer when work may not start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """
    Why something may not start or be paid now.

    Parameters
    ----------
    reason
        One line for people.
    final
        True when asking again later cannot help, short of a larger budget.
    """

    reason: str
    final: bool
