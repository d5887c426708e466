"""The ways in which a campaign gets processors."""

from typing import Literal

ProvisioningMode = Literal["planned", "dynamic", "best-effort", "queued", "either"]
"""Ways to get processors: ``planned`` by a plan's reservations; ``dynamic`` by a pool that acquires
and releases processors with the load; ``best-effort`` task by task from the sites' queues;
``queued`` from the queues, all at once; ``either`` by whichever of ``planned``, ``best-effort`` and
``queued`` is expected to serve the goal best."""
