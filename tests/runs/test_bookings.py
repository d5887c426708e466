"""What stands of bookings when a run is resumed."""

import msgspec
import pytest

from bursar.broker.decision_reasons import BOOKING, BOOKING_OVER, Booking
from bursar.dispatch.journal_records import RunEvent
from bursar.market.agreement import Agreement, Terms
from bursar.market.lease import Lease
from bursar.runs.incarnations import bookings_of, split_bookings

BOOKED = Booking(
    lease="lease-3",
    task=1,
    agreement=Agreement(
        id="uni-1",
        owner="uni",
        customer="buyer",
        terms=Terms(processors=1, start=100.0, seconds=50.0, unit_price=0.5),
        signed_at=10.0,
    ),
)
TEXT = msgspec.json.encode(BOOKED).decode()
EVENTS = [RunEvent(time=10.0, kind=BOOKING, text=TEXT)]


def lease(end: float | None = None) -> Lease:
    """Of the booking."""
    return Lease(
        id="lease-3",
        site="uni",
        processors=1,
        unit_price=0.5,
        fixed_price=0.0,
        start=100.0,
        until=150.0,
        end=end,
    )


@pytest.mark.parametrize("now", [60.0, 100.0, 149.0])
def test_a_booking_stands_until_its_time_is_over(now: float) -> None:
    """Whether its lease was journalled or only the agreement was."""
    for leases in ({"lease-3": lease()}, {}):
        assert split_bookings(EVENTS, leases, 50.0, now) == ({"lease-3": TEXT}, {})


def test_a_booking_whose_time_has_passed_is_paid_to_its_end() -> None:
    """The owner kept the processor all the time."""
    assert split_bookings(EVENTS, {"lease-3": lease()}, 50.0, 150.0) == ({}, {"lease-3": 150.0})


def test_a_booking_that_began_or_ended_before_is_a_lease_like_others() -> None:
    """It is settled as every lease of a killed life is."""
    assert split_bookings(EVENTS, {"lease-3": lease()}, 100.0, 120.0) == ({}, {})
    assert split_bookings(EVENTS, {"lease-3": lease(end=100.0)}, 50.0, 60.0) == ({}, {})


def test_a_booking_that_was_given_back_is_none() -> None:
    """The event says so."""
    gone = [*EVENTS, RunEvent(time=20.0, kind=BOOKING_OVER, text="lease-3")]

    assert bookings_of(EVENTS) == {"lease-3": TEXT}
    assert bookings_of(gone) == {}
