"""The trade-off curve and the chosen plan as JSON."""

import math
from typing import Any

from bursar.model.campaign import Campaign, Goal
from bursar.model.plan import Purchase
from bursar.planning.front import ParetoFront, PlanBounds, PlanOption
from bursar.planning.plan_choice import GoalCounterOffer, PlanChoice


def plan_to_dict(campaign: Campaign, front: ParetoFront, choice: PlanChoice) -> dict[str, Any]:
    """
    Convert a plan to the JSON document of ``bursar plan --json``.

    The keys are listed in the documentation, under JSON.
    """
    chosen = None
    if choice.option is not None:
        chosen = {"index": front.options.index(choice.option), **option_to_dict(choice.option)}
    return {
        "campaign": campaign.name,
        "tasks": len(campaign.workflow.tasks),
        "currency": front.currency,
        "goal": goal_to_dict(campaign.goal),
        "method": front.method,
        "scheduler": front.scheduler,
        "evaluations": front.evaluations,
        "feasible_plans": len(front.tried),
        "front": [option_to_dict(option) for option in front.options],
        "bounds": _bounds_to_dict(front.bounds),
        "notes": list(front.notes),
        "feasible": not choice.infeasible,
        "chosen": chosen,
        "reason": choice.reason,
        "counter_offers": [offer_to_dict(offer) for offer in choice.counter_offers],
    }


def goal_to_dict(goal: Goal) -> dict[str, float | None]:
    """Return a goal's limits as JSON: seconds, currency units, weight of cost."""
    return {"deadline_s": goal.deadline, "budget": goal.budget, "trade_off": goal.trade_off}


def option_to_dict(option: PlanOption) -> dict[str, Any]:
    """Return a point of the curve as JSON: seconds and currency units; None is unknown."""
    return {
        "makespan_s": option.makespan,
        "cost": option.cost,
        "currency": option.currency,
        "processors": option.processors,
        "utilisation": option.utilisation,
        "bound_s": option.bound,
        "cost_bound": option.cost_bound,
        "slots": [_slot_to_dict(purchase) for purchase in option.purchases],
    }


def _slot_to_dict(purchase: Purchase) -> dict[str, Any]:
    slot = purchase.slot
    return {
        "site": slot.site,
        "start_s": slot.start,
        "duration_s": None if math.isinf(slot.duration) else slot.duration,
        "processors": slot.processors,
        "processor_seconds": None if math.isinf(slot.duration) else purchase.processor_seconds,
        "unit_price": slot.unit_price,
        "fixed_price": slot.fixed_price,
        "cost": purchase.cost,
    }


def _bounds_to_dict(bounds: PlanBounds) -> dict[str, Any]:
    return {
        "makespan_s": bounds.makespan,
        "critical_path_s": bounds.critical_path,
        "work_s": bounds.work,
        "energetic_s": bounds.energetic,
        "exact_s": bounds.exact,
        "cost": bounds.cost,
        "unknown_tasks": bounds.unknown_tasks,
        "unpriced_sites": list(bounds.unpriced_sites),
    }


def offer_to_dict(offer: GoalCounterOffer) -> dict[str, Any]:
    """Return a counter-offer as JSON: seconds and currency units."""
    return {
        "kind": offer.kind,
        "makespan_s": offer.makespan,
        "cost": offer.cost,
        "tasks": offer.tasks,
        "share": offer.share,
        "margin_s": offer.margin_seconds,
        "margin_cost": None if offer.cost is None else offer.margin_cost,
    }
