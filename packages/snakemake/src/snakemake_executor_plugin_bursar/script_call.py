"""
The call that carries a job out on a worker.

The module is sent along with the call: workers need neither Snakemake's interface nor this package.
"""

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


def run_script(text: str, folder: str, log: str) -> ScriptEnd:
    """
    Run a shell script in a folder, with its output in a log file.

    Parameters
    ----------
    log
        Path of the file; the folder around it is made.
    """
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "wb") as output:
        done = subprocess.run(
            ["/bin/sh", "-c", text],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
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
