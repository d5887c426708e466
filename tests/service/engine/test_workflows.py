"""Tasks of a service that come after others, and tasks that are tried again after a failure."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
from tests.service.engine.engine_rig import World, outcome_of

from bursar.model.money import Refusal
from bursar.model.task import Status
from bursar.remote import messages as api
from bursar.service.engine import cancelling, dispatching, recording, records
from bursar.service.interfaces import ServiceError


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def spec(*after: int, retries: int = 0, delay: float = 0.0) -> api.TaskSpec:
    return api.TaskSpec(command=("x",), after=after, retries=retries, retry_delay=delay)


def at(world: World, worker: str = "w") -> list[int]:
    """Numbers, within their instance, of the tasks that a worker has."""
    return sorted(job.task & 0xFFFFFFFF for job in world.sidecar.jobs[worker].values())


def end(
    world: World,
    task: int,
    status: Status = Status.SUCCEEDED,
    worker: str = "w",
    *,
    acknowledged: bool = True,
) -> None:
    (number,) = [n for n in world.sidecar.jobs[worker] if n & 0xFFFFFFFF == task]
    code = 0 if status is Status.SUCCEEDED else 1
    world.now += 1.0
    world.end(
        worker,
        number,
        status,
        acknowledged=acknowledged,
        exit_code=code,
        start=world.now - 1.0,
        end=world.now,
    )


def charged(world: World) -> float:
    """Processor-seconds of all charges."""
    return sum(seconds for *_, seconds in world.billing.charged)


def states(world: World, handle: str) -> dict[int, str]:
    return {result["task"]: result["state"] for result in world.results(handle)}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_task_starts_when_all_that_it_comes_after_have_succeeded(
    world: World, restarts: bool
) -> None:
    """Of a diamond, also across submissions, and whenever the service is killed between."""
    handle = world.create()
    world.submit(handle, [spec(), spec(0), spec(0)])
    world.submit(handle, [spec(1, 2)])
    world.join("w", 4)
    ran = []
    while at(world):
        ran.append(at(world))
        end(world, at(world)[0])
        if restarts:
            world.restart()
            world.join("w", 4)
            world.settle()
    assert ran == [[0], [1, 2], [2], [3]]
    assert states(world, handle) == dict.fromkeys(range(4), "succeeded")
    assert world.info(handle).counts == api.Counts(total=4, succeeded=4)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_follows_a_failure_ends_without_having_run(world: World, restarts: bool) -> None:
    """Through all generations, once each, with the reason; other tasks go on."""
    handle = world.create()
    world.submit(handle, [spec(), spec(0), spec(1), spec(), spec(2, 3)])
    world.join("w", 1)
    end(world, 0, Status.FAILED)
    if restarts:
        world.restart()
        world.join("w", 1)
        world.settle()
    assert at(world) == [3]
    end(world, 3)
    world.submit(handle, [spec(3), spec(1)])  # what comes later, too
    assert at(world) == [5]
    end(world, 5)
    found = states(world, handle)
    assert [found[task] for task in range(7)] == [
        "failed",
        "skipped",
        "skipped",
        "succeeded",
        "skipped",
        "succeeded",
        "skipped",
    ]
    assert world.info(handle).counts.skipped == 4
    assert world.info(handle).counts.cancelled == 0
    results = {result["task"]: result for result in world.results(handle)}
    assert len(world.results(handle)) == 7
    assert "comes after did not succeed" in results[4]["reason"]
    assert results[4]["attempt"] == 0
    assert world.info(handle).counts.waiting == 0


def test_a_cancelled_task_takes_along_what_follows(world: World) -> None:
    handle = world.create()
    world.submit(handle, [spec(), spec(0), spec(1), spec(0)])
    world.join("w", 1)
    world.run(world.engine.cancel("ann", handle, [1]))
    assert set(states(world, handle)) == {1, 2}
    end(world, 0)
    assert at(world) == [3]


def count_records(world: World) -> list[int]:
    """Count the results in each record of results, those of the future included."""
    sizes: list[int] = []
    append = world.journal.append

    def count(kind: int, payload: bytes, *, essential: bool) -> int:
        if kind == records.ENDED:
            sizes.append(len(msgspec.msgpack.decode(payload, type=records.ResultsRecorded).lines))
        return append(kind, payload, essential=essential)

    world.journal.append = count  # type: ignore[method-assign]
    return sizes


@pytest.mark.parametrize("restarts", [False, True])
def test_many_children_of_a_failure_are_skipped_in_portions(
    world: World, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """No record grows with the number of children, in this life and in the next."""
    monkeypatch.setattr(dispatching, "_SKIPPED", 8)
    handle = world.create()
    world.submit(handle, [spec(), *(spec(0) for _ in range(50))])
    world.join("w", 1)
    sizes = count_records(world)
    if restarts:
        (number,) = world.sidecar.jobs["w"]
        job = world.sidecar.jobs["w"].pop(number)
        outcome = outcome_of(job, Status.FAILED, world.now, exit_code=1)
        world.now += 2.0

        async def stop_once_recorded() -> None:
            world.engine.dispatching.reactions.reported(
                world.engine.dispatching.registered.get("w"), [outcome], lambda: None
            )
            while not world.journal.durably.keys() & ended_positions(world):
                await asyncio.sleep(0)

        world.loop.run_until_complete(stop_once_recorded())
        world.restart()
        sizes.clear()
        world.settle()
    else:
        end(world, 0, Status.FAILED)
        assert sizes.pop(0) == 1
    world.rest()
    assert states(world, handle) == {0: "failed"} | dict.fromkeys(range(1, 51), "skipped")
    assert max(sizes) <= 8
    assert world.info(handle).counts.waiting == 0


def ended_positions(world: World) -> set[int]:
    """Return the positions of the records of results."""
    return {at for at, (kind, _) in world.journal.records.items() if kind == records.ENDED}


def test_a_record_holds_few_results_even_if_many_end_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if none printed anything: a line has its own size."""
    monkeypatch.setattr(recording, "MOST", 10)
    handle = world.create()
    world.submit(handle, 64)
    sizes = count_records(world)
    world.run(world.engine.cancel("ann", handle, None))
    assert (sum(sizes), max(sizes)) == (64, 10)


def test_lines_of_results_count_with_their_labels(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "LARGEST", 3000)
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), label="x" * 200)] * 16)
    sizes = count_records(world)
    world.run(world.engine.cancel("ann", handle, None))
    assert (sum(sizes), max(sizes)) == (16, 4)


@pytest.mark.ci
@pytest.mark.parametrize("edges", [1, 16384])
def test_a_long_chain_is_skipped_in_few_records(
    world: World, monkeypatch: pytest.MonkeyPatch, edges: int
) -> None:
    """The number of records does not grow with the length of the chain."""
    monkeypatch.setattr(dispatching, "_EDGES", edges)
    handle = world.create()
    world.submit(handle, [spec(), *(spec(task) for task in range(99))])
    world.join("w", 1)
    sizes = count_records(world)
    end(world, 0, Status.FAILED)
    assert len(states(world, handle)) == 100
    if edges > 1:  # else the portions are as small as they can be
        assert sizes == [1, 99]


@pytest.mark.parametrize(
    ("tasks", "where"),
    [
        ([spec(), spec(1)], "tasks[1].after[0]"),
        ([spec(), spec(0, 2), spec()], "tasks[1].after[1]"),
        ([spec(7)], "tasks[0].after[0]"),
    ],
)
def test_a_task_comes_after_earlier_ones_only(
    world: World, tasks: list[api.TaskSpec], where: str
) -> None:
    """So no circle can be submitted, and nothing of such a submission is taken."""
    handle = world.create()
    with pytest.raises(ServiceError) as refused:
        world.submit(handle, tasks)
    assert (refused.value.status, refused.value.where) == (422, where)
    assert world.info(handle).counts.total == 0


def test_a_task_that_fails_is_tried_again_and_pays_for_each_attempt(world: World) -> None:
    handle = world.create()
    world.submit(handle, [spec(retries=2), spec(0)])
    world.join("w", 1)
    for _ in range(2):
        end(world, 0, Status.FAILED)
        assert at(world) == [0]
        assert world.results(handle) == []
    assert world.told == {"w": 2}
    end(world, 0)
    assert at(world) == [1]
    (result,) = world.results(handle)
    assert (result["state"], result["attempt"]) == ("succeeded", 3)
    assert charged(world) == pytest.approx(3.0)


def test_nothing_is_kept_of_the_attempts_of_a_task_that_has_ended(world: World) -> None:
    handle = world.create()
    world.submit(handle, [spec(retries=1)])
    world.join("w", 1)
    world.lose("w")
    world.join("w", 1)
    tasks = world.engine._index.mine("ann", handle).tasks
    end(world, 0, Status.FAILED)
    assert (tasks.losses, tasks.failures) == ({0: 1}, {0: 1})
    end(world, 0)
    assert states(world, handle) == {0: "succeeded"}
    assert (tasks.losses, tasks.failures) == ({}, {})


def test_failures_are_remembered_over_a_restart(world: World) -> None:
    """A task that is tried again once is tried twice in all, however often the service ends."""
    handle = world.create()
    world.submit(handle, [spec(retries=1)])
    world.join("w", 1)
    end(world, 0, Status.FAILED)
    world.sidecar.jobs["w"].clear()  # the second attempt is lost with the service
    world.restart()
    world.join("w", 1)
    world.settle()
    assert at(world) == [0]
    end(world, 0, Status.FAILED)
    (result,) = world.results(handle)
    assert (result["state"], result["attempt"]) == ("failed", 2)


@pytest.mark.parametrize("status", [Status.FAILED, Status.LOST])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("free", [False, True])
def test_an_attempt_that_is_reported_again_is_neither_counted_nor_charged_again(
    world: World, status: Status, restarts: bool, free: bool
) -> None:
    """The acknowledgement is lost while the retry waits (``free`` is False), or runs."""
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), retries=1, tries=2)])
    world.join("w", 1)
    if not free:
        world.billing.refused["shared"] = Refusal("not now", final=False)
    end(world, 0, status, acknowledged=False)
    assert at(world) == ([0] if free else [])
    if restarts:
        world.restart()
    assert world.join("w", 1) == []
    world.settle()
    assert world.results(handle) == []
    assert charged(world) == (1.0 if status is Status.FAILED else 0.0)
    world.billing.refused.clear()
    world.tick()
    assert at(world) == [0]
    end(world, 0)
    (result,) = world.results(handle)
    assert (result["state"], result["attempt"]) == ("succeeded", 2)
    assert world.repeated == {}


@pytest.mark.parametrize("status", [Status.FAILED, Status.LOST, Status.CANCELLED])
def test_no_retry_begins_before_the_attempt_before_it_is_durable(
    world: World, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    """
    The service would else be killed in between, and not know of the second attempt: of two that
    a worker brings back it takes up the one that has ended, and drops what comes of the other.
    """
    monkeypatch.setattr(recording, "AGAIN", 0.0)
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), retries=1, tries=2)])
    world.join("w", 1)
    world.journal.is_full = True
    end(world, 0, status, acknowledged=False)
    assert at(world) == []
    assert world.info(handle).counts.waiting == 1
    assert world.told == {}
    world.restart()
    world.journal.is_full = False
    world.join("w", 1)
    assert at(world) == [0]
    end(world, 0)
    (result,) = world.results(handle)
    attempts = 1 if status is Status.CANCELLED else 2
    assert (result["state"], result.get("attempt", 1)) == ("succeeded", attempts)


@pytest.mark.parametrize("delay", [0.0, 30.0])
def test_a_retry_begins_when_the_attempt_before_it_has_become_durable(
    world: World, monkeypatch: pytest.MonkeyPatch, delay: float
) -> None:
    """Also if its delay was over before."""
    monkeypatch.setattr(recording, "AGAIN", 0.0)
    handle = world.create()
    world.submit(handle, [spec(retries=1, delay=delay)])
    world.join("w", 1)
    world.journal.is_full = True
    end(world, 0, Status.FAILED)
    world.now += 31.0
    world.tick()
    assert at(world) == []
    world.journal.is_full = False
    world.rest()
    assert at(world) == [0]


def test_a_task_of_a_lost_worker_begins_again_when_the_loss_is_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that brings down worker and service would else be tried for ever."""
    monkeypatch.setattr(recording, "AGAIN", 0.0)
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), tries=2)])
    world.join("w", 1)
    world.join("v", 1)
    world.journal.is_full = True
    world.lose("w")
    assert at(world, "v") == []
    world.journal.is_full = False
    world.rest()
    assert at(world, "v") == [0]


def test_a_task_is_cancelled_while_its_failure_becomes_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not begin again, and the attempt that it had is charged once."""
    monkeypatch.setattr(recording, "AGAIN", 0.0)
    handle = world.create()
    world.submit(handle, [spec(retries=1), spec(0)])
    world.join("w", 1)
    world.journal.is_full = True
    end(world, 0, Status.FAILED)

    async def cancel() -> api.Cancelled:
        cancelling = asyncio.create_task(world.engine.cancel("ann", handle, [0], unstarted=True))
        await asyncio.sleep(0)
        world.journal.is_full = False
        return await cancelling

    assert world.run(cancel()).count == 1
    assert at(world) == []
    assert states(world, handle) == {0: "cancelled", 1: "skipped"}
    assert charged(world) == 1.0


def test_of_two_attempts_that_a_worker_brings_back_the_later_one_goes_on(world: World) -> None:
    """The one before was given up in an earlier life: what comes of it is dropped."""
    handle = world.create()
    world.submit(handle, 1)
    world.join("w", 1)
    (job,) = world.sidecar.jobs["w"].values()
    earlier = outcome_of(job, Status.CANCELLED, world.now)
    later = outcome_of(job, Status.SUCCEEDED, world.now)
    later = msgspec.structs.replace(later, attempt=job.attempt + 7)
    world.restart()
    holds = [(job.task, earlier.attempt), (job.task, later.attempt)]
    assert world.connect("w", holds, 1) == []
    world.sidecar.jobs["w"].clear()
    world.say("w", [earlier])
    assert world.info(handle).counts.running == 1
    world.say("w", [later])
    assert states(world, handle) == {0: "succeeded"}
    assert world.told == {"w": 2}


def test_a_failure_is_noted_with_its_charge(world: World) -> None:
    """No kill of the service comes between the two."""
    handle = world.create()
    world.submit(handle, [spec(retries=1)])
    world.join("w", 1)
    ((_, job),) = world.sidecar.jobs["w"].items()

    def noted() -> tuple[bool, bool]:
        return any(kind == records.LOST for kind, _ in world.journal.records.values()), charged(
            world
        ) > 0

    async def say() -> tuple[bool, bool]:
        failed = outcome_of(job, Status.FAILED, world.now, start=world.now - 1.0, end=world.now)
        world.sidecar.jobs["w"].clear()
        world.engine.dispatching.reactions.reported(
            world.engine.dispatching.registered.get("w"), [failed], lambda: None
        )
        return noted()

    world.now += 1.0
    assert world.run(say()) == (False, False)
    assert noted() == (True, True)


def test_memory_of_tasks_is_kept_over_restarts_and_never_exceeded(world: World) -> None:
    """Tasks that delay nothing overtake one that waits; what no worker could hold is refused."""
    world.memory = world.worker_memory = 8
    world.restart()
    handle = world.create()
    needs = [5, 4, 3, None, 8]
    hints = api.Hints(runtime=60.0)
    world.submit(handle, [api.TaskSpec(command=("x",), memory=need, hints=hints) for need in needs])
    for first in (True, False):
        world.join("w", 4)
        if not first:
            world.settle()
        # The third and the fourth leave the bytes that the second will have when the first ends.
        assert at(world) == [0, 2, 3]
        if first:
            world.restart()
    end(world, 0)
    assert at(world) == [1, 2, 3]
    end(world, 1)
    assert at(world) == [2, 3]
    end(world, 2)
    assert at(world) == [3, 4]
    with pytest.raises(ServiceError, match="needs 9 bytes of memory, and the site has 8") as error:
        world.submit(handle, [spec(), api.TaskSpec(command=("x",), memory=9)])
    assert (error.value.status, error.value.where) == (422, "tasks[1].memory")


def test_tasks_that_no_worker_has_are_cancelled_alone(world: World) -> None:
    """Those that run go on; what follows a cancelled task is skipped."""
    handle = world.create()
    world.submit(handle, [spec(), spec(), spec(1), spec(0)])
    world.join("w", 1)
    (running,) = at(world)
    assert running == 0
    assert world.run(world.engine.cancel("ann", handle, [0, 1], unstarted=True)).count == 1
    assert states(world, handle) == {1: "cancelled", 2: "skipped"}
    end(world, 0)
    assert at(world) == [3]
    assert world.run(world.engine.cancel("ann", handle, None, unstarted=True)).count == 0
    end(world, 3)
    assert states(world, handle) == {0: "succeeded", 1: "cancelled", 2: "skipped", 3: "succeeded"}


def test_a_retry_waits_as_long_as_it_was_told_to(world: World) -> None:
    """And is given up when the task is cancelled meanwhile."""
    handle = world.create()
    world.submit(handle, [spec(retries=1, delay=30.0), spec(retries=1, delay=30.0)])
    world.join("w", 2)
    end(world, 0, Status.FAILED)
    end(world, 1, Status.FAILED)
    world.now += 28.0
    world.tick()
    assert at(world) == []
    assert world.info(handle).counts.waiting == 2
    assert world.engine.demand()["shared"].later == 2
    world.run(world.engine.cancel("ann", handle, [1]))
    world.now += 1.5
    world.tick()
    assert at(world) == [0]
    assert states(world, handle) == {1: "cancelled"}


def test_an_instance_that_is_destroyed_is_not_kept_for_a_retry(world: World) -> None:
    """Nor is a timer: a delay may be days long, and what the instance takes would stay."""
    handle = world.create()
    world.submit(handle, [spec(retries=1, delay=1e6)])
    world.join("w", 1)
    end(world, 0, Status.FAILED)
    dispatching = world.engine.dispatching
    assert dispatching.filling._waker is not None
    world.run(world.engine.destroy("ann", handle))
    assert not dispatching.filling._sleeping
    assert dispatching.filling._waker is None


def test_records_of_a_workflow_go_with_its_tasks(world: World) -> None:
    """A submission that is rewritten keeps what its unfinished tasks come after."""
    handle = world.create()
    chain = [spec(), *(spec(task) for task in range(99))]
    world.submit(handle, chain)
    world.join("w", 1)
    for task in range(80):
        end(world, task)
    world.restart()
    world.join("w", 1)
    world.settle()
    for task in range(80, 100):
        assert at(world) == [task]
        end(world, task)
    assert world.info(handle).counts.succeeded == 100


@pytest.mark.parametrize("seed", range(8))
def test_any_workflow_ends_whatever_fails_and_however_often_the_service_is_killed(
    world: World, seed: int
) -> None:
    """
    Forty tasks in submissions of any size, each after up to three earlier ones. Attempts fail, are
    lost with a worker or are cancelled, the service is killed, and acknowledgements are lost, at
    random. Each task has one result; it ran only after the results of all before it, and not at
    all if one did not succeed. Each attempt that ended is charged, and counted as failed, once.
    """
    chance = random.Random(seed)
    handle = world.create()
    after: list[tuple[int, ...]] = []
    given: set[int] = set()
    unwanted: set[int] = set()
    retries: list[int] = []
    failures: Counter[int] = Counter()
    ends = workers = 0
    for _ in range(2000):
        done = states(world, handle)
        for worker in world.sidecar.jobs:
            for task in at(world, worker):
                given.add(task)
                assert all(done.get(parent) == "succeeded" for parent in after[task])
        what = chance.random()
        held = [(name, task) for name in world.sidecar.jobs for task in at(world, name)]
        if len(after) < 40 and what < 0.2:
            first, new = len(after), []
            for i in range(chance.randint(1, 6)):
                few = chance.randint(0, min(3, first + i))
                after.append(tuple(chance.sample(range(first + i), few)))
                retries.append(chance.choice((0, 0, 1, 3)))
                new.append(spec(*after[-1], retries=retries[-1]))
            world.submit(handle, new)
        elif what < 0.25 or not world.sidecar.jobs:
            workers += 1
            world.join(f"w{workers}", chance.randint(1, 3))
        elif what < 0.28 and len(world.sidecar.jobs) > 1:
            world.lose(chance.choice(list(world.sidecar.jobs)))
        elif what < 0.30 and after:
            unwanted.add(chance.randrange(len(after)))
            world.run(world.engine.cancel("ann", handle, sorted(unwanted)))
            for name, numbers in world.sidecar.stopped.items():
                for number in numbers & set(world.sidecar.jobs.get(name, ())):
                    world.end(name, number, Status.CANCELLED, end=world.now)
        elif what < 0.35:
            restarts = chance.random() < 0.5
            if restarts:
                world.restart()
            for name in list(world.sidecar.jobs):
                for number in world.join(name, 3):
                    world.sidecar.jobs[name].pop(number, None)
            if restarts:
                world.settle()
        elif held:
            name, task = chance.choice(held)
            status = Status.FAILED if chance.random() < 0.2 else Status.SUCCEEDED
            ends += 1
            failures[task] += status is Status.FAILED
            end(world, task, status, name, acknowledged=chance.random() < 0.7)
        elif len(after) >= 40 and len(done) == len(after):
            break
    results = world.results(handle)
    assert sorted(result["task"] for result in results) == list(range(len(after)))
    assert charged(world) == pytest.approx(ends)
    for result in results:
        if result["state"] == "failed" and "lost" not in result.get("reason", ""):
            assert failures[result["task"]] == retries[result["task"]] + 1
        parents = [done[parent] for parent in after[result["task"]]]
        if any(state != "succeeded" for state in parents):
            assert result["state"] == "skipped" or (
                result["state"] == "cancelled" and result["task"] in unwanted
            )
            assert result["task"] not in given
        if "did not succeed" in result.get("reason", ""):
            assert any(state != "succeeded" for state in parents)
    assert world.info(handle).counts.waiting == world.info(handle).counts.running == 0


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_task_may_do_without_a_share_of_those_before(
    world: World, restarts: bool, later: bool
) -> None:
    """
    Of three, two are enough for task 3; task 4 needs all; task 5 needs task 3 alone.

    Whenever the service is killed between, and also where what follows is submitted last.
    """
    handle = world.create()
    share = api.TaskSpec(command=("x",), after=(0, 1, 2), needs=0.6)
    following = [share, spec(0, 1, 2), spec(3)]
    world.submit(handle, [spec(), spec(), spec(), *([] if later else following)])
    world.join("w", 1)
    for status in (Status.FAILED, Status.SUCCEEDED, Status.SUCCEEDED):
        assert not {3, 4, 5} & set(at(world))
        end(world, at(world)[0], status)
        if restarts:
            world.restart()
            world.join("w", 1)
            world.settle()
    if later:
        world.submit(handle, following)
    assert at(world) == [3]
    end(world, 3)
    assert at(world) == [5]
    end(world, 5)
    found = states(world, handle)
    assert [found[task] for task in range(6)] == [
        "failed",
        "succeeded",
        "succeeded",
        "succeeded",
        "skipped",
        "succeeded",
    ]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_task_that_lost_more_than_it_can_spare_is_skipped(world: World, restarts: bool) -> None:
    """Two of three failed, and two were needed; one success is needed whatever the share."""
    handle = world.create()
    shares = [api.TaskSpec(command=("x",), after=(0, 1, 2), needs=n) for n in (0.6, 0.0)]
    world.submit(handle, [spec(), spec(), spec(), *shares])
    world.join("w", 1)
    for _ in range(2):
        end(world, at(world)[0], Status.FAILED)
        if restarts:
            world.restart()
            world.join("w", 1)
            world.settle()
    assert states(world, handle)[3] == "skipped"
    assert at(world) == [2]
    end(world, 2, Status.FAILED)
    assert states(world, handle)[4] == "skipped"
    assert world.info(handle).counts.waiting == 0


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_a_task_may_follow_whatever_came_of_those_before(
    world: World, restarts: bool, later: bool
) -> None:
    """Task 3 begins once two tasks have failed and one was skipped, and not before."""
    handle = world.create()
    last = api.TaskSpec(command=("x",), after=(0, 1, 2), needs="ended")
    world.submit(handle, [spec(), spec(0), spec(), *([] if later else [last])])
    world.join("w", 1)
    end(world, 0, Status.FAILED)
    if restarts:
        world.restart()
        world.join("w", 1)
        world.settle()
    assert at(world) == [2]
    end(world, 2, Status.FAILED)
    if later:
        world.submit(handle, [last])
    assert at(world) == [3]
    end(world, 3)
    assert [states(world, handle)[task] for task in range(4)] == [
        "failed",
        "skipped",
        "failed",
        "succeeded",
    ]


@pytest.mark.parametrize("seed", range(8))
def test_no_more_tasks_of_a_group_run_than_it_allows_through_kills_and_losses(
    world: World, seed: int
) -> None:
    """A place that comes free is taken at once, so that the limit is also what runs."""
    chance, handle = random.Random(seed), world.create()
    limited = [
        msgspec.structs.replace(spec(retries=3), at_once=3, group="array", label="x" * n)
        for n in range(12)
    ]
    world.submit(handle, [*limited, spec()])
    world.join("w", 20)
    left = set(range(13))
    while left:
        members = [task for task in at(world) if task < 12]
        assert len(members) == min(3, len(left - {12}))
        match chance.randrange(6):
            case 0:
                world.restart()
                world.join("w", 20)  # with what it has
                world.settle()
            case 2 if members:
                world.lose("w")
                world.join("w", 20)
            case 1 if members:
                end(world, chance.choice(members), Status.FAILED)
            case _:
                task = chance.choice(at(world))
                end(world, task)
                left.discard(task)
        left -= {n for n, state in states(world, handle).items() if state != "succeeded"}
    assert world.engine._index.usage("ann").task_bytes == 0


def test_cancelling_a_group_starts_none_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "_CHUNK", 2)
    handle = world.create()
    widths = (2, 2, 1, 1, 1, 1)
    world.submit(handle, [msgspec.structs.replace(spec(), at_once=2, processors=n) for n in widths])
    world.join("w", 3)
    assert at(world) == [0]  # the second is ready, and too wide for what is left
    world.run(world.engine.cancel("ann", handle, None))
    assert at(world) == [0]
    assert set(states(world, handle)) == {1, 2, 3, 4, 5}


def test_a_group_needs_a_limit(world: World) -> None:
    handle = world.create()
    with pytest.raises(ServiceError) as refused:
        world.submit(handle, [spec(), msgspec.structs.replace(spec(), group="array")])
    assert (refused.value.status, refused.value.where) == (422, "tasks[1].group")


def test_resources_of_the_site_are_held_and_gpus_named_through_a_kill() -> None:
    """Two GPUs and three licences: no device is given twice, and every licence is used."""
    world = World(resources={"gpu": 2, "licence": 3})
    try:
        handle = world.create()
        world.submit(handle, [held(gpu=1), held(gpu=2), held(gpu=1), *[held(licence=1)] * 4])
        world.join("w", 9)
        assert at(world) == [0, 3, 4, 5]
        end(world, 3)
        assert at(world) == [0, 4, 5, 6]
        assert devices(world) == {0: (0,)}
        world.restart()
        world.join("w", 9)
        world.settle()
        assert at(world) == [0, 4, 5, 6]  # nobody knows which device the first one has
        end(world, 0)
        assert at(world) == [1, 4, 5, 6]
        assert devices(world) == {1: (0, 1)}
        end(world, 1)
        assert devices(world) == {2: (0,)}
    finally:
        world.close()


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({"gpu": 3}, 'holds 3 of "gpu", and the site has 2'),
        ({"licence": 1}, 'holds 1 of "licence", and the site has none'),
    ],
)
def test_a_task_with_more_than_the_site_has_is_refused(
    resources: dict[str, int], said: str
) -> None:
    world = World(resources={"gpu": 2})
    try:
        handle = world.create()
        with pytest.raises(ServiceError) as refused:
            world.submit(handle, [spec(), held(**resources)])
        assert (refused.value.where, refused.value.detail) == ("tasks[1].resources", said)
        world.submit(handle, [held(gpu=2)])
        world.join("w", 1)
        world.resources = {}
        world.lose("w")
        world.restart()
        world.join("v", 1)
        world.settle()
        assert world.info(handle).note == "its tasks need resources that the site has no longer"
    finally:
        world.close()


def held(**resources: int) -> api.TaskSpec:
    return msgspec.structs.replace(spec(), resources=resources)


def devices(world: World) -> dict[int, tuple[int, ...]]:
    jobs = world.sidecar.jobs["w"].values()
    return {job.task & 0xFFFFFFFF: job.devices for job in jobs if job.devices}
