"""Campaigns as a service takes them."""

import base64
from pathlib import Path

import msgspec
import pytest

from bursar.formats.campaign_file import read_campaign
from bursar.model.errors import InputError
from bursar.model.task import Copy, Step
from bursar.remote import submission
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


WORKFLOW = """\
[tasks.last]
command = "true"
after = ["left", "right"]
[tasks.left]
command = "cat made > left.txt"
inputs = ["made"]
retries = 4
[tasks.right]
command = "true"
after = ["make"]
[tasks.make]
command = "echo x > made"
outputs = ["made"]
[retry]
attempts = 2
backoff = "3s"
"""


def test_tasks_come_after_those_that_they_wait_for(tmp_path: Path) -> None:
    """Their positions are their numbers in a new instance; files wait for their makers, too."""
    campaign = read_campaign(written(tmp_path, "c.toml", WORKFLOW))
    specs = list(specs_of(campaign))
    number = {spec.label: i for i, spec in enumerate(specs)}
    after = {spec.label: {specs[n].label for n in spec.after} for spec in specs}
    assert after == {
        "last": {"left", "right"},
        "left": {"make"},
        "right": {"make"},
        "make": set(),
    }
    assert all(parent < number[spec.label] for spec in specs for parent in spec.after)
    assert uploads_of(campaign) == {}


def test_retries_of_a_campaign_hold_at_a_service(tmp_path: Path) -> None:
    """After a failure as after a loss; a task's own number takes the place of the campaign's."""
    campaign = read_campaign(written(tmp_path, "c.toml", WORKFLOW))
    found = {
        spec.label: (spec.tries, spec.retries, spec.retry_delay) for spec in specs_of(campaign)
    }
    assert found == {
        "last": (2, 1, 3.0),
        "left": (5, 4, 3.0),
        "right": (2, 1, 3.0),
        "make": (2, 1, 3.0),
    }


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("attempts = 2", "attempts = 101", 'task "make" has 101 attempts, at most 100'),
        ("retries = 4", "retries = 100", 'task "left" has 101 attempts, at most 100'),
        (
            'backoff = "3s"',
            'backoff = "25h"\nceiling = "30h"',
            'task "make" has a backoff of 90000 s, at most 86400',
        ),
    ],
)
def test_what_no_service_takes_is_refused_before_anything_is_sent(
    tmp_path: Path, before: str, after: str, words: str
) -> None:
    """With the task and the setting, in the words of the campaign."""
    assert before in WORKFLOW
    campaign = read_campaign(written(tmp_path, "c.toml", WORKFLOW.replace(before, after)))
    with pytest.raises(InputError, match=words) as refused:
        list(specs_of(campaign))
    assert "\n" not in refused.value.message


def test_a_task_after_too_many_others_is_refused_before_anything_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service takes a limited number of dependencies of one task."""
    monkeypatch.setattr(submission, "MOST_PARENTS", 1)
    campaign = read_campaign(written(tmp_path, "c.toml", WORKFLOW))
    with pytest.raises(InputError, match='task "last" comes after 2 others, at most 1'):
        list(specs_of(campaign))


@pytest.mark.parametrize("attempts", [1, 100])
def test_the_most_that_a_service_takes_is_not_refused(tmp_path: Path, attempts: int) -> None:
    """The limits themselves pass; a backoff says nothing where there is one try only."""
    text = WORKFLOW.replace("attempts = 2", f"attempts = {attempts}").replace("retries = 4", "")
    longest = "24h" if attempts > 1 else "99h"
    text = text.replace('"3s"', f'"{longest}"\nceiling = "{longest}"')
    for spec in specs_of(read_campaign(written(tmp_path, "c.toml", text))):
        assert msgspec.convert(msgspec.to_builtins(spec), type(spec)) == spec
