"""Sealed tasks: the service sees neither what they do nor what they print."""

import base64
from collections.abc import Sequence

import pytest
from msgspec import structs
from tests.sealing.sealing_rig import World

from bursar.model.errors import InputError, SiteError
from bursar.model.site import SealLevel
from bursar.model.task import Exec, Shell, Status
from bursar.remote.messages import Result, TaskSpec
from bursar.remote.sealed_tasks import LONGEST_LABEL, InstanceSealer
from bursar.sealing.envelope import SealedResult, decode_task, encode_part

LEVELS: Sequence[SealLevel] = ("conversation", "message")


def run(world: World, task: TaskSpec, cursor: int = 1, status: Status = Status.SUCCEEDED) -> Result:
    """What a worker makes of a task."""
    opened = world.opener().open(base64.b64decode(task.sealed))
    inside = decode_task(opened.payload)
    (step,) = inside.steps
    said = step.argv[-1] if isinstance(step, Exec) else inside.environment["WHO"]
    result = SealedResult(
        status=status, exit_code=0, stdout=said.encode(), stderr=b"\xff", value=b"v"
    )
    return Result(
        cursor=cursor,
        task=cursor - 1,
        state="succeeded",
        label=task.label,
        sealed=base64.b64encode(opened.seal(encode_part(result))).decode(),
    )


def seals_of(world: World, level: SealLevel = "conversation") -> InstanceSealer:
    """Ann's, of the instance "h"."""
    counted = iter(range(1, 1000))
    return InstanceSealer(
        world.sealer(level), "h", lambda size: next(counted).to_bytes(size, "big")
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_task_comes_back_as_if_it_had_not_been_sealed(level: SealLevel) -> None:
    """With its own label; the service knows neither command nor environment."""
    world = World()
    seals = seals_of(world, level)
    tasks = [
        TaskSpec(command=("echo", "s3cret"), label="a", processors=2),
        TaskSpec(shell="echo $WHO", environment={"WHO": "s3cret"}, label="b"),
    ]
    sealed = list(seals.seal(tasks))
    for task in sealed:
        assert "s3cret" not in repr(
            structs.asdict(task) | {"sealed": base64.b64decode(task.sealed)}
        )
        assert task.command == ()
        assert task.environment == {}
        assert task.shell == ""
    assert sealed[0].processors == 2

    opened = [seals.open(run(world, task)) for task in sealed]

    assert [(result.label, result.stdout, result.exit_code) for result in opened] == [
        ("a", "s3cret", 0),
        ("b", "s3cret", 0),
    ]
    assert opened[0].raw == {"stderr": base64.b64encode(b"\xff").decode()}
    assert base64.b64decode(opened[0].value) == b"v"
    assert not opened[0].sealed


def test_the_result_of_one_task_is_not_taken_for_anothers() -> None:
    """The service could exchange them: both commands and labels may be the same."""
    world = World()
    seals = seals_of(world)
    one, other = seals.seal([TaskSpec(command=("a",)), TaskSpec(command=("a",))])
    swapped = structs.replace(run(world, one), label=other.label)
    with pytest.raises(SiteError, match="cannot be opened"):
        seals.open(swapped)


def test_how_it_ended_is_the_workers_word() -> None:
    """The service cannot pass a failure off as a success."""
    world = World()
    seals = seals_of(world)
    (task,) = seals.seal([TaskSpec(command=("a",))])
    assert seals.open(run(world, task, status=Status.TIMED_OUT)).state == "timed-out"


def test_a_success_without_an_envelope_is_not_believed() -> None:
    """The service says that, nobody else; that it failed may be all there is to say."""
    seals = seals_of(World())
    label = "0" * 32 + "mine"
    made_up = Result(cursor=1, task=0, state="succeeded", label=label, stdout="all is well")
    with pytest.raises(SiteError, match="not sealed"):
        seals.open(made_up)
    lost = structs.replace(made_up, state="failed", stdout="", reason="lost with its worker")
    assert seals.open(lost).label == "mine"


def test_a_value_without_an_envelope_is_not_taken() -> None:
    """A pickle from a worker may be loaded, where the user says so; one of the service's not."""
    label = "0" * 32 + "mine"
    for state in ("failed", "timed-out", "cancelled"):
        made_up = Result(cursor=1, task=0, state=state, label=label, value="bWluZQ==")
        opened = seals_of(World()).open(made_up)
        assert (opened.state, opened.value) == (state, "")


@pytest.mark.parametrize("envelope", ["", "!", base64.b64encode(b"\x01junk").decode()])
def test_an_envelope_that_is_none_is_told(envelope: str) -> None:
    """In one line that names the task."""
    result = Result(cursor=1, task=7, state="succeeded", label="0" * 32, sealed=envelope or "=")
    with pytest.raises(SiteError, match=r"^task 7: "):
        seals_of(World()).open(result)


def test_a_task_that_cannot_be_sealed_is_named() -> None:
    """By its place."""
    seals = seals_of(World())
    for wrong, where in (
        (TaskSpec(), r"tasks\[1\]: exactly one"),
        (TaskSpec(command=("a",), shell="b"), r"tasks\[1\]: exactly one"),
        (TaskSpec(steps="!"), r"tasks\[1\].steps"),
        (TaskSpec(command=("a",), label="x" * (LONGEST_LABEL + 1)), r"tasks\[1\].label"),
    ):
        with pytest.raises(InputError, match=where):
            list(seals.seal([TaskSpec(shell="true"), wrong]))


def test_steps_are_sealed_as_they_are() -> None:
    """What another Bursar sends."""
    import msgspec

    world = World()
    steps = (Exec(("a",)), Shell("b"))
    packed = base64.b64encode(msgspec.msgpack.encode(steps)).decode()
    (task,) = seals_of(world).seal([TaskSpec(steps=packed)])
    inside = decode_task(world.opener().open(base64.b64decode(task.sealed)).payload)
    assert inside.steps == steps
