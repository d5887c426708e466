"""Names of working directories."""

import re

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(task: int, task_id: str) -> str:
    """A task's working directory: unique by its number, readable by its id."""
    return f"{task}-{_UNSAFE.sub('_', task_id)[:60]}"
