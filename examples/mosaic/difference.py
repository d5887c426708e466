"""
Fits a plane to the difference of two overlapping tiles.

Use::

    python3 difference.py projected/1-2.npz projected/2-2.npz fits/1-2_2-2.json
"""

import argparse
import json
from pathlib import Path

from background import fit_difference
from image import read_image


def main() -> None:
    """Reads the command line and writes the fit."""
    parser = argparse.ArgumentParser(description="Fit a plane to the difference of two tiles")
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()

    fit = fit_difference(read_image(given.first), read_image(given.second))
    if fit is None:
        raise SystemExit(f"{given.first} and {given.second} do not overlap enough")
    found = {
        "first": given.first.stem,
        "second": given.second.stem,
        "plane": fit.plane.tolist(),
        "moments": fit.moments.tolist(),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found) + "\n")
    constant = ", ".join(f"{value:+.4f}" for value in fit.plane[0])
    print(f"{given.first.stem} less {given.second.stem}: {constant} (red, green, blue)")


if __name__ == "__main__":
    main()
