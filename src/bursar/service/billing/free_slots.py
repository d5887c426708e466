"""Free processors of an owner, as slots."""

from bursar.market.committed_capacity import CommittedCapacity
from bursar.model.resource_profile import ResourceProfile
from bursar.model.slot import Slot


def free_slots(capacity: CommittedCapacity, now: float) -> list[Slot]:
    """
    Return the processors free from now on as long slots, in the order of their starts.

    What is offered to somebody counts as free from when the offer lapses. Times are in seconds
    since the epoch; see :meth:`bursar.model.resource_profile.ResourceProfile.layers`.
    """
    free = ResourceProfile.summed(
        ((c.start, min(c.end, c.until), -c.processors) for c in capacity.commitments),
        capacity.processors,
    )
    return [
        Slot(start=start, duration=end - start, processors=processors)
        for start, end, processors in free.layers(now)
    ]
