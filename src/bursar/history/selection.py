"""Parts of a history by kind, execution and age: read whole, counted, and forgotten."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bursar.history.encoding import MICRO, STATUSES, ParameterNames
from bursar.history.forecast_records import delete_lost_forecasts
from bursar.history.observation import TaskObservation
from bursar.history.writing import delete_lost_sizes
from bursar.sqlite_file import LockWaitingConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """
    Observations that agree with all that is stated.

    Parameters
    ----------
    kind
        Name of their kind; None: any.
    execution
        Name of their execution, whole or up to the ``@`` before its number; None: any.
    before
        They began earlier, seconds since the epoch; what has no date did. None: at any time.
    """

    kind: str | None = None
    execution: str | None = None
    before: float | None = None

    def condition(self) -> tuple[str, list[Any]]:
        """Return the selection as a condition of SQL, and its values."""
        parts, values = ["1"], list[Any]()
        if self.kind is not None:
            parts.append("o.kind IN (SELECT id FROM kinds WHERE name = ?)")
            values.append(self.kind)
        if self.execution is not None:
            parts.append(
                "o.execution IN (SELECT id FROM executions WHERE name = ? OR "
                "substr(name, 1, length(?) + 1) = ? || '@')"
            )
            values += [self.execution] * 3
        if self.before is not None:
            parts.append("o.start < ?")
            values.append(round(self.before * MICRO))
        return " AND ".join(parts), values


_ROWS = """
    SELECT e.name, o.task, o.attempt, k.name, k.template, o.parameter_names, o.parameters,
        o.input_bytes, p.site, p.host, o.processors, o.speed, o.start, o.seconds, o.waited,
        o.transferred, o.max_rss, o.user_seconds, o.system_seconds, o.status, o.estimate, e.source
    FROM observations o JOIN kinds k ON k.id = o.kind JOIN executions e ON e.id = o.execution
        JOIN places p ON p.id = o.place
    WHERE {condition} ORDER BY o.id
"""


def read_selected(db: LockWaitingConnection, selection: Selection) -> Iterator[TaskObservation]:
    """Yield the selected observations in the order in which they were written."""
    names = ParameterNames(db)
    condition, values = selection.condition()
    for row in db.execute(_ROWS.format(condition=condition), values):
        (
            execution, task, attempt, kind, template, parameter_names, parameters, input_bytes,
            site, host, processors, speed, start, seconds, waited, transferred, max_rss,
            user_seconds, system_seconds, status, estimate, source,
        ) = row  # fmt: skip
        yield TaskObservation(
            execution=execution,
            task=task,
            attempt=attempt,
            kind=kind,
            template=template,
            parameters=names.mapping(parameter_names, parameters),
            input_bytes=input_bytes,
            site=site,
            host=host,
            processors=processors,
            speed=speed,
            start=start / MICRO,
            seconds=seconds / MICRO,
            waited=_seconds(waited),
            transferred=_seconds(transferred),
            max_rss=max_rss,
            user_seconds=_seconds(user_seconds),
            system_seconds=_seconds(system_seconds),
            status=STATUSES[status],
            estimate=_seconds(estimate),
            source=source,
        )


def count_selected(db: LockWaitingConnection, selection: Selection) -> dict[str, int]:
    """Return the number of selected observations of each kind."""
    condition, values = selection.condition()
    rows = db.execute(
        "SELECT k.name, count(*) FROM observations o JOIN kinds k ON k.id = o.kind "
        f"WHERE {condition} GROUP BY k.name ORDER BY k.name",
        values,
    )
    return dict(rows)


def delete_selected(db: LockWaitingConnection, selection: Selection) -> None:
    """Delete the selected observations, and what is kept once for them alone."""
    condition, values = selection.condition()
    db.execute(
        f"DELETE FROM observations WHERE id IN (SELECT o.id FROM observations o WHERE {condition})",
        values,
    )
    for table, column in (
        ("kinds", "kind"),
        ("executions", "execution"),
        ("places", "place"),
        ("parameter_names", "parameter_names"),
    ):
        db.execute(
            f"DELETE FROM {table} WHERE id NOT IN "
            f"(SELECT {column} FROM observations WHERE {column} IS NOT NULL)"
        )
    delete_lost_forecasts(db)
    delete_lost_sizes(db)


def _seconds(micros: int | None) -> float | None:
    return None if micros is None else micros / MICRO
