"""
Runs all tests, then the few that failed once more, each alone in a process of its own.

Hundreds of tests start real processes, schedulers and services side by side, so one may fail by
a race of its own. CPython's test runner has ``--rerun`` for the same reason. A test that passes
at its second try is named loudly as UNSTABLE: something is to be mended there, in the test or in
the product. More than `MOST` failures are never tried again, and neither is a property's
counterexample spared: hypothesis keeps it and begins with it.

Exit status: that of pytest, or 0 if everything that failed passed at its second try.
"""

import json
import subprocess
import sys
from pathlib import Path

FAILED = Path(".pytest_cache", "v", "cache", "lastfailed")
"""Where pytest keeps the names of what failed, below the folder that it is started in."""
MOST = 3
"""Failures beyond this number are taken for a broken change, not for chance."""


def main(arguments: list[str]) -> int:
    """Run pytest with `arguments`, then what failed; return the exit status."""
    FAILED.unlink(missing_ok=True)
    status = _pytest(*arguments)
    if status != 1 or not FAILED.exists():
        return status
    failed = sorted(json.loads(FAILED.read_text()))
    if len(failed) > MOST:
        print(f"*** {len(failed)} tests failed, more than {MOST}: no second try ***", flush=True)
        return status
    print(f"*** {len(failed)} failed; a second try, each alone ***", flush=True)
    unstable = [test for test in failed if _pytest("-m", "", test) == 0]
    for test in unstable:
        print(f"*** UNSTABLE, passed only at its second try: {test} ***", flush=True)
    return 0 if unstable == failed else status


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
