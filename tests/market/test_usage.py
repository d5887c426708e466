"""What was delivered, what it comes to, and that a signed record cannot be changed unseen."""

import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.market.agreement import SignedRecord, UsageRecord
from bursar.market.lease import Lease
from bursar.market.usage import (
    AgreementRates,
    charge,
    check_chain,
    decode_signed,
    encode_signed,
    new_key,
    read_key,
    read_public_key,
    sign,
    undelivered,
    verify,
    write_public_key,
)
from bursar.model.errors import BursarError, InputError
from bursar.model.money import MICROS

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key()

lengths = st.floats(min_value=0.0, max_value=1e6)
records = st.builds(
    UsageRecord,
    agreement=st.just("a"),
    provider=st.text(max_size=5),
    customer=st.text(max_size=5),
    job=st.text(max_size=5),
    start=st.floats(min_value=-1e9, max_value=0.0),
    end=lengths,
    processors=st.integers(1, 1000),
    cpu_seconds=lengths,
    status=st.sampled_from(["succeeded", "failed", "lost"]),
    agreed=st.none() | lengths,
)


def record(job: str = "1", **other: Any) -> UsageRecord:
    """One hour of two processors."""
    facts: dict[str, Any] = {"agreement": "a", "provider": "uni", "customer": "ann"}
    return UsageRecord(**(facts | {"job": job, "start": 0, "end": 3600, "processors": 2} | other))


def chain(count: int) -> list[SignedRecord]:
    found: list[SignedRecord] = []
    for number in range(count):
        found.append(sign(record(str(number)), KEY, found[-1] if found else None))
    return found


def test_a_charge_is_that_of_a_lease() -> None:
    """7200 processor-seconds at 0.01 and 5 fixed: 77, as the same lease costs."""
    lease = Lease(id="l", site="uni", processors=2, unit_price=0.01, fixed_price=5.0, start=0.0)
    assert charge([record()], AgreementRates(unit_price=0.01, fixed_price=5.0)) == 77 * MICROS
    assert lease.charge(7200.0) == 77 * MICROS


def test_what_was_agreed_on_bounds_what_is_paid_and_what_is_missing() -> None:
    """7200 delivered: of 5000 agreed only these are paid; of 10000, 2800 are missing."""
    terms = AgreementRates(unit_price=0.5)
    over, short = record(agreed=5000.0), record("2", agreed=10000.0)
    assert charge([over], terms) == 2500 * MICROS
    assert undelivered([over], terms) == 0
    assert charge([short], terms) == 3600 * MICROS
    assert undelivered([short], terms) == 1400 * MICROS


@settings(max_examples=examples(50))
@given(st.lists(records, unique_by=lambda r: r.job, max_size=8), st.randoms())
def test_a_charge_does_not_depend_on_the_order(
    found: list[UsageRecord], chance: random.Random
) -> None:
    """Nor is it less than that of a part."""
    terms = AgreementRates(unit_price=1 / 3, fixed_price=0.1)
    whole = charge(found, terms)
    chance.shuffle(found)
    assert charge(found, terms) == whole
    assert charge(found[1:], terms) <= whole


def test_usage_of_two_agreements_or_twice_of_one_job_has_no_charge() -> None:
    terms = AgreementRates(unit_price=1.0)
    with pytest.raises(InputError, match="usage of 2 agreements, expected that of one"):
        charge([record(), record(agreement="b")], terms)
    with pytest.raises(InputError, match="a job twice"):
        charge([record(), record(end=4000)], terms)


@pytest.mark.parametrize(
    "make",
    [
        lambda: record(end=-1),
        lambda: record(end=float("nan")),
        lambda: record(end=float("inf")),
        lambda: record(processors=0),
        lambda: record(cpu_seconds=-0.1),
        lambda: record(agreed=-1.0),
        lambda: AgreementRates(unit_price=-1.0),
        lambda: AgreementRates(unit_price=1.0, fixed_price=float("nan")),
    ],
)
def test_a_record_checks_itself(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="must"):
        make()


@settings(max_examples=examples(60))
@given(records, st.data())
def test_a_signed_record_verifies_until_any_bit_is_changed(
    usage: UsageRecord, data: st.DataObject
) -> None:
    """Also after its way over the wire, also where times are whole numbers."""
    signed = sign(usage, KEY)
    assert verify(signed, PUBLIC)
    assert decode_signed(encode_signed(signed)) == signed
    assert not verify(signed, Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key())

    place = data.draw(st.integers(0, 511))
    bent = bytearray(signed.signature)
    bent[place // 8] ^= 1 << place % 8
    assert not verify(msgspec.structs.replace(signed, signature=bytes(bent)), PUBLIC)
    assert not verify(msgspec.structs.replace(signed, number=2), PUBLIC)
    assert not verify(msgspec.structs.replace(signed, previous="00"), PUBLIC)
    for name in UsageRecord.__struct_fields__:
        value = getattr(usage, name)
        other: object = f"{value}x" if isinstance(value, str) else (value or 0) + 1
        if name == "start":
            other = value - 1  # so that the end stays after it
        changed = msgspec.structs.replace(usage, **{name: other})
        assert not verify(msgspec.structs.replace(signed, record=changed), PUBLIC)


@pytest.mark.parametrize("signature", [b"", b"x", bytes(64), bytes(65)])
def test_what_is_no_signature_does_not_verify(signature: bytes) -> None:
    assert not verify(SignedRecord(record=record(), signature=signature), PUBLIC)


def test_a_whole_number_survives_the_wire() -> None:
    """JSON gives 0 back as 0.0, which must not matter to the signature."""
    signed = sign(record(start=0, end=10, cpu_seconds=3, agreed=7), KEY)
    assert verify(decode_signed(encode_signed(signed)), PUBLIC)


def test_a_whole_chain_has_no_fault() -> None:
    assert check_chain([], PUBLIC) == []
    assert check_chain(chain(5), PUBLIC) == []


@settings(max_examples=examples(40))
@given(st.integers(2, 7), st.data())
def test_a_record_left_out_repeated_or_moved_is_noticed(count: int, data: st.DataObject) -> None:
    whole = chain(count)
    place = data.draw(st.integers(0, count - 2))
    without = whole[:place] + whole[place + 1 :]
    twice = [*whole[: place + 1], *whole[place:]]
    swapped = whole.copy()
    swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
    for wrong in (without, twice, swapped):
        assert check_chain(wrong, PUBLIC)


def test_the_faults_say_which_record_and_why() -> None:
    whole = chain(3)
    forged = msgspec.structs.replace(whole[1], record=record("1", end=7200))
    faults = check_chain([whole[0], forged, whole[2]], PUBLIC)
    assert faults == [
        "record 2 (a, 1): was changed, or signed with another key",
        "record 3 (a, 2): does not follow the one before",
    ]
    assert check_chain([whole[0], whole[2]], PUBLIC) == [
        "record 2 (a, 2): is number 3 of its chain, expected 2",
        "record 2 (a, 2): does not follow the one before",
    ]


def test_a_chain_that_only_its_maker_could_remake_is_noticed() -> None:
    """Who has no key may renumber and rehash the rest, and cannot sign it."""
    whole = chain(3)
    moved = msgspec.structs.replace(whole[2], number=2, previous=whole[0].digest)
    assert check_chain([whole[0], moved], PUBLIC) == [
        "record 2 (a, 2): was changed, or signed with another key"
    ]


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"\xff", b'{"record": {"agreement": 5}}'])
def test_what_is_no_signed_record_is_one_error(text: bytes) -> None:
    with pytest.raises(InputError, match="is no signed usage record"):
        decode_signed(text)


def test_keys_are_kept_in_files_of_their_owner(tmp_path: Path) -> None:
    """Mode 0600 whatever the umask, never overwritten, and they sign as before."""
    private, public = tmp_path / "key.pem", tmp_path / "public.pem"
    key = new_key(private)
    write_public_key(public, key.public_key())
    for path in (private, public):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert verify(sign(record(), read_key(private)), read_public_key(public))
    for again in (lambda: new_key(private), lambda: write_public_key(public, key.public_key())):
        with pytest.raises(InputError, match="exists already"):
            again()
    with pytest.raises(BursarError, match="cannot be written"):
        new_key(tmp_path / "no" / "key.pem")


def test_what_is_no_key_is_one_error(tmp_path: Path) -> None:
    """Text, a key of another kind, one with a password, the public one for the private one."""
    text, other, locked, public = (tmp_path / n for n in ("text", "other", "locked", "public"))
    text.write_text("secret")
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    other.write_bytes(generate_private_key(SECP256R1()).private_bytes(pem, pkcs8, plain))
    password = serialization.BestAvailableEncryption(b"x")
    locked.write_bytes(KEY.private_bytes(pem, pkcs8, password))
    write_public_key(public, PUBLIC)
    for path in (text, other, locked, public):
        with pytest.raises(InputError, match="expected an Ed25519 private key in PEM"):
            read_key(path)
    for path in (text, other, locked):
        with pytest.raises(InputError, match="expected an Ed25519 public key in PEM"):
            read_public_key(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_key(tmp_path / "none")
