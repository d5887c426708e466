"""What a supply of processors does when its run changes under it."""

import asyncio
from types import SimpleNamespace
from typing import Any

from bursar.runs.supply import PlannedSupply


def test_nothing_is_planned_again_once_every_task_has_ended() -> None:
    """A new plan waits for tasks that run; if they were the last ones, the run ends well."""
    said: list[str] = []
    ended: dict[int, Any] = {}

    async def replan(snapshot: Any) -> Any:
        raise AssertionError("there is nothing to plan")

    async def give_back() -> bool:
        return bool(ended)

    async def change() -> None:
        ended[0] = "succeeded"

    supply: Any = PlannedSupply(SimpleNamespace(), replan)  # type: ignore[arg-type]
    supply.run = SimpleNamespace(
        provision=SimpleNamespace(give_back=give_back),
        dispatcher=SimpleNamespace(figures=SimpleNamespace(ended=ended), change=change),
        bindings=SimpleNamespace(tasks=["only"]),
        notify=said.append,
    )
    asyncio.run(supply._plan_again(replan))
    assert said == []
