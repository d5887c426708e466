"""Several brokers, each a process of its own, compete for the processors of two owners."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.forked import ForkedCommand
from tests.service.service_process import Served, served

from bursar.model.slot import ResourceProfile
from bursar.remote.admin_messages import NewToken
from bursar.remote.messages import AgreementInfo

PROCESSORS = 2
SECONDS = 600
PRICES = {"cheap": 3600, "dear": 7200}
"""SU per core-hour: one and two SU for a processor-second."""

SELLS = """
[site]
processors = {processors}
unit_price = "{price} SU/core-hour"
[market]
credit = "10000 SU"
processors_per_user = 1
penalty = 0.2
"""


def sold_by(owner: Served) -> dict[str, list[AgreementInfo]]:
    """All agreements by customer, as the owner's console has them."""
    address = f"http://127.0.0.1:{owner.port}"
    command = ForkedCommand(
        ["owner", "agreements", "--all", "--json", "--site", address], owner.folder.parent
    )
    said, errors = command.communicate(60.0)
    assert command.returncode == 0, errors
    return msgspec.convert(json.loads(said)["customers"], dict[str, list[AgreementInfo]])


def most_sold_at_once(sold: dict[str, list[AgreementInfo]]) -> int:
    deals = [deal for listed in sold.values() for deal in listed]
    profile = ResourceProfile.summed(
        (deal.start, deal.start + deal.seconds, deal.processors) for deal in deals
    )
    return max(used for _, _, used in profile.steps())


def buyers_of(folder: Path, owners: dict[str, Served], count: int) -> dict[str, dict[str, str]]:
    """Environment of each buyer, whose services file names its tokens at the owners."""
    found = {}
    for number in range(count):
        name, lines = f"buyer-{number}", []
        for owner, one in owners.items():
            with one.client() as client:
                token = client.create_token(NewToken(user=name, scopes=["submit", "read"])).token
            (folder / f"{name}-{owner}").write_text(token)
            (folder / f"{name}-{owner}").chmod(0o600)
            lines += [
                f"[service.{owner}]",
                f'url = "http://127.0.0.1:{one.port}"',
                f'token_file = "{folder / f"{name}-{owner}"}"',
            ]
        path = folder / f"{name}.toml"
        path.write_text("\n".join(lines) + "\n")
        environment = {key: value for key, value in os.environ.items() if key != "BURSAR_SITE"}
        found[name] = environment | {"BURSAR_SERVICES": str(path)}
    return found


def tendered(folder: Path, buyers: dict[str, dict[str, str]]) -> dict[str, dict[str, Any]]:
    """All of them call for tenders at once; what came of it, for those that agreed."""
    words = ["tender", "-p", "1", "--for", f"{SECONDS}s", "--deadline", f"{SECONDS + 300}s"]
    running = {
        name: ForkedCommand([*words, "--json"], folder, environment)
        for name, environment in buyers.items()
    }
    done = {}
    for name, command in running.items():
        said, errors = command.communicate(120.0)
        assert command.returncode in (0, 3), errors
        result = json.loads(said)
        assert bool(result["agreement"]) == (command.returncode == 0)
        if result["agreement"]:
            done[name] = result
    return done


@pytest.mark.parametrize(
    "count", [2, pytest.param(5, marks=pytest.mark.ci), pytest.param(20, marks=pytest.mark.long)]
)
def test_nobody_gets_what_was_sold_to_another(tmp_path: Path, count: int) -> None:
    """
    Each wants one processor, by a deadline that four processors allow four of them to keep. All of
    the four are sold in the end and none twice, also not after the owners were killed.
    """
    texts = {
        name: SELLS.format(processors=PROCESSORS, price=price) for name, price in PRICES.items()
    }
    with (
        served(tmp_path / "a", texts["cheap"]) as cheap,
        served(tmp_path / "b", texts["dear"]) as dear,
    ):
        owners = {"cheap": cheap, "dear": dear}
        buyers = buyers_of(tmp_path, owners, count)
        most = min(count, PROCESSORS * len(owners))
        kept: dict[str, dict[str, Any]] = {}
        # Who was outbid in one round may ask again, as long as there is something left.
        for _ in range(most):
            kept |= tendered(tmp_path, {n: e for n, e in buyers.items() if n not in kept})
            if len(kept) == most:
                break
        assert len(kept) == most

        before = {name: sold_by(one) for name, one in owners.items()}
        for one in owners.values():
            one.kill()
            one.start()
        late = tendered(tmp_path, {n: e for n, e in buyers.items() if n not in kept})
        assert late == {} or count < PROCESSORS * len(owners)
        after = {name: sold_by(one) for name, one in owners.items()}

    revenue = 0
    for name, sold in after.items():
        assert most_sold_at_once(sold) <= PROCESSORS
        for customer, deals in before[name].items():
            assert [deal.id for deal in deals] == [deal.id for deal in sold[customer]]
            assert len(deals) == 1
        revenue += sum(
            round(deal.unit_price * deal.seconds * 1_000_000)
            for deals in sold.values()
            for deal in deals
        )
    agreed = {result["agreement"] for result in kept.values()}
    assert agreed == {deal.id for sold in after.values() for ds in sold.values() for deal in ds}
    assert revenue == sum(result["amount"] for result in kept.values())
    # The cheap owner is sold out before anybody pays the dear one.
    assert len(after["cheap"]) == PROCESSORS
