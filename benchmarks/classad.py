"""
What matching costs: one expression against many sites, and many kinds of job.

The peer is HTCondor's own library (``classad2``, Linux only), in the same process and in
turns with ours, so that whatever else the machine does meets both alike; the ratio is the
figure to trust, the times are this machine's. The peer is asked as its users ask it: the
requirement or the rank evaluated for a job and a site. Both must say the same.

    python benchmarks/classad.py [--quick] [--json FILE]
"""

import importlib.util
import math
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

from figures import Benchmark, Figure, at_most

from bursar.classad import Ad, Expression, Table, compiled, parse, parse_ad

SITES = 10_000
KINDS = 100

REQUIREMENTS = (
    'other.GlueCEStateStatus == "Production" && other.FreeCPUs >= need '
    '&& other.OpSys == "Linux" && member("EXP-3", other.Software)'
)
Kind = tuple[Expression, Expression, Ad]
"""Of a job: requirements, rank, its own attributes."""

RANK = "-other.EstimatedTraversalTime + 10 * other.FreeCPUs"


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, for one go: others may be busy on the machine."""
    began = time.process_time()
    work()
    return time.process_time() - began


def made_sites(count: int) -> list[Ad]:
    """Sites as a grid of the time published them; a tenth says less than the others."""
    rng = random.Random(7)
    software = [[f"EXP-{rng.randrange(30)}" for _ in range(8)] for _ in range(200)]
    sites = []
    for number in range(count):
        site: dict[str, object] = {
            "Name": f"ce{number:05d}.example.org",
            "GlueCEStateStatus": rng.choice(["Production", "Production", "Closed"]),
            "FreeCPUs": rng.randrange(100),
            "OpSys": rng.choice(["LINUX", "Linux", "SOLARIS"]),
            "Software": rng.choice(software),
            "Memory": rng.randrange(1, 64) * 2**30,
        }
        if rng.random() < 0.9:
            site["EstimatedTraversalTime"] = rng.expovariate(1 / 600)
        sites.append(Ad(site))
    return sites


def kinds_of_job(count: int) -> list[Kind]:
    """Jobs whose requirements, ranks and own attributes all differ."""
    kinds = []
    for number in range(count):
        clauses = [
            'other.GlueCEStateStatus == "Production"',
            "other.FreeCPUs >= need",
            f"other.Memory > {number % 32} * 1073741824",
            f'member("EXP-{number % 30}", other.Software)',
            f'regexp("{number % 10}\\\\.", other.Name)',
        ]
        requirements = " && ".join(clauses[:3] + clauses[3 + number % 2 : 4 + number % 2])
        rank = f"-other.EstimatedTraversalTime + {number} * other.FreeCPUs"
        kinds.append((parse(requirements), parse(rank), parse_ad(f"need = {number % 16}")))
    return kinds


def ours(
    sites: list[Ad], kinds: list[tuple[Expression, Expression, Ad]], turns: int
) -> list[Figure]:
    """The compiled function and the table."""
    requirements, rank, my = parse(REQUIREMENTS), parse(RANK), parse_ad("need = 4")
    run = compiled(requirements, my)
    table = Table(sites)
    first = seconds(lambda: table.holds(requirements, my))
    loop = min(seconds(lambda: [run(site) for site in sites]) for _ in range(turns))
    columns = [seconds(lambda: table.holds(requirements, my)) for _ in range(turns)]
    ranks = [seconds(lambda: table.values(rank, my)) for _ in range(turns)]

    def all_kinds() -> None:
        for wanted, order, own in kinds:
            table.holds(wanted, own)
            table.values(order, own)

    text = [f"{REQUIREMENTS} && {n} < {n + 1}" for n in range(200)]
    scale = SITES / len(sites)
    return [
        Figure("parsing one requirement", seconds(lambda: [parse(t) for t in text]) * 5, "ms"),
        Figure("compiled, each site", loop / len(sites) * 1e6, "us"),
        at_most("compiled, one requirement x 10,000 sites", loop * scale * 1e3, 10, "ms"),
        Figure("table, the same for the first time", first * scale * 1e3, "ms"),
        at_most("table, the same", min(columns) * scale * 1e3, 10, "ms"),
        at_most("table, one rank x 10,000 sites", min(ranks) * scale * 1e3, 10, "ms"),
        at_most(
            "table, 100 kinds x 10,000 sites, requirements and rank",
            seconds(all_kinds) * scale * KINDS / len(kinds), 1, "s",
        ),
        Figure(
            "the same again",
            seconds(all_kinds) * scale * KINDS / len(kinds), "s",
        ),
    ]  # fmt: skip


def beside_htcondor(sites: list[Ad], turns: int) -> list[Figure]:
    """The same requirement and rank by HTCondor's library, in turns; the answers compared."""
    try:
        import classad2  # type: ignore[import-not-found]
    except ImportError:
        return []
    theirs = [classad2.ClassAd(str(site)) for site in sites]
    figures = []
    for name, text in (("requirement", REQUIREMENTS), ("rank", RANK)):
        figures += in_turns(name, text, classad2, theirs, sites, turns)
    return figures


def in_turns(
    name: str, text: str, classad2: Any, theirs: list[Any], sites: list[Ad], turns: int
) -> list[Figure]:
    """One expression: theirs, our function, our table, and again."""
    job, my = classad2.ClassAd("[ need = 4 ]"), parse_ad("need = 4")
    tree, expression = classad2.ExprTree(text), parse(text)
    run = compiled(expression, my)
    table = Table(sites)
    table.values(expression, my)
    peers, by_call, by_column = [], [], []
    for _ in range(turns):
        peers.append(seconds(lambda: [tree.eval(job, site) for site in theirs]))
        by_call.append(peers[-1] / seconds(lambda: [run(site) for site in sites]))
        by_column.append(peers[-1] / seconds(lambda: table.values(expression, my)))
    check([tree.eval(job, site) for site in theirs], [run(site) for site in sites], classad2)
    return [
        Figure(f"HTCondor, one {name}, each site", min(peers) / len(sites) * 1e6, "us"),
        Figure(f"HTCondor / compiled, one {name}", statistics.median(by_call), "x"),
        Figure(f"HTCondor / table, one {name}", statistics.median(by_column), "x"),
    ]


def check(theirs: list[Any], mine: list[Any], classad2: Any) -> None:
    """Both must have said the same."""
    for one, other in zip(theirs, mine, strict=True):
        if isinstance(one, classad2.Value):
            one = repr(one.name).strip("'").upper()
            other = repr(other)
        same = math.isclose(one, other) if isinstance(one, float) else one == other
        assert same, (one, other)


def main() -> None:
    """Measure, print, and write what was found."""
    bench = Benchmark(__file__, __doc__)
    sites = made_sites(bench.of(SITES, SITES // 10, 20))
    kinds = kinds_of_job(bench.of(KINDS, KINDS // 10, 3))
    turns = bench.of(9, 3, 1)
    title = f"{len(sites):,} sites, {len(kinds)} kinds of job"
    bench.figures(title, ours(sites, kinds, turns))
    if importlib.util.find_spec("classad2") is None:
        bench.skip("HTCondor's library is not installed (pip install htcondor)")
    else:
        bench.figures(f"{title}, beside HTCondor's library", beside_htcondor(sites, min(turns, 3)))
    bench.write()


if __name__ == "__main__":
    main()
