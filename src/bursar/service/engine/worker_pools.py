"""Workers of a pool from the scheduler's view, and the tasks assigned to each."""

from dataclasses import dataclass, field

from bursar.dispatch.prefetch import Prefetch
from bursar.model.money import Refusal
from bursar.service.engine.fairness import FairQueue
from bursar.service.engine.instance import Instance
from bursar.service.engine.tasks import BITS


@dataclass(slots=True, eq=False)
class RegisteredWorker:
    """
    A worker that the service knows, with the tasks assigned to the worker.

    Parameters
    ----------
    name
        Unique in the service.
    pool, lease
        Names of the pool whose tasks the worker runs, and of the lease that started the worker.
    host
        Name of the worker's machine.
    open
        Whether the worker gets new tasks; False while the worker is disconnected or leaving.
    used
        Processors that running and waiting tasks of the worker hold; more than ``processors``
        when tasks wait.
    claims
        Assignments by task number on the wire, in the order in which they were given.
    prefetch
        Decides how many tasks may wait at the worker.
    idle_since
        When the last task ended, seconds since the epoch; has no meaning while the worker has
        tasks.
    """

    name: str
    pool: str
    lease: str
    processors: int
    host: str = ""
    open: bool = True
    used: int = 0
    claims: "dict[int, TaskAssignment]" = field(default_factory=dict)
    prefetch: Prefetch = field(default_factory=Prefetch)
    idle_since: float = 0.0

    @property
    def free(self) -> int:
        """Processors that no task holds; negative: tasks wait at the worker."""
        return self.processors - self.used


class TaskAssignment:
    """
    A task that a worker has.

    Attributes
    ----------
    number, serial
        Task and attempt on the wire; a serial is never used for another attempt.
    cost
        Estimated processor-seconds that were charged to the user's share.
    limit
        Seconds after which the worker kills the task: the task's own limit, or as long as the
        user may run in the pool, whichever is less; 0: never.
    given, ends
        When the task was given and when it should end, seconds since the epoch; the end is
        infinite when unknown.
    recalled
        Whether the worker was told to stop the task.
    """

    __slots__ = (
        "cost",
        "ends",
        "given",
        "instance",
        "limit",
        "number",
        "processors",
        "recalled",
        "serial",
        "task",
        "worker",
    )

    def __init__(
        self,
        instance: Instance,
        task: int,
        serial: int,
        worker: RegisteredWorker,
        processors: int,
        given: float,
        ends: float,
        cost: float,
        limit: float,
    ) -> None:
        self.instance = instance
        self.task = task
        # One number on the wire names instance and task: tasks of two instances never meet.
        self.number = instance.number << BITS | task
        self.serial = serial
        self.worker = worker
        self.processors = processors
        self.given = given
        self.ends = ends
        self.cost = cost
        self.limit = limit
        self.recalled = False


@dataclass(slots=True)
class WorkerReservation:
    """The worker that is kept for a wide task until enough of its processors are free."""

    instance: Instance
    task: int
    worker: RegisteredWorker


@dataclass(slots=True)
class WorkerPool:
    """
    A pool of workers, and the instances whose ready tasks may run on these workers.

    Parameters
    ----------
    workers
        Workers by name.
    members
        Instances with ready tasks, by number.
    users, instances
        Turns of the users, and of the instances of each user.
    wide
        Numbers of instances that may have ready tasks of more than one processor.
    reserved
        The worker kept for a wide task that waits; None: no wide task waits.
    refused
        Why nothing of a user runs now, by user.
    """

    workers: dict[str, RegisteredWorker] = field(default_factory=dict)
    members: dict[int, Instance] = field(default_factory=dict)
    users: FairQueue[str] = field(default_factory=FairQueue)
    instances: dict[str, FairQueue[int]] = field(default_factory=dict)
    wide: set[int] = field(default_factory=set)
    reserved: WorkerReservation | None = None
    refused: dict[str, Refusal] = field(default_factory=dict)

    @property
    def ready(self) -> int:
        """Number of tasks that may start."""
        return sum(instance.tasks.ready for instance in self.members.values())
