"""Goals of campaigns: deadline, budget and the trade-off between them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bursar.model.money import check_currency

BudgetAction = Literal["warn", "drain", "stop"]
"""At a share of the budget: say so; start nothing more; stop what runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """
    Deadline, budget and preference. All may be absent.

    Parameters
    ----------
    deadline
        Seconds from the start of the run; None for none. Positive.
    budget
        Currency units; None for none. Not negative.
    currency
        The budget's currency; None: the sites' own.
    trade_off
        Weight of cost against makespan, 0 (only time counts) to 1 (only cost),
        as alpha in HPDC'07 equation 8; None: no preference given.
    on_budget
        Share of the budget, in (0, 1], to what happens when spending reaches it.
    """

    deadline: float | None = None
    budget: float | None = None
    currency: str | None = None
    trade_off: float | None = None
    on_budget: Mapping[float, BudgetAction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.deadline is not None and not (0 < self.deadline < math.inf):
            raise ValueError(f"deadline must be positive, got {self.deadline}")
        if self.budget is not None and not (0 <= self.budget < math.inf):
            raise ValueError(f"budget must not be negative, got {self.budget}")
        if self.currency is not None:
            check_currency(self.currency)
        if self.trade_off is not None and not (0 <= self.trade_off <= 1):
            raise ValueError(f"trade_off must be between 0 and 1, got {self.trade_off}")
        for share in self.on_budget:
            if not (0 < share <= 1):
                raise ValueError(f"on_budget: a share must be in (0 %, 100 %], got {share:.0%}")
