"""Observations of a history as arrays, and how these are read from the file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from bursar.history.encoding import MICRO, STATUS_CODES, ParameterNames
from bursar.history.observation import CENSORED, TaskObservation
from bursar.history.writing import read_sizes
from bursar.model.task import Status, Value
from bursar.sqlite_file import LockWaitingConnection

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# SQLite has no NaN: what is unknown is read as -1, which no column holds otherwise.
_COLUMNS = (
    "execution, place, status, seconds, speed, processors, start, "
    "ifnull(input_bytes, -1), ifnull(estimate, -1), ifnull(waited, -1), "
    "ifnull(transferred, -1), ifnull(max_rss, -1), ifnull(user_seconds + system_seconds, -1)"
)
_ROW = np.dtype(
    [
        ("execution", np.int64),
        ("place", np.int64),
        ("status", np.int8),
        ("seconds", np.float64),
        ("speed", np.float64),
        ("processors", np.int32),
        ("start", np.float64),
        ("input_bytes", np.float64),
        ("estimate", np.float64),
        ("waited", np.float64),
        ("transferred", np.float64),
        ("max_rss", np.float64),
        ("processor_seconds", np.float64),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservationColumns:
    """
    Observations as arrays, each of shape ``(n,)``: by kind as asked for, newest first.

    Parameters
    ----------
    kinds, templates, executions, sites
        Names that the indices of the next four arrays stand for.
    kind, template, execution, site
        Indices into these names.
    seconds
        Run time at the site, seconds.
    speed
        Speed of the site beside speed 1.
    processors
        Processors that the attempt held.
    status
        Index into :data:`bursar.history.encoding.STATUSES`.
    input_bytes, estimate, waited, transferred, max_rss
        See :class:`~bursar.history.observation.TaskObservation`; NaN where unknown.
    processor_seconds
        Processor time that the attempt used; NaN where unknown.
    start
        Seconds since the epoch; 0 where unknown.
    parameters
        Values of each observation by name; None unless they were asked for.
    sizes
        Number of tasks of whole campaigns by the name of the execution, where it is known.
    """

    kinds: tuple[str, ...]
    templates: tuple[str, ...]
    executions: tuple[str, ...]
    sites: tuple[str, ...]
    kind: IntArray
    template: IntArray
    execution: IntArray
    site: IntArray
    seconds: FloatArray
    speed: FloatArray
    processors: IntArray
    status: IntArray
    input_bytes: FloatArray
    estimate: FloatArray
    waited: FloatArray
    transferred: FloatArray
    max_rss: FloatArray
    processor_seconds: FloatArray
    start: FloatArray
    parameters: Sequence[Mapping[str, Value]] | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def is_censored(self) -> BoolArray:
        """Whether each attempt was stopped, so that its run time is only a lower bound."""
        found: BoolArray = np.isin(self.status, [STATUS_CODES[status] for status in CENSORED])
        return found

    @property
    def has_succeeded(self) -> BoolArray:
        """Whether each attempt succeeded."""
        found: BoolArray = self.status == STATUS_CODES[Status.SUCCEEDED]
        return found

    def rows(self, chosen: IntArray) -> "ObservationColumns":
        """Return some of the observations, by their places."""
        arrays = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        if self.parameters is not None:
            arrays["parameters"] = [self.parameters[at] for at in chosen.tolist()]
        return replace(self, **arrays)


_ARRAYS = (
    "kind", "template", "execution", "site", "seconds", "speed", "processors", "status",
    "input_bytes", "estimate", "waited", "transferred", "max_rss", "processor_seconds", "start",
)  # fmt: skip
"""Fields of observations that are arrays."""


def columns_of(
    kinds: Sequence[str], observations: Sequence[TaskObservation], parameters: bool
) -> ObservationColumns:
    """
    Return observations that are in memory, in their order.

    Parameters
    ----------
    kinds
        Names of kinds, that of each observation among them.
    parameters
        Whether the values of parameters are kept.
    """
    names: dict[str, dict[str, int]] = {"template": {}, "execution": {}, "site": {}}
    numbers: dict[str, IntArray] = {}
    for column, index in names.items():
        found = [index.setdefault(getattr(one, column), len(index)) for one in observations]
        numbers[column] = np.array(found, dtype=np.int64)
    of_kind = {name: number for number, name in enumerate(kinds)}

    def numeric(column: str) -> FloatArray:
        values = [getattr(one, column) for one in observations]
        return np.array([np.nan if value is None else value for value in values], dtype=np.float64)

    used = [
        None
        if one.user_seconds is None and one.system_seconds is None
        else (one.user_seconds or 0.0) + (one.system_seconds or 0.0)
        for one in observations
    ]
    return ObservationColumns(
        kinds=tuple(kinds),
        templates=tuple(names["template"]),
        executions=tuple(names["execution"]),
        sites=tuple(names["site"]),
        kind=np.array([of_kind[one.kind] for one in observations], dtype=np.int64),
        template=numbers["template"],
        execution=numbers["execution"],
        site=numbers["site"],
        seconds=numeric("seconds"),
        speed=numeric("speed"),
        processors=np.array([one.processors for one in observations], dtype=np.int64),
        status=np.array([STATUS_CODES[one.status] for one in observations], dtype=np.int64),
        input_bytes=numeric("input_bytes"),
        estimate=numeric("estimate"),
        waited=numeric("waited"),
        transferred=numeric("transferred"),
        max_rss=numeric("max_rss"),
        processor_seconds=np.array(
            [np.nan if value is None else value for value in used], dtype=np.float64
        ),
        start=numeric("start"),
        parameters=[one.parameters for one in observations] if parameters else None,
    )


def joined_columns(first: ObservationColumns, second: ObservationColumns) -> ObservationColumns:
    """Return the observations of the first and then of the second, which have the same kinds."""
    arrays = {
        name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in _ARRAYS
    }
    named: dict[str, tuple[str, ...]] = {}
    for names, numbers in (
        ("templates", "template"),
        ("executions", "execution"),
        ("sites", "site"),
    ):
        index = {name: number for number, name in enumerate(getattr(first, names))}
        moved = [index.setdefault(name, len(index)) for name in getattr(second, names)]
        of_second = np.array(moved, dtype=np.int64)[getattr(second, numbers)]
        arrays[numbers] = np.concatenate([getattr(first, numbers), of_second])
        named[names] = tuple(index)
    values = None
    if first.parameters is not None and second.parameters is not None:
        values = [*first.parameters, *second.parameters]
    return ObservationColumns(
        kinds=first.kinds,
        templates=named["templates"],
        executions=named["executions"],
        sites=named["sites"],
        parameters=values,
        sizes={**second.sizes, **first.sizes},
        **arrays,
    )


def read_columns(
    db: LockWaitingConnection | None, kinds: Sequence[str], newest: int | None, parameters: bool
) -> ObservationColumns:
    parts: list[NDArray[np.void]] = []
    templates: dict[str, int] = {}
    kind_parts: list[NDArray[np.void]] = []
    template_parts: list[NDArray[np.void]] = []
    values: list[Mapping[str, Value]] = []
    names = ParameterNames(db) if db is not None and parameters else None
    for index, name in enumerate(kinds if db is not None else ()):
        assert db is not None
        tables, labels, texts = [], [], []
        for number, template in db.execute(
            "SELECT id, template FROM kinds WHERE name = ? ORDER BY id", (name,)
        ).fetchall():
            where = "FROM observations WHERE kind = ? ORDER BY start DESC LIMIT ?"
            limits = (number, -1 if newest is None else newest)
            rows = np.fromiter(db.execute(f"SELECT {_COLUMNS} {where}", limits), dtype=_ROW)
            tables.append(rows)
            label = templates.setdefault(template, len(templates))
            labels.append(np.full(len(rows), label))
            if names is not None:
                packed = db.execute(f"SELECT parameter_names, parameters {where}", limits)
                texts += [names.mapping(*row) for row in packed]
        if not tables:
            continue
        table, label_column = np.concatenate(tables), np.concatenate(labels)
        if len(tables) > 1:
            order = np.argsort(-table["start"], kind="stable")[:newest]
            table, label_column = table[order], label_column[order]
            if names is not None:
                texts = [texts[i] for i in order]
        parts.append(table)
        template_parts.append(label_column)
        kind_parts.append(np.full(len(table), index))
        values += texts
    table = np.concatenate(parts) if parts else np.empty(0, dtype=_ROW)
    execution_names, execution = _named(db, "SELECT id, name FROM executions", table["execution"])
    sites, site = _named(db, "SELECT id, site FROM places", table["place"])
    return ObservationColumns(
        kinds=tuple(kinds),
        templates=tuple(templates),
        executions=execution_names,
        sites=sites,
        kind=np.concatenate(kind_parts) if kind_parts else np.empty(0, dtype=np.int64),
        template=np.concatenate(template_parts) if template_parts else np.empty(0, dtype=np.int64),
        execution=execution,
        site=site,
        seconds=table["seconds"] / MICRO,
        speed=table["speed"].copy(),
        processors=table["processors"].astype(np.int64),
        status=table["status"].astype(np.int64),
        input_bytes=_known(table["input_bytes"]),
        estimate=_known(table["estimate"]) / MICRO,
        waited=_known(table["waited"]) / MICRO,
        transferred=_known(table["transferred"]) / MICRO,
        max_rss=_known(table["max_rss"]),
        processor_seconds=_known(table["processor_seconds"]) / MICRO,
        start=table["start"] / MICRO,
        parameters=values if parameters else None,
        sizes={} if db is None else read_sizes(db),
    )


def _known(column: FloatArray) -> FloatArray:
    return np.where(column < 0, np.nan, column)


def _named(
    db: LockWaitingConnection | None, query: str, numbers: IntArray
) -> tuple[tuple[str, ...], IntArray]:
    """Return the names that some numbers of rows stand for, and the index of each name."""
    used, inverse = np.unique(numbers, return_inverse=True)
    if db is None:
        return (), inverse.astype(np.int64)
    wanted = set(used.tolist())
    by_number = {number: name for number, name in db.execute(query) if number in wanted}
    indices: dict[str, int] = {}
    # Several places may be of one site.
    lookup = [indices.setdefault(by_number[n], len(indices)) for n in used.tolist()]
    return tuple(indices), np.array(lookup, dtype=np.int64)[inverse]
