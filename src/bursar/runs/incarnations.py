"""The incarnations of a run, and the bookings that an earlier one had made ahead."""

import math
from collections.abc import Mapping, Sequence

import msgspec

from bursar.broker.decision_reasons import BOOKING, BOOKING_OVER, Booking
from bursar.dispatch.journal_records import RunEvent
from bursar.market.lease import Lease

# The incarnations of a run, which may be stopped or killed and resumed later.

BEGIN, END = "begin", "end"
"""Kinds of the events at the begin and at the end of an incarnation."""

TAKEN_OVER = "taken over"
"""Text of the begin of an incarnation that goes on with workers of the one before."""

RunIncarnation = tuple[float, float]
"""Begin and end, seconds since the epoch; an infinite end: killed, or still running."""


def incarnations_of(events: Sequence[RunEvent]) -> list[RunIncarnation]:
    """
    Return all incarnations in order; a killed one ends where the next begins, at the latest.

    One that goes on with the workers of a killed one is no other: the tasks ran meanwhile.
    """
    incarnations: list[RunIncarnation] = []
    for event in events:
        if event.kind == BEGIN:
            if incarnations and math.isinf(incarnations[-1][1]):
                if event.text == TAKEN_OVER:
                    continue
                # It was killed, and wrote no end: it ended before this begin.
                incarnations[-1] = (incarnations[-1][0], event.time)
            incarnations.append((event.time, math.inf))
        elif event.kind == END and incarnations:
            incarnations[-1] = (incarnations[-1][0], event.time)
    return incarnations


def leases_of(events: Sequence[RunEvent]) -> dict[str, Lease]:
    """Return the last journalled state of each lease by id, with requests that came to nothing."""
    leases: dict[str, Lease] = {}
    for event in events:
        if event.kind == "lease":
            lease = msgspec.json.decode(event.text, type=Lease)
            leases[lease.id] = lease
    return leases


# Bookings that an earlier incarnation of a run had made ahead.


def bookings_of(events: Sequence[RunEvent]) -> dict[str, str]:
    """Return journalled bookings by lease, without bookings that were given back."""
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
    Split the bookings of a killed incarnation into valid bookings and missed ones.

    A booking that had not begun stands while some of its time is left: the owner keeps its
    processor from the begin on, whether it is used or not. One whose time has passed
    meanwhile is paid in full.

    Parameters
    ----------
    leases
        Leases by name, as last journalled.
    last_seen, now
        Last heartbeat and the present, seconds since the epoch.

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
        # Settled already, or begun before the kill: then it is a lease like any other that was left
        # open.
        if (lease is not None and lease.end is not None) or terms.start <= last_seen:
            continue
        if now < terms.end:
            stand[name] = text
        else:
            missed[name] = terms.end
    return stand, missed
