"""
Who pays for which processors of a machine while several runs divide them.

A lease is paid as a rectangle: its processors times its length. Where runs divide a machine, the
rectangles of their leases overlap, and each processor is to be paid once. So the owners' book notes
how many processors each lease pays for, from when on. A processor is paid for by the lease that
uses it. One that nobody uses stays with the lease that paid for it last, until another lease takes
it. At every moment all leases together pay for as many processors as one rectangle over all of
them would, and never for more than the machine has.

Times are whole microseconds of the machine's monotonic clock, and use is whole
processor-microseconds, so that nothing is lost by rounding. Use becomes money once, at the end of
a lease: the price of all use so far at the site and this one's, less the price of all use so far.
These differences sum to the price of the sum, to the micro-unit.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bursar.model.money import Micros, rental_charge
from bursar.sqlite_file import LockWaitingConnection

TICKS = 1_000_000
"""Ticks of the clock in a second."""

TABLES = (
    # holder: of a living run; empty once the run has died. amount: null until it is settled.
    """CREATE TABLE IF NOT EXISTS shared_leases (
        number INTEGER PRIMARY KEY AUTOINCREMENT, site TEXT NOT NULL, run TEXT NOT NULL,
        lease TEXT NOT NULL, holder TEXT NOT NULL, processors INTEGER NOT NULL,
        price REAL NOT NULL, began INTEGER NOT NULL, since INTEGER NOT NULL,
        paid INTEGER NOT NULL DEFAULT 0, used INTEGER NOT NULL DEFAULT 0,
        is_shared INTEGER NOT NULL DEFAULT 0, gone INTEGER, ended INTEGER, amount INTEGER,
        UNIQUE (site, run, lease))""",
    """CREATE TABLE IF NOT EXISTS shared_use (
        site TEXT NOT NULL, price REAL NOT NULL, settled INTEGER NOT NULL,
        PRIMARY KEY (site, price)) WITHOUT ROWID""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLease:
    """
    A lease of a run on processors that runs divide.

    Parameters
    ----------
    price
        Currency units per processor-second.
    age
        Seconds since the lease began.
    """

    processors: int
    price: float
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PayingLease:
    """
    A lease among those that pay for a machine's processors.

    Parameters
    ----------
    processors
        Processors of the lease, which it pays for at most.
    used
        Processors of these that its run holds now.
    paid
        Processors for which it has paid until now.
    """

    processors: int
    used: int
    paid: int


def divide_payment(machine: int, leases: Sequence[PayingLease]) -> list[int]:
    """
    Return the processors that each lease pays for from now on.

    Parameters
    ----------
    machine
        Processors of the machine.
    leases
        In the order in which they began.

    Returns
    -------
    list of int
        At least what each uses and at most what it has. The sum is that of the leases, or what
        the machine has if that is less.
    """
    paid = [min(lease.used, lease.processors) for lease in leases]
    left = min(machine, sum(lease.processors for lease in leases)) - sum(paid)
    # First what each has paid for and nobody has taken, then what was paid for by one that ended.
    for most in ([lease.paid for lease in leases], [lease.processors for lease in leases]):
        for i, lease in enumerate(leases):
            more = max(0, min(left, most[i] - paid[i], lease.processors - paid[i]))
            paid[i] += more
            left -= more
    return paid


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLeaseCharge:
    """
    The amount that a lease on shared processors came to.

    Parameters
    ----------
    amount
        Price of the processors that it paid for, micro-units; without the fixed price.
    seconds
        Length of the lease.
    """

    amount: Micros
    seconds: float


def begin_lease(
    db: LockWaitingConnection,
    site: str,
    run: str,
    lease: str,
    *,
    holder: str,
    processors: int,
    price: float,
    began: int,
    now: int,
    undivided: int = 0,
) -> None:
    """
    Enter a lease, from which on it takes part in :func:`divide`; once more changes nothing.

    Parameters
    ----------
    run
        Identity of the run over its restarts.
    holder
        Key of the process that carries the run out.
    price
        Currency units per processor-second.
    began, now
        When the lease began, and the present time, ticks.
    undivided
        See :func:`divide`.
    """
    query = "SELECT site, holder, gone FROM shared_leases WHERE amount IS NULL"
    rows = [row for row in db.execute(query).fetchall() if _host(row[0]) == _host(site)]
    if site not in {row[0] for row in rows}:
        # Nothing is to be paid: what all pay from here on is the price of a sum that begins here.
        db.execute("DELETE FROM shared_use WHERE site = ?", (site,))
    # What others have paid for until now is not paid twice, and what nobody has, by the first.
    since, paid = max(began, now), 0
    if not undivided and not any(holder for _, holder, _ in rows):
        # Whoever was found gone a moment ago pays until then, if it goes on. The clock of an
        # earlier boot may be ahead.
        left = [gone for *_, gone in rows if gone is not None and gone <= now]
        since, paid = max([began, *left]), processors
    db.execute(
        "INSERT OR IGNORE INTO shared_leases (site, run, lease, holder, processors, price, began, "
        "since, paid) VALUES (?,?,?,?,?,?,?,?,?)",
        (site, run, lease, holder, processors, price, began, since, paid),
    )


def divide(
    db: LockWaitingConnection,
    host: str,
    machine: int,
    held: Mapping[tuple[str, str], int],
    now: int,
    *,
    undivided: int = 0,
) -> None:
    """
    Divide the payment anew, after processors were taken or given back, or a lease began or ended.

    Parameters
    ----------
    machine
        Processors of the machine.
    held
        Processors by holder and site.
    undivided
        Processors that other runs hold, and pay for, job by job.
    now
        Present time, ticks.
    """
    query = """SELECT number, site, holder, processors, paid, since, is_shared FROM shared_leases
        WHERE holder != '' ORDER BY number"""
    rows = [row for row in db.execute(query).fetchall() if _host(row[1]) == host]
    left = dict(held)
    leases = []
    for _, site, holder, processors, paid, *_ in rows:
        used = min(processors, left.get((holder, site), 0))
        left[holder, site] = left.get((holder, site), 0) - used
        leases.append(PayingLease(processors=processors, used=used, paid=paid))
    others = undivided > 0 or len({row[2] for row in rows}) > 1
    # A run alone pays for all that it leases, however it divides that among its tasks.
    found = (
        divide_payment(max(0, machine - undivided), leases) if others else [row[3] for row in rows]
    )
    for (number, _, _, _, paid, since, is_shared), pays in zip(rows, found, strict=True):
        if pays != paid or (others and not is_shared):
            db.execute(
                "UPDATE shared_leases SET used = used + ?, since = ?, paid = ?, is_shared = ? "
                "WHERE number = ?",
                (
                    paid * max(0, now - since),
                    max(now, since),
                    pays,
                    int(is_shared or others),
                    number,
                ),
            )


def lent_seconds(db: LockWaitingConnection, site: str, run: str, now: int) -> dict[str, float]:
    """Return the processor-seconds of each open lease of a run that others have paid for."""
    query = """SELECT lease, processors * (max(?, since) - began) - used - paid * (max(?, since)
        - since) FROM shared_leases WHERE site = ? AND run = ? AND is_shared AND amount IS NULL"""
    return {lease: lent / TICKS for lease, lent in db.execute(query, (now, now, site, run))}


def abandon(db: LockWaitingConnection, holder: str, now: int) -> None:
    """Note that a run has died: others pay from now on, and it is settled when it is resumed."""
    db.execute(
        "UPDATE shared_leases SET holder = '', gone = ? WHERE holder = ?",
        (now, holder),
    )


def go_on(
    db: LockWaitingConnection, run: str, leases: Collection[str], *, holder: str, now: int
) -> None:
    """
    Go on with leases of a run that were abandoned, although workers of the run were still there.

    The time in between is not paid by these leases: others had the processors.

    Parameters
    ----------
    holder
        Key of the process that carries the run out now.
    now
        Present time, ticks.
    """
    db.executemany(
        """UPDATE shared_leases SET holder = ?, used = used + paid * max(0, gone - since),
        since = max(since, ?), paid = 0, is_shared = 1, gone = NULL
        WHERE (run, lease) = (?,?) AND gone IS NOT NULL AND amount IS NULL""",
        [(holder, now, run, lease) for lease in leases],
    )


def end_lease(
    db: LockWaitingConnection, site: str, run: str, lease: str, seconds: float, now: int
) -> tuple[SharedLeaseCharge | None, int]:
    """
    End a lease, and return what it came to; a second call returns the same.

    Parameters
    ----------
    seconds
        Length of the lease by the run's clock.

    Returns
    -------
    tuple
        The charge, None where no other run has had a part: then the run pays its rectangle. And
        the moment from which on others pay for the processors, ticks.
    """
    query = """SELECT number, holder, price, began, since, paid, used, is_shared, gone, ended,
        amount FROM shared_leases WHERE (site, run, lease) = (?,?,?)"""
    row = db.execute(query, (site, run, lease)).fetchone()
    if row is None:
        return None, now
    number, holder, price, began, since, paid, used, is_shared, gone, ended, amount = row
    if amount is not None:
        return SharedLeaseCharge(amount=amount, seconds=(ended - began) / TICKS), now
    if not is_shared:
        db.execute("DELETE FROM shared_leases WHERE number = ?", (number,))
        return None, now
    end = max(since, began + round(seconds * TICKS))
    if holder:
        # Not before what others have been charged already, so that no moment is paid by nobody.
        rows = db.execute("SELECT site, since FROM shared_leases WHERE holder != ''").fetchall()
        end = max(end, *(then for where, then in rows if _host(where) == _host(site)))
    end = max(since, min(end, now if gone is None else gone))
    used += paid * (end - since)
    sold = db.execute(
        "SELECT settled FROM shared_use WHERE (site, price) = (?,?)", (site, price)
    ).fetchone()
    before = 0 if sold is None else sold[0]
    amount = price_of(before + used, price) - price_of(before, price)
    db.execute("INSERT OR REPLACE INTO shared_use VALUES (?,?,?)", (site, price, before + used))
    db.execute(
        "UPDATE shared_leases SET holder = '', since = ?, used = ?, ended = ?, amount = ? "
        "WHERE number = ?",
        (end, used, end, amount, number),
    )
    return SharedLeaseCharge(amount=amount, seconds=(end - began) / TICKS), end if holder else now


def forget_settled(db: LockWaitingConnection, run: str) -> None:
    """Drop the settled leases of a run, which has them in its own journal."""
    db.execute("DELETE FROM shared_leases WHERE run = ? AND amount IS NOT NULL", (run,))


def known_leases(db: LockWaitingConnection, site: str, holder: str) -> Collection[str]:
    """Return the open leases of a living run."""
    query = "SELECT lease FROM shared_leases WHERE (site, holder) = (?,?)"
    return {row[0] for row in db.execute(query, (site, holder))}


def ticks_now() -> int:
    """Return the present time, ticks; all processes of a machine have the same clock."""
    return time.monotonic_ns() * TICKS // 1_000_000_000


def price_of(use: int, price: float) -> Micros:
    """Return the price of processor-microseconds, micro-units, rounded up once."""
    return rental_charge(use / TICKS, price, 0.0)


def _host(site: str) -> str:
    return site.rpartition("@")[2]
