"""Fair shares of a machine: the pure division, and runs that share by one file."""

import math
import resource
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.model.site import SiteFacts
from bursar.sites.owners import OwnersBook
from bursar.sites.processor_shares import (
    QUANTUM,
    ShareDemand,
    ShareHolder,
    ShareRequest,
    divide_processors,
    make_table,
)
from bursar.sqlite_file import LockWaitingConnection, connect, transaction

SITE = SiteFacts(name="here", kind="local", processors=4, unit_price=1.0, source="s.toml")


def request(
    holder: str,
    wanted: int,
    project: str = "",
    weight: float = 1.0,
    *,
    number: int = 0,
    limit: int = 4,
    widest: int = 1,
    narrowest: int = 1,
    received: float = 0.0,
    site: str = "here@x",
) -> ShareRequest:
    return ShareRequest(
        holder=holder,
        site=site,
        number=number or ord(holder),
        limit=limit,
        wanted=wanted,
        narrowest=narrowest,
        widest=widest,
        received=received,
        project=project,
        weight=weight,
    )


def shares(processors: int, *requests: ShareRequest) -> list[int]:
    found = divide_processors(processors, requests)
    return [found[r.holder, r.site] for r in requests]


def test_a_run_alone_has_the_whole_machine() -> None:
    """Also what it does not want at this moment: a task that becomes ready waits for nothing."""
    assert shares(4, request("a", 0)) == [4]
    assert shares(4, request("a", 9)) == [4]


def test_two_runs_have_one_half_each() -> None:
    """However many tasks one of them has, and whoever came first."""
    assert shares(4, request("a", 100), request("b", 2)) == [2, 2]
    assert shares(4, request("a", 100), request("b", 1)) == [3, 1]
    assert shares(2, request("a", 100), request("b", 0)) == [2, 0]
    assert shares(3, request("a", 9), request("b", 9)) == [2, 1]


def test_a_run_that_is_ahead_yields_until_the_others_have_caught_up() -> None:
    """One step ahead is 2.5 s of the machine, here 10 processor-seconds, and counts as one more."""
    assert shares(4, request("a", 9, received=9.9), request("b", 9)) == [2, 2]
    assert shares(4, request("a", 9, received=10.0), request("b", 9)) == [1, 3]
    assert shares(4, request("a", 9, received=50.0), request("b", 9)) == [0, 4]


def test_a_task_wider_than_the_share_is_served_unless_its_run_is_ahead() -> None:
    """Its run has the machine for a while, and yields it once it has had more than the other."""
    wide = request("b", 8, widest=4, narrowest=4)
    assert shares(4, request("a", 9), wide) == [0, 4]
    assert shares(4, request("a", 9), replace(wide, received=10.0)) == [4, 0]
    # Another width fits beside the other run's tasks.
    assert shares(4, request("a", 9), request("b", 8, widest=3)) == [1, 3]


def test_sites_of_one_machine_share_it_and_keep_their_own_limits() -> None:
    """Two sites files may describe one machine, each with fewer processors than it has."""
    first, second = (request(h, 9, limit=2, site="small@x") for h in "ab")
    other = request("c", 9, limit=4, site="large@x")
    assert shares(4, first, second, other) == [1, 1, 2]


def test_projects_have_processors_by_their_weights() -> None:
    """Three to one, however many runs a project has; a run of no project has weight 1."""
    heavy, light = request("a", 9, "heavy", 3.0, limit=8), request("b", 9, "light", limit=8)
    assert shares(4, heavy, light) == [3, 1]
    assert shares(8, heavy, light) == [6, 2]
    assert shares(8, heavy, request("c", 9, limit=8)) == [6, 2]
    second = request("c", 9, "heavy", 3.0, limit=8)
    assert shares(8, heavy, light, second) == [3, 2, 3]
    # One that wants nothing leaves the project's part to the other.
    assert shares(8, heavy, light, replace(second, wanted=0)) == [6, 2, 0]
    assert shares(8, replace(heavy, wanted=2), light) == [2, 6]
    # The run that came last has read the weights last.
    assert shares(8, replace(heavy, weight=1.0), light, second) == [3, 2, 3]


def plainly_divided(processors: int, requests: list[ShareRequest]) -> list[int]:
    """Return the division of narrow requests of one site, by the definition and nothing else."""
    least = min((r.received for r in requests if r.wanted), default=0.0)
    had = [0] * len(requests)
    for is_wanted in (True, False):
        while sum(had) < processors:
            best = None
            for i, r in enumerate(requests):
                if had[i] >= (min(r.wanted, r.limit) if is_wanted else r.limit):
                    continue
                if r.project:
                    mates = [other for other in requests if other.project == r.project]
                    weight = max(mates, key=lambda other: other.number).weight
                    weight /= max(1, sum(other.wanted > 0 for other in mates))
                else:
                    weight = 1.0
                debt = int(max(0.0, r.received - least) / (QUANTUM * processors))
                key = (had[i] / weight + debt, debt, r.number, i)
                best = key if best is None else min(best, key)
            if best is None:
                break
            had[best[3]] += 1
    return had


@given(
    st.integers(1, 12),
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sampled_from(["", "heavy", "light"]),
            st.sampled_from([0.5, 1.0, 2.0, 3.0]),
            st.floats(0, 60),
        ),
        min_size=2,
        max_size=6,
    ),
)
def test_weighted_shares_equal_those_of_the_definition(
    processors: int, runs: list[tuple[int, str, float, float]]
) -> None:
    """Progressive filling by a heap gives what a search for the least gives at each step."""
    requests = [
        replace(
            request(chr(97 + i), wanted, project, weight, limit=processors, received=received),
            narrowest=0,  # no task comes first for its width
            widest=0,
        )
        for i, (wanted, project, weight, received) in enumerate(runs)
    ]
    assert shares(processors, *requests) == plainly_divided(processors, requests)


def requests_of(draw: st.DrawFn) -> list[ShareRequest]:
    sites = {"here@x": draw(st.integers(1, 9)), "there@x": draw(st.integers(1, 9))}
    made = []
    for number in range(draw(st.integers(1, 6))):
        site = draw(st.sampled_from(sorted(sites)))
        widest = draw(st.integers(0, sites[site]))
        made.append(
            ShareRequest(
                holder=f"run {number}",
                site=site,
                number=number,
                limit=sites[site],
                wanted=draw(st.integers(0, 20)),
                narrowest=draw(st.integers(min(1, widest), widest)),
                widest=widest,
                received=draw(st.floats(0, 300)),
                project=draw(st.sampled_from(["", "heavy", "light"])),
                weight=draw(st.sampled_from([0.5, 1.0, 3.0])),
            )
        )
    return made


all_requests = st.composite(requests_of)()


@given(all_requests, st.integers(0, 12))
def test_never_more_than_the_machine_is_given_out(
    requests: list[ShareRequest], processors: int
) -> None:
    """Neither of it, nor of any site; and what somebody wants and may have is given out."""
    found = divide_processors(processors, requests)
    limits = {r.site: r.limit for r in requests}
    by_site = {
        site: sum(found[r.holder, r.site] for r in requests if r.site == site) for site in limits
    }
    assert sum(found.values()) <= processors
    assert all(by_site[site] <= limits[site] for site in limits)
    assert min(found.values()) >= 0
    assert sum(found.values()) == min(
        processors,
        sum(by_site[site] if by_site[site] == limits[site] else math.inf for site in limits),
    )


@given(st.integers(1, 16), st.lists(st.integers(1, 40), min_size=2, max_size=6))
def test_runs_of_narrow_tasks_differ_by_one_processor_at_most(
    processors: int, wanted: list[int]
) -> None:
    """Unless one wants less than the others have."""
    requests = [request(chr(97 + i), n, limit=processors) for i, n in enumerate(wanted)]
    found = shares(processors, *requests)
    for given_to_one, wish in zip(found, wanted, strict=True):
        assert given_to_one >= min(wish, max(found) - 1)


# Runs with tasks, in virtual time: what the division comes to.


@dataclass
class ModelRun:
    """A run whose tasks take a width and a time, over the table of a real file in memory."""

    holder: ShareHolder
    tasks: list[tuple[int, float]]
    running: list[tuple[float, int]] = field(default_factory=list)
    done: float = 0.0
    last_end: float = 0.0

    @property
    def used(self) -> int:
        return sum(width for _, width in self.running)

    @property
    def is_over(self) -> bool:
        return not self.tasks and not self.running

    def step(self, db: LockWaitingConnection, living: set[str], now: float) -> None:
        for end, width in [entry for entry in self.running if entry[0] <= now]:
            self.running.remove((end, width))
            self.last_end = now
        widths = [width for width, _ in self.tasks]
        demand = ShareDemand(
            wanted=self.used + sum(widths),
            narrowest=min(widths, default=0),
            widest=max(widths, default=0),
            used=self.used,
        )
        share = self.holder.update(db, demand, living, now)
        while self.tasks and self.used + self.tasks[0][0] <= share:
            width, seconds = self.tasks.pop(0)
            self.running.append((now + seconds, width))
            self.done += width * seconds


@pytest.fixture
def db(tmp_path: Path) -> Iterator[LockWaitingConnection]:
    """The tables of an owners' book."""
    path = tmp_path / "owners.sqlite"
    book = OwnersBook(path)
    assert book.is_usable
    book.close()
    connection = connect(path, synchronous="OFF")
    yield connection
    connection.close()


def holder(name: str, most: int, project: str = "", weight: float = 1.0) -> ShareHolder:
    return ShareHolder(
        holder=name, site="here@x", most=most, machine=most, project=project, weight=weight
    )


def carry_out(
    db: LockWaitingConnection, runs: dict[float, ModelRun], processors: int, until: float = 600.0
) -> float:
    """Have runs, by the time at which each begins, go on until all are over; return when."""
    now = 0.0
    while now < until:
        present = [run for begin, run in runs.items() if begin <= now and not run.is_over]
        living = {run.holder.holder for run in present}
        for run in present:
            run.step(db, living, now)
            assert sum(r.used for r in runs.values()) <= processors
            held = db.execute("SELECT coalesce(sum(processors), 0) FROM held").fetchone()[0]
            assert held <= processors
            if run.is_over:
                key = (run.holder.holder,)
                db.execute("DELETE FROM held WHERE holder = ?", key)
                db.execute("DELETE FROM demands WHERE holder = ?", key)
        if all(run.is_over for run in runs.values()):
            return now
        now += 0.2
    raise AssertionError(f"not over after {until} s: {runs}")


@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(1, 5),
    st.lists(
        st.lists(st.tuples(st.integers(1, 5), st.floats(0.1, 8.0)), min_size=1, max_size=12),
        min_size=1,
        max_size=3,
    ),
)
def test_all_tasks_run_and_never_on_more_than_the_machine(
    processors: int, tasks: list[list[tuple[int, float]]]
) -> None:
    """Also those as wide as the machine, beside runs of many narrow ones: nobody starves."""
    book = connect(":memory:", synchronous="OFF")
    book.execute(
        "CREATE TABLE held "
        "(site, holder, name, processors, since, PRIMARY KEY (site, holder, name))"
    )
    make_table(book)
    runs = {
        2.0 * i: ModelRun(
            holder(f"r{i}", processors),
            [(min(width, processors), seconds) for width, seconds in mine],
        )
        for i, mine in enumerate(tasks)
    }
    work = sum(width * seconds for run in runs.values() for width, seconds in run.tasks)
    longest = max(seconds for run in runs.values() for _, seconds in run.tasks)
    count = sum(len(run.tasks) for run in runs.values())
    # A bound that only starvation exceeds: all tasks one after the other, and a turn for each.
    bound = work + count * (longest + 3 * QUANTUM) + 10
    assert carry_out(book, runs, processors, until=bound) <= bound
    book.close()


def test_a_late_run_has_its_half_within_one_task(db: LockWaitingConnection) -> None:
    """Two processors, tasks of 1 s: both have had the same at any time, give or take a task."""
    first = ModelRun(holder("a", 2), [(1, 1.0)] * 40)
    second = ModelRun(holder("b", 2), [(1, 1.0)] * 20)
    end = carry_out(db, {0.0: first, 5.0: second}, 2)
    # 60 s of work on two processors; half a step of 0.2 s is lost at each of 30 ends, at most.
    assert end <= 30 + 30 * 0.2 + 1
    assert second.last_end < first.last_end


def test_weights_hold_over_time_where_processors_are_few(db: LockWaitingConnection) -> None:
    """Two processors cannot be divided three to one at a moment, but are over two minutes."""
    heavy = ModelRun(holder("a", 2, "heavy", 3.0), [(1, 1.0)] * 180)
    light = ModelRun(holder("b", 2, "light", 1.0), [(1, 1.0)] * 180)
    carry_out(db, {0.0: heavy, 0.2: light}, 2)
    # The heavy one has 3/4 of two processors: 180 s of work take 120 s, give or take two steps.
    assert 105 <= heavy.last_end <= 135


def test_a_table_of_an_earlier_version_gets_the_columns_of_projects() -> None:
    """Runs of that version are in it, and count as of no project."""
    book = connect(":memory:", synchronous="OFF")
    book.execute(
        "CREATE TABLE demands (number INTEGER PRIMARY KEY AUTOINCREMENT, site TEXT NOT NULL, "
        "holder TEXT NOT NULL, machine INTEGER NOT NULL, most INTEGER NOT NULL, "
        "wanted INTEGER NOT NULL, narrowest INTEGER NOT NULL, widest INTEGER NOT NULL, "
        "received REAL NOT NULL, UNIQUE (site, holder))"
    )
    book.execute("INSERT INTO demands VALUES (1, 'here@x', 'old', 4, 4, 9, 1, 1, 0.0)")
    make_table(book)
    make_table(book)  # a second process finds nothing to do
    assert book.execute("SELECT holder, project, weight FROM demands").fetchall() == [
        ("old", "", 1.0)
    ]
    book.close()


def test_wide_and_narrow_runs_have_half_of_the_time_each(db: LockWaitingConnection) -> None:
    """A run of tasks as wide as the machine beside one of narrow ones: each has one half."""
    narrow = ModelRun(holder("a", 2), [(1, 0.8)] * 400)
    wide = ModelRun(holder("b", 2), [(2, 0.8)] * 200)
    runs = {0.0: narrow, 0.2: wide}
    with pytest.raises(AssertionError, match="not over"):
        carry_out(db, runs, 2, until=120.0)
    assert abs(narrow.done - wide.done) <= 2 * 2 * QUANTUM + 2 * 0.8
    assert narrow.done + wide.done >= 0.6 * 2 * 120


def test_the_share_of_a_dead_run_is_free_again(tmp_path: Path) -> None:
    """A run alone does not look again; one that is not has the whole machine once it is."""
    path = tmp_path / "owners.sqlite"
    one, two = OwnersBook(path, run="one"), OwnersBook(path, run="two")
    demand = ShareDemand(wanted=9, narrowest=1, widest=1)
    assert one.share(SITE, demand) == 4
    assert two.share(SITE, demand) == 0  # the first has given nothing back yet
    assert one.share(SITE, replace(demand, used=4)) == 2  # all are at work
    assert two.share(SITE, demand) == 0
    assert one.share(SITE, replace(demand, used=3)) == 2
    assert two.share(SITE, demand) == 1
    assert one.share(SITE, replace(demand, used=2)) == 2
    assert two.share(SITE, demand) == 2
    one.close()
    assert two.share(SITE, replace(demand, used=2)) == 4
    two.close()


def test_who_insists_has_all_processors_of_the_site(tmp_path: Path) -> None:
    """``--oversubscribe`` is beside the shares of the others."""
    path = tmp_path / "owners.sqlite"
    one, two = OwnersBook(path), OwnersBook(path, insist=True)
    demand = ShareDemand(wanted=9, narrowest=1, widest=1)
    assert one.share(SITE, demand) == two.share(SITE, demand) == 4
    one.close()
    two.close()


def test_a_run_stopped_while_it_divides_keeps_no_other_from_its_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of a run stopped by Ctrl-Z goes on; the others keep what they have, and say so."""
    monkeypatch.setattr("bursar.sites.owners.NOTIFY_AFTER", 0.0)
    path = tmp_path / "owners.sqlite"
    one, two = OwnersBook(path, run="one"), OwnersBook(path, run="two")
    demand = ShareDemand(wanted=9, narrowest=1, widest=1)
    assert one.share(SITE, demand) == 4
    assert two.share(SITE, demand) == 0
    stopped = connect(path, synchronous="NORMAL")
    with transaction(stopped):
        # All of it is wanted back, and nothing can be given.
        assert [one.share(SITE, replace(demand, used=1)) for _ in range(3)] == [4, 4, 4]
        assert two.share(SITE, demand) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ", 1)[1] for line in said] == [
        f"{path}: another process has locked it for too long; "
        "this run goes on with 4 processors meanwhile"
    ]
    assert one.share(SITE, replace(demand, used=1)) == 2
    assert two.share(SITE, demand) == 2
    for db in (one, two, stopped):
        db.close()


def test_a_run_goes_on_where_its_share_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it would take from others is not its own before that is on record."""
    path = tmp_path / "owners.sqlite"
    one, two = OwnersBook(path, run="one"), OwnersBook(path, run="two")
    demand = ShareDemand(wanted=9, narrowest=1, widest=1)
    assert one.share(SITE, demand) == 4
    assert two.share(SITE, demand) == 0
    assert one.share(SITE, replace(demand, used=2)) == 2
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no file can be written: EFBIG
    try:
        found = two.share(SITE, demand)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == 0
    assert two.share(SITE, demand) == 2
    one.close()
    two.close()
