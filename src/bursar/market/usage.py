"""
Meters what was delivered under an agreement, computes charges, and signs records.

A provider signs each record with Ed25519 (RFC 8032) and puts into it the hash of the one before, so
that neither side can later change, leave out or reorder one. That the last ones are missing cannot
be seen from the chain: the number of records is agreed on apart.
"""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from bursar.market.agreement import (
    EXCUSED,
    Agreement,
    SignedRecord,
    Terms,
    UsageRecord,
    signed_bytes,
)
from bursar.model.errors import BursarError, InputError
from bursar.model.money import MICROS, Micros, format_amount, rental_charge, to_micros


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementRates:
    """
    Holds the prices of an agreement.

    Parameters
    ----------
    unit_price
        Currency units per processor-second. Not negative.
    fixed_price
        Currency units, once. Not negative.
    """

    unit_price: float
    fixed_price: float = 0.0

    def __post_init__(self) -> None:
        for price in (self.unit_price, self.fixed_price):
            if not 0 <= price < math.inf:
                raise ValueError(f"a price must not be negative, got {price}")


def charge(records: Iterable[UsageRecord], terms: AgreementRates) -> Micros:
    """
    Return the charge for the records of one agreement, rounded up once for all of them.

    Raises
    ------
    InputError
        When they are not of one agreement, or one is there twice.
    """
    seconds = math.fsum(record.owed for record in _of_one(records))
    return rental_charge(seconds, terms.unit_price, terms.fixed_price)


def undelivered(records: Iterable[UsageRecord], terms: AgreementRates) -> Micros:
    """
    Return the price of the undelivered part, to be refunded if paid.

    Raises
    ------
    InputError
        When the records are not of one agreement, or one is there twice.
    """
    seconds = math.fsum(record.missing for record in _of_one(records))
    return to_micros(terms.unit_price * seconds)


GRACE = 60.0
"""Seconds of each processor's agreed time that may be missing without a penalty."""


def penalty_for(terms: Terms, delivered: float, ended: float) -> Micros:
    """
    Return what an owner owes for agreed time that was not delivered, micro-units, rounded down.

    Time after the customer has ended the agreement was not to be delivered.

    Parameters
    ----------
    delivered
        Processor-seconds that were delivered, or were not by the customer's own doing.
    ended
        When the agreement ended, seconds since the epoch.
    """
    due = max(0.0, min(ended, terms.end) - terms.start - GRACE) * terms.processors
    return max(0, math.floor((due - delivered) * terms.unit_price * terms.penalty * MICROS))


def _of_one(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    found = list(records)
    agreements = {record.agreement for record in found}
    if len(agreements) > 1:
        raise InputError(f"usage of {len(agreements)} agreements, expected that of one")
    # A record that came twice, as after a lost answer, must not be paid twice.
    if len({record.job for record in found}) < len(found):
        raise InputError(f"usage of {found[0].agreement} has a job twice")
    return found


# Signed records.


def sign(
    record: UsageRecord, key: Ed25519PrivateKey, after: SignedRecord | None = None
) -> SignedRecord:
    """
    Sign a record as the next one of a chain.

    Parameters
    ----------
    after
        Previous record of the chain; None for the first.
    """
    bare = SignedRecord(
        record=record,
        number=1 if after is None else after.number + 1,
        previous="" if after is None else after.digest,
    )
    return msgspec.structs.replace(bare, signature=key.sign(signed_bytes(bare)))


def verify(signed: SignedRecord, public_key: Ed25519PublicKey) -> bool:
    """Whether the record is, to the last bit, the one that was signed with this key."""
    try:
        public_key.verify(signed.signature, signed_bytes(signed))
    except InvalidSignature:
        return False
    return True


def check_chain(
    records: Sequence[SignedRecord],
    public_key: Ed25519PublicKey,
    after: SignedRecord | None = None,
) -> list[str]:
    """
    Return the faults of a chain of records, as evidence in a dispute.

    Parameters
    ----------
    after
        Last record that was checked before, which the first one here must follow; None: the chain
        is checked from its beginning.

    Returns
    -------
    list of str
        One line for each fault; empty when nothing was changed, left out, repeated or
        reordered, but perhaps after the last.
    """
    faults = []
    number, previous = (1, "") if after is None else (after.number + 1, after.digest)
    for place, signed in enumerate(records, number):
        where = f"record {place} ({signed.record.agreement}, {signed.record.job})"
        if not verify(signed, public_key):
            faults.append(f"{where}: was changed, or signed with another key")
        if signed.number != number:
            faults.append(f"{where}: is number {signed.number} of its chain, expected {number}")
        if signed.previous != previous:
            faults.append(f"{where}: does not follow the one before")
        number, previous = signed.number + 1, signed.digest
    return faults


def audit(
    agreement: Agreement,
    records: Iterable[UsageRecord],
    *,
    charged: Micros,
    penalty: Micros,
    ended: float,
    held: float,
) -> list[str]:
    """
    Return where an owner's bill for one agreement is wrong, by its signed records and our count.

    Parameters
    ----------
    agreement
        The agreement, with the parties by their names in usage records.
    records
        All records of the agreement, whose signatures and order were checked.
    charged, penalty
        Paid, less what came back as a penalty, and the penalty; by the owner's word, micro-units.
    ended
        When the agreement ended, seconds since the epoch, by the owner's word.
    held
        Processor-seconds that the customer can have had, at the most.

    Returns
    -------
    list of str
        One line for each finding; empty when there is none.
    """
    terms, found, jobs = agreement.terms, [], set[str]()
    delivered = excused = 0.0
    for record in records:
        if (record.provider, record.customer) != (agreement.owner, agreement.customer):
            found.append(f"record {record.job} is of other parties")
        elif record.job in jobs:
            found.append(f"record {record.job} is there twice")
        elif record.status == EXCUSED:
            excused += record.delivered
        else:
            delivered += record.delivered
        jobs.add(record.job)

    def money(amount: Micros) -> str:
        return format_amount(amount, terms.currency)

    if delivered > held:
        found.append(
            f"signed {delivered:.1f} processor-seconds, of which there were {held:.1f} at the most"
        )
    gross = min(terms.charge(delivered), terms.amount) if delivered else 0
    owed = penalty_for(terms, delivered + excused, ended)
    # The owner's clock may have moved on between its records and its word.
    slack = math.ceil(_SLACK * terms.processors * terms.unit_price * MICROS)
    if penalty < owed - slack:
        found.append(f"owes a penalty of {money(owed)}, and paid {money(penalty)}")
    if charged > max(0, gross - penalty):
        found.append(
            f"charged {money(charged)}, and its signed records come to "
            f"{money(max(0, gross - penalty))}"
        )
    return found


_SLACK = 1.0
"""Seconds by which a penalty may be less than what follows from the records."""


def encode_signed(signed: SignedRecord) -> bytes:
    """Encode a signed record as one line of JSON."""
    return msgspec.json.encode(signed)


def decode_signed(text: bytes | str) -> SignedRecord:
    """
    Decode the bytes of :func:`encode_signed`.

    Raises
    ------
    InputError
        When it is no signed record.
    """
    try:
        return msgspec.json.decode(text, type=SignedRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"is no signed usage record: {error}") from None


# Keys.


def new_key(path: Path) -> Ed25519PrivateKey:
    """
    Make a key and write it to a PEM file (PKCS 8) that only the file's owner may read.

    Raises
    ------
    InputError
        When there is such a file: a key is never overwritten.
    BursarError
        When it cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_new(path, text)
    return key


def write_public_key(path: Path, key: Ed25519PublicKey) -> None:
    """
    Write a public key as PEM, readable by the file's owner only, who decides whom to give it.

    Raises
    ------
    InputError
        When there is such a file.
    BursarError
        When it cannot be written.
    """
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    _write_new(path, key.public_bytes(serialization.Encoding.PEM, form))


def read_key(path: Path) -> Ed25519PrivateKey:
    """
    Read the private key in a PEM file.

    Raises
    ------
    InputError
        When there is none.
    """
    found = _load(path, lambda text: serialization.load_pem_private_key(text, password=None))
    if not isinstance(found, Ed25519PrivateKey):
        raise InputError("expected an Ed25519 private key in PEM, not encrypted", where=str(path))
    return found


def read_public_key(path: Path) -> Ed25519PublicKey:
    """
    Read the public key in a PEM file.

    Raises
    ------
    InputError
        When there is none.
    """
    found = _load(path, serialization.load_pem_public_key)
    if not isinstance(found, Ed25519PublicKey):
        raise InputError("expected an Ed25519 public key in PEM", where=str(path))
    return found


def _load(path: Path, load: Callable[[bytes], object]) -> object:
    """Return the key in a file; None when the file holds none, or an encrypted one."""
    text = _read(path)
    try:
        return load(text)
    except (ValueError, TypeError):
        return None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _write_new(path: Path, text: bytes) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise InputError("exists already", where=str(path)) from None
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None
    with os.fdopen(file, "wb") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
