"""The forecast of an instance at a real service: in its state, its events, and after a restart."""

import time
from pathlib import Path

import pytest
from tests.service.service_process import served

from bursar.remote.http_transport import RemoteProblem
from bursar.remote.messages import TaskSpec

SERVICE = """\
[site]
processors = 2
currency = "SU"
unit_price = 0.001
[market]
price_shared = true
"""


def test_an_instance_is_forecast_once_its_first_tasks_have_ended(tmp_path: Path) -> None:
    """Four tasks end, the others run on: the odds of a near and a far limit are told apart."""
    with served(tmp_path, SERVICE) as service, service.client() as client:
        later, soon = time.time() + 1e6, time.time() + 2.0
        far = client.create_instance(deadline=later, budget=10**9)
        near = client.create_instance(deadline=soon, budget=1)
        for made in (far, near):
            assert made.forecast is None
        first = [TaskSpec(command=("sleep", "0.1"), label=f"piece {n}") for n in range(4)]
        rest = [TaskSpec(command=("sleep", "1"), label=f"piece {n}") for n in range(4, 30)]
        for made in (far, near):
            client.attach(made.id).submit([*first, *rest])
        seen = {}
        for made in (far, near):
            for info in client.events(made.id):
                if info.forecast is not None:
                    seen[made.id] = info
                    break
        told = seen[far.id].forecast
        assert told is not None
        assert told.at < told.end.p10 <= told.end.p50 <= told.end.p90
        assert told.cost is not None
        assert seen[far.id].spent < told.cost.p50 <= told.cost.p90
        assert (told.deadline_odds or 0) > 0.9
        assert (told.budget_odds or 0) > 0.9
        other = seen[near.id].forecast
        assert other is not None
        assert (other.deadline_odds or 0) < 0.1
        assert (other.budget_odds or 0) < 0.1
        # In the state, with the same rights as the rest of it.
        state = client.instance(far.id)
        assert state.forecast is not None
        assert (state.deadline, state.budget) == (later, 10**9)
        with pytest.raises(RemoteProblem, match="no such instance"):
            client.instance("0" * 32)
        service.kill()
        service.start()
        after = client.instance(far.id)
        assert (after.deadline, after.budget) == (later, 10**9)
        for made in (far, near):
            client.attach(made.id).destroy()


@pytest.mark.ci
def test_forecasts_can_be_turned_off(tmp_path: Path) -> None:
    """Tasks run for long enough for a forecast, and there is none."""
    text = SERVICE + "[tasks]\nforecasts = false\n"
    with served(tmp_path, text) as service, service.client() as client:
        made = client.create_instance()
        client.attach(made.id).submit([TaskSpec(command=("sleep", "0.4")) for _ in range(12)])
        for info in client.events(made.id):
            assert info.forecast is None
            if info.counts.succeeded == 12:
                break
