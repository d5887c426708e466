"""The trade-off curve as a table, and as JSON."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bursar.model.campaign import Campaign, Goal
from bursar.model.plan import Purchase
from bursar.planning.front import ParetoFront, PlanBounds, PlanOption
from bursar.planning.plan_choice import GoalCounterOffer, PlanChoice
from bursar.report.formatting import UNKNOWN, amount, share, span

if TYPE_CHECKING:
    from rich.console import Console

GAPS = ("time gap", "cost gap")
"""Columns of the gaps: to the fastest plan on the same slots, and to the cheapest as fast."""

ROWS = 24
"""Options shown; of more, evenly many and the chosen one."""


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


def print_plan(
    campaign: Campaign, front: ParetoFront, choice: PlanChoice, console: "Console | None" = None
) -> None:
    """Print the curve, the bounds, and the chosen option with the reason."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    count = len(campaign.workflow.tasks)
    console.print(
        f"{campaign.name}: {count} task{'s' if count > 1 else ''}", style="bold", highlight=False
    )
    titles = ("processors", "makespan", f"cost, {front.currency}", "utilisation", *GAPS)
    table = Table("", *titles, box=None, padding=(0, 1))
    for column in table.columns[1:]:
        column.justify = "right"
        column.no_wrap = True
    several = len(front.sites) > 1 or not all(
        p.slot.leased for o in front.options for p in o.purchases
    )
    if several:
        table.add_column("where")
    for option in _shown(front, choice):
        row = [
            "→" if option is choice.option else "",
            str(option.processors),
            span(option.makespan),
            UNKNOWN if option.cost is None else f"{option.cost:.4g}",
            share(option.utilisation),
            _percent(option.gap),
            _percent(option.cost_gap),
        ]
        if several:
            row.append(_where(option))
        table.add_row(*row, style="bold green" if option is choice.option else "")
    console.print(table)
    console.print(
        "time gap: at most how much slower than the fastest plan on these slots; "
        "cost gap: at most how much dearer than the cheapest plan that is as fast",
        style="dim",
        highlight=False,
    )
    console.print(_bounds(front.bounds), highlight=False)
    for note in front.notes:
        console.print(f"note: {note}", highlight=False)
    print_choice(
        choice.option is not None, choice.reason, choice.counter_offers, front.currency, console
    )


def print_choice(
    feasible: bool,
    reason: str,
    offers: Sequence[GoalCounterOffer],
    currency: str,
    console: "Console | None" = None,
    *,
    note: str = "",
) -> None:
    """
    Print the reason of a choice, and counter-offers for a goal out of reach.

    Parameters
    ----------
    note
        Line that is printed below the reason; empty: none.
    """
    from rich.console import Console

    console = console or Console()
    if feasible:
        console.print(f"→ {reason}", style="bold", highlight=False)
        if note:
            console.print(f"  {note}", highlight=False)
        return
    console.print(f"{reason}. Instead:", style="bold red", highlight=False)
    for offer in offers:
        console.print(f"  {describe(offer, currency)}", highlight=False)
    if not offers:
        console.print("  nothing that is sure to hold: not even one task", highlight=False)


def describe(offer: GoalCounterOffer, currency: str) -> str:
    """Describe a counter-offer in words."""
    what = f"{span(offer.makespan)} for {amount(offer.cost, currency)}"
    match offer.kind:
        case "time":
            text = f"in more time: {what}, the shortest at this budget"
        case "budget":
            text = f"for more money: {what}, the cheapest in this time"
        case _:
            text = f"a part: {offer.tasks} of the tasks ({offer.share:.0%}), {what}"
    return text + _margins(offer, currency)


def _margins(offer: GoalCounterOffer, currency: str) -> str:
    """Describe the margins of an offer and their purpose; empty where the offer has none."""
    parts = []
    if offer.margin_seconds > _CLOSE * offer.makespan:
        parts.append(span(offer.margin_seconds))
    if offer.cost is not None and offer.margin_cost > _CLOSE * offer.cost:
        parts.append(amount(offer.margin_cost, currency))
    if not parts:
        return ""
    return f" ({' and '.join(parts)} of that for starting workers, first jobs, holds and rounding)"


_CLOSE = 1e-6


def _shown(front: ParetoFront, choice: PlanChoice) -> list[PlanOption]:
    options = front.options
    if len(options) <= ROWS:
        return list(options)
    # Evenly many, both ends included: the fastest and the cheapest are always shown.
    step = (len(options) - 1) / (ROWS - 1)
    kept = {round(i * step) for i in range(ROWS)}
    return [o for i, o in enumerate(options) if i in kept or o is choice.option]


def _bounds(bounds: PlanBounds) -> str:
    parts = [
        f"critical path {span(bounds.critical_path)}",
        f"work / processors {span(bounds.work)}",
        f"energetic {span(bounds.energetic)}",
        *([] if bounds.exact is None else [f"CP-SAT {span(bounds.exact)}"]),
        f"cost {amount(bounds.cost, bounds.currency)}",
    ]
    text = "no plan can beat: " + ", ".join(parts)
    if bounds.unknown_tasks:
        text += f" ({bounds.unknown_tasks} tasks of unknown runtime count as nothing)"
    return text


def _percent(gap: float | None) -> str:
    return UNKNOWN if gap is None else f"{gap:.1%}"


def _where(option: PlanOption) -> str:
    """Describe the purchases at each site: processors of a lease, else the number of slots."""
    leases = [f"{p.slot.processors} {p.slot.site}" for p in option.purchases if p.slot.leased]
    slots = Counter(p.slot.site for p in option.purchases if not p.slot.leased)
    return ", ".join([*leases, *(f"{site} x{n}" for site, n in slots.items())])
