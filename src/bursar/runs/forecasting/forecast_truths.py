"""What came of the forecasts of a run, from its journal, once the run has ended."""

import bisect
from collections.abc import Sequence

import msgspec

from bursar.dispatch.journal_records import RunEvent
from bursar.history.forecast_records import ForecastTruth, KeptForecast, ScoredForecast
from bursar.history.store import History
from bursar.model.errors import BursarError
from bursar.model.money import from_micros
from bursar.report.run_report import RunClock
from bursar.runs.amendments import AMENDED, AmendmentReply
from bursar.runs.recording.history_recorder import execution_name
from bursar.runs.run_record import RunRecord
from bursar.sqlite_file import warn_on_stderr

STOPPED = "stopped"
"""Kind of the journal's events that say what stopped a run before its tasks had ended."""

WHY_STOPPED = {
    "user": "the run was stopped by the user",
    "budget": "the run was cut by its budget",
    "goal": "the run was stopped, since its goal was out of reach",
    "probe": "only run times were measured",
    "fault": "the run was ended by a fault",
}
_AMENDED = "the goal was amended"
_SKIPPED = "tasks could not run, since others had failed"


def truths_of(record: RunRecord, forecasts: Sequence[ScoredForecast]) -> dict[float, ForecastTruth]:
    """
    Return what came of forecasts of a run, by their shares, as far as is known.

    A run that was amended, stopped, or cut by its budget after a forecast has no truth for that
    forecast. Time in which no process carried the run out does not count.
    """
    is_open = record.info.state in ("new", "running", "unsettled")
    ended = None if is_open else record.all_ended
    clock = RunClock(record.incarnations)
    unpriced = any(not lease.is_priced for lease in record.leases)
    breaks = _breaks(record.journal.events)
    moments = [moment for moment, _ in breaks]
    found = {}
    for scored in forecasts:
        kept = scored.forecast
        if not scored.truth.is_open:
            continue
        after = bisect.bisect_right(moments, kept.made)
        if after < len(breaks):
            found[kept.share] = ForecastTruth(without=breaks[after][1])
        elif ended is not None and record.skipped:
            found[kept.share] = ForecastTruth(without=_SKIPPED)
        elif ended is not None:
            cost = None if unpriced else from_micros(record.ledger.spent)
            lasted = clock.at(ended) - clock.at(kept.made)
            found[kept.share] = _scored(kept, kept.elapsed + max(lasted, 0.0), cost)
    return found


def _scored(kept: KeptForecast, end: float, cost: float | None) -> ForecastTruth:
    from bursar.forecasts.calibration import score_beside  # late: it loads the arrays

    of_cost = None
    if cost is not None and kept.cost_draws is not None and max(kept.cost_draws) > 0:
        of_cost = score_beside(max(cost - kept.spent, 0.0), kept.cost_draws)
    return ForecastTruth(
        end=end,
        cost=cost,
        end_score=score_beside(end - kept.elapsed, kept.end_draws),
        cost_score=of_cost,
    )


def _breaks(events: Sequence[RunEvent]) -> list[tuple[float, str]]:
    """Return when something happened that no forecast can know, and what it was; in order."""
    found = []
    for event in events:
        if event.kind == STOPPED:
            found.append((event.time, WHY_STOPPED.get(event.text, WHY_STOPPED["fault"])))
        elif event.kind == AMENDED:
            answer = msgspec.json.decode(event.text, type=AmendmentReply)
            if not answer.refused:
                found.append((event.time, _AMENDED))
    return sorted(found)


def complete_truths(history: History | None, record: RunRecord) -> None:
    """
    Add to a history what came of the forecasts of a run; an error is told in one line.

    Parameters
    ----------
    history
        The history; None: none is kept.
    """
    try:
        if history is not None and history.path.exists():
            name = execution_name(record.folder, record.info)
            history.add_truths(name, truths_of(record, history.forecasts(name)))
    except BursarError as error:
        warn_on_stderr(f"what came of its forecasts is not kept: {error}")
