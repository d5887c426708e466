"""
Takes its plane away from one tile.

Use::

    python3 correct.py projected/1-2.npz planes.json corrected/1-2.npz
"""

import argparse
import json
from pathlib import Path

import numpy as np
from background import take_away
from image import read_image, write_image


def main() -> None:
    """Reads the command line and writes the corrected tile."""
    parser = argparse.ArgumentParser(description="Take its plane away from one tile")
    parser.add_argument("tile", type=Path)
    parser.add_argument("planes", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()

    plane = np.array(json.loads(given.planes.read_text())[given.tile.stem])
    write_image(take_away(read_image(given.tile), plane), given.out)


if __name__ == "__main__":
    main()
