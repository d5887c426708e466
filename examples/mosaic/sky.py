"""
A made-up piece of sky: a nebula, a spiral galaxy and stars.

It is a function of position, so a camera may look at it from any angle.
"""

import numpy as np
from image import BANDS, HEIGHT, WIDTH, FloatArray

SEED = 2026
STARS = 700
BLUR = 1.6
"""Width (standard deviation) of a star, pixels."""
REACH = 8
"""Pixels from a star's centre where its light ends."""


def stars() -> FloatArray:
    """
    The stars.

    Their brightness has a power law (few bright ones, many faint), their
    colours run from red to blue.

    Returns
    -------
    ndarray
        Position and peak brightness ``x, y, red, green, blue``, shape ``(STARS, 5)``.
    """
    random = np.random.default_rng(SEED)
    x = random.uniform(-60, WIDTH + 60, STARS)
    y = random.uniform(-60, HEIGHT + 60, STARS)
    peak = 0.06 * np.minimum((1.0 - random.random(STARS)) ** -0.9, 60.0)
    blueness = random.uniform(-0.35, 0.35, STARS)
    colour = np.stack([1.0 - blueness, np.ones(STARS), 1.0 + blueness])
    return np.stack([x, y, *(peak * colour)], axis=1).astype(np.float32)


def sky(x: FloatArray, y: FloatArray) -> FloatArray:
    """
    Brightness of the sky.

    Parameters
    ----------
    x, y
        Positions, shape ``(height, width)``.

    Returns
    -------
    ndarray
        Shape ``(BANDS, height, width)``.
    """
    brightness = nebula(x, y) + galaxy(x, y)
    for star_x, star_y, *peak in stars():
        rows, columns = _near(x, y, star_x, star_y)
        if rows.stop > rows.start and columns.stop > columns.start:
            dx, dy = x[rows, columns] - star_x, y[rows, columns] - star_y
            light = np.exp(-(dx**2 + dy**2) / (2 * BLUR**2))
            brightness[:, rows, columns] += np.reshape(peak, (BANDS, 1, 1)) * light
    return brightness.astype(np.float32)


def nebula(x: FloatArray, y: FloatArray) -> FloatArray:
    """Clouds: sums of waves, each finer and fainter than the last, one set for each colour."""
    random = np.random.default_rng(SEED + 1)
    shared, *own = (np.zeros_like(x, dtype=np.float64) for _ in range(BANDS + 1))
    for layer in [shared, *own]:
        for octave in range(5):
            for _ in range(3):
                angle, phase = random.uniform(0, 2 * np.pi, 2)
                turn = 2 * np.pi * 2**octave / 700
                along = x * np.cos(angle) + y * np.sin(angle)
                layer += 0.6**octave * np.sin(turn * along + phase)
    tints = (0.11, 0.05, 0.09)
    return np.stack(
        [tint * np.exp(0.55 * shared + 0.35 * o) / 2 for tint, o in zip(tints, own, strict=True)]
    )


def galaxy(x: FloatArray, y: FloatArray) -> FloatArray:
    """A spiral with two arms, seen at a slant; its bulge is redder than its arms."""
    dx, dy = x - 0.36 * WIDTH, y - 0.45 * HEIGHT
    angle, slant = 0.6, 0.55
    u = dx * np.cos(angle) + dy * np.sin(angle)
    v = (dy * np.cos(angle) - dx * np.sin(angle)) / slant
    radius = np.hypot(u, v) + 1e-3
    winding = 2.0 * (np.arctan2(v, u) - 2.6 * np.log(radius / 20))
    arms = (0.5 + 0.5 * np.cos(winding)) ** 2 * np.exp(-radius / 65)
    bulge = np.exp(-radius / 16)
    return np.stack([0.55 * arms + 1.5 * bulge, 0.6 * arms + 1.1 * bulge, 0.9 * arms + 0.7 * bulge])


def _near(x: FloatArray, y: FloatArray, star_x: float, star_y: float) -> tuple[slice, slice]:
    """Rows and columns where the star may be seen; the positions form a grid, at any angle."""
    height, width = x.shape
    # Position is affine in (column, row): its three corners give the inverse.
    origin = np.array([x[0, 0], y[0, 0]])
    across = np.array([x[0, -1], y[0, -1]]) - origin
    down = np.array([x[-1, 0], y[-1, 0]]) - origin
    grid = np.stack([across / (width - 1), down / (height - 1)], axis=1)
    column, row = np.linalg.solve(grid, np.array([star_x, star_y]) - origin)
    # A tile's pixels may be a little finer than the mosaic's.
    reach = 1.5 * REACH
    top, bottom = (int(np.clip(row + d, 0, height)) for d in (-reach, reach + 1))
    left, right = (int(np.clip(column + d, 0, width)) for d in (-reach, reach + 1))
    return slice(top, bottom), slice(left, right)
