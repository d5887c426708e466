"""Digests the events of a simulation: equal simulations have equal digests."""

import hashlib
import struct
from enum import IntEnum


class GridJobEvent(IntEnum):
    """Event in the life of a job."""

    SUBMITTED = 0
    SENT = 1
    ARRIVED = 2
    BEGAN = 3
    ENDED = 4
    SET_BACK = 5
    FAILED = 6


class EventDigest:
    """Counts and digests events without keeping any."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._pack = struct.Struct("<dBqi").pack

    def add(self, time: float, event: GridJobEvent, job: int, site: int) -> None:
        """Add an event of a job."""
        self.count += 1
        self._digest.update(self._pack(time, event, job, site))

    @property
    def digest(self) -> str:
        """Digest of all events so far."""
        return self._digest.hexdigest()
