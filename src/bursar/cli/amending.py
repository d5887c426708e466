"""``bursar amend``: another deadline or budget for a run, also while it goes on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from bursar.cli.options import RUNS, AsJson, RunName, RunsFolder, print_json, print_note
from bursar.model.errors import BursarError, InputError


def register(app: typer.Typer) -> None:
    """Add ``bursar amend`` to the command line."""
    app.command("amend")(amend_run)


def amend_run(
    run: RunName,
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="New deadline, counted from the run's start (2h), an extension (+1h), or a "
            'moment ("2026-11-28 18:00").',
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="AMOUNT", help='New total budget (200, "40 SU"), or an increase (+50).'
        ),
    ] = None,
    accept: Annotated[
        Literal["time", "budget"] | None,
        typer.Option(
            metavar="time|budget",
            help="Take the counter-offer of this kind in place of a goal that is out of reach: "
            "a later deadline, or a larger budget.",
        ),
    ] = None,
    dry: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what the change would lead to, and change nothing."),
    ] = False,
    runs: RunsFolder = RUNS,
    as_json: AsJson = False,
) -> None:
    """
    Change the deadline or budget of a run, even while it runs.

    The command prints the forecast under the new goal, then changes the goal. A stopped run has
    the new goal when it is resumed.
    """
    from bursar.api.amending import amend, forecast_amendment
    from bursar.formats.units import parse_amount, parse_duration

    time, later = deadline, None  # a moment becomes a time from the begin where the run is read
    if deadline is not None and deadline.strip().startswith("+"):
        _, later = _split(deadline, parse_duration, "--deadline")
    money, more = _split(budget, lambda text: parse_amount(text)[0], "--budget")
    _check_currency(run, budget, runs)
    verdict = forecast_amendment(
        run, deadline=time, later=later, budget=money, more=more, runs=runs
    )
    if accept is not None and not verdict.feasible:
        found = verdict.counter_offer(accept)
        if found is None:
            raise BursarError(f"{verdict.reason}; there is no counter-offer of the kind {accept}")
        offer, goal = found
        print_note(f"{verdict.reason}; taken in its place: {verdict.describe(offer)}")
        if verdict.quote is None:
            verdict = replace(verdict, goal=goal)  # a plan's forecast does not depend on the goal
        else:
            verdict = forecast_amendment(run, deadline=goal.deadline, budget=goal.budget, runs=runs)
    if as_json:
        if not dry:
            amend(verdict)
        print_json(verdict.to_dict() | {"applied": not dry})
        return
    verdict.print()
    if not dry:
        amend(verdict)
        print_note(f"run {verdict.run} has its new goal")


def _split(
    text: str | None, parse: Callable[[str], float], option: str
) -> tuple[float | None, float | None]:
    """Parse a limit: the new value, or (after "+") the amount to add to the old one."""
    if text is None:
        return None, None
    moved = text.strip().startswith("+")
    try:
        value = parse(text.strip().removeprefix("+"))
    except InputError as error:
        raise error.within(option) from None
    return (None, value) if moved else (value, None)


def _check_currency(run: str, budget: str | None, runs: Path) -> None:
    from bursar.formats.units import parse_amount
    from bursar.runs.folder import RunFolder
    from bursar.runs.plan_file import read_plan

    if budget is None:
        return
    _, currency = parse_amount(budget.strip().removeprefix("+"))
    counts = read_plan(RunFolder.open(runs, run))[1].currency
    if currency not in (None, counts):
        raise InputError(f"the run counts in {counts}, got {currency}", where="--budget")
