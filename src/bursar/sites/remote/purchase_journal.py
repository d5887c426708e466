"""Journal of purchases from a service, so that each is found again after a kill."""

from pathlib import Path

import msgspec

from bursar.market.agreement import Terms
from bursar.remote.messages import AgreementInfo
from bursar.sites.durable_lines import append_lines, read_lines


class PurchaseRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    One line of the file; the last one of a pilot counts.

    Parameters
    ----------
    agreement
        Id of the agreement; empty if not recorded.
    over
        Whether nothing of the purchase is left.
    deal
        Identifier of the negotiation; empty where the posted price was accepted.
    closes
        Close of the auction in which processors are bid for, seconds since the epoch; 0: there is
        none.
    is_kept
        Whether the agreement was made by hand, and is not ended with the pilot.
    """

    pilot: str
    terms: Terms
    agreement: str = ""
    over: bool = False
    deal: str = ""
    closes: float = 0.0
    is_kept: bool = False

    def is_of(self, agreement: AgreementInfo) -> bool:
        """Whether an agreement is, or may be, the result of this purchase."""
        if self.agreement:
            return agreement.id == self.agreement
        if self.deal:
            return agreement.deal == self.deal
        # A start that is asked for may be another deal's, too.
        terms = self.terms
        return (agreement.start, agreement.seconds, agreement.processors) == (
            terms.start,
            terms.seconds,
            terms.processors,
        )


class PurchaseJournal:
    """
    Keeps a file of purchases, each of which is on disk before the service is asked.

    Parameters
    ----------
    path
        Path of the file, which may be missing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: dict[str, PurchaseRecord] = {}
        self._last: dict[
            str, PurchaseRecord
        ] = {}  # of each pilot, over or not, that became an agreement
        for line in read_lines(self._path, PurchaseRecord):
            self._take(line)

    @property
    def open(self) -> list[PurchaseRecord]:
        """Purchases that are not known to be over."""
        return list(self._open.values())

    @property
    def agreements(self) -> frozenset[str]:
        """Ids of the agreements that are not known to be over."""
        return frozenset(bought.agreement for bought in self._open.values() if bought.agreement)

    def is_used_by_another(self, agreement: str, pilot: str) -> bool:
        """Whether another pilot of the run has, or had, an agreement."""
        return any(one.agreement == agreement and one.pilot != pilot for one in self._last.values())

    def of(self, pilot: str) -> PurchaseRecord | None:
        """Return the purchase for a pilot, unless that purchase is over."""
        return self._open.get(pilot)

    def last_of(self, pilot: str) -> PurchaseRecord | None:
        """Last purchase for a pilot that became an agreement, over or not."""
        return self._last.get(pilot)

    def write(self, bought: PurchaseRecord) -> None:
        """Record the state of a purchase; the record is on disk on return."""
        append_lines(self._path, [bought])
        self._take(bought)

    def _take(self, line: PurchaseRecord) -> None:
        if line.agreement:
            self._last[line.pilot] = line
        if line.over:
            self._open.pop(line.pilot, None)
        else:
            self._open[line.pilot] = line
