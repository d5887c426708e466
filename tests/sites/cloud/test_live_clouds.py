"""Clouds through apache-libcloud: EC2 as moto serves it, and the library's Dummy driver."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from libcloud.compute.base import NodeImage, NodeSize
from libcloud.compute.drivers.dummy import DummyNodeDriver
from libcloud.compute.types import NodeState

from bursar.dispatch.credential import Credential, make_certificate
from bursar.dispatch.journal import read_journal
from bursar.model.cloud import CloudEndpoint, MachinePrice, MachineType
from bursar.model.errors import InputError, SiteError
from bursar.model.site import SiteFacts
from bursar.model.task import Status
from bursar.provisioning.interruptions import (
    LOOKS,
    MetadataRequest,
    ends_tasks_at,
    parse_azure,
    parse_ec2,
    parse_gce,
)
from bursar.runs.folder import RunFolder
from bursar.sites.cloud.libcloud_provider import (
    LibcloudProvider,
    ProviderError,
    clear_refusal,
    read_credentials,
)
from bursar.sites.cloud.pricing import with_machine_prices
from bursar.sites.cloud.provider import MachineLabel, MachineOrder, PurchaseRefused
from bursar.sites.cloud.user_data import user_data
from bursar.worker.worker import TAKEN_AWAY
from bursar_devtools.clouds.machine_room import IMAGE, MachineRoom, machine_room

SECRET = "hunter2hunter2"
LABEL = MachineLabel("me", "run", "lease-1", "0123abcd")

SITES = """
[site.aws]
kind = "cloud"
provider = "ec2"
region = "eu-central-1"
options = {{ host = "127.0.0.1", port = {port}, secure = false }}
key_variable = "TEST_CLOUD_KEY"
secret_variable = "TEST_CLOUD_SECRET"
image = "{image}"
reach = "127.0.0.1"
python = "{python}"
prices = ["user"]
start_up = "2 s"
minimum = "5 s"
owner = "me"

[[site.aws.machine]]
type = "c5.xlarge"
processors = 2
most = 3
price = "3.6 USD"
price_date = 2026-11-01
"""

CAMPAIGN = """
[campaign]
name = "c"
command = "sleep {seconds}"
[parameters]
i = {{ from = 1, to = {count}, step = 1 }}
[task]
runtime = "{seconds} s"
[goal]
budget = "5 USD"
"""


PREEMPTED = '{"Events": [{"EventType": "Preempt", "Resources": ["%s"], "NotBefore": "%s"}]}'
"""An answer of Azure's scheduled events."""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[MachineRoom]:
    with machine_room(tmp_path / "room", boot=0.2) as opened:
        yield opened


class Desk:
    """A folder with a sites file and a campaign, and the command that is run in it."""

    def __init__(
        self, folder: Path, room: MachineRoom, *, count: int = 4, seconds: int = 1
    ) -> None:
        self.folder = folder
        sites = SITES.format(port=room.port, image=IMAGE, python=sys.executable)
        (folder / "s.toml").write_text(sites)
        (folder / "c.toml").write_text(CAMPAIGN.format(count=count, seconds=seconds))
        keys = {"TEST_CLOUD_KEY": "AKIATEST", "TEST_CLOUD_SECRET": SECRET}
        self.environment = os.environ | keys

    def start(self, *words: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "bursar", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def bursar(self, *words: str, status: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=100)
        assert process.returncode == status, out + err
        return out + err

    def secrets_in_files(self) -> list[str]:
        """Files in which the secret of the account stands; machines' own files do not count."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.1)


def test_a_campaign_runs_on_machines_that_are_bought_billed_and_ended(
    tmp_path: Path, room: MachineRoom
) -> None:
    """
    The bill is the provider's: machines, hours, price and its date, and no secret stays behind.
    """
    desk = Desk(tmp_path, room)

    said = desk.bursar("run", "c.toml", "--sites", "s.toml", "--name", "r")

    assert room.left == []
    assert 1 <= len(room.machines()) <= 3
    (bill,) = tmp_path.glob("runs/r/bill.json")
    told = json.loads(bill.read_text())
    assert {item["type"] for item in told["machines"]} == {"c5.xlarge"}
    assert {item["price"] for item in told["machines"]} == {"the sites file of 2026-11-01"}
    # 3.6 an hour are 1,000 micro-units a second; each machine is paid for 5 s at the least.
    seconds = sum(item["seconds"] for item in told["machines"])
    assert seconds >= 5 * len(told["machines"])
    assert told["total_micros"] == pytest.approx(1000 * seconds, abs=2)
    assert told["sites"][0]["agrees"] is True
    assert "4 of 4 succeeded" in said
    assert "an hour (the sites file of 2026-11-01)" in desk.bursar("bill", "r")
    # What the machines took to start is known to the next plan.
    count = len(room.machines())
    starts = "start" if count == 1 else f"{count} starts"
    planned = desk.bursar("plan", "c.toml", "--sites", "s.toml", "--fresh")
    assert re.search(rf"starts in [\d.]+ s, 90 % within [\d.]+ s \(last {starts}\)", planned)
    assert SECRET not in said
    assert desk.secrets_in_files() == []


@pytest.mark.ci
def test_machines_of_a_killed_run_are_found_by_their_tag(tmp_path: Path, room: MachineRoom) -> None:
    """A resumed run ends them, pays for them, and buys others for what is left."""
    desk = Desk(tmp_path, room, count=2, seconds=3)
    run = desk.start("run", "c.toml", "--sites", "s.toml", "--name", "r")
    wait_for(lambda: room.processes)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    before = room.left
    assert before

    listed = json.loads(desk.bursar("sites", "list", "s.toml", "--json"))
    assert {row["machine"] for row in listed["machines"]} == set(before)
    assert {(row["run"], row["state"]) for row in listed["machines"]} == {("r", "running")}
    said = desk.bursar("run", "--resume", "r")

    assert "2 of 2 succeeded" in said
    assert room.left == []
    told = json.loads((tmp_path / "runs/r/bill.json").read_text())
    # Also the machines of the first life are on the bill.
    assert {item["machine"] for item in told["machines"]} == {one.id for one in room.machines()}
    assert told["held_micros"] == 0


@pytest.mark.ci
def test_reaping_ends_machines_of_dead_runs_only(tmp_path: Path, room: MachineRoom) -> None:
    """Those of a run that goes on stay, and those of runs elsewhere without ``--all``."""
    desk = Desk(tmp_path, room, count=2, seconds=60)
    run = desk.start("run", "c.toml", "--sites", "s.toml", "--name", "r")
    wait_for(lambda: room.processes)
    other = LibcloudProvider("aws", endpoint(room), driver=None)
    order = MachineOrder(
        label=LABEL, type="c5.large", image=IMAGE, user_data="#!/bin/sh\nsleep 99\n"
    )
    asyncio.run(other.create(order))
    mine = [one for one in room.left if one in room.processes]

    assert desk.bursar("sites", "reap", "s.toml", "--dry-run").count("would end") == 0
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    assert "would end" in desk.bursar("sites", "reap", "s.toml", "--dry-run")
    assert set(mine) <= set(room.left)
    desk.bursar("sites", "reap", "s.toml")
    assert len(room.left) == 1
    ended = json.loads(desk.bursar("sites", "reap", "s.toml", "--all", "--json"))

    assert [row["state"] for row in ended["machines"]] == ["ended"]
    assert room.left == []
    assert "no machine of yours" in desk.bursar("sites", "list", "s.toml")


def endpoint(room: MachineRoom) -> CloudEndpoint:
    os.environ["TEST_CLOUD_KEY"], os.environ["TEST_CLOUD_SECRET"] = "AKIATEST", SECRET
    return CloudEndpoint(
        provider="ec2",
        region="eu-central-1",
        options={"host": "127.0.0.1", "port": room.port, "secure": False},
        key_variable="TEST_CLOUD_KEY",
        secret_variable="TEST_CLOUD_SECRET",
        image=IMAGE,
        owner="me",
    )


def script(patience: float = 1.0, **more: Any) -> str:
    """User data of a pilot whose run is nowhere."""
    certificate, _ = make_certificate()
    credential = Credential(
        host="127.0.0.1",
        port=9,
        token="token",
        certificate=certificate,
        run="run",
        site="aws",
        lease="lease-1",
        processors=1,
        patience=patience,
    )
    return user_data(
        credential.encode(), processors=1, python=sys.executable, start_limit=60.0, **more
    )


def test_a_machine_to_which_nobody_comes_ends_itself(room: MachineRoom) -> None:
    """The pilot looks for its run for its patience; then the script shuts the machine down."""
    provider = LibcloudProvider("aws", endpoint(room))
    order = MachineOrder(label=LABEL, type="c5.large", image=IMAGE, user_data=script())

    machine = asyncio.run(provider.create(order))
    wait_for(lambda: machine.id in room.processes)
    wait_for(lambda: not room.left)

    (listed,) = asyncio.run(provider.machines("me"))
    assert (listed.id, listed.label, listed.state) == (machine.id, LABEL, "ended")
    assert not list(room.folder.glob("tmp.*"))  # nor is the credential left


def test_a_machine_that_is_taken_back_runs_its_hook_first(room: MachineRoom) -> None:
    """The notice is looked for, the hook runs, and the pilot ends."""
    provider = LibcloudProvider("aws", endpoint(room))
    checkpoint = room.folder / "checkpoint"
    data = script(100.0, notices="ec2", on_notice=[f"touch {checkpoint}"])
    order = MachineOrder(label=LABEL, type="c5.large", image=IMAGE, user_data=data, ceiling=0.05)

    machine = asyncio.run(provider.create(order))
    wait_for(lambda: machine.id in room.processes)
    time.sleep(1.0)
    assert not checkpoint.exists()
    room.announce_interruption(machine.id)
    wait_for(lambda: not room.left)

    assert checkpoint.exists()


@pytest.mark.ci
def test_a_spot_machine_is_drained_before_it_is_taken_back(
    tmp_path: Path, room: MachineRoom
) -> None:
    """
    A pool of one machine at a time: what runs gets SIGTERM and its grace, and runs again elsewhere.

    The tasks have one try each, which the interruption does not use up.
    """
    desk = Desk(tmp_path, room)
    sites = (tmp_path / "s.toml").read_text().replace("most = 3", "most = 1")
    sites = sites.replace('owner = "me"', 'owner = "me"\ngrace = "2 s"')
    (tmp_path / "s.toml").write_text(sites + 'spot = { ceiling = "3.6 USD", price = "3 USD" }\n')
    command = (
        f"[ {{i}} -gt 2 -o -e {tmp_path}/saved-{{i}} ] && exit 0; "
        f"trap 'sleep 0.5; touch {tmp_path}/saved-{{i}}; exit 3' TERM; "
        f"touch {tmp_path}/began-{{i}}; sleep 60 & wait"
    )
    campaign = (tmp_path / "c.toml").read_text()
    (tmp_path / "c.toml").write_text(campaign.replace('"sleep 1"', f'"{command}"'))

    run = desk.start(
        "run", "c.toml", "--sites", "s.toml", "--name", "r", "--provisioning", "dynamic"
    )
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    (first,) = room.left
    room.announce_interruption(first, 9.0)
    out, err = run.communicate(timeout=100)

    assert run.returncode == 0, out + err
    assert "4 of 4 succeeded" in out + err
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-1", "saved-2"]
    assert len(room.machines()) == 2
    assert room.left == []
    journal = read_journal(RunFolder(tmp_path / "runs/r").journal_file)
    ends = [record.outcome for record in journal.records if record.outcome.attempt == 1]
    cut = [one for one in ends if one.status is Status.CANCELLED]
    assert {(one.task, one.reason) for one in cut} == {(0, TAKEN_AWAY), (1, TAKEN_AWAY)}


@pytest.mark.parametrize(
    ("read", "text", "goes"),
    [
        (parse_ec2, '{"action": "terminate", "time": "2026-11-01T08:22:00Z"}', 1793521320.0),
        (parse_ec2, '{"action": "stop", "time": "soon"}', 1120.0),
        (parse_ec2, '{"action": "rebalance"}', None),
        (parse_ec2, "<html>a proxy's page</html>", None),
        (parse_ec2, "[]", None),
        (parse_gce, "TRUE\n", 1030.0),
        (parse_gce, "FALSE", None),
        (parse_azure, '{"DocumentIncarnation": 1, "Events": []}', None),
        (parse_azure, '{"Events": [{"EventType": "Freeze", "Resources": ["vm-1"]}]}', None),
        (parse_azure, PREEMPTED % ("vm-1", ""), 1030.0),
        (parse_azure, PREEMPTED % ("vm-2", ""), None),
        (parse_azure, PREEMPTED % ("vm-1", "Sun, 01 Nov 2026 08:22:00 GMT"), 1793521320.0),
        (parse_azure, '{"Events": "none"}', None),
    ],
)
def test_notices_are_read_as_providers_write_them(
    read: Callable[..., float | None], text: str, goes: float | None
) -> None:
    """No answer that is not a notice may end tasks; Azure lists the events of neighbours, too."""
    more = ("vm-1",) if read is parse_azure else ()

    assert read(text, 1000.0, *more) == goes


@pytest.mark.parametrize("provider", ["ec2", "gce", "azure_arm"])
def test_each_provider_is_asked_in_its_own_way(provider: str) -> None:
    """Paths, headers and the token of EC2's second version, by the providers' documents."""
    asked: list[tuple[object, ...]] = []
    answers = {
        "/latest/api/token": "AQAEAL",
        "/latest/meta-data/spot/instance-action": '{"action": "terminate", "time": "x"}',
        "/computeMetadata/v1/instance/preempted": "TRUE",
        "/metadata/scheduledevents?api-version=2020-07-01": PREEMPTED % ("vm-1", ""),
        "/metadata/instance/compute/name?api-version=2021-02-01&format=text": "vm-1",
    }

    def ask(request: MetadataRequest) -> str | None:
        asked.append((request.method, request.path.split("?")[0], *request.headers.items()))
        return answers[request.path]

    assert LOOKS[provider](ask, 1000.0) in (1030.0, 1120.0)
    lifetime = ("X-aws-ec2-metadata-token-ttl-seconds", "60")
    token = ("X-aws-ec2-metadata-token", "AQAEAL")
    azure, google = ("Metadata", "true"), ("Metadata-Flavor", "Google")
    assert (
        asked
        == {
            "ec2": [
                ("PUT", "/latest/api/token", lifetime),
                ("GET", "/latest/meta-data/spot/instance-action", token),
            ],
            "gce": [("GET", "/computeMetadata/v1/instance/preempted", google)],
            "azure_arm": [
                ("GET", "/metadata/scheduledevents", azure),
                ("GET", "/metadata/instance/compute/name", azure),
            ],
        }[provider]
    )
    assert LOOKS[provider](lambda request: None, 1000.0) is None


def test_tasks_may_end_until_their_grace_begins() -> None:
    """Two minutes before the end, 10 s of grace and 5 s to report leave 105 s."""
    assert ends_tasks_at(1120.0, 1000.0, 10.0) == 1105.0
    assert ends_tasks_at(1010.0, 1000.0, 10.0) == 1000.0


def test_a_lost_connection_names_no_secret(room: MachineRoom) -> None:
    """User data with the pilot's secret are part of the address that EC2's driver asks for."""
    cloud = endpoint(room)
    dead = CloudEndpoint(
        **{name: getattr(cloud, name) for name in cloud.__dataclass_fields__} | {"options": DEAD}
    )
    order = MachineOrder(
        label=LABEL, type="c5.large", image=IMAGE, user_data="#!/bin/sh\n# hush-hush\n"
    )

    with pytest.raises(SiteError) as caught:
        asyncio.run(LibcloudProvider("aws", dead).create(order))

    # Whether anything was bought is open: this is no refusal.
    assert not isinstance(caught.value, PurchaseRefused)
    for hidden in (SECRET, "UserData", "hush"):
        assert hidden not in str(caught.value)


DEAD = {"host": "127.0.0.1", "port": 9, "secure": False}


def test_clear_refusals_are_told_from_lost_answers(room: MachineRoom) -> None:
    """A type that is not there was not bought; a machine that is gone need not be ended."""
    provider = LibcloudProvider("aws", endpoint(room))
    order = MachineOrder(label=LABEL, type="c5.nope", image=IMAGE, user_data="#!/bin/sh\n")

    with pytest.raises(PurchaseRefused, match=r'no machines of type "c5\.nope"'):
        asyncio.run(provider.create(order))
    asyncio.run(provider.destroy("i-0123456789abcdef0"))


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        (400, "InvalidAMIID.NotFound: The image id '[ami-1]' does not exist", "final"),
        (403, "UnauthorizedOperation: You are not authorized", "final"),
        (403, "AuthFailure: AWS was not able to validate the credentials", "final"),
        (400, "InvalidParameterValue: Invalid value 'c5.nope' for InstanceType.", "final"),
        (400, "MaxSpotInstanceCountExceeded: Max spot instance count exceeded", "later"),
        (400, "VcpuLimitExceeded: requested more than your current vCPU limit of 0", "final"),
        (400, "VcpuLimitExceeded: requested more than your current vCPU limit of 32", "later"),
        (403, "Quota 'CPUS' exceeded. Limit: 0.0 in region europe-west1.", "final"),
        (403, "Quota 'CPUS' exceeded. Limit: 0.5 in region europe-west1.", "later"),
        (403, "Quota exceeded for cores: Requested 4, but already used 0 of 0 cores", "final"),
        (403, "Quota exceeded for cores: Requested 4, but already used 18 of 20 cores", "later"),
        (400, "PendingVerification: Your account is currently being verified", "later"),
        (400, "SpotMaxPriceTooLow: Your Spot request price is too low", "later"),
        (500, "InsufficientInstanceCapacity: We have no sufficient capacity", "later"),
        (409, "The resource already exists", "later"),
        (503, "RequestLimitExceeded: Request limit exceeded.", "throttled"),
        (429, "Too Many Requests", "throttled"),
        (400, "Throttling: Rate exceeded", "throttled"),
        (500, "InternalError: An internal error has occurred", "open"),
        (408, "Request timeout", "open"),
        (None, "Connection reset by peer", "open"),
    ],
)
def test_answers_of_providers_are_told_apart(code: int | None, text: str, kind: str) -> None:
    """
    Final: never asked again. Later: the type is left alone for a while. Open: looked for by tag.

    The words are those of EC2, GCE and OpenStack.
    """
    error = ProviderError(text, code=code)
    refusal = clear_refusal(error)

    assert error.transient == (kind != "final")
    if kind == "open":
        assert refusal is None
        return
    assert isinstance(refusal, PurchaseRefused)
    assert (refusal.final, refusal.transient) == (kind == "final", kind == "throttled")


def test_prices_come_from_the_first_source_that_knows_them(room: MachineRoom) -> None:
    """The library's table is dated and does not know every type; the sites file knows the rest."""
    types = (
        MachineType(name="t2.micro", processors=1, price=MachinePrice(hourly=9.0)),
        MachineType(name="c5.2xlarge", processors=8, price=MachinePrice(hourly=0.4)),
        MachineType(name="c6i.xlarge", processors=4),
    )
    cloud = endpoint(room)
    values = {name: getattr(cloud, name) for name in cloud.__dataclass_fields__}
    facts = SiteFacts(
        name="aws",
        kind="cloud",
        currency="USD",
        cloud=CloudEndpoint(**values | {"machines": types}),
    )

    found = asyncio.run(with_machine_prices(facts)).cloud

    assert found is not None
    micro, large, unknown = (machine.price for machine in found.machines)
    assert micro is not None
    assert (micro.source, len(micro.date)) == ("table", len("2026-11-01"))
    assert 0 < micro.hourly < 0.1
    assert large == MachinePrice(hourly=0.4, source="user")
    assert unknown is None


class ProcessDriver(DummyNodeDriver):  # type: ignore[misc]
    """The Dummy driver, whose machines are processes of this machine that run the user data."""

    def __init__(self) -> None:
        super().__init__("0")
        self.nl.clear()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def create_node(self, name: str, size: NodeSize, image: NodeImage, ex_userdata: str) -> Any:  # type: ignore[override]
        node = super().create_node(name, size, image)
        node.name, node.id = name, f"dummy-{len(self.processes)}"
        text = ex_userdata.replace("shutdown -h now || poweroff || halt -p", ":")
        self.processes[node.id] = subprocess.Popen(["sh", "-c", text], start_new_session=True)
        return node

    def list_nodes(self) -> Any:
        for node in self.nl:
            process = self.processes[node.id]
            node.state = NodeState.RUNNING if process.poll() is None else NodeState.TERMINATED
        return self.nl

    def destroy_node(self, node: Any) -> bool:
        os.killpg(self.processes[node.id].pid, signal.SIGKILL)
        self.processes[node.id].wait()
        return True


def test_a_driver_without_tags_knows_machines_by_their_names() -> None:
    """Bought, listed, ended by us or by themselves: the Dummy driver has no tags and no tokens."""
    driver = ProcessDriver()
    provider = LibcloudProvider("d", CloudEndpoint(provider="dummy"), driver=driver)
    other = MachineLabel("me", "elsewhere", "lease-1", "89abcdef")

    async def lives() -> None:
        for label in (LABEL, other):
            order = MachineOrder(label=label, type="1", image="1", user_data=script())
            await provider.create(order)
        assert {one.label for one in await provider.machines("me")} == {LABEL, other}
        assert [one.label for one in await provider.machines("me", "run")] == [LABEL]
        assert await provider.machines("somebody") == []
        await provider.destroy("dummy-1")
        states = {one.id: one.state for one in await provider.machines("me")}
        assert states["dummy-1"] == "ended"

    asyncio.run(lives())
    wait_for(lambda: driver.processes["dummy-0"].poll() is not None)
    assert [one.state for one in asyncio.run(provider.machines("me"))] == ["ended", "ended"]


def test_a_driver_without_user_data_is_refused() -> None:
    """Machines that cannot be told to start a pilot are of no use, and must not be bought."""
    with pytest.raises(InputError, match=r'the driver of "dummy" passes no user data'):
        LibcloudProvider("d", CloudEndpoint(provider="dummy"), driver=DummyNodeDriver("0"))


def test_credentials_are_read_from_variables_or_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is missing is told by its name, never by its value."""
    monkeypatch.delenv("NO_KEY", raising=False)
    with pytest.raises(InputError, match=r"site\.d\.key_variable: NO_KEY is not set"):
        read_credentials("d", CloudEndpoint(provider="ec2", key_variable="NO_KEY"))
    file = tmp_path / "c.toml"
    file.write_text(f'key = "k"\nsecret = "{SECRET}"\n')
    file.chmod(0o600)
    cloud = CloudEndpoint(provider="ec2", credentials_file=str(file))
    assert read_credentials("d", cloud) == ("k", SECRET)
    file.write_text(f"secret = {SECRET}")
    with pytest.raises(InputError, match="is no TOML file") as caught:
        read_credentials("d", cloud)
    assert SECRET not in str(caught.value)
    file.chmod(0o640)
    with pytest.raises(InputError, match="may be read by others"):
        read_credentials("d", cloud)


def test_an_unknown_provider_is_told_with_the_nearest_name() -> None:
    """Bad input is one line."""
    with pytest.raises(InputError, match=r'no provider "ec3"\nhint: did you mean "ec2"'):
        LibcloudProvider("d", CloudEndpoint(provider="ec3"))


def test_without_the_library_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named."""
    monkeypatch.setitem(sys.modules, "libcloud.compute.providers", None)
    with pytest.raises(InputError, match=r"apache-libcloud\nhint: pip install 'bursar\[cloud\]'"):
        LibcloudProvider("d", CloudEndpoint(provider="ec2"))
