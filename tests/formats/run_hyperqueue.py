"""
Runs job files by HyperQueue itself: ``python run_hyperqueue.py FOLDER...``, a ``job.toml`` in each.

The wheel of HyperQueue has its server and workers, but no ``hq``, so that the file's tables are
handed to the server as its own client does. Prints, for each folder, a line of JSON: the tasks that
failed, with HyperQueue's words.
"""

import json
import os
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

from hyperqueue import LocalCluster
from hyperqueue.cluster import WorkerConfig
from hyperqueue.ffi.client import ClientConnection
from hyperqueue.ffi.protocol import JobDescription, ResourceRequest, TaskDescription
from hyperqueue.output import StdioDef


def stream(stated: Any) -> StdioDef | None:
    """Return where a stream goes; None: nowhere."""
    if stated is None:
        return StdioDef(None, "none")
    if isinstance(stated, str):
        return None if stated == "none" else StdioDef(stated, "none")
    return StdioDef(stated.get("path"), stated.get("mode", "none"))


def task(table: dict[str, Any], own: int, **more: str) -> TaskDescription:
    requests = [
        ResourceRequest(
            cpus=one.get("resources", {}).get("cpus", 1),
            resources={},
            min_time=timedelta(seconds=one["time_request"]) if "time_request" in one else None,
        )
        for one in table.get("request", ())
    ]
    return TaskDescription(
        id=own,
        args=table["command"],
        cwd=table.get("cwd"),
        stdout=stream(table.get("stdout")),
        stderr=stream(table.get("stderr")),
        stdin=table["stdin"].encode() if "stdin" in table else None,
        env={**more, **table.get("env", {})},
        dependencies=table.get("deps", []),
        task_dir=table.get("task_dir", False),
        priority=table.get("priority", 0),
        resource_request=requests,
        crash_limit=table.get("crash_limit"),
    )


def job(document: dict[str, Any]) -> JobDescription:
    tasks = [task(table, table["id"]) for table in document.get("task", ())]
    if "array" in document:
        first, _, last = document["array"]["ids"].partition("-")
        entries = document["array"].get("entries")
        for position, own in enumerate(range(int(first), int(last) + 1)):
            # What HyperQueue's own arrays set.
            more = {"HQ_ENTRY": entries[position]} if entries else {}
            tasks.append(task(document["array"], own, **more))
    return JobDescription(name=document.get("name"), tasks=tasks, max_fails=None)


def main() -> None:
    cluster = LocalCluster(worker_config=WorkerConfig(cores=2))
    client = ClientConnection(cluster.cluster.server_dir)
    try:
        for folder in sys.argv[1:]:
            os.chdir(folder)
            number = client.submit_job(job(tomllib.loads(Path("job.toml").read_text())))
            client.wait_for_jobs([number], lambda _: None)
            failed = client.get_failed_tasks([number]).get(number, {})
            said = {str(own): context.error for own, context in failed.items()}
            print(json.dumps(said), flush=True)
    finally:
        cluster.stop()


main()
