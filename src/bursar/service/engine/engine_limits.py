"""Limits of how much of the service one user may have."""

from typing import Annotated

import msgspec
from msgspec import Meta

from bursar.model.surroundings import ContainerPolicy

Number = Annotated[int, Meta(ge=1)]
Span = Annotated[float, Meta(gt=0, le=1e9)]


class EngineLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    Limits of each user, and how long instances and keys are kept.

    Parameters
    ----------
    instances
        Of one user.
    unfinished
        Tasks of one user that have no result yet.
    tasks
        Of one instance, over its life.
    task_bytes
        Of the unfinished tasks of one user, as they lie in memory and in the journal.
    result_bytes
        Of one user's results that were not forgotten. Past it nothing more is taken; what was
        taken goes on, and its results are kept.
    results_in_memory
        Bytes of the latest results of all users; older ones are read from the journal.
    keep
        Seconds for which an instance is kept after its last task has ended, when the user says
        nothing.
    longest_keep
        That a user may ask for.
    keys
        Seconds for which an idempotency key is remembered.
    limit
        Seconds after which a task is killed that has no limit of its own; None: never.
    directories
        Folders in which a task may be told to run, besides its instance's own.
    containers
        Containers that tasks may ask for.
    """

    instances: Number = 1_000
    unfinished: Number = 2_000_000
    tasks: Annotated[int, Meta(ge=1, le=2**31)] = 50_000_000
    task_bytes: Number = 2 << 30
    result_bytes: Number = 8 << 30
    results_in_memory: Number = 64 << 20
    keep: Span = 30 * 86400.0
    longest_keep: Span = 366 * 86400.0
    keys: Span = 86400.0
    limit: Span | None = None
    directories: tuple[str, ...] = ()
    containers: ContainerPolicy = "allowed"
