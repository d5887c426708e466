"""What the process imports whose forks are commands; see :mod:`tests.forked`."""

import contextlib
import gc
import os
import sys
import tempfile
from pathlib import Path

import bursar
import bursar.api.running
import bursar.api.simulating
import bursar.cli.main
import bursar.report.run_report
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


COMMANDS = (
    ("plan", "c.toml", "--sites", "s.toml"),
    ("simulate", "c.toml", "--sites", "s.toml", "--name", "one"),
    ("report", "one"),
    ("bill", "one", "--json"),
    ("runs",),
)


def carry_out_commands() -> None:
    """
    Carry out commands that start neither processes nor threads.

    What they import when they begin, and the kernels that they call, is in memory then.
    """
    with tempfile.TemporaryDirectory() as made, contextlib.chdir(made):
        Path("c.toml").write_text(CAMPAIGN)
        Path("s.toml").write_text(SITES)
        for words in COMMANDS:
            sys.argv = ["bursar", *words]
            with (
                open(os.devnull, "w") as nowhere,
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
            ):
                try:
                    bursar.cli.main.main()
                except SystemExit as ended:
                    if ended.code:
                        raise RuntimeError(f"{words} ended with {ended.code}") from ended


carry_out_commands()
# Forks look through their own objects only when garbage is collected.
gc.collect()
gc.freeze()
