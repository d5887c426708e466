"""
Render the findings of a study's last run into the study's page, between markers.

A page holds, for each figure, a pair of lines between which nothing is written by hand::

    <!-- findings: table-2 -->
    <!-- end -->

``<!-- findings: all -->`` has the count of all figures. What is rendered is in a JSON file beside
the page, which ``bursar reproduce`` writes: the page says what the run said, and a test compares
the two.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bursar.model.errors import BursarError, InputError
from bursar_papers.experiment import ExperimentResult, PaperFinding
from bursar_papers.summary import rounded

ALL = "all"
"""Stands for every figure in a marker."""
LIVE = "-live"
"""Ends the names of experiments that are there twice, and run real tasks."""

_BLOCK = re.compile(r"^<!-- findings: ([\w-]+) -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
_COUNTED = ("agrees", "differs", "open")
_WHY = {
    "identity": "true by construction",
    "calibrated": "calibrated",
    "impossible": "impossible as published",
}

Entry = dict[str, Any]
"""One figure's findings, as they are in JSON."""


def entry_of(outcome: ExperimentResult) -> Entry:
    """Return the findings of a run, without the rows."""
    experiment = outcome.experiment
    return {
        "title": experiment.title,
        "effort": outcome.effort,
        "cells": outcome.cells,
        "seeds": outcome.seeds,
        "findings": [finding.to_dict() for finding in outcome.findings],
    }


def read_entries(path: Path) -> dict[str, Entry]:
    """
    Read the entries of a study by figure; a file that is absent has none.

    Raises
    ------
    InputError
        When the file is something else.
    """
    if not path.exists():
        return {}
    try:
        figures: dict[str, Entry] = json.loads(path.read_bytes())["figures"]
        return dict(figures)
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(
            "does not hold the findings of a study", where=str(path), hint="remove it"
        ) from None


def record(path: Path, paper: str, entries: dict[str, Entry], order: Sequence[str]) -> None:
    """
    Put entries into a study's file; entries of the same figures are replaced.

    Parameters
    ----------
    order
        All figures of the study; entries of others are dropped.

    Raises
    ------
    BursarError
        When the file cannot be written.
    """
    known = read_entries(path) | entries
    figures = {figure: known[figure] for figure in order if figure in known}
    document = msgspec.json.format(
        msgspec.json.encode({"paper": paper, "figures": figures}), indent=1
    )
    _write(path, document + b"\n")


def update_page(folder: Path, paper: str) -> Path | None:
    """
    Render a study's findings into the study's page; None when the folder lacks the page.

    Raises
    ------
    InputError
        When the page has a marker of a figure that was not run.
    """
    page = folder / f"{paper}.md"
    if not page.exists():
        return None
    entries = read_entries(folder / f"{paper}.json")
    try:
        text = rendered(page.read_text(), paper, entries)
    except KeyError as error:
        raise InputError(
            f"has a block for {error.args[0]}, of which {paper}.json has no findings",
            where=str(page),
        ) from None
    _write(page, text.encode())
    return page


def rendered(page: str, paper: str, entries: Mapping[str, Entry]) -> str:
    """
    Return a page with all blocks rendered anew.

    Raises
    ------
    KeyError
        When there is a block of a figure without an entry.
    """

    def block(match: re.Match[str]) -> str:
        figure = match[1]
        lines = [_total(entries)] if figure == ALL else _table(paper, figure, entries[figure])
        return "\n".join([f"<!-- findings: {figure} -->", "", *lines, "", "<!-- end -->"])

    return _BLOCK.sub(block, page)


def blocks(page: str) -> list[str]:
    """Return the figures of which a page has blocks, in their order."""
    return [match[1] for match in _BLOCK.finditer(page)]


def tally(findings: Iterable[Mapping[str, Any]]) -> str:
    """
    Count the verdicts in words, those of our own claims apart.

    Examples
    --------
    >>> tally([{"verdict": v, "own": False} for v in ("agrees", "open", "agrees", "calibrated")])
    '2 agree, 0 differ, 1 open; not counted: 1 calibrated'
    """
    told = Counter((f["verdict"], f["own"]) for f in findings if f["verdict"] is not None)
    if not told:
        return "nothing is stated that could agree"
    agree, differ, open_ = (told[name, False] for name in _COUNTED)
    words = [f"{agree} agree{'s' * (agree == 1)}, {differ} differ{'s' * (differ == 1)}, "
             f"{open_} open"]  # fmt: skip
    hold, fail, unsure = (told[name, True] for name in _COUNTED)
    if hold + fail + unsure:
        words.append(f"claims of our own: {hold} hold, {fail} fail, {unsure} open")
    apart = [(told[name, False] + told[name, True], why) for name, why in _WHY.items()]
    if any(count for count, _ in apart):
        words.append("not counted: " + ", ".join(f"{count} {why}" for count, why in apart if count))
    return "; ".join(words)


def bounds(comparisons: Sequence[Mapping[str, Any]]) -> str:
    """Say within which bounds something agrees, each kind of bounds once."""
    told: dict[str, list[str]] = {}
    for each in comparisons:
        low, high = each["at_least"], each["at_most"]
        if low is not None and high is not None:
            text = f"{_number(low)} to {_number(high)}"
        else:
            text = _side(low, ">", "≥") if low is not None else _side(high, "<", "≤")
        told.setdefault(text, []).append(each["name"])
    if len(told) == 1:
        return next(iter(told))
    return "\n".join(f"{', '.join(filter(None, names))}: {text}" for text, names in told.items())


def bounds_of(finding: PaperFinding) -> str:
    """Say the same of a finding."""
    return bounds([each.to_dict() for each in finding.comparisons])


def _side(bound: float, strict: str, loose: str) -> str:
    """A bound just beside a round number leaves that number out, or lets it in."""
    shown = round(bound, 6)
    leaves_out = bound > shown if strict == ">" else bound < shown
    return f"{strict if leaves_out else loose} {_number(shown)}"


def _number(value: float) -> str:
    return rounded(value, 4)


def _table(paper: str, figure: str, entry: Entry) -> list[str]:
    findings = entry["findings"]
    any_verdict = any(finding["verdict"] for finding in findings)
    seeds = f", {entry['seeds']} seeds" if entry["seeds"] > 1 else ""
    lines = [
        f"`{_command(paper, figure, entry)}`: {entry['cells']} cells{seeds}; {tally(findings)}.",
        "",
    ]
    if any_verdict:
        lines += ["| measured | paper | ours | agrees within | verdict |"]
        lines += ["| --- | --- | --- | --- | --- |"]
    else:
        lines += ["| measured | paper | ours |", "| --- | --- | --- |"]
    for finding in findings:
        remark = f"\n*{finding['remark']}*" if finding["remark"] else ""
        stated = f"ours: {finding['paper']}" if finding["own"] else finding["paper"]
        cells = [finding["what"], stated, finding["ours"] + remark]
        if any_verdict:
            cells += [bounds(finding["comparisons"]), _verdict(finding["verdict"])]
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return lines


def _command(paper: str, figure: str, entry: Entry) -> str:
    name = figure.removesuffix(LIVE)
    option = "--table" if name.startswith("table-") else "--figure"
    words = ["bursar reproduce", paper, option, name.removeprefix("table-")]
    if entry["effort"] != "normal":
        words.append(f"--{entry['effort']}")
    if name != figure:
        words.append("--live")
    return " ".join(words)


def _verdict(verdict: str | None) -> str:
    if verdict is None:
        return ""
    return f"**{verdict}**" if verdict == "differs" else _WHY.get(verdict, verdict)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _total(entries: Mapping[str, Entry]) -> str:
    told = [finding for entry in entries.values() for finding in entry["findings"]]
    return f"All figures together: {tally(told)}."


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise BursarError(f"{path}: cannot be written: {error.strerror}") from None
