"""Formats of logs that a history imports, and which of them a text is of."""

import re
from collections.abc import Callable, Mapping
from typing import Literal

from bursar.history.importing.exported import read_exported
from bursar.history.importing.hyperqueue import read_hyperqueue
from bursar.history.importing.imported_log import ImportedLog
from bursar.history.importing.nextflow import read_nextflow
from bursar.history.importing.parallel import read_parallel
from bursar.history.importing.sacct import read_slurm

LogFormat = Literal[
    "bursar",
    "hyperqueue",
    "nextflow",
    "parallel",
    "run",
    "slurm",
    "snakemake",
    "snakemake-metadata",
    "swf",
    "wfformat",
]
"""Formats by name; ``run`` is a folder of a run, ``snakemake-metadata`` a project's folder."""

TEXT_READERS: Mapping[LogFormat, Callable[[str, str], ImportedLog]] = {
    "bursar": read_exported,
    "hyperqueue": read_hyperqueue,
    "nextflow": read_nextflow,
    "parallel": read_parallel,
    "slurm": read_slurm,
}
"""Readers that need only the text and path of a file."""


def guess_format(name: str, begin: str) -> LogFormat | None:
    """
    Return the format of a log; None: none that is known.

    Parameters
    ----------
    name
        Name of the file.
    begin
        The first thousands of characters of its text.
    """
    if re.search(r"\.swf(\.gz|\.xz)?$", name):
        return "swf"
    first = next((line for line in begin.splitlines() if line.strip()), "").lstrip("\ufeff")
    columns = [column.strip() for column in first.split("\t")]
    if columns[:2] == ["Seq", "Host"]:
        return "parallel"
    if columns[0] == "s" and (len(columns) == 1 or "h:m:s" in columns):
        return "snakemake"
    if len(columns) > 1 and "status" in columns:
        return "nextflow"
    if "JobID" in (fields := first.split("|")) or "JobIDRaw" in fields:
        return "slurm"
    if first.startswith("execution,"):
        return "bursar"
    if begin.lstrip().startswith(("{", "[")):
        if '"schemaVersion"' in begin:
            return "wfformat"
        if '"event"' in first or '"task-desc"' in begin or '"task_stats"' in begin:
            return "hyperqueue"
        if '"execution"' in first:
            return "bursar"
    if first.startswith(";"):
        return "swf"
    return None
