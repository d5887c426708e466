"""
Takes one tile: a camera looks at a part of the sky.

Like a real one it is turned a little, its pixels have not quite the mosaic's
size, its detector is noisy, and stray light lays a plane of its own over
every colour: the reason why the tiles do not match.

Use::

    python3 expose.py --column 1 --row 2 --out raw/1-2.npz
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from image import BANDS, HEIGHT, WIDTH, FloatArray
from numpy.typing import NDArray
from sky import SEED, sky

COLUMNS, ROWS = 4, 3
"""Tiles of the survey."""
SIZE = 312
"""Width and height of a tile, pixels of its own."""
NOISE = 0.01
"""Standard deviation in a pixel."""
STRAY = 0.12
"""Standard deviation of the stray light's constant and slopes."""


@dataclass(frozen=True, slots=True, eq=False)
class Pointing:
    """
    Where a tile looks: pixel ``(u, v)`` sees ``matrix @ (u, v) + offset``.

    Parameters
    ----------
    matrix
        Shape ``(2, 2)``.
    offset
        Position of the tile's first pixel, shape ``(2,)``.
    """

    matrix: NDArray[np.float64]
    offset: NDArray[np.float64]


def pointing(column: int, row: int) -> Pointing:
    """Where a tile of the survey looks: near its place in a grid, not quite straight."""
    random = np.random.default_rng([SEED, 2, column, row])
    angle = np.radians(random.uniform(-4, 4))
    scale = random.uniform(0.97, 1.03)
    turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    place = np.array([(column + 0.5) * WIDTH / COLUMNS, (row + 0.5) * HEIGHT / ROWS])
    centre = place + random.uniform(-6, 6, 2)
    return Pointing(turn, centre - turn @ np.full(2, (SIZE - 1) / 2))


def stray_light(column: int, row: int) -> NDArray[np.float64]:
    """
    Coefficients of the plane over a tile, as :func:`background.basis` has them.

    Returns
    -------
    ndarray
        Constant, slope in x, slope in y; shape ``(3, BANDS)``.
    """
    random = np.random.default_rng([SEED, 3, column, row])
    return random.normal(0.0, STRAY, (3, BANDS)) + np.array([[0.3], [0.0], [0.0]])


def expose(column: int, row: int) -> tuple[FloatArray, Pointing]:
    """
    One tile.

    Returns
    -------
    tuple
        Its pixels, shape ``(BANDS, SIZE, SIZE)``, and where it looked.
    """
    from background import basis

    at = pointing(column, row)
    v, u = np.mgrid[:SIZE, :SIZE]
    x, y = np.tensordot(at.matrix, np.stack([u, v]), axes=1) + at.offset[:, None, None]
    stray = np.tensordot(stray_light(column, row).T, basis(x, y), axes=1)
    noise = np.random.default_rng([SEED, 4, column, row]).normal(0.0, NOISE, (BANDS, SIZE, SIZE))
    return (sky(x, y) + stray + noise).astype(np.float32), at


def main() -> None:
    """Reads the command line and writes one tile."""
    parser = argparse.ArgumentParser(description="Take one tile of the survey")
    parser.add_argument("--column", type=int, required=True)
    parser.add_argument("--row", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()

    pixels, at = expose(given.column, given.row)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez(given.out, pixels=pixels, matrix=at.matrix, offset=at.offset)


if __name__ == "__main__":
    main()
