"""
Writes events as a detector would: muon pairs with a resonance at 3.1 GeV on a falling background.

usage: events.py FILE SEED EVENTS
"""

import random
import sys

path, seed, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
draw = random.Random(seed)
with open(path, "w") as file:
    for _ in range(count):
        signal = draw.random() < 0.1
        mass = draw.gauss(3.097, 0.03) if signal else 2.0 + draw.expovariate(1.0)
        file.write(f"{mass:.4f}\n")
