"""What a Snakemake that is begun again has left of budget and deadline."""

import json
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("snakemake", reason="Snakemake is not installed: its plugin is not tested")

from snakemake_interface_common.exceptions import WorkflowError

from bursar.market.lease import Lease
from snakemake_executor_plugin_bursar.campaign_record import CampaignRecord, worst_cost
from snakemake_executor_plugin_bursar.running_jobs import read_goal

SITES = '[site.here]\nkind = "local"\nprocessors = 2\nunit_price = "1 SU/core-hour"\n'
SNAKEFILE = """
rule all:
    input: "a", "b"
rule one:
    output: "{s}"
    wildcard_constraints: s="a|b"
    shell: "test {wildcards.s} = a -o -e repaired; touch {output}"
"""


def snakemake(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    """Run Snakemake with the plugin."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--executor", "bursar", "--jobs", "2"),
            *("--keep-going", "--bursar-sites", "sites.toml", *options),
        ],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200,
        check=False, env=os.environ | {"BURSAR_HISTORY": "none"},
    )  # fmt: skip


def record(folder: Path) -> dict[str, Any]:
    """Return the record of the folder's campaign."""
    found: dict[str, Any] = json.loads((folder / ".snakemake/bursar/campaign.json").read_text())
    return found


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_budget_is_that_of_all_beginnings_until_one_ends_well(tmp_path: Path) -> None:
    """A job fails, and the workflow is begun again: what was spent is said, and counts."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE)
    (tmp_path / "sites.toml").write_text(SITES)

    failed = snakemake(tmp_path, "--bursar-budget", "1 SU")
    spent = record(tmp_path)["cost_micros"]
    refused = snakemake(tmp_path, "--bursar-budget", f"{spent / 1e6} SU")
    (tmp_path / "repaired").touch()
    again = snakemake(tmp_path, "--bursar-budget", "1 SU")
    (tmp_path / "b").unlink()
    after = snakemake(tmp_path, "--bursar-budget", "1 SU")

    assert failed.returncode == 1
    assert "spent before" not in failed.stdout
    assert refused.returncode == 1
    assert "bursar: --bursar-budget: " in refused.stdout
    assert " is spent: spent before: " in refused.stdout
    assert again.returncode == 0, again.stdout
    assert "bursar: spent before: " in again.stdout
    assert " SU; with what was spent before " in again.stdout
    assert after.returncode == 0, after.stdout
    assert "spent before" not in after.stdout
    bills = sorted((tmp_path / ".snakemake" / "bursar").glob("*/bill.json"))
    totals = [json.loads(bill.read_text())["total_micros"] for bill in bills]
    assert len(totals) == 3
    assert spent == totals[0] > 0
    assert record(tmp_path)["cost_micros"] == totals[2]
    assert record(tmp_path)["ended"]


def kept(path: Path, **changed: Any) -> Path:
    """Write a record of a campaign that was begun 100 s ago and cost 0.3."""
    begun = {"folder": "/nowhere", "begun": time.time() - 100, "cost_micros": 300_000}
    path.write_text(json.dumps({"beginnings": [begun], "currency": "EUR"} | changed))
    return path


def test_a_deadline_counts_from_the_first_beginning(tmp_path: Path) -> None:
    campaign = CampaignRecord(kept(tmp_path / "c.json"), is_anew=False)

    assert campaign.left_of_deadline(150.0) == pytest.approx(50.0, abs=20.0)
    assert campaign.left_of_deadline(None) is None
    with pytest.raises(WorkflowError, match=r"first begun 1 min 4\d s ago; a longer deadline goes"):
        campaign.left_of_deadline(60.0)


def test_a_deadline_that_is_a_moment_stays_that_moment(tmp_path: Path) -> None:
    """However long ago the campaign was first begun."""
    path = tmp_path / "c.json"
    begun = time.time() - 600
    path.write_text(json.dumps({"beginnings": [{"folder": "none", "begun": begun}]}))
    campaign = CampaignRecord(path, is_anew=False)
    in_an_hour = (datetime.now() + timedelta(hours=1)).isoformat(" ")

    _, deadline = read_goal(None, None, in_an_hour, campaign.begun)

    assert campaign.left_of_deadline(deadline) == pytest.approx(3600, abs=5)


def test_what_is_left_of_a_budget(tmp_path: Path) -> None:
    campaign = CampaignRecord(kept(tmp_path / "c.json"), is_anew=False)

    assert campaign.told() == "spent before: 0.3 EUR, begun once"
    assert campaign.left_of_budget(1.0) == pytest.approx(0.7)
    assert campaign.left_of_budget(None) is None
    with pytest.raises(WorkflowError, match=r"0\.3 is spent: spent before: 0\.3 EUR"):
        campaign.left_of_budget(0.3)


@pytest.mark.parametrize("way", ["anew", "ended", "absent"])
def test_another_campaign_has_all_of_budget_and_deadline(tmp_path: Path, way: str) -> None:
    path = tmp_path / "c.json"
    if way != "absent":
        kept(path, ended=way == "ended")

    campaign = CampaignRecord(path, is_anew=way == "anew")

    assert campaign.told() == ""
    assert (campaign.left_of_budget(0.1), campaign.left_of_deadline(5.0)) == (0.1, 5.0)


@pytest.mark.parametrize("text", ["", "[]", '{"beginnings": 3}', '{"beginnings": [{}]}'])
def test_a_damaged_record_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)

    with pytest.raises(WorkflowError, match=r"c\.json: .*; --bursar-anew begins another"):
        CampaignRecord(path, is_anew=False)


def test_a_beginning_that_came_to_nothing_is_withdrawn(tmp_path: Path) -> None:
    path = kept(tmp_path / "c.json")
    campaign = CampaignRecord(path, is_anew=False)

    campaign.begin(tmp_path / "new")
    begun = json.loads(path.read_text())
    campaign.withdraw()

    assert len(begun["beginnings"]) == 2
    assert len(json.loads(path.read_text())["beginnings"]) == 1


@pytest.mark.parametrize(
    ("changed", "micros"),
    [
        ({}, 600_000),  # from 100 to 160 s and the 90 s after it, of 4 processors
        ({"unwatched": 0.0}, 240_000),
        ({"until": 130.0}, 120_000),
        ({"asked": True}, 360_000),  # the request may have been granted as Snakemake was killed
        ({"asked": True, "unwatched": 0.0}, 0),
        ({"unit_price": None}, 0),
    ],
)
def test_what_a_killed_snakemake_held_counts_at_the_most_that_it_may_come_to(
    changed: dict[str, Any], micros: int
) -> None:
    facts = {"id": "lease-1", "site": "here", "processors": 4, "unit_price": 0.001}
    times = {"fixed_price": 0.0, "start": 100.0, "unwatched": 90.0}

    assert worst_cost(Lease(**{**facts, **times, **changed}), 160.0) == micros
