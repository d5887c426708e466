"""Bodies of tasks, put together with what is known when a task is given to a worker."""

import msgspec
import pytest

from bursar.dispatch.wire import WireJob
from bursar.model.surroundings import Container, ContainerPolicy, Surrounding, UvEnvironment
from bursar.model.task import Exec
from bursar.remote.messages import TaskSpec
from bursar.remote.submission import encode_steps
from bursar.service.engine.bodies import make_body, make_wire_job
from bursar.service.interfaces import ServiceError


@pytest.mark.parametrize("directory", ["", "deep"])
@pytest.mark.parametrize("memory", [None, 3 * 10**9])
def test_a_job_carries_its_memory_to_the_worker(memory: int | None, directory: str) -> None:
    """Else the worker could not hold the task to what it states."""
    body = make_body(TaskSpec(command=("true",), memory=memory, directory=directory), (), "tasks")
    home = msgspec.msgpack.encode("/home")
    job = msgspec.msgpack.decode(make_wire_job(body, 4, 2, 1, 9.0, "f", home), type=WireJob)

    assert (job.task, job.attempt, job.limit, job.folder, job.home) == (4, 2, 9.0, "f", "/home")
    assert (job.memory, job.directory, job.sealed) == (memory or 0, directory, b"")


@pytest.mark.parametrize(
    ("policy", "container", "detail"),
    [
        ("allowed", Container("i", binds=("/:/host",)), None),
        ("without-mounts", Container("i"), None),
        ("without-mounts", Container("i", binds=("/:/host",)), "containers with binds or options"),
        ("without-mounts", Container("i", options=("--privileged",)), "containers with binds or"),
        ("forbidden", Container("i"), "containers are not allowed here"),
        ("without-mounts", Container("--volume=/:/host"), "expected the name of an image"),
        ("allowed", UvEnvironment(packages=("--index-url=x",)), "expected the name of a package"),
    ],
)
def test_containers_are_taken_as_the_administrator_says(
    policy: ContainerPolicy, container: Surrounding, detail: str | None
) -> None:
    """And no word of a task becomes an option of the command that makes it ready."""
    spec = TaskSpec(steps=encode_steps([container, Exec(("true",))]))
    if detail is None:
        make_body(spec, (), "tasks[0]", policy)
        return
    with pytest.raises(ServiceError, match=detail) as error:
        make_body(spec, (), "tasks[0]", policy)
    assert error.value.where == "tasks[0].steps"
