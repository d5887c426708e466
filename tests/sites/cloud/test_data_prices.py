"""Data that a run brings to machines of a cloud and that come back, with their price."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.sites.cloud.test_live_clouds import Desk, wait_for

from bursar.dispatch.journal_records import AttemptRecord
from bursar.dispatch.wire import Welcome, WireJob
from bursar.formats.sites_toml import read_sites
from bursar.market.guard import BudgetGuard
from bursar.market.lease import Lease
from bursar.model.errors import InputError
from bursar.model.money import DataPrices, Refusal, to_micros
from bursar.model.task import Copy, Outcome, Status
from bursar.report.bill import make_bill
from bursar.sites.cloud.data_charges import with_data
from bursar.worker.carried_bytes import CarriedBytes
from bursar.worker.workspace import WorkspaceCache
from bursar_devtools.clouds.machine_room import MachineRoom, machine_room

SITES = """
[site.aws]
kind = "cloud"
provider = "ec2"
image = "ami-1"
{keys}

[[site.aws.machine]]
type = "c5.xlarge"
processors = 2
price = "3.6 USD"
"""

PRICES = DataPrices(into=10.0, out=90.0, date="2026-11-01")
"""10 micro-units a kilobyte in, and 90 out."""

CAMPAIGN = """
[campaign]
name = "c"
command = "sh -c 'sleep {seconds}; head -c 1000000 in.dat > out-{{i}}.dat; head -c 2000 in.dat'"
[parameters]
i = {{ from = 1, to = 4, step = 1 }}
[task]
runtime = "{seconds} s"
inputs = ["in.dat"]
outputs = ["out-{{i}}.dat"]
[goal]
budget = "{budget} USD"
"""


@pytest.fixture
def room(tmp_path: Path) -> Iterator[MachineRoom]:
    with machine_room(tmp_path / "room", boot=0.2) as opened:
        yield opened


def desk_of(folder: Path, room: MachineRoom, *, seconds: int = 1, budget: float = 5.0) -> Desk:
    """Return a desk whose cloud charges for data, and whose tasks carry known ones."""
    desk = Desk(folder, room)
    sites = folder / "s.toml"
    keys = 'price_in = "10 USD/GB"\nprice_out = "0.09 USD/MB"\nprice_date = 2026-11-01\n'
    sites.write_text(sites.read_text().replace('owner = "me"', f'owner = "me"\n{keys}'))
    (folder / "in.dat").write_bytes(b"x" * 3_000_000)
    (folder / "c.toml").write_text(CAMPAIGN.format(seconds=seconds, budget=budget))
    return desk


def adds_up(folder: Path) -> dict[str, object]:
    """Return the data of a bill, whose items add up to its total."""
    told = json.loads((folder / "runs/r/bill.json").read_text())
    parts = ("tasks_micros", "remainder_micros", "data_micros")
    for lease in told["leases"]:
        assert sum(lease.get(part, 0) for part in parts) == lease["total_micros"]
    assert sum(lease["total_micros"] for lease in told["leases"]) == told["total_micros"]
    assert told["held_micros"] == 0
    (data,) = told["data"]
    assert sum(one.get("data_micros", 0) for one in told["leases"]) == data["amount_micros"]
    return data


@pytest.mark.ci
@pytest.mark.parametrize("provisioning", ["planned", "dynamic"])
def test_data_are_a_line_of_the_bill_that_adds_to_its_total(
    provisioning: str, tmp_path: Path, room: MachineRoom
) -> None:
    """An input goes once to each machine; outputs and streams come back, each to the byte."""
    desk = desk_of(tmp_path, room)

    planned = json.loads(desk.bursar("plan", "c.toml", "--sites", "s.toml", "--json"))
    said = desk.bursar(
        *("run", "c.toml", "--sites", "s.toml", "--name", "r", "--provisioning", provisioning)
    )

    (estimate,) = planned["data"]
    assert estimate["bytes_in"] == 3_000_000 * sum(one["count"] for one in planned["machines"])
    assert estimate["cost"] == pytest.approx(estimate["bytes_in"] * 1e-8)
    assert "at 10 per GB in and 90 per GB out (the sites file of 2026-11-01)" in said
    data = adds_up(tmp_path)
    assert data["bytes_out"] == 4 * (1_000_000 + 2000)
    machines, jobs = divmod(data["bytes_in"], 3_000_000)
    assert 1 <= machines <= len(room.machines())
    assert 4 * 50 < jobs < 4 * 500
    assert "data: " in desk.bursar("bill", "r")


def test_a_kill_neither_loses_data_nor_bills_them_twice(tmp_path: Path, room: MachineRoom) -> None:
    """What ended before the kill is on the journal with its data; the rest is carried again."""
    desk = desk_of(tmp_path, room, seconds=2)
    script = (tmp_path / "c.toml").read_text()
    # The first two tasks end at once, the others when the run has been killed and resumed.
    script = script.replace("sleep 2", "test {i} -le 2 || sleep 8").replace('"2 s"', '"3 s"')
    (tmp_path / "c.toml").write_text(script)
    run = desk.start("run", "c.toml", "--sites", "s.toml", "--name", "r")
    ended = lambda: len(list(tmp_path.glob("runs/r/files/out-*.dat")))  # noqa: E731
    wait_for(lambda: ended() >= 2)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()

    assert "4 of 4 succeeded" in desk.bursar("run", "--resume", "r")

    data = adds_up(tmp_path)
    # An attempt whose end the killed run had not heard of runs again, and is counted then.
    assert data["bytes_out"] == 4 * (1_000_000 + 2000)
    assert room.left == []


@pytest.mark.ci
def test_a_budget_that_the_data_exceed_is_refused_before_a_machine_is_bought(
    tmp_path: Path, room: MachineRoom
) -> None:
    desk = desk_of(tmp_path, room, budget=1.7)
    (tmp_path / "in.dat").write_bytes(b"x" * 200_000_000)

    said = desk.bursar("run", "c.toml", "--sites", "s.toml", "--provisioning", "planned", status=3)

    assert "what tasks bring to machines and send back costs" in said
    assert room.machines() == []


def guard_of(budget: float, known: tuple[int, int]) -> tuple[BudgetGuard, Lease]:
    guard = BudgetGuard(
        to_micros(budget), limit_of=lambda task: 10.0, data_of=lambda task: known, currency="USD"
    )
    guard.begin(0.0)
    lease = Lease(
        id="lease-1",
        site="aws",
        processors=2,
        unit_price=0.0005,
        fixed_price=0.0,
        currency="USD",
        start=0.0,
        data_prices=PRICES,
    )
    assert guard.open(lease) is None
    return guard, lease


def outcome(task: int, bytes_in: int, bytes_out: int) -> Outcome:
    return Outcome(
        task=task, attempt=1, status=Status.SUCCEEDED, bytes_in=bytes_in, bytes_out=bytes_out
    )


def test_a_task_starts_only_with_money_for_its_data() -> None:
    """10 s of the lease are 0.01 USD, and 100 MB in are 1 USD: 1.05 USD hold one task, not two."""
    guard, lease = guard_of(1.05, (100_000_000, 0))

    assert guard.admit(0, lease.id, 0.0) == 10.0
    assert guard.ledger.held >= to_micros(1.01)
    assert isinstance(guard.admit(1, lease.id, 0.0), Refusal)
    # The task had read the file before: what it was held for is free again.
    guard.settle([outcome(0, 0, 0)], 1.0)
    assert guard.admit(1, lease.id, 1.0) == 10.0


@given(
    carried=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**7)), min_size=1, max_size=6
    ),
    known=st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
    budget=st.floats(0.5, 20.0),
)
def test_data_are_paid_once_and_never_beyond_the_budget(
    carried: list[tuple[int, int]], known: tuple[int, int], budget: float
) -> None:
    """Whatever tasks carry, the ledger's rows add up, and time and data stay apart."""
    guard, lease = guard_of(budget, known)
    done = []
    for task, (bytes_in, bytes_out) in enumerate(carried):
        if isinstance(guard.admit(task, lease.id, 0.0), Refusal):
            break
        done.append(outcome(task, bytes_in, bytes_out))
        rows = guard.settle(done[-1:], 0.0)
        assert sum(row.amount for row in rows) >= 0
        assert guard.ledger.free >= 0

    closed = guard.charges.close(lease.id, 10.0)

    assert (closed.bytes_in, closed.bytes_out) == (
        sum(one.bytes_in for one in done),
        sum(one.bytes_out for one in done),
    )
    paid = guard.ledger.settled().get(lease.id, 0)
    assert paid <= to_micros(budget)
    assert guard.ledger.held == 0
    if paid < to_micros(budget):
        assert paid == to_micros(0.01) + closed.data
    bill = make_bill("r", guard.ledger, [closed], [], [])
    (item,) = bill.leases
    assert item.tasks + item.remainder + (item.data or 0) == bill.total == paid
    # The journal alone brings a killed run to the same data, however often it is read.
    records = [AttemptRecord(one, True, "aws", lease.id) for one in done]
    once = with_data([lease], records)
    assert (
        with_data(once, records)
        == once
        == [replace(lease, bytes_in=closed.bytes_in, bytes_out=closed.bytes_out)]
    )


def test_an_input_is_counted_once_on_a_machine_until_it_changes(tmp_path: Path) -> None:
    """The machine keeps what it has read; another version of the file is brought again."""
    folders = {name: tmp_path / name for name in ("root", "files", "work", "logs")}
    for folder in folders.values():
        folder.mkdir()
    (folders["root"] / "tree").mkdir()
    (folders["root"] / "tree/a").write_bytes(b"a" * 300)
    (folders["root"] / "tree/b").write_bytes(b"b" * 40)
    (folders["root"] / "script").write_bytes(b"s" * 7)
    (folders["files"] / "out").write_bytes(b"o" * 5000)
    home = WorkspaceCache(Welcome("r", *map(str, folders.values()), 1 << 16), "w").at("")
    steps = (
        Copy("script", "script", source_at_root=True, target_at_root=False),
        Copy("x", "missing", source_at_root=False, target_at_root=True),
    )
    job = WireJob(0, 1, 1, 0.0, "t", steps, inputs=("tree",), outputs=("out",))
    ended = Outcome(
        task=0, attempt=1, status=Status.SUCCEEDED, stdout=b"12345", stdout_size=5, value=b"123"
    )
    counter = CarriedBytes()

    first = counter.counted(job, home, ended)
    again = counter.counted(job, home, replace(ended, status=Status.FAILED))
    (folders["root"] / "tree/b").write_bytes(b"c" * 41)
    changed = counter.counted(job, home, ended)

    assert first.bytes_out == 5000 + 5 + 3
    assert again.bytes_out == 5 + 3  # it has published nothing
    assert first.bytes_in - again.bytes_in == 300 + 40 + 7
    assert changed.bytes_in - again.bytes_in == 41


def test_prices_of_data_are_read_with_their_units(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    keys = 'price_in = 0.01\nprice_out = "90 USD/TB"\nprice_date = 2026-11-01'
    path.write_text(SITES.format(keys=keys))

    (site,) = read_sites(path)

    assert site.cloud is not None
    assert site.cloud.data_prices == DataPrices(into=0.01, out=0.09, date="2026-11-01")
    path.write_text(SITES.format(keys="price_out = 0"))
    (site,) = read_sites(path)
    assert site.cloud is not None
    assert site.cloud.data_prices is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ('price_out = "0.09 USD"', "price_out: expected a price of data such as"),
        ('price_out = "0.09 USD/hour"', "price_out: expected a price of data such as"),
        ("price_in = -1", "price_in"),
        ('price_in = "0.01 EUR/GB"', "names several currencies"),
        ("price_date = 2026-11-01", "is the date of price_in and price_out"),
    ],
)
def test_a_price_of_data_that_is_none_is_told_in_a_line(
    keys: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(SITES.format(keys=keys))

    with pytest.raises(InputError) as caught:
        read_sites(path)

    assert said in str(caught.value)
