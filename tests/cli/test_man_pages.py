"""Manual pages are made from the commands' own help."""

import re
import shutil
import subprocess
from typing import Any

import pytest


def test_a_page_has_what_help_has(folder: Any) -> None:
    page = folder.bursar("man", "run").stdout

    assert page.startswith('.TH "BURSAR-RUN" "1"')
    assert ".B \\-\\-probe N" in page
    assert '.SH "RUNTIMES AND THE SEARCH FOR PLANS"' in page
    assert "\\-\\-spread" not in page  # refused by run, and so not in its help
    assert ".B plan" in folder.bursar("man").stdout
    assert ".SH NAME" in folder.bursar("man", "ledger", "grant").stdout


def test_all_pages_are_written(folder: Any) -> None:
    folder.bursar("man", "--write", "share")

    pages = {path.name for path in (folder.path / "share" / "man1").iterdir()}
    assert {"bursar.1", "bursar-run.1", "bursar-why-not.1", "bursar-history-import.1"} <= pages


def test_an_unknown_command_is_named(folder: Any) -> None:
    refused = folder.bursar("man", "rum", status=2)

    assert refused.stderr.startswith('bursar: bursar man: no command "rum"')
    assert "run" in refused.stderr


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff")
def test_the_formatter_has_nothing_to_say(folder: Any) -> None:
    page = folder.bursar("man", "run").stdout

    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww"], input=page, capture_output=True, text=True, check=True
    )

    assert done.stderr == ""
    # Bold is each letter printed twice.
    assert "--probe" in re.sub(".\x08", "", done.stdout)
