"""Limits of one user, where they differ from those of all users."""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from bursar.service.engine.engine_limits import EngineLimits, Number
from bursar.service.http_limits import HttpLimits

L = TypeVar("L", EngineLimits, HttpLimits)

Pace = Annotated[float, Meta(gt=0)]


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    A user's own limits; None: as for all others.

    Parameters
    ----------
    instances, unfinished, tasks, task_bytes, result_bytes
        See :class:`~bursar.service.engine.engine_limits.EngineLimits`.
    instance_bytes, user_bytes, rate, burst, requests, streams
        See :class:`~bursar.service.http_limits.HttpLimits`.
    """

    instances: Number | None = None
    unfinished: Number | None = None
    tasks: Annotated[int, Meta(ge=1, le=2**31)] | None = None
    task_bytes: Number | None = None
    result_bytes: Number | None = None
    instance_bytes: Number | None = None
    user_bytes: Number | None = None
    rate: Pace | None = None
    burst: Annotated[float, Meta(ge=1)] | None = None
    requests: Number | None = None
    streams: Number | None = None

    def within(self, limits: L) -> L:
        """Return the user's limits, given those of all users."""
        own = {key: value for key, value in msgspec.structs.asdict(self).items() if value}
        given = {key: own[key] for key in limits.__struct_fields__ if key in own}
        return msgspec.structs.replace(limits, **given)
