"""
Images in the plane of the mosaic, and the files they travel in.

Positions are ``x`` to the right and ``y`` downwards, in pixels of the mosaic;
the centre of its first pixel is ``(0, 0)``.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
"""Brightness."""
Mask = NDArray[np.bool_]
"""Which pixels are known."""

WIDTH, HEIGHT = 960, 720
"""Of the mosaic, pixels."""
BANDS = 3
"""Colours: red, green, blue."""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """
    A rectangle of the mosaic's pixels, some of them unknown.

    Parameters
    ----------
    pixels
        Brightness, shape ``(BANDS, height, width)``; 0 where unknown.
    known
        Which pixels are known, shape ``(height, width)``.
    left, top
        Position of the first pixel.
    """

    pixels: FloatArray
    known: Mask
    left: int = 0
    top: int = 0

    @property
    def right(self) -> int:
        """First column beyond it."""
        return self.left + self.known.shape[1]

    @property
    def bottom(self) -> int:
        """First row beyond it."""
        return self.top + self.known.shape[0]

    def cut(self, left: int, top: int, right: int, bottom: int) -> "Image":
        """The part of it in a rectangle, which must lie within."""
        rows = slice(top - self.top, bottom - self.top)
        columns = slice(left - self.left, right - self.left)
        return Image(self.pixels[:, rows, columns], self.known[rows, columns], left, top)


def write_image(image: Image, path: Path) -> None:
    """Writes a NumPy archive, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = np.array([image.left, image.top])
    np.savez(path, pixels=image.pixels, known=image.known, place=place)


def read_image(path: Path) -> Image:
    """Reads what :func:`write_image` wrote."""
    with np.load(path) as file:
        left, top = file["place"].tolist()
        return Image(file["pixels"], file["known"], left, top)
