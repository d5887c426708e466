"""Every key that a command prints is documented, and nothing else is on stdout."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
CAMPAIGN = """\
[campaign]
name = "two"
[tasks.good]
command = "echo hello"
runtime = 0.1
[tasks.bad]
command = "exit 3"
runtime = 0.1
[retry]
attempts = 1
"""


def documented(page: str) -> set[str]:
    """Words in backquotes, and in braces within them."""
    text = re.sub(r"^```.*?^```", "", (REFERENCE / page).read_text(), flags=re.M | re.S)
    quoted = re.findall(r"`([^`]+)`", text)
    return {word for words in quoted for word in re.findall(r"\w+", words)}


def keys_of(value: Any) -> set[str]:
    """Keys of all objects in a document."""
    if isinstance(value, dict):
        return set(value).union(*(keys_of(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(keys_of(item) for item in value))
    return set()


@pytest.fixture
def ran(folder: Any) -> str:
    """Name of a run with a success and a failure."""
    folder.write("c.toml", CAMPAIGN)
    name: str = folder.json("run", "c.toml", status=1)["run"]
    return name


def test_every_key_is_documented(folder: Any, ran: str) -> None:
    """A reader of the page knows all there is."""
    infeasible = folder.json("plan", "c.toml", "--deadline", "0.001", status=3)
    assert infeasible["counter_offers"]
    page = documented("json.md")
    for document in (
        infeasible,
        folder.json("plan", "c.toml"),
        folder.json("report", ran),
        folder.json("runs"),
        folder.json("logs", ran, "good"),
        folder.json("sites"),
    ):
        assert keys_of(document) <= page, keys_of(document) - page
    bill = folder.json("bill", ran)
    assert keys_of(bill) <= documented("bill.md"), keys_of(bill) - documented("bill.md")


def test_every_field_of_the_results_is_documented(folder: Any, ran: str) -> None:
    """Of both files."""
    page = documented("report.md")
    lines = (folder.run / "results.jsonl").read_text().splitlines()
    assert keys_of([json.loads(line) for line in lines]) - {"parameters"} <= page
    header = (folder.run / "results.csv").read_text().splitlines()[0]
    assert set(header.split(",")) <= page


def test_the_keys_that_scripts_rely_on_are_there(folder: Any, ran: str) -> None:
    """Those promised by name."""
    plan = folder.json("plan", "c.toml")
    assert {"front", "chosen", "bounds"} <= set(plan)
    assert {"makespan_s", "cost", "processors", "slots"} <= set(plan["front"][0])
    run = folder.json("report", ran)
    assert run["run"] == ran
    assert run["currency"] == "SU"
    assert (run["tasks"], run["succeeded"], run["failed"]) == (2, 1, 1)
    assert run["predicted_makespan_s"] >= 0.1
    assert run["makespan_s"] > 0
    assert run["cost"] > 0


def test_unknown_is_null_and_never_0(folder: Any) -> None:
    """A campaign without runtimes has no makespan, and a site without a price no cost."""
    folder.write("c.toml", '[tasks.a]\ncommand = "true"\n')
    folder.write("s.toml", '[site.free]\nkind = "local"\nprocessors = 1\n')

    plan = folder.json("plan", "c.toml")
    ran = folder.json("run", "c.toml", "--sites", "s.toml")

    assert plan["chosen"]["makespan_s"] is None
    assert plan["chosen"]["cost"] is None
    assert plan["bounds"]["unknown_tasks"] == 1
    assert ran["predicted_makespan_s"] is None
    assert ran["cost"] is None
    assert "unknown" in folder.bursar("plan", "c.toml", "--fresh", "--history", "none").stdout
