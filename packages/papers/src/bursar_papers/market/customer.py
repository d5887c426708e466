"""
A customer of the simulated market: what its jobs are worth, and what it gives for one now.

The value of a job is the budget per job times a weight drawn evenly from 0.8 to 1.2. What
it gives for a job is the job's share, by value, of the money it has left, times 0.75 to
1.25 by urgency: the share of all processors that it needs from now on to be done in time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from bursar.market.trade_manager import TradeManager
from bursar.model.money import Micros

LOWEST, HIGHEST = 0.8, 1.2
"""Of the weights of jobs."""

EASY, HASTE = 0.75, 0.5
"""What a job's share of the money is multiplied by at no urgency, and what full urgency adds."""


@dataclass(slots=True, eq=False)
class MarketCustomer:
    """
    One broker with one campaign.

    Parameters
    ----------
    manager
        Its side of every deal.
    budget
        Micro-units.
    values
        Of each job in the order they come, micro-units.

    Attributes
    ----------
    waiting
        Jobs not bought for, in order.
    ended
        Jobs done, and when; seconds since the epoch.
    avoided
        Owners that failed, and until when nothing is bought there.
    heard
        What owners asked for a lot, by its name and owner, micro-units for each job;
        infinite where they did not have it. Nobody asks again for what was too dear.
    """

    manager: TradeManager
    budget: Micros
    values: tuple[Micros, ...]
    waiting: list[int] = field(init=False)
    ended: dict[int, float] = field(default_factory=dict)
    avoided: dict[str, float] = field(default_factory=dict)
    heard: dict[tuple[str, str], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.waiting = list(range(len(self.values)))

    @property
    def name(self) -> str:
        """Name of the customer."""
        return self.manager.name

    def limits(self, money: Micros, urgency: float, most: int) -> Mapping[int, Micros]:
        """
        Return the most that the customer pays for each of the next jobs.

        Parameters
        ----------
        money
            It has left, micro-units.
        urgency
            0 to 1.
        most
            How many jobs.
        """
        left = sum(self.values[job] for job in self.waiting)
        scale = (EASY + HASTE * urgency) * money / left if left else 0.0
        return {job: min(money, int(scale * self.values[job])) for job in self.waiting[:most]}

    def shaded(self, job: int, limit: Micros, reserve: Micros, rivals: int) -> Micros:
        """
        Return the customer's bid in a first-price sale.

        The equilibrium of bidders who do not know each other's values, drawn evenly from
        one range, and do know the reserve (Krishna 2009, Auction Theory, section 2.5).

        Parameters
        ----------
        limit
            What the job is worth to it now, micro-units.
        reserve
            Least price, micro-units.
        rivals
            Others who bid.
        """
        lowest = int(limit * LOWEST * self.budget / (len(self.values) * self.values[job]))
        if limit <= max(lowest, reserve):
            return limit
        if not rivals:
            return reserve
        n = rivals + 1
        width = float(limit - lowest)
        below = float(max(0, reserve - lowest))
        return limit - int((width**n - below**n) / (n * width**rivals))


def draw_values(seed: int, customer: int, jobs: int, budget: Micros) -> tuple[Micros, ...]:
    """Draw the values of a customer's jobs, independently of the other customers."""
    rng = np.random.default_rng([seed, customer])
    return tuple(int(w * budget / jobs) for w in rng.uniform(LOWEST, HIGHEST, jobs))
