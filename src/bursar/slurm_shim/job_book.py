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
from bursar.slurm_shim.jobs import JobElement, JobFacts, state_of
from bursar.sqlite_file import (
    SqliteSchema,
    transaction,
    translate_sqlite_errors,
)

LAYOUT = SqliteSchema(
    what="book of jobs",
    key="slurm-shim",
    format="1",
    statements=(
        """CREATE TABLE jobs (
            id INTEGER PRIMARY KEY, count INTEGER NOT NULL, facts BLOB NOT NULL,
            submitted REAL NOT NULL, instance TEXT NOT NULL, first INTEGER, specs BLOB,
            unwanted INTEGER NOT NULL DEFAULT 0)""",
        "CREATE INDEX by_task ON jobs (instance, first)",
        """CREATE TABLE elements (
            number INTEGER PRIMARY KEY, job INTEGER NOT NULL, position INTEGER NOT NULL,
            "index" INTEGER, state TEXT NOT NULL, start REAL NOT NULL, "end" REAL NOT NULL,
            exit_code INTEGER NOT NULL, host TEXT NOT NULL, max_rss INTEGER NOT NULL,
            user_seconds REAL NOT NULL, system_seconds REAL NOT NULL, reason TEXT NOT NULL)""",
        "CREATE INDEX by_job ON elements (job)",
        'CREATE INDEX by_state ON elements (state, "end")',
        """CREATE TABLE instances (
            number INTEGER PRIMARY KEY, handle TEXT NOT NULL UNIQUE, cursor INTEGER NOT NULL)""",
    ),
)

_SPECS = msgspec.json.Decoder(list[TaskSpec])
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
                "UPDATE jobs SET instance = ?, first = ?, specs = NULL WHERE id = ?",
                (instance, first, job),
            )

    def give_up(self, job: int) -> None:
        """Note that the user of a job that may be at a service was told that it is not."""
        with self._changing():
            self._db.execute(
                "UPDATE jobs SET unwanted = 1 WHERE id = ? AND specs IS NOT NULL", (job,)
            )

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

    def record(self, instance: str, results: Iterable[Result], now: float) -> None:
        """Record the ends of tasks, each once; ``now``: for those that never began."""
        with self._changing():
            for result in results:
                self._db.execute(
                    "UPDATE instances SET cursor = max(cursor, ?) WHERE handle = ?",
                    (result.cursor, instance),
                )
                number = self._element(instance, result.task)
                if number is None:
                    continue
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
            self._db.execute("DELETE FROM instances WHERE handle = ?", (instance,))

    # What is read.

    def undelivered(self) -> list[UndeliveredJob]:
        """Return the jobs that no service has acknowledged, the oldest first."""
        rows = self._rows(
            "SELECT id, facts, specs, unwanted FROM jobs WHERE specs IS NOT NULL ORDER BY id"
        )
        return [
            UndeliveredJob(
                id=job,
                facts=_FACTS.decode(facts),
                specs=_SPECS.decode(specs),
                is_unwanted=bool(unwanted),
            )
            for job, facts, specs, unwanted in rows
        ]

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
            "SELECT max(first + count) FROM jobs WHERE instance = ? AND first IS NOT NULL",
            instance,
        )
        return int(rows[0][0] or 0)

    def first_unended(self, instance: str) -> int | None:
        """Return the first task of an instance that has not ended; None: all have."""
        rows = self._rows(
            "SELECT min(jobs.first + elements.position) FROM elements JOIN jobs "
            "ON jobs.id = elements.job WHERE state IN ('PENDING', 'RUNNING') AND instance = ?",
            instance,
        )
        return None if rows[0][0] is None else int(rows[0][0])

    def task(self, job: int, position: int) -> tuple[str, int] | None:
        """Return the instance and number of an element's task; None: no service has it."""
        rows = self._rows("SELECT instance, first FROM jobs WHERE id = ? AND first NOT NULL", job)
        return None if not rows else (rows[0][0], rows[0][1] + position)

    def elements(
        self, jobs: Iterable[int] | None = None, *, ended_since: float | None = None
    ) -> list[JobElement]:
        """
        Return elements by number.

        Parameters
        ----------
        jobs
            Of these jobs, by the job's number or by an element's own; None: of all.
        ended_since
            Leaves out elements that ended before; None: none.
        """
        rows = self._rows(
            """SELECT job, position, "index", state, start, "end", exit_code, host, max_rss,
            user_seconds, system_seconds, reason, facts, submitted
            FROM elements JOIN jobs ON jobs.id = elements.job
            WHERE (?1 IS NULL OR state IN ('PENDING', 'RUNNING') OR "end" >= ?1)
            AND (?2 IS NULL OR job IN (SELECT value FROM json_each(?2))
                OR number IN (SELECT value FROM json_each(?2)))
            ORDER BY number""",
            ended_since,
            None if jobs is None else msgspec.json.encode(list(jobs)).decode(),
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
        """Return the number of the element that a task of a service is."""
        rows = self._db.execute(
            "SELECT id + ? - first, first + count FROM jobs WHERE instance = ? AND first <= ? "
            "ORDER BY first DESC LIMIT 1",
            (task, instance, task),
        )
        for number, end in rows:
            return int(number) if task < end else None
        return None


def _elements(rows: Iterable[tuple[Any, ...]]) -> Iterator[JobElement]:
    last: tuple[bytes, JobFacts] | None = None  # elements of an array share them
    for *fields, facts, submitted in rows:
        if last is None or last[0] != facts:
            last = facts, _FACTS.decode(facts)
        job, position, index, state, start, end, exit_code, host, rss, user, system, why = fields
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
        )
