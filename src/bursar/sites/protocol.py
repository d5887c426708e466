"""All that is known of a provider goes through one small interface."""

from collections.abc import Callable
from typing import Protocol

from bursar.dispatch.launch import Endpoint
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot


class Site(Protocol):
    """A provider of processors."""

    @property
    def facts(self) -> SiteFacts:
        """What is known of it."""

    def offer(self) -> Slot:
        """What it offers from now on."""

    async def acquire(
        self, processors: int, endpoint: Endpoint, *, rigid: bool, on_event: Callable[[str], None]
    ) -> None:
        """
        Starts workers that share so many processors and report to the endpoint.

        Parameters
        ----------
        processors
            Positive.
        rigid
            Whether some task holds more than one processor, which must then be
            in the hands of one worker.
        on_event
            Told, in one line for people, of workers that die or are replaced.

        Raises
        ------
        SiteError
            When it cannot.
        """

    @property
    def workers(self) -> int:
        """Workers that are there, or will be again."""

    async def release(self) -> None:
        """Gives every processor back; nothing of the run is left behind there."""
