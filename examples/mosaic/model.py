"""
Finds the planes that make all tiles match, from the fits of all pairs.

Use::

    python3 model.py fits/*.json --out planes.json
"""

import argparse
import json
from pathlib import Path

import numpy as np
from background import Fit, match


def read_fit(path: Path) -> tuple[tuple[str, str], Fit]:
    """Which two tiles, and the plane between them."""
    found = json.loads(path.read_text())
    fit = Fit(np.array(found["plane"]), np.array(found["moments"]))
    return (found["first"], found["second"]), fit


def main() -> None:
    """Reads the command line and writes the planes."""
    parser = argparse.ArgumentParser(description="Find one plane for each tile")
    parser.add_argument("fits", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()

    planes = match(dict(map(read_fit, given.fits)))
    text = json.dumps({tile: plane.tolist() for tile, plane in planes.items()}, indent=1)
    given.out.write_text(text + "\n")
    print(f"{len(planes)} planes from {len(given.fits)} differences")


if __name__ == "__main__":
    main()
