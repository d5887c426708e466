"""The engine through every interleaving, beside a plain account of what must be true."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.service.engine.engine_rig import World, outcome_of
from tests.thoroughness import examples

from bursar.model.task import Outcome, Status
from bursar.remote import messages as api
from bursar.service.interfaces import ServiceError

USERS = ("ann", "bob")
WORKERS = {"w1": 1, "w2": 2, "w4": 4}
TRIES = 3


class Machine(RuleBasedStateMachine):
    """
    Workers are as real ones: they keep outcomes until these are durable, outlive the service and
    come back with what they hold, or never. What the account knows is little: which tasks were
    acknowledged, which ended how, which were cancelled.
    """

    instances = Bundle("instances")

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.users: dict[str, str] = {}  # of living instances
        self.acknowledged: dict[str, int] = {}
        self.keys: dict[tuple[str, str], int] = {}
        self.contents: dict[tuple[str, str], list[api.TaskSpec]] = {}
        self.ended: dict[tuple[str, int], dict[str, Any]] = {}
        self.forgotten: dict[str, int] = {}
        self.cancelled: set[tuple[str, int]] = set()
        self.present: set[str] = set()
        self.unrecorded: dict[str, list[Outcome]] = {name: [] for name in WORKERS}

    @initialize()
    def begin(self) -> None:
        self.world.sidecar.jobs = {name: {} for name in WORKERS}

    def teardown(self) -> None:
        try:
            self._finish()
        finally:
            self.world.close()

    # Clients.

    @rule(target=instances, user=st.sampled_from(USERS))
    def create(self, user: str) -> str:
        handle = self.world.create(user)
        self.users[handle] = user
        self.acknowledged[handle] = 0
        self.forgotten[handle] = 0
        return handle

    @rule(
        handle=instances,
        widths=st.lists(st.integers(1, 4), min_size=1, max_size=6),
        runtime=st.none() | st.floats(0, 20),
        key=st.sampled_from(["", "a", "b"]),
    )
    def submit(self, handle: str, widths: list[int], runtime: float | None, key: str) -> None:
        if handle not in self.users:
            return
        specs = [
            api.TaskSpec(
                command=("x",), processors=n, tries=TRIES, hints=api.Hints(runtime=runtime)
            )
            for n in widths
        ]
        known = self.keys.get((handle, key)) if key else None
        if known is not None and self.contents[handle, key] != specs:
            with pytest.raises(ServiceError, match="other content"):
                self.world.submit(handle, specs, key, self.users[handle])
            specs = self.contents[handle, key]
        submitted = self.world.submit(handle, specs, key, self.users[handle])
        assert submitted.repeated == (known is not None)
        assert submitted.first == (self.acknowledged[handle] if known is None else known)
        if known is None:
            self.acknowledged[handle] += len(specs)
            if key:
                self.keys[handle, key] = submitted.first
                self.contents[handle, key] = specs

    @rule(handle=instances, which=st.none() | st.sets(st.integers(0, 10)))
    def cancel(self, handle: str, which: set[int] | None) -> None:
        if handle not in self.users:
            return
        count = self.acknowledged[handle]
        tasks = None if which is None else [task for task in sorted(which) if task < count]
        self.world.run(self.world.engine.cancel(self.users[handle], handle, tasks))
        chosen = range(count) if tasks is None else tasks
        self.cancelled.update((handle, task) for task in chosen)

    @rule(handle=instances, through=st.integers(0, 12))
    def forget(self, handle: str, through: int) -> None:
        if handle not in self.users:
            return
        self.poll(handle)
        self.world.run(self.world.engine.forget(self.users[handle], handle, through))
        last = self.world.info(handle, self.users[handle]).results
        self.forgotten[handle] = max(self.forgotten[handle], min(through, last))

    @rule(handle=consumes(instances))
    def destroy(self, handle: str) -> None:
        if handle in self.users:
            self.world.run(self.world.engine.destroy(self.users.pop(handle), handle))
        with pytest.raises(ServiceError):
            self.world.info(handle)

    # Workers.

    @rule(name=st.sampled_from(sorted(WORKERS)))
    def join(self, name: str) -> None:
        """It comes, or comes back with all it has, and repeats what is not durable."""
        jobs = self.world.sidecar.jobs[name]
        holds = [(j.task, j.attempt) for j in jobs.values()]
        holds += [(o.task, o.attempt) for o in self.unrecorded[name]]
        unwanted = self._join(name, holds)
        self.present.add(name)
        again = list(self.unrecorded[name])
        for number in unwanted:
            if number in jobs:
                again.append(outcome_of(jobs.pop(number), Status.CANCELLED, self.world.now))
        self._say(name, again)

    def _join(self, name: str, holds: list[tuple[int, int]]) -> list[int]:
        return self.world.connect(name, holds, WORKERS[name])

    @precondition(lambda self: self.present)
    @rule(
        data=st.data(),
        status=st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.CANCELLED]),
        heard=st.booleans(),
    )
    def end(self, data: st.DataObject, status: Status, heard: bool) -> None:
        """A task ends; what the worker says of it may be lost, and is said again later."""
        name = data.draw(st.sampled_from(sorted(self.present)))
        jobs = self.world.sidecar.jobs[name]
        if not jobs:
            return
        job = jobs.pop(data.draw(st.sampled_from(sorted(jobs))))
        outcome = outcome_of(job, status, self.world.now)
        if heard:
            self._say(name, [outcome])
        else:
            self.unrecorded[name].append(outcome)

    def _say(self, name: str, outcomes: list[Outcome]) -> None:
        told = self.world.told.get(name, 0)
        self.world.say(name, outcomes)
        if self.world.told.get(name, 0) == told + len(outcomes):
            gone = {(o.task, o.attempt) for o in outcomes}
            self.unrecorded[name] = [
                o for o in self.unrecorded[name] if (o.task, o.attempt) not in gone
            ]
        else:
            raise AssertionError("an outcome was not acknowledged")

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A worker is gone with all it had."""
        name = data.draw(st.sampled_from(sorted(self.present)))
        self.present.discard(name)
        self.world.sidecar.jobs[name].clear()
        self.unrecorded[name].clear()
        self.world.forsake(name)

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """A worker gives back what it has not begun."""
        name = data.draw(st.sampled_from(sorted(self.present)))
        jobs = self.world.sidecar.jobs[name]
        some = [jobs.pop(number) for number in sorted(jobs)[:1]]
        dispatching = self.world.engine.dispatching
        worker = dispatching.registered.get(name)
        self.world.do(
            lambda: dispatching.reactions.returned(worker, [(j.task, j.attempt) for j in some])
        )

    @rule()
    def obey(self) -> None:
        """Workers kill what they were told to stop."""
        for name in sorted(self.present):
            jobs = self.world.sidecar.jobs[name]
            doomed = self.world.sidecar.stopped.pop(name, set())
            self._say(
                name,
                [
                    outcome_of(jobs.pop(number), Status.CANCELLED, self.world.now)
                    for number in sorted(doomed & jobs.keys())
                ],
            )

    # The service.

    @rule()
    def restart(self) -> None:
        self.world.restart()
        self.present.clear()
        self.world.sidecar.stopped.clear()

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.tick()

    # What must be true.

    @invariant()
    def nobody_has_more_than_fits(self) -> None:
        """Of what the engine gave and knows of, nothing is given twice."""
        seats = self.world.engine.dispatching.registered
        for name in self.present:
            seat = seats[name]
            assert seat.used == sum(claim.processors for claim in seat.claims.values())
            assert seat.used <= seat.processors
            assert set(seat.claims) <= self.world.sidecar.jobs[name].keys() | {
                o.task for o in self.unrecorded[name]
            }

    @invariant()
    def results_are_final(self) -> None:
        for handle in self.users:
            self.poll(handle)

    def poll(self, handle: str) -> None:
        """What was once a result is that for ever, each task has one at the most."""
        user = self.users[handle]
        info = self.world.info(handle, user)
        assert info.counts.total == self.acknowledged[handle]
        counts = info.counts
        final = counts.succeeded + counts.failed + counts.cancelled
        assert counts.waiting + counts.running + final == counts.total
        assert info.results == final
        assert info.kept_from == self.forgotten[handle]
        results = self.world.results(handle, user=user)
        assert [r["cursor"] for r in results] == list(range(info.kept_from + 1, final + 1))
        for result in results:
            before = self.ended.setdefault((handle, result["task"]), result)
            assert before == result
        mine = [r for (h, _), r in self.ended.items() if h == handle]
        assert len(mine) == final
        assert len({r["cursor"] for r in mine}) == final

    def _finish(self) -> None:
        """With workers that come back and do what they have, every task ends."""
        self.world.settle()
        for _ in range(200):
            self.obey()
            for name in sorted(WORKERS):
                if name not in self.present:
                    self.join(name)
            for name in sorted(WORKERS):
                jobs = self.world.sidecar.jobs[name]
                self._say(name, list(self.unrecorded[name]))
                self._say(
                    name,
                    [
                        outcome_of(jobs.pop(n), Status.SUCCEEDED, self.world.now)
                        for n in sorted(jobs)
                    ],
                )
            if not any(self._unfinished(handle) for handle in self.users):
                break
        for handle in sorted(self.users):
            assert self._unfinished(handle) == 0
            self.poll(handle)
        for handle, task in self.cancelled:
            if handle in self.users:
                assert (handle, task) in self.ended
        for kind, _ in self.world.journal.records.values():
            assert kind not in (5, 6), "what is over was not forgotten"

    def _unfinished(self, handle: str) -> int:
        counts = self.world.info(handle, self.users[handle]).counts
        return counts.waiting + counts.running


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=examples(60),
    stateful_step_count=30,
)
