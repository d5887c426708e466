"""
Program that runs the shell command of one job, by Snakemake's own shell and nothing else of it.

Use: ``python -P run_shell.py COMMAND``, where the command is JSON of
:class:`snakemake_executor_plugin_bursar.shell_jobs.ShellCommand`. The program is started by its
path: the package, and with it the engine, is not imported.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

LOOK_AGAIN = 0.2
"""Seconds between two looks for inputs that a network file system does not show yet."""


def wait_for(inputs: Iterable[str], patience: float) -> list[str]:
    """Return the inputs that are not there after some seconds; none where all are."""
    give_up = time.monotonic() + patience
    while (absent := [path for path in inputs if not os.path.lexists(path)]) and (
        time.monotonic() < give_up
    ):
        time.sleep(LOOK_AGAIN)
    return absent


def clear(path: str, *, is_directory: bool) -> None:
    """
    Remove what an earlier try has left, as Snakemake does before a job, and make the folder around.

    Raises
    ------
    PermissionError
        When the output is write-protected.
    """
    is_link = os.path.islink(path)
    if os.path.exists(path) and not is_link and not os.access(path, os.W_OK):
        raise PermissionError(f"{path}: write-protected output, which the rule would overwrite")
    if os.path.isdir(path) and not is_link:
        if is_directory:
            shutil.rmtree(path)
        else:
            with contextlib.suppress(OSError):  # a folder with something in it stays
                os.removedirs(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    if folder := os.path.dirname(path):
        os.makedirs(folder, exist_ok=True)


def main(text: str) -> int:
    """Run the command; return its exit status."""
    from snakemake.shell import shell

    job = json.loads(text)
    if absent := wait_for(job["inputs"], job["patience"]):
        print(f"missing input after {job['patience']} s: {', '.join(absent)}", file=sys.stderr)
        return 1
    try:
        for path in job["files"]:
            clear(path, is_directory=False)
        for path in job["directories"]:
            clear(path, is_directory=True)
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    resources = dict(job["resources"])
    if job["has_temporary_folder"]:
        resources["tmpdir"] = tempfile.gettempdir()
        os.makedirs(resources["tmpdir"], exist_ok=True)
    try:
        # As a value, so that braces in the command are left alone.
        shell(
            "{command}",
            command=job["command"],
            threads=job["threads"],
            resources=resources,
            is_shell=True,
        )
    except subprocess.CalledProcessError as error:
        return error.returncode if error.returncode > 0 else 128 - error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
