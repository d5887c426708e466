"""
Python functions on leased processors: pi from random points.

Use::

    python examples/executor.py
"""

import math

import bursar

POINTS = 200_000
"""In one call."""


def inside(seed: int) -> int:
    """How many of ``POINTS`` random points of the unit square lie in the quarter circle."""
    import numpy as np

    x, y = np.random.default_rng(seed).random((2, POINTS))
    return int((x * x + y * y < 1).sum())


def main() -> None:
    """Spreads 200 calls over this machine, for a hundredth of a processor-hour at most."""
    calls = 200
    with bursar.Executor(budget="0.01 SU") as executor:
        found = sum(executor.map(inside, range(calls), chunksize=10))
    share = found / (calls * POINTS)
    error = 4 * math.sqrt(share * (1 - share) / (calls * POINTS))
    print(f"pi = {4 * share:.5f} +- {error:.5f}, from {calls * POINTS:,} points")


if __name__ == "__main__":
    main()
