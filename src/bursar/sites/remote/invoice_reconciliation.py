"""Compare what a service charges with what our own count says was used."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bursar.market.agreement import Terms
from bursar.model.allocation import Allocation
from bursar.model.money import from_micros
from bursar.provisioning.accounting import PilotUsage
from bursar.remote.messages import AgreementInfo
from bursar.sites.remote.held import HeldInstance
from bursar.sites.remote.purchase_journal import PurchaseRecord

_LATE = 5.0
"""Seconds by which our count may differ from the service's."""


class InvoiceReconciler:
    """
    Computes the paid time of a pilot's processors, so that our bill equals the service's invoice.

    Parameters
    ----------
    usage
        File that records what was delivered.
    currency
        Currency of all amounts.
    notify
        Called with a line for people when an invoice is odd.
    """

    def __init__(self, usage: Path, currency: str, notify: Callable[[str], None]) -> None:
        self._usage = usage
        self._currency = currency
        self._notify = notify
        self._guessed: dict[str, int] = {}  # micro-units, by pilot

    def settle(self, held: HeldInstance, terms: Terms, info: AgreementInfo) -> None:
        """
        Pay what an agreement charges, and report charges above our own count.

        Each of its processors counts from when it was ready; we see it a look later.
        """
        pilot = held.pilot
        # Generous on our side: both clocks and the last look are allowed for before a charge counts
        # as odd.
        ours = terms.processors * (time.monotonic() - held.since + _LATE) + held.early
        most = terms.charge(ours)
        if info.charged > most:
            self._notify(
                f"charged {from_micros(info.charged):.6g} {terms.currency} for {pilot.name}, "
                f"which by our count came to no more than {from_micros(most):.6g}"
            )
        else:
            seconds = _seconds(pilot, from_micros(info.charged) - (pilot.fixed_price or 0.0))
            held.seconds = seconds if seconds is not None else held.seconds
        begun = info.ended if info.begun is None else info.begun
        charged = _seconds(pilot, from_micros(info.charged) - (pilot.fixed_price or 0.0))
        if charged is None:  # free: what was delivered
            charged = max(0.0, (info.ended or 0.0) - (begun or 0.0))
        row = PilotUsage(
            pilot=pilot.name,
            job=info.id,
            processors=info.processors,
            seconds=charged,
            how=info.state,
        )
        with contextlib.suppress(OSError), self._usage.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")

    def settle_shared(self, held: HeldInstance, spent: int) -> None:
        """
        Pay what tasks cost on shared processors.

        Parameters
        ----------
        spent
            Micro-units, as the service says.
        """
        pilot = held.pilot
        seconds = time.monotonic() - held.since + _LATE
        price = (pilot.unit_price or 0.0) * pilot.processors
        if from_micros(spent) > price * seconds:
            self._notify(
                f"charged {from_micros(spent):.6g} {self._currency} for what ran on shared "
                f"processors, which by our count came to no more than {price * seconds:.6g}"
            )
        held.seconds = _seconds(pilot, from_micros(spent))

    def guess(self, held: HeldInstance, bought: PurchaseRecord | None) -> None:
        """Pay for the time until the service's last answer; a silent service sends no invoice."""
        pilot = held.pilot
        if bought is None:
            if pilot.unit_price:
                held.seconds = _seconds(pilot, from_micros(held.spent))
            return
        held.seconds = max(0.0, held.seen - held.since)
        terms = bought.terms
        self._guessed[pilot.name] = terms.charge(terms.processors * held.seconds)

    def settle_later(self, bought: PurchaseRecord, info: AgreementInfo) -> None:
        """Compare the guess for a closed pilot with the charge that the service now states."""
        guessed = self._guessed.pop(bought.pilot, None)
        if guessed is not None and info.charged != guessed:
            self._notify(
                f"answers again, and charged {from_micros(info.charged):.6g} "
                f"{bought.terms.currency} for {bought.pilot}; the bill says "
                f"{from_micros(guessed):.6g}"
            )


def _seconds(pilot: Allocation, use: float) -> float | None:
    """Convert an amount to paid seconds of a pilot's processors; None if these are free."""
    if not pilot.unit_price or not pilot.paid:
        return None
    return max(0.0, use / (pilot.unit_price * pilot.paid))
