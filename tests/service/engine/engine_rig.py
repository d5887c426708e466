"""An engine among fakes: a journal in memory, a desk that says yes, workers that are told."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from bursar.dispatch.wire import Hello, WireJob
from bursar.engine import attendance
from bursar.engine.worker_link import ClosedLink
from bursar.model.money import Refusal
from bursar.model.site import SiteFacts
from bursar.model.task import Outcome, Status
from bursar.remote import messages as api
from bursar.service.engine.engine import ServiceEngine
from bursar.service.engine.engine_limits import EngineLimits
from bursar.service.engine.instance_homes import InstanceHomes
from bursar.service.interfaces import ServiceError
from bursar.store import RecordOwner

T = TypeVar("T")

_job = msgspec.msgpack.Decoder(WireJob)


class FakeJournal:
    """Keeps what was appended; what is not durable yet can be lost."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[int, bytes]] = {}
        self.durably: dict[int, tuple[int, bytes]] = {}
        self.next = 1
        self.problem = ""
        self.is_full = False  # even for what is essential
        self.participant: RecordOwner | None = None

    def register(self, kinds: Sequence[int], participant: RecordOwner) -> None:
        self.participant = participant

    def restore(self, chance: random.Random) -> None:
        """What was durable is all there is; in any order."""
        self.records = dict(self.durably)
        positions = list(self.records)
        chance.shuffle(positions)
        assert self.participant is not None
        for position in positions:
            self.participant.restore(self.records[position][0], position, self.records[position][1])

    def append(self, kind: int, payload: bytes, *, essential: bool) -> int:
        if self.problem and not essential:
            raise ServiceError("disk-full", 507, self.problem)
        self.records[self.next] = kind, payload
        self.next += 1
        return self.next - 1

    async def durable(self) -> None:
        await asyncio.sleep(0)
        if self.is_full:
            raise ServiceError("disk-full", 507, "not even that")
        self.durably = dict(self.records)

    async def read(self, position: int) -> bytes:
        await asyncio.sleep(0)
        return self.records[position][1]

    def kill(self, position: int) -> None:
        self.records.pop(position, None)

    async def failed(self) -> str:
        raise NotImplementedError

    @property
    def size(self) -> int:
        return sum(len(payload) for _, payload in self.records.values())


class FakeDesk:
    """Lets all run but those it is told to refuse."""

    def __init__(self) -> None:
        self.refused: dict[str, Refusal] = {}  # by pool
        self.seconds: dict[str, float] = {}
        self.widths: dict[str, int] = {}
        self.charged: list[tuple[str, str, str, int, float]] = []

    def pool_of(self, user: str, agreement: str) -> str | Refusal:
        if agreement == "none":
            return Refusal("there is no such agreement", final=True)
        return agreement or "shared"

    def may_run(self, pool: str, user: str, now: float) -> float | Refusal:
        return self.refused.get(pool, self.seconds.get(pool, float("inf")))

    def width(self, pool: str, user: str) -> int | None:
        return self.widths.get(pool)

    def used(self, pool: str, user: str, what: str, processors: int, seconds: float) -> None:
        self.charged.append((pool, user, what, processors, seconds))

    def came_to(self, user: str, what: str) -> int:
        return 0


class Bench:
    """Where the fake workers sit: what each has, and what it was told."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[int, WireJob]] = {}  # by worker, in order
        self.stopped: dict[str, set[int]] = {}
        self.graces: list[float] = []
        self.asked_back: dict[str, int] = {}

    def give(self, worker: str, jobs: Sequence[bytes]) -> None:
        for data in jobs:
            job = _job.decode(data)
            assert job.task not in self.jobs[worker], "a worker got a task twice"
            self.jobs[worker][job.task] = job

    def stop(self, worker: str, tasks: Sequence[int], grace: float, reason: str) -> None:
        self.stopped.setdefault(worker, set()).update(tasks)
        self.graces.append(grace)

    def take_back(self, worker: str, count: int) -> None:
        self.asked_back[worker] = self.asked_back.get(worker, 0) + count


class BenchLink(ClosedLink):
    """The link to a fake worker."""

    def __init__(self, bench: Bench, worker: str) -> None:
        self.bench = bench
        self.worker = worker
        self.unwanted: list[int] = []

    def give_encoded(self, jobs: Iterable[bytes]) -> None:
        self.bench.give(self.worker, list(jobs))

    def recall(self, count: int) -> None:
        self.bench.take_back(self.worker, count)

    def cancel(self, tasks: Sequence[int], grace: float, reason: str) -> None:
        if reason == "it is not wanted any more":  # what it brought
            self.unwanted.extend(tasks)
        else:
            self.bench.stop(self.worker, tasks, grace, reason)


class NoHomes(InstanceHomes):
    """Homes that are nowhere."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.made: set[str] = set()

    def make(self, name: str, user: str) -> None:
        self.made.add(name)

    def remove(self, name: str) -> None:
        self.made.discard(name)

    def remove_logs(self, name: str, logs: Iterable[str]) -> None:
        pass

    def restore(self, users: Any, dying: Any) -> None:
        self.made = {name for name in self.made if name in users or name in dying} | set(users)


class World:
    """A service that can be killed and started again."""

    def __init__(
        self,
        limits: EngineLimits | None = None,
        seed: int = 0,
        own_limits: Mapping[str, EngineLimits] = MappingProxyType({}),
        processors: int | None = None,
        resources: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.chance = random.Random(seed)
        self.now = 1000.0
        self.limits = limits
        self.own_limits = own_limits
        self.processors = processors
        self.resources = resources
        self.memory: int | None = None
        self.worker_memory: int | None = None
        self.journal = FakeJournal()
        self.billing = FakeDesk()
        self.homes = NoHomes()
        self.sidecar = Bench()
        self.told: dict[str, int] = {}  # outcomes of each worker that are durable
        self.repeated: dict[str, list[Outcome]] = {}  # by worker, without an acknowledgement
        self._start()

    def _start(self) -> None:
        async def start() -> None:
            self.engine = ServiceEngine(
                self.journal,
                self.billing,
                clock=lambda: self.now,
                entropy=self.chance.randbytes,
                homes=self.homes,
                limits=self.limits,
                own_limits=self.own_limits,
                site=SiteFacts(
                    name="here",
                    kind="local",
                    processors=self.processors or 1_000_000,
                    memory=self.memory,
                    resources=self.resources,
                ),
            )
            self.journal.restore(self.chance)
            await self.engine.open()

        self.run(start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does something, and all that follows from it at once."""

        async def go() -> T:
            try:
                return await work
            finally:
                for _ in range(2):
                    for _ in range(10):
                        await asyncio.sleep(0)
                    if not self.journal.is_full:
                        await self.engine._recorder.settle()

        return self.loop.run_until_complete(go())

    def rest(self) -> None:
        """All that follows at once happens."""
        self.do(lambda: None)

    def until(self, holds: Callable[[], bool]) -> bool:
        """Whether something holds, within some seconds: homes are removed in a thread."""
        give_up = time.monotonic() + 10
        while not holds() and time.monotonic() < give_up:
            self.rest()
            time.sleep(0.005)
        return holds()

    def kill(self) -> None:
        """The service ends as by a power cut."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.rest()

    def restart(self) -> None:
        """It is killed, and started again."""
        self.kill()
        self._start()

    def close(self) -> None:
        """Nothing is left of it."""
        self.kill()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    # Shorthands.

    def create(self, user: str = "ann", key: str = "", **more: Any) -> str:
        return self.run(self.engine.create(user, api.NewInstance(**more), key)).id

    def submit(
        self, handle: str, tasks: int | Sequence[api.TaskSpec], key: str = "", user: str = "ann"
    ) -> api.Submitted:
        if isinstance(tasks, int):
            tasks = [api.TaskSpec(command=("true",))] * tasks
        return self.run(self.engine.submit(user, handle, tasks, key))

    def join(self, name: str, processors: int = 1, pool: str = "shared") -> list[int]:
        """A worker comes, or comes back with what it has."""
        jobs = self.sidecar.jobs.setdefault(name, {})
        repeated = self.repeated.pop(name, [])
        holds = sorted((held.task, held.attempt) for held in (*jobs.values(), *repeated))

        unwanted = self.connect(name, holds, processors, pool)
        if repeated:
            self.say(name, repeated)
        return unwanted

    def connect(
        self, name: str, holds: Sequence[tuple[int, int]], processors: int, pool: str = "shared"
    ) -> list[int]:
        """A worker connects; returns what it is to end of what it has."""
        link = BenchLink(self.sidecar, name)
        hello = Hello(
            "",
            name,
            "here",
            processors,
            name,
            f"host-{name}",
            tuple(holds),
            memory=self.worker_memory,
        )
        self.do(lambda: self.engine.dispatching.join(hello, link, pool=pool))
        return link.unwanted

    def lose(self, name: str) -> None:
        """A worker is gone for good."""
        self.sidecar.jobs.pop(name)
        self.repeated.pop(name, None)
        self.forsake(name)

    def forsake(self, name: str) -> None:
        """A worker is not waited for any longer."""
        dispatching = self.engine.dispatching
        self.do(lambda: attendance.lose(dispatching.room, dispatching.registered[name]))

    def settle(self) -> None:
        """No worker of an earlier life is waited for any more."""
        self.do(self.engine.settle)

    def tick(self) -> None:
        """Some time has passed."""
        self.do(self.engine.tick)
        self.do(self.engine.dispatching.filling.wake)  # its timer follows the real clock

    def do(self, what: Callable[[], None]) -> None:
        """Does something that takes no time, and all that follows from it at once."""

        async def go() -> None:
            what()

        self.run(go())

    def end(
        self,
        worker: str,
        number: int,
        status: Status = Status.SUCCEEDED,
        *,
        acknowledged: bool = True,
        **more: Any,
    ) -> Outcome:
        """End a worker's task; the worker says so again if the acknowledgement is lost."""
        job = self.sidecar.jobs[worker].pop(number)
        outcome = outcome_of(job, status, self.now, **more)
        if not acknowledged:
            self.repeated.setdefault(worker, []).append(outcome)
        self.say(worker, [outcome])
        return outcome

    def say(self, worker: str, outcomes: Sequence[Outcome]) -> None:
        def told() -> None:
            self.told[worker] = self.told.get(worker, 0) + len(outcomes)

        async def say() -> None:
            self.engine.dispatching.reactions.reported(
                self.engine.dispatching.registered.get(worker), outcomes, told
            )

        self.run(say())

    def results(self, handle: str, after: int = 0, user: str = "ann") -> list[dict[str, Any]]:
        batch = self.run(self.engine.results(user, handle, after, 10_000, 0.0))
        return [json.loads(line) for line in batch.lines]

    def info(self, handle: str, user: str = "ann") -> api.InstanceInfo:
        return self.engine.instance(user, handle)


def outcome_of(job: WireJob, status: Status, now: float, **more: Any) -> Outcome:
    """A worker's word on a job."""
    fields: dict[str, Any] = {"start": now, "end": now + 1.0, "exit_code": 0}
    return Outcome(task=job.task, attempt=job.attempt, status=status, **(fields | more))
