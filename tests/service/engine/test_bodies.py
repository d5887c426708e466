"""Bodies of tasks, put together with what is known when a task is given to a worker."""

import msgspec
import pytest

from bursar.dispatch.wire import WireJob
from bursar.remote.messages import TaskSpec
from bursar.service.engine.bodies import make_body, make_wire_job


@pytest.mark.parametrize("directory", ["", "deep"])
@pytest.mark.parametrize("memory", [None, 3 * 10**9])
def test_a_job_carries_its_memory_to_the_worker(memory: int | None, directory: str) -> None:
    """Else the worker could not hold the task to what it states."""
    body = make_body(TaskSpec(command=("true",), memory=memory, directory=directory), (), "tasks")
    home = msgspec.msgpack.encode("/home")
    job = msgspec.msgpack.decode(make_wire_job(body, 4, 2, 1, 9.0, "f", home), type=WireJob)

    assert (job.task, job.attempt, job.limit, job.folder, job.home) == (4, 2, 9.0, "f", "/home")
    assert (job.memory, job.directory, job.sealed) == (memory or 0, directory, b"")
