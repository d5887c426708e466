"""The ways in which a campaign gets processors."""

from typing import Literal

ProvisioningMode = Literal["planned", "dynamic", "best-effort", "queued", "either"]
"""By a plan's reservations; by a pool that acquires and releases processors as there is work for
them; task by task from the sites' queues; from the queues, all at once; or by whichever of the
first, the third and the fourth is expected to serve the goal best."""
