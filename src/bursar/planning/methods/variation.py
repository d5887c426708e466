"""Crossover, mutation and selection of bit strings, for the genetic algorithms."""

import numpy as np

from bursar.planning.kernels.availability import BoolArray, FloatArray, IntArray

CROSSOVER = 0.9
"""Probability that a pair is crossed; otherwise the offspring are copies."""


def random_subsets(rng: np.random.Generator, count: int, bits: int) -> BoolArray:
    """
    Different bit strings, every one as likely as any other, shape ``(count, bits)``.

    Fewer where there are not so many.
    """
    # There may be fewer different strings than asked for, and the loop below would never end.
    count = min(count, 2**bits) if bits < 20 else count
    seen: dict[bytes, BoolArray] = {}
    while len(seen) < count:
        for row in rng.random((count - len(seen), bits)) < 0.5:
            seen.setdefault(row.tobytes(), row)
    return np.array(list(seen.values()))


def unique(rows: BoolArray) -> BoolArray:
    """Return the rows without repetitions, in the order of first appearance."""
    _, first = np.unique(np.packbits(rows, axis=1), axis=0, return_index=True)
    return rows[np.sort(first)]


def crossed(
    rng: np.random.Generator, first: BoolArray, second: BoolArray, points: int
) -> tuple[BoolArray, BoolArray]:
    """
    Two offspring of each pair, which take turns at the same random cuts.

    Parameters
    ----------
    first, second
        Parents, shape ``(n, bits)``.
    points
        Cuts, at different places between bits; as many as there are places at most.
    """
    n, bits = first.shape
    cuts = np.argsort(rng.random((n, bits - 1)), axis=1)[:, :points] + 1
    marks = np.zeros((n, bits), dtype=np.int64)
    np.put_along_axis(marks, cuts, 1, axis=1)
    swap = np.cumsum(marks, axis=1) % 2 == 1
    return np.where(swap, second, first), np.where(swap, first, second)


def bred(rng: np.random.Generator, parents: BoolArray, points: int, count: int) -> BoolArray:
    """
    The next generation: two offspring of each pair, crossed mostly, each bit mutated at 1/bits.

    Parameters
    ----------
    parents
        Shape ``(2 n, bits)``; the first half is paired with the second.
    points
        Number of cuts of the crossover.
    count
        How many offspring to keep.
    """
    half, bits = len(parents) // 2, parents.shape[1]
    pair = parents[:half], parents[half:]
    if bits > 1:
        offspring = crossed(rng, *pair, min(points, bits - 1))
        cross = rng.random(half)[:, None] < CROSSOVER
        pair = np.where(cross, offspring[0], pair[0]), np.where(cross, offspring[1], pair[1])
    return mutated(rng, np.concatenate(pair)[:count], 1 / bits)


def mutated(rng: np.random.Generator, rows: BoolArray, rate: float) -> BoolArray:
    """Return the rows with each bit flipped with a probability."""
    return rows ^ (rng.random(rows.shape) < rate)


def sampled(rng: np.random.Generator, fitness: FloatArray, count: int) -> IntArray:
    """
    Indices drawn by stochastic universal sampling, in random order, shape ``(count,)``.

    Each is drawn its share of the fitness times ``count``, rounded up or down.
    """
    edges = np.cumsum(fitness / fitness.sum()) * count
    drawn = np.searchsorted(edges, np.arange(count) + rng.random(), side="right")
    return rng.permutation(np.minimum(drawn, len(fitness) - 1))


def domination(objectives: FloatArray) -> BoolArray:
    """
    Whether row i beats row j, shape ``(n, n)``; objectives are to be small.

    What is infinite in both objectives is beaten by all that is finite.
    """
    no_worse = (objectives[:, None, :] <= objectives[None, :, :]).all(axis=2)
    better = (objectives[:, None, :] < objectives[None, :, :]).any(axis=2)
    return np.asarray(no_worse & better)
