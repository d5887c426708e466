"""The memory that a worker reports."""

import os
from pathlib import Path

import pytest

from bursar.worker.worker_memory import memory_limit


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"job": "4096", "job/step": "max"}, 4096),
        ({"job": "4096", "job/step": "1024"}, 1024),
        ({"job": "max", "job/step": "max"}, None),
        ({}, None),
    ],
)
def test_a_control_groups_limit_counts_where_it_is_less(
    tmp_path: Path, limits: dict[str, str], expected: int | None
) -> None:
    """The least of all groups around the worker; without any, the machine's."""
    groups = tmp_path / "groups"
    (groups / "job" / "step").mkdir(parents=True)
    for name, limit in limits.items():
        (groups / name / "memory.max").write_text(f"{limit}\n")
    group = tmp_path / "cgroup"
    group.write_text("1:name=old:/elsewhere\n0::/job/step\n")
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found, owner = memory_limit(group, groups)
    assert found == (machine if expected is None else expected)
    assert bool(owner) == (expected is not None)
    assert memory_limit(tmp_path / "none", groups) == (machine, "")
