"""The plan in a run's folder reads back as it was."""

import json
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


def test_the_file_names_units_and_says_null_for_a_slot_without_an_end(tmp_path: Path) -> None:
    """Later versions read this: it may change only with the number of the format."""
    write_plan(RunFolder(tmp_path), {}, _plan(math.inf))

    assert json.loads((tmp_path / "plan.json").read_bytes())["plan"]["slots"] == [
        {
            "site": "here",
            "start_s": 0.0,
            "duration_s": None,
            "processors": 2,
            "unit_price": 0.1,
            "fixed_price": 0.0,
            "divisible": True,
            "extensible": False,
            "leased": False,
            "part": None,
        }
    ]


@pytest.mark.parametrize(
    ("field", "value"), [("processors", 0), ("site", None), ("start_s", "soon"), ("part", "all")]
)
def test_a_slot_that_is_none_is_damage(tmp_path: Path, field: str, value: object) -> None:
    folder = RunFolder(tmp_path)
    write_plan(folder, {}, _plan(2.5))
    content = json.loads(folder.plan_file.read_bytes())
    content["plan"]["slots"][0][field] = value
    folder.plan_file.write_text(json.dumps(content))

    with pytest.raises(BursarError, match=r"plan\.json: damaged"):
        read_plan(folder)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 99}'])
def test_a_damaged_plan_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)

    with pytest.raises(BursarError, match=r"plan\.json: damaged"):
        read_plan(RunFolder(tmp_path))


def test_a_missing_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(BursarError, match=r"plan\.json: cannot be read"):
        read_plan(RunFolder(tmp_path))
