"""Signals that stop a run or come at its end, and when a plan is sought whose odds are better."""

import asyncio
import os
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bursar.model.campaign import Goal
from bursar.runs.execution import RunExecution
from bursar.runs.run_watchers import ReplanMonitor, RunSignals


class _Stopped:
    def __init__(self) -> None:
        self.graces: list[float] = []

    def stop(self, cause: str, reason: str, *, grace: float = 5.0) -> None:
        self.graces.append(grace)


def test_signals_do_not_end_a_run_that_gives_its_processors_back() -> None:
    """The first only tells, the second cancels; before, they stop the tasks and kill them."""
    run, told = _Stopped(), list[str]()

    async def carried_out() -> None:
        signals = RunSignals(cast(RunExecution, run), told.append)
        signals.install()
        try:
            for expected in (1, 2):
                os.kill(os.getpid(), signal.SIGTERM)
                while len(run.graces) < expected:
                    await asyncio.sleep(0)
            signals.tasks_ended()
            os.kill(os.getpid(), signal.SIGHUP)
            while not told:
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(60)
        finally:
            signals.remove()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(carried_out())
    assert run.graces == [5.0, 0.0]
    assert len(told) == 1
    assert "given back" in told[0]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class _LateRun:
    """A run whose odds are near nothing; another plan is found better from some ends on."""

    def __init__(self, better_from: int) -> None:
        self.goal = Goal(deadline=10.0)
        self.counts = SimpleNamespace(total=100, succeeded=3, waiting=60)
        self.cause = None
        self.pace = SimpleNamespace(stretch=1.0, follow=lambda plan: None)
        self.plan = SimpleNamespace(processors=1)
        self.is_planning = False
        self.better_from = better_from
        self.sought: list[int] = []
        self.planned: list[str] = []
        self.live = self

    async def sketch(self, stretch: float) -> Any:
        self.sought.append(self.counts.succeeded)
        return SimpleNamespace(makespan=1.0, placements=(1,))

    async def odds_of(self, update: object, plan: object) -> float:
        return 0.97 if self.counts.succeeded >= self.better_from else 0.01

    def plan_again(self, reason: str, stretch: float) -> None:
        self.planned.append(reason)

    def update(self, odds: float) -> Any:
        end = SimpleNamespace(quantile=lambda share: 20.0)
        return SimpleNamespace(
            fan=SimpleNamespace(odds=odds),
            standing=SimpleNamespace(goal=self.goal, now=1.0),
            forecast=SimpleNamespace(end=end),
        )


def test_a_plan_is_sought_again_when_more_is_known_though_the_odds_cannot_fall() -> None:
    """
    The first look, on a busy machine after three ends, finds nothing: the next is not the last.

    It is not sought at each look either: after three ends, after six, and after twelve.
    """
    run = _LateRun(better_from=12)
    monitor = ReplanMonitor(cast(Any, run), cast(Any, run), cast(Any, run), 1.0)

    async def looks() -> None:
        for succeeded in range(3, 14):
            run.counts.succeeded = succeeded
            if not run.planned:
                await monitor._check_odds(run.update(0.01))

    asyncio.run(looks())
    assert sorted(set(run.sought)) == [3, 6, 12]
    assert len(run.planned) == 1
    assert "another plan has 97 %" in run.planned[0]
