"""Campaigns as a service takes them."""

import base64
from pathlib import Path

import msgspec
import pytest

from bursar.formats.campaign_file import read_campaign
from bursar.model.errors import InputError
from bursar.model.task import Copy, Step
from bursar.remote.submission import specs_of, uploads_of

BAG = """\
[tasks.one]
command = "cat in.txt > out.txt"
inputs = ["in.txt"]
outputs = ["out.txt"]
runtime = 5
[tasks.two]
command = ["echo", "two words"]
[retry]
attempts = 2
"""


def written(folder: Path, name: str, text: str) -> Path:
    """A file in a folder."""
    path = folder / name
    path.write_text(text)
    return path


def test_independent_tasks_become_what_a_service_takes(tmp_path: Path) -> None:
    """Ids are labels; what a task reads goes with it."""
    written(tmp_path, "in.txt", "hello")
    campaign = read_campaign(written(tmp_path, "c.toml", BAG))
    one, two = specs_of(campaign)
    assert (one.label, one.shell) == ("one", "cat in.txt > out.txt")
    assert (one.inputs, one.outputs) == (("in.txt",), ("out.txt",))
    assert (one.hints.runtime, one.tries) == (5.0, 2)
    assert (two.label, two.command) == ("two", ("echo", "two words"))
    assert uploads_of(campaign) == {"in.txt": tmp_path / "in.txt"}


def test_steps_of_a_plan_travel_as_they_are(tmp_path: Path) -> None:
    """With the files that they copy."""
    written(tmp_path, "skeleton", "x")
    plan = (
        "parameter n integer range from 1 to 2 step 1\n"
        "task main\n"
        "  copy skeleton node:skeleton\n"
        "  node:execute cat skeleton\n"
        "endtask\n"
    )
    campaign = read_campaign(written(tmp_path, "p.pln", plan))
    first, second = specs_of(campaign)
    steps = msgspec.msgpack.decode(base64.b64decode(first.steps), type=tuple[Step, ...])
    assert isinstance(steps[0], Copy)
    assert steps == campaign.workflow.tasks[0].steps
    assert second.label != first.label
    assert uploads_of(campaign) == {"skeleton": tmp_path / "skeleton"}


def test_tasks_that_wait_for_others_are_refused(tmp_path: Path) -> None:
    """With what can run them."""
    text = '[tasks.a]\ncommand = "true"\n[tasks.b]\ncommand = "true"\nafter = ["a"]\n'
    campaign = read_campaign(written(tmp_path, "c.toml", text))
    with pytest.raises(InputError, match='"b" comes after "a"') as refused:
        list(specs_of(campaign))
    assert "bursar run --sites" in str(refused.value)
