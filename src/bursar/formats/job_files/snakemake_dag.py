"""
Writes the jobs of a Snakemake workflow as JSON; runs as a program of its own.

The Python that has Snakemake runs this file, and that Python may lack Bursar: nothing but Snakemake
and the standard library is imported. Snakemake's own command line reads the arguments, so that
profiles, configuration and targets mean what they mean to ``snakemake``.

    python snakemake_dag.py RESULT --snakefile FILE --dag dot [ARGUMENT ...]
"""

import contextlib
import json
import os
import re
import sys
from typing import Any

UNLIMITED = 10_000
"""Cores that are assumed where the arguments state none: threads of rules stay as written."""


def main(arguments: list[str]) -> None:
    """
    Write the jobs, and exit as Snakemake does.

    Parameters
    ----------
    arguments
        File for the result, and the arguments of ``snakemake``.
    """
    from snakemake.api import DAGApi
    from snakemake.cli import main as snakemake

    result = os.path.abspath(arguments[0])

    def write(api: Any) -> None:
        settings = api.workflow_api.resource_settings
        settings.cores = settings.cores or UNLIMITED
        workflow = api.workflow_api._workflow
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            workflow.printdag()
        # Functions of the Snakefile may fail here: then there is to be no file.
        text = json.dumps(described(workflow))
        with open(result, "w") as stream:
            stream.write(text)

    def refuse(*_: Any, **__: Any) -> None:
        sys.exit("the arguments ask for more than the jobs to run")

    # Arguments such as --delete-all-output would act, and a plan shall change nothing.
    for name, member in list(vars(DAGApi).items()):
        if callable(member) and not name.startswith("_"):
            setattr(DAGApi, name, refuse)
    # The command line calls this method for --dag, when all its arguments have been applied.
    DAGApi.printdag = write
    snakemake(arguments[1:])


def described(workflow: Any) -> dict[str, Any]:
    """Return the jobs of a workflow of Snakemake, in the order of ``workflow.dag.jobs``."""
    dag = workflow.dag
    jobs = list(dag.jobs)
    number = {job: at for at, job in enumerate(jobs)}
    return {
        "folder": os.getcwd(),
        "cores": workflow.resource_settings.cores,
        "jobs": [_job(workflow, job, number) for job in jobs],
    }


def _job(workflow: Any, job: Any, number: dict[Any, int]) -> dict[str, Any]:
    dag = workflow.dag
    records = _records(workflow, job)
    return {
        "rule": job.rule.name,
        "wildcards": {name: str(value) for name, value in (job.wildcards_dict or {}).items()},
        "command": job.rule.shellcmd or "",
        "parents": sorted(number[parent] for parent in dag.dependencies[job]),
        "needed": bool(dag.needrun(job)),
        "empty": bool(job.is_norun),
        "checkpoint": bool(job.is_checkpoint),
        "group": None if job.group is None else str(job.group),
        "local": bool(job.is_local),
        "threads": int(job.threads),
        "resources": _resources(job),
        "inputs": [[str(name), _size(name)] for name in job.input],
        "outputs": [[str(name), _size(name)] for name in job.output],
        "benchmark": None if job.benchmark is None else str(job.benchmark),
        # What it was when the job ran the last time; None: unknown.
        "started": min((one["starttime"] for one in records), default=None),
        "ended": max((one["endtime"] for one in records), default=None),
        "recorded_threads": _recorded_threads(job, records[0]["shellcmd"]) if records else None,
        "recorded_inputs": len(set(records[0]["input"] or ())) if records else None,
    }


def _resources(job: Any) -> dict[str, Any]:
    """Return the resources that are known now; some depend on files that do not exist yet."""
    found = {}
    for name, value in job.resources.items():
        if not name.startswith("_") and isinstance(value, int | float | str):
            # Snakemake has kinds of text for what is to be determined and for human units.
            found[name] = value if type(value) in (int, float, bool) else str(value)
    return found


def _size(name: Any) -> int | None:
    with contextlib.suppress(OSError):
        if os.path.isfile(name):
            return os.path.getsize(name)
    return None


def _records(workflow: Any, job: Any) -> list[dict[str, Any]]:
    """Return Snakemake's records of the job's last run, one for each output."""
    found = []
    for name in job.output:
        record = workflow.persistence.metadata(name)
        # Earlier versions of Snakemake 9 return a dictionary.
        facts = {
            at: record.get(at) if isinstance(record, dict) else getattr(record, at, None)
            for at in ("rule", "incomplete", "starttime", "endtime", "shellcmd", "input")
        }
        is_timed = facts["starttime"] is not None and facts["endtime"] is not None
        if is_timed and not facts["incomplete"] and facts["rule"] == job.rule.name:
            found.append(facts)
    return found


def _recorded_threads(job: Any, command: str | None) -> int | None:
    """Return the threads that a recorded command was given; None where it does not tell them."""
    if not command or "{threads" not in (job.rule.shellcmd or ""):
        return None
    mark = "\0threads\0"
    # Whatever the command refers to may be gone.
    with contextlib.suppress(Exception):
        pattern = re.escape(job.format_wildcards(job.rule.shellcmd, threads=mark))
        found = re.fullmatch(pattern.replace(re.escape(mark), r"(\d+)"), command, re.DOTALL)
        if found is not None and len(set(found.groups())) == 1:
            return int(found.group(1))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
