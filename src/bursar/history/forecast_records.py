"""
What was forecast of runs and what came of it: a table in the file of a history.

A run has a row for each share of its tasks that had ended when a forecast was kept. The row is
written when the forecast is made; the truth is added when the run has ended. A file of a version
without the table gets it with the first row, and is read as one without rows until then.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from bursar.sqlite_file import LockWaitingConnection

SHARES = (0.0, 0.1, 0.25, 0.5, 0.75)
"""Shares of the tasks at whose end a forecast is kept."""

GRID = (0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99)
"""Shares of the quantiles that are kept of each forecast."""

KEEP_FORECASTS = 20_000
"""Rows that are kept, the newest."""

FEW = 20
"""Scores of the same basis and share below which others are taken, too."""

NEWEST_SCORES = 300
"""Scores that a forecast is corrected by, at most."""

NEAREST_BASIS = {
    "history": "other size",
    "other size": "history",
    "estimates": "nothing",
    "nothing": "estimates",
}
"""Basis whose forecasts miss in the most similar way, for each."""

_LOOKED_AT = 3000
_MOST = 20.0
"""Largest score, in either direction: beyond, a record is broken rather than a forecast wrong."""

_TABLE = """CREATE TABLE IF NOT EXISTS forecasts (
    execution INTEGER NOT NULL, share REAL NOT NULL, made REAL NOT NULL, basis TEXT NOT NULL,
    record BLOB NOT NULL, end REAL, cost REAL, end_score REAL, cost_score REAL,
    without TEXT NOT NULL DEFAULT '', PRIMARY KEY (execution, share))"""

_HAS_TABLE = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'forecasts'"


class KeptForecast(msgspec.Struct, frozen=True, kw_only=True):
    """
    A forecast of a run as it was made.

    Parameters
    ----------
    share
        Share of the tasks that had ended, one of :data:`SHARES`; the number that really had may be
        a little larger.
    ended, tasks
        Number of tasks that had ended, and of all.
    made
        Seconds since the epoch.
    elapsed, spent
        What had come by then: seconds since the run's begin, currency units.
    basis
        What the run times were known from.
    executions, observed
        Number of earlier executions and tasks that this rested on.
    sites, kinds
        Names of the sites that had or were to get processors, and of the kinds of tasks left.
    end, cost
        Quantiles at :data:`GRID`, seconds since the begin and currency units, with what had come;
        an empty cost: a price was unknown.
    end_draws, cost_draws
        Quantiles at 5, 50 and 95 % of what lay ahead, without correction: the units of scores.
    deadline, budget
        Limits of the goal; None for none.
    odds
        Probability that was told of keeping them; None without any.
    confidence
        Probability that was asked.
    """

    share: float
    ended: int
    tasks: int
    made: float
    elapsed: float
    spent: float
    basis: str
    executions: int
    observed: int
    sites: tuple[str, ...]
    kinds: tuple[str, ...]
    end: tuple[float, ...]
    cost: tuple[float, ...]
    end_draws: tuple[float, float, float]
    cost_draws: tuple[float, float, float] | None
    deadline: float | None
    budget: float | None
    odds: float | None
    confidence: float


class ForecastTruth(msgspec.Struct, frozen=True, kw_only=True):
    """
    Truth of a forecast, or why there is none.

    Parameters
    ----------
    end, cost
        Seconds since the run's begin on the clock of the forecast, and currency units; None: not
        known yet, or never.
    end_score, cost_score
        How far these lay from the median; see :mod:`bursar.forecasts.calibration`.
    without
        Why there is no truth, in words; empty: there is, or it is not known yet.
    """

    end: float | None = None
    cost: float | None = None
    end_score: float | None = None
    cost_score: float | None = None
    without: str = ""

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended yet, as far as is known."""
        return self.end is None and not self.without


class ScoredForecast(msgspec.Struct, frozen=True, kw_only=True):
    """
    A forecast of the history with what came of it.

    Parameters
    ----------
    run, campaign
        Names of the execution and of what was executed.
    """

    run: str
    campaign: str
    forecast: KeptForecast
    truth: ForecastTruth


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(KeptForecast).decode


def write_forecast(db: LockWaitingConnection, execution: int, kept: KeptForecast) -> None:
    """Add a forecast within a transaction; one that is known already stays as it is."""
    db.execute(_TABLE)
    db.execute(
        "INSERT OR IGNORE INTO forecasts (execution, share, made, basis, record) "
        "VALUES (?,?,?,?,?)",
        (execution, kept.share, kept.made, kept.basis, _encode(kept)),
    )
    edge = db.execute(
        "SELECT made FROM forecasts ORDER BY made DESC LIMIT 1 OFFSET ?", (KEEP_FORECASTS,)
    ).get
    if edge is not None:
        db.execute("DELETE FROM forecasts WHERE made <= ?", (edge,))


def write_truths(
    db: LockWaitingConnection, execution: str, truths: Iterable[tuple[float, ForecastTruth]]
) -> None:
    """Add what came of forecasts of an execution, by their shares; what is known stays."""
    if not db.execute(_HAS_TABLE).get:
        return
    for share, truth in truths:
        db.execute(
            "UPDATE forecasts SET end = ?, cost = ?, end_score = ?, cost_score = ?, without = ? "
            "WHERE share = ? AND end IS NULL AND without = '' AND execution = "
            "(SELECT id FROM executions WHERE name = ?)",
            (
                truth.end,
                truth.cost,
                truth.end_score,
                truth.cost_score,
                truth.without,
                share,
                execution,
            ),
        )


def read_forecasts(
    db: LockWaitingConnection | None, execution: str | None = None
) -> list[ScoredForecast]:
    """
    Return the forecasts, the oldest first; a row that is damaged is left out.

    Parameters
    ----------
    execution
        Name of the execution whose forecasts are wanted; None: all.
    """
    if db is None or not db.execute(_HAS_TABLE).get:
        return []
    where, values = ("", ()) if execution is None else ("WHERE e.name = ? ", (execution,))
    rows = db.execute(
        "SELECT e.name, e.campaign, f.record, f.end, f.cost, f.end_score, f.cost_score, f.without "
        f"FROM forecasts f JOIN executions e ON e.id = f.execution {where}"
        "ORDER BY f.made, f.share",
        values,
    )
    found = []
    for run, campaign, record, *truth in rows:
        try:
            kept = _decode(record)
            ended = msgspec.convert(
                dict(zip(ForecastTruth.__struct_fields__, truth, strict=True)), ForecastTruth
            )
        except (msgspec.MsgspecError, TypeError):
            continue
        if _is_sound(kept, ended):
            found.append(ScoredForecast(run=run, campaign=campaign, forecast=kept, truth=ended))
    return found


def _is_sound(kept: KeptForecast, truth: ForecastTruth) -> bool:
    """Whether all numbers of a row are numbers, and as many as there should be."""
    numbers = [kept.share, kept.made, kept.elapsed, kept.spent, *kept.end, *kept.cost]
    numbers += [*kept.end_draws, *(kept.cost_draws or ()), truth.end or 0.0, truth.cost or 0.0]
    return (
        all(map(math.isfinite, numbers))
        and len(kept.end) == len(GRID)
        and len(kept.cost) in (0, len(GRID))
    )


def delete_lost_forecasts(db: LockWaitingConnection) -> None:
    """Delete the forecasts of executions that are forgotten, within a transaction."""
    if db.execute(_HAS_TABLE).get:
        db.execute("DELETE FROM forecasts WHERE execution NOT IN (SELECT id FROM executions)")


FoundScores = tuple[Sequence[tuple[float, bool]], Sequence[tuple[float, bool]]]
"""Scores of ends and of costs, newest last, each with whether it is of the same campaign."""


class FoundScore(NamedTuple):
    """
    Score of an earlier forecast, as it stands in the file.

    Parameters
    ----------
    run, campaign
        The execution, and the name of what was executed.
    basis, share
        See :class:`KeptForecast`.
    """

    run: object
    campaign: object
    basis: object
    share: object
    score: object


def read_scores(
    db: LockWaitingConnection | None, campaign: str, basis: str, share: float
) -> FoundScores:
    """
    Return the scores of ends and of costs by which a forecast is corrected, newest last.

    Each comes with whether it is of a forecast of the same campaign.

    Parameters
    ----------
    basis
        What the forecast's run times are known from.
    share
        Share of the tasks that have ended.
    """
    if db is None or not db.execute(_HAS_TABLE).get:
        return [], []
    rows = list(
        db.execute(
            "SELECT f.execution, e.campaign, f.basis, f.share, f.end_score, f.cost_score "
            "FROM forecasts f JOIN executions e ON e.id = f.execution "
            "WHERE f.end_score IS NOT NULL ORDER BY f.made DESC LIMIT ?",
            (_LOOKED_AT,),
        )
    )
    ends = [FoundScore(run, own, of, at, end) for run, own, of, at, end, _ in rows]
    costs = [FoundScore(run, own, of, at, cost) for run, own, of, at, _, cost in rows]
    return (
        nearest_scores(ends, campaign, basis, share),
        nearest_scores(costs, campaign, basis, share),
    )


def nearest_scores(
    rows: Sequence[FoundScore], campaign: str, basis: str, share: float
) -> list[tuple[float, bool]]:
    """
    Return the scores of forecasts most like one, newest last, one of each run.

    Those of the same basis and the nearest share of :data:`SHARES` come first; where these are
    fewer than :data:`FEW`, those of the other shares are added, the nearest share first, and then
    those of the nearest basis; each time the same campaign's before others'. Two forecasts of one
    run miss in the same way, so that the second would say nothing new.

    Parameters
    ----------
    rows
        Scores, newest first. What is no number, is infinite or is beyond all reason is left out.

    Returns
    -------
    list
        Score, and whether it is of the same campaign.
    """
    groups: dict[tuple[str, bool, float], list[tuple[object, float]]] = {}
    for row in rows:
        score, at = row.score, row.share
        if not isinstance(score, int | float) or not isinstance(at, int | float):
            continue
        if abs(score) <= _MOST and at in SHARES:
            key = (str(row.basis), row.campaign == campaign, float(at))
            groups.setdefault(key, []).append((row.run, float(score)))
    own = min(SHARES, key=lambda one: abs(one - share))
    nearest = sorted(SHARES, key=lambda one: abs(one - own))
    chosen: list[tuple[float, bool]] = []
    used: set[object] = set()
    for like in (basis, NEAREST_BASIS.get(basis, "")):
        for near in nearest:
            for is_own in (True, False):
                for run, score in groups.get((like, is_own, near), ()):
                    if run not in used and len(chosen) < NEWEST_SCORES:
                        used.add(run)
                        chosen.append((score, is_own))
            if len(chosen) >= FEW:
                return chosen[::-1]
    return chosen[::-1]
