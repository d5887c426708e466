"""What a job of Snakemake needs, in the words of Bursar."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError

MEBIBYTE = 1024 * 1024

OWN_MEMORY = 256 * MEBIBYTE
"""Bytes of memory for the Snakemake that each job starts, beside what the rule states."""

GPU_RESOURCES = ("gpu", "gpus", "nvidia_gpu")
"""Resources of rules that count GPUs; the first that is stated counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeeds:
    """
    Processors and other resources of a job.

    Parameters
    ----------
    memory
        Bytes; None: not stated.
    runtime
        Estimated seconds; None: not stated.
    licences
        Numbers of other things that are counted at sites, by name.
    """

    processors: int = 1
    memory: int | None = None
    runtime: float | None = None
    gpus: int = 0
    licences: Mapping[str, int] = field(default_factory=dict)


def job_needs(resources: Mapping[str, Any], threads: int, counted: Mapping[str, int]) -> JobNeeds:
    """
    Return what a job, or a group of jobs that run together, needs.

    Parameters
    ----------
    resources
        Resources as Snakemake has worked them out; of a group, those of all its jobs together.
    counted
        Things that some site counts, by name, with the largest number at a site.

    Raises
    ------
    WorkflowError
        When a resource that Bursar heeds is no number.
    """

    def number(name: str) -> float | None:
        value = resources.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            raise WorkflowError(f"resource {name}: expected a number, got {value!r}")
        return float(value)

    memory, runtime = number("mem_mb"), number("runtime")
    per_thread = number("mem_mb_per_cpu")
    processors = max(1, int(number("_cores") or threads))
    if memory is None and per_thread is not None:
        memory = per_thread * processors
    gpus = next((found for name in GPU_RESOURCES if (found := number(name))), 0.0)
    return JobNeeds(
        processors=processors,
        memory=math.ceil(memory * MEBIBYTE) + OWN_MEMORY if memory else None,
        runtime=runtime * 60 if runtime else None,
        gpus=int(gpus),
        licences={
            name: int(count)
            for name in counted
            if name not in GPU_RESOURCES and (count := number(name))
        },
    )
