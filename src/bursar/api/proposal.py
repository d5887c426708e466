"""The result of ``plan``: the trade-off curve and the plan that the goal picks of it."""

from pathlib import Path
from typing import Any

from bursar.model.campaign import Campaign
from bursar.model.errors import InputError
from bursar.model.plan import Plan
from bursar.planning.front import ParetoFront
from bursar.planning.plan_choice import GoalCounterOffer, PlanChoice


class Proposal:
    """
    A campaign with the trade-off curve and the plan that the goal picks.

    Parameters
    ----------
    campaign
        Campaign to plan.
    front
        Options worth choosing from, with lower bounds.
    choice
        Option that the goal picks, with the reason; or the counter-offers.
    """

    def __init__(self, *, campaign: Campaign, front: ParetoFront, choice: PlanChoice) -> None:
        self.campaign = campaign
        self.front = front
        self.choice = choice

    @property
    def chosen(self) -> Plan | None:
        """The plan that the goal picks; None when no plan meets the goal."""
        return self.choice.plan

    @property
    def reason(self) -> str:
        """Reason for the choice in one line."""
        return self.choice.reason

    @property
    def feasible(self) -> bool:
        """Whether some plan meets the goal."""
        return not self.choice.infeasible

    @property
    def counter_offers(self) -> tuple[GoalCounterOffer, ...]:
        """Counter-offers in place of a goal that is out of reach."""
        return self.choice.counter_offers

    def nearest(self) -> Plan:
        """Return the plan that comes nearest to a goal out of reach."""
        from bursar.planning.plan_choice import best_effort
        from bursar.planning.trade_off_solver import plan_option

        return plan_option(self.front, best_effort(self.front, self.campaign.goal))

    def to_dict(self) -> dict[str, Any]:
        """Return what ``bursar plan --json`` prints; the keys are in the documentation."""
        from bursar.report.plan_table import plan_to_dict

        return plan_to_dict(self.campaign, self.front, self.choice)

    def print(self) -> None:
        """Print the curve as a table, the bounds, the choice and the reason."""
        from bursar.report.plan_table import print_plan

        print_plan(self.campaign, self.front, self.choice)

    def check(self) -> list[str]:
        """
        Return the faults of the curve's plans; any fault is a defect of Bursar.

        Each is worked out in full and held against the campaign and the sites by
        rules written for nothing else (:mod:`bursar.planning.validation`).
        """
        from bursar.planning.trade_off_solver import plan_option
        from bursar.planning.validation import violations

        front = self.front
        return [
            f"plan {number}: {violation}"
            for number, option in enumerate(front.options, 1)
            if option.makespan is not None
            for violation in violations(
                plan_option(front, option), front.workflow, front.sites, front.overhead
            )
        ]

    def save(self, path: str | Path) -> None:
        """
        Write the curve as a chart, with the chosen plan below.

        Parameters
        ----------
        path
            ``.html``, ``.png`` or ``.svg``.

        Raises
        ------
        InputError
            When the suffix is none of these.
        BursarError
            When the file cannot be written.
        """
        from bursar.report.charts import SAVED_AS, proposal_chart, save_chart

        path = Path(path)
        if path.suffix not in SAVED_AS:
            raise InputError(
                f'a chart is saved as {", ".join(SAVED_AS)}, got "{path.suffix}"', where=str(path)
            )
        save_chart(proposal_chart(self.front, self.choice), path)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Show the proposal as a chart in a notebook."""
        from bursar.report.charts import front_chart, mimebundle

        return mimebundle(front_chart(self.front, self.choice))
