"""The forecast of an instance: in its state, in its events, at a real service."""

import time
from pathlib import Path

from tests.service.service_process import Served

from bursar.remote.messages import InstanceInfo, TaskSpec


def test_try(tmp_path: Path) -> None:
    served = Served(tmp_path / "s", '[site]\nprocessors = 2\n')
    served.start()
    try:
        with served.client() as client:
            made = client.create_instance(deadline=time.time() + 100, budget=10**6)
            session = client.attach(made.id)
            session.submit(TaskSpec(shell="sleep 0.2", label=f"piece {i}") for i in range(60))
            for _ in range(40):
                    info = client.instance(made.id)
                    print(info.counts, time.time(), info.forecast)
                    time.sleep(0.5)
                    if info.counts.succeeded == 60:
                        break
        print(served.log.read_text()[-3000:])
    finally:
        served.end()
    assert 0
