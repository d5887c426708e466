"""What a run had booked ahead when an earlier life of it ended."""

from collections.abc import Mapping, Sequence

import msgspec

from bursar.broker.booking import BOOKING, BOOKING_OVER, Booking
from bursar.dispatch.journal import RunEvent
from bursar.market.lease import Lease


def bookings_of(events: Sequence[RunEvent]) -> dict[str, str]:
    """Bookings by their leases, as they are journalled; those given back are left out."""
    found: dict[str, str] = {}
    for event in events:
        if event.kind == BOOKING:
            found[msgspec.json.decode(event.text, type=Booking).lease] = event.text
        elif event.kind == BOOKING_OVER:
            found.pop(event.text, None)
    return found


def split_bookings(
    events: Sequence[RunEvent], leases: Mapping[str, Lease], last_seen: float, now: float
) -> tuple[dict[str, str], dict[str, float]]:
    """
    What stands of the bookings of a life that was killed, and what was missed of them.

    A booking that had not begun stands while some of its time is left: the owner keeps its
    processor from the begin on, whether anybody comes or not. One whose time has passed
    meanwhile is paid in full.

    Parameters
    ----------
    leases
        By name, as they were last journalled.
    last_seen, now
        Last sign of life, and the present, seconds since the epoch.

    Returns
    -------
    tuple
        Bookings that stand, by lease; and until when those that were missed are paid, by
        lease, seconds since the epoch.
    """
    stand, missed = {}, {}
    for name, text in bookings_of(events).items():
        lease = leases.get(name)
        terms = msgspec.json.decode(text, type=Booking).agreement.terms
        if (lease is not None and lease.end is not None) or terms.start <= last_seen:
            continue
        if now < terms.end:
            stand[name] = text
        else:
            missed[name] = terms.end
    return stand, missed
