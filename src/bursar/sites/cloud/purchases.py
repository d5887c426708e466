"""
Purchases of machines: each is on disk before the provider is asked, and followed to its end.

A purchase is made by one request. Where the answer is lost, the request is not repeated: the
machine is looked for by its tag. So no machine is bought twice, also where the provider forgets
the tokens by which it could recognise a repetition.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from bursar.model.cloud import HOUR, BillingRules, MachinePrice, PriceSource
from bursar.provisioning.accounting import PilotUsage
from bursar.sites.cloud.provider import CloudMachine
from bursar.sites.durable_lines import append_lines, read_lines

UNANSWERED = 180.0
"""Seconds after which a request whose answer was lost, and of which no machine has come, is taken
to have bought nothing. A machine that appears later is ended."""

APPEARING = 300.0
"""Seconds after a request for which a run looks for a machine that was never listed before the run
ends, also after the request was taken to have bought nothing: lists are behind at some providers,
and nobody would end a machine that is listed after the end of the run."""

UNLISTED = 60.0
"""Seconds for which a machine that was bought may be absent from the provider's list before it is
taken to have ended: lists are behind at some providers."""

PurchaseState = Literal["asked", "refused", "absent", "held", "ended"]
"""A request is under way or its answer was lost; no machine came of it, by the provider's clear
answer or since none appeared; the machine is there; and is there no more."""


class PurchaseLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    State of a purchase, a line of the file; the last line of a token counts.

    Parameters
    ----------
    token
        Identity of the purchase, eight hexadecimal digits; the machine's name and tags hold it.
    lease
        Lease that pays for the machine.
    type, processors, spot
        Type of the machine, its processors, and whether the provider may take it back.
    hourly
        Highest price of a machine-hour, currency units; None when unknown.
    source, date
        Origin of the price, and the day of the figure, ``YYYY-MM-DD``.
    asked
        When the provider was asked, seconds since the epoch.
    machine, zone
        The provider's identity of the machine, and the zone it is in; empty while unknown.
    began, ended
        When the machine began and ended, seconds since the epoch; both by the provider's clock, or
        both by ours.
    joined
        When the machine's worker joined, seconds since the epoch by our clock.
    paid_hourly
        Price of a machine-hour that was paid in the end; None: the agreed one.
    released
        Whether nobody needs the machine any more.
    listed
        Whether the provider has listed the machine at least once.
    destroyed
        When the provider has taken the order to end the machine, seconds since the epoch by our
        clock; None: it has not.
    """

    token: str
    lease: str
    state: PurchaseState = "asked"
    type: str
    processors: int
    spot: bool = False
    hourly: float | None = None
    source: PriceSource = "user"
    date: str = ""
    asked: float
    machine: str = ""
    zone: str = ""
    began: float | None = None
    ended: float | None = None
    joined: float | None = None
    paid_hourly: float | None = None
    released: bool = False
    listed: bool = False
    destroyed: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of the purchase is left at the provider, as far as is known."""
        return self.state in ("refused", "absent", "ended")

    def may_appear(self, now: float) -> bool:
        """Whether a machine may yet be listed that never was; see :data:`APPEARING`."""
        is_unseen = self.state in ("absent", "ended") and not self.listed
        return is_unseen and now - self.asked < APPEARING

    def seconds(self, billing: BillingRules) -> float:
        """Return the seconds that are paid, by the provider's rules; 0 without a machine."""
        if self.state != "ended" or self.began is None or self.ended is None:
            return 0.0
        return billing.billed(self.ended - self.began)

    def cost(self, billing: BillingRules) -> float | None:
        """Return the price of the machine, currency units; None when unknown."""
        hourly = self.hourly if self.paid_hourly is None else self.paid_hourly
        return None if hourly is None else hourly * self.seconds(billing) / HOUR


class PurchaseBook:
    """
    Keeps the purchases of one run at one site, on disk and in memory.

    Parameters
    ----------
    path
        Path of the file, which may be missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._purchases: dict[str, PurchaseLine] = {}
        for line in read_lines(path, PurchaseLine):
            self._purchases[line.token] = line

    def __iter__(self) -> Iterator[PurchaseLine]:
        return iter(list(self._purchases.values()))

    def write(self, *lines: PurchaseLine) -> None:
        """Record the present state of purchases, durable on return; unchanged ones cost nothing."""
        changed = [line for line in lines if self._purchases.get(line.token) != line]
        if changed:
            append_lines(self._path, changed)
            self._purchases.update((line.token, line) for line in changed)

    def find(self, token: str) -> PurchaseLine | None:
        """Return a purchase; None: there is none."""
        return self._purchases.get(token)

    def of_lease(self, lease: str) -> list[PurchaseLine]:
        """Return the purchases for a lease, in order: those but the last have brought nothing."""
        return [line for line in self._purchases.values() if line.lease == lease]

    @property
    def open(self) -> list[PurchaseLine]:
        """Purchases of which something may be left at the provider."""
        return [line for line in self._purchases.values() if not line.is_over]

    def has_pending(self, now: float) -> bool:
        """Whether something may be left, or may appear yet, of any purchase; see APPEARING."""
        return any(line.may_appear(now) or not line.is_over for line in self._purchases.values())


@dataclass(slots=True)
class Reconciliation:
    """
    Consequences of a list of the provider's machines.

    Parameters
    ----------
    changed
        Purchases that have changed, to be recorded before anything else is done.
    doomed
        Machines that nobody needs, to be ended: ids.
    """

    changed: list[PurchaseLine] = field(default_factory=list)
    doomed: list[str] = field(default_factory=list)


def reconcile(
    purchases: Iterable[PurchaseLine],
    machines: Sequence[CloudMachine],
    now: float,
    *,
    under_way: Iterable[str] = (),
    unseen: dict[str, float],
) -> Reconciliation:
    """
    Compare our purchases with the machines that the provider lists.

    Parameters
    ----------
    machines
        Machines with the tag of the run.
    now
        Present time by our clock, seconds since the epoch.
    under_way
        Tokens of requests that this process is just making: their machines are not looked for.
    unseen
        Since when each machine is absent from the list; kept by the caller between calls.
    """
    found = Reconciliation()
    calling, by_token = set(under_way), {line.token: line for line in purchases}
    taken: dict[str, PurchaseLine] = {}
    for machine in machines:
        unseen.pop(machine.id, None)
        token = machine.label.purchase
        line = by_token.get(token)
        if token in calling:
            continue  # the answer to its request is still to come
        if line is None or (taken.get(token) or line).machine not in ("", machine.id):
            # No purchase explains this machine, or it is a second one of a purchase.
            if machine.state != "ended":
                found.doomed.append(machine.id)
            continue
        taken[token] = _seen(line, machine, now)
        if machine.state in ("starting", "running") and taken[token].released:
            found.doomed.append(machine.id)
    for line in by_token.values():
        if line.token in taken or line.token in calling or line.is_over:
            continue
        if line.state == "held" and line.listed and line.destroyed is not None:
            # Some providers list no machine that has ended. A list that is behind holds it still.
            taken[line.token] = _ended_by_our_clock(line, line.destroyed)
        elif line.state == "held":
            since = unseen.setdefault(line.machine, now)
            if now - since >= UNLISTED:
                taken[line.token] = _ended_by_our_clock(line, since)
                found.doomed.append(line.machine)  # a list that is behind must not let it go on
        elif now - line.asked >= UNANSWERED:
            taken[line.token] = msgspec.structs.replace(line, state="absent")
    found.changed = list(taken.values())
    return found


def _seen(line: PurchaseLine, machine: CloudMachine, now: float) -> PurchaseLine:
    """Return a purchase after its machine was listed."""
    began = line.began
    if began is None:
        began = line.asked if machine.began is None else machine.began
    if machine.state == "ended":
        if line.state == "ended":
            return line
        zone = machine.zone or line.zone
        line = msgspec.structs.replace(
            line, machine=machine.id, zone=zone, began=began, listed=True
        )
        if machine.ended is None or machine.began is None:
            return _ended_by_our_clock(line, now)
        # By the provider's clock, for that is what it bills.
        return msgspec.structs.replace(line, state="ended", ended=max(machine.ended, began))
    # A machine that comes of a purchase which was given up, or was listed no more, has no lease.
    released = line.released or line.is_over
    return msgspec.structs.replace(
        line,
        machine=machine.id,
        zone=machine.zone or line.zone,
        state="held",
        began=began,
        ended=None,
        released=released,
        listed=True,
    )


def _ended_by_our_clock(line: PurchaseLine, ended: float) -> PurchaseLine:
    # From the request on, which is our clock, too: the provider's may be ahead or behind.
    began = line.asked
    return msgspec.structs.replace(line, state="ended", began=began, ended=max(ended, began))


def usage_of(line: PurchaseLine, billing: BillingRules) -> PilotUsage:
    """Return what a machine that has ended came to, for the bill."""
    hourly, source, date = line.hourly, line.source, line.date
    where = ""
    if line.paid_hourly is not None:  # the mean of the provider's history while it was held
        hourly, source = line.paid_hourly, "provider"
        date = datetime.fromtimestamp(line.ended or 0.0, UTC).date().isoformat()
        where = f", zone {line.zone}" if line.zone else ", its dearest zone"
    return PilotUsage(
        pilot=line.lease,
        job=line.machine,
        processors=line.processors,
        seconds=line.seconds(billing),
        how="completed",
        machine=line.type + (" (spot)" if line.spot else ""),
        hourly=hourly,
        price=str(MachinePrice(hourly=hourly or 0.0, source=source, date=date)) + where,
    )
