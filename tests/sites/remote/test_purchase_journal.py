"""What was bought, and is found again."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bursar.market.agreement import Terms
from bursar.remote.messages import AgreementInfo
from bursar.sites.remote.purchase_journal import PurchaseJournal, PurchaseRecord

TERMS = Terms(processors=2, start=1e9 + 0.123456, seconds=60.0, unit_price=0.5)


def info(name: str = "a", start: float = TERMS.start, seconds: float = 60.0) -> AgreementInfo:
    return AgreementInfo(
        id=name,
        processors=2,
        start=start,
        seconds=seconds,
        unit_price=0.5,
        fixed_price=0.0,
        currency="SU",
        state="running",
    )


def test_what_is_open_survives(tmp_path: Path) -> None:
    path = tmp_path / "made" / "x.deals"
    record = PurchaseJournal(path)
    record.write(PurchaseRecord("one", TERMS))
    record.write(PurchaseRecord("two", TERMS))
    record.write(PurchaseRecord("two", TERMS, "agreed"))
    record.write(PurchaseRecord("three", TERMS, "agreed too"))
    record.write(PurchaseRecord("three", TERMS, "agreed too", over=True))

    again = PurchaseJournal(path)
    assert again.open == [PurchaseRecord("one", TERMS), PurchaseRecord("two", TERMS, "agreed")]
    assert again.of("three") is None


@given(cut=st.integers(0, 400), rubbish=st.binary(max_size=30))
def test_a_torn_line_costs_no_other(tmp_path_factory, cut: int, rubbish: bytes) -> None:  # type: ignore[no-untyped-def]
    """What was written before it is there, and so is what is written after it."""
    path = tmp_path_factory.mktemp("torn") / "x.deals"
    PurchaseJournal(path).write(PurchaseRecord("one", TERMS, "a"))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:cut].rstrip(b"\n")[:-1] + rubbish)
    PurchaseJournal(path).write(PurchaseRecord("two", TERMS, "b"))
    found = {bought.pilot: bought.agreement for bought in PurchaseJournal(path).open}
    assert found["two"] == "b"
    assert found["one"] == "a"


def test_an_agreement_nobody_named_is_known_by_its_terms() -> None:
    assert PurchaseRecord("one", TERMS).is_of(info())
    assert not PurchaseRecord("one", TERMS).is_of(info(start=TERMS.start + 1e-5))
    assert not PurchaseRecord("one", TERMS).is_of(info(seconds=61.0))
    assert PurchaseRecord("one", TERMS, "a").is_of(info())
    assert not PurchaseRecord("one", TERMS, "b").is_of(info())
