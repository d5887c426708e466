"""Defines the actions that are due when spending reaches a share of the budget."""

from collections.abc import Mapping
from dataclasses import dataclass

from bursar.model.campaign import BudgetAction
from bursar.model.money import Micros


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """
    Tells the user about the spending.

    Parameters
    ----------
    reason
        One line for people.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class BudgetDrain:
    """
    Starts no more tasks; running ones go on.

    Parameters
    ----------
    reason
        One line for people.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class BudgetHalt:
    """
    Stops running tasks and releases the processors.

    Parameters
    ----------
    reason
        One line for people.
    site
        Where; empty for everywhere.
    """

    reason: str
    site: str = ""


BudgetEffect = BudgetWarning | BudgetDrain | BudgetHalt


class BudgetThresholds:
    """
    Holds the actions of a budget, each of which is due once.

    They look at what is spent, time already accrued included and holds left
    out: a hold is a worst case that mostly comes back, so a campaign whose
    tasks have generous limits would otherwise be warned at its first task.

    Parameters
    ----------
    budget
        Micro-units; None for no budget, where nothing is ever due.
    on_budget
        Share of the budget to action. Unless it says something else for the
        whole budget, everything stops there.
    """

    def __init__(self, budget: Micros | None, on_budget: Mapping[float, BudgetAction]) -> None:
        self._budget = budget
        actions: dict[float, BudgetAction] = {1.0: "stop", **on_budget}
        self._waiting = sorted(actions.items()) if budget else []

    def amend(self, budget: Micros | None) -> None:
        """Change the budget; actions already taken are not repeated."""
        self._budget = budget
        if not budget:
            self._waiting = []

    @property
    def next_due(self) -> float | None:
        """Micro-units spent at which the next action is due; None for never."""
        return self._waiting[0][0] * self._budget if self._waiting and self._budget else None

    def due(self, spent: Micros) -> list[BudgetEffect]:
        """Return the actions that ``spent`` has reached and that were not due before."""
        effects: list[BudgetEffect] = []
        while self._waiting and self._budget and spent >= self._waiting[0][0] * self._budget:
            share, action = self._waiting.pop(0)
            effects.append(_effect(action, f"{share:.3g}" if share < 0.01 else f"{share:.0%}"))
        return effects


def _effect(action: BudgetAction, share: str) -> BudgetEffect:
    if action == "warn":
        return BudgetWarning(f"{share} of the budget is spent")
    if action == "drain":
        return BudgetDrain(f"{share} of the budget is spent: nothing more starts")
    return BudgetHalt(f"{share} of the budget is spent: what runs is stopped")
