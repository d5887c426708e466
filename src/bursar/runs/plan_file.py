"""The plan file of a run: the trade-off curve, and the place of each task."""

import math
from typing import Any

import msgspec

from bursar.dispatch.atomic_file import write_atomically
from bursar.model.errors import BursarError
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.slot import Slot
from bursar.runs.folder import RunFolder

FORMAT = 2


class _StoredSlot(msgspec.Struct, frozen=True, kw_only=True):
    site: str
    start_s: float
    duration_s: float | None  # JSON has no infinity
    processors: int
    unit_price: float | None
    fixed_price: float | None
    divisible: bool
    extensible: bool
    leased: bool
    part: float | None


class _StoredPlan(msgspec.Struct, frozen=True, kw_only=True):
    slots: list[_StoredSlot]
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
    except OSError as error:
        raise BursarError(f"{folder.plan_file}: cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise BursarError(f"{folder.plan_file}: damaged: {error}") from None
    if file.format != FORMAT:
        raise BursarError(f"{folder.plan_file}: format {file.format}, this version reads {FORMAT}")
    return file.proposal, _decoded(file.plan)


def _encoded(plan: Plan) -> _StoredPlan:
    return _StoredPlan(
        slots=[
            _StoredSlot(
                site=slot.site,
                start_s=slot.start,
                duration_s=None if math.isinf(slot.duration) else slot.duration,
                processors=slot.processors,
                unit_price=slot.unit_price,
                fixed_price=slot.fixed_price,
                divisible=slot.divisible,
                extensible=slot.extensible,
                leased=slot.leased,
                part=part,
            )
            for slot, part in ((purchase.slot, purchase.part) for purchase in plan.purchases)
        ],
        placements=[(p.task, p.site, p.start, p.finish, p.processors) for p in plan.placements],
        makespan_s=plan.makespan,
        cost=plan.cost,
        currency=plan.currency,
        utilisation=plan.utilisation,
        algorithm=plan.algorithm,
    )


def _decoded(plan: _StoredPlan) -> Plan:
    return Plan(
        purchases=tuple(
            Purchase(
                slot=Slot(
                    site=slot.site,
                    start=slot.start_s,
                    duration=math.inf if slot.duration_s is None else slot.duration_s,
                    processors=slot.processors,
                    unit_price=slot.unit_price,
                    fixed_price=slot.fixed_price,
                    divisible=slot.divisible,
                    extensible=slot.extensible,
                    leased=slot.leased,
                ),
                part=slot.part,
            )
            for slot in plan.slots
        ),
        placements=tuple(Placement(*placement) for placement in plan.placements),
        makespan=plan.makespan_s,
        cost=plan.cost,
        currency=plan.currency,
        utilisation=plan.utilisation,
        algorithm=plan.algorithm,
    )
