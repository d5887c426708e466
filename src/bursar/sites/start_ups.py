"""Start-up times of workers that earlier runs have seen, kept in files beside the runs."""

import contextlib
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from bursar.model.cloud import CloudEndpoint
from bursar.model.provisioning import LearnedStartUp
from bursar.model.site import SiteFacts
from bursar.sites.durable_lines import append_lines, read_lines

START_UPS = "cloud_start_ups.jsonl"
"""File in the folder of the runs, a line for each machine whose worker has joined."""

WORKER_STARTS = "worker_starts.jsonl"
"""File in the folder of the runs, a line for each batch job whose worker has joined."""

RECENT = 50
"""Last starts of a type of machine, or of a site, that count: images and clusters change."""

_HIGH = 0.9

T = TypeVar("T", bound=msgspec.Struct)


class StartUpLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One start of a machine.

    Parameters
    ----------
    seconds
        Time from the request for the machine until its worker joined.
    at
        When the worker joined, seconds since the epoch.
    """

    provider: str
    region: str = ""
    image: str
    type: str
    seconds: float
    at: float


class WorkerStartLine(msgspec.Struct, frozen=True, kw_only=True):
    """
    One start of a worker in a batch job.

    Parameters
    ----------
    site, source
        Name of the site, and the file that describes the site.
    seconds
        Time from the begin of the job until its worker joined.
    at
        When the worker joined, seconds since the epoch.
    """

    site: str
    source: str
    seconds: float
    at: float


def note_worker_start(path: Path, site: SiteFacts, seconds: float, at: float) -> None:
    """Append a start to the record; one that cannot be written is lost, and nothing else."""
    _append(path, WorkerStartLine(site=site.name, source=site.source, seconds=seconds, at=at))


def note_start_up(path: Path, cloud: CloudEndpoint, type: str, seconds: float, at: float) -> None:
    """Append a start to the record; one that cannot be written is lost, and nothing else."""
    line = StartUpLine(
        provider=cloud.provider,
        region=cloud.region,
        image=cloud.image,
        type=type,
        seconds=seconds,
        at=at,
    )
    _append(path, line)


def learned_start_up(seconds: list[float]) -> LearnedStartUp | None:
    """
    Return the median and the 90 % quantile of the last starts; None where there are none.

    Times that cannot be, as of a clock that was set back, do not count.
    """
    recent = sorted([one for one in seconds if 0 <= one < math.inf][-RECENT:])
    if not recent:
        return None
    # The nearest rank: a time that was seen, and the longest one of fewer than ten.
    high = recent[math.ceil(_HIGH * len(recent)) - 1]
    return LearnedStartUp(median=statistics.median(recent), high=high, count=len(recent))


def with_start_ups(facts: SiteFacts, runs: Path) -> SiteFacts:
    """
    Return a cloud or a batch site with the start-up times that earlier runs have seen.

    Of a cloud's machines only starts of the same provider, region and image count. A site that has
    such times keeps them, and a file that is missing or damaged says nothing.

    Parameters
    ----------
    runs
        Folder in which runs have kept such times.
    """
    if facts.batch is not None and facts.batch.learned is None:
        own = [
            line.seconds
            for line in _read(runs / WORKER_STARTS, WorkerStartLine)
            if (line.site, line.source) == (facts.name, facts.source)
        ]
        return replace(facts, batch=replace(facts.batch, learned=learned_start_up(own)))
    cloud = facts.cloud
    if cloud is None or any(machine.learned for machine in cloud.machines):
        return facts
    here = (cloud.provider, cloud.region, cloud.image)
    seen: dict[str, list[float]] = {}
    for line in _read(runs / START_UPS, StartUpLine):
        if (line.provider, line.region, line.image) == here:
            seen.setdefault(line.type, []).append(line.seconds)
    machines = tuple(
        replace(machine, learned=learned_start_up(seen.get(machine.name, [])))
        for machine in cloud.machines
    )
    return replace(facts, cloud=replace(cloud, machines=machines))


def _append(path: Path, line: msgspec.Struct) -> None:
    with contextlib.suppress(OSError):
        append_lines(path, [line])


def _read(path: Path, kind: type[T]) -> list[T]:
    try:
        return read_lines(path, kind)
    except OSError:
        return []
