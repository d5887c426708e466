"""The report as one page that needs nothing else: no network, no other file."""

import html
import os
import re
from importlib.resources import files
from pathlib import Path

import msgspec

from bursar.model.errors import BursarError
from bursar.report.report_content import ReportContent


def write_report(path: Path, data: ReportContent) -> None:
    """
    Writes the page, whole or not at all.

    Raises
    ------
    BursarError
        When it cannot be written.
    """
    page = render(data)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(page, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None


def render(data: ReportContent) -> str:
    """The page's text."""
    folder = files("bursar.report").joinpath("page")
    # Inside a script element only "</" and "<!--" could end the data early.
    text = msgspec.json.encode(data.to_page()).decode().replace("<", "\\u003c")
    parts = {
        "title": html.escape(str(data.summary["run"])),
        "style": folder.joinpath("report.css").read_text(encoding="utf-8"),
        "script": folder.joinpath("report.js").read_text(encoding="utf-8"),
        "data": text,
    }
    page = folder.joinpath("report.html").read_text(encoding="utf-8")
    # In one pass: what is put in is never looked at again, whatever it says.
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], page)
