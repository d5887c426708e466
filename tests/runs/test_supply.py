"""Supplies of a run that goes on, with a run that is made up."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from bursar.runs.supply import PlannedSupply


def test_no_plan_is_made_where_the_tasks_that_ran_were_the_last_ones() -> None:
    """A site is added while the only task runs: the run ends as it would have."""
    notes: list[str] = []
    started: list[Coroutine[Any, Any, None]] = []
    ended: dict[int, str] = {}

    async def give_back() -> bool:
        ended[0] = "succeeded"  # processors go back when what runs there has ended
        return True

    async def replan(snapshot: object) -> Any:
        raise AssertionError("nothing is left to be planned")

    run = SimpleNamespace(
        is_stopping=lambda: False,
        notify=notes.append,
        bind=lambda *bound: None,
        dispatcher=SimpleNamespace(figures=SimpleNamespace(ended=ended)),
        bindings=SimpleNamespace(tasks=["only"], sites={}),
        provision=SimpleNamespace(give_back=give_back),
        background=SimpleNamespace(start=lambda work, on_failure: started.append(work)),
    )
    supply = PlannedSupply(cast(Any, None), replan)
    supply.attach(cast(Any, run))
    supply.plan_again("site annex was added: what is left is planned again", 1.0)
    (work,) = started
    asyncio.run(work)
    assert notes == ["site annex was added: what is left is planned again"]
