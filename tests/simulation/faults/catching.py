"""
Measure after how many seeds the simulation of faults notices each deliberate break.

``python -m tests.simulation.faults.catching --starts 10`` prints the table of
docs/concepts/fault-simulation.md. Each start begins at another seed.
"""

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.simulation.faults.breaks import BREAKS, Break

from bursar_devtools.faults.seed_verdict import simulate

APART = 10_000
"""Seeds between two starts."""


def seeds_until_noticed(broken: Break, first: int, most: int) -> tuple[int, str] | None:
    """
    Count seeds from ``first`` on until one ends badly under a break.

    Returns
    -------
    tuple or None
        Number of seeds, and what the last one found wrong; None: none of ``most`` did.
    """
    with pytest.MonkeyPatch.context() as patch:
        broken.apply(patch)
        for count in range(most):
            seed = first + count
            if broken.concerns(seed) and (wrong := simulate(seed).wrong):
                return count + 1, wrong
    return None


def main(words: Sequence[str] | None = None) -> int:
    """
    Print a line for each break.

    Returns
    -------
    int
        0 when every start of every break was noticed, else 1.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=10, help="starts of each break (10)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="first seed (0)")
    parser.add_argument("--most", type=int, default=500, help="seeds of a start at most (500)")
    parser.add_argument("--only", default="", help="only breaks whose name contains this")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th break, from the I-th on")
    options = parser.parse_args(words)
    missed = 0
    part, parts = map(int, options.part.split("/"))
    for broken in BREAKS[part::parts]:
        if options.only not in broken.name:
            continue
        found = [
            seeds_until_noticed(broken, options.first + APART * start, options.most)
            for start in range(options.starts)
        ]
        counts = [options.most + 1 if one is None else one[0] for one in found]
        kinds = Counter(one[1] for one in found if one is not None)
        most = kinds.most_common(1)[0][0] if kinds else "nothing"
        missed += found.count(None)
        print(
            f"| {broken.name} | {statistics.median(counts):g} | {max(counts)} | {most} |",
            f"<!-- {counts} -->",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
