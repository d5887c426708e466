"""
What code did step by step, held against what was recorded earlier.

Other tests say what must hold whatever is decided; these notice when anything is decided
otherwise. A change that is meant is recorded anew, and read before it is committed::

    BURSAR_WRITE_TRACES=1 python -m pytest tests/broker/test_traces.py
"""

import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WRITE = "BURSAR_WRITE_TRACES"
"""Variable that has traces recorded anew."""

_DIGITS = re.compile(r"-?\d+\.\d+(e-?\d+)?")


def pick(chance: random.Random, *of: Any) -> Any:
    """Return one of some values, by the method of the generator that stays the same for ever."""
    return of[int(chance.random() * len(of))]


def assert_recorded(file: Path, lines: Sequence[str]) -> None:
    """
    Fail, with the first line that differs, unless a file holds these lines.

    Nine digits of each number count, so that another processor's last bit is no difference.
    """
    found = [_DIGITS.sub(lambda n: f"{float(n[0]):.9g}", line) for line in lines]
    if os.environ.get(WRITE):
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(found) + "\n")
    recorded = file.read_text().splitlines()
    pairs = enumerate(zip(found, recorded, strict=False), 1)
    first = next((f"{file}:{i}\nfound: {a}\nthen:  {b}" for i, (a, b) in pairs if a != b), None)
    assert first is None, first
    assert len(found) == len(recorded)
