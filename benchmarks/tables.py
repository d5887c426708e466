"""
Writes the tables of ``benchmarks/README.md`` from the JSON of the last runs.

    python benchmarks/tables.py            # write them
    python benchmarks/tables.py --check    # exit with status 1 when they differ

Each program has a region in the file, between two comments; what stands there is generated.
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
REGION = re.compile(r"<!-- results: (\w+) -->\n.*?<!-- end of results -->", re.DOTALL)


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
        for table in found["tables"]:
            lines.append(f"**{table['title']}**\n")
            lines.append(f"| {' | '.join(table['columns'])} |")
            lines.append(f"|{' --- |' * len(table['columns'])}")
            for row in table["rows"]:
                lines.append(f"| {' | '.join(map(written, row))} |")
            lines.append("")
        lines += [f"*Left out: {what}.*\n" for what in found["skipped"]]
    return "\n".join([*lines, "<!-- end of results -->"])


def filled(text: str, results: Path) -> str:
    """Return a text with each region filled from the folder of results."""

    def fill(match: re.Match[str]) -> str:
        path = results / f"{match[1]}.json"
        return region(match[1], json.loads(path.read_text()) if path.exists() else None)

    return REGION.sub(fill, text)


def main() -> int:
    """Write the tables, or check them; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if they differ")
    given = parser.parse_args()
    text = README.read_text()
    made = filled(text, RESULTS)
    if given.check:
        return int(made != text)
    README.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
