"""
Adds up histograms and draws the sum.

usage: add.py FILE...
"""

import sys
from pathlib import Path

rows = [[int(count) for count in Path(path).read_text().split()] for path in sys.argv[1:]]
total = [sum(column) for column in zip(*rows, strict=True)]
for place, count in enumerate(total):
    print(f"{2.0 + place * 0.05:4.2f} {count:6d} {'#' * (50 * count // max(total))}")
