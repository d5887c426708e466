"""
The compiled campaign of a run: every task spelt out, independent of the campaign file.

A resumed run reads this and nothing else, so the campaign file may have been
edited, moved or deleted since.
"""

from pathlib import Path

import msgspec

from bursar.model.campaign import BudgetAction, Campaign, Goal, Retry
from bursar.model.errors import BursarError
from bursar.model.task import Task
from bursar.model.workflow import Workflow

FORMAT = 2


class _StoredGoal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    deadline: float | None = None
    budget: float | None = None
    currency: str | None = None
    trade_off: float | None = None
    on_budget: list[tuple[float, BudgetAction]] = []  # shares are no map keys in msgpack


class _StoredCampaign(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    name: str
    root: str
    source: str | None
    recorded: bool
    goal: _StoredGoal
    retry: Retry
    tasks: list[Task]


def encode(campaign: Campaign) -> bytes:
    """Encode a campaign as bytes for :func:`decode`."""
    goal = campaign.goal
    return msgspec.msgpack.encode(
        _StoredCampaign(
            format=FORMAT,
            name=campaign.name,
            # Absolute: a run may be resumed from another folder.
            root=str(campaign.root.resolve()),
            source=str(campaign.source) if campaign.source else None,
            recorded=campaign.recorded,
            goal=_StoredGoal(
                deadline=goal.deadline,
                budget=goal.budget,
                currency=goal.currency,
                trade_off=goal.trade_off,
                on_budget=list(goal.on_budget.items()),
            ),
            retry=campaign.retry,
            tasks=list(campaign.workflow.tasks),
        )
    )


def decode(data: bytes) -> Campaign:
    """
    Decode a campaign from the bytes of :func:`encode`.

    Raises
    ------
    BursarError
        When the bytes are damaged or of a newer format.
    """
    try:
        compiled = msgspec.msgpack.decode(data, type=_StoredCampaign)
    except msgspec.MsgspecError as error:
        raise BursarError(f"the compiled campaign is damaged: {error}") from error
    if compiled.format != FORMAT:
        raise BursarError(
            f"the compiled campaign has format {compiled.format}, this version reads {FORMAT}"
        )
    goal = compiled.goal
    return Campaign(
        name=compiled.name,
        workflow=Workflow(tuple(compiled.tasks)),
        goal=Goal(
            deadline=goal.deadline,
            budget=goal.budget,
            currency=goal.currency,
            trade_off=goal.trade_off,
            on_budget=dict(goal.on_budget),
        ),
        root=Path(compiled.root),
        retry=compiled.retry,
        recorded=compiled.recorded,
        source=Path(compiled.source) if compiled.source else None,
    )
