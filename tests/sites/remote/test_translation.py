"""Jobs as a service takes them, its results as the dispatcher does."""

import base64
import time

import msgspec
import pytest

from bursar.dispatch.wire import WireJob
from bursar.model.task import Copy, Exec, Status, Step
from bursar.remote.messages import Result, TaskState
from bursar.sites.remote.translation import copied, outcome_of, spec_of

STEPS: tuple[Step, ...] = (
    Exec(("run", "me")),
    Copy("made/x.txt", "out/./y.txt", source_at_root=False, target_at_root=True),
    Copy("given", "here", source_at_root=True, target_at_root=False),
)


def job(**more: object) -> WireJob:
    given: dict[str, object] = {"steps": STEPS, "processors": 2, "limit": 0.0, **more}
    return WireJob(task=7, attempt=3, folder="7-x", **given)  # type: ignore[arg-type]


def result(state: TaskState = "succeeded", **more: object) -> Result:
    return Result(cursor=1, task=0, state=state, label="7.3", **more)  # type: ignore[arg-type]


def test_what_goes_to_the_root_goes_apart_for_each_attempt() -> None:
    """All else is as it was."""
    spec = spec_of(job(limit=5.0, environment={"A": "b"}, inputs=("i",), outputs=("o",)))
    steps = msgspec.msgpack.decode(base64.b64decode(spec.steps), type=tuple[Step, ...])
    assert steps == (
        STEPS[0],
        Copy("made/x.txt", ".bursar-made/7.3/out/y.txt", source_at_root=False, target_at_root=True),
        STEPS[2],
    )
    assert (spec.label, spec.processors, spec.limit) == ("7.3", 2, 5.0)
    assert (spec.environment, spec.inputs, spec.outputs) == ({"A": "b"}, ("i",), ("o",))
    assert spec_of(job()).limit is None
    assert copied(job()) == [("out/y.txt", "x.txt")]


def test_streams_that_are_no_text_and_values() -> None:
    raw = {"stdout": base64.b64encode(b"\xff\0").decode()}
    given = result(raw=raw, stdout_size=2, stderr="ä", stderr_size=2, value="AAE=", exit_code=0)
    outcome = outcome_of(job(), given, time.time())
    assert (outcome.stdout, outcome.stderr) == (b"\xff\0", "ä".encode())
    assert outcome.value == b"\0\1"


@pytest.mark.parametrize(
    ("state", "exit_code", "reason", "status"),
    [
        ("succeeded", 0, "", Status.SUCCEEDED),
        ("failed", 3, "exited with 3", Status.FAILED),
        ("failed", None, 'output "x" was not made', Status.FAILED),
        ("failed", 1, "something was lost", Status.FAILED),
        ("failed", None, "it left too early", Status.FAILED),
        ("timed-out", None, "", Status.TIMED_OUT),
        ("cancelled", None, "", Status.CANCELLED),
    ],
)
def test_how_it_ended(state: TaskState, exit_code: int | None, reason: str, status: Status) -> None:
    given = result(state, exit_code=exit_code, reason=reason)
    assert outcome_of(job(), given, time.time()).status is status


@pytest.mark.parametrize("lost", [True, False])
def test_what_a_service_says_of_a_loss_counts_more_than_its_words(lost: bool) -> None:
    """A reason is for people, and may hold anything: a file's name, say."""
    reason = 'output "what was lost" is missing' if not lost else "it went away"
    outcome = outcome_of(job(), result("failed", reason=reason, lost=lost), time.time())
    assert outcome.status is (Status.LOST if lost else Status.FAILED)


@pytest.mark.parametrize("skew", [-1000.0, 0.0, 1000.0])
def test_clocks_that_are_wrong_move_nothing_out_of_its_time(skew: float) -> None:
    """A task's time is kept, as far as it can have taken that long."""
    now = time.time()
    outcome = outcome_of(job(), result(start=now - 8 + skew, end=now - 2 + skew), now - 10)
    assert outcome.end - outcome.start == pytest.approx(6.0)
    assert now - 10 <= outcome.start <= outcome.end <= time.time()
    short = outcome_of(job(), result(start=now - 80 + skew, end=now - 2 + skew), now - 10)
    assert short.start >= now - 10.001
