"""
What is asked of elements of jobs after their submission: to begin anew.

A further task of the service then stands for an element. Each change is on disk before the service
hears of it, and stays until the service has it.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import msgspec

from bursar.remote.messages import TaskSpec
from bursar.slurm_shim.jobs import JobElement
from bursar.sqlite_file import LockWaitingConnection

TABLES = (
    # Tasks in place of an element's first one; of several the last one counts.
    """CREATE TABLE reruns (
        id INTEGER PRIMARY KEY, number INTEGER NOT NULL, restarts INTEGER NOT NULL,
        again INTEGER NOT NULL, replaces INTEGER NOT NULL, instance TEXT NOT NULL,
        task INTEGER)""",
    "CREATE INDEX rerun_by_element ON reruns (number)",
    "CREATE INDEX rerun_by_task ON reruns (instance, task)",
    """CREATE VIEW placed AS
        SELECT elements.number, elements.job, elements.position, elements.state,
            coalesce(last.instance, jobs.instance) AS instance,
            CASE WHEN last.id IS NULL THEN jobs.first + elements.position
                ELSE last.task END AS task
        FROM elements JOIN jobs ON jobs.id = elements.job
        LEFT JOIN reruns AS last ON last.id =
            (SELECT max(id) FROM reruns WHERE reruns.number = elements.number)""",
)
"""SQL that makes the tables, after those of jobs and elements."""

SPECS = msgspec.json.Decoder(list[TaskSpec])
"""Reads the tasks of a job as they are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredRerun:
    """
    A task in place of an element's earlier one, that no service has acknowledged.

    Parameters
    ----------
    spec
        The task, without those that it comes after.
    restarts
        How often the element has been put back to begin anew.
    again
        Whether the element begins anew once its earlier task has ended; else it never began, and
        waits for another that does.
    replaces
        The earlier task.
    """

    id: int
    element: JobElement
    instance: str
    spec: TaskSpec
    restarts: int
    again: bool
    replaces: int


class ElementChanges:
    """
    Changes of elements in a book of jobs.

    Parameters
    ----------
    db
        The book's connection.
    changing
        Opens a transaction, whose errors are those of the book.
    rows
        Returns the rows of a query.
    find
        Returns elements by their numbers.
    """

    def __init__(
        self,
        db: LockWaitingConnection,
        changing: Callable[[], AbstractContextManager[None]],
        rows: Callable[..., list[tuple[Any, ...]]],
        find: Callable[[list[int]], list[JobElement]],
    ) -> None:
        self._db = db
        self._changing = changing
        self._rows = rows
        self._find = find

    def put_back(self, elements: Iterable[int], *, again: int) -> None:
        """
        Have an element begin anew, and those that wait for it wait on; durable on return.

        Parameters
        ----------
        elements
            Numbers of elements that have tasks, each of which gets a further one.
        again
            The one that begins anew.
        """
        with self._changing():
            for number in elements:
                self._db.execute(
                    "INSERT INTO reruns (number, restarts, again, replaces, instance) "
                    "SELECT ?1, (SELECT coalesce(sum(again), 0) FROM reruns WHERE number = ?1) "
                    "+ ?2, ?2, task, instance FROM placed WHERE number = ?1",
                    (number, number == again),
                )
                self._db.execute(
                    "UPDATE elements SET state = 'PENDING', start = 0, \"end\" = 0, "
                    "exit_code = 0, host = '', max_rss = 0, user_seconds = 0, "
                    "system_seconds = 0, reason = ? WHERE number = ?",
                    ("None", number),
                )

    def deliver_rerun(self, rerun: int, task: int) -> None:
        """Note which task of a service stands in place of an earlier one."""
        with self._changing():
            self._db.execute("UPDATE reruns SET task = ? WHERE id = ?", (task, rerun))

    def give_up(self, rerun: UndeliveredRerun, now: float) -> None:
        """Cancel an element that can never begin anew, as what it waits for has not gone well."""
        with self._changing():
            self._db.execute("DELETE FROM reruns WHERE id = ?", (rerun.id,))
            self._db.execute(
                "UPDATE elements SET state = 'CANCELLED', \"end\" = ?, "
                "reason = 'DependencyNeverSatisfied' WHERE number = ?",
                (now, rerun.element.number),
            )

    def reruns(self) -> list[UndeliveredRerun]:
        """Return the tasks in place of earlier ones that no service has acknowledged, by age."""
        rows = self._rows(
            "SELECT id, number, restarts, again, replaces, instance FROM reruns "
            "WHERE task IS NULL ORDER BY id"
        )
        found = []
        of_jobs: dict[int, list[TaskSpec]] = {}
        for rerun, number, restarts, again, replaces, instance in rows:
            (element,) = self._find([number])
            if element.job not in of_jobs:
                ((specs,),) = self._rows("SELECT specs FROM jobs WHERE id = ?", element.job)
                of_jobs[element.job] = SPECS.decode(specs)
            found.append(
                UndeliveredRerun(
                    id=rerun,
                    element=element,
                    instance=instance,
                    spec=of_jobs[element.job][element.position],
                    restarts=restarts,
                    again=bool(again),
                    replaces=replaces,
                )
            )
        return found
