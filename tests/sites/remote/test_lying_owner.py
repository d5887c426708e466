"""An owner that lies about what it delivered or charges is found, and the buyer's bill says so."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Folder
from tests.service.service_process import Served, served
from tests.sites.remote.lying_proxy import lying_proxy
from tests.sites.remote.real_service import SELLS

from bursar.market.agreement import Agreement, Terms, UsageRecord
from bursar.market.usage import audit, check_chain, penalty_for, sign

CAMPAIGN = """\
[campaign]
name = "c"
command = "echo {x}"
[parameters]
x = [1, 2, 3]
[task]
runtime = 0.5
"""


@pytest.fixture(scope="module")
def seller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Honest itself; a proxy lies for it."""
    with served(tmp_path_factory.mktemp("seller") / "state", f"{SELLS}credit = '1000 SU'\n") as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def ran(folder: Folder, seller: Served, falsify: Callable[[str, Any], Any]) -> dict[str, Any]:
    """The bill of a run at the service, behind a proxy that falsifies what it says."""
    folder.write("c.toml", CAMPAIGN)
    with lying_proxy(seller.port, falsify=falsify) as proxy:
        folder.write(
            "s.toml",
            f'[site.there]\nkind = "remote"\nprocessors = 1\n'
            f'url = "http://127.0.0.1:{proxy.port}"\n'
            '[site.there.pool]\nprobe_every = "1s"\nidle = "1s"\n',
        )
        folder.bursar("run", "c.toml", "--sites", "s.toml", "--name", "r")
    bill: dict[str, Any] = json.loads((folder.path / "runs" / "r" / "bill.json").read_text())
    return bill


def ended(path: str, said: Any) -> bool:
    """Whether a document is that of an agreement which has ended."""
    return "/trade/agreements/" in path and said.get("state") == "over"


def bills_more(path: str, said: Any) -> Any:
    return said | {"charged": said["charged"] + 1_000_000} if ended(path, said) else said


def signs_more(path: str, said: Any) -> Any:
    if path.endswith("/trade/usage"):
        for one in said:
            one["record"]["end"] += 1_000.0
    return said


def leaves_out(path: str, said: Any) -> Any:
    return [] if path.endswith("/trade/usage") else said


def test_an_honest_owner_is_not_accused(folder: Folder, seller: Served) -> None:
    """Clocks and looks that are a little late are no lies."""
    bill = ran(folder, seller, lambda path, said: said)
    assert "disputes" not in bill
    assert bill["total_micros"] > 0


@pytest.mark.parametrize(
    ("falsify", "finding"),
    [
        (bills_more, "and its signed records come to"),
        pytest.param(signs_more, "was changed, or signed with another key", marks=pytest.mark.ci),
        pytest.param(signs_more, "processor-seconds, of which there were", marks=pytest.mark.ci),
        pytest.param(leaves_out, "and its signed records come to 0 SU", marks=pytest.mark.ci),
    ],
)
def test_a_lie_is_found_and_the_bill_says_so(
    folder: Folder, seller: Served, falsify: Callable[[str, Any], Any], finding: str
) -> None:
    """With the lease, the agreement and what is wrong; the run itself succeeds."""
    bill = ran(folder, seller, falsify)
    disputes = bill["disputes"]
    assert disputes
    assert any(finding in line for dispute in disputes for line in dispute["findings"])
    assert {d["site"] for d in disputes} == {"there"}
    assert {d["lease"] for d in disputes} <= {lease["lease"] for lease in bill["leases"]}
    shown = folder.bursar("bill", "r").stdout
    assert finding in shown
    assert disputes[0]["agreement"] in shown


TERMS = Terms(processors=2, start=1_000.0, seconds=1_000.0, unit_price=0.5, penalty=0.5)
AGREEMENT = Agreement(id="a", owner="uni", customer="ann", terms=TERMS, signed_at=900.0)


def record(job: str, start: float, end: float, processors: int = 2) -> UsageRecord:
    return UsageRecord(
        agreement="a",
        provider="uni",
        customer="ann",
        job=job,
        start=start,
        end=end,
        processors=processors,
    )


def test_a_penalty_that_was_not_paid_is_found() -> None:
    """Half delivered: 1000 of 2000 processor-seconds; 880 missing beyond the grace are 220 SU."""
    records = [record("1", 1_000.0, 1_500.0)]
    owed = penalty_for(TERMS, 1_000.0, 2_000.0)
    assert owed == 220_000_000
    kept = {"ended": 2_000.0, "held": 1_010.0}
    assert audit(AGREEMENT, records, charged=280_000_000, penalty=owed, **kept) == []
    (finding,) = audit(AGREEMENT, records, charged=500_000_000, penalty=0, **kept)
    assert finding == "owes a penalty of 220 SU, and paid 0 SU"


def test_records_of_others_and_repeated_ones_count_for_nothing() -> None:
    other = UsageRecord(agreement="a", provider="uni", customer="bob", job="2", start=0, end=9)
    records = [record("1", 1_000.0, 1_100.0), record("1", 1_000.0, 1_100.0), other]
    found = audit(AGREEMENT, records, charged=100_000_000, penalty=0, ended=1_100.0, held=205.0)
    assert found == ["record 1 is there twice", "record 2 is of other parties"]


@given(
    cuts=st.lists(st.floats(1_000, 2_000), max_size=6),
    more=st.integers(1, 10**9),
    ended=st.floats(1_000, 2_000),
)
def test_whatever_is_charged_beyond_the_records_is_found(
    cuts: list[float], more: int, ended: float
) -> None:
    """An honest charge is never accused, and one micro-unit more always is."""
    times = sorted({c for c in cuts if c <= ended})
    spans = zip(times[::2], times[1::2], strict=False)
    records = [record(str(i), start, end) for i, (start, end) in enumerate(spans)]
    delivered = sum(r.delivered for r in records)
    penalty = penalty_for(TERMS, delivered, ended)
    gross = min(TERMS.charge(delivered), TERMS.amount) if delivered else 0
    honest = max(0, gross - penalty)
    known = {"penalty": penalty, "ended": ended, "held": delivered + 1e-6}
    assert audit(AGREEMENT, records, charged=honest, **known) == []
    assert len(audit(AGREEMENT, records, charged=honest + more, **known)) == 1


def test_a_chain_is_checked_on_from_where_it_was_left() -> None:
    """What was added must follow what was seen before; another history is found."""
    key = Ed25519PrivateKey.generate()
    one = sign(record("1", 1_000.0, 1_100.0), key)
    two = sign(record("2", 1_100.0, 1_200.0), key, one)
    assert check_chain([two], key.public_key(), one) == []
    rewritten = sign(record("1", 1_000.0, 1_900.0), key)
    follower = sign(record("2", 1_900.0, 1_950.0), key, rewritten)
    (fault,) = check_chain([follower], key.public_key(), one)
    assert "does not follow the one before" in fault
