"""What many schedulers cannot do for a plain user, or not in a way that we could try."""

from collections.abc import Sequence

from bursar.model.errors import SiteError
from bursar.provisioning.lrm.resource_manager import JobRequest


class MinimalManager:
    """
    Neither estimates nor reservations, and a job keeps what it has.

    Attributes
    ----------
    title
        Name of the scheduler, for people.
    """

    title = "the scheduler"

    async def expected_start(self, request: JobRequest) -> float | None:
        """Nobody can say."""
        return None

    async def reserve(self, name: str, start: float, seconds: float, processors: int) -> None:
        """Not here."""
        raise SiteError(
            f"no reservations are made with {self.title}; pilots with a begin time are used instead"
        )

    async def unreserve(self, name: str) -> None:
        """There is none."""

    async def shrink(self, id: str, nodes: Sequence[str]) -> None:
        """Not here."""
        raise SiteError(f"no nodes are taken from a running job with {self.title}")
