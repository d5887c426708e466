"""How observations are written into the file of a history, and what the file forgets."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from bursar.history.encoding import MICRO, STATUS_CODES
from bursar.history.observation import TaskObservation
from bursar.model.task import Value
from bursar.sqlite_file import LockWaitingConnection

KEEP_ROWS = 100_000
"""Observations of a kind that are kept by default, the newest."""

_SIZES = "CREATE TABLE IF NOT EXISTS sizes (execution INTEGER PRIMARY KEY, tasks INTEGER NOT NULL)"
"""
Numbers of tasks of executions. A file of an earlier Bursar gets the table with the first of them.
"""

_HAS_SIZES = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'sizes'"

_VALUES = f"INTO observations VALUES (NULL,{','.join('?' * 19)})"


class ExecutionFacts(msgspec.Struct, frozen=True, kw_only=True):
    """
    An execution whose tasks were observed.

    Parameters
    ----------
    name
        Unique in the history.
    campaign
        Name of what was executed; executions of one campaign can be compared.
    source
        Who observed, see :class:`~bursar.history.observation.TaskObservation`.
    begun
        Seconds since the epoch; 0 when unknown.
    site_kinds
        Kind of each site by name, as far as it is known.
    tasks
        Number of tasks of the whole campaign, of which a probe or a run that was stopped has
        observed some; 0 when unknown.
    """

    name: str
    campaign: str = ""
    source: str = "run"
    begun: float = 0.0
    site_kinds: Mapping[str, str] = {}
    tasks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRules:
    """
    Rules for what a history keeps, applied whenever something is written.

    Parameters
    ----------
    rows
        Observations of each kind, the newest; up to a twentieth more lie in the file meanwhile.
    days
        Age after which observations are forgotten; None: never.
    hashes
        Whether values of parameters are kept as digests only, and with them the ids of tasks that
        have parameters. Digests are keyed by a secret of the file, and can be compared within it.
    """

    rows: int = KEEP_ROWS
    days: float | None = None
    hashes: bool = False


class ObservationWriter:
    """Writes observations within a transaction, and knows the numbers of what is kept once."""

    def __init__(self, db: LockWaitingConnection, secret: bytes | None) -> None:
        self._db = db
        self._secret = secret
        self._kinds: dict[tuple[str, str], int] = {}
        self._executions: dict[str, int] = {}
        self._places: dict[tuple[str, str], int] = {}
        self._names: dict[tuple[str, ...], int] = {}
        self._encode = msgspec.msgpack.Encoder().encode

    def note_execution(self, facts: ExecutionFacts) -> None:
        self._db.execute(
            "INSERT INTO executions (name, campaign, source, begun, site_kinds) "
            "VALUES (?,?,?,?,?) ON CONFLICT (name) DO UPDATE SET "
            "campaign = excluded.campaign, begun = excluded.begun, "
            "site_kinds = excluded.site_kinds",
            (
                facts.name,
                facts.campaign,
                facts.source,
                round(facts.begun * MICRO),
                msgspec.json.encode(facts.site_kinds, order="sorted").decode(),
            ),
        )
        if facts.tasks:
            self._db.execute(_SIZES)
            self._db.execute(
                "INSERT OR REPLACE INTO sizes VALUES (?,?)",
                (self.number_of(facts.name), facts.tasks),
            )

    def number_of(self, execution: str) -> int:
        """Return the number of an execution that was noted."""
        number = self._find("executions", name=execution)
        assert number is not None
        return number

    def write(self, batch: Sequence[TaskObservation], *, only_new: bool) -> None:
        insert = f"INSERT OR {'IGNORE' if only_new else 'REPLACE'} {_VALUES}"
        self._db.executemany(insert, map(self._row, batch))
        for (name, template), rows in groupby(sorted((o.kind, o.template) for o in batch)):
            self._db.execute(
                "UPDATE kinds SET added = added + ? WHERE id = ?",
                (sum(1 for _ in rows), self._kinds[name, template]),
            )

    def kinds_written(self) -> Iterable[int]:
        """Return the numbers of the kinds that observations were written of."""
        return self._kinds.values()

    def _row(self, seen: TaskObservation) -> tuple[Any, ...]:
        task, names, values = seen.task, None, None
        if seen.parameters:
            names = self._name_set(tuple(seen.parameters))
            kept = list(seen.parameters.values())
            if self._secret is not None:
                # The id often repeats the values.
                task, kept = self._digest(task), [self._digest(value) for value in kept]
            values = self._encode(kept)
        return (
            self._kind(seen.kind, seen.template),
            round(seen.start * MICRO),
            self._execution(seen),
            task,
            seen.attempt,
            STATUS_CODES[seen.status],
            round(seen.seconds * MICRO),
            self._place(seen.site, seen.host),
            seen.processors,
            seen.speed,
            seen.input_bytes,
            _micros(seen.estimate),
            _micros(seen.waited),
            _micros(seen.transferred),
            seen.max_rss,
            _micros(seen.user_seconds),
            _micros(seen.system_seconds),
            names,
            values,
        )

    def _digest(self, value: Value) -> str:
        assert self._secret is not None
        data = self._encode(value)
        return hashlib.blake2b(data, key=self._secret, digest_size=8).hexdigest()

    def _kind(self, name: str, template: str) -> int:
        if (name, template) not in self._kinds:
            self._kinds[name, template] = self._intern("kinds", name=name, template=template)
        return self._kinds[name, template]

    def _place(self, site: str, host: str) -> int:
        if (site, host) not in self._places:
            self._places[site, host] = self._intern("places", site=site, host=host)
        return self._places[site, host]

    def _name_set(self, names: tuple[str, ...]) -> int:
        if names not in self._names:
            text = msgspec.json.encode(names).decode()
            self._names[names] = self._intern("parameter_names", names=text)
        return self._names[names]

    def _execution(self, seen: TaskObservation) -> int:
        name = seen.execution
        if name not in self._executions:
            number = self._find("executions", name=name)
            if number is None:
                self.note_execution(ExecutionFacts(name=name, source=seen.source, begun=seen.start))
                number = self._find("executions", name=name)
            assert number is not None
            self._executions[name] = number
        return self._executions[name]

    def _find(self, table: str, **columns: str) -> int | None:
        where = " AND ".join(f"{column} = ?" for column in columns)
        found: int | None = self._db.execute(
            f"SELECT id FROM {table} WHERE {where}", tuple(columns.values())
        ).get
        return found

    def _intern(self, table: str, **columns: str) -> int:
        number = self._find(table, **columns)
        if number is None:
            marks = ",".join("?" * len(columns))
            self._db.execute(
                f"INSERT INTO {table} ({','.join(columns)}) VALUES ({marks})",
                tuple(columns.values()),
            )
            number = self._db.last_insert_rowid()
        return number


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * MICRO)


def read_sizes(db: LockWaitingConnection) -> dict[str, int]:
    """Return the number of tasks of each execution that told it, by the execution's name."""
    if not db.execute(_HAS_SIZES).get:
        return {}
    return dict(
        db.execute("SELECT e.name, s.tasks FROM sizes s JOIN executions e ON e.id = s.execution")
    )


def delete_lost_sizes(db: LockWaitingConnection) -> None:
    """Delete the sizes of executions that are forgotten, within a transaction."""
    if db.execute(_HAS_SIZES).get:
        db.execute("DELETE FROM sizes WHERE execution NOT IN (SELECT id FROM executions)")


def digest_secret(db: LockWaitingConnection) -> bytes:
    """Return the file's key of digests, made when it is first needed."""
    found = db.execute("SELECT value FROM meta WHERE key = 'secret'").get
    if found is None:
        found = os.urandom(32).hex()
        db.execute("INSERT INTO meta VALUES ('secret', ?)", (found,))
    return bytes.fromhex(found)


def trim(db: LockWaitingConnection, kinds: Iterable[int], rules: HistoryRules, now: float) -> None:
    """
    Forget what is beyond the rules, of kinds that have grown by a twentieth since the last time.

    Parameters
    ----------
    kinds
        Numbers of the kinds to look at.
    now
        Seconds since the epoch.
    """
    for kind in kinds:
        added = db.execute("SELECT added FROM kinds WHERE id = ?", (kind,)).get
        if added * 20 <= rules.rows:
            continue
        db.execute("UPDATE kinds SET added = 0 WHERE id = ?", (kind,))
        if rules.days is not None:
            # A date that is unknown is no age.
            db.execute(
                "DELETE FROM observations WHERE kind = ? AND start > 0 AND start < ?",
                (kind, round((now - rules.days * 86400) * MICRO)),
            )
        edge = db.execute(
            "SELECT start, id FROM observations WHERE kind = ? "
            "ORDER BY start DESC, id DESC LIMIT 1 OFFSET ?",
            (kind, rules.rows),
        ).fetchone()
        if edge is not None:
            db.execute(
                "DELETE FROM observations WHERE kind = ? AND (start, id) <= (?, ?)", (kind, *edge)
            )
