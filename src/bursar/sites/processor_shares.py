"""
Fair shares of a machine's processors among the runs that use them at the same time.

Each run is a process of its own, so that the crash of one harms no other and no daemon has to be
looked after. Every run writes what it could use into one table, reads what the others have
written, and computes the same division from it: :func:`divide_processors`, a pure function. A run
starts tasks on its share only. Where a share shrinks, running tasks end undisturbed and the run
gives processors back as they end; others take only processors that were given back, in one
transaction, so that no processor is ever used by two runs.

The division is that of start-time fair queuing, as among a service's users
(:mod:`bursar.engine.fair_turns`): who has had less comes first, a run that comes late starts level
with the others, and processors that nobody else wanted are no debt. Runs may be of projects, which
have processors in proportion to their weights, however many runs each has, as the groups of a
service do; a run of no project is a project of its own, of weight 1.
"""

import heapq
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from bursar.sqlite_file import LockWaitingConnection

QUANTUM = 2.5
"""Seconds of the whole machine by which one run may be ahead of another before it has to yield."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareDemand:
    """
    Processors that a run could use of a site now.

    Parameters
    ----------
    wanted
        Processors of its running tasks and of those that are ready.
    narrowest, widest
        Processors of the narrowest and of the widest ready task; 0: none is ready.
    used
        Processors of running tasks.
    """

    wanted: int = 0
    narrowest: int = 0
    widest: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRequest:
    """
    One run's part in the division of a machine.

    Parameters
    ----------
    holder, site
        Run and site.
    number
        Order of arrival: who came first is first among equals.
    limit
        Processors of the site.
    wanted, narrowest, widest
        See :class:`ShareDemand`.
    received
        Processor-seconds that the run has had, over its weight (see :func:`run_weights`), on the
        scale of all runs: one that came later, or that wanted nothing for a while, began level with
        the others.
    project, weight
        Project of the run, and the project's weight as this run knows it, above 0; empty: none.
    """

    holder: str
    site: str
    number: int
    limit: int
    wanted: int
    narrowest: int = 0
    widest: int = 0
    received: float = 0.0
    project: str = ""
    weight: float = 1.0


def run_weights(requests: Sequence[ShareRequest]) -> list[float]:
    """
    Return the weight of each run: its project's, divided among the project's eager runs.

    Where runs of a project know different weights, that of the run that came last counts.
    """
    latest: dict[str, tuple[int, float]] = {}
    eager: dict[str, int] = {}
    for r in requests:
        if r.project:
            latest[r.project] = max(latest.get(r.project, (-1, 1.0)), (r.number, r.weight))
            eager[r.project] = eager.get(r.project, 0) + (r.wanted > 0)
    return [latest[r.project][1] / max(1, eager[r.project]) if r.project else 1.0 for r in requests]


def divide_processors(
    processors: int, requests: Sequence[ShareRequest], sites: Mapping[str, int] | None = None
) -> dict[tuple[str, str], int]:
    """
    Divide a machine's processors among runs.

    Processors are given one by one to the run that has least for its weight (progressive filling),
    until each has what it wants. A run that has received more than another by :data:`QUANTUM`
    seconds of the machine, each for its weight, counts as if it had a processor for each such step.
    A task that is wider than its run's
    share makes the run the first to be served, once the run is not ahead of any other. A share in
    which no ready task fits goes to others. What nobody wants is given out in the same way, so
    that a run alone has the whole machine.

    Parameters
    ----------
    processors
        Processors of the machine.
    requests
        One for each run and site.
    sites
        Processors that may be given out of each site, at most; None: as many as each has.

    Returns
    -------
    dict
        Processors by run and site. The sum is never more than the machine has, nor more of a site
        than may be given of it.
    """
    if len(requests) == 1 and sites is None:
        (alone,) = requests
        return {(alone.holder, alone.site): min(alone.limit, processors)}
    room = dict(sites) if sites is not None else {r.site: r.limit for r in requests}
    eager = [r for r in requests if r.wanted > 0]
    least = min((r.received for r in eager), default=0.0)
    step = QUANTUM * max(1, processors)
    debts = [int(max(0.0, r.received - least) / step) for r in requests]

    weights = run_weights(requests)

    def fill(first: int | None, out: Collection[int]) -> list[int]:
        return _filled(processors, requests, room, debts, weights, first, out)

    given = fill(None, ())
    order = sorted(range(len(requests)), key=lambda i: requests[i].number)
    first = next(
        (
            i
            for i in order
            if requests[i].wanted
            and given[i] < requests[i].widest <= min(requests[i].limit, processors)
            and not debts[i]
        ),
        None,
    )
    if first is not None:
        given = fill(first, ())
    useless = {i for i, r in enumerate(requests) if 0 < given[i] < r.narrowest}
    if useless:
        given = fill(first, useless)
    return {(r.holder, r.site): n for r, n in zip(requests, given, strict=True)}


def _filled(
    processors: int,
    requests: Sequence[ShareRequest],
    sites: Mapping[str, int],
    debts: Sequence[int],
    weights: Sequence[float],
    first: int | None,
    out: Collection[int],
) -> list[int]:
    """Give processors out one by one: what is wanted first, then what nobody wants."""
    left, room, given = processors, dict(sites), [0] * len(requests)
    if first is not None:
        given[first] = min(requests[first].widest, left, room[requests[first].site])
        left -= given[first]
        room[requests[first].site] -= given[first]
    wishes = ([0 if i in out else r.wanted for i, r in enumerate(requests)], None)
    for wanted in wishes:
        heap = [
            (given[i] / weights[i] + debt, debt, requests[i].number, i)
            for i, debt in enumerate(debts)
        ]
        heapq.heapify(heap)
        while left > 0 and heap:
            _, debt, number, i = heap[0]
            request = requests[i]
            most = request.limit if wanted is None else min(wanted[i], request.limit)
            if given[i] >= most or not room[request.site]:
                heapq.heappop(heap)
                continue
            given[i] += 1
            left -= 1
            room[request.site] -= 1
            heapq.heapreplace(heap, (given[i] / weights[i] + debt, debt, number, i))
    return given


# The table in which the runs of a machine write what they want.

SHARE = "share"
"""Name under which a run holds its share."""

TABLE = """CREATE TABLE IF NOT EXISTS demands (
    number INTEGER PRIMARY KEY AUTOINCREMENT, site TEXT NOT NULL, holder TEXT NOT NULL,
    machine INTEGER NOT NULL, most INTEGER NOT NULL, wanted INTEGER NOT NULL,
    narrowest INTEGER NOT NULL, widest INTEGER NOT NULL, received REAL NOT NULL,
    UNIQUE (site, holder))"""

PROJECT_COLUMNS = ("project TEXT NOT NULL DEFAULT ''", "weight REAL NOT NULL DEFAULT 1.0")
"""Columns that a table of an earlier version lacks; that version goes on without them."""


def make_table(db: LockWaitingConnection) -> None:
    """Make the table, or give one of an earlier version what it lacks."""
    db.execute(TABLE)
    there = {row[1] for row in db.execute("PRAGMA table_info(demands)")}
    for column in PROJECT_COLUMNS:
        if column.split()[0] not in there:
            db.execute(f"ALTER TABLE demands ADD COLUMN {column}")


@dataclass(slots=True)
class ShareHolder:
    """
    A run's own view of its share of one site.

    Parameters
    ----------
    holder, site
        Keys of the run and of the site in the table.
    machine
        Processors of this machine.
    project, weight
        See :class:`ShareRequest`.

    Attributes
    ----------
    share
        Processors that the run may use now.
    is_alone
        Whether no other run had a part in the division when it was made last.
    """

    holder: str
    site: str
    most: int
    machine: int
    project: str = ""
    weight: float = 1.0
    share: int = 0
    is_alone: bool = False
    _version: int = -1
    _updated: float = 0.0
    _used: int = 0
    _had: int = 0  # processors of the whole machine

    def is_settled(self, db: LockWaitingConnection) -> bool:
        """Whether the run is alone, and no other process has written since that was found."""
        return self.is_alone and self.share == self.most and self._version == _version_of(db)

    def update(
        self,
        db: LockWaitingConnection,
        demand: ShareDemand,
        living: Collection[str],
        now: float,
        *,
        holds: bool = True,
    ) -> int:
        """
        Divide the machine anew, and give back or take processors accordingly.

        To be called in a transaction that excludes other writers.

        Parameters
        ----------
        living
            Holders whose processes are there; what others hold is in use by their tasks.
        now
            Present time, seconds on a clock that never goes back.
        holds
            Whether the share is to be held as a whole; False where the run holds the processors
            of each pilot by itself, and only asks how many it may.

        Returns
        -------
        int
            Processors on which the run may start tasks from now on, those of running tasks
            included.
        """
        self._version = _version_of(db)
        rows = _requests(db, self.site.rpartition("@")[2])
        mine = rows.get((self.holder, self.site))
        others = [r for key, (r, _) in rows.items() if key != (self.holder, self.site)]
        others = [r for r in others if r.holder in living]
        request = self._request(mine, others, demand, now)
        self._write(db, mine, request)
        requests = [*others, request]
        held = _held(db, {r.site for r, _ in rows.values()} | {self.site})
        machine = _machine(self.machine, [machine for _, machine in rows.values()], requests)
        self._had = machine
        taking = {(r.holder, r.site) for r in requests}
        lost = {key: n for key, n in held.items() if key not in taking}
        sites: dict[str, int] = {}
        for r in requests:
            gone = sum(n for (_, site), n in lost.items() if site == r.site)
            sites[r.site] = max(sites.get(r.site, 0), r.limit - gone, 0)
        shares = divide_processors(max(0, machine - sum(lost.values())), requests, sites)
        share = shares[self.holder, self.site]
        before = held.get((self.holder, self.site), 0)
        if not holds:
            self.share = share
            return share
        if share > before:
            at_site = sum(n for (_, site), n in held.items() if site == self.site)
            free = min(machine - sum(held.values()), self.most - at_site)
            share = min(share, before + max(0, free))
        # Processors of running tasks stay held, whoever is entitled to them, until the tasks end.
        keep = max(share, min(demand.used, before))
        if keep != before:
            _hold(db, self.site, self.holder, keep)
        self.share, self.is_alone = share, not others and not lost
        return share

    def _request(
        self,
        mine: tuple[ShareRequest, int] | None,
        others: Sequence[ShareRequest],
        demand: ShareDemand,
        now: float,
    ) -> ShareRequest:
        """Return our part in the division, with what we have received until now."""
        received = 0.0 if mine is None else mine[0].received
        # What a run had while it was alone was taken from nobody.
        if mine is not None and not self.is_alone:
            weight = run_weights([*others, mine[0]])[-1]
            received += self._used * (now - self._updated) / weight
        eager = [r.received for r in others if r.wanted > 0]
        # S = max(v, F) of start-time fair queuing. A run that has all it wants saves nothing up
        # either: what the others use beyond their shares is no debt to it then.
        had_all = mine is None or mine[0].wanted <= self._used < self._had
        if eager and had_all:
            received = max(received, min(eager))
        self._updated, self._used = now, demand.used
        return ShareRequest(
            holder=self.holder,
            site=self.site,
            number=1 << 62 if mine is None else mine[0].number,
            limit=self.most,
            wanted=min(demand.wanted, self.most),
            narrowest=min(demand.narrowest, self.most),
            widest=min(demand.widest, self.most),
            received=received,
            project=self.project,
            weight=self.weight,
        )

    def _write(
        self,
        db: LockWaitingConnection,
        mine: tuple[ShareRequest, int] | None,
        request: ShareRequest,
    ) -> None:
        r = request
        if mine is None:
            row = (r.site, r.holder, self.machine, r.limit, r.wanted, r.narrowest, r.widest)
            db.execute(
                "INSERT INTO demands (site, holder, machine, most, wanted, narrowest, widest, "
                "received, project, weight) VALUES (?,?,?,?,?,?,?,?,?,?)",
                (*row, r.received, r.project, r.weight),
            )
        elif r != mine[0]:
            db.execute(
                "UPDATE demands SET wanted = ?, narrowest = ?, widest = ?, received = ? "
                "WHERE (site, holder) = (?,?)",
                (r.wanted, r.narrowest, r.widest, r.received, r.site, r.holder),
            )


def _version_of(db: LockWaitingConnection) -> int:
    """Return a number that changes when another connection has written to the file."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])


def _requests(
    db: LockWaitingConnection, host: str
) -> dict[tuple[str, str], tuple[ShareRequest, int]]:
    """Return all runs' parts in a machine, each with the processors that the run knows of there."""
    query = """SELECT holder, site, number, most, wanted, narrowest, widest, received, machine,
        project, weight FROM demands"""
    return {
        (row[0], row[1]): (
            ShareRequest(
                holder=row[0],
                site=row[1],
                number=row[2],
                limit=row[3],
                wanted=row[4],
                narrowest=row[5],
                widest=row[6],
                received=row[7],
                project=row[9],
                weight=row[10],
            ),
            row[8],
        )
        for row in db.execute(query)
        if row[1].endswith(f"@{host}")
    }


def machine_processors(db: LockWaitingConnection, host: str, own: int) -> int:
    """Return the processors of a machine, of which this process may use its own number."""
    rows = _requests(db, host).values()
    return _machine(own, [machine for _, machine in rows], [request for request, _ in rows])


def _machine(own: int, others: Sequence[int], requests: Iterable[ShareRequest]) -> int:
    # Sites may state more processors than the machine has: a run alone is never limited.
    return max([own, *others, *_stated(requests)])


def _stated(requests: Iterable[ShareRequest]) -> list[int]:
    """Return the processors of all sites of each run together."""
    sums: dict[str, int] = {}
    for r in requests:
        sums[r.holder] = sums.get(r.holder, 0) + r.limit
    return list(sums.values())


def _held(db: LockWaitingConnection, sites: Collection[str]) -> dict[tuple[str, str], int]:
    """Return the processors that each run holds of sites whose processors are shared."""
    query = "SELECT holder, site, sum(processors) FROM held GROUP BY holder, site"
    return {(holder, site): n for holder, site, n in db.execute(query) if site in sites}


def _hold(db: LockWaitingConnection, site: str, holder: str, processors: int) -> None:
    key = (site, holder, SHARE)
    if processors:
        row = (*key, processors, time.time())
        db.execute("INSERT OR REPLACE INTO held VALUES (?,?,?,?,?)", row)
    else:
        db.execute("DELETE FROM held WHERE (site, holder, name) = (?,?,?)", key)
