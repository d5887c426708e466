"""
Programs of other people's packages, run in an environment of their own.

Their needs exclude those of the project's own tools (of one library two versions), so that they
may be installed elsewhere: ``BURSAR_READERS_PYTHON`` names the interpreter of that environment.
``pip install wfcommons evalys roc-validator rocrate`` makes one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = os.environ.get("BURSAR_READERS_PYTHON", sys.executable)


def run_foreign(modules: str, program: str, *words: str, folder: Path) -> str:
    """
    Return what a program prints; the test is skipped where a module is absent.

    Parameters
    ----------
    modules
        Modules that the program needs, with commas between.
    """
    found = subprocess.run([PYTHON, "-c", f"import {modules}"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"needs {modules}, here or in the environment of BURSAR_READERS_PYTHON")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", "-c", program, *words],
        cwd=folder,
        env=os.environ | {"MPLBACKEND": "agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
