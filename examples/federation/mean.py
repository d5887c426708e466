"""The mean of the estimates in files: mean.py FILE..."""

import statistics
import sys
from pathlib import Path

estimates = [float(Path(name).read_text()) for name in sys.argv[1:] if name.endswith(".txt")]
print(f"pi = {statistics.mean(estimates):.4f} +- {statistics.stdev(estimates):.4f}")
