"""What the process imports whose forks are commands; see :mod:`tests.forked`."""

import tempfile
from pathlib import Path

import bursar
import bursar.api.running
import bursar.api.simulating
import bursar.cli.main
import bursar.report.html
import bursar.runs.executor_engine
import bursar.runs.run_reports
import bursar.service.execution_service
import bursar.service.runner
import bursar.sites.batch
import bursar.sites.local

SITES = """
[site.a]
processors = 2
unit_price = "1 SU/core-hour"

[site.b]
processors = 1
unit_price = "2 SU/core-hour"
"""
CAMPAIGN = """
[campaign]
command = "true {n}"

[parameters]
n = [1, 2, 3]

[task]
runtime = "1s"
"""


def load_kernels() -> None:
    """Plan a small campaign, so that compiled kernels are in memory; no thread is left."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "c.toml").write_text(CAMPAIGN)
        (folder / "s.toml").write_text(SITES)
        bursar.plan(folder / "c.toml", sites=folder / "s.toml")


load_kernels()
