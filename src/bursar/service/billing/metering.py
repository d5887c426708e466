"""Usage records, signed, a chain for each customer: neither side can change them later."""

from collections.abc import Mapping, Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from bursar.market.usage import SignedRecord, UsageRecord, sign
from bursar.service.interfaces import BILLING_KINDS, Entropy, ServiceJournal
from bursar.store import Position

USAGE, SEED = BILLING_KINDS[2], BILLING_KINDS[3]

_SEED_SIZE = 32

decode_usage = msgspec.msgpack.Decoder(SignedRecord).decode
"""Returns the signed record in a record of the store."""


class UsageRecordLog:
    """
    Keeps the usage records: one signed chain for each customer.

    Each customer has a separate chain: the length of a common one would tell each customer how
    much the others use.

    Parameters
    ----------
    journal
        Journal, not yet open.
    entropy
        Source of the signing key, which is made once and kept in the journal.
    """

    def __init__(self, journal: ServiceJournal, entropy: Entropy) -> None:
        self._journal = journal
        self._entropy = entropy
        self._seed = b""
        self._key: Ed25519PrivateKey
        self._chains: dict[str, list[SignedRecord]] = {}
        self._records: dict[str, list[UsageRecord]] = {}
        journal.register([USAGE, SEED], self)

    # Its records.

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in a usage record, or the signing key."""
        if kind == SEED:
            self._seed = payload
        else:
            self._note(decode_usage(payload))

    def open(self) -> None:
        """Take up the restored records: make the key if there is none, and sort the chains."""
        if not self._seed:
            self._seed = self._entropy(_SEED_SIZE)
            self._journal.append(SEED, self._seed, essential=True)
        self._key = Ed25519PrivateKey.from_private_bytes(self._seed)
        for chain in self._chains.values():
            # The journal restores records in any order; each signature covers the one before.
            chain.sort(key=lambda signed: signed.number)

    # What it says.

    @property
    def public_key(self) -> Ed25519PublicKey:
        """Public key by which the records are verified."""
        return self._key.public_key()

    def of(self, agreement: str) -> Sequence[UsageRecord]:
        """Return the usage records of an agreement."""
        return self._records.get(agreement, ())

    def chain(self, customer: str) -> tuple[SignedRecord, ...]:
        """Return all usage records of a customer, in order."""
        return tuple(self._chains.get(customer, ()))

    @property
    def chains(self) -> Mapping[str, Sequence[SignedRecord]]:
        """Return all chains of usage records by customer."""
        return self._chains

    def note(self, record: UsageRecord) -> None:
        """Sign a usage record and append the signed record to the journal."""
        chain = self._chains.get(record.customer)
        signed = sign(record, self._key, chain[-1] if chain else None)
        self._journal.append(USAGE, msgspec.msgpack.encode(signed), essential=True)
        self._note(signed)

    def _note(self, signed: SignedRecord) -> None:
        record = signed.record
        self._chains.setdefault(record.customer, []).append(signed)
        self._records.setdefault(record.agreement, []).append(record)
