"""The mosaic example puts the sky together again, without seams."""

import struct
import zlib
from functools import cache
from itertools import combinations
from pathlib import Path

import background
import coadd
import expose
import numpy as np
import pytest
from background import Fit, basis, fit_difference, match, take_away
from image import BANDS, HEIGHT, WIDTH, Image, read_image, write_image
from png import write_png
from project import bilinear, project
from sky import sky

Tiles = dict[str, Image]


@cache
def projected() -> Tiles:
    """All tiles of the survey on the mosaic's pixels."""
    return {
        f"{column}-{row}": project(*expose.expose(column, row))
        for column in range(expose.COLUMNS)
        for row in range(expose.ROWS)
    }


@cache
def fits() -> dict[tuple[str, str], Fit]:
    """The plane between every two tiles that overlap."""
    found = {
        (first, second): fit_difference(projected()[first], projected()[second])
        for first, second in combinations(projected(), 2)
    }
    return {pair: fit for pair, fit in found.items() if fit is not None}


@cache
def corrected() -> Tiles:
    """The tiles without their planes."""
    planes = match(fits())
    return {name: take_away(tile, planes[name]) for name, tile in projected().items()}


def seams(tiles: Tiles) -> float:
    """
    Size of the steps in the mosaic along the tiles' left edges, root mean square.

    For stretches of 40 rows: mean of three pixels inside the edge less three
    outside, in the mosaic less the sky.
    """
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    rest = coadd.coadd(tiles.values()).pixels - sky(x, y)
    found = []
    for tile in tiles.values():
        rows = np.arange(tile.top + 30, tile.bottom - 30)
        edge = tile.left + tile.known[30:-30].argmax(axis=1)
        if edge.min() < 5:
            continue  # the border of the mosaic
        inside, outside = (
            np.mean([rest[:, rows, edge + d] for d in offsets], axis=0)
            for offsets in ((0, 1, 2), (-3, -2, -1))
        )
        step = inside - outside
        whole = step.shape[1] // 40 * 40
        found.append(step[:, :whole].reshape(BANDS, -1, 40).mean(axis=2).ravel())
    return float(np.sqrt(np.mean(np.concatenate(found) ** 2)))


def test_bilinear_interpolation_is_exact_for_a_plane() -> None:
    """Between pixels and on the border a linear image is reproduced."""
    v, u = np.mgrid[:20, :30]
    pixels = np.stack([2.0 * u - 3.0 * v, u + v, 0 * u]).astype(np.float32)
    random = np.random.default_rng(1)
    at_u = np.append(random.uniform(0, 29, 500), [0.0, 29.0, 29.0])
    at_v = np.append(random.uniform(0, 19, 500), [0.0, 19.0, 0.0])

    np.testing.assert_allclose(bilinear(pixels, at_u, at_v)[0], 2 * at_u - 3 * at_v, atol=1e-4)
    np.testing.assert_allclose(bilinear(pixels, at_u, at_v)[1], at_u + at_v, atol=1e-4)


@pytest.mark.ci
def test_a_projected_tile_shows_the_sky_where_it_is() -> None:
    """
    Less its stray light, a tile differs from the sky by noise and little blur.

    A shift of half a pixel would move a star's flank by 20 % of its peak, so
    the 99th percentile would be far above five times the noise.
    """
    tile = projected()["1-1"]
    light = expose.stray_light(1, 1)
    rows, columns = np.nonzero(tile.known)
    x, y = columns + tile.left, rows + tile.top
    truth = sky(*np.meshgrid(np.arange(tile.left, tile.right), np.arange(tile.top, tile.bottom)))
    rest = tile.pixels[:, rows, columns] - truth[:, rows, columns] - light.T @ basis(x, y)

    assert np.abs(rest.mean()) < 0.001
    assert np.percentile(np.abs(rest), 99) < 5 * expose.NOISE


def test_the_tiles_cover_the_mosaic() -> None:
    """Every pixel is known to some tile, and each file holds what was written."""
    assert coadd.coadd(projected().values()).known.all()


def test_the_planes_between_tiles_are_found() -> None:
    """
    A fitted difference is the difference of the true stray lights.

    In the overlap's own pixels: their root mean square error is that of a mean
    over hundreds of noisy pixels, below a tenth of the noise in one pixel.
    """
    for (first, second), fit in fits().items():
        true = expose.stray_light(*map(int, first.split("-"))) - expose.stray_light(
            *map(int, second.split("-"))
        )
        error = fit.plane - true
        pixels = fit.moments[0, 0]
        rms = np.sqrt(np.einsum("ib,ij,jb->b", error, fit.moments, error) / pixels)
        assert rms.max() < 0.1 * expose.NOISE, (first, second)


def test_matching_recovers_planes_up_to_a_common_one() -> None:
    """
    From exact differences the least-squares planes are the true ones less their mean.

    Three tiles in a chain, so nothing is over-determined: a known answer.
    """
    random = np.random.default_rng(5)
    true = {name: random.normal(size=(3, BANDS)) for name in "abc"}
    points = basis(random.uniform(0, WIDTH, 400), random.uniform(0, HEIGHT, 400))
    moments = points @ points.T
    chain = {(i, j): Fit(true[i] - true[j], moments) for i, j in ("ab", "bc")}

    planes = match(chain)

    mean = sum(true.values()) / 3
    for name in "abc":
        np.testing.assert_allclose(planes[name], true[name] - mean, atol=1e-8)
    np.testing.assert_allclose(sum(planes.values()), 0, atol=1e-8)


def test_an_inconsistent_loop_is_shared_out() -> None:
    """
    Three equal overlaps that contradict each other by 0.3 keep 0.1 each.

    a - b = 0.3, b - c = 0, c - a = 0: least squares spreads the contradiction.
    """
    moments = np.eye(3)
    plane = np.zeros((3, BANDS))
    step = plane.copy()
    step[0] = 0.3
    loop = {("a", "b"): Fit(step, moments), ("b", "c"): Fit(plane, moments)}
    planes = match({**loop, ("c", "a"): Fit(plane, moments)})

    assert planes["a"][0] - planes["b"][0] == pytest.approx(np.full(BANDS, 0.2))
    assert planes["b"][0] - planes["c"][0] == pytest.approx(np.full(BANDS, -0.1))
    assert planes["c"][0] - planes["a"][0] == pytest.approx(np.full(BANDS, -0.1))


def test_backgrounds_match_in_every_overlap() -> None:
    """What is left between corrected tiles is a tenth of the noise in one pixel, at most."""
    tiles = corrected()
    for first, second in fits():
        left = fit_difference(tiles[first], tiles[second])
        assert left is not None
        pixels = left.moments[0, 0]
        rms = np.sqrt(np.einsum("ib,ij,jb->b", left.plane, left.moments, left.plane) / pixels)
        assert rms.max() < 0.1 * expose.NOISE, (first, second)


def test_the_mosaic_is_the_sky_but_for_one_plane() -> None:
    """
    Mosaic less sky, less one plane, has no structure from tile to tile.

    Its mean over blocks of 60 x 60 pixels: noise would leave 0.01 / 60, and
    uncorrected stray light leaves a hundred times more.
    """
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    terms = basis(x.ravel(), y.ravel())

    def blocks(tiles: Tiles) -> float:
        rest = (coadd.coadd(tiles.values()).pixels - sky(x, y)).reshape(BANDS, -1)
        plane, *_ = np.linalg.lstsq(terms[:, ::41].T, rest[:, ::41].T, rcond=None)
        rest -= (plane.T @ terms).astype(np.float32)
        means = rest.reshape(BANDS, HEIGHT // 60, 60, WIDTH // 60, 60).mean(axis=(2, 4))
        return float(means.std())

    assert blocks(corrected()) < 0.2 * expose.NOISE
    assert blocks(projected()) > 2 * expose.NOISE


@pytest.mark.ci
def test_seams_vanish() -> None:
    """
    Along the edges of tiles the unmatched mosaic has steps, the matched one none.

    Noise alone leaves 0.01 sqrt(2 / 120) = 0.0013, less where tiles overlap.
    """
    assert seams(projected()) > 0.02
    assert seams(corrected()) < 0.0026


def test_tiles_that_hardly_overlap_say_nothing() -> None:
    """Fewer than FEWEST common pixels give no fit, nor do none at all."""
    pixels = np.ones((BANDS, 30, 30), dtype=np.float32)
    known = np.ones((30, 30), dtype=bool)
    here = Image(pixels, known, 0, 0)

    assert fit_difference(here, Image(pixels, known, 30, 0)) is None
    assert fit_difference(here, Image(pixels, known, 27, 0)) is None
    assert 3 * 30 < background.FEWEST <= 4 * 30
    assert fit_difference(here, Image(pixels, known, 26, 0)) is not None


def test_an_image_survives_its_file(tmp_path: Path) -> None:
    """The next task reads what this one wrote."""
    image = corrected()["2-1"]
    write_image(image, tmp_path / "made" / "2-1.npz")
    again = read_image(tmp_path / "made" / "2-1.npz")

    assert (again.left, again.top) == (image.left, image.top)
    np.testing.assert_array_equal(again.pixels, image.pixels)
    np.testing.assert_array_equal(again.known, image.known)


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    """Decoded by the standard's rules it gives the colours that went in."""
    picture = np.random.default_rng(1).random((3, 5, 7)).astype(np.float32)
    write_png(picture, tmp_path / "a.png")

    data = (tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">II", chunks[b"IHDR"][:8]) == (7, 5)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(5, 22)
    assert (lines[:, 0] == 2).all()  # filter "up": a row is added to the one above
    levels = np.cumsum(lines[:, 1:], axis=0, dtype=np.uint8).reshape(5, 7, 3)
    np.testing.assert_array_equal(levels, np.rint(picture.transpose(1, 2, 0) * 255))


def test_the_picture_is_neither_black_nor_white() -> None:
    """Stretched, the median is dark sky and the brightest pixels are stars."""
    picture = coadd.stretch(coadd.level(coadd.coadd(corrected().values())))

    assert picture.min() >= 0
    assert picture.max() == pytest.approx(1.0)
    assert 0.02 < np.median(picture) < 0.4
    assert (picture.max(axis=0) > 0.99).mean() < 0.1
