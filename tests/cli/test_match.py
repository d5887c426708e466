"""``bursar match`` as its user runs it."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_json import documented, keys_of

CAMPAIGN = """\
[campaign]
name = "c"
[tasks.linux]
command = "true"
runtime = 60
requirements = 'other.OpSys == "LINUX" && other.FreeCPUs >= 1'
[tasks.wide]
command = "true"
processors = 3
"""
SITES = """\
[site.one]
kind = "simulated"
processors = 2
attributes = { OpSys = "LINUX" }
[site.two]
kind = "simulated"
processors = 4
speed = 2
attributes = { OpSys = "Solaris" }
[site.three]
kind = "advertised"
slot = [{ start = "10m", duration = "1h", processors = 8 }]
"""


@pytest.fixture
def asked(folder: Any) -> Any:
    folder.write("c.toml", CAMPAIGN)
    folder.write("s.toml", SITES)
    return folder


def test_each_kind_of_task_has_its_sites(asked: Any) -> None:
    """With the terms of their ranks, and what is against the others."""
    found = asked.json("match", "c.toml", "--sites", "s.toml")

    linux, wide = found["kinds"]
    assert found["feasible"]
    assert (linux["tasks"], wide["tasks"]) == (["linux"], ["wide"])
    assert [row["site"] for row in linux["matches"]] == ["one"]
    assert linux["matches"][0]["completion_s"] == 60
    assert {row["site"]: row["reasons"] for row in linux["fails"]} == {
        "two": ['fails other.OpSys == "LINUX" (OpSys = "Solaris")'],
        "three": [
            'fails other.OpSys == "LINUX" (undefined: attribute OpSys missing)',
            "fails other.FreeCPUs >= 1 (FreeCPUs = 0)",
        ],
    }
    assert [row["site"] for row in wide["matches"]] == ["two", "three"]
    assert wide["matches"][1]["rank_expr"] == -600
    assert wide["assumed_runtime_s"] == 3600


def test_every_key_is_documented(asked: Any) -> None:
    found = asked.json("match", "c.toml", "--sites", "s.toml")

    assert keys_of(found) <= documented("json.md"), keys_of(found) - documented("json.md")


def test_the_table_is_for_people(asked: Any) -> None:
    shown = asked.bursar("match", "c.toml", "--sites", "s.toml", "--choice", "stochastic").stdout

    assert "stochastic, alpha 0.5, beta 0.5" in shown
    assert 'fails other.OpSys == "LINUX"' in shown
    assert "has fewer than 3 processors" in shown


def test_a_task_without_a_site_is_status_3(asked: Any) -> None:
    """As a plan that cannot be had; the reason is one line."""
    asked.write("c.toml", CAMPAIGN.replace("processors = 3", "processors = 300"))

    found = asked.json("match", "c.toml", "--sites", "s.toml", status=3)

    assert not found["feasible"]
    assert found["kinds"][1]["reason"] == "no site matches: 3 have fewer than 300 processors"
    only = asked.json("match", "c.toml", "--sites", "s.toml", "--task", "linux")
    assert len(only["kinds"]) == 1


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--alpha", "2"], "--alpha: alpha must be between 0 and 1, got 2"),
        (["--beta", "nan"], "--beta: beta must be between 0 and 1, got nan"),
        (["--choice", "fastest"], 'got "fastest"'),
        (["--task", "linus"], 'there is no task "linus"\nhint: did you mean "linux"?'),
        (["--weights", "none.toml"], "none.toml"),
        (["--weights", "w.toml"], "w.toml:2: weights.alpha"),
    ],
)
def test_wrong_options_are_said_in_a_line(asked: Any, words: list[str], complaint: str) -> None:
    asked.write("w.toml", "[weights]\nalpha = 7\nbeta = 0.5\n")

    done = asked.bursar("match", "c.toml", "--sites", "s.toml", *words, status=2)

    assert complaint in done.stderr
    assert done.stdout == ""


def test_an_expression_that_is_none_is_shown_at_its_column(asked: Any) -> None:
    asked.write("c.toml", CAMPAIGN.replace('"LINUX" &&', '"LINUX" && &&'))

    complaint = asked.bursar("match", "c.toml", status=2).stderr

    assert "c.toml:6" in complaint
    assert "27" in complaint  # where the second && begins


def test_weights_of_a_file_count(asked: Any) -> None:
    asked.write("w.toml", "[weights]\nalpha = 0.25\nbeta = 0.125\n")

    found = asked.json("match", "c.toml", "--sites", "s.toml", "--weights", "w.toml")

    assert {(kind["alpha"], kind["beta"]) for kind in found["kinds"]} == {(0.25, 0.125)}


def test_copies_of_logical_files_count(asked: Any, tmp_path: Path) -> None:
    """5,000 bytes by a link of 50 bytes/s: the site that has them is ready 100 s earlier."""
    asked.write("c.toml", '[tasks.a]\ncommand = "true"\nruntime = 10\ndata = ["raw"]\n')
    asked.write(
        "s.toml",
        '[site.here]\nkind = "simulated"\nprocessors = 1\n'
        '[site.there]\nkind = "simulated"\nprocessors = 1\n'
        '[[link]]\nfrom = "here"\nto = "there"\nbandwidth = "50 B/s"\n',
    )
    asked.write("raw", "x" * 5000)
    asked.bursar("replicas", "add", "raw", "raw", "--site", "here", "--catalogue", "r.sqlite")

    found = asked.json("match", "c.toml", "--sites", "s.toml", "--catalogue", "r.sqlite")

    rows = {row["site"]: row["transfer_s"] for row in found["kinds"][0]["matches"]}
    assert rows == {"here": 0, "there": 100}
    words = ("match", "c.toml", "--sites", "s.toml", "--catalogue", "s.toml")
    assert "s.toml" in asked.bursar(*words, status=2).stderr
