"""The ways in which a campaign gets its processors."""

from typing import Literal

Provisioning = Literal["planned", "best-effort", "queued", "either"]
"""By a plan's reservations; task by task from the sites' queues; from the queues, all at once; or
by whichever is expected to serve the goal best."""
