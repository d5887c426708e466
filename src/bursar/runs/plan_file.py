"""The plan file of a run: the trade-off curve, and the place of each task."""

import math
from dataclasses import asdict, fields
from typing import Any

import msgspec

from bursar.dispatch.folders import write_atomically
from bursar.model.errors import BursarError
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.slot import Slot
from bursar.runs.folder import RunFolder

FORMAT = 2


NAMES = {"start": "start_s", "duration": "duration_s"}
"""Names in the file of those fields of a slot that have a unit."""


class _StoredPlan(msgspec.Struct, frozen=True, kw_only=True):
    slots: list[dict[str, Any]]
    placements: list[tuple[int, str, float, float, tuple[int, ...]]]
    makespan_s: float | None
    cost: float | None
    currency: str
    utilisation: float | None
    algorithm: str


class PlanFile(msgspec.Struct, frozen=True, kw_only=True):
    """
    The content of ``plan.json``.

    Parameters
    ----------
    format
        Version of the file format.
    proposal
        The trade-off curve, its bounds and the choice, as ``bursar plan --json``
        prints them.
    plan
        The chosen plan; each placement is task number, site, start, finish and
        processors.
    """

    format: int
    proposal: dict[str, Any]
    plan: _StoredPlan


def write_plan(folder: RunFolder, proposal: dict[str, Any], plan: Plan) -> None:
    """Write the plan into the run's folder."""
    file = PlanFile(format=FORMAT, proposal=proposal, plan=_encoded(plan))
    write_atomically(folder.plan_file, msgspec.json.encode(file))


def read_plan(folder: RunFolder) -> tuple[dict[str, Any], Plan]:
    """
    Return the printed proposal and the chosen plan.

    Raises
    ------
    BursarError
        When the file cannot be read, is damaged or of a newer format.
    """
    try:
        file = msgspec.json.decode(folder.plan_file.read_bytes(), type=PlanFile)
        if file.format != FORMAT:
            raise BursarError(
                f"{folder.plan_file}: format {file.format}, this version reads {FORMAT}"
            )
        return file.proposal, _decoded(file.plan)
    except OSError as error:
        raise BursarError(f"{folder.plan_file}: cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise BursarError(f"{folder.plan_file}: damaged: {error}") from None


def _encoded(plan: Plan) -> _StoredPlan:
    return _StoredPlan(
        slots=[_encoded_purchase(purchase) for purchase in plan.purchases],
        placements=[(p.task, p.site, p.start, p.finish, p.processors) for p in plan.placements],
        makespan_s=plan.makespan,
        cost=plan.cost,
        currency=plan.currency,
        utilisation=plan.utilisation,
        algorithm=plan.algorithm,
    )


def _decoded(plan: _StoredPlan) -> Plan:
    return Plan(
        purchases=tuple(map(_decoded_purchase, plan.slots)),
        placements=tuple(Placement(*placement) for placement in plan.placements),
        makespan=plan.makespan_s,
        cost=plan.cost,
        currency=plan.currency,
        utilisation=plan.utilisation,
        algorithm=plan.algorithm,
    )


def _encoded_purchase(purchase: Purchase) -> dict[str, Any]:
    """Return a purchase as the file has it: the slot's fields, and the part."""
    slot = {NAMES.get(name, name): value for name, value in asdict(purchase.slot).items()}
    return {**slot, "part": purchase.part}  # JSON has no infinity, which becomes null


def _decoded_purchase(stored: dict[str, Any]) -> Purchase:
    slot = {field.name: stored.get(NAMES.get(field.name, field.name)) for field in fields(Slot)}
    if slot["duration"] is None:
        slot["duration"] = math.inf
    return msgspec.convert({"slot": slot, "part": stored.get("part")}, Purchase)
