"""
The call that carries a job out on a worker.

The module is sent along with the call: workers need neither Snakemake's interface nor this package.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
from typing import TypedDict


class ScriptEnd(TypedDict):
    """The end of a script: its exit status, negative for a signal, and the last of its output."""

    status: int
    printed: str


MOST_PRINTED = 20_000
"""Bytes of a script's output that are kept for messages; all of it is in the log file."""


def run_script(text: str, folder: str, log: str, mark: str) -> ScriptEnd:
    """
    Run a shell script in a folder, with its output in a log file.

    A copy of the job that the workers of a killed engine still run is waited for.

    Parameters
    ----------
    log
        Path of the file; the folder around it is made.
    mark
        Path of a file that is made when the script has ended well. If it is there, nothing runs.
    """
    for path in (log, mark):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(f"{mark}.lock", "ab") as lock:
        # Where the file system knows no locks, workers that end with their engine have to do.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(mark):
            return {"status": 0, "printed": ""}
        with open(log, "wb") as output:
            done = subprocess.run(
                ["/bin/sh", "-c", text],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                # The script holds the lock as well, in case that it outlives this process.
                pass_fds=(lock.fileno(),),
            )
        if done.returncode == 0:
            with open(f"{mark}.new", "wb") as made:
                os.fsync(made.fileno())
            os.replace(f"{mark}.new", mark)
    with open(log, "rb") as printed:
        printed.seek(0, os.SEEK_END)
        printed.seek(max(0, printed.tell() - MOST_PRINTED))
        last = printed.read().decode(errors="replace")
    return {"status": done.returncode, "printed": last}


def in_words(status: int) -> str:
    """Return what an exit status says."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
