"""Defaults for adapters whose scheduler lacks estimates, reservations and shrinking."""

from collections.abc import Sequence

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.resource_manager import JobRequest


class MinimalManager:
    """
    A base for adapters that can neither estimate starts, nor reserve, nor shrink jobs.

    Attributes
    ----------
    title
        Name of the scheduler, for people.
    """

    title = "the scheduler"

    async def expected_start(self, request: JobRequest) -> float | None:
        """Return None: no estimate is available."""
        return None

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """Raise SiteError: reservations are not supported."""
        raise SiteError(
            f"no reservations are made with {self.title}; pilots with a begin time are used instead"
        )

    async def unreserve(self, name: str) -> None:
        """Do nothing: there are no reservations."""

    async def shrink(self, id: str, nodes: Sequence[str]) -> None:
        """Raise SiteError: running jobs cannot be shrunk."""
        raise SiteError(f"no nodes are taken from a running job with {self.title}")
