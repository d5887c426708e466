"""What copies of tasks that took long came to: a part of a run's bill."""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import field

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.money import Micros, format_amount
from bursar.model.task import Status


class CopiesItem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    Number, success and cost of the copies of tasks that took long.

    Parameters
    ----------
    made, faster
        Number of copies that have ended, and of those whose success counts.
    amount
        Micro-units for the processors of all copies; of what was bought for copies, all of it.
    bought, bought_amount
        Number of leases that were bought for copies, and what they came to: a part of ``amount``.
    """

    made: int
    faster: int
    amount: Micros = field(name="amount_micros")
    bought: int = 0
    bought_amount: Micros = field(name="bought_micros", default=0)

    def words(self, currency: str) -> str:
        """Return the line for people."""
        told = (
            f"{self.made}, of which {self.faster} {'was' if self.faster == 1 else 'were'} faster; "
            f"they cost {format_amount(self.amount, currency)}"
        )
        if not self.bought:
            return told
        part = "all of it"
        if self.bought_amount != self.amount:
            part = f"{format_amount(self.bought_amount, currency)} of it"
        purchases = "one purchase" if self.bought == 1 else f"{self.bought} purchases"
        return f"{told}, {part} for {purchases} of processors"


def copies_item(
    by_task: Mapping[int, Sequence[tuple[AttemptRecord, Micros]]],
    copies: Collection[tuple[int, int]],
    bought: Mapping[str, Micros],
) -> CopiesItem | None:
    """
    Add up copies that have ended, and what was bought for copies; None: there is neither.

    Parameters
    ----------
    by_task
        Attempts of each task with the micro-units for their processors.
    copies
        Task and attempt of each copy.
    bought
        Micro-units for each lease that was bought for a copy, by name.
    """
    ended = [
        (record, share)
        for number in {task for task, _ in copies}
        for record, share in by_task.get(number, ())
        if (number, record.outcome.attempt) in copies
    ]
    if not ended and not bought:
        return None
    paid = sum(bought.values())
    return CopiesItem(
        made=len(ended),
        faster=sum(record.outcome.status is Status.SUCCEEDED for record, _ in ended),
        amount=paid + sum(share for record, share in ended if record.lease not in bought),
        bought=len(bought),
        bought_amount=paid,
    )
