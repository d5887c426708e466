"""What copies of tasks that took long came to: a part of a run's bill."""

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec import field

from bursar.dispatch.journal_records import AttemptRecord
from bursar.model.money import Micros, format_amount
from bursar.model.task import Status


class CopiesItem(msgspec.Struct, frozen=True, kw_only=True):
    """
    Number, success and cost of the copies of tasks that took long.

    Parameters
    ----------
    made, faster
        Number of copies that have ended, and of those whose success counts.
    amount
        Micro-units for the processors of all copies.
    """

    made: int
    faster: int
    amount: Micros = field(name="amount_micros")

    def words(self, currency: str) -> str:
        """Return the line for people."""
        return (
            f"{self.made}, of which {self.faster} {'was' if self.faster == 1 else 'were'} faster; "
            f"they cost {format_amount(self.amount, currency)}"
        )


def copies_item(
    by_task: Mapping[int, Sequence[tuple[AttemptRecord, Micros]]],
    copies: Collection[tuple[int, int]],
) -> CopiesItem | None:
    """
    Add up copies that have ended; None: there are none.

    Parameters
    ----------
    by_task
        Attempts of each task with the micro-units for their processors.
    copies
        Task and attempt of each copy.
    """
    ended = [
        (record, share)
        for number in {task for task, _ in copies}
        for record, share in by_task.get(number, ())
        if (number, record.outcome.attempt) in copies
    ]
    if not ended:
        return None
    return CopiesItem(
        made=len(ended),
        faster=sum(record.outcome.status is Status.SUCCEEDED for record, _ in ended),
        amount=sum(share for _, share in ended),
    )
