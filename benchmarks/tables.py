"""
Writes tables of ``benchmarks/README.md`` and of documents from the JSON of the last runs.

    python benchmarks/tables.py            # write them
    python benchmarks/tables.py --check    # exit with status 1 when they differ

Each program has a region in the README, between two comments; what stands there is generated. In
``docs/concepts/forecasts.md`` a region has one table, named by the begin of its title, and
``forecasts-tenth.svg`` beside the document is a plot of one.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from figures import written

HERE = Path(__file__).resolve().parent
README = HERE / "README.md"
RESULTS = HERE / "results"
DOCUMENT = HERE.parent / "docs" / "concepts" / "forecasts.md"
REGION = re.compile(r"<!-- results: (\w+) -->\n.*?<!-- end of results -->", re.DOTALL)
TABLE = re.compile(r"<!-- table: (\w+): ([^\n]+) -->\n.*?<!-- end of table -->", re.DOTALL)


def region(program: str, found: dict[str, Any] | None) -> str:
    """
    Return the text of a program's region, with its markers.

    Parameters
    ----------
    program
        Name of the program.
    found
        Its results; None when it has not been run.
    """
    lines = [f"<!-- results: {program} -->"]
    if found is None:
        lines.append(f"*Not run yet: `python benchmarks/{program}.py --json FILE`.*\n")
    else:
        machine = found["machine"]
        size = {"full": "", "quick": ", with `--quick`"}[found["size"]]
        lines.append(
            f"*Measured on {found['date']} at commit `{found['commit']}`{size}: "
            f"{machine['processors']} processors ({machine['model']}), {machine['system']}, "
            f"Python {machine['python']}; load before: {machine['load_before']}.*\n"
        )
        kept = found.get("kept", {})
        for table in found["tables"]:
            title = table["title"]
            lines.append(f"**{title}**\n")
            if title in kept:
                lines.append(f"*Measured earlier, at commit `{kept[title]}`.*\n")
            lines += [*grid(table), ""]
        lines += [f"*Left out: {what}.*\n" for what in found["skipped"]]
    return "\n".join([*lines, "<!-- end of results -->"])


def grid(table: dict[str, Any]) -> list[str]:
    """Return the lines of a table."""
    columns, rows = table["columns"], table["rows"]
    return [
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
        *(f"| {' | '.join(map(written, row))} |" for row in rows),
    ]


def table_of(program: str, title: str, results: Path) -> dict[str, Any] | None:
    """Return the table of a program's results whose title begins so; None: it has not been run."""
    path = results / f"{program}.json"
    found = json.loads(path.read_text())["tables"] if path.exists() else []
    return next((one for one in found if one["title"].startswith(title)), None)


def filled(text: str, results: Path) -> str:
    """Return a text with each region filled from the folder of results."""

    def fill(match: re.Match[str]) -> str:
        path = results / f"{match[1]}.json"
        return region(match[1], json.loads(path.read_text()) if path.exists() else None)

    def fill_one(match: re.Match[str]) -> str:
        table = table_of(match[1], match[2], results)
        lines = (
            ["*Not measured yet.*"] if table is None else [*grid(table), "", f"*{table['title']}.*"]
        )
        return "\n".join([match[0].partition("\n")[0], *lines, "<!-- end of table -->"])

    return TABLE.sub(fill_one, REGION.sub(fill, text))


def plot_tenth(path: Path) -> None:
    """Draw the error after a tenth of the tasks, by what else is known."""
    import altair

    table = table_of("forecast_breadth", "A tenth", RESULTS)
    if table is None:
        return
    known = ["nothing else", "user's word", "another size", "1 run", "2 runs", "4 runs"]
    places = [table["columns"].index(name) for name in known]
    rows = [
        {"workflow": row[0], "known": name, "error": row[at]}
        for row in table["rows"]
        for name, at in zip(known, places, strict=True)
        if row[at] is not None
    ]
    base = altair.Chart(altair.Data(values=rows))
    marks = base.mark_point(filled=True, size=60).encode(
        x=altair.X("error:Q", title="median error of the 50 % figure").scale(type="log"),
        y=altair.Y("workflow:N", title=None),
        color=altair.Color("known:N", title="a tenth done, and known", sort=known),
    )
    aim = altair.Chart(altair.Data(values=[{"aim": 0.08}])).mark_rule(strokeDash=[4, 4])
    altair.layer(aim.encode(x="aim:Q"), marks).properties(width=420, height=220).save(str(path))


def main() -> int:
    """Write the tables, or check them; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if they differ")
    given = parser.parse_args()
    texts = {path: path.read_text() for path in (README, DOCUMENT)}
    made = {path: filled(text, RESULTS) for path, text in texts.items()}
    if given.check:
        return int(made != texts)
    for path, text in made.items():
        path.write_text(text)
    plot_tenth(DOCUMENT.with_name("forecasts-tenth.svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
