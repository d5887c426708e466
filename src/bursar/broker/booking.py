"""Journal record of a booked job."""

import msgspec

from bursar.market.agreement import Agreement

BOOKING = "booking"
"""Kind of a journal's event that holds a booking."""

BOOKING_OVER = "booking-over"
"""Kind of a journal's event that holds the lease of a booking that was given back."""


class Booking(msgspec.Struct, frozen=True, kw_only=True):
    """
    An agreement on a processor for one job that begins later.

    Parameters
    ----------
    lease
        Name of the lease under which the processor is held and paid from its begin.
    task
        Number of the job.
    agreement
        Agreement with the owner.
    """

    lease: str
    task: int
    agreement: Agreement
