"""
Gathers the jobs' results into one table and draws it.

Use::

    python3 gather.py results --table epidemic.csv --chart epidemic

reads every ``results/*.json`` and writes ``epidemic.csv``, ``epidemic.png``
and ``epidemic.svg``.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np
from epidemic import PEOPLE, Result
from theory import extinction_probability, final_size

try:
    import altair as alt
except ModuleNotFoundError:
    raise SystemExit("the chart needs altair: pip install 'bursar[charts]'") from None

Row = dict[str, object]
"""One mark of the chart: field to value."""

COLOURS = ["#1b3a5c", "#1f7a8c", "#d08c1d", "#b3402a"]


def read_results(folder: Path) -> list[Result]:
    """
    The jobs' results, ordered by parameters and seed.

    Raises
    ------
    SystemExit
        When there is none.
    """
    rows: list[Result] = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    if not rows:
        raise SystemExit(f"{folder}: found no *.json, expected one for each job")
    return sorted(rows, key=lambda row: (row["r0"], row["vaccinated"], row["seed"]))


def write_table(rows: Sequence[Result], path: Path) -> None:
    """One line for each job; an empty field is a mean over no major outbreak."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]))
        table.writeheader()
        table.writerows(rows)


def wilson_interval(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """
    Confidence interval of a probability from counts, sound near 0 and 1 too.

    References
    ----------
    .. [1] Wilson (1927). J. Am. Stat. Assoc. 22: 209-212.
    """
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    seen = hits / trials
    middle = (seen + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z * (seen * (1 - seen) / trials + (z / (2 * trials)) ** 2) ** 0.5 / (1 + z**2 / trials)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def extinction_rows(rows: Sequence[Result]) -> list[Row]:
    """Share of outbreaks that died out at each point of the sweep, over all seeds."""
    counts: dict[tuple[float, float], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        count = counts[row["r0"], row["vaccinated"]]
        count[0] += row["died_out"]
        count[1] += row["outbreaks"]
    found: list[Row] = []
    for (r0, vaccinated), (hits, trials) in counts.items():
        low, high = wilson_interval(hits, trials)
        found.append(
            {
                "r0": r0,
                "vaccinated": f"{vaccinated:.0%}",
                "died out": hits / trials,
                "low": low,
                "high": high,
            }
        )
    return found


def theory_rows(rows: Sequence[Result]) -> list[Row]:
    """The theory's lines over the swept range of R0, one for each coverage."""
    swept = [row["r0"] for row in rows]
    found: list[Row] = []
    for vaccinated in sorted({row["vaccinated"] for row in rows}):
        for r0 in np.linspace(min(swept), max(swept), 100).tolist():
            found.append(
                {
                    "r0": r0,
                    "vaccinated": f"{vaccinated:.0%}",
                    "attack rate": float(final_size(r0, vaccinated) @ PEOPLE / PEOPLE.sum()),
                    "died out": extinction_probability(r0, vaccinated),
                }
            )
    return found


def draw(rows: Sequence[Result]) -> alt.HConcatChart:
    """
    Attack rate and extinction against R0: points are runs, lines are theory.
    """
    jobs: list[Row] = [
        {
            "r0": row["r0"],
            "vaccinated": f"{row['vaccinated']:.0%}",
            "attack rate": row["attack_rate"],
        }
        for row in rows
        if row["attack_rate"] is not None
    ]
    theory = theory_rows(rows)
    coverages = list(dict.fromkeys(str(row["vaccinated"]) for row in theory))

    r0 = alt.X("r0:Q", title="basic reproduction number R0", scale=alt.Scale(zero=False))
    colour = alt.Color(
        "vaccinated:N",
        title="vaccinated",
        scale=alt.Scale(domain=coverages, range=COLOURS),
    )
    percent = alt.Axis(format=".0%")
    attack = alt.Y("attack rate:Q", title="infected in a major outbreak", axis=percent)
    died_out = alt.Y("died out:Q", title="outbreaks that died out", axis=percent)

    line = marks(theory).mark_line(strokeWidth=1.5, opacity=0.8)
    points = marks(jobs).mark_circle(size=22, opacity=0.7)
    extinctions = marks(extinction_rows(rows))
    panels = [
        alt.layer(line.encode(r0, attack, colour), points.encode(r0, attack, colour)).properties(
            title="How many fall ill (a point: mean of one job)"
        ),
        alt.layer(
            line.encode(r0, died_out, colour),
            extinctions.mark_rule().encode(r0, alt.Y("low:Q"), alt.Y2(field="high"), colour),
            extinctions.mark_circle(size=22).encode(r0, died_out, colour),
        ).properties(title="How often it dies out (bar: 95 % interval)"),
    ]
    title = alt.TitleParams(
        f"Two cases arrive in a town of {PEOPLE.sum():,}",
        subtitle="Lines: final-size equation and branching process. Points: the runs.",
    )
    chart: alt.HConcatChart = (
        alt.hconcat(*(panel.properties(width=380, height=300) for panel in panels))
        .properties(title=title)
        .configure(background="white", font="sans-serif")
    )
    return chart


def marks(rows: Sequence[Row]) -> alt.Chart:
    """A chart over ``rows``, not yet drawn in any way."""
    return alt.Chart({"values": rows})


def main() -> None:
    """Reads the command line, writes the table and the chart."""
    parser = argparse.ArgumentParser(description="Gather and draw the epidemic sweep")
    parser.add_argument("results", type=Path, help="folder of the jobs' result files")
    parser.add_argument("--table", type=Path, default=Path("epidemic.csv"))
    parser.add_argument("--chart", type=Path, default=Path("epidemic"), help="without suffix")
    given = parser.parse_args()

    rows = read_results(given.results)
    write_table(rows, given.table)
    chart = draw(rows)
    chart.save(str(given.chart.with_suffix(".png")), scale_factor=2)
    chart.save(str(given.chart.with_suffix(".svg")))
    print(f"{len(rows)} results gathered in {given.table}, drawn in {given.chart}.png")


if __name__ == "__main__":
    main()
