"""
The time of a run's journal: set clocks neither undo charges nor make any up.

Each run is carried out in several lives on virtual time. At a random moment a life is killed:
what its journal holds then is what the next life finds, whose time of day is off by as much as
you like. The lives' own durations are known exactly, so the bounds are, too.
"""

import asyncio
import math
import shutil
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bursar.dispatch.journal import RunJournal, read_journal
from bursar.dispatch.journal_records import epoch_of
from bursar.engine.attempt_ends import believable
from bursar.market.ledger import Ledger
from bursar.model.campaign import Campaign, Workflow
from bursar.model.plan import Placement, Plan, Purchase
from bursar.model.site import SiteFacts
from bursar.model.slot import Slot
from bursar.model.task import Outcome, Status, Task
from bursar.runs.campaign_run import execute_campaign
from bursar.runs.environment import RunEnvironment
from bursar.runs.folder import RunFolder
from bursar.runs.incarnations import leases_of
from bursar.runs.plan_file import write_plan
from bursar.runs.run_record import read_run
from bursar.runs.supply import PlannedSupply
from bursar.simulation.execution_model import ExecutionUncertainty
from bursar.simulation.simulated_grid import SimulatedGrid
from bursar.simulation.virtual_loop import VirtualLoop
from bursar.sites.protocol import Site

PRICE = 0.01
PROCESSORS = 4
SITE = SiteFacts(
    name="cluster", kind="simulated", processors=PROCESSORS, unit_price=PRICE, fixed_price=0.0
)
WORK = Workflow(tuple(Task(id=f"t{i}", runtime=600.0) for i in range(8)))
TRUE_BEGIN = 1_700_000_000.0
BEAT = 8.0
"""Seconds between two signs of life, at the most: the run looks every two seconds."""


def _two_rounds() -> Plan:
    """Eight tasks of 600 s on four processors."""
    slot = Slot(
        site="cluster",
        start=0.0,
        duration=1200.0,
        processors=PROCESSORS,
        unit_price=PRICE,
        extensible=True,
    )
    placements = tuple(
        Placement(
            task=i,
            site="cluster",
            start=600.0 * (i // PROCESSORS),
            finish=600.0 * (i // PROCESSORS + 1),
            processors=(i % PROCESSORS,),
        )
        for i in range(8)
    )
    return Plan(
        purchases=(Purchase(slot=slot, part=PROCESSORS * 1200.0),),
        placements=placements,
        makespan=1200.0,
        cost=48.0,
        currency="SU",
        utilisation=1.0,
        algorithm="by hand",
    )


class Killed(KeyboardInterrupt):
    """A life has come to its end."""


class Unrecorded:
    """A site that keeps no record of its own, as this machine does: the run's journal counts."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def __getattr__(self, name: str) -> Any:
        if name in ("meter", "unwatched"):
            raise AttributeError(name)
        return getattr(self._site, name)


class Lives:
    """
    A run on virtual time, killed and resumed.

    Parameters
    ----------
    durable
        Whether the journal keeps which tasks were handed out, as that of a real run does.

    Attributes
    ----------
    lasted
        Seconds that each life went on.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._durable = durable
        campaign = Campaign(name="c", workflow=WORK)
        grid = SimulatedGrid((SITE,))
        self.plan = _two_rounds()
        with RunFolder.create(folder, campaign, (SITE,), argv=[], name="r") as run:
            write_plan(run, {}, self.plan)
        self.campaign, self.grid, self.folder = campaign, grid, run
        self.lasted: list[float] = []
        self._copies = folder / "copies"

    def live(self, wall: float, killed_after: float = math.inf) -> None:
        """One life, by a time of day of its own."""
        loops: list[VirtualLoop] = []

        def loop() -> VirtualLoop:
            loops.append(VirtualLoop(wall))
            if math.isfinite(killed_after):
                loops[0].call_at(killed_after, self._kill)
            return loops[0]

        environment = RunEnvironment(
            sites={
                n: Unrecorded(s) for n, s in self.grid.open(WORK, ExecutionUncertainty()).items()
            },
            supply=PlannedSupply(self.plan),
            loop=loop,
            tick=2.0,
            refresh=1e6,
            durable=self._durable,
            amendable=False,
        )
        try:
            execute_campaign(
                self.folder, self.campaign, self.plan, environment=environment, written_up=False
            )
        except Killed:
            for copy in self._copies.iterdir():
                shutil.copy(copy, self.folder.path)
        self.lasted.append(min(killed_after, loops[0].time()))

    def _kill(self) -> None:
        shutil.rmtree(self._copies, ignore_errors=True)
        self._copies.mkdir()
        for suffix in ("", "-wal", ".head"):
            file = Path(f"{self.folder.journal_file}{suffix}")
            if file.exists():
                shutil.copy(file, self._copies)
        raise Killed

    @property
    def due(self) -> float:
        """What the journal knows to be due, currency units: paid, and held by open leases."""
        journal = read_journal(self.folder.journal_file)
        owed = Ledger(journal.transfers).spent / 1e6
        for lease in leases_of(journal.events).values():
            if lease.end is None:
                owed += lease.processors * max(0.0, journal.last_seen - lease.start) * PRICE
        return owed


def set_clock_between_lives(folder: Path, seed: int) -> None:
    """One run of one to three kills, each followed by a break and a jump of the clock."""
    rng = np.random.default_rng(seed)
    lives = Lives(folder)
    now, jump = TRUE_BEGIN, float(rng.uniform(-7200, 7200))
    for _ in range(rng.integers(1, 4)):
        lives.live(now + jump, killed_after=float(rng.uniform(1, 900)))
        due = lives.due
        known = read_journal(lives.folder.journal_file).last_seen
        now += lives.lasted[-1] + float(rng.exponential(300))
        jump = float(rng.choice([-2400, 2400, rng.uniform(-86400, 86400), rng.normal(0, 5)]))
        assert known > 0
    lives.live(now + jump)

    record = read_run(lives.folder)
    spent = record.ledger.spent / 1e6
    held = sum(lives.lasted)
    assert len(record.final) == len(WORK.tasks)
    assert record.ledger.held == record.ledger.free == 0
    assert spent >= due - 1e-6
    assert spent <= PROCESSORS * PRICE * held + 1e-3
    assert record.makespan is not None
    assert 0.0 < record.makespan <= held + 1e-3
    # What was killed between two signs of life may be missing, and no more.
    assert spent >= PROCESSORS * PRICE * (held - BEAT * (len(lives.lasted) - 1)) - 1e-3
    for (begin, end), (later, _) in zip(record.incarnations, record.incarnations[1:], strict=False):
        assert begin <= end <= later
    for one in record.journal.records:
        assert any(
            b - 1e-6 <= one.outcome.start <= one.outcome.end <= e for b, e in record.incarnations
        )


@pytest.mark.parametrize("back", [2400.0, -2400.0, 86_400.0, 0.0])
def test_a_clock_that_was_set_between_lives_changes_no_charge(tmp_path: Path, back: float) -> None:
    """A life of 500 s is killed: 4 processors x 500 s x 0.01 = 20 are due, whatever o'clock."""
    lives = Lives(tmp_path)
    lives.live(TRUE_BEGIN, killed_after=500.0)
    due = lives.due
    assert 20.0 - PROCESSORS * PRICE * BEAT <= due <= 20.0
    lives.live(TRUE_BEGIN + 560.0 - back)

    record = read_run(lives.folder)
    # Eight tasks of 600 s on four processors, none of which had ended: 1200 s more.
    assert record.ledger.spent / 1e6 == pytest.approx(due + PROCESSORS * PRICE * 1200.0, abs=0.01)
    assert record.makespan == pytest.approx(1200.0, abs=1e-3)  # no attempt of the first life ended


def test_what_waited_behind_killed_tasks_never_counts_as_run(tmp_path: Path) -> None:
    """
    Four tasks run on four processors and four wait behind them when the first life is killed,
    and the second one soon after. The four that waited have used nothing: no attempt of theirs
    may be billed to a lease that had ended.
    """
    lives = Lives(tmp_path, durable=True)
    lives.live(TRUE_BEGIN, killed_after=300.0)
    with closing(RunJournal(lives.folder.journal_file)) as journal:
        running = journal.load().open_starts
        journal.commit(starts=[start._replace(task=start.task + 4) for start in running])
    lives.live(TRUE_BEGIN + 400.0, killed_after=1.0)
    lives.live(TRUE_BEGIN + 500.0)

    record = read_run(lives.folder)
    cancelled = [
        one.outcome for one in record.journal.records if one.outcome.status is Status.CANCELLED
    ]
    # Once by each kill; the second life's workers had just begun the same four again.
    assert Counter(outcome.task for outcome in cancelled) == dict.fromkeys(range(4), 2)
    leases = leases_of(record.journal.events)
    for one in record.journal.records:
        lease = leases[one.lease]
        assert lease.end is not None
        assert lease.start <= one.outcome.start <= one.outcome.end <= lease.end


@pytest.mark.parametrize("seed", range(8))
def test_random_jumps_between_lives(tmp_path: Path, seed: int) -> None:
    """Costs are never below what was recorded, nor above what was held; makespans are real."""
    set_clock_between_lives(tmp_path, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_200_random_jumps_between_lives(tmp_path: Path, seed: int) -> None:
    """The same, 200 times."""
    set_clock_between_lives(tmp_path, seed)


def test_time_goes_on_from_what_was_seen() -> None:
    """A loop's time is mapped once: by the time of day, or by the journal where that is later."""

    async def epochs() -> list[float]:
        loop = asyncio.get_running_loop()
        return [epoch_of(loop), epoch_of(loop, 900.0), epoch_of(loop, 1500.0)]

    with asyncio.Runner(loop_factory=partial(VirtualLoop, 1000.0)) as runner:
        assert runner.run(epochs()) == [1000.0, 1000.0, 1500.0]


def test_the_time_of_day_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An NTP step within a life moves neither spans nor charges."""
    import time

    wall = 5000.0
    monkeypatch.setattr(time, "time", lambda: wall)

    async def now() -> None:
        nonlocal wall
        loop = asyncio.get_running_loop()
        epoch = epoch_of(loop)
        before = epoch + loop.time()
        wall += 2400.0
        assert epoch + loop.time() - before < 60.0

    asyncio.run(now())


def _told(**times: float) -> Outcome:
    return Outcome(task=0, attempt=1, status=Status.SUCCEEDED, **times)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (110.0, 120.0, (110.0, 120.0)),  # as it was
        (2510.0, 2520.0, (140.0, 150.0)),  # the worker's clock is ahead
        (-2290.0, -2280.0, (140.0, 150.0)),  # behind
        (0.0, 1e9, (100.0, 150.0)),  # no longer than the worker was there
        (120.0, 110.0, (150.0, 150.0)),  # its clock was set back meanwhile
    ],
)
def test_outcomes_lie_within_the_run(
    start: float, end: float, expected: tuple[float, float]
) -> None:
    """What a worker's clock says is moved to where it can have been, as long as it took."""
    found: Any = believable(_told(start=start, end=end), 100.0, 150.0, has_just_ended=True)
    assert (found.start, found.end) == expected
