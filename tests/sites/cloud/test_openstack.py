"""OpenStack through libcloud's real driver, against Keystone's and Nova's API on this machine."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bursar.model.cloud import CloudEndpoint
from bursar.model.errors import SiteError
from bursar.sites.cloud.libcloud_provider import LibcloudProvider
from bursar.sites.cloud.provider import MachineLabel, MachineOrder, PurchaseRefused
from bursar_devtools.clouds.openstack_room import (
    IMAGE,
    PASSWORD,
    PROJECT,
    USER,
    OpenStackRoom,
    openstack_room,
)

LABEL = MachineLabel("me", "run", "lease-1", "0123abcd")

SITES = """
[site.lab]
kind = "cloud"
provider = "openstack"
region = "RegionOne"
options = {{ ex_force_auth_url = "{address}", ex_tenant_name = "{project}" }}
key_variable = "TEST_OS_USER"
secret_variable = "TEST_OS_PASSWORD"
image = "{image}"
reach = "127.0.0.1"
python = "{python}"
prices = ["user"]
start_up = "2 s"
minimum = "5 s"
owner = "me"

[[site.lab.machine]]
type = "m1.medium"
processors = 2
most = 2
price = "3.6 USD"
price_date = 2026-11-01
"""

CAMPAIGN = """
[campaign]
name = "c"
command = "sleep 1"
[parameters]
i = { from = 1, to = 6, step = 1 }
[task]
runtime = "1 s"
[goal]
budget = "5 USD"
"""


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenStackRoom]:
    monkeypatch.setenv("TEST_OS_USER", USER)
    monkeypatch.setenv("TEST_OS_PASSWORD", PASSWORD)
    with openstack_room(tmp_path / "room") as opened:
        yield opened


def bursar(folder: Path, *words: str, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "bursar", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def written(folder: Path, room: OpenStackRoom, image: str = IMAGE) -> None:
    sites = SITES.format(address=room.address, project=PROJECT, image=image, python=sys.executable)
    (folder / "s.toml").write_text(sites)
    (folder / "c.toml").write_text(CAMPAIGN)


@pytest.mark.parametrize("provisioning", [pytest.param("planned", marks=pytest.mark.ci), "dynamic"])
def test_a_campaign_runs_on_openstack_by_a_plan_and_by_a_pool(
    provisioning: str, tmp_path: Path, room: OpenStackRoom
) -> None:
    """Flavours are known by name, machines by metadata, and each is deleted and billed."""
    written(tmp_path, room)

    said = bursar(
        tmp_path,
        *("run", "c.toml", "--sites", "s.toml", "--name", "r", "--provisioning", provisioning),
    )

    assert "6 of 6 succeeded" in said
    assert 1 <= room.count <= 4
    assert room.servers == {}
    told = json.loads((tmp_path / "runs/r/bill.json").read_text())
    assert {item["machine"] for item in told["machines"]} == set(room.processes)
    seconds = sum(item["seconds"] for item in told["machines"])
    assert told["total_micros"] == pytest.approx(1000 * seconds, abs=2)
    assert "no machine of yours" in bursar(tmp_path, "sites", "list", "s.toml")


@pytest.mark.ci
def test_an_unknown_image_ends_the_run_with_novas_answer(
    tmp_path: Path, room: OpenStackRoom
) -> None:
    written(tmp_path, room, image="nowhere")

    said = bursar(tmp_path, "run", "c.toml", "--sites", "s.toml", status=1)

    assert "lab: no m1.medium can be bought: openstack: 400" in said
    assert "Invalid imageRef provided." in said
    assert "Traceback" not in said


def endpoint(room: OpenStackRoom, password: str = "TEST_OS_PASSWORD") -> CloudEndpoint:
    return CloudEndpoint(
        provider="openstack",
        options={"ex_force_auth_url": room.address, "ex_tenant_name": PROJECT},
        key_variable="TEST_OS_USER",
        secret_variable=password,
        image=IMAGE,
        owner="me",
    )


def test_a_machine_that_shuts_down_is_there_until_it_is_deleted(room: OpenStackRoom) -> None:
    """OpenStack's machines stop and go on to be charged: such a machine has not ended."""
    provider = LibcloudProvider("lab", endpoint(room))
    order = MachineOrder(label=LABEL, type="m1.small", image=IMAGE, user_data="#!/bin/sh\n")

    machine = asyncio.run(provider.create(order))
    room.processes[machine.id].wait()
    (listed,) = asyncio.run(provider.machines("me", "run"))
    assert (listed.id, listed.label, listed.state) == (machine.id, LABEL, "running")
    assert listed.began is not None
    assert room.servers[machine.id]["metadata"] == LABEL.tags
    assert asyncio.run(provider.machines("somebody")) == []
    asyncio.run(provider.destroy(machine.id))
    asyncio.run(provider.destroy(machine.id))

    assert asyncio.run(provider.machines("me")) == []


@pytest.mark.parametrize(("quota", "final"), [(0, True), (1, False)])
def test_a_quota_that_is_used_up_is_told_from_one_of_nothing(
    quota: int, final: bool, room: OpenStackRoom
) -> None:
    room.quota = quota
    provider = LibcloudProvider("lab", endpoint(room))
    order = MachineOrder(label=LABEL, type="m1.small", image=IMAGE, user_data="#!/bin/sh\n")
    for _ in range(quota):
        asyncio.run(provider.create(order))

    with pytest.raises(PurchaseRefused, match="Quota exceeded for instances") as caught:
        asyncio.run(provider.create(order))

    assert (caught.value.final, caught.value.transient) == (final, False)


def test_a_wrong_password_is_final_and_not_repeated(
    room: OpenStackRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_OS_WRONG", "wrong-password")
    provider = LibcloudProvider("lab", endpoint(room, "TEST_OS_WRONG"))

    with pytest.raises(SiteError) as caught:
        asyncio.run(provider.machines("me"))

    assert not caught.value.transient
    assert os.environ["TEST_OS_WRONG"] not in str(caught.value)
