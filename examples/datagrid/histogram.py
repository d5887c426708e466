"""
Counts the pair masses of a file of events between 2 and 4 GeV.

usage: histogram.py FILE
"""

import sys

BINS, LOW, HIGH = 40, 2.0, 4.0

counts = [0] * BINS
with open(sys.argv[1]) as file:
    for line in file:
        place = int((float(line) - LOW) / (HIGH - LOW) * BINS)
        if 0 <= place < BINS:
            counts[place] += 1
print(*counts)
