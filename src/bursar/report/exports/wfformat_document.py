"""
A run as a document of WfFormat 1.5.

https://github.com/wfcommons/WfFormat, tag v1.5. What the format has no field for stands under the
key ``bursar``, which its schema allows and other readers pass over.
"""

import re
from typing import Any

import msgspec

from bursar.model.money import from_micros
from bursar.model.site import SiteFacts
from bursar.report.exports.exported_run import ExportedRun, moment, present, safe_names
from bursar.version import VERSION

SCHEMA = "https://raw.githubusercontent.com/wfcommons/WfFormat/v1.5/wfcommons-schema.json"
"""Where the JSON schema of the format is published."""

_UNSAFE_ID = re.compile(r"[^0-9a-zA-Z\-_.#]")
_UNSAFE_FILE = re.compile(r"[^0-9a-zA-Z\-_./:#]")
_UNSAFE_NODE = re.compile(r"[^0-9a-zA-Z\-.]")


def wfformat_document(run: ExportedRun) -> dict[str, Any]:
    """
    Return a run as WfFormat: one execution record for each task, that of its last attempt.

    Ids and file names that the schema does not allow are changed, each into one of its own.
    """
    workflow = run.workflow
    ids = safe_names((task.id for task in workflow.tasks), _UNSAFE_ID)
    every = [file.name for task in workflow.tasks for file in (*task.inputs, *task.outputs)]
    files = safe_names(every, _UNSAFE_FILE)
    nodes = safe_names((site.name for site in run.sites), _UNSAFE_NODE)
    names = [ids[task.id] for task in workflow.tasks]
    tasks = [
        {
            "name": task.name or task.id,
            "id": names[number],
            "parents": [names[parent] for parent in workflow.parents[number]],
            "children": [names[child] for child in children],
            "inputFiles": list(dict.fromkeys(files[file.name] for file in task.inputs)),
            "outputFiles": list(dict.fromkeys(files[file.name] for file in task.outputs)),
        }
        for number, (task, children) in enumerate(
            zip(workflow.tasks, workflow.children, strict=True)
        )
    ]
    specification = {
        "tasks": tasks,
        "files": [{"id": made, "sizeInBytes": run.size_of(name) or 0}
                  for name, made in files.items()],
    }  # fmt: skip
    document: dict[str, Any] = {
        "name": run.campaign or run.name,
        "description": f"Run {run.name} of {run.campaign or 'a campaign'}, {run.state}",
        "createdAt": moment(run.created),
        "schemaVersion": "1.5",
        "runtimeSystem": {"name": "Bursar", "version": VERSION},
        "workflow": {"specification": specification},
        "bursar": _run_facts(run, [files[name] for name in files if run.size_of(name) is None]),
    }
    records = [
        made
        for number, name in enumerate(names)
        if (made := _execution(run, number, name, nodes)) is not None
    ]
    if records:
        used = {name for one in records for name in one.get("machines", ())}
        machines = [_machine(site, nodes) for site in run.sites if nodes[site.name] in used]
        document["workflow"]["execution"] = present(
            {
                "executedAt": moment(run.created if run.begun is None else run.begun),
                "tasks": records,
                "machines": machines,
            }
        ) | {"makespanInSeconds": run.makespan or 0.0}
    return document


def _run_facts(run: ExportedRun, unknown: list[str]) -> dict[str, Any]:
    bill = run.bill
    return {
        "run": run.name,
        "state": run.state,
        "currency": bill.currency,
        "cost": from_micros(bill.total),
        "costMicros": bill.total,
        "heldMicros": bill.held,
        "leases": msgspec.to_builtins(bill.leases),
    } | present(
        {
            "deadlineInSeconds": run.goal.deadline,
            "budget": run.goal.budget,
            "unsettled": list(bill.unsettled),
            "filesOfUnknownSize": unknown,
        }
    )


def _execution(
    run: ExportedRun, number: int, name: str, nodes: dict[str, str]
) -> dict[str, Any] | None:
    """Return the execution record of a task; None: it has not run."""
    record = run.last(number)
    if record is None:
        return None
    task, outcome = run.workflow.tasks[number], record.outcome
    attempts = run.by_task.get(number, ())
    seconds = max(0.0, outcome.end - outcome.start)
    command = run.command_of(task)
    node = nodes.get(record.site)
    facts = present(
        {
            "executedAt": moment(outcome.start),
            "command": present(
                {"program": command[0], "arguments": [word for word in command[1:] if word]}
            )
            if command
            else None,
            "memoryInBytes": outcome.max_rss or None,
            "machines": [node] if node else [],
        }
    )
    if seconds > 0:
        facts["avgCPU"] = 100 * (outcome.user_seconds + outcome.system_seconds) / seconds
    return {
        "id": name,
        "runtimeInSeconds": seconds,
        "coreCount": task.processors,
        **facts,
        "bursar": {
            "status": run.status(number),
            "attempts": len(attempts),
            "processorSeconds": sum(task.processors * one.seconds for one in attempts),
            "costMicros": sum(one.cost for one in attempts),
        }
        | present(
            {
                "task": task.id if task.id != name else None,
                "reason": outcome.reason,
                "exitCode": outcome.exit_code or None,
                "lease": "" if record.is_reused else record.lease,
                "reusedFrom": run.reused.get(number),
                "parameters": dict(task.parameters),
            }
        ),
    }


def _machine(site: SiteFacts, nodes: dict[str, str]) -> dict[str, Any]:
    """Describe a site as a machine: the run does not record more of where its tasks ran."""
    return present(
        {
            "nodeName": nodes[site.name],
            "system": "linux",
            "memoryInBytes": site.memory or None,
            "cpu": {"coreCount": site.processors},
        }
    )
