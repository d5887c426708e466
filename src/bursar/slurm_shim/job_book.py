"""
The jobs that stand-ins of Slurm's commands know, in one SQLite file.

A job is in the file, with the tasks that it is to be, before a service hears of it: whoever is
killed in between leaves a job that the next command hands over, once, under the same key.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bursar.remote.messages import Result, TaskSpec, TaskState
from bursar.slurm_shim.element_changes import SPECS, TABLES, ElementChanges
from bursar.slurm_shim.jobs import JobElement, JobFacts, state_of
from bursar.sqlite_file import (
    SqliteSchema,
    transaction,
    translate_sqlite_errors,
)

LAYOUT = SqliteSchema(
    what="book of jobs",
    key="slurm-shim",
    format="2",
    statements=(
        """CREATE TABLE jobs (
            id INTEGER PRIMARY KEY, count INTEGER NOT NULL, facts BLOB NOT NULL,
            submitted REAL NOT NULL, instance TEXT NOT NULL, first INTEGER, specs BLOB,
            unwanted INTEGER NOT NULL DEFAULT 0)""",
        "CREATE INDEX by_task ON jobs (instance, first)",
        "CREATE INDEX with_specs ON jobs (id) WHERE specs NOT NULL",
        """CREATE TABLE elements (
            number INTEGER PRIMARY KEY, job INTEGER NOT NULL, position INTEGER NOT NULL,
            "index" INTEGER, state TEXT NOT NULL, start REAL NOT NULL, "end" REAL NOT NULL,
            exit_code INTEGER NOT NULL, host TEXT NOT NULL, max_rss INTEGER NOT NULL,
            user_seconds REAL NOT NULL, system_seconds REAL NOT NULL, reason TEXT NOT NULL)""",
        "CREATE INDEX by_job ON elements (job)",
        'CREATE INDEX by_state ON elements (state, "end")',
        """CREATE TABLE instances (
            number INTEGER PRIMARY KEY, handle TEXT NOT NULL UNIQUE, cursor INTEGER NOT NULL)""",
        *TABLES,
    ),
)

MOST_AGE = 300.0
"""Seconds for which squeue and scontrol know a job that has ended, as Slurm's MinJobAge."""

_FACTS = msgspec.json.Decoder(JobFacts)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredJob:
    """
    A job that no service has acknowledged.

    Parameters
    ----------
    specs
        Its tasks, without those that they come after.
    is_unwanted
        Whether its user was told that it was not submitted, although it may have been.
    """

    id: int
    facts: JobFacts
    specs: list[TaskSpec]
    is_unwanted: bool = False


class JobBook:
    """
    Jobs and their elements.

    Parameters
    ----------
    path
        Path of the file, which is made if it is missing.

    Raises
    ------
    InputError
        When the file is another program's, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with translate_sqlite_errors(path, LAYOUT.what):
            # A number that was printed must not be given twice, not even after a power cut.
            self._db = LAYOUT.open(path, "FULL")
        self.changes = ElementChanges(
            self._db,
            self._changing,
            self._rows,
            lambda numbers: self.elements(numbers, exactly=True),
        )
        """What was asked of elements after their submission."""

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # What is written.

    def add(
        self,
        facts: JobFacts,
        indices: Sequence[int | None],
        make_specs: Callable[[int], Sequence[TaskSpec]],
        now: float,
    ) -> int:
        """
        Add a job, which is durable on return, and return its number.

        Parameters
        ----------
        indices
            Index of each element; None: no array job.
        make_specs
            Makes the task of each element from the job's number.
        now
            Seconds since the epoch.
        """
        with self._changing():
            # Kept for as long as an element may be put back.
            self._db.execute(
                "UPDATE jobs SET specs = NULL WHERE specs NOT NULL AND first NOT NULL AND NOT "
                "EXISTS (SELECT 1 FROM elements WHERE job = jobs.id "
                "AND (state IN ('PENDING', 'RUNNING') OR \"end\" > ?))",
                (now - MOST_AGE,),
            )
            row = self._db.execute("SELECT id + count FROM jobs ORDER BY id DESC LIMIT 1").get
            job = int(row or 1)
            specs = make_specs(job)
            self._db.execute(
                "INSERT INTO jobs VALUES (?,?,?,?,'',NULL,?,0)",
                (job, len(specs), msgspec.json.encode(facts), now, msgspec.json.encode(specs)),
            )
            for position, index in enumerate(indices):
                self._db.execute(
                    "INSERT INTO elements VALUES (?,?,?,?,'PENDING',0,0,0,'',0,0,0,'None')",
                    (job + position, job, position, index),
                )
        return job

    def deliver(self, job: int, instance: str, first: int) -> None:
        """Note which tasks of a service a job is."""
        with self._changing():
            self._db.execute(
                "UPDATE jobs SET instance = ?, first = ? WHERE id = ?", (instance, first, job)
            )

    def give_up(self, job: int) -> None:
        """Note that the user of a job that may be at a service was told that it is not."""
        with self._changing():
            self._db.execute("UPDATE jobs SET unwanted = 1 WHERE id = ? AND first IS NULL", (job,))

    def drop(self, job: int, reason: str, now: float) -> None:
        """Cancel a job that is at no service; ``reason`` is a word of Slurm's."""
        with self._changing():
            self._db.execute("UPDATE jobs SET specs = NULL WHERE id = ?", (job,))
            self._db.execute(
                "UPDATE elements SET state = 'CANCELLED', \"end\" = ?, reason = ? WHERE job = ?",
                (now, reason, job),
            )

    def add_instance(self, handle: str) -> None:
        """Have jobs go into a new instance of the service from now on."""
        with self._changing():
            self._db.execute(
                "INSERT OR IGNORE INTO instances (handle, cursor) VALUES (?,0)", (handle,)
            )

    def record(self, instance: str, results: Iterable[Result], now: float) -> list[int]:
        """
        Record the ends of tasks, each once, and return the numbers of their elements.

        Parameters
        ----------
        now
            Seconds since the epoch, for tasks that never began.
        """
        ended = []
        with self._changing():
            for result in results:
                self._db.execute(
                    "UPDATE instances SET cursor = max(cursor, ?) WHERE handle = ?",
                    (result.cursor, instance),
                )
                number = self._element(instance, result.task)
                if number is None:
                    continue
                ended.append(number)
                state, reason = state_of(result)
                self._db.execute(
                    'UPDATE elements SET state = ?, start = ?, "end" = ?, exit_code = ?, host = ?, '
                    "max_rss = ?, user_seconds = ?, system_seconds = ?, reason = ? "
                    "WHERE number = ?",
                    (
                        *(state, result.start if result.attempt else 0.0, result.end or now),
                        *(result.exit_code or 0, result.host, result.max_rss),
                        *(result.user_seconds, result.system_seconds, reason, number),
                    ),
                )
        return ended

    def record_states(
        self, instance: str, states: Iterable[tuple[int, TaskState]], now: float
    ) -> None:
        """Record which tasks run, from ``now`` on if they did not run before, and which wait."""
        with self._changing():
            for task, state in states:
                number = self._element(instance, task)
                if number is None or state not in ("running", "waiting"):
                    continue
                runs = state == "running"
                self._db.execute(
                    "UPDATE elements SET state = ?, start = ? WHERE number = ? AND state = ?",
                    (
                        "RUNNING" if runs else "PENDING",
                        now if runs else 0.0,
                        number,
                        "PENDING" if runs else "RUNNING",
                    ),
                )

    def lose(self, instance: str, now: float) -> None:
        """Record that a service knows nothing of an instance any more."""
        with self._changing():
            self._db.execute(
                "UPDATE elements SET state = 'NODE_FAIL', \"end\" = ?, reason = 'NodeDown' "
                "WHERE state IN ('PENDING', 'RUNNING') "
                "AND job IN (SELECT id FROM jobs WHERE instance = ?)",
                (now, instance),
            )
            self._db.execute("DELETE FROM reruns WHERE instance = ? AND task IS NULL", (instance,))
            self._db.execute("DELETE FROM instances WHERE handle = ?", (instance,))

    # What is read.

    def undelivered(self) -> list[UndeliveredJob]:
        """Return the jobs that no service has acknowledged, the oldest first."""
        rows = self._rows(
            "SELECT id, facts, specs, unwanted FROM jobs "
            "WHERE specs NOT NULL AND first IS NULL ORDER BY id"
        )
        return [
            UndeliveredJob(
                id=job,
                facts=_FACTS.decode(facts),
                specs=SPECS.decode(specs),
                is_unwanted=bool(unwanted),
            )
            for job, facts, specs, unwanted in rows
        ]

    def has_specs(self, job: int) -> bool:
        """Whether the tasks of a job are kept, so that it may begin anew."""
        return bool(self._rows("SELECT 1 FROM jobs WHERE id = ? AND specs NOT NULL", job))

    def instance(self) -> str | None:
        """Return the instance that jobs go into; None: there is none yet."""
        found = self._rows("SELECT handle FROM instances ORDER BY number DESC LIMIT 1")
        return found[0][0] if found else None

    def cursor(self, instance: str) -> int:
        """Return the cursor of the last result of an instance that is known."""
        found = self._rows("SELECT cursor FROM instances WHERE handle = ?", instance)
        return int(found[0][0]) if found else 0

    def tasks(self, instance: str) -> int:
        """Return how many tasks jobs have in an instance."""
        rows = self._rows(
            "SELECT max((SELECT coalesce(max(first + count), 0) FROM jobs WHERE instance = ?1), "
            "(SELECT coalesce(max(task + 1), 0) FROM reruns WHERE instance = ?1))",
            instance,
        )
        return int(rows[0][0] or 0)

    def first_unended(self, instance: str) -> int | None:
        """Return the first task of an instance that has not ended; None: all have."""
        rows = self._rows(
            "SELECT min(task) FROM placed WHERE state IN ('PENDING', 'RUNNING') AND instance = ?",
            instance,
        )
        return None if rows[0][0] is None else int(rows[0][0])

    def task(self, job: int, position: int) -> tuple[str, int] | None:
        """Return the instance and number of an element's task; None: no service has it."""
        rows = self._rows(
            "SELECT instance, task FROM placed WHERE number = ? AND task NOT NULL", job + position
        )
        return None if not rows else (rows[0][0], rows[0][1])

    def elements(
        self,
        jobs: Iterable[int] | None = None,
        *,
        ended_since: float | None = None,
        exactly: bool = False,
    ) -> list[JobElement]:
        """
        Return elements by number.

        Parameters
        ----------
        jobs
            Of these jobs, by the job's number or by an element's own; None: of all.
        ended_since
            Leaves out elements that ended before; None: none.
        exactly
            Whether numbers are those of elements, and never of whole jobs.
        """
        rows = self._rows(
            """SELECT job, position, "index", state, start, "end", exit_code, host, max_rss,
            user_seconds, system_seconds, reason,
            coalesce((SELECT max(restarts) FROM reruns WHERE reruns.number = elements.number), 0),
            facts, submitted FROM elements JOIN jobs ON jobs.id = elements.job
            WHERE (?1 IS NULL OR state IN ('PENDING', 'RUNNING') OR "end" >= ?1)
            AND (?2 IS NULL OR (NOT ?3 AND job IN (SELECT value FROM json_each(?2)))
                OR number IN (SELECT value FROM json_each(?2)))
            ORDER BY number""",
            ended_since,
            None if jobs is None else msgspec.json.encode(list(jobs)).decode(),
            exactly,
        )
        return list(_elements(rows))

    # How the file is used.

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with translate_sqlite_errors(self._path, LAYOUT.what), transaction(self._db):
            yield

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with translate_sqlite_errors(self._path, LAYOUT.what):
            return list(self._db.execute(sql, values))

    def _element(self, instance: str, task: int) -> int | None:
        """Return the number of the element that a task of a service is; None: of none now."""
        rows = self._db.execute(
            "SELECT number FROM reruns WHERE instance = ?1 AND task = ?2 UNION ALL "
            "SELECT * FROM (SELECT id + ?2 - first FROM jobs WHERE instance = ?1 "
            "AND first <= ?2 AND ?2 < first + count ORDER BY first DESC LIMIT 1)",
            (instance, task),
        )
        for (number,) in rows:
            now = self._db.execute("SELECT task FROM placed WHERE number = ?", (number,)).get
            return int(number) if now == task else None
        return None


def _elements(rows: Iterable[tuple[Any, ...]]) -> Iterator[JobElement]:
    last: tuple[bytes, JobFacts] | None = None  # elements of an array share them
    for *fields, facts, submitted in rows:
        if last is None or last[0] != facts:
            last = facts, _FACTS.decode(facts)
        job, position, index, state, start, end, exit_code, host, *used, why, restarts = fields
        rss, user, system = used
        yield JobElement(
            job=job,
            position=position,
            index=index,
            facts=last[1],
            submitted=submitted,
            state=state,
            start=start,
            end=end,
            exit_code=exit_code,
            host=host,
            max_rss=rss,
            user_seconds=user,
            system_seconds=system,
            reason=why,
            restarts=restarts,
        )
