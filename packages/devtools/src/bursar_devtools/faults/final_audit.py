"""Audits the service through its users' clients after a simulation has come to rest."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bursar.remote import messages as api
from bursar.remote.async_client import AsyncServiceClient
from bursar.remote.http_transport import RemoteProblem
from bursar_devtools.faults.client_campaign import ClientCampaign
from bursar_devtools.faults.invariant_checker import InvariantChecker
from bursar_devtools.faults.simulated_homes import SimulatedInstanceHomes

OpenClient = Callable[[str], AsyncServiceClient]
"""Makes a client with a user's own token."""


_LOOK = 10.0
"""Seconds between two checks that instances' folders are removed."""


class FinalAudit:
    """
    Compares what the service shows to each user with what was promised.

    Parameters
    ----------
    checker
        Records of all promises; gets the violations.
    homes
        Folders of instances.
    users
        Names of all users.
    client
        Function that opens a client, see :data:`OpenClient`.
    money
        Micro-units that were deposited for each user.
    prices
        Micro-units that a second of a shared processor may have cost.
    jump
        Seconds by which the service's clock may go back at a restart.
    """

    def __init__(
        self,
        checker: InvariantChecker,
        homes: SimulatedInstanceHomes,
        users: Sequence[str],
        client: OpenClient,
        *,
        money: int,
        prices: Sequence[float],
        jump: float,
    ) -> None:
        self._checker = checker
        self._homes = homes
        self._users = users
        self._client = client
        self._money = money
        self._prices = prices
        self._agreements: dict[str, list[api.AgreementInfo]] = {}
        self._jump = jump

    async def run(self) -> None:
        """Audit instances, accounts, agreements and folders."""
        for user in self._users:
            client = self._client(user)
            listed = {info.id: info for info in await client.instances()}
            for campaign in self._checker.campaigns_of(user):
                await self._look_at(client, campaign, listed.pop(campaign.handle, None))
            for info in listed.values():
                self._checker.wrong(user, f"is shown {info.label}, which is not the user's")
            await self._look_at_money(client, user)
            await self._look_over_walls(client, user)
        self._checker.contracts.settled(self._agreements, slack=self._jump)
        here = sum(not campaign.destroyed for campaign in self._checker.campaigns.values())
        while len(self._homes.names) != here:  # a folder stays until no worker runs a task in it
            await asyncio.sleep(_LOOK)

    async def _look_at(
        self, client: AsyncServiceClient, campaign: ClientCampaign, info: api.InstanceInfo | None
    ) -> None:
        wrong = self._checker.wrong
        if campaign.destroyed:
            if info is not None:
                wrong(campaign.user, f"{campaign.name} was destroyed and is there")
            return
        if info is None:
            wrong(campaign.user, f"{campaign.name} is not there any more")
            return
        counts = info.counts
        if counts.total != len(campaign.results) or counts.waiting or counts.running:
            wrong(campaign.user, f"{campaign.name} says {counts}")
        async for result in client.results(campaign.handle, info.kept_from):
            self._checker.received_again(campaign, result)
        self._checker.settled(campaign)

    async def _look_at_money(self, client: AsyncServiceClient, user: str) -> None:
        """Check that a user paid for what was used, and that all deposits are accounted for."""
        account = await client.account()
        usage = [signed.record for signed in await client.usage()]
        listed = await client.agreements()
        credits = sum(self._checker.contracts.penalised(user, info, usage) for info in listed)
        if account.balance + account.held + account.spent != self._money + credits:
            self._checker.wrong(
                user, f"has {account}, {self._money} were deposited, {credits} are penalties"
            )
        posted = self._checker.contracts.prices_now()
        self._checker.contracts.posted(user, (await client.site()).unit_price, posted)
        found = self._agreements[user] = await client.agreements()
        charged = sum(agreement.charged for agreement in found)
        self._checker.paid(user, account.spent - charged, self._prices, jump=self._jump)

    async def _look_over_walls(self, client: AsyncServiceClient, user: str) -> None:
        """Check that a user cannot see other users' instances and agreements."""
        for campaign in self._checker.campaigns.values():
            if campaign.user == user:
                continue
            # Without a handle, the instance expired before its creation was answered.
            if campaign.handle and await _is_found(client.instance(campaign.handle)):
                self._checker.wrong(user, f"can look at {campaign.name}")
            if campaign.agreement and await _is_found(client.agreement(campaign.agreement)):
                self._checker.wrong(user, f"can look at the agreement of {campaign.name}")


async def _is_found(asked: Awaitable[object]) -> bool:
    try:
        await asked
    except RemoteProblem as problem:
        return problem.status != 404
    return True
