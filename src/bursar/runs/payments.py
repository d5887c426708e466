"""
Payment of a run from an account: money is held in the book before work starts, and settled after.

The book gets three kinds of agreements from a run:

``RUN/budget``
    What the run may still spend, set aside before anything starts. A budget that is
    raised in another period of the user's quota has one more, ``RUN/budget-2``.
``RUN/LEASE``
    What a lease paid its site, moved there from the first kind.
``RUN/LEASE~2``
    The rest of such a payment, where it is taken from a second budget.

The run's own ledger decides what is paid, and the book follows: each time, what the
journal says is compared with what the book has, and only the difference is posted, in
one transaction. So it does not matter at which instant either process is killed.
"""

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bursar.locking import LockHeldElsewhere, take_lock
from bursar.market.account_records import LedgerAccount
from bursar.market.accounts import Accounts
from bursar.market.agreement import UsageRecord
from bursar.market.book import Book, read_book
from bursar.market.lease import Lease
from bursar.model.errors import BudgetStop, BursarError, InputError, errors_within
from bursar.model.money import (
    Micros,
    Payer,
    Refusal,
    Transfer,
    format_amount,
    from_micros,
    to_micros,
)
from bursar.runs.folder import RunFolder
from bursar.runs.run_record import RunRecord, read_run

WAIT = 10.0
"""Seconds to wait for another process that writes the book."""

EVERY = 5.0
"""Seconds between checks for new payments to book."""

_OPTION = "--account"
"""Option of commands that chooses the book and the account, for errors."""

_BRIEFLY = 2.0
"""Seconds to wait for the book where a running campaign waits too."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class AccountAllowance:
    """
    The most that an account can pay for now.

    Parameters
    ----------
    amount
        Amount in micro-units.
    currency
        Currency of the book.
    """

    amount: Micros
    currency: str


def allowance_of(payer: Payer) -> AccountAllowance:
    """
    Return the amount that an account has left, by allocation and quota.

    Raises
    ------
    InputError
        When there is no such book or user.
    """
    with errors_within(_OPTION):
        accounts = read_book(Path(payer.book)).accounts
        accounts.known(payer.account, "user")
    return AccountAllowance(accounts.available(payer.account, time.time()), accounts.currency)


class RunPayments:
    """
    Keeps the account that pays for a run in step with the run's ledger, while the run goes on.

    The payments are a context: entering sets the budget aside and claims the right to carry the run
    out; leaving books what was paid and gives the rest back.

    Parameters
    ----------
    needed
        Currency units without which it is no use to begin; 0 for none.

    Attributes
    ----------
    budget
        Currency units that the run may come to in all: the lesser of the stated budget and what
        the account allows. Known once entered.
    currency
        Currency of the book.

    Raises
    ------
    InputError
        On entering: when there is no such book or user, the book has another run of this name,
        or another process carries the run out.
    BudgetStop
        On entering: when the account has nothing left, or less than needed.
    """

    def __init__(self, folder: RunFolder, payer: Payer, *, needed: float = 0.0) -> None:
        self._folder = folder
        self._payer = payer
        self._needed = needed
        self._book = Path(payer.book)
        self._booked: Micros | None = None
        self.budget = 0.0
        self.currency = ""

    def __enter__(self) -> "RunPayments":
        with contextlib.ExitStack() as stack:
            # Before money is set aside: two processes that resume one run would hold its budget
            # twice.
            stack.enter_context(lock_account(self._folder))
            with errors_within(_OPTION):
                self._set_aside()
            self._claim = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            settle_run(self._folder, self._payer)
        except BursarError as error:
            if kind is None:
                raise BursarError(
                    f"run {self._folder.name} has ended, but not in the book: {error}; book it "
                    f"with bursar ledger charge {self._folder.name} --user {self._payer.account}"
                ) from error
        finally:
            self._claim.close()

    @property
    def message(self) -> str:
        """Say in one line for people what was set aside."""
        return f"{self.budget:.10g} {self.currency} of {self._payer.account} are set aside"

    def amend(self, budget: float) -> Refusal | None:
        """
        Give a running campaign another budget: what is added is set aside first.

        What is taken off is given back when the run ends.

        Parameters
        ----------
        budget
            In all, currency units.

        Returns
        -------
        Refusal or None
            Why the account does not allow it; nothing has moved then.
        """
        try:
            record = read_run(self._folder)
            with Book(self._book, wait=_BRIEFLY) as book, book.together():
                paid, held = _standing(book, self._folder.name)
                more = to_micros(budget) - paid - held
                answer = self._hold(book, record, more) if more > 0 else None
        except BursarError as error:
            return Refusal(str(error), final=False)
        return answer if isinstance(answer, Refusal) else None

    async def follow(self, spent: Callable[[], Micros], notify: Callable[[str], None]) -> None:
        """
        Book each lease soon after the payment, for as long as the run goes on.

        Parameters
        ----------
        spent
            Returns the amount that the run's ledger has paid, micro-units.
        notify
            Called once with a line when the book cannot be written; missing entries follow later.
        """
        notified = False
        while True:
            await asyncio.sleep(EVERY)
            now = spent()
            # Nothing new: the book is shared, and its lock is left to others.
            if now == self._booked:
                continue
            try:
                await asyncio.to_thread(self._book_new)
                self._booked = now
            except BursarError as error:
                if not notified:
                    notify(f"the account will be charged later: {error}")
                notified = True

    # What is done in the book, each in one transaction.

    def _set_aside(self) -> None:
        record = read_run(self._folder)
        account = self._payer.account
        with Book(self._book, wait=WAIT) as book, book.together():
            book.known(account, "user")
            self.currency = book.currency
            # First: what a killed incarnation paid and did not book is not available any more.
            book_leases(book, record, account)
            paid, held = _standing(book, self._folder.name)
            most = paid + held + book.available(account, time.time())
            stated = self._payer.budget
            total = most if stated is None else min(to_micros(stated), most)
            # A stated budget of 0 is no lack of money: the run uses what costs nothing.
            if (total <= paid and stated != 0) or total < to_micros(self._needed):
                # Before any work: a run that costs more than the quota leaves could otherwise be
                # done, and not be booked.
                raise BudgetStop(_too_little(book, account, total - paid, self._needed))
            if total > paid + held:
                _done(self._hold(book, record, total - paid - held))
        self.budget = from_micros(total)

    def _book_new(self) -> None:
        with Book(self._book, wait=WAIT) as book, book.together():
            book_leases(book, read_run(self._folder), self._payer.account)

    def _hold(self, book: Book, record: RunRecord, amount: Micros) -> Transfer | Refusal:
        """Set more money aside: in the run's last budget, or in a new one in a new period."""
        run, account, now = self._folder.name, self._payer.account, time.time()
        budgets = _budgets_of(book, run)
        agreement = budgets[-1] if budgets else f"{run}/budget"
        if budgets and not book.is_one_period(account, book.agreements[agreement].since, now):
            agreement = f"{run}/budget-{len(budgets) + 1}"
        memo = f"budget of {self._folder.path}"
        return book.hold(
            now,
            _fresh_key(book, record),
            account,
            agreement,
            amount,
            memo=memo if memo.isprintable() else "",
        )


def settle_run(folder: RunFolder, payer: Payer) -> list[Transfer]:
    """
    Book the payments of a run, and release money that the run set aside and does not need.

    Doing it again changes nothing.

    Returns
    -------
    list of Row
        All that was paid, the rows of earlier calls included.

    Raises
    ------
    InputError
        When the book cannot be written, or is of other accounts.
    BudgetStop
        When nothing is set aside for what was paid, and the account has too little.
    """
    with Book(Path(payer.book), wait=WAIT) as book, book.together():
        record = read_run(folder)
        rows = book_leases(book, record, payer.account)
        keep = record.ledger.held  # of leases whose end is not known yet
        for agreement in reversed(_budgets_of(book, folder.name)):
            held = book.agreements[agreement].held
            spare = max(0, held - keep)
            keep -= held - spare
            if spare:
                _done(book.release(time.time(), _fresh_key(book, record), agreement, spare))
    return rows


def book_leases(book: Book, record: RunRecord, user: str) -> list[Transfer]:
    """
    Book the payments of each lease to the site, except payments in the book already.

    Money that the run has set aside is used first, then the user's.

    Returns
    -------
    list of Row
        Holds and payments of the run's leases, those of earlier calls included.

    Raises
    ------
    InputError
        When the run was charged to another user, paid in another currency, or another run of
        this name is in the book.
    BudgetStop
        When the user has too little.
    """
    run = record.folder.name
    _check_is_this_run(book, record)
    metered = {(used.agreement, used.job) for used in book.usage}
    for lease_id, amount in record.ledger.settled().items():
        lease = next(lease for lease in record.leases if lease.id == lease_id)
        names = _names_of(book, f"{run}/{lease_id}")
        if any(book.agreements[name].user != user for name in names):
            raise InputError(f'run "{run}" was charged to {book.agreements[names[0]].user}')
        # The difference to what the book has: after a kill between two postings only the rest is
        # posted.
        missing = amount - sum(book.agreements[name].paid for name in names)
        if missing > 0:
            _book_lease(book, record, lease, missing, user)
        if lease.end is not None and (f"{run}/{lease_id}", lease_id) not in metered:
            _done(book.meter(_usage(record, lease, user)))
    leases = {f"{run}/{lease.id}" for lease in record.leases}
    return [row for row in book.rows if row.agreement.partition(_PART)[0] in leases]


@contextlib.contextmanager
def lock_account(folder: RunFolder) -> Iterator[None]:
    """
    Hold the right to keep a run's account, until the end of this process at the latest.

    The journal's lock would not do: money is set aside before the journal is opened, and
    given back after it is closed.

    Raises
    ------
    InputError
        When another process has the right.
    """
    name = folder.path / "account.lock"
    try:
        lock = take_lock(name)
    except LockHeldElsewhere:
        raise InputError(
            "is being carried out by another process", where=str(folder.path)
        ) from None
    except OSError as error:
        raise BursarError(f"{name}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        os.close(lock)


# Inside.

_PART = "~"
"""Separator between the agreement of a lease and the number of a further one for that lease."""


def _book_lease(book: Book, record: RunRecord, lease: Lease, amount: Micros, user: str) -> None:
    """Book one payment, first out of the run's budgets in turn, then out of the user's account."""
    run = record.folder.name
    if lease.currency != book.currency:
        raise InputError(f'run "{run}" paid in {lease.currency}, the book is in {book.currency}')
    if lease.site not in book.accounts:
        _done(book.open_account(LedgerAccount(name=lease.site, kind="provider")))
    book.known(lease.site, "provider")
    end = lease.start if lease.end is None else lease.end
    for budget in _budgets_of(book, run):
        found = book.agreements[budget]
        # What was set aside goes first: it is why the run was let start.
        part = min(found.held, amount)
        if part > 0:
            key = _fresh_key(book, record)
            _done(book.release(time.time(), key, budget, part))
            # Held as of when the budget was: it counts in the period that promised it.
            _pay(book, record, lease, part, user, found.since, end)
            amount -= part
    if amount:
        _pay(book, record, lease, amount, user, end, end)


def _pay(
    book: Book,
    record: RunRecord,
    lease: Lease,
    amount: Micros,
    user: str,
    since: float,
    end: float,
) -> None:
    """Hold and settle an amount at once, in an agreement of the period that a moment lies in."""
    whole = f"{record.folder.name}/{lease.id}"
    names = _names_of(book, whole)
    agreement = f"{whole}{_PART}{len(names) + 1}" if names else whole
    # The key follows from what is paid and not from when: the same payment twice is one.
    key = f"{_key_of(record)}/{agreement.partition('/')[2]}"
    for name in names:
        found = book.agreements[name]
        # Quotas count by period, so that one agreement never spans two.
        if book.is_one_period(user, found.since, since):
            agreement = name
            key = f"{_key_of(record)}/{name.partition('/')[2]} from {found.paid}"
    _done(book.hold(since, f"{key} hold", user, agreement, amount))
    _done(book.settle(end, f"{key} settle", agreement, lease.site, amount))


def _names_of(book: Accounts, whole: str) -> list[str]:
    """Return the agreements of one lease; most leases have one."""
    names = [whole] if whole in book.agreements else []
    while names and (more := f"{whole}{_PART}{len(names) + 1}") in book.agreements:
        names.append(more)
    return names


def _budgets_of(book: Accounts, run: str) -> list[str]:
    """Return the agreements of a run's budget, in order."""
    first = f"{run}/budget"
    names = [first] if first in book.agreements else []
    while names and (more := f"{first}-{len(names) + 1}") in book.agreements:
        names.append(more)
    return names


def _standing(book: Accounts, run: str) -> tuple[Micros, Micros]:
    """Return the amounts that a run has paid and holds, by the book."""
    theirs = [p for name, p in book.agreements.items() if name.partition("/")[0] == run]
    return sum(p.paid for p in theirs), sum(p.held for p in theirs)


def _check_is_this_run(book: Book, record: RunRecord) -> None:
    """Check by the time of creation that the book has no other run of this name."""
    run, key = record.folder.name, _key_of(record)
    first = next((row for row in book.rows if row.agreement.partition("/")[0] == run), None)
    if first is not None and not first.key.startswith(f"{key}/"):
        raise InputError(
            f'the book has another run "{run}", made at another time', hint="give it another --name"
        )


def _key_of(record: RunRecord) -> str:
    return f"run {record.info.created!r} {record.info.campaign}"


def _fresh_key(book: Book, record: RunRecord) -> str:
    """Return a key that no row of the book has: budgets follow from the state of the book."""
    return f"{_key_of(record)}/budget at row {len(book) + 1}"


def _usage(record: RunRecord, lease: Lease, user: str) -> UsageRecord:
    outcomes = [r.outcome for r in record.journal.records if r.lease == lease.id]
    return UsageRecord(
        agreement=f"{record.folder.name}/{lease.id}",
        provider=lease.site,
        customer=user,
        job=lease.id,
        start=lease.start,
        end=lease.start if lease.end is None else lease.end,
        processors=lease.processors,
        cpu_seconds=math.fsum(o.user_seconds + o.system_seconds for o in outcomes),
    )


def _too_little(book: Accounts, account: str, left: Micros, needed: float) -> str:
    has = f"account {account} has {format_amount(max(0, left), book.currency)} left"
    held = book.held_by(account)
    if held:
        has += f", {format_amount(held, book.currency)} are set aside for other runs"
    return f"{has}; the run needs {needed:.10g} {book.currency}" if needed else has


def _done(answer: _T | Refusal) -> _T:
    if isinstance(answer, Refusal):
        raise InputError(answer.reason) if answer.final else BudgetStop(answer.reason)
    return answer
