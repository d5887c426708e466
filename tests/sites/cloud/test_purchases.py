"""Purchases and the provider's list: what is recorded, and which machines are ended."""

import asyncio
import dataclasses
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from bursar.api.needs import start_up
from bursar.model.cloud import (
    BillingRules,
    CloudEndpoint,
    MachinePrice,
    MachineType,
    SpotTerms,
)
from bursar.model.provisioning import LearnedStartUp
from bursar.model.site import SiteFacts
from bursar.sites.cloud.libcloud_provider import LibcloudProvider
from bursar.sites.cloud.machine_choice import machine_slots
from bursar.sites.cloud.pricing import paid_hourly, with_machine_prices
from bursar.sites.cloud.provider import CloudMachine, MachineLabel, MachineState, label_of
from bursar.sites.cloud.purchases import (
    UNANSWERED,
    UNLISTED,
    PurchaseBook,
    PurchaseLine,
    reconcile,
    usage_of,
)
from bursar.sites.cloud.user_data import user_data
from bursar.sites.start_ups import START_UPS, note_start_up, with_start_ups

ASKED = PurchaseLine(token="0a1b2c3d", lease="lease-1", type="m", processors=4, asked=100.0)
HELD = replace(ASKED, state="held", machine="i-1", began=101.0)


def listed(
    id: str = "i-1",
    purchase: str = "0a1b2c3d",
    state: MachineState = "running",
    ended: float | None = None,
) -> CloudMachine:
    label = MachineLabel("me", "r", "lease-1", purchase)
    return CloudMachine(id=id, label=label, state=state, began=102.0, ended=ended)


def test_a_machine_whose_answer_was_lost_is_found_by_its_tag() -> None:
    """The purchase gets the machine, and nothing is ended."""
    found = reconcile([ASKED], [listed()], 110.0, unseen={})

    assert found.changed == [replace(ASKED, state="held", machine="i-1", began=102.0, listed=True)]
    assert found.doomed == []


def test_a_second_machine_of_one_purchase_is_ended() -> None:
    """A provider that forgets tokens and doubles a request keeps one machine of ours."""
    found = reconcile([ASKED], [listed("i-1"), listed("i-2")], 110.0, unseen={})

    assert [line.machine for line in found.changed] == ["i-1"]
    assert found.doomed == ["i-2"]


def test_a_machine_that_no_purchase_explains_is_ended() -> None:
    """Unless its request is just under way, of which the answer is still to come."""
    assert reconcile([], [listed()], 110.0, unseen={}).doomed == ["i-1"]
    assert reconcile([ASKED], [listed()], 110.0, under_way=[ASKED.token], unseen={}).doomed == []
    assert reconcile([], [listed(state="ended")], 110.0, unseen={}).doomed == []


def test_a_machine_of_an_earlier_run_of_the_same_name_is_not_taken_for_ours() -> None:
    """Run and lease of one name recur; the purchase does not."""
    found = reconcile([ASKED], [listed("i-9", "ffffffff", "ended")], 110.0, unseen={})

    assert (found.changed, found.doomed) == ([], [])


def test_a_machine_that_comes_too_late_is_ended() -> None:
    """Its purchase was given up; the money for it is asked for as long as it is there."""
    late = 100.0 + UNANSWERED
    assert reconcile([ASKED], [], late - 1, unseen={}).changed == []
    (absent,) = reconcile([ASKED], [], late, unseen={}).changed
    assert absent.state == "absent"

    first = reconcile([absent], [listed()], late + 5, unseen={})
    (line,) = first.changed
    assert (line.state, line.released) == ("held", True)
    assert first.doomed == ["i-1"]


def test_a_released_machine_is_ended_until_it_has_ended() -> None:
    """The list is the truth: while it runs, it is ended again."""
    released = replace(HELD, released=True)
    for state, doomed in (("running", ["i-1"]), ("starting", ["i-1"]), ("ending", [])):
        found = reconcile([released], [listed(state=state)], 110.0, unseen={})  # type: ignore[arg-type]
        assert found.doomed == doomed

    (line,) = reconcile([released], [listed(state="ended", ended=150.0)], 160.0, unseen={}).changed
    assert (line.state, line.began, line.ended) == ("ended", 101.0, 150.0)


def test_a_machine_that_is_not_listed_for_a_while_has_ended() -> None:
    """Lists are behind at some providers: one look is not enough, a minute of looks is."""
    unseen: dict[str, float] = {}
    assert reconcile([HELD], [], 200.0, unseen=unseen).changed == []
    reconcile([HELD], [listed()], 210.0, unseen=unseen)
    assert reconcile([HELD], [], 220.0, unseen=unseen).changed == []
    (line,) = reconcile([HELD], [], 220.0 + UNLISTED, unseen=unseen).changed
    # By our clock from the request on, since the provider says nothing any more.
    assert (line.state, line.began, line.ended) == ("ended", 100.0, 220.0)


def test_a_machine_that_is_listed_again_is_ended() -> None:
    """Its lease was lost and settled meanwhile: nobody pays for the machine any more."""
    gone = replace(HELD, state="ended", ended=220.0)
    found = reconcile([gone], [listed()], 400.0, unseen={})
    (line,) = found.changed
    assert (line.state, line.released) == ("held", True)
    assert found.doomed == ["i-1"]


@pytest.mark.parametrize("hook", [["save &", "sync"], ["save # all", "sync"]])
def test_lines_that_run_on_notice_may_be_any_shell(hook: list[str]) -> None:
    """A line in the background or with a comment breaks neither the others nor the script."""
    script = user_data(
        b"{}", processors=1, python="python3", start_limit=9, notices="ec2", on_notice=hook
    )
    done = subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in script.splitlines() if "bursar.provisioning.interruptions" in line)
    words = shlex.split(line, comments=True)
    assert words[-6:] == ["ec2", "$pilot", "10", *hook, "&"]


def test_purchases_survive_a_kill_at_any_byte(tmp_path: Path) -> None:
    """The last whole line of a purchase counts, and a torn one is left out."""
    path = tmp_path / "aws.machines"
    book = PurchaseBook(path)
    book.write(ASKED)
    book.write(HELD, HELD)
    whole = path.read_bytes()

    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        states = [line.state for line in PurchaseBook(path)]
        assert states in ([], ["asked"], ["held"])
    assert [line.machine for line in PurchaseBook(path).open] == ["i-1"]
    assert PurchaseBook(path).find(ASKED.token) == HELD


def test_a_bill_has_whole_units() -> None:
    """101 s to 200.5 s are 99.5 s: 100 s of a unit of 1 s, at 3.6 an hour 0.1."""
    line = replace(HELD, state="ended", ended=200.5, hourly=3.6, date="2026-11-01")
    rules = BillingRules(minimum=60.0, unit=1.0)

    assert line.seconds(rules) == 100.0
    assert line.cost(rules) == 0.1
    usage = usage_of(line, rules)
    assert (usage.job, usage.seconds, usage.hourly) == ("i-1", 100.0, 3.6)
    assert usage.price == "the sites file of 2026-11-01"
    spot = usage_of(replace(line, spot=True, paid_hourly=1.8, ended=86400.0 * 2), rules)
    assert (spot.machine, spot.hourly) == ("m (spot)", 1.8)
    assert spot.price == "the provider of 1970-01-03, its dearest zone"


def test_a_name_holds_owner_run_and_lease() -> None:
    """Many providers have no tags; what is not ours is not taken for ours."""
    label = MachineLabel("me_desk", "0a1b2c", "lease-12", "0123abcd")

    assert label_of(label.name) == label
    assert label_of("web-server-1") is None


def test_start_ups_of_earlier_runs_are_learned(tmp_path: Path) -> None:
    """
    Ten starts of 10, 20, ..., 100 s: the median is 55 s and nine of ten took 90 s or less.

    Starts of another image, region or provider say nothing of these, and a broken line is skipped.
    """
    path = tmp_path / START_UPS
    machine = MachineType(name="m", processors=2, price=MachinePrice(hourly=3.6))
    cloud = CloudEndpoint(provider="ec2", region="here", image="i", machines=(machine,))
    for i in range(10):
        note_start_up(path, cloud, "m", 10.0 * (i + 1), 100.0 + i)
        note_start_up(path, dataclasses.replace(cloud, image="other"), "m", 1e4, 0.0)
        note_start_up(path, dataclasses.replace(cloud, region="there"), "m", 1e4, 0.0)
        note_start_up(path, cloud, "n", 1e4, 0.0)
    with path.open("ab") as file:
        file.write(b'{"provider":"ec2","reg')
    facts = SiteFacts(name="c", kind="cloud", currency="USD", cloud=cloud)

    found = with_start_ups(facts, tmp_path)

    assert found.cloud is not None
    (learned,) = (one.learned for one in found.cloud.machines)
    assert learned == LearnedStartUp(median=55.0, high=90.0, count=10)
    (slot,) = machine_slots("c", found.cloud)
    assert slot.start == 55.0
    assert slot.fixed_price == pytest.approx(0.055)  # 55 s at 3.6 an hour
    # The margin of a deadline: 35 s by which one start of ten is late, and 5 s as at any cloud.
    assert start_up(found) == 40.0
    assert start_up(facts) == 5.0
    assert str(learned) == "starts in 55 s, 90 % within 90 s (last 10 starts)"
    assert with_start_ups(facts, tmp_path / "none") == facts


def test_a_machine_that_was_ended_and_is_listed_no_more_has_ended() -> None:
    """
    OpenStack and GCE list no machine that was deleted: its lease is settled at once.

    One that was never listed may only be missing yet, and is waited for.
    """
    seen = replace(HELD, listed=True, destroyed=150.0)

    found = reconcile([seen], [], 152.0, unseen={})
    assert found.changed == [replace(seen, state="ended", began=100.0, ended=150.0)]
    assert found.doomed == []
    for line in (replace(seen, listed=False), replace(seen, destroyed=None)):
        assert reconcile([line], [], 152.0, unseen={}).changed == []


HISTORY = """
<DescribeSpotPriceHistoryResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
<spotPriceHistorySet>{items}</spotPriceHistorySet></DescribeSpotPriceHistoryResponse>
"""

ITEM = """
<item><instanceType>m</instanceType><productDescription>Linux/UNIX</productDescription>
<spotPrice>{price}</spotPrice><timestamp>{at}.000Z</timestamp>
<availabilityZone>{zone}</availabilityZone></item>
"""


class ZonesDriver:
    """A driver whose connection answers with the price histories of three zones."""

    PRICES = (
        ("a", "1970-01-01T00:00:00", 0.2),
        ("a", "1970-01-01T01:00:00", 0.4),
        ("b", "1970-01-01T00:00:00", 0.6),
        ("c", "1970-01-01T00:30:00", 0.1),
    )
    path = "/"

    def __init__(self) -> None:
        self.connection = self

    def _pathlist(self) -> None:
        """Exist, as with the drivers of EC2's API."""

    def create_node(self, ex_userdata: str) -> None:
        """Name the argument by which drivers pass user data."""

    def request(self, path: str, params: dict[str, str]) -> SimpleNamespace:
        # The provider answers with the latest prices first, the zones in between one another.
        items = [
            ITEM.format(zone=zone, at=at, price=price)
            for zone, at, price in sorted(self.PRICES, key=lambda row: row[1], reverse=True)
        ]
        return SimpleNamespace(object=ElementTree.fromstring(HISTORY.format(items="".join(items))))


@pytest.mark.parametrize(
    ("zone", "paid", "words"),
    [
        # Half an hour at 0.2 and one at 0.4.
        ("a", (0.2 + 2 * 0.4) / 3, ", zone a"),
        ("b", 0.6, ", zone b"),
        # The price of before the first change is taken to be that of the first.
        ("c", 0.1, ", zone c"),
        ("", 0.6, ", its dearest zone"),
        ("d", None, ""),
    ],
)
def test_a_spot_machine_is_billed_by_the_prices_of_its_own_zone(
    zone: str, paid: float | None, words: str
) -> None:
    """Of three zones with prices of their own; where the zone has no history, by the ceiling."""
    provider = LibcloudProvider("aws", CloudEndpoint(provider="ec2"), driver=ZonesDriver())
    line = replace(
        HELD, spot=True, zone=zone, state="ended", began=1800.0, ended=7200.0, hourly=1.0
    )

    found = asyncio.run(paid_hourly(line, provider))

    assert found == (None if paid is None else pytest.approx(paid))
    rules = BillingRules()
    line = replace(line, paid_hourly=found)
    assert line.cost(rules) == pytest.approx(1.5 * (1.0 if paid is None else paid))
    assert usage_of(line, rules).price.partition(" of ")[2][10:] == words
    # No machine is billed above its ceiling, whatever the history says.
    assert asyncio.run(paid_hourly(replace(line, hourly=0.05), provider)) is None


def test_a_plan_of_spot_machines_takes_the_prices_of_the_dearest_zone() -> None:
    """The provider chooses the zone: on the last day that is zone b, at 0.6."""
    spot = SpotTerms(ceiling=1.0)
    machine = MachineType(name="m", processors=4, spot=spot)
    cloud = CloudEndpoint(provider="ec2", machines=(machine,), prices=("user",))
    facts = SiteFacts(name="aws", kind="cloud", currency="USD", cloud=cloud)
    provider = LibcloudProvider("aws", cloud, driver=ZonesDriver())

    found = asyncio.run(with_machine_prices(facts, provider, now=3 * 86400.0)).cloud

    assert found is not None
    (priced,) = found.machines
    assert priced.spot is not None
    assert priced.spot.expected == 0.6
    assert priced.spot.odds is not None
