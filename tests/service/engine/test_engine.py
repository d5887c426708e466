"""Instances, tasks and results among fakes."""

import asyncio
import base64
import re
from collections.abc import Iterator

import msgspec
import pytest
from tests.service.engine.engine_rig import World, outcome_of

from bursar.engine.task_states import FAILED
from bursar.model.money import Refusal
from bursar.model.task import Exec, Outcome, Status, Step
from bursar.remote import messages as api
from bursar.service.engine import submitting
from bursar.service.engine.dispatching import GRACE
from bursar.service.engine.engine_limits import EngineLimits
from bursar.service.engine.records import InstanceCreated
from bursar.service.engine.results import encode_result_line
from bursar.service.engine.tasks import EDGE
from bursar.service.interfaces import ServiceError


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def kinds(world: World) -> list[int]:
    return sorted(kind for kind, _ in world.journal.records.values())


def test_a_task_goes_to_a_worker_and_its_result_to_the_client(world: World) -> None:
    """
    What the worker gets is what was submitted; what the client gets is what the worker said.
    """
    handle = world.create(label="mine")
    spec = api.TaskSpec(command=("echo", "hi"), environment={"A": "b"}, label="first", limit=7.0)
    submitted = world.submit(handle, [spec])
    assert (submitted.first, submitted.count, submitted.repeated) == (0, 1, False)
    world.join("w")
    (job,) = world.sidecar.jobs["w"].values()
    assert job.steps == (Exec(("echo", "hi")),)
    assert (job.environment, job.limit, job.processors) == ({"A": "b"}, 7.0, 1)
    assert job.home == str(world.engine.home("ann", handle))
    world.now += 2.0
    world.end("w", job.task, stdout=b"hi\n", stdout_size=3, start=1000.0, end=1001.0)
    (result,) = world.results(handle)
    assert msgspec.convert(result, api.Result) == api.Result(
        cursor=1,
        task=0,
        state="succeeded",
        label="first",
        exit_code=0,
        stdout="hi\n",
        stdout_size=3,
        start=1000.0,
        end=1001.0,
        host="host-w",
    )
    assert world.info(handle).counts == api.Counts(total=1, succeeded=1)
    assert world.told == {"w": 1}


def test_a_line_of_a_result_has_each_value_in_its_field() -> None:
    outcome = Outcome(
        task=9,
        attempt=8,
        status=Status.LOST,
        exit_code=None,
        start=1.5,
        end=2.5,
        stdout=b"out",
        stderr=b"\xff",
        stdout_size=3,
        stderr_size=1,
        user_seconds=0.25,
        system_seconds=0.125,
        max_rss=77,
        reason="gone",
        value=b"value",
        sealed=b"sealed",
    )
    line = encode_result_line(5, 6, FAILED, 2, "mine", "host", outcome)
    assert msgspec.json.decode(line, type=api.Result) == api.Result(
        cursor=5,
        task=6,
        state="failed",
        attempt=2,
        label="mine",
        stdout="out",
        raw={"stderr": base64.b64encode(b"\xff").decode()},
        stdout_size=3,
        stderr_size=1,
        start=1.5,
        end=2.5,
        host="host",
        user_seconds=0.25,
        system_seconds=0.125,
        max_rss=77,
        reason="gone",
        lost=True,
        value=base64.b64encode(b"value").decode(),
        sealed=base64.b64encode(b"sealed").decode(),
    )


def test_tasks_that_are_alike_and_tasks_between_them_each_get_their_own_job(world: World) -> None:
    first, second = (api.TaskSpec(command=(word,)) for word in "ab")
    wider = api.TaskSpec(command=("a",), processors=2)
    handle = world.create()
    specs = [first, first, second, first, wider, wider]
    world.submit(handle, specs)
    world.join("w", processors=8)
    jobs = sorted(world.sidecar.jobs["w"].values(), key=lambda job: job.task)
    assert [(job.steps, job.processors) for job in jobs] == [
        ((Exec(spec.command),), spec.processors) for spec in specs
    ]


@pytest.mark.parametrize(
    ("spec", "where"),
    [
        (api.TaskSpec(), "tasks[1]"),
        (api.TaskSpec(command=("a",), shell="b"), "tasks[1]"),
        (api.TaskSpec(command=("a\0b",)), "tasks[1]"),
        (api.TaskSpec(command=("a",), environment={"A=B": "c"}), "tasks[1].environment"),
        (api.TaskSpec(command=("a",), environment={"A": "\0"}), "tasks[1].environment"),
        (api.TaskSpec(command=("a",), inputs=("../x",)), "tasks[1].inputs"),
        (api.TaskSpec(command=("a",), outputs=("/etc/passwd",)), "tasks[1].outputs"),
        (api.TaskSpec(command=("a",), directory="/etc"), "tasks[1].directory"),
        (api.TaskSpec(command=("a",), directory="/data/../etc"), "tasks[1].directory"),
        (api.TaskSpec(command=("a",), directory="a/../../b"), "tasks[1].directory"),
        (api.TaskSpec(steps="no base64!"), "tasks[1].steps"),
        (api.TaskSpec(steps=base64.b64encode(b"\xa1\x80").decode()), "tasks[1].steps"),
        (
            api.TaskSpec(steps=base64.b64encode(b"\x91\x82\xa4type\xa4exec\xa4argv\x90").decode()),
            "tasks[1].steps",
        ),
    ],
)
def test_a_task_that_makes_no_sense_is_refused_with_all_others(
    spec: api.TaskSpec, where: str
) -> None:
    """
    The client is told which one it was, and nothing of the submission is taken.
    """
    world = World(EngineLimits(directories=("/data",)))
    handle = world.create()
    with pytest.raises(ServiceError) as refused:
        world.submit(handle, [api.TaskSpec(command=("true",)), spec])
    assert refused.value.status in (403, 422)
    assert refused.value.where == where
    assert world.info(handle).counts.total == 0
    world.close()


def test_steps_places_and_envelopes_reach_the_worker() -> None:
    """
    They are kept beside the rest of the task, before and behind the home of its instance.
    """
    world = World(EngineLimits(directories=("/data",)))
    handle = world.create()
    steps: tuple[Step, ...] = (Exec(("a",)), Exec(("b",)))
    world.submit(
        handle,
        [
            api.TaskSpec(steps=base64.b64encode(msgspec.msgpack.encode(steps)).decode()),
            api.TaskSpec(command=("c",), directory="/data/run", inputs=("x",)),
            api.TaskSpec(sealed=base64.b64encode(b"secret").decode(), directory="sub"),
        ],
    )
    world.join("w", 3)
    first, second, third = world.sidecar.jobs["w"].values()
    home = str(world.engine.home("ann", handle))
    assert (first.steps, first.directory, first.home) == (steps, "", home)
    assert (second.directory, second.inputs, second.home) == ("/data/run", ("x",), home)
    assert (third.directory, third.sealed, third.steps, third.home) == ("sub", b"secret", (), home)
    world.close()


def test_the_same_key_adds_nothing_before_and_after_a_restart(world: World) -> None:
    """
    A client that did not hear the answer asks again, maybe the next life of the service.
    """
    handle = world.create(key="k")
    assert world.create(key="k") == handle
    assert world.create("bob", key="k") != handle
    first = world.submit(handle, 3, key="s")
    again = world.submit(handle, 3, key="s")
    assert (again.first, again.count, again.repeated) == (first.first, 3, True)
    world.restart()
    assert world.create(key="k") == handle
    assert world.submit(handle, 3, key="s").repeated
    assert world.info(handle).counts.total == 3
    assert world.submit(handle, 1).first == 3


def test_a_key_with_other_content_is_refused_before_and_after_a_restart(world: World) -> None:
    """
    Nothing is dropped in silence: both digests are told, and the first content still answers.
    """
    tasks = [api.TaskSpec(command=("true",), environment={"A": "1", "B": "2"})] * 3
    handle = world.create(key="k", label="mine")
    world.submit(handle, tasks, key="s")
    others: list[list[api.TaskSpec]] = [
        tasks[:2],
        [*tasks, tasks[0]],
        [*tasks[:2], api.TaskSpec(command=("false",))],
        [*tasks[:2], msgspec.structs.replace(tasks[2], label="last")],
        [*tasks[:2], msgspec.structs.replace(tasks[2], hints=api.Hints(runtime=1.0))],
    ]
    told = set()
    for _ in range(2):
        for other in others:
            with pytest.raises(ServiceError, match="the key came with other content") as refused:
                world.submit(handle, other, key="s")
            error = refused.value
            assert (error.kind, error.status, error.where) == (
                "key-reused",
                422,
                "Idempotency-Key",
            )
            before, now = re.findall("[0-9a-f]{64}", error.detail)
            assert before != now
            told.add(before)
        with pytest.raises(ServiceError, match="the key came with other content"):
            world.create(key="k", label="another")
        same = [msgspec.structs.replace(t, environment={"B": "2", "A": "1"}) for t in tasks]
        assert world.submit(handle, same, key="s").repeated
        assert world.create(key="k", label="mine") == handle
        assert world.info(handle).counts.total == 3
        world.restart()
    assert len(told) == 1


def test_a_key_from_before_digests_were_kept_answers_as_it_did(world: World) -> None:
    """
    Journals of earlier versions are read; what nobody knows is not compared.
    """
    handle = world.create(key="k")
    world.submit(handle, 2, key="s")
    instance = world.engine._index.mine("ann", handle)
    instance.digest = instance.submissions[0].digest = b""
    assert world.submit(handle, 1, key="s").count == 2
    assert world.create(key="k", label="another") == handle
    encoded = msgspec.msgpack.encode([1, handle, "ann", "", "", 1.0, 0.0, "k", "home"])
    assert msgspec.msgpack.decode(encoded, type=InstanceCreated).digest == b""


def test_sealed_tasks_are_told_apart_by_what_is_not_sealed(world: World) -> None:
    """
    Whoever seals a task again makes another envelope, and must get the answer of the first time.
    """
    handle = world.create()
    sealed = [api.TaskSpec(sealed="c2VjcmV0"), api.TaskSpec(sealed="c2VjcmV0")]
    again = [api.TaskSpec(sealed="b3RoZXI="), api.TaskSpec(sealed="b3RoZXI=")]
    world.submit(handle, sealed, key="s")
    assert world.submit(handle, again, key="s").repeated
    with pytest.raises(ServiceError, match="other content"):
        world.submit(handle, again[:1], key="s")


def test_nobody_elses_instance_is_there(world: World) -> None:
    """
    Another's handle answers as one that never was, whatever is asked.
    """
    handle = world.create("ann")
    engine = world.engine

    def refusals(handle: str) -> list[tuple[str, int, str]]:
        found = []
        for work in (
            engine.submit("bob", handle, [api.TaskSpec(command=("x",))], ""),
            engine.destroy("bob", handle),
            engine.cancel("bob", handle, None),
            engine.results("bob", handle, 0, 1, 0.0),
            engine.forget("bob", handle, 1),
        ):
            with pytest.raises(ServiceError) as refused:
                world.run(work)
            found.append((refused.value.kind, refused.value.status, refused.value.detail))
        for call in (
            lambda: engine.instance("bob", handle),
            lambda: engine.tasks("bob", handle, 0, 1),
            lambda: engine.home("bob", handle),
            lambda: engine.outputs.file("bob", handle, 0, "stdout"),
        ):
            with pytest.raises(ServiceError) as refused:
                call()
            found.append((refused.value.kind, refused.value.status, refused.value.detail))
        return found

    assert refusals(handle) == refusals("0" * 32)
    assert engine.instances("bob") == []


def test_a_lost_worker_costs_a_try_only_where_the_task_can_have_run(world: World) -> None:
    """
    A task that kills its worker fails in the end; one that waited behind it does not.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), tries=2)] * 2)
    for life in range(2):
        world.join(f"w{life}")
        assert [n & 0xFF for n in world.sidecar.jobs[f"w{life}"]] == [0]
        world.lose(f"w{life}")
    (result,) = world.results(handle)
    assert (result["task"], result["state"], result["attempt"]) == (0, "failed", 2)
    assert "was lost" in result["reason"]
    world.restart()
    world.settle()
    world.join("w2")
    (job,) = world.sidecar.jobs["w2"].values()
    assert job.task & 0xFF == 1
    assert world.engine.counters.retried == 0


def test_what_may_run_only_once_never_begins_again_once_it_may_have_begun(world: World) -> None:
    """
    The report of the task before it may have been lost with their worker.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), tries=1)] * 60)
    world.join("w")
    for _ in range(10):
        world.end("w", next(iter(world.sidecar.jobs["w"])), start=world.now, end=world.now)
    had = {number & 0xFF for number in world.sidecar.jobs["w"]}
    assert len(had) > 2
    world.lose("w")
    lost = {r["task"] for r in world.results(handle) if r["state"] == "failed"}
    assert lost == had


def test_tasks_of_an_earlier_incarnation_are_withheld_until_settling(world: World) -> None:
    """
    Their need of processors is unknown before, and known afterwards; a drain withholds them, too.
    """

    def demanded() -> tuple[int, int, bool]:
        demand = world.engine.demand()["shared"]
        return demand.tasks, demand.later, demand.withheld

    handle = world.create()
    world.submit(handle, 2)
    assert demanded() == (2, 0, False)
    world.restart()
    assert demanded() == (0, 2, True)
    world.submit(handle, 1)
    assert demanded() == (1, 2, True)
    world.settle()
    assert demanded() == (3, 0, False)
    world.do(world.engine.drain)
    assert demanded() == (0, 3, True)


def test_losses_are_remembered_over_a_restart(world: World) -> None:
    """
    A task that kills its worker, and then the service's machine, has not its tries anew.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), tries=2)])
    world.join("w")
    world.lose("w")
    world.submit(handle, 1)  # so that all before it is durable
    world.restart()
    world.settle()
    world.join("v")
    world.lose("v")
    assert [r["task"] for r in world.results(handle)] == [0]


def test_an_outcome_counts_once_and_only_from_who_was_given_the_task(world: World) -> None:
    """
    A repeated one, one of another worker and one of another attempt are acknowledged and dropped.
    """
    handle = world.create()
    world.submit(handle, 2)
    world.join("w", 2)
    world.join("v")
    first, second = world.sidecar.jobs["w"].values()
    world.say("v", [outcome_of(first, Status.FAILED, 0.0)])
    world.say("w", [outcome_of(msgspec.structs.replace(first, attempt=1), Status.FAILED, 0.0)])
    assert world.results(handle) == []
    good = outcome_of(first, Status.SUCCEEDED, 0.0)
    world.say("w", [good, good])
    world.say("w", [good, outcome_of(second, Status.FAILED, 0.0, exit_code=3)])
    assert [(r["task"], r["state"]) for r in world.results(handle)] == [
        (0, "succeeded"),
        (1, "failed"),
    ]
    assert world.told == {"v": 1, "w": 5}
    assert world.engine.counters.dropped == 4


def test_a_worker_is_told_only_when_its_outcome_is_durable(world: World) -> None:
    """
    With a disk that is full even for results nothing is said, and nothing is lost.
    """
    handle = world.create()
    world.submit(handle, 1)
    world.join("w")
    (job,) = list(world.sidecar.jobs["w"].values())
    world.journal.is_full = True
    world.say("w", [outcome_of(job, Status.SUCCEEDED, 0.0)])
    assert world.told == {}
    assert world.results(handle) == []
    world.restart()  # before there was room
    world.journal.is_full = False
    world.join("w")  # it still holds the job
    world.end("w", job.task)
    assert len(world.results(handle)) == 1
    assert world.told == {"w": 1}


def test_tasks_of_an_earlier_life_wait_for_their_workers(world: World) -> None:
    """
    What may still run somewhere is not given to somebody else; what is new is.
    """
    handle = world.create()
    world.submit(handle, 2)
    world.join("w")
    (job,) = world.sidecar.jobs["w"].values()
    world.restart()
    world.join("v", 2)
    assert world.sidecar.jobs["v"] == {}
    world.submit(handle, 1)
    assert [n & 0xFF for n in world.sidecar.jobs["v"]] == [2]
    assert world.join("w") == []  # goes on with what it has
    world.settle()
    assert [n & 0xFF for n in world.sidecar.jobs["v"]] == [2, 1]
    world.end("w", job.task)
    assert [r["task"] for r in world.results(handle)] == [0]


def test_a_worker_that_comes_back_too_late_is_told_to_end_what_others_have(world: World) -> None:
    """
    Its task runs twice, and is recorded once.
    """
    handle = world.create()
    world.submit(handle, 1)
    world.join("w")
    (job,) = list(world.sidecar.jobs["w"].values())
    world.restart()
    world.settle()
    world.join("v")
    (again,) = world.sidecar.jobs["v"].values()
    assert again.task == job.task
    assert again.attempt != job.attempt
    assert world.join("w") == [job.task]
    world.end("w", job.task, Status.CANCELLED)
    assert world.results(handle) == []
    world.end("v", job.task)
    assert len(world.results(handle)) == 1


def test_jobs_that_were_lost_on_the_way_are_given_again(world: World) -> None:
    """
    A worker that comes back at once and does not hold what it was sent never got it.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), tries=1)] * 2)
    world.join("w", 2)
    first, second = list(world.sidecar.jobs["w"])
    del world.sidecar.jobs["w"][second]
    assert world.join("w", 2) == []
    assert set(world.sidecar.jobs["w"]) == {first, second}
    assert world.results(handle) == []


def test_cancelled_tasks_end_at_once_or_are_killed(world: World) -> None:
    """
    Each has a result, also when the service is killed after it has said so.
    """
    handle = world.create()
    world.submit(handle, 4)
    world.join("w")
    (job,) = list(world.sidecar.jobs["w"].values())
    cancelled = world.run(world.engine.cancel("ann", handle, [0, 2]))
    assert cancelled.count == 2
    assert world.sidecar.stopped == {"w": {job.task}}
    assert [(r["task"], r["state"]) for r in world.results(handle)] == [(2, "cancelled")]
    world.restart()
    assert world.join("w") == [job.task]
    world.end("w", job.task, Status.CANCELLED)
    assert [r["task"] for r in world.results(handle)] == [2, 0]
    world.settle()
    assert world.run(world.engine.cancel("ann", handle, None)).count == 2
    world.sidecar.jobs["w"].clear()
    world.lose("w")
    assert {r["state"] for r in world.results(handle)} == {"cancelled"}
    assert world.info(handle).counts.cancelled == 4
    with pytest.raises(ServiceError, match="no such task"):
        world.run(world.engine.cancel("ann", handle, [9]))


def test_who_cancels_says_how_long_a_task_has_to_end(world: World) -> None:
    """
    As long as is usual where nothing is said; who asks again, with less patience, is heard.
    """
    handle = world.create()
    world.submit(handle, 2)
    world.join("w", 2)
    assert world.run(world.engine.cancel("ann", handle, [0])).count == 1
    assert world.run(world.engine.cancel("ann", handle, [1], 60.0)).count == 1
    assert world.run(world.engine.cancel("ann", handle, [1])).count == 0
    assert world.run(world.engine.cancel("ann", handle, None, 0.0)).count == 0
    assert world.sidecar.graces == [GRACE, 60.0, 0.0]


@pytest.mark.parametrize("lost", [True, False])
def test_a_result_says_whether_only_the_worker_was_lost(world: World, lost: bool) -> None:
    """
    Another service tries such a task again at no charge to its tries; the reason is for people.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("true",), tries=1)])
    world.join("w")
    (job,) = list(world.sidecar.jobs["w"].values())
    if lost:
        world.sidecar.jobs["w"].clear()
        world.lose("w")
    else:
        world.end("w", job.task, Status.FAILED, exit_code=None, reason="a file was lost")
    (result,) = world.results(handle)
    assert (result["state"], result["lost"]) == ("failed", lost)


def test_what_was_cancelled_and_never_comes_back_ends(world: World) -> None:
    """
    A worker that is lost for good cannot say that it has killed a task.
    """
    handle = world.create()
    world.submit(handle, 2)
    world.join("w")
    world.run(world.engine.cancel("ann", handle, None))
    world.restart()
    assert len(world.results(handle)) == 1
    world.settle()
    assert [r["state"] for r in world.results(handle)] == ["cancelled"] * 2


def test_who_destroys_what_runs_pays_for_it(world: World) -> None:
    """
    Else a task that hands its results out by itself would cost nothing.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("true",), processors=2)])
    world.join("w", 2)
    (job,) = list(world.sidecar.jobs["w"].values())
    world.now += 5.0
    world.run(world.engine.destroy("ann", handle))
    world.end("w", job.task, Status.CANCELLED, start=world.now - 3.0, end=world.now)
    assert world.billing.charged == [("shared", "ann", handle, 1, 6.0)]
    assert world.told == {"w": 1}


def test_nothing_is_left_of_what_was_destroyed(world: World) -> None:
    """
    Its tasks are killed, its records and its home go, its number is never used again.
    """
    handle = world.create()
    world.submit(handle, 3)
    world.join("w")
    (job,) = list(world.sidecar.jobs["w"].values())
    world.run(world.engine.destroy("ann", handle))
    assert world.sidecar.stopped == {"w": {job.task}}
    assert len(world.homes.made) == 1  # until nothing runs in it
    with pytest.raises(ServiceError, match="no such instance"):
        world.results(handle)
    world.end("w", job.task, Status.CANCELLED)
    assert world.told == {"w": 1}
    world.restart()
    # Of the numbers.
    assert world.until(lambda: not world.homes.made and len(kinds(world)) == 1)
    world.join("w")
    other = world.create()
    world.submit(other, 1)
    (new,) = world.sidecar.jobs["w"].values()
    assert new.task >> 32 != job.task >> 32


def test_nothing_is_killed_before_its_instance_is_gone_for_good(world: World) -> None:
    """
    Else a crash would leave the instance, with tasks killed that nobody has cancelled.
    """
    handle = world.create()
    world.submit(handle, 1)
    world.join("w")
    world.journal.is_full = True
    with pytest.raises(ServiceError, match="not even that"):
        world.run(world.engine.destroy("ann", handle))
    assert world.sidecar.stopped == {}
    assert world.homes.made
    world.journal.is_full = False
    world.restart()
    assert world.info(handle).counts.total == 1


def test_a_home_goes_although_the_service_was_killed(world: World) -> None:
    """
    What was destroyed and still there goes in the next life.
    """
    handle = world.create()
    world.submit(handle, 1)
    world.join("w")
    world.run(world.engine.destroy("ann", handle))
    assert world.homes.made
    world.restart()
    world.rest()
    assert world.until(lambda: not world.homes.made)


def test_results_that_the_client_has_are_forgotten_for_good(world: World) -> None:
    """
    Neither the tasks run again after a restart, nor do cursors change.
    """
    handle = world.create()
    world.submit(handle, 6)
    world.join("w", 6)
    for number in list(world.sidecar.jobs["w"]):
        world.end("w", number)
    for through in (1, 2, 4, 4, 3):
        world.run(world.engine.forget("ann", handle, through))
    assert [r["cursor"] for r in world.results(handle)] == [5, 6]
    world.restart()
    info = world.info(handle)
    assert (info.results, info.kept_from, info.counts.succeeded) == (6, 4, 6)
    assert [r["cursor"] for r in world.results(handle, 2)] == [5, 6]
    assert world.engine.tasks("ann", handle, 0, 10).tasks[0].state == "succeeded"
    world.run(world.engine.forget("ann", handle, 100))
    world.restart()
    assert world.info(handle).counts.succeeded == 6
    assert world.results(handle) == []


def test_the_records_of_an_instance_stay_few(world: World) -> None:
    """
    Whatever comes and goes, what is kept hangs on what is there: the disk stays bounded.
    """
    handle = world.create()
    world.join("w", 50)
    most = 0
    for _ in range(40):
        world.submit(handle, 50)
        for number in list(world.sidecar.jobs["w"]):
            world.end("w", number)
        world.run(world.engine.forget("ann", handle, 10**9))
        most = max(most, len(world.journal.records))
    assert world.info(handle).counts.succeeded == 2000
    assert most < 20
    assert world.journal.size < 2000


def test_a_submission_shrinks_as_its_tasks_end(world: World) -> None:
    """
    The few that are left of many do not keep the bodies of all others on disk.
    """
    handle = world.create()
    tasks = [api.TaskSpec(command=("x" * 1000,))] * 100
    world.submit(handle, tasks, key="k")
    world.join("w", 100)
    for number in list(world.sidecar.jobs["w"])[:90]:
        world.end("w", number)
    world.run(world.engine.forget("ann", handle, 90))
    assert world.journal.size < 40_000
    world.restart()
    world.settle()
    assert world.submit(handle, tasks, key="k").repeated
    with pytest.raises(ServiceError, match="other content"):
        world.submit(handle, 100, key="k")
    assert world.info(handle).counts == api.Counts(total=100, waiting=10, succeeded=90)


def test_old_results_are_read_from_the_journal() -> None:
    """
    Memory holds the latest only; clients see no difference.
    """
    world = World(EngineLimits(results_in_memory=1))
    handle = world.create()
    world.submit(handle, 10)
    world.join("w", 10)
    for number in list(world.sidecar.jobs["w"]):
        world.end("w", number, stdout=b"\xff", stderr=b"text")
    results = world.results(handle)
    assert [r["cursor"] for r in results] == list(range(1, 11))
    assert results[0]["raw"] == {"stdout": "/w=="}
    assert results[0]["stderr"] == "text"
    batch = world.run(world.engine.results("ann", handle, 3, 4, 0.0))
    assert (len(batch.lines), batch.next, batch.done) == (4, 7, False)
    world.close()


def test_a_long_poll_ends_with_the_first_result(world: World) -> None:
    """
    It waits no longer than that, nor when the instance goes, nor when there is nothing to wait for.
    """
    handle = world.create()
    assert world.run(world.engine.results("ann", handle, 0, 10, 60.0)).done
    world.submit(handle, 1)
    world.join("w")

    async def poll() -> int:
        asking = asyncio.ensure_future(world.engine.results("ann", handle, 0, 10, 60.0))
        await asyncio.sleep(0)
        (job,) = world.sidecar.jobs["w"].values()
        outcome = outcome_of(job, Status.SUCCEEDED, 0.0)
        world.engine.dispatching.reactions.reported(
            world.engine.dispatching.registered.get("w"), [outcome], lambda: None
        )
        return len((await asking).lines)

    assert world.run(poll()) == 1

    async def poll_and_destroy() -> None:
        await world.engine.submit("ann", handle, [api.TaskSpec(command=("x",))], "")
        asking = asyncio.ensure_future(world.engine.results("ann", handle, 1, 10, 60.0))
        await asyncio.sleep(0)
        await world.engine.destroy("ann", handle)
        with pytest.raises(ServiceError, match="no such instance"):
            await asking

    world.run(poll_and_destroy())


def test_changes_are_told_until_the_instance_goes(world: World) -> None:
    """
    Many changes at once are one to be told of.
    """
    handle = world.create()

    async def watch() -> list[int]:
        totals = []

        async def look() -> None:
            async for info in world.engine.changes("ann", handle):
                totals.append(info.counts.total)

        looking = asyncio.ensure_future(look())
        await asyncio.sleep(0.01)
        for _ in range(5):
            await world.engine.submit("ann", handle, [api.TaskSpec(command=("x",))], "")
        await asyncio.sleep(0.2)
        await world.engine.destroy("ann", handle)
        await looking
        return totals

    assert world.run(watch()) == [0, 5]


def test_quotas_hold() -> None:
    """
    Each is refused by name; finished tasks and forgotten results make room.
    """
    limits = EngineLimits(
        instances=2, unfinished=5, tasks=12, task_bytes=2000, result_bytes=300, longest_keep=10.0
    )
    world = World(limits)
    with pytest.raises(ServiceError, match="kept for 10 s"):
        world.create(keep=11.0)
    handle = world.create(keep=10.0)
    world.create(keep=10.0)
    with pytest.raises(ServiceError, match="2 instances"):
        world.create(keep=10.0)
    world.create("bob", keep=10.0)
    world.submit(handle, 5)
    with pytest.raises(ServiceError, match="5 unfinished tasks") as refused:
        world.submit(handle, 1)
    assert (refused.value.status, refused.value.retry_after) == (429, 1.0)
    with pytest.raises(ServiceError, match="larger than the user's quota"):
        world.submit(handle, [api.TaskSpec(command=("x" * 3000,))])
    world.join("w", 5)
    for number in list(world.sidecar.jobs["w"]):
        world.end("w", number)
    with pytest.raises(ServiceError, match="bytes of results"):
        world.submit(handle, 1)
    world.run(world.engine.forget("ann", handle, 5))
    world.submit(handle, 5)
    with pytest.raises(ServiceError, match="12 tasks of one instance"):
        world.submit(handle, 3)
    world.close()


def test_labels_and_what_tasks_come_after_count_as_bytes_of_the_user() -> None:
    """
    They lie in memory and in the journal as bodies do; a restart changes nothing of what is
    counted, and nothing is counted any more when all tasks have ended.
    """
    world = World(EngineLimits(task_bytes=5000))
    handle = world.create()

    def counted() -> int:
        return world.engine._index.usage("ann").task_bytes

    world.submit(handle, 20)
    bodies = counted()
    follower = api.TaskSpec(command=("true",), after=(*range(20), 0, 0))
    world.submit(handle, [follower])
    assert counted() == bodies + bodies // 20 + 20 * EDGE
    world.submit(handle, [api.TaskSpec(command=("true",), label="x" * 200)])
    before = counted()
    assert before == bodies + 2 * (bodies // 20) + 20 * EDGE + 200
    with pytest.raises(ServiceError, match="larger than the user's quota"):
        world.submit(handle, [follower] * 6)
    with pytest.raises(ServiceError, match="bytes of unfinished tasks"):
        world.submit(handle, [follower] * 4)
    world.restart()
    assert counted() == before
    world.run(world.engine.cancel("ann", handle, None))
    world.settle()
    assert world.info(handle).counts.cancelled == 22
    assert counted() == 0
    world.close()


def test_one_submission_has_a_limited_number_of_dependencies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    More would hold the event loop; the first task too many is named, and nothing is taken.
    """
    monkeypatch.setattr(submitting, "MOST_EDGES", 3)
    handle = world.create()
    first = api.TaskSpec(command=("true",))
    tasks = [msgspec.structs.replace(first, after=tuple(range(n))) for n in (0, 1, 2, 1)]
    with pytest.raises(ServiceError, match="3 dependencies") as refused:
        world.submit(handle, tasks)
    assert (refused.value.status, refused.value.where) == (422, "tasks[3].after")
    assert world.info(handle).counts.total == 0
    assert world.submit(handle, tasks[:3]).count == 3


def test_a_user_may_have_more_or_less_than_others() -> None:
    """
    Ann has limits of her own; everybody else those of all, also after a restart.
    """
    own = EngineLimits(instances=1, unfinished=2, task_bytes=1000)
    world = World(EngineLimits(instances=2, unfinished=5), own_limits={"ann": own})
    handle = world.create()
    other = world.create("bob")
    world.create("bob")
    world.restart()
    with pytest.raises(ServiceError, match="1 instances"):
        world.create()
    with pytest.raises(ServiceError, match="2 instances"):
        world.create("bob")
    with pytest.raises(ServiceError, match="larger than the user's quota"):
        world.submit(handle, 3)
    world.submit(handle, 2)
    with pytest.raises(ServiceError, match="2 unfinished tasks"):
        world.submit(handle, 1)
    world.submit(other, 5, user="bob")
    with pytest.raises(ServiceError, match="5 unfinished tasks"):
        world.submit(other, 1, user="bob")
    world.close()


def test_a_task_wider_than_the_site_is_refused() -> None:
    """
    It would wait for ever; one as wide as the site is taken.
    """
    world = World(processors=4)
    handle = world.create()
    wide, wider = (api.TaskSpec(command=("true",), processors=n) for n in (4, 5))
    with pytest.raises(ServiceError, match="holds 5 processors, and the site has 4") as refused:
        world.submit(handle, [wide, wider])
    assert (refused.value.status, refused.value.where) == (422, "tasks[1].processors")
    world.submit(handle, [wide])
    assert world.info(handle).counts.total == 1
    world.close()


def test_a_full_disk_refuses_new_work_and_keeps_the_old(world: World) -> None:
    """
    Results are still recorded; what was refused is not there, what was said to be late comes.
    """
    handle = world.create()
    world.submit(handle, 1)
    world.join("w")
    world.journal.problem = "the disk is full"
    with pytest.raises(ServiceError, match="full"):
        world.submit(handle, 1)
    with pytest.raises(ServiceError, match="full"):
        world.create()
    (number,) = world.sidecar.jobs["w"]
    world.end("w", number)
    assert len(world.results(handle)) == 1
    assert world.info(handle).counts.total == 1


def test_an_instance_without_a_home_is_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The user is told, nothing of it stays, and asking again may help.
    """

    def fail(name: str, user: str) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(world.homes, "make", fail)
        with pytest.raises(ServiceError, match="No space left") as refused:
            world.create(key="k")
    assert refused.value.status == 507
    assert world.engine.instances("ann") == []
    assert world.create(key="k")


def test_a_draining_service_takes_nothing_and_finishes_what_runs(world: World) -> None:
    """
    What waits is given out by its next life.
    """
    handle = world.create()
    world.submit(handle, 2)
    world.join("w")
    world.engine.drain()
    for work in (
        world.engine.submit("ann", handle, [api.TaskSpec(command=("x",))], ""),
        world.engine.create("ann", api.NewInstance(), ""),
    ):
        with pytest.raises(ServiceError) as refused:
            world.run(work)
        assert (refused.value.kind, refused.value.status) == ("draining", 503)
    (number,) = world.sidecar.jobs["w"]
    world.end("w", number)
    assert world.sidecar.jobs["w"] == {}
    assert len(world.results(handle)) == 1
    assert world.engine.running == 0
    world.run(world.engine.close())
    world.restart()
    world.settle()
    world.join("w")
    assert len(world.sidecar.jobs["w"]) == 1


def test_a_task_that_is_wider_than_its_agreement_is_refused(world: World) -> None:
    """
    It could never run; one that waits for a wider worker, or for any, is told why.
    """
    world.billing.widths["a1"] = 2
    handle = world.create(agreement="a1")
    wide, fit = (api.TaskSpec(command=("x",), processors=width) for width in (3, 2))
    with pytest.raises(ServiceError, match="holds 3 processors, and the agreement has 2") as no:
        world.submit(handle, [fit, wide])
    assert (no.value.status, no.value.where) == (422, "tasks[1].processors")
    assert world.info(handle).counts.total == 0

    world.submit(handle, [fit])
    assert world.info(handle).note == "no worker is there for its tasks yet"
    world.join("narrow", 1, pool="a1")
    assert world.info(handle).note == (
        "its tasks need 2 processors of one worker, and the widest has 1"
    )
    world.join("wide", 2, pool="a1")
    assert world.info(handle).note == ""


def test_what_nobody_pays_for_does_not_run(world: World) -> None:
    """
    Before an agreement begins its tasks wait; after it has ended they wait again.
    """
    world.billing.refused["a1"] = Refusal("it begins in an hour", final=False)
    handle = world.create(agreement="a1")
    world.submit(handle, [api.TaskSpec(command=("x",), limit=50.0)])
    world.join("w", pool="a1")
    assert world.sidecar.jobs["w"] == {}
    assert world.info(handle).note == "it begins in an hour"
    del world.billing.refused["a1"]
    world.billing.seconds["a1"] = 20.0
    world.tick()
    (job,) = list(world.sidecar.jobs["w"].values())
    assert job.limit == 20.0
    world.billing.refused["a1"] = Refusal("it is over", final=True)
    world.tick()
    assert world.sidecar.stopped == {"w": {job.task}}
    world.end("w", job.task, Status.TIMED_OUT)
    info = world.info(handle)
    assert (info.counts.waiting, info.note) == (1, "it is over")
    assert world.sidecar.jobs["w"] == {}
    assert world.engine.demand()["a1"].tasks == 0
    assert world.engine.demand()["a1"].later == 1
    assert world.billing.charged == []
    with pytest.raises(ServiceError, match="no such agreement"):
        world.create(agreement="none")


def test_its_own_limit_ends_a_task(world: World) -> None:
    """
    Unlike the end of the time that was paid for.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), limit=5.0)])
    world.join("w")
    (number,) = world.sidecar.jobs["w"]
    world.end("w", number, Status.TIMED_OUT, exit_code=-15, end=world.now + 5.0)
    (result,) = world.results(handle)
    assert (result["state"], result["exit_code"]) == ("timed-out", -15)


def test_shared_processors_are_charged_once_for_each_result(world: World) -> None:
    """
    A repeated outcome costs nothing, nor does what was lost or taken back.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), processors=2)] * 2)
    world.join("w", 4)
    first, second = list(world.sidecar.jobs["w"].values())
    world.now += 10.0
    outcome = outcome_of(first, Status.SUCCEEDED, 1000.0, end=1003.0)
    world.say("w", [outcome, outcome])
    world.end("w", second.task, Status.CANCELLED)
    assert world.billing.charged == [("shared", "ann", handle, 1, 6.0)]


@pytest.mark.parametrize(
    ("start", "end", "times"),
    [
        (1002.0, 1005.0, (1002.0, 1005.0)),
        (1000.0, 1010.0, (1000.0, 1010.0)),
        (4602.0, 4605.0, (1007.0, 1010.0)),  # an hour ahead: as late as can be
        (2.0, 5.0, (1000.0, 1003.0)),  # behind: as early as can be
        (999.0, 1001.0, (1000.0, 1002.0)),
        (0.0, 1e9, (1000.0, 1010.0)),  # longer than there was time
    ],
)
def test_times_are_held_against_the_services_own_clock(
    world: World, start: float, end: float, times: tuple[float, float]
) -> None:
    """
    Given at 1000, told of at 1010: the task ran between, on no more processors than it holds,
    whatever its worker says or its host's clock is.
    """
    handle = world.create()
    world.submit(handle, [api.TaskSpec(command=("x",), processors=2)])
    world.join("w", 2)
    (job,) = world.sidecar.jobs["w"].values()
    world.now += 10.0
    world.say("w", [outcome_of(job, Status.SUCCEEDED, start, end=end)])
    (result,) = world.results(handle)
    assert (result["start"], result["end"]) == times
    assert world.billing.charged == [("shared", "ann", handle, 1, 2 * (times[1] - times[0]))]


def test_an_instance_goes_when_its_time_is_over(world: World) -> None:
    """
    The time begins with the last result, also where that was in another life.
    """
    handle = world.create(keep=100.0)
    world.submit(handle, 1)
    world.now += 1000.0
    world.tick()
    assert world.info(handle).expires is None
    world.join("w")
    world.end("w", next(iter(world.sidecar.jobs["w"])))
    assert world.info(handle).expires == world.now + 100.0
    world.run(world.engine.forget("ann", handle, 1))
    world.restart()
    assert world.info(handle).expires == world.now + 100.0
    world.now += 100.0
    world.tick()
    assert world.engine.instances("ann") == []
    assert world.until(lambda: not world.homes.made)


def test_a_key_whose_instance_was_destroyed_makes_no_other_one(world: World) -> None:
    """
    The request may come once more, late; the user would never hear of what it made.
    """
    handle = world.create(key="k")
    world.run(world.engine.destroy("ann", handle))
    for _ in range(2):
        with pytest.raises(ServiceError, match="is destroyed") as refused:
            world.create(key="k")
        assert refused.value.status == 409
        world.restart()
    assert world.create("bob", key="k")
    world.now += 2 * 86400.0
    world.tick()
    assert world.create(key="k") != handle


def test_keys_are_forgotten_in_time(world: World) -> None:
    """
    With them goes what was kept of submissions that have ended.
    """
    handle = world.create(key="i")
    world.submit(handle, 1, key="s")
    world.join("w")
    world.end("w", next(iter(world.sidecar.jobs["w"])))
    records = len(world.journal.records)
    world.now += 2 * 86400.0
    world.tick()
    assert len(world.journal.records) == records - 1
    assert world.create(key="i") != handle
    assert not world.submit(handle, 1, key="s").repeated


def test_numbers_that_make_no_sense_are_put_right(world: World) -> None:
    """
    A worker may say what it likes of times and sizes; clients get what their types allow.
    """
    handle = world.create()
    world.submit(handle, 3)
    world.join("w", 3)
    nan, inf = float("nan"), float("inf")
    for number in list(world.sidecar.jobs["w"]):
        more = {"start": nan, "end": inf, "user_seconds": -inf, "stdout_size": -4}
        world.end("w", number, **more)
    for result in world.results(handle):
        msgspec.convert(result, api.Result)
    assert world.billing.charged == []


def test_long_streams_are_found_by_name(world: World) -> None:
    """
    Their names are the worker's, which no client chooses; short streams have no file.
    """
    handle = world.create()
    world.submit(handle, 2)
    world.join("w", 2)
    first, second = list(world.sidecar.jobs["w"].values())
    world.end("w", first.task, stdout_size=10**6)
    world.end("w", second.task, stdout=b"x", stdout_size=1)
    expected = f"{first.folder}.{first.attempt}.stdout"
    assert world.engine.outputs.file("ann", handle, 0, "stdout") == expected
    with pytest.raises(ServiceError, match="no file"):
        world.engine.outputs.file("ann", handle, 1, "stdout")
    world.restart()
    assert world.engine.outputs.file("ann", handle, 0, "stdout") == expected
    world.run(world.engine.forget("ann", handle, 2))
    with pytest.raises(ServiceError, match="no file"):
        world.engine.outputs.file("ann", handle, 0, "stdout")
