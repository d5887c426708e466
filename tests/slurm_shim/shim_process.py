"""A folder of stand-ins of Slurm's commands, called as users call them."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bursar.dispatch.linux_processes import kill_leftovers
from bursar.locking import lock_holder
from bursar.slurm_shim.shim_folder import ShimFolder

PATIENCE = 60.0


class Shim:
    """A folder of stand-ins, and a folder to call them in."""

    def __init__(self, root: Path, site: str | None = None) -> None:
        self.folder = ShimFolder(root / "bin")
        self.folder.write(site)
        self.work = root / "work"
        self.work.mkdir()

    def run(self, line: str, status: int | None = 0) -> str:
        """Run a shell line as a user would; return what it prints."""
        done = subprocess.run(
            ["/bin/bash", "-c", line],
            cwd=self.work,
            env={**os.environ, "PATH": f"{self.folder.folder}:{os.environ['PATH']}", "MINE": "yes"},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def submit(self, line: str) -> str:
        """Return the number of a job."""
        return self.run(f"sbatch --parsable {line}").strip()

    def state(self, job: str) -> str:
        """Return the state of a job, once it has ended."""
        give_up = time.monotonic() + PATIENCE
        while True:
            said = self.run(f"sacct -X -n -P -o State -j {job}").split("\n")
            if not {"PENDING", "RUNNING"} & set(said):
                return said[0]
            assert time.monotonic() < give_up, said
            time.sleep(0.3)  # each look starts an interpreter

    def kill_service(self) -> None:
        """Kill the service as a power cut would; its workers live on."""
        holder = lock_holder(self.folder.service_folder / "journal" / ".lock")
        assert holder is not None
        os.kill(holder.process, signal.SIGKILL)

    def clear(self) -> None:
        identity = self.folder.service_folder / "journal" / "service.json"
        if identity.exists():
            self.folder.stop()
            kill_leftovers(str(json.loads(identity.read_bytes())["run"]))


@contextmanager
def shim_process(root: Path) -> Iterator[Shim]:
    """Yield stand-ins whose own service ends at the end."""
    found = Shim(root)
    try:
        yield found
    finally:
        found.clear()
