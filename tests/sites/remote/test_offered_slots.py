"""Slots of a service, as the run that would buy them sees them."""

import asyncio
import math

from bursar.model.provisioning import AcquisitionPolicy
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.remote.messages import SiteInfo, SlotInfo
from bursar.sites.remote.site_client import RemoteSiteStatus

FACTS = SiteFacts(
    name="physics",
    kind="remote",
    processors=4,
    acquiring=AcquisitionPolicy(shortest=10.0, longest=50.0),
)


def info_with(*slots: SlotInfo) -> SiteInfo:
    """Return what a service says that sells processors."""
    return SiteInfo(
        name="physics", processors=4, free=4, unit_price=2.0, protocols=("posted",), slots=slots
    )


def test_slots_are_those_that_the_service_offers_and_no_odd_ones() -> None:
    """What has no processors, no length, or is over, is passed over."""
    info = info_with(
        SlotInfo(start=0.0, seconds=None, processors=3, unit_price=2.0),
        SlotInfo(start=10.0, seconds=20.0, processors=2, unit_price=2.0),
        SlotInfo(start=0.0, seconds=10.0, processors=0, unit_price=2.0),
        SlotInfo(start=0.0, seconds=0.0, processors=2, unit_price=2.0),
        SlotInfo(start=-30.0, seconds=20.0, processors=2, unit_price=2.0),
        SlotInfo(start=5.0, seconds=-1.0, processors=2, unit_price=2.0),
    )

    async def look() -> tuple[tuple[Slot, ...], tuple[Slot, ...]]:
        status = RemoteSiteStatus(FACTS)
        status.take(info)
        return status.view(0).backfill_windows, status.offers(0)

    windows, offers = asyncio.run(look())

    assert [(slot.duration, slot.processors) for slot in windows] == [(math.inf, 3), (20.0, 2)]
    # Four processors in all, and at most 50 s of a request: one is beside the first slot.
    assert [(slot.duration, slot.processors) for slot in offers] == [(50.0, 3), (20.0, 1)]
    assert {(slot.site, slot.unit_price) for slot in offers} == {("physics", 2.0)}
