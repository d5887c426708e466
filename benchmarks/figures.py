"""What every benchmark takes from its command line, prints, and writes as JSON."""

import argparse
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

Size = Literal["full", "quick", "smallest"]
"""How much is measured: for figures to quote, for a first look, or only to see that it runs."""

Cell = str | int | float | bool | None


@dataclass(frozen=True)
class Figure:
    """
    One measured number, and what it should be.

    Parameters
    ----------
    met
        Whether it is; None where there is no aim.
    """

    name: str
    value: float
    unit: str
    aim: str = ""
    met: bool | None = None


def at_least(name: str, value: float, aim: float, unit: str = "") -> Figure:
    """Return a figure that should not be smaller."""
    return Figure(name, value, unit, f">= {aim:g}", value >= aim)


def at_most(name: str, value: float, aim: float, unit: str = "") -> Figure:
    """Return a figure that should not be larger."""
    return Figure(name, value, unit, f"<= {aim:g}", value <= aim)


@dataclass(slots=True)
class Table:
    """
    Rows that were measured; each is printed when it is added.

    Parameters
    ----------
    title
        What was measured, on how much.
    columns
        Names, with units.
    """

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        print(f"\n{self.title}\n{_line(self.columns, self.columns)}", flush=True)

    def add(self, *cells: Cell) -> None:
        """
        Add a row.

        Raises
        ------
        ValueError
            When there are more or fewer cells than columns.
        """
        if len(cells) != len(self.columns):
            raise ValueError(f"{self.title}: {len(self.columns)} columns, got {len(cells)} cells")
        self.rows.append(cells)
        print(_line(self.columns, tuple(map(written, cells))), flush=True)


def _line(columns: Sequence[str], cells: Sequence[str]) -> str:
    widths = [42, *(max(12, len(name) + 2) for name in columns[1:])]
    first, *others = cells
    return f"{first:{widths[0]}}" + "".join(
        f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)
    )


def written(cell: Cell) -> str:
    """Return a cell as people read it: three significant digits, and yes, no or nothing."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "met" if cell else "MISSED"
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


class Benchmark:
    """
    One program's command line and results.

    Parameters
    ----------
    file
        The program's ``__file__``.
    doc
        Its docstring; the first sentence is what ``--help`` says.
    options
        Adds the program's own options.

    Attributes
    ----------
    given
        What the command line said.
    size
        How much to measure.
    kept
        Commit of each table that was measured earlier, by its title.
    """

    def __init__(
        self,
        file: str,
        doc: str | None,
        options: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
    ) -> None:
        self.program = Path(file).stem
        parser = argparse.ArgumentParser(description=(doc or "").strip().split("\n\n")[0])
        parser.add_argument("--quick", action="store_true", help="about a tenth of the work")
        parser.add_argument(
            "--smallest", action="store_true", help="a second or two of work, to see that it runs"
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables there too")
        options(parser)
        self.given = parser.parse_args()
        self.size: Size = "smallest" if self.given.smallest else "full"
        if self.given.quick and not self.given.smallest:
            self.size = "quick"
        self.tables: list[Table] = []
        self.skipped: list[str] = []
        self.kept: dict[str, str] = {}
        self._load = os.getloadavg()[0]
        self._began = datetime.now(UTC)

    def of(self, full: Any, quick: Any, smallest: Any) -> Any:
        """Return what belongs to the size that was asked for."""
        return {"full": full, "quick": quick, "smallest": smallest}[self.size]

    def table(self, title: str, *columns: str) -> Table:
        """Begin a table."""
        made = Table(title, columns)
        self.tables.append(made)
        return made

    def figures(self, title: str, figures: Sequence[Figure]) -> None:
        """Add a table of single figures."""
        made = self.table(title, "figure", "measured", "unit", "aim", "met")
        for figure in figures:
            made.add(figure.name, float(figure.value), figure.unit, figure.aim, figure.met)

    def skip(self, what: str) -> None:
        """Note a part that cannot be measured here, with the reason, and say so."""
        print(f"*** LEFT OUT: {what} ***", flush=True)
        self.skipped.append(what)

    def keep_others(self, earlier: dict[str, Any]) -> None:
        """
        Keep the tables of an earlier measurement that were not measured now, in their order.

        Parameters
        ----------
        earlier
            What :meth:`write` wrote. Titles are compared up to the first figure.
        """
        made = {re.split(r"\d", one.title)[0]: one for one in self.tables}
        kept = []
        for old in earlier["tables"]:
            found = made.pop(re.split(r"\d", old["title"])[0], None)
            if found is None:
                found = Table(old["title"], tuple(old["columns"]))
                found.rows.extend(tuple(row) for row in old["rows"])
                self.kept[old["title"]] = earlier.get("kept", {}).get(
                    old["title"], earlier["commit"]
                )
            kept.append(found)
        self.tables = [*kept, *made.values()]

    def write(self) -> None:
        """Write the tables where the command line said."""
        if self.given.json is None:
            return
        found = {
            "program": self.program,
            "size": self.size,
            "date": f"{self._began:%Y-%m-%d}",
            "commit": _commit(),
            "machine": {
                "processors": os.cpu_count(),
                "model": _model(),
                "system": f"{platform.system()} {platform.release()}",
                "python": platform.python_version(),
                "load_before": round(self._load, 1),
            },
            "skipped": self.skipped,
            "kept": self.kept,
            "tables": [
                {"title": one.title, "columns": one.columns, "rows": one.rows}
                for one in self.tables
            ],
        }
        self.given.json.write_text(json.dumps(found, indent=1) + "\n")


def _commit() -> str:
    """Return the commit that is measured, with a star when the code differs from it."""
    folder = Path(__file__).parent
    try:
        commit = _git("rev-parse", "--short=10", "HEAD", folder=folder).strip()
        changed = _git("diff", "--name-only", "HEAD", "--", "*.py", "../src", folder=folder)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}*" if changed else commit


def _git(*words: str, folder: Path) -> str:
    return subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


def _model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
