"""
How many examples of a property are tried.

Each run draws other ones. The default run tries a third of them; continuous integration, which
runs all properties a second time, and the long tests try all::

    BURSAR_EXAMPLES=all make unit
"""

import os

ALL = "BURSAR_EXAMPLES"
"""Variable that is "all" where no example is to be left out."""

FEWEST = 15
"""Examples that are tried in any case, where there are as many."""


def examples(count: int) -> int:
    """Return how many of `count` examples this run tries."""
    return count if os.environ.get(ALL) == "all" else min(count, max(FEWEST, count // 3))
