"""Frames as they go over the wire."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.dispatch.wire import (
    CancelTasks,
    FrameDecoder,
    FromServer,
    FromWorker,
    Hello,
    JobAssignment,
    JobRecall,
    LeaveOrder,
    LeaveRequest,
    OutcomeReport,
    ProtocolError,
    ReturnedJobs,
    Welcome,
    WireJob,
    frame,
)
from bursar.model.task import (
    Call,
    Copy,
    Exec,
    OnError,
    Outcome,
    Redirect,
    Shell,
    Status,
    Substitute,
)

OUTCOME = Outcome(
    task=3, attempt=2, status=Status.FAILED, exit_code=-9, stdout=b"\xff\0", reason="x"
)


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 40))
def test_frames_survive_any_cut(bodies: list[bytes], piece: int) -> None:
    """
    However the network cuts the stream, the frames come out as they went in.
    """
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    frames = FrameDecoder()

    found = [f for i in range(0, len(stream), piece) for f in frames.feed(stream[i : i + piece])]

    assert found == bodies


def test_a_frame_larger_than_the_limit_is_refused_before_it_is_read() -> None:
    """
    Four bytes must not make us buffer what they announce.
    """
    with pytest.raises(ProtocolError, match="larger than 100"):
        list(FrameDecoder(100).feed((101).to_bytes(4, "big")))


@pytest.mark.parametrize(
    "message",
    [
        Hello("secret", "w", "local", 2, "lease-1"),
        Hello("secret", "w", "local", 2, "lease-1", "node", ((1, 2),), has_seal_key=True),
        OutcomeReport([OUTCOME, OUTCOME]),
        LeaveRequest(must=True),
        ReturnedJobs([(1, 1), (2, 3)]),
    ],
)
def test_what_a_worker_says_arrives_as_it_was_said(message: FromWorker) -> None:
    """
    Encoding and decoding are each other's inverse.
    """
    (body,) = FrameDecoder().feed(frame(message))

    assert msgspec.msgpack.decode(body, type=FromWorker) == message


@pytest.mark.parametrize(
    "message",
    [
        Welcome("run", "/root", "/files", "/work", "/logs", 65536),
        JobRecall(4),
        CancelTasks([1, 2], 0.5, "because"),
        LeaveOrder(),
    ],
)
def test_what_the_server_says_arrives_as_it_was_said(message: FromServer) -> None:
    """
    Encoding and decoding are each other's inverse.
    """
    (body,) = FrameDecoder().feed(frame(message))

    assert msgspec.msgpack.decode(body, type=FromServer) == message


def test_a_job_carries_every_kind_of_step() -> None:
    """
    Jobs are encoded one by one and travel raw inside a batch.
    """
    job = WireJob(
        task=1,
        attempt=1,
        processors=2,
        limit=1.5,
        folder="1-a",
        steps=(
            Exec(("/bin/echo", "a b")),
            Shell("exit 1"),
            Copy("a", "b", True, False),
            Redirect("stdout", None),
            OnError(True),
            Substitute("a", "b", {"x": "1"}),
            Call(b"\x80"),
        ),
        inputs=("in",),
        outputs=("out",),
        environment={"A": "1"},
    )

    (body,) = FrameDecoder().feed(frame(JobAssignment([msgspec.Raw(msgspec.msgpack.encode(job))])))
    work = msgspec.msgpack.decode(body, type=FromServer)

    assert isinstance(work, JobAssignment)
    assert msgspec.msgpack.decode(work.jobs[0], type=WireJob) == job


@given(st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else(body: bytes) -> None:
    """
    A malformed body raises the decoder's own error, which closes the connection.
    """
    try:
        message = msgspec.msgpack.decode(body, type=FromWorker)
    except msgspec.MsgspecError:
        return
    assert isinstance(message, Hello | OutcomeReport | ReturnedJobs)
