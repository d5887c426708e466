"""The quote of a campaign: what a policy would take and cost, or why not and what instead."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bursar.api.measured_runtimes import ProbeSummary
from bursar.broker.policy_choice import SupplyPolicy
from bursar.forecasts.fan import forecast_to_dict
from bursar.model.campaign import Campaign, Workflow
from bursar.model.errors import BursarError, Infeasible, InputError
from bursar.model.plan import Plan
from bursar.planning.front import ParetoFront
from bursar.planning.plan_choice import GoalCounterOffer, PlanChoice

if TYPE_CHECKING:
    from bursar.api.known_campaign import ForeseenCampaign
    from bursar.api.plan_forecasts import PlanForecasts
    from bursar.forecasts.campaign_forecast import CampaignForecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """
    Time and cost of a campaign under one policy, or a refusal with counter-offers.

    Parameters
    ----------
    campaign
        Campaign that is quoted, with the goal to serve.
    policy
        Policy that brings processors to the tasks.
    currency
        Currency of every amount.
    feasible
        Whether the goal can be met, as far as anything is known before the begin.
    reason
        Reason for the choice, or for the refusal, in one line.
    counter_offers
        Counter-offers in place of a goal that is out of reach.
    makespan
        Expected end of the last task, seconds from the begin; None when unknown.
    cost
        Expected cost of the whole run, currency units; None when unknown.
    jobs
        Number of the tasks left that are expected to end within the limits; None: no forecast.
    note
        Expectation in words; empty where the policy forecasts none.
    chosen
        Plan that the goal picks; None when no plan was made or none meets the goal.
    trade_off
        Trade-off curve with proven bounds, and what the goal picks; None where no plan is made.
    unmatched
        Reason for each task that no site would have, by the task's id.
    probe
        What was measured of tasks without a runtime; None: nothing was.
    foreseen
        What earlier runs say of the campaign; None: nothing.
    forecasts
        Forecasts of the plans; None: nothing is known but the stated run times.
    forecast
        Forecast of the policy where it is not that of a plan, as of a strategy or a pool; None:
        there is none.
    """

    campaign: Campaign
    policy: SupplyPolicy = field(default_factory=SupplyPolicy)
    currency: str
    feasible: bool = True
    reason: str = ""
    counter_offers: tuple[GoalCounterOffer, ...] = ()
    makespan: float | None = None
    cost: float | None = None
    jobs: int | None = None
    note: str = ""
    chosen: Plan | None = field(default=None, repr=False)
    trade_off: tuple[ParetoFront, PlanChoice] | None = field(default=None, repr=False)
    unmatched: Mapping[str, str] = field(default_factory=dict)
    probe: ProbeSummary | None = None
    foreseen: "ForeseenCampaign | None" = field(default=None, repr=False)
    forecasts: "PlanForecasts | None" = field(default=None, repr=False)
    forecast: "CampaignForecast | None" = field(default=None, repr=False)

    @classmethod
    def of_front(
        cls, campaign: Campaign, front: ParetoFront, choice: PlanChoice, policy: SupplyPolicy
    ) -> "Quote":
        """Return the quote of a trade-off curve and the plan that the goal picks of it."""
        return cls(
            campaign=campaign,
            policy=policy,
            currency=front.currency,
            feasible=not choice.infeasible,
            reason=choice.reason,
            counter_offers=choice.counter_offers,
            makespan=None if choice.plan is None else choice.plan.makespan,
            cost=None if choice.plan is None else choice.plan.cost,
            chosen=choice.plan,
            trade_off=(front, choice),
        )

    @property
    def front(self) -> ParetoFront:
        """
        Trade-off curve of the plans that could be had.

        Raises
        ------
        BursarError
            When no plan was made, since the policy decides on the way.
        """
        return self._planned()[0]

    @property
    def choice(self) -> PlanChoice:
        """Option of the curve that the goal picks; errors as for :attr:`front`."""
        return self._planned()[1]

    def _planned(self) -> tuple[ParetoFront, PlanChoice]:
        if self.trade_off is None:
            raise BursarError(f"{self.policy} decides on the way: there is no plan")
        return self.trade_off

    def machines(self) -> list[Any]:
        """
        Return the machines of clouds that the plan buys; none where there is no plan.

        Each is a :class:`bursar.sites.cloud.machine_choice.PlannedMachines`.
        """
        if self.chosen is None or self.trade_off is None:
            return []
        sites = self.trade_off[0].sites
        if all(site.cloud is None for site in sites):
            return []
        from bursar.sites.cloud.machine_choice import planned_machines  # late: few sites are clouds

        return planned_machines(self.chosen, sites)

    def data(self) -> list[Any]:
        """
        Return the data that the plan is known to carry where that has a price.

        Each is a :class:`bursar.sites.cloud.data_charges.PlannedData`.
        """
        if self.chosen is None or self.trade_off is None:
            return []
        sites = [site for site in self.trade_off[0].sites if site.data_prices is not None]
        if not sites:
            return []
        from bursar.sites.cloud.data_charges import planned_data  # late: few sites are clouds

        tasks = self.campaign.workflow.tasks
        return planned_data(self.chosen, tasks, sites, self.campaign.root)

    def purchase_lines(self) -> list[str]:
        """Return what the plan buys of clouds, a line for each type of machine and for data."""
        lines = [machines.words(self.currency) for machines in self.machines()]
        if carried := self.data():
            from bursar.report.bill import data_words

            for one in carried:
                words = data_words(one.bytes_in, one.bytes_out, one.prices)
                lines.append(f"{one.site}: {words}: {one.cost:.6g} {self.currency} as far as known")
        return lines

    def nearest(self) -> Plan:
        """Return the plan that comes nearest to a goal out of reach."""
        from bursar.planning.plan_choice import best_effort
        from bursar.planning.trade_off_solver import plan_option

        return plan_option(self.front, best_effort(self.front, self.campaign.goal))

    def plan_to_follow(self) -> Plan:
        """Return what a run follows: the plan, or only expectations where a policy decides."""
        plan = self.chosen
        if plan is None and self.trade_off is not None:
            plan = self.nearest()
        if plan is not None and self.policy.kind != "pool":
            return plan
        makespan, cost = self.makespan, self.cost
        if plan is not None and self.forecast is None:
            makespan, cost = plan.makespan, plan.cost
        return Plan.on_the_way(self.currency, str(self.policy), makespan, cost)

    def check_goal(self) -> None:
        """
        Refuse a goal that is out of reach.

        Raises
        ------
        GoalOutOfReach
            With this quote.
        """
        if not self.feasible:
            raise GoalOutOfReach(self)

    def counter_offer(
        self, kind: str, campaign: Campaign
    ) -> "tuple[GoalCounterOffer, Campaign] | None":
        """
        Return the counter-offer of a kind, and the campaign that takes it; None: there is none.

        Parameters
        ----------
        kind
            ``"time"``, ``"budget"`` or ``"share"``.
        campaign
            What was asked for. It gets the goal of the offer; of a share it keeps the goal and
            loses tasks, unless a strategy decides which jobs fit.
        """
        offer = next((one for one in self.counter_offers if one.kind == kind), None)
        if offer is None:
            return None
        goal = campaign.goal
        if kind == "time":
            return offer, replace(campaign, goal=replace(goal, deadline=offer.makespan))
        if kind == "budget":
            return offer, replace(campaign, goal=replace(goal, budget=offer.cost))
        if self.trade_off is None:
            return offer, campaign
        from bursar.planning.plan_choice import tasks_left_out

        gone = tasks_left_out(self.trade_off[0], offer.tasks)
        kept = tuple(task for task in campaign.workflow.tasks if task.id not in gone)
        return offer, replace(campaign, workflow=Workflow(kept))

    def to_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints; the keys are in the documentation."""
        from bursar.report.plan_documents import goal_to_dict, offer_to_dict, plan_to_dict

        told: dict[str, Any] = {
            "campaign": self.campaign.name,
            "tasks": len(self.campaign.workflow.tasks),
            "currency": self.currency,
            "goal": goal_to_dict(self.campaign.goal),
            "feasible": self.feasible,
            "reason": self.reason,
            "counter_offers": [offer_to_dict(offer) for offer in self.counter_offers],
        }
        if self.trade_off is not None:
            told = plan_to_dict(self.campaign, *self.trade_off) | {"reason": self.reason}
        if self.forecasts is not None and self.trade_off is not None and self.foreseen is not None:
            front = self.trade_off[0]
            for option, entry in zip(front.options, told["front"], strict=True):
                entry["forecast"] = self.forecasts.to_dict(option)
            chosen = self.trade_off[1].option
            told["forecast"] = None if chosen is None else self.forecasts.to_dict(chosen)
            if self.forecasts.is_for_pool:
                told["pool_forecast"] = forecast_to_dict(
                    self.forecasts.of_pool(), self.campaign.goal
                )
        if self.forecast is not None:
            told["forecast"] = forecast_to_dict(self.forecast, self.campaign.goal)
        known = None if self.foreseen is None else self.foreseen.known
        if known is not None and "forecast" in told:
            told["forecast_basis"] = {
                "known_from": known.basis,
                "executions": known.executions,
                "tasks": known.observed,
            }
            if self.forecasts is not None and (waits := self.forecasts.waits_known_from()):
                told["forecast_basis"]["waits"] = waits
        told |= {
            "policy": self.policy.kind,
            "expected_finish_s": self.makespan,
            "expected_cost": self.cost,
            "expected_jobs": self.jobs,
        }
        if bought := self.machines():
            told["machines"] = [
                {
                    "site": one.site,
                    "type": one.offer.machine.name,
                    "spot": one.offer.is_spot,
                    "count": one.count,
                    "machine_hours": one.hours,
                    "hourly": one.offer.hourly,
                    "most_hourly": one.offer.most_hourly,
                    "price_source": None if one.offer.price is None else one.offer.price.source,
                    "price_date": None if one.offer.price is None else one.offer.price.date,
                    "interruption_odds": one.odds,
                    "start_up": msgspec.to_builtins(one.offer.machine.learned),
                }
                for one in bought
            ]
        if carried := self.data():
            told["data"] = [
                {
                    "site": one.site,
                    "bytes_in": one.bytes_in,
                    "bytes_out": one.bytes_out,
                    "price_in": one.prices.into,
                    "price_out": one.prices.out,
                    "price_date": one.prices.date,
                    "cost": one.cost,
                }
                for one in carried
            ]
        if self.policy.strategy is not None:
            told["strategy"] = self.policy.strategy
        if self.probe is not None:
            told["probe"] = self.probe.to_dict()
        if self.policy.brokering is not None:
            told["choice"] = self.policy.brokering.choice
            told["unmatched"] = [{"task": task, "reason": r} for task, r in self.unmatched.items()]
        return told

    def print(self) -> None:
        """Print the curve of plans if there is one, the reason and the counter-offers."""
        from bursar.report.charts import print_choice, print_plan

        if self.trade_off is not None:
            of = None if self.forecasts is None else self.forecasts.of_known
            print_plan(self.campaign, *self.trade_off, forecast_of=of)
            if self.foreseen is not None and (words := self.foreseen.words()):
                print(words)
            if self.forecasts is not None:
                for words in self.forecasts.waits_in_words(self.trade_off[1].option):
                    print(words)
            for line in self.purchase_lines():
                print(line)
        elif self.unmatched:  # another site is needed, or other requirements: nothing is offered
            from rich.console import Console

            Console().print(self.reason, style="bold red", highlight=False, markup=False)
        else:
            print_choice(
                self.feasible, self.reason, self.counter_offers, self.currency, note=self.note
            )
        for line in () if self.probe is None else self.probe.words():
            print(line)

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
            ``.html``, a page that needs no network; ``.png`` or ``.svg``, a picture.

        Raises
        ------
        InputError
            When the suffix is none of these, or a picture is asked for without the extra
            ``charts``.
        BursarError
            When the file cannot be written, or no plan was made.
        """
        from bursar.report.charts import SAVED_AS, check_chart_libraries, proposal_chart, save_chart

        path = Path(path)
        if path.suffix not in SAVED_AS:
            raise InputError(
                f'a chart is saved as {", ".join(SAVED_AS)}, got "{path.suffix}"', where=str(path)
            )
        front, choice = self._planned()
        if path.suffix == ".html":
            from bursar.report.run_report import content_of_plan, write_report

            write_report(path, content_of_plan(self.campaign, self.to_dict(), front, choice.plan))
        else:
            check_chart_libraries()
            save_chart(proposal_chart(front, choice), path)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Show the trade-off curve as a chart in a notebook, or the reason where there is none."""
        if self.trade_off is None:
            return {"text/plain": self.reason}
        from bursar.report.charts import check_chart_libraries, front_chart, mimebundle

        try:
            check_chart_libraries()
        except InputError as error:
            return {"text/plain": f"{self.reason} ({error.message}; {error.hint})"}
        return mimebundle(front_chart(*self.trade_off))


class GoalOutOfReach(Infeasible):
    """
    The goal cannot be met, and nothing was started.

    Attributes
    ----------
    quote
        The refused quote, with the counter-offers.
    """

    def __init__(self, quote: Quote) -> None:
        from bursar.report.charts import describe

        offers = [describe(offer, quote.currency) for offer in quote.counter_offers]
        super().__init__("; ".join([quote.reason, *offers]))
        self.quote = quote
