"""What was bought of a service, written down so that it is found again after a kill."""

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
    pilot
        For which it is.
    terms
        That were about to be accepted.
    agreement
        That came of it; empty: nobody wrote it down.
    over
        Nothing of it is left.
    """

    pilot: str
    terms: Terms
    agreement: str = ""
    over: bool = False

    def is_of(self, agreement: AgreementInfo) -> bool:
        """Whether an agreement is, or may be, what came of it."""
        if self.agreement:
            return agreement.id == self.agreement
        # A start that is asked for may be another deal's, too.
        terms = self.terms
        return (agreement.start, agreement.seconds, agreement.processors) == (
            terms.start,
            terms.seconds,
            terms.processors,
        )


class PurchaseJournal:
    """
    A file with what was bought. What is bought is on the disk before it is.

    Parameters
    ----------
    path
        Of the file; it need not be there.
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
        """What is not known to be over."""
        return list(self._open.values())

    @property
    def agreements(self) -> frozenset[str]:
        """Names of those that are not known to be over."""
        return frozenset(bought.agreement for bought in self._open.values() if bought.agreement)

    def of(self, pilot: str) -> PurchaseRecord | None:
        """What was bought for a pilot, unless it is over."""
        return self._open.get(pilot)

    def last_of(self, pilot: str) -> PurchaseRecord | None:
        """What became an agreement for a pilot last, whether it is over or not."""
        return self._last.get(pilot)

    def write(self, bought: PurchaseRecord) -> None:
        """The state of a purchase; on the disk on return."""
        append_lines(self._path, [bought])
        self._take(bought)

    def _take(self, line: PurchaseRecord) -> None:
        if line.agreement:
            self._last[line.pilot] = line
        if line.over:
            self._open.pop(line.pilot, None)
        else:
            self._open[line.pilot] = line
