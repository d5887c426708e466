"""Start-up times of machines that earlier runs have seen, kept in one file beside the runs."""

import math
import statistics
from dataclasses import replace
from pathlib import Path

import msgspec

from bursar.model.cloud import CloudEndpoint, LearnedStartUp
from bursar.model.site import SiteFacts
from bursar.sites.durable_lines import append_lines, read_lines

START_UPS = "cloud_start_ups.jsonl"
"""File in the folder of the runs, a line for each machine whose worker has joined."""

_RECENT = 50
"""Last starts of a type that count: images and providers change."""

_HIGH = 0.9


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
    try:
        append_lines(path, [line])
    except OSError:
        return


def learned_start_up(seconds: list[float]) -> LearnedStartUp | None:
    """Return the median and the 90 % quantile of the last starts; None where there are none."""
    recent = sorted(seconds[-_RECENT:])
    if not recent:
        return None
    # The nearest rank: a time that was seen, and the longest one of fewer than ten.
    high = recent[math.ceil(_HIGH * len(recent)) - 1]
    return LearnedStartUp(median=statistics.median(recent), high=high, count=len(recent))


def with_start_ups(facts: SiteFacts, path: Path) -> SiteFacts:
    """
    Return a cloud whose types of machine have the start-up times that earlier runs have seen.

    Only starts of the same provider, region and image count. A cloud that has such times keeps
    them, and a file that is missing or damaged says nothing.
    """
    cloud = facts.cloud
    if cloud is None or any(machine.learned for machine in cloud.machines):
        return facts
    try:
        lines = read_lines(path, StartUpLine)
    except OSError:
        return facts
    here = (cloud.provider, cloud.region, cloud.image)
    seen: dict[str, list[float]] = {}
    for line in lines:
        if (line.provider, line.region, line.image) == here and 0 <= line.seconds < math.inf:
            seen.setdefault(line.type, []).append(line.seconds)
    machines = tuple(
        replace(machine, learned=learned_start_up(seen.get(machine.name, [])))
        for machine in cloud.machines
    )
    return replace(facts, cloud=replace(cloud, machines=machines))
