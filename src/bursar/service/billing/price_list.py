"""The owner's prices: those of the configuration, or a later change."""

import msgspec

from bursar.model.pricing import Pricing
from bursar.service.interfaces import BILLING_KINDS, ServiceJournal
from bursar.store import Position

CHANGED = BILLING_KINDS[6]


class _PriceChange(msgspec.Struct, frozen=True):
    """A pricing policy, and the one of the configuration that was replaced."""

    instead_of: Pricing
    pricing: Pricing


_CHANGES = msgspec.msgpack.Decoder(_PriceChange)


class PriceList:
    """
    The owner's pricing policy; a change holds until the configuration is changed.

    Parameters
    ----------
    journal
        Journal, not yet open.
    configured
        Policy of the configuration.
    """

    def __init__(self, journal: ServiceJournal, configured: Pricing) -> None:
        self.pricing = configured
        self._journal = journal
        self._configured = configured
        self._position: Position | None = None
        self._is_stale = False
        journal.register([CHANGED], self)

    def restore(self, kind: int, position: Position, payload: bytes) -> None:
        """Take in the record of the last price change."""
        self._position = position
        changed = _CHANGES.decode(payload)
        # Whichever of the two was changed last counts: a change by the API, as long as the file
        # still says what it said then; otherwise the file.
        if changed.instead_of == self._configured:
            self.pricing = changed.pricing
        self._is_stale = changed.instead_of != self._configured

    def open(self) -> None:
        """Drop a price change for good if the configuration has changed since."""
        if self._is_stale:
            self._forget()

    def change(self, pricing: Pricing) -> None:
        """Set the prices from now on; the change is in the journal on return."""
        payload = msgspec.msgpack.encode(_PriceChange(self._configured, pricing))
        # In one batch: a crash leaves either the old price or the new one.
        position = self._journal.append(CHANGED, payload, essential=True)
        self._forget()
        self._position = position
        self.pricing = pricing

    def reconfigure(self, configured: Pricing) -> None:
        """Apply the prices of a configuration that was read again, if the prices differ."""
        if configured == self._configured:
            return
        self._configured = self.pricing = configured
        self._forget()

    def _forget(self) -> None:
        if self._position is not None:
            self._journal.kill(self._position)
        self._position = None
        self._is_stale = False
