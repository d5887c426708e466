"""
Golden runs on processors of others: a service that sells them, and a cluster under real Slurm.

How long a scheduler takes, and how it divides requests, is no contract: of the cluster's run is
compared what does not depend on that.
"""

import json
import os
import shutil
import tomllib
from collections.abc import Iterator

import pytest
from tests.contracts.command import CommandFolder, first_document
from tests.contracts.golden import assert_golden, assert_golden_run, check_bill

CAMPAIGN = """\
[campaign]
name = "elsewhere"
command = "cat data.txt && echo {x} > {outputs}"
[parameters]
x = { from = 1, to = 3, step = 1 }
[task]
id = "x{x}"
inputs = ["data.txt"]
outputs = ["made/{x}.txt"]
runtime = 10
wall_limit = 60
"""


@pytest.fixture
def campaign(folder: CommandFolder) -> CommandFolder:
    """Give a folder with a small sweep over a file."""
    folder.write("c.toml", CAMPAIGN)
    folder.write("data.txt", "data\n")
    return folder


@pytest.fixture
def seller(campaign: CommandFolder) -> CommandFolder:
    """Give a folder whose sites file has one site: a service that sells its processor."""
    campaign.write(
        "service.toml",
        """\
[service]
name = "uni"
folder = "state"
listen = "127.0.0.1:0"
[site]
processors = 1
unit_price = "3600 EUR/core-hour"
fixed_price = "0.5 EUR"
currency = "EUR"
[market]
must_buy = true
""",
    )
    process = campaign.start("serve", "--config", "service.toml", "--json")
    url = first_document(process)["url"]
    campaign.write(
        "s.toml",
        f'[site.uni]\nkind = "remote"\nurl = "{url}"\nprocessors = 1\ncurrency = "EUR"\n',
    )
    campaign.environment["BURSAR_SITE"] = url
    return campaign


def test_a_service_as_a_site(seller: CommandFolder) -> None:
    """Files go there and come back, and the run pays what the service charges."""
    words = ("run", "c.toml", "--sites", "s.toml", "--name", "r", "--json")
    told = seller.bursar(*words).json

    bought = seller.bursar("account", "agreements", "--json").json["agreements"]
    bill = seller.bursar("bill", "r", "--json").json
    # Each sum is rounded up by itself, from times of which a float keeps a quarter microsecond.
    assert abs(sum(one["charged"] for one in bought) - bill["total_micros"]) <= len(bought)
    assert [one["state"] for one in bought] == ["over"]
    assert_golden_run("service", seller, "r", live=True, told=told)


PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")


@pytest.fixture
def cluster(campaign: CommandFolder) -> Iterator[CommandFolder]:
    """Give a folder whose sites file has one site: a small cluster under Slurm."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    if absent := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        pytest.skip(f"*** NO CONTRACT OF A BATCH SITE: {', '.join(absent)} of Slurm not found ***")
    folder = campaign.path / "grid"
    grid = ("--folder", str(folder))
    campaign.bursar("testgrid", "up", *grid, "--clusters", "1", "--nodes", "1", "--cpus", "2")
    try:
        made = tomllib.loads((folder / "testgrid.toml").read_text())["site"]["slurm1"]
        campaign.write(
            "s.toml",
            f"""\
[site.cluster]
kind = "slurm"
processors = 1
unit_price = "3600 SU/core-hour"
queue = "{made["queue"]}"
environment = {{ SLURM_CONF = "{made["environment"]["SLURM_CONF"]}" }}
reach = "127.0.0.1"
""",
        )
        yield campaign
    finally:
        campaign.bursar("testgrid", "down", *grid)


def test_a_cluster_under_slurm(cluster: CommandFolder) -> None:
    """Tasks run in pilots of the scheduler, and the bill is the scheduler's own record."""
    # A job is recorded in whole seconds: these hold their processor for more than one.
    cluster.write("c.toml", CAMPAIGN.replace('"cat', '"sleep 0.7; cat'))
    words = ("run", "c.toml", "--sites", "s.toml", "--name", "r", "--json")
    told = cluster.bursar(*words).json

    run = cluster.path / "runs" / "r"
    bill = json.loads((run / "bill.json").read_text())
    check_bill(bill)
    assert all(lease["settled_by"] == "record" for lease in bill["leases"])
    document = {
        "told": told,
        "results": [json.loads(one) for one in (run / "results.jsonl").read_text().splitlines()],
        "files": {path.name: path.read_text() for path in sorted((run / "files/made").iterdir())},
        "sites": bill["sites"],
        "tasks": bill["tasks"],
    }
    assert_golden("cluster", document, cluster, live=True)
