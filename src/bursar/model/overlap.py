"""How many processors slots offer together, and where that is too many."""

import math
from collections.abc import Iterable, Sequence

from bursar.model.slot import Slot

TOLERANCE = 1e-9
"""Relative. A slot that ends so little after another starts makes way for it."""


def peak_offered_processors(slots: Iterable[Slot]) -> int:
    """The most processors that slots of a site offer at the same moment; 0 without any."""
    return max((offered for _, offered in _offered(slots)), default=0)


def find_oversubscription(slots: Sequence[Slot], processors: int) -> tuple[float, list[int]] | None:
    """
    Where slots of a site are more together than the site has.

    An extensible slot counts to no end: its processors may be in use then.

    Returns
    -------
    tuple or None
        The first such moment, seconds, and the indices of the slots that are open
        then; None when there is no such moment.
    """
    for moment, offered in _offered(slots):
        if offered > processors:
            return moment, [i for i, slot in enumerate(slots) if slot.start <= moment < _last(slot)]
    return None


def _offered(slots: Iterable[Slot]) -> list[tuple[float, int]]:
    """Moments at which slots begin or end, in order, and the processors offered after each."""
    changes = []
    for slot in slots:
        changes += [(slot.start, slot.processors), (_last(slot), -slot.processors)]
    offered = 0
    steps: list[tuple[float, int]] = []
    for moment, change in sorted(changes):  # at one moment ends come first: they are negative
        offered += change
        steps.append((moment, offered))
    return steps


def _last(slot: Slot) -> float:
    """Last moment of use, seconds, or a little before."""
    if slot.extensible:
        return math.inf
    return max(slot.start, slot.end - TOLERANCE * max(1.0, abs(slot.end)))
