"""
HyperQueue: the wheel's in-process cluster with one worker of two processors.

Its tasks write what they print to files, which are read when the job is done.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from hyperqueue import Client, Job, LocalCluster
from hyperqueue.cluster import WorkerConfig
from job import WORKERS, arguments, measure


def main() -> None:
    """One job of many tasks."""
    given = arguments()
    with tempfile.TemporaryDirectory() as folder, LocalCluster() as cluster:
        cluster.start_worker(WorkerConfig(cores=WORKERS))
        client = Client(cluster.cluster.server_dir)

        def carry(numbers: list[int]) -> list[str]:
            room = Path(tempfile.mkdtemp(dir=folder))
            job = Job(default_workdir=room)
            for number in numbers:
                # Nobody reads echo's stderr; a second file would only slow it down.
                job.program(["/bin/echo", str(number)], stderr=None)
            # It draws a progress bar, which is not ours to show.
            with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
                client.wait_for_jobs([client.submit(job)])
            return [file.read_text() for file in room.iterdir()]

        measure(carry, given.commands)


if __name__ == "__main__":
    main()
