"""The interface that admits the dispatcher's spending before work and settles costs afterwards."""

from collections.abc import Sequence
from typing import Protocol

from bursar.model.money import Refusal, Transfer
from bursar.model.task import Outcome


class SpendingGuard(Protocol):
    """
    Admits work and settles costs.

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
        """Release the money of an admitted task that was not started after all."""

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        """
        Settle the cost of tasks that have ended.

        Returns
        -------
        sequence of Transfer
            Movements of money, to be journalled in the same transaction as the outcomes.
        """

    def transfers(self) -> Sequence[Transfer]:
        """Return movements since the last call; to be journalled before the work is sent."""
