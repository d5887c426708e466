"""The tutorial's commands print what the tutorial says."""

from pathlib import Path

import pytest
from tests.documents import ShownFile, carry_out, shape, steps_of

TUTORIAL = Path(__file__).resolve().parents[1] / "docs" / "tutorial.md"


@pytest.mark.ci
def test_each_command_prints_what_is_shown(tmp_path: Path) -> None:
    """Each line shown is among those printed, whatever its numbers and spaces."""
    steps = steps_of(TUTORIAL)
    first = next(i for i, step in enumerate(steps) if isinstance(step, ShownFile))
    assert carry_out(steps[first:], tmp_path, {}) > 15


def test_shapes_differ_by_words_alone() -> None:
    assert shape(" held  0.6 s of 12") == shape("held 650 ms of 3,000")
    assert shape("deadline  1 min 0 s  (met)") == shape("deadline 3 s (met)")
    assert shape("deadline (met)") != shape("deadline (missed)")
