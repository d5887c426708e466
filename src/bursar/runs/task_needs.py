"""What tasks need besides processors, looked at before a run begins."""

from collections.abc import Iterable

from bursar.model.site import SiteFacts
from bursar.model.task import Task
from bursar.worker.memory_enforcement import memory_groups

WATCHED = (
    "memory of tasks is watched, and a task that uses more than it states is killed; "
    "the kernel holds tasks to theirs where a control group is delegated"
)


def memory_note(tasks: Iterable[Task], sites: Iterable[SiteFacts]) -> str:
    """Return how tasks on this machine are held to their memory, unless the kernel does so."""
    if not any(site.kind == "local" for site in sites):
        return ""
    if not any(task.memory for task in tasks) or memory_groups() is not None:
        return ""
    return WATCHED
