"""Signals that stop a run, and signals while the run gives its processors back."""

import asyncio
import os
import signal
from typing import cast

import pytest

from bursar.runs.execution import RunExecution
from bursar.runs.run_watchers import RunSignals


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
