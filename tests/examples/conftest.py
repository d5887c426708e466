"""The examples are programs, not a package: their folders go on the path."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

for folder in ("epidemic", "mosaic"):
    sys.path.insert(0, str(EXAMPLES / folder))
