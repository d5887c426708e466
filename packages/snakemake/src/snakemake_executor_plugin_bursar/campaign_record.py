"""
The campaign that a workflow is in its folder: all beginnings of Snakemake until one ends well.

Budget and deadline are those of the campaign. A Snakemake that is begun again, after it was killed
or a job failed, has what the beginnings before it have left.
"""

import time
from pathlib import Path

import msgspec
from snakemake_interface_common.exceptions import WorkflowError

from bursar.dispatch.folders import write_atomically
from bursar.dispatch.journal import read_journal
from bursar.market.lease import Lease
from bursar.market.ledger import Ledger
from bursar.model.errors import BursarError
from bursar.model.money import from_micros
from bursar.report.tables import amount, span
from bursar.runs.incarnations import leases_of


class SnakemakeBeginning(msgspec.Struct, kw_only=True):
    """
    One Snakemake of the campaign.

    Parameters
    ----------
    folder
        Its folder with journal and bill.
    begun
        Seconds since the epoch.
    cost_micros
        What it has cost, micro-units; None: it runs, or was killed and nobody has counted yet.
    """

    folder: str
    begun: float
    cost_micros: int | None = None


class SnakemakeCampaign(msgspec.Struct, kw_only=True):
    """
    What is kept of a campaign.

    Parameters
    ----------
    ended
        Whether its last Snakemake ended well, so that the next one begins another campaign.
    """

    beginnings: list[SnakemakeBeginning]
    currency: str = ""
    cost_micros: int = 0
    ended: bool = False


class CampaignRecord:
    """
    The record of a folder's campaign, which counts what its beginnings have cost.

    Parameters
    ----------
    path
        File of the record; an absent one is made.
    is_anew
        Whether another campaign begins in any case.

    Attributes
    ----------
    spent
        What the beginnings before this one have cost, currency units. What a killed one held at
        a cluster counts as long as the cluster may hold it.

    Raises
    ------
    WorkflowError
        When record or journals cannot be read.
    """

    def __init__(self, path: Path, *, is_anew: bool) -> None:
        self._path = path
        self._campaign = SnakemakeCampaign(beginnings=[])
        if not is_anew and path.exists():
            try:
                found = msgspec.json.decode(path.read_bytes(), type=SnakemakeCampaign)
            except (OSError, msgspec.MsgspecError) as error:
                raise WorkflowError(
                    f"bursar: {path}: {error}; --bursar-anew begins another campaign"
                ) from None
            if not found.ended:
                self._campaign = found
        for one in self._campaign.beginnings:
            if one.cost_micros is None:
                one.cost_micros = self._counted(Path(one.folder))
        self.spent = from_micros(self._sum())

    @property
    def begun(self) -> float | None:
        """When the campaign was first begun, seconds since the epoch; None: it was not yet."""
        beginnings = self._campaign.beginnings
        return beginnings[0].begun if beginnings else None

    def left_of_budget(self, budget: float | None) -> float | None:
        """
        Return what is left of the campaign's budget, currency units; None: no limit.

        Raises
        ------
        WorkflowError
            When nothing is left.
        """
        if budget is None or not self._campaign.beginnings:
            return budget
        if budget <= self.spent:
            raise WorkflowError(
                f"bursar: --bursar-budget: {budget:.6g} is spent: {self.told()}; a larger budget "
                "goes on, --bursar-anew counts anew"
            )
        return budget - self.spent

    def left_of_deadline(self, deadline: float | None) -> float | None:
        """
        Return the seconds that are left of the campaign's deadline; None: no limit.

        Raises
        ------
        WorkflowError
            When the deadline has passed.
        """
        if deadline is None or not self._campaign.beginnings:
            return deadline
        left = self._campaign.beginnings[0].begun + deadline - time.time()
        if left <= 0:
            raise WorkflowError(
                f"bursar: --bursar-deadline: it passed {span(-left)} ago: the workflow was first "
                f"begun {span(deadline - left)} ago; a longer deadline goes on, --bursar-anew "
                "counts anew"
            )
        return left

    def told(self) -> str:
        """Return what was spent before, in words; empty: this is the first beginning."""
        count = len([one for one in self._campaign.beginnings if one.cost_micros is not None])
        if not count:
            return ""
        times = "once" if count == 1 else f"{count} times"
        return f"spent before: {amount(self.spent, self._campaign.currency)}, begun {times}"

    def begin(self, folder: Path) -> None:
        """Note that a Snakemake begins, durably."""
        self._campaign.beginnings.append(
            SnakemakeBeginning(folder=str(folder.absolute()), begun=time.time())
        )
        self._write()

    def end(self, *, has_ended_well: bool) -> str:
        """
        Note that this Snakemake has ended, and left its bill; return what all has cost, in words.

        Parameters
        ----------
        has_ended_well
            Whether no job is left to run.
        """
        last = self._campaign.beginnings[-1]
        last.cost_micros = self._counted(Path(last.folder))
        self._campaign.ended = has_ended_well
        self._write()
        currency = self._campaign.currency
        said = f"cost {amount(from_micros(last.cost_micros), currency)}"
        if len(self._campaign.beginnings) > 1:
            said += f"; with what was spent before {amount(from_micros(self._sum()), currency)}"
        return said

    def withdraw(self) -> None:
        """Forget this beginning, of which nothing has come."""
        self._campaign.beginnings.pop()
        self._write()

    def _sum(self) -> int:
        return sum(one.cost_micros or 0 for one in self._campaign.beginnings)

    def _write(self) -> None:
        self._campaign.cost_micros = self._sum()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = msgspec.json.format(msgspec.json.encode(self._campaign), indent=2)
        try:
            write_atomically(self._path, text)
        except BursarError as error:
            raise WorkflowError(f"bursar: {error}") from None

    def _counted(self, folder: Path) -> int:
        """Return what the jobs in a folder have cost, micro-units, by its journal."""
        path = folder / "journal.sqlite"
        if not path.exists():  # killed before a worker was there, or removed by hand
            return 0
        try:
            journal = read_journal(path)
        except BursarError as error:
            raise WorkflowError(f"bursar: {error}") from None
        leases = leases_of(journal.events).values()
        currencies = {lease.currency for lease in leases} | {self._campaign.currency} - {""}
        if len(currencies) > 1:
            raise WorkflowError(
                f"bursar: {folder} was paid in another currency than earlier jobs "
                f"({' and '.join(sorted(currencies))}); --bursar-anew begins another campaign"
            )
        self._campaign.currency = "".join(currencies)
        # Of those that a kill has left open, the most that they come to.
        left = (worst_cost(lease, journal.last_seen) for lease in leases if lease.end is None)
        return Ledger(journal.transfers).spent + sum(left)


def worst_cost(lease: Lease, last_seen: float) -> int:
    """
    Return the most that a lease comes to which a kill has left open, micro-units.

    Parameters
    ----------
    last_seen
        Last sign of life of who held it, seconds since the epoch.
    """
    if lease.asked:
        # Granted, if at all, so late that this was not on disk yet, or after the kill.
        lease = msgspec.structs.replace(lease, asked=False, start=last_seen)
    return lease.owed(last_seen + lease.unwatched)
