"""This machine as a site."""

import os

from bursar.model.site import SiteFacts


def this_machine() -> SiteFacts:
    """
    The site there is when no sites file is given.

    It counts in service units at their definition, 1 SU a processor-hour, so
    that a campaign has a price even where nobody set one.
    """
    return SiteFacts(
        name="local",
        kind="local",
        processors=len(os.sched_getaffinity(0)),
        speed=1.0,
        unit_price=1 / 3600,
        fixed_price=0.0,
        currency="SU",
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
