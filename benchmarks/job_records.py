"""Reads what batch schedulers recorded of ended jobs, without any code of Bursar's."""

import re
from datetime import datetime
from pathlib import Path


def slurm_jobs(completions: Path, name: str) -> list[tuple[int, float]]:
    """
    Return the ended jobs whose name begins so, by Slurm's own file.

    Parameters
    ----------
    completions
        The file of ``JobCompType=jobcomp/filetxt``.
    name
        How the names of the jobs begin.

    Returns
    -------
    list of (int, float)
        Processors and seconds of each job that held any. A controller that was killed may write a
        second record of a job whose end it has forgotten: of records of one job with one begin the
        last counts.
    """
    found = {}
    for line in completions.read_text().splitlines() if completions.exists() else ():
        fields = dict(re.findall(r"(\w+)=(\S+)", line))
        if not fields.get("Name", "").startswith(name):
            continue
        if fields.get("NodeCnt") == "0" or "Unknown" in (fields["StartTime"], fields["EndTime"]):
            continue
        start = datetime.fromisoformat(fields["StartTime"])
        end = datetime.fromisoformat(fields["EndTime"])
        held = (int(fields["ProcCnt"]), (end - start).total_seconds())
        found[fields["JobId"], fields["Name"], start] = held
    return list(found.values())


def gridengine_jobs(accounting: Path, name: str) -> list[tuple[int, float]]:
    """
    Return the ended jobs whose name begins so, by Grid Engine's own file.

    Parameters
    ----------
    accounting
        The file ``CELL/common/accounting``; its fields are told by ``man 5 accounting``.
    name
        How the names of the jobs begin.

    Returns
    -------
    list of (int, float)
        Slots and seconds of each job, or each task of a job array, that held any.
    """
    found = []
    for line in accounting.read_text().splitlines() if accounting.exists() else ():
        fields = line.split(":")
        if line.startswith("#") or not fields[4].startswith(name):
            continue
        start, end, slots = int(fields[9]), int(fields[10]), int(fields[34])
        if start and end:
            # Milliseconds in this version of Grid Engine, seconds in older ones.
            unit = 1e3 if start > 1e11 else 1.0
            found.append((slots, (end - start) / unit))
    return found
