"""
Adds the tiles up into one picture.

Use::

    python3 coadd.py corrected/*.npz --out mosaic.png
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from background import basis, take_away
from image import BANDS, HEIGHT, WIDTH, FloatArray, Image, read_image
from png import write_png

SOFTENING = 0.12
"""Brightness from which on the picture shows logarithms, so that faint and bright fit in."""

SPARSE = 37
"""One pixel of so many is enough to find a plane."""


def coadd(tiles: Iterable[Image]) -> Image:
    """Mean of the tiles in each pixel that at least one of them knows."""
    total = np.zeros((BANDS, HEIGHT, WIDTH), dtype=np.float32)
    count = np.zeros((HEIGHT, WIDTH), dtype=np.int32)
    for tile in tiles:
        rows, columns = slice(tile.top, tile.bottom), slice(tile.left, tile.right)
        total[:, rows, columns] += tile.pixels
        count[rows, columns] += tile.known
    return Image(total / np.maximum(count, 1), count > 0)


def level(image: Image) -> Image:
    """
    Takes away the plane under the darker pixels.

    Stray light common to all tiles is in no difference; this is where it goes.
    """
    rows, columns = np.nonzero(image.known)
    rows, columns = rows[::SPARSE], columns[::SPARSE]
    terms = basis(columns, rows)
    brightness = image.pixels[:, rows, columns]
    plane = np.zeros((len(terms), BANDS))
    for band in range(BANDS):
        dark = np.ones(len(rows), dtype=bool)
        for _ in range(8):
            plane[:, band], *_ = np.linalg.lstsq(
                terms[:, dark].T, brightness[band, dark], rcond=None
            )
            rest = brightness[band] - plane[:, band] @ terms
            dark = rest <= np.median(rest)
    return take_away(image, plane)


def stretch(image: Image) -> FloatArray:
    """
    Brightness as the eye likes it, 0 to 1; colours keep their ratios.

    References
    ----------
    .. [1] Lupton et al. (2004). PASP 116: 133-137.
    """
    black = np.percentile(image.pixels[:, image.known], 1, axis=1)
    light = np.maximum(image.pixels - black[:, None, None], 0.0)
    mean = light.mean(axis=0)
    white = np.percentile(mean[image.known], 99.7)
    gain = np.arcsinh(mean / SOFTENING) / np.arcsinh(white / SOFTENING) / np.maximum(mean, 1e-9)
    colours = light * gain
    # Where a colour runs over, the three are dimmed together: a star keeps its hue.
    colours /= np.maximum(colours.max(axis=0), 1.0)
    return np.where(image.known, colours, 0.0).astype(np.float32)


def main() -> None:
    """Reads the command line and writes the picture."""
    parser = argparse.ArgumentParser(description="Add tiles up into one picture")
    parser.add_argument("tiles", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()

    mosaic = coadd(map(read_image, given.tiles))
    write_png(stretch(level(mosaic)), given.out)
    print(f"{len(given.tiles)} tiles added up, {mosaic.known.mean():.1%} of the picture known")


if __name__ == "__main__":
    main()
