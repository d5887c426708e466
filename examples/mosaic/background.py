"""
Planes that make the tiles' backgrounds match.

Where two tiles overlap they see the same sky, so whatever differs is
background. A plane is fitted to each difference; then one plane for each tile
is found such that all differences vanish as well as they can together, in the
least-squares sense over the overlaps' pixels. Only differences can be seen:
a plane common to all tiles stays, and the corrections sum to none.

References
----------
.. [1] Berriman et al. (2008), Montage: the same three steps (mDiff and
   mFitplane, mBgModel, mBackground).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from image import HEIGHT, WIDTH, Image
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

CLIP = 3.0
"""Standard deviations beyond which a difference is a badly sampled star, not background."""
ROUNDS = 4
"""Of fitting and clipping."""
FEWEST = 100
"""Pixels that an overlap must have to say anything about a plane."""


def basis(x: ArrayLike, y: ArrayLike) -> Floats:
    """
    What a plane is made of: 1, and the position scaled to between -1 and 1.

    Returns
    -------
    ndarray
        Shape ``(3, *shape of x)``.
    """
    x, y = np.asarray(x, float), np.asarray(y, float)
    return np.stack([np.ones_like(x), 2 * x / WIDTH - 1, 2 * y / HEIGHT - 1])


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """
    The plane between two tiles.

    Parameters
    ----------
    plane
        First less second tile, shape ``(3, BANDS)``.
    moments
        Sum over the overlap's pixels of the basis' outer product, shape
        ``(3, 3)``: what an error of the plane costs.
    """

    plane: Floats
    moments: Floats


def fit_difference(first: Image, second: Image) -> Fit | None:
    """
    Fits a plane to the difference of two tiles where they overlap.

    Returns
    -------
    Fit or None
        None when they overlap in fewer than ``FEWEST`` pixels.
    """
    left, right = max(first.left, second.left), min(first.right, second.right)
    top, bottom = max(first.top, second.top), min(first.bottom, second.bottom)
    if left >= right or top >= bottom:
        return None
    box = left, top, right, bottom
    one, other = first.cut(*box), second.cut(*box)
    both = one.known & other.known
    if both.sum() < FEWEST:
        return None
    rows, columns = np.nonzero(both)
    terms = basis(columns + left, rows + top)
    difference = (one.pixels - other.pixels)[:, both].astype(float)

    kept = np.ones(len(rows), dtype=bool)
    for _ in range(ROUNDS):
        plane, *_ = np.linalg.lstsq(terms[:, kept].T, difference[:, kept].T, rcond=None)
        rest = difference - plane.T @ terms
        spread = rest[:, kept].std(axis=1, keepdims=True)
        kept = (np.abs(rest) <= CLIP * spread).all(axis=0)
    return Fit(plane, terms[:, kept] @ terms[:, kept].T)


def match(fits: Mapping[tuple[str, str], Fit]) -> dict[str, Floats]:
    """
    One plane for each tile, to be taken away from it.

    Minimises the sum over overlaps of ``e.T @ moments @ e`` with
    ``e = plane[first] - plane[second] - fit``. Of all minima it is the one of
    least norm, whose planes sum to none where the overlaps connect all tiles.

    Returns
    -------
    dict
        Tile to plane, shape ``(3, BANDS)``.
    """
    tiles = sorted({tile for pair in fits for tile in pair})
    place = {tile: slice(3 * i, 3 * i + 3) for i, tile in enumerate(tiles)}
    bands = next(iter(fits.values())).plane.shape[1]
    normal = np.zeros((3 * len(tiles), 3 * len(tiles)))
    wanted = np.zeros((3 * len(tiles), bands))
    for (first, second), fit in fits.items():
        one, other = place[first], place[second]
        normal[one, one] += fit.moments
        normal[other, other] += fit.moments
        normal[one, other] -= fit.moments
        normal[other, one] -= fit.moments
        wanted[one] += fit.moments @ fit.plane
        wanted[other] -= fit.moments @ fit.plane
    solution = np.linalg.pinv(normal, rcond=1e-9, hermitian=True) @ wanted
    return {tile: solution[place[tile]] for tile in tiles}


def take_away(image: Image, plane: Floats) -> Image:
    """The tile without its plane."""
    rows, columns = np.mgrid[image.top : image.bottom, image.left : image.right]
    light = np.tensordot(plane.T, basis(columns, rows), axes=1)
    pixels = np.where(image.known, image.pixels - light, 0.0).astype(np.float32)
    return Image(pixels, image.known, image.left, image.top)
