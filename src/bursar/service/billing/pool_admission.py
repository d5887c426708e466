"""Decides which tasks may run, on whose processors, and for whom workers are wanted."""

import math
from collections.abc import Callable, Mapping

from bursar.model.money import MICROS, Refusal
from bursar.service.billing.agreement_registry import AgreementRegistry, unknown_agreement
from bursar.service.billing.service_ledger import ServiceLedger
from bursar.service.billing.shared_usage import SharedUsageMeter
from bursar.service.config import MarketSettings, UserSettings
from bursar.service.interfaces import SHARED, Clock, WorkerDemand, is_shared

SOON = 3_600.0
"""Seconds before an agreement begins from which on its workers are wanted."""

PriceFor = Callable[[str, float, int, float], float]
"""
Returns the price for a user at a moment (seconds since the epoch), of so many processors for so
many seconds, in currency units per processor-second.
"""


class PoolAdmission:
    """
    Decides what may run, charges what was used, and says for which agreements workers are wanted.

    Parameters
    ----------
    agreements, ledger, shared_usage
        Agreements, accounts and usage that decide.
    selling, users
        Settings of the market, and of single users by name.
    price_for
        Posted price.
    typical
        Duration in seconds for which a processor is priced when no duration is stated.
    """

    def __init__(
        self,
        agreements: AgreementRegistry,
        ledger: ServiceLedger,
        shared_usage: SharedUsageMeter,
        *,
        selling: MarketSettings,
        users: Mapping[str, UserSettings],
        price_for: PriceFor,
        typical: float,
        clock: Clock,
    ) -> None:
        self._agreements = agreements
        self._ledger = ledger
        self._shared_usage = shared_usage
        self._selling = selling
        self._users = users
        self._price_for = price_for
        self._typical = typical
        self._clock = clock

    def pool_of(self, user: str, agreement: str) -> str | Refusal:
        """
        Return the pool of workers that run an instance's tasks, or why no pool may.

        Parameters
        ----------
        agreement
            Agreement of the instance; empty: shared processors.
        """
        if not agreement:
            return self._not_shared() or self._shared_pool(user)
        # Another user's agreement gives the same answer as none.
        deal = self._agreements.of_user(user, agreement)
        if deal is None:
            return unknown_agreement(agreement)
        if not deal.is_open:
            return Refusal(f"the agreement is {deal.state(self._clock())}", final=True)
        return agreement

    def may_run(self, pool: str, user: str, now: float) -> float | Refusal:
        """Return for how many seconds a task may run in a pool, or why no task of the user may."""
        if is_shared(pool):
            return self._may_share(pool, user, now)
        deal = self._agreements.of_user(user, pool)
        if deal is None:
            return unknown_agreement(pool)
        state = deal.state(now)
        if state == "signed":
            return Refusal(f"the agreement begins in {deal.start - now:.0f} s", final=False)
        if state != "running":
            return Refusal(f"the agreement is {state}", final=True)
        return deal.end - now

    def width(self, pool: str, user: str) -> int | None:
        """Return the processors that a task in a pool may hold; None: as many as the site has."""
        deal = None if is_shared(pool) else self._agreements.of_user(user, pool)
        return None if deal is None else deal.agreement.processors

    def used(self, pool: str, user: str, what: str, processors: int, seconds: float) -> None:
        """
        Charge the usage of shared processors that have a price; in the journal on return.

        Tasks that run at the same time may together use more than the account has: the part that
        the account lacks is not charged. Usage of an agreement's pool is not charged here.

        Parameters
        ----------
        what
            Handle of the instance, under which the usage is summed up.
        seconds
            Seconds for which each of the processors was used.
        """
        if not is_shared(pool) or not self._selling.price_shared or seconds <= 0:
            return
        now = self._clock()
        # At the price when the task ends; later changes of the price do not touch it.
        price = self._price_for(user, now, processors, seconds)
        self._shared_usage.add(user, what, processors * seconds, price, now)

    def price_of(self, pool: str, user: str) -> float | None:
        """
        Return the price of one shared processor for a second, in currency units.

        None where a task costs nothing for itself: shared processors without a price, or an
        agreement's.
        """
        if not is_shared(pool) or not self._selling.price_shared:
            return None
        return self._price_for(user, self._clock(), 1, self._typical)

    def came_to(self, user: str, what: str) -> int:
        """Return the cost so far of a user's instance on shared processors, in micro-units."""
        return self._shared_usage.spent(user, what)

    def pools(self, now: float) -> Mapping[str, WorkerDemand]:
        """
        Return the workers that agreements want, by pool, which is the agreement's identifier.

        An agreement wants workers from :data:`SOON` seconds before its start until its end.
        """
        return {
            deal.agreement.id: WorkerDemand(
                user=deal.agreement.customer,
                processors=deal.agreement.processors,
                start=deal.start,
                until=deal.end,
            )
            for deal in self._agreements.all_open()
            if deal.start - SOON <= now < deal.end
        }

    def ready(
        self, pool: str, processors: int, *, excused: int = 0, excused_before: int = 0
    ) -> None:
        """
        Note how many processors of an agreement have workers now.

        Parameters
        ----------
        excused
            Processors whose workers the customer's tasks have ended, from now on.
        excused_before
            The same of the time since the last call, where that was not known then.
        """
        if pool in self._agreements.deals:
            self._agreements.ready(
                pool,
                processors,
                self._clock(),
                excused=excused,
                excused_before=excused_before,
            )

    def _not_shared(self) -> Refusal | None:
        if self._selling.must_buy:
            return Refusal("tasks run here only under an agreement", final=True)
        return None

    def _shared_pool(self, user: str) -> str:
        known = self._users.get(user)
        return f"{SHARED}:{user}" if known is not None and known.local_user else SHARED

    def _may_share(self, pool: str, user: str, now: float) -> float | Refusal:
        refusal = self._not_shared()
        if refusal is not None:
            return refusal
        # The user's local account was changed while an instance waited: workers of the old account
        # must not run its tasks.
        if pool != self._shared_pool(user):
            return Refusal("these processors are not for this user", final=True)
        if not self._selling.price_shared or not self._ledger.is_limited(user):
            return math.inf
        price = self._price_for(user, now, 1, self._typical)
        if price == 0:
            return math.inf
        left = self._ledger.available(user)
        if left <= 0:
            return Refusal("the account is empty", final=False)
        # Tasks are killed when the money would be used up by one processor. Several tasks together
        # may use it up sooner: the excess is not charged, see used().
        return left / (price * MICROS)
