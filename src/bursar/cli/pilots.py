"""``bursar pilots``: what a run asked of its sites, and what was done with it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from bursar.cli.options import RUNS, AsJson, RunName, RunsFolder

if TYPE_CHECKING:
    from bursar.runs.allocation_reports import AllocationReport


def register(app: typer.Typer) -> None:
    """Adds this module's command."""
    app.command("pilots")(show_pilots)


def show_pilots(run: RunName, runs: RunsFolder = RUNS, as_json: AsJson = False) -> None:
    """Show a run's requests to its sites: waits, and processor time held, used and idle."""
    from bursar.cli.output import print_json
    from bursar.report.pilot_tables import print_pilots
    from bursar.runs.allocation_reports import allocation_reports, bounds
    from bursar.runs.folder import RunFolder
    from bursar.runs.run_record import read_run

    record = read_run(RunFolder.open(runs, run))
    found, scores = allocation_reports(record), bounds(record)
    requests = [one.to_dict() for one in found]
    sites = [one | _scored(scores.get(one["site"])) for one in _by_site(found)]
    if as_json:
        print_json({"run": run, "requests": requests, "sites": sites})
    else:
        print_pilots(requests, sites)


def _scored(score: tuple[int, int] | None) -> dict[str, int | None]:
    given, held = score or (None, None)
    return {"bounds_given": given, "bounds_held": held}


def _by_site(found: "Sequence[AllocationReport]") -> list[dict[str, Any]]:
    """Sums; the scheduler's record is set against those requests that it has."""
    sums = []
    for site in dict.fromkeys(one.site for one in found):
        here = [one for one in found if one.site == site]
        known = [one for one in here if one.recorded is not None]
        sums.append(
            {
                "site": site,
                "requests": len(here),
                "acquired_cpu_s": sum(one.account.acquired for one in here),
                "used_cpu_s": sum(one.account.used for one in here),
                "idle_cpu_s": sum(one.account.idle for one in here),
                "recorded_cpu_s": sum(one.recorded or 0.0 for one in known) if known else None,
                "difference_cpu_s": sum(one.difference or 0.0 for one in known) if known else None,
                "agrees": all(one.agrees for one in known) if known else None,
            }
        )
    return sums
