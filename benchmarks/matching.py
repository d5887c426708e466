"""
The resource broker: what it costs to find sites for jobs.

Tables:

matching
    One job against 10,000 sites, from its text on; the same when sites have published
    meanwhile; 100 kinds of job against as many. Beside each what the bare table of ads takes
    for the same expressions in the same run.
choosing
    One job at 170 sites, which is as many as the LCG grid of 2005 had: chosen, sent, arrived,
    begun and ended, under each rule, with sites publishing all the time. Of that, the share of
    own jobs in flight.
growth
    The same by completion for the first and the last tenth of 188,041 jobs.

Use::

    python benchmarks/matching.py [--quick]

Times are of the processor, the least of some runs: the machine may be doing other things.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from figures import Benchmark, Figure, at_most

from bursar.broker.matchmaking.ads import changing_attributes, constant_attributes
from bursar.broker.matchmaking.broker import ResourceBroker, SiteMatch
from bursar.broker.matchmaking.broker_interfaces import BrokerJob
from bursar.broker.matchmaking.inflight import InFlightJobs
from bursar.broker.matchmaking.status_table import PublishedStatus
from bursar.classad import Ad, Table, parse
from bursar.model.matching import CHOICES, Matching, SiteStatus, StatusReading
from bursar.model.site import SiteFacts

MANY = 10_000
KINDS = 100
GRID = 170
JOBS = 188_041
ONE_AIM, KINDS_AIM, FLYING_AIM = 0.010, 1.0, 20e-6
"""Seconds: of one job, of all kinds, and of the jobs in flight for each job."""
REQUIREMENTS = (
    'other.OpSys == "LINUX" && other.State == "Production" && other.FreeCPUs >= 1 '
    "&& other.TotalCPUs >= {}"
)
RANK = "-other.EstimatedTraversalTime + 10 * other.FreeCPUs"


class Index:
    """What sites said, and a version of it."""

    def __init__(self, statuses: list[SiteStatus]) -> None:
        self.version = 1
        self._readings = {status.site: StatusReading(status, 0.0) for status in statuses}

    def read(self) -> Mapping[str, StatusReading]:
        return self._readings

    def tell(self, status: SiteStatus) -> None:
        self.version += 1
        self._readings[status.site] = StatusReading(status, 0.0)


class World:
    """Sites, their index, and a broker."""

    def __init__(self, sites: int, choice: str = "completion") -> None:
        rng = np.random.default_rng(1)
        self.now = 0.0
        self.sites = [
            SiteFacts(
                name=f"s{i}",
                processors=int(rng.integers(4, 512)),
                attributes={"OpSys": ("LINUX", "Solaris", "AIX")[i % 3]},
            )
            for i in range(sites)
        ]
        self.statuses = [self.status(i, rng) for i in range(sites)]
        self.index = Index(self.statuses)
        self.broker = ResourceBroker(
            self.sites,
            index=self.index,
            choice=choice,
            rng=np.random.default_rng(2),
            clock=lambda: self.now,
        )

    def status(self, i: int, rng: np.random.Generator) -> SiteStatus:
        free = int(rng.integers(0, 4))
        wait = 0.0 if free else float(rng.uniform(1, 5000))
        return SiteStatus(
            site=self.sites[i].name, at=self.now, free_processors=free, traversal_time=wait
        )


def least(call: Callable[[], object], times: int = 5) -> float:
    """Least processor seconds of so many calls."""
    found = []
    for _ in range(times):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found)


def job(number: int, wide: int = 1, choice: str | None = None) -> BrokerJob:
    asked = Matching(requirements=REQUIREMENTS.format(wide), rank=RANK, choice=choice)
    return BrokerJob(number=number, matching=asked, runtime=600.0)


def show_matching(bench: Benchmark, many: int, kinds_asked: int) -> None:
    """One job, and many kinds, against many sites."""
    world = World(many)
    rng = np.random.default_rng(3)
    ads = [
        Ad(constant_attributes(site) | changing_attributes(status))
        for site, status in zip(world.sites, world.statuses, strict=True)
    ]
    table, my = Table(ads), Ad({})
    world.broker.choose(job(0))  # columns are made once
    wide = iter(range(2, 10**6))

    def bare(kinds: int) -> None:
        for _ in range(kinds):
            table.holds(parse(REQUIREMENTS.format(next(wide) % 500)), my)
            table.values(parse(RANK), my)

    def published() -> None:
        for i in rng.integers(0, many, 100):
            world.index.tell(world.status(int(i), rng))
        world.broker.choose(job(0))

    bare(1)
    one = least(lambda: world.broker.choose(job(0, next(wide))))
    again = least(lambda: world.broker.choose(job(0)))
    later = least(published)
    kinds = least(lambda: [world.broker.choose(job(0, next(wide))) for _ in range(kinds_asked)], 3)
    bare_one, bare_kinds = least(lambda: bare(1)), least(lambda: bare(kinds_asked), 3)
    table = bench.table(
        f"matching, {many:,} sites", "what", "ms", "bare table, ms", "aim, ms", "met"
    )
    for what, seconds, beside, aim in (
        ("one job, new", one, bare_one, ONE_AIM),
        ("another like it", again, None, None),
        ("after 100 sites have published", later, None, None),
        (f"{kinds_asked} kinds", kinds, bare_kinds, KINDS_AIM),
    ):
        if beside is None or aim is None:
            table.add(what, 1e3 * seconds, None, None, None)
        else:
            table.add(what, 1e3 * seconds, 1e3 * beside, 1e3 * aim, seconds <= aim)


def show_choosing(bench: Benchmark, jobs: int) -> None:
    """One job after the other at a grid of 170 sites."""
    table = bench.table(f"choosing, {GRID} sites, {jobs:,} jobs", "rule", "us a job, in all")
    for rule in CHOICES:
        table.add(rule, _live(World(GRID, rule), jobs)[0] * 1e6)
    flying = InFlightJobs(World(GRID).sites)
    said = PublishedStatus(np.zeros(GRID), np.zeros(GRID), np.full(GRID, 2.0), np.zeros(GRID))
    for number in range(60):
        flying.send(number, number % GRID, processors=1, runtime=600.0, now=0.0, due=1.0)

    def ask() -> None:
        for _ in range(1000):
            flying.waits(2.0, said, processors=1, runtime=600.0)

    ask()
    seconds = least(ask) / 1000
    aim = at_most("own jobs in flight, of 60", 1e6 * seconds, 1e6 * FLYING_AIM, "us")
    bench.figures("jobs of our own that sites cannot have counted", [aim])


def show_growth(bench: Benchmark, jobs: int) -> None:
    """Whether later jobs cost more."""
    first, last = _live(World(GRID), jobs)[1:]
    growth = Figure("last tenth of the jobs / first", last / first, "")
    bench.figures(f"growth, {jobs:,} jobs", [growth])


def _live(world: World, jobs: int) -> tuple[float, float, float]:
    """Processor seconds for each job: of all, of the first tenth, of the last."""
    rng = np.random.default_rng(4)
    broker = world.broker
    statuses = [world.status(i, rng) for i in range(GRID)]
    plain = BrokerJob(number=0, matching=Matching(), runtime=600.0)
    broker.choose(plain)
    marks = [time.process_time()]
    for number in range(jobs):
        world.now = number * 5.0
        at = number % GRID  # each site publishes once in 850 s, one after the other
        world.index.tell(replace(statuses[at], at=world.now))
        one = replace(plain, number=number)
        match = broker.choose(one)
        assert isinstance(match, SiteMatch)
        broker.sent(one, match.site)
        broker.arrived(number)
        if number >= 100:
            broker.began(number - 100)
            broker.ended(number - 100)
        if (number + 1) % (jobs // 10) == 0:
            marks.append(time.process_time())
    tenth = jobs // 10
    return (
        (marks[-1] - marks[0]) / jobs,
        (marks[1] - marks[0]) / tenth,
        (marks[10] - marks[9]) / tenth,
    )


def main() -> None:
    """Measure all tables."""
    bench = Benchmark(__file__, __doc__)
    show_matching(bench, *bench.of((MANY, KINDS), (MANY, KINDS), (200, 3)))
    show_choosing(bench, bench.of(10_000, 2_000, 20))
    show_growth(bench, bench.of(JOBS, JOBS // 10, 200))
    bench.write()


if __name__ == "__main__":
    main()
