"""``bursar tune rank`` as its user calls it."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_json import documented, keys_of

from bursar.formats.network_files import read_weights

SITES = """\
[site.near]
kind = "simulated"
processors = 2
storage = "near"
storage_rate = "100 MB/s"

[site.far]
kind = "simulated"
processors = 2
storage = "far"
storage_rate = "20 MB/s"

[[link]]
from = "near"
to = "far"
bandwidth = "5 MB/s"
"""
CAMPAIGN = """\
[campaign]
name = "small"
[tasks.job]
command = "true"
runtime = 100
"""
FEW = ("--jobs", "10")


@pytest.mark.ci
def test_weights_are_found_written_and_read(folder: Any) -> None:
    """The file is one that the broker reads; every key is documented."""
    folder.write("grid.toml", SITES)

    told = folder.json("tune", "rank", "--sites", "grid.toml", "--load", "200s", "--out", "w.toml",
                       *FEW)  # fmt: skip

    assert keys_of(told) <= documented("json.md"), keys_of(told) - documented("json.md")
    weights = read_weights(folder.path / "w.toml")
    assert (weights.alpha, weights.beta) == (told["alpha"], told["beta"])
    assert told["lifetime_s"]["mean"] <= told["default"]["lifetime_s"]["mean"] + abs(
        told["gain_s"]["mean"]
    )
    assert told["gain_s"]["low"] <= told["gain_s"]["mean"] <= told["gain_s"]["high"]


@pytest.mark.ci
def test_jobs_may_be_like_those_of_a_campaign(folder: Any) -> None:
    folder.write("grid.toml", SITES)
    folder.write("c.toml", CAMPAIGN)
    done = folder.bursar(
        "tune", "rank", "--sites", "grid.toml", "--load", "60s", "--campaign", "c.toml", *FEW
    )
    assert "default" in done.stdout
    assert "best found" in done.stdout


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--load", "soon"), "--load"),
        (("--load", "0"), "must be positive"),
        (("--load", "60s", "--choice", "bets"), 'unknown choice "bets"'),
        (("--load", "60s", "--choice", "random"), "does not go by the rank"),
        (("--load", "60s", "--jobs", "3"), "at least 10"),
        (("--load", "60s", "--runtime", "5m"), "--campaign"),
        (("--load", "60s", "--campaign", "open.toml"), "tasks.job"),
        (("--load", "60s", "--campaign", "reads.toml"), 'catalogue: task "job" has logical files'),
        (("--load", "60s", "--topology", "other.toml"), 'no node "near"'),
    ],
)
def test_wrong_input_is_one_line(folder: Any, argv: tuple[str, ...], expected: str) -> None:
    folder.write("grid.toml", SITES)
    folder.write("open.toml", CAMPAIGN.replace("runtime = 100\n", ""))
    folder.write("reads.toml", CAMPAIGN + 'data = ["x"]\n')
    folder.write("other.toml", '[[link]]\nbetween = ["a", "b"]\n')
    done = folder.bursar("tune", "rank", "--sites", "grid.toml", *argv, status=2)
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("bursar"))
    assert expected in line
    assert "Traceback" not in done.stderr


def test_a_file_of_copies_elsewhere_does_not_help(folder: Any, tmp_path: Path) -> None:
    folder.write("grid.toml", SITES)
    folder.write("c.toml", CAMPAIGN + 'data = ["x"]\n')
    (folder.path / "x.dat").write_text("x")
    folder.bursar("replicas", "add", "x", "x.dat", "--site", "elsewhere", "--catalogue", "r.sqlite")
    done = folder.bursar(
        "tune", "rank", "--sites", "grid.toml", "--load", "60s", "--campaign", "c.toml",
        "--catalogue", "r.sqlite", status=2,
    )  # fmt: skip
    assert "no copy at any of the sites" in done.stderr
