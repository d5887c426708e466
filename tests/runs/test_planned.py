"""The plan in a run's folder reads back as it was."""

import math
from pathlib import Path

import pytest

from bursar.model.errors import BursarError
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.slot import Slot
from bursar.runs.folder import RunFolder
from bursar.runs.plan_file import read_plan, write_plan


def _plan(duration: float) -> Plan:
    slot = Slot(site="here", start=0.0, duration=duration, processors=2, unit_price=0.1)
    return Plan(
        purchases=(Purchase(slot=slot),),
        placements=(Placement(0, "here", 0.0, 2.5, (0, 1)),),
        makespan=2.5,
        cost=0.5,
        currency="SU",
        utilisation=0.75,
        algorithm="heft",
    )


@pytest.mark.parametrize("duration", [2.5, math.inf])
def test_a_plan_reads_back_as_written(tmp_path: Path, duration: float) -> None:
    folder = RunFolder(tmp_path)

    write_plan(folder, {"front": [], "chosen": None}, _plan(duration))

    assert read_plan(folder) == ({"front": [], "chosen": None}, _plan(duration))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 99}'])
def test_a_damaged_plan_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)

    with pytest.raises(BursarError, match=r"plan\.json: damaged"):
        read_plan(RunFolder(tmp_path))


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(BursarError, match=r"plan\.json: cannot be read"):
        read_plan(RunFolder(tmp_path))
