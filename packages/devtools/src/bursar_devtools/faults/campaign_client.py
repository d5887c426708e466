"""
Simulates a user who runs campaigns through the real client and survives crashes.

The state in the campaigns outlives a crash: the user's next process resumes from it.
"""

import asyncio
import base64
from collections.abc import Iterable
from contextlib import aclosing

from bursar.remote import messages as api
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar.service.interfaces import Clock
from bursar.supervisor import TaskSupervisor
from bursar_devtools.faults.client_campaign import ClientCampaign
from bursar_devtools.faults.event_trace import EventTrace
from bursar_devtools.faults.invariant_checker import InvariantChecker
from bursar_devtools.faults.simulated_task import SimulatedTask
from bursar_devtools.faults.trading_client import TradingClient

_PAGE = 7
"""Results per page, where results are fetched page by page; small, so that requests are many."""

_PAUSE = 3.0
"""Seconds between two requests for results."""

_LOOK = 15.0
"""Seconds between two requests for an agreement's state."""

_WAITS = 40.0
"""Seconds from an agreement's early end to the cancellation of its tasks by the user."""


class CampaignClient:
    """
    Runs a user's campaigns in one simulated process.

    Parameters
    ----------
    owner
        Name of the service's owner in deals.
    client
        Client of the service, with the user's token.
    clock
        The user's clock, seconds since the epoch.
    checker, trace
        Notified of everything that the user does and receives.
    """

    def __init__(
        self,
        user: str,
        owner: str,
        client: AsyncServiceClient,
        *,
        clock: Clock,
        checker: InvariantChecker,
        trace: EventTrace,
    ) -> None:
        self._user = user
        self._client = client
        self._checker = checker
        self._trace = trace
        self._buyer = TradingClient(
            user,
            owner,
            client,
            clock=clock,
            contracts=checker.contracts,
            note=self._note,
        )

    async def run(self, campaigns: Iterable[ClientCampaign]) -> None:
        """Run all campaigns concurrently until each is complete or destroyed."""
        async with asyncio.TaskGroup() as group:
            for campaign in campaigns:
                group.create_task(self._carry(campaign))

    async def _carry(self, campaign: ClientCampaign) -> None:
        if campaign.destroyed:
            return
        try:
            while not campaign.handle:
                await self._create(campaign)
            await self._use(campaign)
        except RemoteProblem as problem:
            # An earlier process may have destroyed the instance and crashed before the answer.
            if not (campaign.destroying and problem.status == 404):
                raise
            campaign.destroyed = True

    async def _create(self, campaign: ClientCampaign) -> None:
        if campaign.buys is not None and not campaign.agreement:
            await self._buyer.buy(campaign, *campaign.buys)
        try:
            info = await self._client.create_instance(
                label=campaign.name,
                agreement=campaign.agreement,
                key=f"{campaign.name}.{campaign.agreement}",
            )
        except RemoteProblem as problem:
            if problem.kind != "no-agreement":
                raise
            self._note(campaign, f"was too late for {campaign.agreement}")
            campaign.agreement = ""
        else:
            campaign.handle = info.id
            self._note(campaign, "has an instance")

    async def _use(self, campaign: ClientCampaign) -> None:
        if campaign.destroys_after is None:
            await self._work(campaign)
            return
        failures: list[BaseException] = []

        def hear(error: BaseException) -> None:
            if not campaign.destroying:  # afterwards requests are refused
                failures.append(error)

        async with TaskSupervisor(hear) as tasks:
            working = tasks.start(self._work(campaign))
            await asyncio.wait({working}, timeout=campaign.destroys_after)
            campaign.destroying = True
            await self._client.destroy(campaign.handle)
            campaign.destroyed = True
            self._checker.destroyed(campaign)
            self._note(campaign, "is destroyed")
        if failures:
            raise failures[0]

    async def _work(self, campaign: ClientCampaign) -> None:
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._cancel(campaign))]
            if campaign.agreement:
                others.append(group.create_task(self._watch(campaign)))
                others.append(group.create_task(self._withdraw(campaign)))
            if campaign.watches:
                others.append(group.create_task(self._follow(campaign)))
            group.create_task(self._submit(campaign))
            await self._collect(campaign)
            while campaign.watches and campaign.seen < campaign.after:
                await asyncio.sleep(_PAUSE)
            for other in others:
                other.cancel()

    async def _submit(self, campaign: ClientCampaign) -> None:
        for key, pieces in campaign.pieces.items():
            if key in campaign.numbers:
                continue
            await asyncio.sleep(campaign.pauses[key])
            tasks = [make_task_spec(campaign, piece) for piece in pieces]
            numbers = await self._client.submit(campaign.handle, tasks, key)
            assert isinstance(numbers, range)
            self._checker.submitted(campaign, key, numbers)
            self._note(campaign, f"{key} is {numbers.start} to {numbers.stop - 1}")

    async def _collect(self, campaign: ClientCampaign) -> None:
        while not campaign.is_complete:
            if campaign.streams:
                results = self._client.results(
                    campaign.handle, campaign.after, acknowledge=campaign.forgets
                )
                async with aclosing(results):
                    async for result in results:
                        self._receive(campaign, result)
            else:
                page = await self._client.page(
                    campaign.handle, campaign.after, limit=_PAGE, wait=10.0
                )
                for result in page.results:
                    self._receive(campaign, result)
                if campaign.forgets and page.results:
                    await self._client.forget(campaign.handle, campaign.after)
            await asyncio.sleep(_PAUSE)

    async def _follow(self, campaign: ClientCampaign) -> None:
        """Follow events after the last one that any process of this user has recorded."""
        async with aclosing(self._client.events(campaign.handle, campaign.seen)) as events:
            async for info in events:
                self._checker.noticed(campaign, info)

    def _receive(self, campaign: ClientCampaign, result: api.Result) -> None:
        self._note(campaign, f"result {result.cursor}: task {result.task} {result.state}")
        self._checker.received(campaign, result)

    async def _cancel(self, campaign: ClientCampaign) -> None:
        if campaign.cancels_after is None or campaign.cancelled:
            return
        await asyncio.sleep(campaign.cancels_after)
        numbers = None
        if campaign.cancels is None:
            campaign.all_given_up = True
        else:
            numbers = [
                number
                for known in campaign.numbers.values()
                for number in known
                if (piece := campaign.piece(number)) and piece.name in campaign.cancels
            ]
            campaign.given_up |= campaign.cancels
        known = [number for some in campaign.numbers.values() for number in some]
        count = await self._client.cancel(campaign.handle, numbers)
        self._checker.cancelled(campaign, known if numbers is None else numbers)
        campaign.cancelled = True
        self._note(campaign, f"{count} tasks are cancelled")

    async def _watch(self, campaign: ClientCampaign) -> None:
        """Cancel all tasks after the agreement has ended."""
        while True:
            agreement = await self._client.agreement(campaign.agreement)
            if agreement.state in ("over", "cancelled"):
                campaign.all_given_up = True
                if campaign.withdrawing:  # shows whether the service stops the tasks without this
                    await asyncio.sleep(_WAITS)
                if len(campaign.numbers) == len(campaign.pieces):
                    count = await self._client.cancel(campaign.handle)
                    self._checker.cancelled(
                        campaign, (n for some in campaign.numbers.values() for n in some)
                    )
                    self._note(campaign, f"its agreement is {agreement.state}: {count} cancelled")
                    return
            await asyncio.sleep(_LOOK)

    async def _withdraw(self, campaign: ClientCampaign) -> None:
        """
        Cancel the agreement before its end, perhaps before its start, when the campaign is to.

        The campaign's ``withdraws_after`` is the wait in virtual seconds; None: it keeps the
        agreement. It is set to None once the service has acknowledged, so that a restarted client
        does not cancel twice.
        """
        if campaign.withdraws_after is None:
            return
        await asyncio.sleep(campaign.withdraws_after)
        # Set before the request: the service may act on it although its answer is lost.
        campaign.withdrawing = campaign.all_given_up = True
        info = await self._client.cancel_agreement(campaign.agreement)
        self._checker.contracts.ended(self._user, info)
        campaign.withdraws_after = None
        self._note(campaign, f"has ended its agreement: {info.state}, {info.charged} charged")

    def _note(self, campaign: ClientCampaign, what: str) -> None:
        self._trace.note(self._user, f"{campaign.name} {what}")


def make_task_spec(campaign: ClientCampaign, piece: SimulatedTask) -> api.TaskSpec:
    """Return the API's specification of a campaign's task."""
    sealed = base64.b64encode(piece.envelope).decode() if piece.is_sealed else ""
    return api.TaskSpec(
        command=() if sealed else piece.command,
        sealed=sealed,
        processors=piece.processors,
        label=piece.name,
        tries=100,
        retries=piece.retries,
        retry_delay=piece.retry_delay,
        after=tuple(campaign.number_of(name) for name in piece.after),
        at_once=campaign.at_once,
    )
