"""The example that buys the rest of a campaign of a cloud."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "burst" / "burst.py"


@pytest.mark.ci
@pytest.mark.timeout(400)
def test_the_burst_says_beforehand_what_it_buys_and_leaves_nothing() -> None:
    """Price and odds stand before the run; all tasks succeed, and no machine is left."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=380
    )

    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    assert told.index("as spot") < told.index("$ bursar run")
    assert "1 c5.xlarge on demand" in told
    assert re.search(r"at most 0\.15; odds of an interruption: 0\.\d%", told)
    assert "48 of 48 succeeded" in told
    assert "no machine of yours is there" in told
    found = re.search(r"machines that were bought: (\d+), left: 0", told)
    assert found is not None
    assert int(found[1]) >= 2
