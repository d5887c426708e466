"""Tasks that the worker opens, and outcomes that it closes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.sealing.sealing_rig import World
from tests.worker.minimal_dispatcher import Server, job, working

from bursar.model.site import SealLevel
from bursar.model.task import Outcome, Shell, Status
from bursar.sealing.envelope import SealedResult, SealedTask, decode_result, encode_part
from bursar.sealing.task_sealing import TaskSealer
from bursar.service.identity.issuing import certificate_pem, identity_pem, make_authority
from bursar.worker.attempt import MOST_PRINTED
from bursar.worker.workspace import prepare_workspace

Until = Callable[[Callable[[], bool]], Awaitable[None]]

SECRET = "nobody-is-to-read-this"


@pytest.fixture(scope="module")
def world() -> World:
    """An authority with users and workers, now."""
    now = time.time()
    return World(now, make_authority("test", now))


@pytest.mark.parametrize("level", ["conversation", "message"])
def test_what_passes_the_server_says_nothing(
    tmp_path: Path, until: Until, world: World, level: SealLevel
) -> None:
    """
    Command, variables, exit status, both streams and the reason come back to their user only.

    Long streams are no exception: nothing of them gets a name in the logs.
    """
    key = tmp_path / "key.pem"
    key.write_bytes(identity_pem(world.worker) + certificate_pem(world.authority.certificate))
    home = tmp_path / "home"
    prepare_workspace(str(home), None)
    sealer = TaskSealer(
        world.worker.certificate, world.ann, world.trust(), level=level, clock=time.time
    )

    def sealed(task: int, line: str) -> bytes:
        contents = SealedTask(steps=(Shell(line),), environment={"WORD": SECRET})
        return sealer.seal(encode_part(contents), f"task {task}")

    lines = [
        "echo $WORD; echo $WORD >&2; exit 3",
        "head -c 200000 /dev/zero | tr '\\0' x",
        f"head -c {MOST_PRINTED + 5} /dev/zero",
    ]
    jobs = [
        job(n, steps=(), home=str(home), sealed=sealed(n, line)) for n, line in enumerate(lines)
    ]
    jobs.append(job(3, steps=(), home=str(home), sealed=b"\1nonsense"))

    async def main() -> dict[int, Outcome]:
        (tmp_path / "service").mkdir()
        server = Server(tmp_path / "service")
        async with working(server, seal_key=str(key)):
            await until(lambda: bool(server.hellos))
            server.give(*jobs)
            await until(lambda: len(server.results) == len(jobs))
        return server.results

    results = asyncio.run(main())

    def opened(task: int) -> SealedResult:
        return decode_result(sealer.open(results[task].sealed, f"task {task}"))

    first, second, third, fourth = (results[n] for n in range(4))
    assert SECRET.encode() not in first.sealed
    assert first.status is Status.FAILED
    assert (first.exit_code, first.stdout, first.stderr, first.reason) == (None, b"", b"", "")
    assert first.stdout_size == first.stderr_size == 0
    assert first.end > first.start
    assert opened(0) == SealedResult(
        status=Status.FAILED,
        exit_code=3,
        stdout=f"{SECRET}\n".encode(),
        stderr=f"{SECRET}\n".encode(),
        reason="the command exited with status 3",
    )
    assert second.status is Status.SUCCEEDED
    assert opened(1).stdout == b"x" * 200_000
    assert third.status is Status.SUCCEEDED
    assert len(opened(2).stdout) == MOST_PRINTED
    assert opened(2).reason == f"stdout of {MOST_PRINTED + 5} bytes is cut off after {MOST_PRINTED}"
    assert fourth.status is Status.FAILED
    assert fourth.reason
    assert not fourth.sealed
    assert list((home / "logs").iterdir()) == []
