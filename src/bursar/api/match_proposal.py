"""Forecast of what the resource broker can do for a campaign, before anything starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from bursar.api.matching import broker_now, group_alike_tasks
from bursar.broker.matchmaking.broker_interfaces import broker_job
from bursar.model.campaign import Campaign
from bursar.model.matching import Brokering
from bursar.model.money import Refusal
from bursar.model.replica import Replica
from bursar.model.site import SiteFacts
from bursar.planning.plan_choice import GoalCounterOffer


class MatchProposal:
    """
    Result of looking for a suitable site for every job of a campaign.

    Parameters
    ----------
    campaign
        Campaign to run.
    brokering
        Settings for matching.
    currency
        Currency of the sites.
    refused
        Reason why no site suits a job, by the task's id.
    """

    def __init__(
        self,
        campaign: Campaign,
        brokering: Brokering,
        currency: str,
        refused: Mapping[str, str],
    ) -> None:
        self.campaign = campaign
        self.brokering = brokering
        self.currency = currency
        self.refused = refused

    @property
    def feasible(self) -> bool:
        """Whether there is a site for each job, by what is known before the begin."""
        return not self.refused

    @property
    def reason(self) -> str:
        """The reason in one line."""
        if self.feasible:
            return f"each job goes to the site that the broker chooses: {self.brokering.choice}"
        (task, why), more = next(iter(self.refused.items())), len(self.refused) - 1
        others = f" (and {more} more)" if more else ""
        return f"no site for {task}{others}: {why}"

    @property
    def counter_offers(self) -> tuple[GoalCounterOffer, ...]:
        """No offers: another site is needed, or other requirements."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints; the keys are in the documentation."""
        return {
            "campaign": self.campaign.name,
            "tasks": len(self.campaign.workflow.tasks),
            "currency": self.currency,
            "choice": self.brokering.choice,
            "feasible": self.feasible,
            "reason": self.reason,
            "unmatched": [{"task": task, "reason": why} for task, why in self.refused.items()],
        }

    def print(self) -> None:
        """Print the reason."""
        from rich.console import Console

        style = "bold" if self.feasible else "bold red"
        Console().print(self.reason, style=style, highlight=False, markup=False)


def look_for_matches(
    campaign: Campaign,
    sites: Sequence[SiteFacts],
    brokering: Brokering,
    copies: Mapping[str, Sequence[Replica]],
) -> MatchProposal:
    """
    Ask the broker for a site for each job, before anything starts.

    Jobs that read files which other tasks are still to register are left out.

    Raises
    ------
    InputError
        When an expression is wrong.
    """
    broker = broker_now(sites, brokering, copies)
    tasks = campaign.workflow.tasks
    coming = {name for task in tasks for name in task.registers.values()}
    refused: dict[str, str] = {}
    for kind in group_alike_tasks([task for task in tasks if coming.isdisjoint(task.data)]):
        # Jobs of one kind fare alike: one question for each kind.
        match = broker.choose(broker_job(0, kind[0]))
        if isinstance(match, Refusal):
            refused |= dict.fromkeys((task.id for task in kind), match.reason)
    return MatchProposal(campaign, brokering, sites[0].currency, refused)
