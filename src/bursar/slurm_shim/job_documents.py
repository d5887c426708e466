"""Jobs as the JSON of ``squeue --json`` and ``scontrol show job --json``."""

import json
import math
from collections.abc import Sequence
from typing import Any

from bursar.slurm_shim.jobs import JobElement
from bursar.slurm_shim.listing import (
    ListedElement,
    end_or_limit,
    errors_of,
    output_of,
    reason_of,
)


def job_documents(lines: Sequence[ListedElement], version: str) -> str:
    """
    Return jobs as text in JSON, in the form of Slurm's data parser v0.0.41.

    Numbers that may be unset are objects there, and states are lists.

    Parameters
    ----------
    version
        Of Slurm, as ``24.05.0``.
    """
    major, minor, micro = version.split(".")
    document = {
        "jobs": [_job(line) for line in lines],
        "last_update": _number(int(max((line.now for line in lines), default=0.0))),
        "meta": {
            "plugin": {"type": "", "name": "", "data_parser": "data_parser/v0.0.41"},
            "slurm": {
                "version": {"major": major, "micro": micro, "minor": minor},
                "release": version,
                "cluster": "bursar",
            },
        },
        "errors": [],
        "warnings": [],
    }
    return json.dumps(document, indent=2)


def _number(value: float | None, *, infinite: bool = False) -> dict[str, Any]:
    return {"set": value is not None, "infinite": infinite, "number": value or 0}


def _job(line: ListedElement) -> dict[str, Any]:
    element, facts = line.element, line.element.facts
    is_array = element.index is not None
    minutes = None if facts.limit is None else math.ceil(facts.limit / 60)
    megabytes = None if facts.memory is None else facts.memory // 2**20
    command = "" if facts.command == "(null)" else facts.command
    return {
        "account": facts.account,
        "array_job_id": _number(element.job if is_array else 0),
        "array_max_tasks": _number(facts.at_once),
        "array_task_id": _number(None if line.positions else element.index),
        "array_task_string": line.positions,
        "batch_flag": True,
        "batch_host": line.host,
        "cluster": "bursar",
        "command": command,
        "comment": facts.comment,
        "cpus": _number(facts.processors),
        "current_working_directory": facts.folder,
        "dependency": ",".join(
            dict.fromkeys(
                one.kind if one.kind == "singleton" else f"{one.kind}:{one.job}(unfulfilled)"
                for one in facts.after
            )
        )
        if element.state == "PENDING"
        else "",
        "end_time": _number(int(end_or_limit(line))),
        "exit_code": _exit_code(element),
        "job_id": element.number,
        "job_state": [element.state],
        "licenses": facts.licenses,
        "memory_per_node": _number(megabytes),
        "name": facts.name,
        "node_count": _number(1),
        "nodes": line.host,
        "partition": facts.partition,
        "qos": "normal",
        "requeue": facts.requeues,
        "restart_cnt": element.restarts,
        "standard_error": errors_of(line),
        "standard_input": "/dev/null",
        "standard_output": output_of(line),
        "start_time": _number(int(element.start)),
        "state_reason": reason_of(line),
        "submit_time": _number(int(element.submitted)),
        "tasks": _number(1),
        **{f"tres_per_{what}": facts.tres.get(what, "") for what in ("job", "node", "task")},
        "time_limit": _number(minutes, infinite=minutes is None),
        "user_id": line.uid,
        "user_name": facts.user,
    }


def _exit_code(element: JobElement) -> dict[str, Any]:
    code = element.exit_code
    if not element.has_ended:
        status = "PENDING"
    elif code < 0:
        status = "SIGNALED"
    else:
        status = "ERROR" if code else "SUCCESS"
    return {
        "status": [status],
        "return_code": _number(max(code, 0)),
        "signal": {"id": _number(-code if code < 0 else None), "name": ""},
    }
