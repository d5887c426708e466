"""Estimates pi by points thrown at a square: draw.py SEED."""

import random
import sys
import time

COUNT = 200_000

random.seed(int(sys.argv[1]))
inside = sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(COUNT))
time.sleep(4)  # as if it were more, where the sites share one small machine
print(4 * inside / COUNT)
