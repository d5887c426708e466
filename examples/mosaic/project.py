"""
Reprojects a tile onto the mosaic's pixels, by bilinear interpolation.

Use::

    python3 project.py raw/1-2.npz projected/1-2.npz
"""

import argparse
from pathlib import Path

import numpy as np
from expose import Pointing
from image import HEIGHT, WIDTH, FloatArray, Image, write_image


def project(pixels: FloatArray, at: Pointing) -> Image:
    """
    The tile as the mosaic's pixels see it.

    Parameters
    ----------
    pixels
        Of the tile, shape ``(BANDS, height, width)``.
    at
        Where the tile looked.

    Returns
    -------
    Image
        The smallest rectangle of the mosaic that holds all of the tile; known
        where a pixel's centre lies among the centres of four of the tile's.
    """
    height, width = pixels.shape[1:]
    corners = np.array([[0, width - 1, 0, width - 1], [0, 0, height - 1, height - 1]])
    x, y = at.matrix @ corners + at.offset[:, None]
    left, right = (int(np.clip(edge, 0, WIDTH)) for edge in (np.ceil(x.min()), x.max() + 1))
    top, bottom = (int(np.clip(edge, 0, HEIGHT)) for edge in (np.ceil(y.min()), y.max() + 1))

    rows, columns = np.mgrid[top:bottom, left:right]
    inverse = np.linalg.inv(at.matrix)
    u, v = np.tensordot(inverse, np.stack([columns, rows]) - at.offset[:, None, None], axes=1)
    known = (u >= 0) & (u <= width - 1) & (v >= 0) & (v <= height - 1)
    seen = bilinear(pixels, u[known], v[known])
    projected = np.zeros((len(pixels), *known.shape), dtype=np.float32)
    projected[:, known] = seen
    return Image(projected, known, left, top)


def bilinear(pixels: FloatArray, u: FloatArray, v: FloatArray) -> FloatArray:
    """
    Values between pixels, from the four around.

    Parameters
    ----------
    pixels
        Shape ``(BANDS, height, width)``, at least 2 by 2.
    u, v
        Column and row, within the centres of the outermost pixels, shape ``(n,)``.

    Returns
    -------
    ndarray
        Shape ``(BANDS, n)``.
    """
    height, width = pixels.shape[1:]
    column = np.minimum(u.astype(int), width - 2)
    row = np.minimum(v.astype(int), height - 2)
    right, down = u - column, v - row
    upper = (1 - right) * pixels[:, row, column] + right * pixels[:, row, column + 1]
    lower = (1 - right) * pixels[:, row + 1, column] + right * pixels[:, row + 1, column + 1]
    return (1 - down) * upper + down * lower


def main() -> None:
    """Reads the command line and writes the projected tile."""
    parser = argparse.ArgumentParser(description="Reproject a tile onto the mosaic's pixels")
    parser.add_argument("tile", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()

    with np.load(given.tile) as file:
        pixels, at = file["pixels"], Pointing(file["matrix"], file["offset"])
    write_image(project(pixels, at), given.out)


if __name__ == "__main__":
    main()
