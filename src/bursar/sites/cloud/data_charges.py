"""Data whose carriage is paid: what tasks are known to carry, and what leases have carried."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from bursar.dispatch.journal_records import AttemptRecord
from bursar.market.lease import Lease
from bursar.model.money import DataPrices, from_micros
from bursar.model.plan import Plan
from bursar.model.site import SiteFacts
from bursar.model.task import File, Task
from bursar.sites.protocol import Site


def priced_data(sites: Mapping[str, Site]) -> frozenset[str]:
    """Return the names of sites where data have a price."""
    return frozenset(name for name, site in sites.items() if site.facts.data_prices is not None)


def known_data(task: Task, folders: Sequence[Path]) -> tuple[int, int]:
    """
    Return the bytes that a task is known to bring to its machine, and to send back from there.

    Parameters
    ----------
    folders
        Folders in which input files are looked for, the first one first; a file that is in none
        has the size that the campaign states, if any.
    """
    brought = sum(_size(file, folders) for file in task.inputs)
    return brought, sum(file.size or 0 for file in task.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedData:
    """Data that the tasks of a plan are known to bring to one site and to send back."""

    site: str
    bytes_in: int
    bytes_out: int
    prices: DataPrices

    @property
    def cost(self) -> float:
        """Price of the data, currency units."""
        return from_micros(self.prices.charge(self.bytes_in, self.bytes_out))


def planned_data(
    plan: Plan, tasks: Sequence[Task], sites: Iterable[SiteFacts], folder: Path
) -> list[PlannedData]:
    """
    Return the data of a plan at each site where data have a price, as far as sizes are known.

    An input that many tasks read goes once to each machine that the plan buys.

    Parameters
    ----------
    folder
        The campaign's folder, in which input files are looked for.
    """
    found = []
    for site in sites:
        prices = site.data_prices
        if prices is None:
            continue
        machines = sum(purchase.slot.site == site.name for purchase in plan.purchases)
        here = [tasks[one.task] for one in plan.placements if one.site == site.name]
        readers = Counter(file for task in here for file in task.inputs)
        brought = sum(min(n, machines) * _size(file, (folder,)) for file, n in readers.items())
        returned = sum(file.size or 0 for task in here for file in task.outputs)
        found.append(
            PlannedData(site=site.name, bytes_in=brought, bytes_out=returned, prices=prices)
        )
    return found


def _size(file: File, folders: Sequence[Path]) -> int:
    for folder in folders:
        path = folder / file.name
        try:
            if path.is_dir():
                return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
            return path.stat().st_size
        except OSError:
            continue
    return file.size or 0


def with_data(leases: Iterable[Lease], records: Iterable[AttemptRecord]) -> list[Lease]:
    """
    Return the leases of a killed incarnation with the data that their attempts carried.

    The journal has each attempt once, with its data: whatever the lease said last, nothing is
    counted twice and nothing of a recorded attempt is lost.
    """
    brought, returned = Counter[str](), Counter[str]()
    for record in records:
        brought[record.lease] += record.outcome.bytes_in
        returned[record.lease] += record.outcome.bytes_out
    return [
        lease
        if lease.data_prices is None or lease.end is not None
        else replace(lease, bytes_in=brought[lease.id], bytes_out=returned[lease.id])
        for lease in leases
    ]
