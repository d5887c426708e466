"""What the dispatcher asks of money before work starts and after it ends."""

import math
from collections.abc import Sequence
from typing import Protocol

from bursar.model.admission import Refusal
from bursar.model.outcome import Outcome
from bursar.model.transfer import Transfer


class SpendingGuard(Protocol):
    """
    Lets work start, and posts what it cost.

    Every call is made from the dispatcher's loop; times are epoch seconds.
    """

    def admit(self, task: int, lease: str, now: float) -> float | Refusal:
        """
        Whether a task may start now on a lease's processors.

        Returns
        -------
        float or Refusal
            Seconds it may run at most, infinite for no limit; or why it may not
            start. Money is set aside for it until it is settled.
        """

    def withdraw(self, task: int, now: float) -> None:
        """An admitted task was not started after all."""

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        """
        Tasks ended.

        Returns
        -------
        sequence of Transfer
            Journalled in the same transaction as the outcomes.
        """

    def transfers(self) -> Sequence[Transfer]:
        """Movements made by admissions since last asked; journalled before the work is sent."""


class UnlimitedSpending:
    """Lets everything start, for nothing."""

    def admit(self, task: int, lease: str, now: float) -> float | Refusal:
        """No limit."""
        return math.inf

    def withdraw(self, task: int, now: float) -> None:
        """Nothing was set aside."""

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        """Nothing is owed."""
        return ()

    def transfers(self) -> Sequence[Transfer]:
        """Nothing moved."""
        return ()
