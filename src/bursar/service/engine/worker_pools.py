"""Workers of a pool as the scheduler sees them, and the tasks that they hold."""

from dataclasses import dataclass, field

from bursar.dispatch.prefetch import Prefetch
from bursar.model.admission import Refusal
from bursar.service.engine.fairness import FairQueue
from bursar.service.engine.instance import Instance
from bursar.service.engine.tasks import BITS


@dataclass(slots=True, eq=False)
class RegisteredWorker:
    """
    A worker that the service knows, with its pool and its tasks.

    Parameters
    ----------
    name
        Unique in the service.
    pool, lease
        To which it belongs.
    processors
        How many it has.
    host
        Name of its machine.
    open
        Whether it is given anything.
    used
        Processors that its tasks hold, or will.
    claims
        Its tasks by number on the wire, in the order in which they were given.
    idle_since
        Seconds since the epoch; says nothing while it has tasks.
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
        Processor-seconds that were charged for it in its owner's turns.
    limit
        Seconds after which the worker kills it, of its own or as long as it may run there; 0:
        never.
    given, ends
        When it was given, and should end; infinite when unknown.
    recalled
        The worker was told to stop it.
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
    instance: Instance
    task: int
    worker: RegisteredWorker


@dataclass(slots=True)
class WorkerPool:
    """
    Workers, and the instances that have ready tasks for them.

    Parameters
    ----------
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
