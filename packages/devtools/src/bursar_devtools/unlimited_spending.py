"""A spending guard without a budget, for tests and benchmarks of the dispatcher."""

import math
from collections.abc import Sequence

from bursar.model.money import Refusal, Transfer
from bursar.model.task import Outcome


class UnlimitedSpending:
    """Admits every task, at no cost."""

    def admit(self, task: int, lease: str, now: float) -> float | Refusal:
        """Admit the task without a limit of time."""
        return math.inf

    def withdraw(self, task: int, now: float) -> None:
        """Do nothing: no money was set aside."""

    def settle(self, outcomes: Sequence[Outcome], now: float) -> Sequence[Transfer]:
        """Return no transfers: nothing is owed."""
        return ()

    def transfers(self) -> Sequence[Transfer]:
        """Return no transfers: no money has moved."""
        return ()
