"""Simulates a user whose instance expires a short time after the last result."""

import asyncio

from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.service.engine.engine import SWEEP
from bursar.service.interfaces import Clock
from bursar_devtools.faults.campaign_client import make_task_spec
from bursar_devtools.faults.client_campaign import ClientCampaign
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.invariant_checker import InvariantChecker

_NOT_FOUND = 404
_GONE = "gone"  # problem kind of the answer to a key whose instance was destroyed

_LOOK = 3.0
"""Seconds between two requests for the instance."""

_JUMPS = 5.0
"""Seconds by which the service's clock may change at a restart, with a margin."""

_SWEPT = SWEEP + 2.0
"""Seconds within which a running service removes an expired instance."""


class ExpiringInstanceUser:
    """
    Creates an expiring instance and checks the time of expiry; is never killed.

    Parameters
    ----------
    client
        Client with the user's token.
    keep
        Seconds for which the service keeps the instance after its last result.
    server_clock
        The service's clock, seconds since the epoch.
    up_since, now
        Virtual time at which the service began to serve (infinite while it is down); virtual time
        now.
    checker, trace
        Notified of violations and events.
    """

    def __init__(
        self,
        client: AsyncServiceClient,
        campaign: ClientCampaign,
        keep: float,
        *,
        server_clock: Clock,
        up_since: Clock,
        now: Clock,
        checker: InvariantChecker,
        trace: EventTrace,
    ) -> None:
        self._client = client
        self._campaign = campaign
        self._keep = keep
        self._server_clock = server_clock
        self._up_since = up_since
        self._now = now
        self._checker = checker
        self._trace = trace
        self._earliest = 0.0  # service's time before which the instance must exist
        self._expires: float | None = None  # by the last answer

    async def run(self) -> None:
        """Create the instance, submit tasks, and poll until the instance is gone."""
        campaign, client = self._campaign, self._client
        self._earliest = self._server_clock() + self._keep
        try:
            info = await client.create_instance(
                label=campaign.name, keep=self._keep, key=campaign.name
            )
            campaign.handle = info.id
            self._note(f"has an instance for {self._keep:.0f} s")
            self._earliest = info.created + self._keep
            for key, pieces in campaign.pieces.items():
                numbers = await client.submit(
                    info.id, [make_task_spec(campaign, piece) for piece in pieces], key
                )
                assert isinstance(numbers, range)
                self._checker.submitted(campaign, key, numbers)
            while True:
                await self._look()
                await asyncio.sleep(_LOOK)
        except RemoteProblem as problem:
            # The instance may expire before the answer with its identifier has arrived.
            if problem.status != _NOT_FOUND and problem.kind != _GONE:
                raise
        if self._server_clock() < self._earliest - _JUMPS:
            self._checker.wrong(campaign.user, f"{campaign.name} is gone before its time")
        self._note("has expired")
        self._checker.destroyed(campaign)
        campaign.destroying = campaign.destroyed = True

    async def _look(self) -> None:
        """
        Ask for the instance, and report it when it outlives its expiry or expires with open tasks.

        The moment before which it must exist is moved on to what the answer promises.
        """
        asked, expires = self._server_clock(), self._expires
        up = self._now() - self._up_since() > _SWEPT
        info = await self._client.instance(self._campaign.handle)
        if up and expires is not None and asked > expires + _JUMPS + _SWEPT:
            self._checker.wrong(
                self._campaign.user, f"{self._campaign.name} is there after its time"
            )
        if info.expires is not None and (info.counts.waiting or info.counts.running):
            self._checker.wrong(
                self._campaign.user, f"{self._campaign.name} expires with tasks that have not ended"
            )
        self._expires = info.expires
        least = asked if info.expires is None else info.expires - self._keep
        self._earliest = max(self._earliest, least + self._keep)

    def _note(self, what: str) -> None:
        self._trace.note(self._campaign.user, f"{self._campaign.name} {what}")
