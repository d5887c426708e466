"""Handlers for instances and their tasks."""

import msgspec

from bursar.remote import messages as api
from bursar.service.http.authorized_request import AuthorizedRequest
from bursar.service.http.problems import decoded
from bursar.service.http.queries import TasksQuery
from bursar.service.http.responses import HttpResponse, json_response
from bursar.service.interfaces import ServiceError

_OBJECTS = 8 * api.MOST_TASKS
"""Braces that open in a submission, with some for texts that hold them."""

_SUBMISSION = msgspec.json.Decoder(api.Submission)
_TASK = msgspec.json.Decoder(api.TaskSpec)


async def create(call: AuthorizedRequest, body: api.NewInstance) -> HttpResponse:
    """Create an instance."""
    made = await call.service.engine.create(call.user, body, call.key)
    return json_response(made, 201, (("location", f"{api.PREFIX}/instances/{made.id}"),))


async def show_all(call: AuthorizedRequest) -> api.InstanceList:
    """List the caller's instances."""
    return api.InstanceList(instances=call.service.engine.instances(call.user))


async def show(call: AuthorizedRequest) -> api.InstanceInfo:
    """Return an instance."""
    return call.service.engine.instance(call.user, call.handle)


async def destroy(call: AuthorizedRequest) -> None:
    """Kill an instance's tasks and delete its results and files."""
    await call.service.engine.destroy(call.user, call.handle)


async def submit(call: AuthorizedRequest, body: list[api.TaskSpec]) -> api.Submitted:
    """Add tasks to an instance."""
    return await call.service.engine.submit(call.user, call.handle, body, call.key)


async def show_tasks(call: AuthorizedRequest, query: TasksQuery) -> api.TaskPage:
    """Return the states of an instance's tasks."""
    return call.service.engine.tasks(call.user, call.handle, query.after, query.limit)


async def cancel(call: AuthorizedRequest, body: api.CancelRequest) -> api.Cancelled:
    """Cancel tasks."""
    return await call.service.engine.cancel(call.user, call.handle, body.tasks, body.grace)


def read_submission(data: bytes) -> list[api.TaskSpec]:
    """
    Decode the tasks of a submission.

    Raises
    ------
    ServiceError
        When it is none, or there are too many.
    """
    _check_objects(data)
    return decoded(_SUBMISSION.decode, data).tasks


def read_task_lines(data: bytes) -> list[api.TaskSpec]:
    """
    Decode the tasks of a submission that has one JSON document per line.

    Raises
    ------
    ServiceError
        When a line is none, or there are too many or none.
    """
    _check_objects(data)
    tasks = decoded(_TASK.decode_lines, data, within="tasks")
    if not 1 <= len(tasks) <= api.MOST_TASKS:
        detail = f"expected 1 to {api.MOST_TASKS:,} tasks, got {len(tasks):,}"
        raise ServiceError("bad-value", 422, detail, where="tasks")
    return tasks


def _check_objects(data: bytes) -> None:
    # Checked before decoding, which takes a hundred times the memory of the JSON text.
    if data.count(b"{") > _OBJECTS:
        detail = f"expected at most {api.MOST_TASKS:,} tasks"
        raise ServiceError("too-large", 413, detail, where="tasks")
