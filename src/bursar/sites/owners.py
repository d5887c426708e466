"""
The owners' book: the sites that all runs on this machine share.

A small SQLite file says which process holds which processors, who waits for some, what
was bought of owners who set their own prices, what each customer has paid, and where
supply and demand have brought a price. Without it, each run would meet an owner who has
just come into the world, and two runs would use the same processors.

A process that is killed leaves its rows behind. They count until neither the process
(number, start time and boot) nor anything that its workers started is there any more.
"""

import asyncio
import contextlib
import copy
import math
import os
import secrets
import socket
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import apsw

from bursar.market.pricing import Commitment, OwnerState
from bursar.model.errors import BursarError, InputError
from bursar.model.money import Micros
from bursar.model.site import SiteFacts
from bursar.sites.holder_processes import (
    HolderProcess,
    boot_id,
    forget_holder,
    living_holders,
    pass_on,
    started_at,
)
from bursar.sites.owners_database import is_named, open_owners, owners_file, user_name
from bursar.sites.processor_shares import SHARE, ShareDemand, ShareHolder, machine_processors
from bursar.sites.shared_leases import (
    TICKS,
    RunningLease,
    SharedLeaseCharge,
    begin_lease,
    divide,
    end_lease,
    forget_settled,
    go_on,
    known_leases,
    lent_seconds,
    ticks_now,
)
from bursar.sqlite_file import (
    NOTIFY_AFTER,
    LockWaitingConnection,
    transaction,
    translate_sqlite_errors,
    warn_on_stderr,
)

PATIENCE = 60.0
"""Seconds after which a run that waits is not overtaken by later ones any more."""

_POLL_INTERVAL = 0.25
"""Seconds between two looks whether processors have come free."""

_SHARE_PATIENCE = 0.1
"""Seconds for which a run at work waits for another one to have divided the machine."""

_TRACE_INTERVAL = 1.0
"""Seconds between two looks for the tasks of one dead process: each reads all of /proc."""


class OwnersBook:
    """
    The owners' book from the viewpoint of one run.

    Nothing is written before the run holds, waits for or buys something.

    Parameters
    ----------
    path
        Path of the SQLite file, created if missing.
    run
        Name of the run, which people of other runs are shown as the holder.
    identity
        Identity of the run among all runs; its payments are counted once under it.
    customer
        Name by which owners know the run's user.
    insist
        Whether the run never waits for processors that other runs hold.
    project
        Project of the run and the project's weight; an empty name: none.
    """

    def __init__(
        self,
        path: Path,
        *,
        run: str = "",
        identity: str = "",
        customer: str = "buyer",
        insist: bool = False,
        project: tuple[str, float] = ("", 1.0),
    ) -> None:
        self.customer = customer
        self._project = project
        self._path = path
        self._run = run
        self._identity = identity
        self._insist = insist
        self._id = secrets.token_hex(8)
        self._mark = ""
        self._db: LockWaitingConnection | None = None
        self._is_registered = False
        self._shares: dict[str, ShareHolder] = {}
        # Leases that take part in the payment, and processor-seconds of each that others pay.
        self._leases: dict[str, frozenset[str]] = {}
        self._lent: dict[str, Mapping[str, float]] = {}
        self._traced: dict[str, float] = {}  # dead holders whose tasks were there, and when
        # Since when the machine cannot be divided anew; -inf: people were told.
        self._undivided_since = math.inf

    @property
    def is_usable(self) -> bool:
        """Whether the file can be written."""
        try:
            if self._db is None:
                self._db = open_owners(self._path)
        except (BursarError, apsw.Error):
            return False
        return True

    # Processors in use.

    async def take(
        self, site: SiteFacts, name: str, processors: int, notify: Callable[[str], None]
    ) -> None:
        """
        Hold processors of a site under a name; wait until enough are free.

        Parameters
        ----------
        notify
            Called once, with a line for people, when there is something to wait for.
        """
        notified = False
        try:
            # Polled: SQLite tells nobody of another process's commit, and a killed holder announces
            # nothing.
            while not self._took(site, name, processors):
                if not notified:
                    notified = True
                    notify(self._why_not(site, processors))
                await asyncio.sleep(_POLL_INTERVAL)
        # The row in the queue would otherwise age and keep later runs out for as long as we live.
        except asyncio.CancelledError:
            with self._writing() as db:
                key = (_key(site), self._id, name)
                db.execute("DELETE FROM waiting WHERE (site, holder, name) = (?,?,?)", key)
                self._within_share(db, site)
            raise

    def give(self, site: SiteFacts, name: str) -> None:
        """Give back the processors that are held under a name."""
        if self._is_registered:
            with self._writing() as db:
                key = (_key(site), self._id, name)
                db.execute("DELETE FROM held WHERE (site, holder, name) = (?,?,?)", key)
                self._within_share(db, site)

    def share(
        self, site: SiteFacts, demand: ShareDemand, leases: Mapping[str, RunningLease] | None = None
    ) -> int:
        """
        Return how many processors of a local site this run may use now.

        To be called a few times a second: others' demands change, and processes end.

        Parameters
        ----------
        leases
            Leases of the run there that cost something; None: there are none.
        """
        if self._insist:
            return site.processors
        mine = self._share_of(site)
        known = frozenset(leases or {})
        are_known = known == self._leases.get(mine.site, frozenset())
        # Nothing is read or written but one number while the run is alone.
        if are_known and self._db is not None and mine.is_settled(self._db):
            return mine.share
        # On a copy: what was not written down is not ours.
        fresh = copy.copy(mine)
        # The first division has to be made; before that there is nothing to go on with.
        patience = _SHARE_PATIENCE if self._is_registered else None
        try:
            with self._writing(_TRACE_INTERVAL, patience) as db:
                fresh.update(db, demand, living_holders(db), time.monotonic())
                self._begin_leases(db, fresh.site, leases or {})
                lent = lent_seconds(db, fresh.site, self._identity, ticks_now()) if leases else {}
        except InputError:
            raise
        except BursarError as error:
            if patience is None:
                raise
            # Another run was stopped in the middle of a division, or the disk is full: our share
            # is in the file and nobody takes it away, so the run goes on. To wait would keep it
            # from its workers, whose results are to be written down.
            self._go_on(mine, error)
            return mine.share
        self._undivided_since = math.inf
        self._shares[fresh.site] = fresh
        self._leases[fresh.site], self._lent[fresh.site] = known, lent
        return fresh.share

    def lent(self, site: SiteFacts) -> Mapping[str, float]:
        """Return the processor-seconds of each lease that other runs pay for, as seen last."""
        return self._lent.get(_key(site), {})

    def end_lease(self, site: SiteFacts, lease: str, seconds: float) -> SharedLeaseCharge | None:
        """
        End a lease of this run, and return what it came to.

        Also a lease of an earlier process of the run, and any number of times.

        Parameters
        ----------
        seconds
            Length of the lease by the run's clock.

        Returns
        -------
        SharedLeaseCharge or None
            None: no other run has paid for its processors.
        """
        key = _key(site)
        with self._writing() as db:
            charge, then = end_lease(db, key, self._identity, lease, seconds, ticks_now())
            self._divide_payment(db, then)
        self._leases[key] = self._leases.get(key, frozenset()) - {lease}
        return charge

    def forget_leases(self) -> None:
        """Forget what the run's leases came to, which is in its own journal."""
        if self._is_registered:
            with self._writing() as db:
                forget_settled(db, self._identity)

    def mark(self, run: str) -> None:
        """Set the mark by which the processes of this run's workers are found."""
        if run != self._mark:
            self._mark = run
            if self._is_registered:
                with self._writing() as db:
                    db.execute("UPDATE holders SET mark = ? WHERE id = ?", (run, self._id))

    def go_on(self, run: str, leases: Collection[str]) -> None:
        """Go on with what a killed process of this run holds, and with leases of that process."""
        self.mark(run)
        with self._writing() as db:
            go_on(db, self._identity, leases, holder=self._id, now=ticks_now())

    def others(self, site: SiteFacts) -> int:
        """Return how many processors of a site other runs hold."""
        with self._reading() as db:
            return 0 if db is None else sum(n for _, n, _ in self._held_by_others(db, site))

    def who(self, site: SiteFacts) -> tuple[str, ...]:
        """Return who the others are, for people."""
        with self._reading() as db:
            found = [] if db is None else self._held_by_others(db, site)
        return tuple(
            dict.fromkeys(f"run {process.run} (process {process.pid})" for process, *_ in found)
        )

    # Owners who set their own prices.

    @contextlib.contextmanager
    def selling(self, site: SiteFacts) -> Iterator["_OwnerStateUpdate"]:
        """
        Open a sale with an owner, exclusive of other runs.

        The sale's state at the end of the block is kept, all of it or nothing.
        """
        with self._writing() as db:
            before = self._state(db, site)
            sale = _OwnerStateUpdate(before)
            yield sale
            if sale.state != before:
                self._keep(db, site, before, sale.state)

    def state_of(self, site: SiteFacts) -> OwnerState:
        """Return what an owner remembers now."""
        with self._reading() as db:
            return OwnerState() if db is None else self._state(db, site)

    def note_paid(self, paid: Iterable[tuple[SiteFacts, Micros]]) -> None:
        """
        Record the run's total payments to each owner, by the run's ledger.

        Repeating the call changes nothing, so that a payment that was under way when a process was
        killed counts once.
        """
        with self._writing() as db:
            for site, amount in paid:
                db.execute(
                    "INSERT OR REPLACE INTO payments VALUES (?,?,?,?)",
                    (_key(site), self._identity, self.customer, amount),
                )

    def close(self) -> None:
        """Give back everything that the run holds. A second call does nothing."""
        if self._is_registered:
            with self._writing() as db:
                forget_holder(db, self._id, ticks_now())
            self._is_registered = False
        if self._db is not None:
            self._db.close()
            self._db = None

    def _begin_leases(
        self, db: LockWaitingConnection, site: str, leases: Mapping[str, RunningLease]
    ) -> None:
        now = ticks_now()
        for name in leases.keys() - set(known_leases(db, site, self._id)):
            one = leases[name]
            begin_lease(
                *(db, site, self._identity, name),
                holder=self._id,
                processors=one.processors,
                price=one.price,
                began=now - round(one.age * TICKS),
                now=now,
                undivided=self._undivided(db),
            )

    def _divide_payment(self, db: LockWaitingConnection, now: int) -> None:
        """Have each processor of this machine paid by the lease that uses it, see there."""
        if not db.execute("SELECT 1 FROM shared_leases WHERE holder != '' LIMIT 1").fetchall():
            return
        host = socket.gethostname()
        query = "SELECT holder, site, processors FROM held WHERE name = ?"
        machine = machine_processors(db, host, len(os.sched_getaffinity(0)))
        held = {(holder, site): count for holder, site, count in db.execute(query, (SHARE,))}
        divide(db, host, machine, held, now, undivided=self._undivided(db))

    def _undivided(self, db: LockWaitingConnection) -> int:
        """Return the processors of this machine that runs hold, and pay for, job by job."""
        query = "SELECT coalesce(sum(processors), 0) FROM held WHERE name != ? AND site LIKE ?"
        return int(db.execute(query, (SHARE, f"%@{socket.gethostname()}")).fetchone()[0])

    def _go_on(self, mine: ShareHolder, error: BursarError) -> None:
        """Tell people once that a run goes on with the share it has, when that lasts."""
        now = time.monotonic()
        if self._undivided_since == math.inf:
            self._undivided_since = now
        elif 0 <= self._undivided_since <= now - NOTIFY_AFTER:
            self._undivided_since = -math.inf
            warn_on_stderr(f"{error}; this run goes on with {mine.share} processors meanwhile")

    def _share_of(self, site: SiteFacts) -> ShareHolder:
        key = _key(site)
        if key not in self._shares:
            machine = len(os.sched_getaffinity(0))
            self._shares[key] = ShareHolder(self._id, key, site.processors, machine, *self._project)
        return self._shares[key]

    def _within_share(
        self, db: LockWaitingConnection, site: SiteFacts, processors: int = 0
    ) -> bool:
        """Tell other runs what this one wants; return whether it may hold so many more."""
        if not site.is_divided:
            return True
        key = (_key(site), self._id)
        query = "SELECT coalesce(sum(processors), 0) FROM held WHERE (site, holder) = (?,?)"
        held = int(db.execute(query, key).fetchone()[0])
        query = "SELECT count(*) FROM waiting WHERE (site, holder) = (?,?)"
        waiting = max(1, db.execute(query, key).fetchone()[0])
        width = held + processors if processors else 0
        demand = ShareDemand(
            wanted=held + waiting * processors, narrowest=width, widest=width, used=held
        )
        share = self._share_of(site)
        return width <= share.update(db, demand, living_holders(db), time.monotonic(), holds=False)

    def _took(self, site: SiteFacts, name: str, processors: int) -> bool:
        key = _key(site)
        # Sums since the run's first start, not differences: a repeated note replaces the one
        # before.
        with self._writing() as db:
            used = self._used(db, key, name)
            # An empty site always fits: a pilot wider than the facts say would else wait for ever.
            fits = self._within_share(db, site, processors) or used == 0
            fits = fits and (used == 0 or used + processors <= site.processors)
            if self._insist or (fits and not self._is_behind(db, key, name)):
                db.execute(
                    "INSERT OR REPLACE INTO held VALUES (?,?,?,?,?)",
                    (key, self._id, name, processors, time.time()),
                )
                db.execute(
                    "DELETE FROM waiting WHERE (site, holder, name) = (?,?,?)",
                    (key, self._id, name),
                )
                return True
            db.execute(
                "INSERT OR IGNORE INTO waiting (site, holder, name, since) VALUES (?,?,?,?)",
                (key, self._id, name, time.time()),
            )
            return False

    def _used(self, db: LockWaitingConnection, key: str, name: str) -> int:
        """Count processors in use but under a name of ours, after the dead have been dropped."""
        query = """SELECT coalesce(sum(processors), 0) FROM held
            WHERE site = ? AND (holder, name) != (?,?)"""
        return int(db.execute(query, (key, self._id, name)).fetchone()[0])

    def _is_behind(self, db: LockWaitingConnection, key: str, name: str) -> bool:
        """Whether a run that has waited long comes first, unless this one holds some there."""
        # A run at work there may have to finish with more processors before it gives any back: to
        # queue it behind those that wait for it could block both.
        mine = "SELECT count(*) FROM held WHERE (site, holder) = (?,?)"
        if db.execute(mine, (key, self._id)).fetchone()[0]:
            return False
        query = """SELECT count(*) FROM waiting WHERE site = ? AND holder != ? AND since < ?
            AND number < coalesce(
                (SELECT number FROM waiting WHERE (site, holder, name) = (?,?,?)), 1 << 62)"""
        aged = time.time() - PATIENCE
        found = db.execute(query, (key, self._id, aged, key, self._id, name)).fetchone()
        return bool(found[0])

    def _why_not(self, site: SiteFacts, processors: int) -> str:
        others = self.others(site)
        who = ", ".join(self.who(site)) or "other runs"
        return (
            f"{site.name}: {others} of {site.processors} processors are held by {who}; this run "
            f"waits for {processors} (bursar run --oversubscribe does not)"
        )

    def _held_by_others(
        self, db: LockWaitingConnection, site: SiteFacts
    ) -> list[tuple[HolderProcess, int, float]]:
        """List other living processes, each with the processors held and the time held since."""
        query = """SELECT holders.*, sum(processors), min(since) FROM held
            JOIN holders ON id = holder WHERE site = ? AND id != ? GROUP BY id"""
        rows = db.execute(query, (_key(site), self._id)).fetchall()
        found = [(HolderProcess(*process), held, since) for *process, held, since in rows]
        # Readers write nothing, so dead holders are only filtered here; the next writer drops them.
        return [entry for entry in found if entry[0].is_there()]

    def _state(self, db: LockWaitingConnection, site: SiteFacts) -> OwnerState:
        key, now = _key(site), time.time()
        row = db.execute("SELECT factor, period FROM owners WHERE site = ?", (key,)).fetchone()
        factor, period = row or (1.0, None)
        query = "SELECT customer, sum(amount) FROM payments WHERE site = ? GROUP BY customer"
        paid = {customer: amount for customer, amount in db.execute(query, (key,)) if amount}
        query = """SELECT holders.*, agreements.id, processors, start, "end"
            FROM agreements JOIN holders ON holders.id = holder WHERE site = ?"""
        ours: dict[str, Commitment] = {}
        others: list[Commitment] = []
        agreed: dict[str, int] = {}
        there: dict[str, bool] = {self._id: True}
        for *process, agreement, processors, start, end in db.execute(query, (key,)):
            holder = HolderProcess(*process)
            # Whether a process lives costs a walk through /proc when it is gone: once per holder.
            if holder.id not in there:
                there[holder.id] = holder.is_there()
            if holder.id == self._id:
                ours[agreement] = Commitment(processors, start, end)
            elif there[holder.id]:
                others.append(Commitment(processors, start, end))
                # Only agreements of this moment explain what is held now.
                if start <= now < end:
                    agreed[holder.id] = agreed.get(holder.id, 0) + processors
        for holder, count, since in self._held_by_others(db, site):
            # Held by a plan, or longer than was agreed on: sold to nobody until it is given back.
            more = count - agreed.get(holder.id, 0)
            if more > 0:
                others.append(Commitment(more, since, math.inf))
        return OwnerState(factor=factor, period=period, paid=paid, ours=ours, others=tuple(others))

    def _keep(
        self, db: LockWaitingConnection, site: SiteFacts, before: OwnerState, after: OwnerState
    ) -> None:
        key = _key(site)
        if (after.factor, after.period) != (before.factor, before.period):
            db.execute(
                "INSERT OR REPLACE INTO owners VALUES (?,?,?)", (key, after.factor, after.period)
            )
        more = after.paid.get(self.customer, 0) - before.paid.get(self.customer, 0)
        if more:
            db.execute(
                """INSERT INTO payments VALUES (?,?,?,?) ON CONFLICT (site, run, customer)
                DO UPDATE SET amount = amount + excluded.amount""",
                (key, self._identity, self.customer, more),
            )
        # Replaced as a whole: a run has few agreements with one owner, and some have been
        # shortened.
        if dict(after.ours) != dict(before.ours):
            db.execute("DELETE FROM agreements WHERE (site, holder) = (?,?)", (key, self._id))
            db.executemany(
                "INSERT INTO agreements VALUES (?,?,?,?,?,?)",
                [
                    (key, self._id, agreement, c.processors, c.start, c.end)
                    for agreement, c in after.ours.items()
                ],
            )

    def _register(self, db: LockWaitingConnection) -> None:
        process = (socket.gethostname(), boot_id(), pid := os.getpid(), started_at(pid))
        db.execute(
            "INSERT OR REPLACE INTO holders VALUES (?,?,?,?,?,?,?)",
            (self._id, *process, self._run, self._mark),
        )

    def _drop_dead(self, db: LockWaitingConnection, interval: float) -> None:
        for row in db.execute("SELECT * FROM holders WHERE id != ?", (self._id,)).fetchall():
            process = HolderProcess(*row)
            now = time.monotonic()
            if process.is_living or now - self._traced.get(process.id, -math.inf) < interval:
                continue
            if self._mark and process.mark == self._mark:  # an earlier process of this run
                pass_on(db, process.id, self._id)
            elif process.is_there():
                self._traced[process.id] = now
                continue
            forget_holder(db, process.id, gone := ticks_now())
            self._divide_payment(db, gone)  # others pay from this very moment on
            self._traced.pop(process.id, None)

    @contextlib.contextmanager
    def _writing(
        self, trace_interval: float = 0.0, patience: float | None = None
    ) -> Iterator[LockWaitingConnection]:
        """Open a transaction that excludes other writers, after dead holders were dropped."""
        with translate_sqlite_errors(self._path, "owners' book"):
            if self._db is None:
                self._db = open_owners(self._path)
            with transaction(self._db, patience):
                # In the same transaction as the first row: rows of an unregistered holder would
                # never be dropped.
                if not self._is_registered:
                    self._register(self._db)
                self._drop_dead(self._db, trace_interval)
                yield self._db
                self._divide_payment(self._db, ticks_now())
            self._is_registered = True

    @contextlib.contextmanager
    def _reading(self) -> Iterator[LockWaitingConnection | None]:
        """Open a consistent read of the file; None when there is no file."""
        # Path.exists raises PermissionError in a folder that is closed to this user.
        if self._db is None and not os.path.exists(self._path):
            yield None
            return
        with translate_sqlite_errors(self._path, "owners' book"):
            if self._db is None:
                self._db = open_owners(self._path)
            # One snapshot for all queries of the block; rolled back, since nothing was written.
            self._db.execute("BEGIN")
            try:
                yield self._db
            finally:
                self._db.execute("ROLLBACK")


@dataclass(slots=True)
class _OwnerStateUpdate:
    """An owner's stored state during a sale, which may change the state."""

    state: OwnerState


def _key(site: SiteFacts) -> str:
    """Return a site's key: sites file and name, and the host for a local site."""
    where = f"@{socket.gethostname()}" if site.kind == "local" else ""
    return f"{site.source}#{site.name}{where}"


@contextlib.contextmanager
def known_owners(customer: str | None = None) -> Iterator[OwnersBook | None]:
    """
    Open the owners' book for reading; None where nothing is shared or the file is unusable.

    Parameters
    ----------
    customer
        Name of the customer who looks; None: this user.
    """
    path = owners_file()
    if path is None or not os.path.exists(path):
        yield None
        return
    book = OwnersBook(path, customer=customer or user_name())
    try:
        yield book if is_named() or book.is_usable else None
    finally:
        book.close()
