"""
What code did step by step, held against what was recorded earlier.

Other tests say what must hold whatever is decided; these notice when anything is decided
otherwise. A change that is meant is recorded anew, and read before it is committed::

    BURSAR_WRITE_TRACES=1 python -m pytest tests/broker/test_traces.py
"""

import difflib
import os
import random
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

WRITE = "BURSAR_WRITE_TRACES"
"""Variable that has traces recorded anew."""

MOST_LINES = 60
"""Lines of a difference that a failing test prints; git shows all of them after a recording."""

_DIGITS = re.compile(r"-?\d+\.\d+(e-?\d+)?")


def pick(chance: random.Random, *of: Any) -> Any:
    """Return one of some values, by the method of the generator that stays the same for ever."""
    return of[int(chance.random() * len(of))]


def assert_recorded(file: Path, lines: Sequence[str]) -> None:
    """
    Fail, with the lines that differ and the way to record them anew, unless a file holds these.

    Nine digits of each number count, so that another processor's last bit is no difference.
    """
    found = [_DIGITS.sub(lambda n: f"{float(n[0]):.9g}", line) for line in lines]
    if os.environ.get(WRITE):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(found) + "\n")
    recorded = file.read_text().splitlines() if file.exists() else []
    if found != recorded:
        raise AssertionError(_difference(file, recorded, found))


def _difference(file: Path, recorded: Sequence[str], found: Sequence[str]) -> str:
    """Return what was recorded (-) beside what was found (+), and how to record it anew."""
    changes = difflib.unified_diff(recorded, found, "recorded", "found", lineterm="", n=2)
    shown = list(islice(changes, MOST_LINES + 1))
    if len(shown) > MOST_LINES:
        shown[MOST_LINES] = "..."
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return "\n".join(
        [
            f"{file} {'differs' if recorded else 'does not exist yet'}:",
            *shown,
            f"If the change is meant: {WRITE}=1 python -m pytest '{test}', then read git diff.",
        ]
    )
