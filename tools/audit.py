"""
Checks the pinned dependencies for known faults by ``pip-audit``.

Exit status: 0 none of them has a known fault; 1 some have; 3 nobody knows, since the data of
known faults could not be had for all of them. That is no pass.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
UNKNOWN = 3


def verdict(said: str) -> tuple[int, list[str]]:
    """
    Return the exit status and the lines to print for an answer of ``pip-audit --format json``.

    Parameters
    ----------
    said
        What it printed; anything that is not its JSON counts as no answer.
    """
    try:
        dependencies: list[dict[str, Any]] = json.loads(said)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return UNKNOWN, [_loud("pip-audit gave no answer")]
    faults = [
        f"{one['name']} {one['version']}: {fault['id']}, mended in"
        f" {', '.join(fault['fix_versions']) or 'no version yet'}"
        for one in dependencies
        for fault in one.get("vulns", ())
    ]
    unknown = [one["name"] for one in dependencies if "skip_reason" in one]
    if faults:
        return 1, faults
    if unknown or not dependencies:
        what = f"no data for {len(unknown)} of {len(dependencies)} packages"
        return UNKNOWN, [_loud(what)]
    return 0, [f"no known faults in {len(dependencies)} packages"]


def _loud(reason: str) -> str:
    return (
        f"*** Dependencies NOT AUDITED: {reason} (no way to pypi.org from here?). Where there is"
        " one: python -m pip install pip-audit && make audit ***"
    )


def main() -> int:
    """Ask pip-audit and print its verdict; return the exit status."""
    command = [sys.executable, "-m", "pip_audit", "--require-hashes", "--disable-pip"]
    try:
        done = subprocess.run(
            [*command, "--format", "json", "--progress-spinner", "off", "-r", str(LOCK)],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        status, lines = verdict(done.stdout)
    except subprocess.TimeoutExpired:
        status, lines = UNKNOWN, [_loud("pip-audit gave no answer within 600 s")]
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
