"""What a sites file says of a batch scheduler, and of the pool of processors there."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import msgspec
from msgspec import Meta

from bursar.formats.tables import Duration
from bursar.formats.toml_reading import decode_table, joined
from bursar.formats.units import parse_duration
from bursar.model.errors import InputError
from bursar.model.provisioning import (
    Acquisition,
    AcquisitionPolicy,
    BatchScheduler,
    Manager,
    Release,
)

if TYPE_CHECKING:
    from bursar.formats.sites_toml import SiteTable

MANAGERS: tuple[Manager, ...] = get_args(Manager)

Positive = Annotated[int, Meta(ge=1)]


class PoolTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How processors are acquired and released."""

    acquisition: Annotated[
        Acquisition, Meta(description="What requests are made for so many processors.")
    ] = "adaptive"
    fewest: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="Processors held at the least, while a campaign runs."),
    ] = 0
    most: Annotated[
        Positive | None, Meta(description="Processors held at the most; the site's.")
    ] = None
    shortest: Annotated[Duration, Meta(description="Of one allocation.")] = "1 min"
    longest: Annotated[Duration, Meta(description="Of one allocation.")] = "1 h"
    trigger: Annotated[Positive, Meta(description="Waiting tasks that make it acquire.")] = 1
    release: Annotated[Release, Meta(description="When processors go back.")] = "adaptive"
    idle: Annotated[Duration, Meta(description="For which a worker is idle before it goes.")] = (
        "30 s"
    )
    below: Annotated[
        Positive, Meta(description='With release = "queue": fewer queued tasks give back.')
    ] = 1
    max_pending: Annotated[
        Positive, Meta(description="Requests that wait in the site's queue at a time.")
    ] = 64
    max_racing: Annotated[
        Annotated[int, Meta(ge=0)],
        Meta(description="Of these, such as race with requests elsewhere."),
    ] = 2
    probe_every: Annotated[
        Duration,
        Meta(description="Between looks at the queue while nothing changes there."),
    ] = "30 s"


_DURATIONS = ("shortest", "longest", "idle", "probe_every")

_OF_BATCH = (
    "queue",
    "account",
    "qos",
    "directives",
    "setup",
    "environment",
    "ssh",
    "python",
    "folder",
    "reach",
)


def kind_of(kind: str) -> str:
    """The kind of a site, of the kinds that a sites file knows."""
    return "batch" if kind in MANAGERS else kind


def batch_of(table: "SiteTable", place: str, folder: Path) -> BatchScheduler | None:
    """
    The batch scheduler of a site; None where it has none.

    Raises
    ------
    InputError
        When something is said of a scheduler that is not there, or cannot be said in a job
        script.
    """
    given = {key: getattr(table, key) for key in _OF_BATCH if getattr(table, key) is not None}
    if table.kind not in MANAGERS:
        if given:
            raise InputError(
                "goes with a batch scheduler only",
                where=joined(place, next(iter(given))),
                hint='set kind = "slurm", or another scheduler',
            )
        return None
    for key, value in given.items():
        lines = value if isinstance(value, list) else [value] if isinstance(value, str) else []
        if any(set(line) & set("\n\r\0") for line in lines):
            raise InputError("expected single lines", where=joined(place, key))
    for key in ("queue", "account", "qos"):
        if any(c.isspace() for c in given.get(key, "")):
            raise InputError("expected a word", where=joined(place, key))
    if given.get("ssh", "").startswith("-"):
        raise InputError("expected a host", where=joined(place, "ssh"))
    if given.get("ssh") and not given.get("folder", "/").startswith("/"):
        raise InputError(
            "expected a path from the root, as the login node has it", where=joined(place, "folder")
        )
    if "folder" in given and not given.get("ssh"):
        given["folder"] = str((folder / given["folder"]).absolute())
    for key in ("directives", "setup"):
        if key in given:
            given[key] = tuple(given[key])
    return BatchScheduler(manager=table.kind, **given)


def acquiring_of(raw: Any | None, place: str) -> AcquisitionPolicy:
    """
    The rules of a pool.

    Raises
    ------
    InputError
        When they are wrong.
    """
    if raw is None:
        return AcquisitionPolicy()
    table = decode_table(raw, PoolTable, place)
    given: dict[str, Any] = {
        key: getattr(table, key) for key in PoolTable.__struct_fields__ if key not in _DURATIONS
    }
    for key in _DURATIONS:
        try:
            given[key] = parse_duration(getattr(table, key))
        except InputError as error:
            raise error.within(joined(place, key)) from None
    try:
        return AcquisitionPolicy(**given)
    except ValueError as error:
        raise InputError(str(error), where=place) from None
