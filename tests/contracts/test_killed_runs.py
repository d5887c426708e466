"""
Golden runs that are interrupted or killed in the middle, and resumed.

The first attempt of a task never ends by itself, so that what had ended, what ran and what had
not begun is the same each time. The run that is struck is a process; the one that resumes it is
not.
"""

import os
import signal

import pytest
from tests.contracts.command import PATIENCE, CommandFolder
from tests.contracts.golden import assert_golden_run
from tests.contracts.processes import kill_below

SITES = """\
[site.here]
kind = "local"
processors = 1
unit_price = "3600 EUR/core-hour"
"""

CAMPAIGN = """\
[campaign]
name = "struck"
[tasks.before]
command = "echo before | tee {outputs}"
outputs = ["before.txt"]
[tasks.during]
command = "test -e $BEGUN || {{ touch $BEGUN; sleep 600; }}; cat before.txt"
inputs = ["before.txt"]
[tasks.later]
command = "echo later"
after = ["during"]
[retry]
backoff = 0
"""


@pytest.mark.parametrize(
    ("name", "blow", "status"),
    [
        pytest.param("interrupted", signal.SIGINT, 130, marks=pytest.mark.ci),
        ("killed", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_run_that_is_struck_goes_on(
    folder: CommandFolder, name: str, blow: signal.Signals, status: int
) -> None:
    """What had ended is kept, what ran runs again, and both lives are paid; no worker is spared."""
    begun = folder.path / "begun"
    folder.environment["BEGUN"] = str(begun)
    folder.write("c.toml", CAMPAIGN)
    folder.write("s.toml", SITES)
    process = folder.start("run", "c.toml", "--sites", "s.toml", "--name", "r", "--quiet")
    folder.until(begun.exists, process)

    if blow == signal.SIGKILL:
        process.kill()
        kill_below(folder.path)
    else:
        os.killpg(process.pid, blow)
    process.communicate(timeout=PATIENCE)

    assert process.returncode == status
    shown = folder.bursar("report", "r", "--json").json
    left = {key: shown[key] for key in ("state", "exit_status", "succeeded", "not_run")}
    told = folder.bursar("run", "--resume", "r", "--json").json
    assert_golden_run(name, folder, "r", live=True, left=left, told=told)
