"""``bursar logs --follow``: what a task prints is seen while it runs, and agrees with what is kept.

Real processes: the run, its workers, and whoever follows.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.service.service_process import served
from tests.sites.dask_clusters import DaskCluster
from tests.sites.remote.real_service import SELLS
from tests.sites.ssh_servers import ssh_hosts

from bursar.dispatch.journal import writer_of
from bursar.runs.folder import RunFolder
from bursar.service.identity.authority import AuthorityFolder

WAIT = "while ! test -e {0}; do sleep 0.02; done"
LONG = 200_000  # bytes of one stream, more than stay in memory or fit into one answer
CAMPAIGN = """\
[campaign]
name = "talk"
[tasks.talk]
command = '''{command}'''
runtime = 1
[retry]
{retry}
"""


class FollowedRun:
    """A run of one task whose command waits for files, and its followers."""

    def __init__(self, folder: Any, command: str, retry: str = "backoff = 0") -> None:
        self.folder = folder
        folder.write("c.toml", CAMPAIGN.format(command=command, retry=retry))
        self.kept = RunFolder(folder.path / "runs" / "one")

    def begin(self, *options: str) -> Any:
        words = ("run", "c.toml", "--name", "one", "--oversubscribe", "--fresh", *options)
        return self.folder.start(*words)

    def go(self, name: str) -> None:
        self.folder.write(name, "")

    def wait(self, name: str) -> str:
        """Shell line that waits for :meth:`go`."""
        return WAIT.format(self.folder.path / name)

    @contextmanager
    def followed(self, *options: str) -> Iterator["Following"]:
        following = Following(self.folder.path, "one", "0", *options)
        try:
            yield following
        finally:
            following.process.kill()
            following.process.wait()

    def logs(self, *options: str) -> tuple[bytes, bytes]:
        command = [sys.executable, "-P", "-m", "bursar", "logs", "one", "0", *options]
        done = subprocess.run(command, cwd=self.folder.path, capture_output=True, check=True)
        return done.stdout, done.stderr


class Following:
    """The command that follows a task, whose output goes to files."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._out, self._err = folder / "followed.out", folder / "followed.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "bursar", "logs", *words, "--follow"],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def out(self) -> bytes:
        return self._out.read_bytes()

    @property
    def err(self) -> bytes:
        return self._err.read_bytes()

    def ended(self) -> int:
        return self.process.wait(60)


def make(folder: Any, *parts: str, retry: str = "backoff = 0") -> FollowedRun:
    """A run whose command is these shell lines; ``@name`` waits for a file."""
    lines = [
        WAIT.format(folder.path / part[1:]) if part.startswith("@") else part for part in parts
    ]
    return FollowedRun(folder, "; ".join(lines), retry)


def printing_twice(folder: Any) -> FollowedRun:
    """Make a run of a task that prints to both streams before and after it may go on."""
    return make(
        folder,
        r"printf 'first\n'; printf '\377\000e' >&2",
        "@more",
        f"head -c {LONG} /dev/urandom; echo late >&2",
        "@end",
        "echo last",
    )


def test_what_is_followed_is_what_is_kept(folder: Any) -> None:
    """Both streams, bytes that are no text, and more than stays in a worker's memory."""
    run = printing_twice(folder)
    running = run.begin()
    folder.until(run.kept.journal_file.exists, running)

    with run.followed() as following:
        folder.until(lambda: b"first\n" in following.out, running)
        folder.until(lambda: b"\377\000e" in following.err, running)
        assert following.out == b"first\n"
        run.go("more")
        folder.until(lambda: len(following.out) == 6 + LONG, running)
        assert not list(run.kept.logs.glob("*.stdout"))
        run.go("end")
        assert following.ended() == 0

        out, err = run.logs()
        assert following.out == out
        assert len(out) == 6 + LONG + 5
        notes = following.err.replace(err[:3], b"").replace(err[3:], b"").decode()
    assert "attempt 1 runs at local" in notes
    assert notes.endswith("task talk: attempt 1 succeeded\n")
    running.communicate()


@contextmanager
def elsewhere(kind: str, folder: Path) -> Iterator[str]:
    """A place that carries jobs out with workers of its own, as a sites file says of it."""
    folder.mkdir()
    if kind == "service":
        with served(folder / "state", SELLS) as service:
            yield (
                f'kind = "remote"\nurl = "http://127.0.0.1:{service.port}"\nprocessors = 2\n'
                f'token_file = "{service.folder / "admin.token"}"\ncurrency = "SU"\n'
            )
    elif kind == "sealed":
        authority = AuthorityFolder.create(folder / "certs", "test")
        server = authority.issue("server", "deef", hosts=["127.0.0.1"])
        worker, user = authority.issue("worker", "pool"), authority.issue("user", "ann")
        text = (
            f"security = 'mutual'\ncertificate = '{server.identity}'\nkey = '{server.identity}'\n"
            f"authorities = '{authority.trusted}'\n"
            f"seal_certificate = '{worker.certificate}'\nseal_key = '{worker.identity}'\n"
            "[users.ann]\nscopes = ['submit', 'read']\n"
            "[site]\nprocessors = 1\nunit_price = '1 SU/core-hour'\n"
        )
        with served(folder / "state", text) as service:
            yield (
                f'kind = "remote"\nurl = "https://127.0.0.1:{service.port}"\nprocessors = 1\n'
                f'ca = "{authority.trusted}"\ncertificate = "{user.identity}"\nseal = "message"\n'
            )
    elif kind == "dask":
        pytest.importorskip("distributed", reason="needs Dask (the extra dask)")
        with DaskCluster(folder / "dask") as cluster:
            cluster.ask(os.getpid)  # waits for its workers
            yield f'kind = "dask"\nscheduler = "{cluster.address}"\nprocessors = 2\n'
    else:
        (folder / "ssh").mkdir()
        with ssh_hosts(folder / "ssh", 1) as hosts:
            table = hosts.table("shared_folder = false").replace('reach = "127.0.0.1"\n', "")
            yield table.partition("]\n")[2]


@pytest.mark.ci
@pytest.mark.parametrize(
    "kind",
    [
        "service",
        "dask",
        "ssh",
    ],
)
def test_what_is_printed_elsewhere_is_followed(folder: Any, kind: str) -> None:
    """Where no worker of the run's own prints it: the service, cluster or host is asked."""
    run = printing_twice(folder)
    with elsewhere(kind, folder.path / "elsewhere") as site:
        folder.write("s.toml", f"[site.there]\n{site}")
        running = run.begin("--sites", "s.toml")
        folder.until(run.kept.journal_file.exists, running)
        with run.followed() as following:
            folder.until(lambda: b"first\n" in following.out, running)
            folder.until(lambda: b"\377\000e" in following.err, running)
            assert following.out == b"first\n"
            run.go("more")
            folder.until(lambda: len(following.out) == 6 + LONG, running)
            run.go("end")
            assert following.ended() == 0
            assert b"attempt 1 runs at there" in following.err
            assert b"lost" not in following.err
            assert following.out == run.logs()[0]
        running.communicate()
        assert running.returncode == 0


@pytest.mark.ci
def test_sealed_output_is_said_to_come_at_the_end(folder: Any) -> None:
    """Only the owner can read it: the line says why nothing comes, and then it comes whole."""
    run = make(folder, "echo secret", "@end", "echo last")
    with elsewhere("sealed", folder.path / "elsewhere") as site:
        folder.write("s.toml", f"[site.there]\n{site}")
        running = run.begin("--sites", "s.toml")
        folder.until(run.kept.journal_file.exists, running)
        with run.followed() as following:
            folder.until(lambda: b"runs at there: its output is sealed" in following.err, running)
            assert following.out == b""
            run.go("end")
            assert following.ended() == 0
            assert following.out == b"secret\nlast\n"
        running.communicate()


@pytest.mark.ci
def test_one_stream_from_near_its_end(folder: Any) -> None:
    """A tail begins so many bytes before the end, and goes on from there."""
    run = make(folder, "printf 0123456789 >&2; echo out", "@end", "printf abc >&2")
    running = run.begin()
    folder.until(run.kept.journal_file.exists, running)
    with run.followed() as whole:
        folder.until(lambda: b"0123456789" in whole.err, running)

    with run.followed("--stderr", "--tail", "4") as following:
        folder.until(lambda: following.out, running)
        assert following.out == b"6789"
        run.go("end")
        assert following.ended() == 0
        assert following.out == b"6789abc"
    running.communicate()


@pytest.mark.ci
def test_a_failed_attempt_is_followed_by_the_next(folder: Any) -> None:
    """What each attempt printed comes once, and a line between says what became of it."""
    marks = folder.path / "failed"
    run = make(
        folder,
        "echo try",
        "@first",
        f"if ! test -e {marks}; then touch {marks}; echo bad; exit 3; fi",
        "echo good",
        retry="attempts = 2\nbackoff = 0",
    )
    running = run.begin()
    folder.until(run.kept.journal_file.exists, running)

    with run.followed() as following:
        folder.until(lambda: following.out, running)
        run.go("first")
        assert following.ended() == 0
        assert following.out == b"try\nbad\ntry\ngood\n"
        assert b"attempt 1 failed" in following.err
        assert b"attempt 2 succeeded" in following.err
    running.communicate()
    assert run.logs("--attempt", "1")[0] == b"try\nbad\n"


@pytest.mark.parametrize("outlives", [pytest.param("600", marks=pytest.mark.ci), "0"])
def test_a_follower_waits_for_a_killed_run_to_be_resumed(
    folder: Any, monkeypatch: pytest.MonkeyPatch, outlives: str
) -> None:
    """Whether the attempt goes on with its worker or runs anew: it ends as it is kept."""
    monkeypatch.setenv("BURSAR_OUTLIVES", outlives)
    run = make(folder, "echo begun $$", "@end", "echo done")
    running = run.begin()
    folder.until(run.kept.journal_file.exists, running)

    with run.followed() as following:
        folder.until(lambda: b"begun" in following.out, running)
        begun = following.out
        runner = writer_of(run.kept.journal_file)
        assert runner is not None
        os.kill(runner.process, signal.SIGKILL)
        running.communicate()
        told = "no process carries the run out; bursar run --resume one goes on"
        while told.encode() not in following.err:
            assert following.process.poll() is None

        again = folder.start("run", "--resume", "one")
        folder.until(lambda: writer_of(run.kept.journal_file) is not None, again)
        run.go("end")
        assert following.ended() == 0
        again.communicate()
        out, _ = run.logs()
        # The lost attempt's line stays on the screen; after it comes all that is kept.
        assert following.out == (out if out.startswith(begun) else begun + out)
        assert out.endswith(b"done\n")


def test_a_task_that_has_ended_or_never_will(folder: Any) -> None:
    """The first is printed whole; for the second the command ends, and says how the run stands."""
    run = make(folder, "echo all", "@end")
    run.go("end")
    running = run.begin()
    running.communicate()
    with run.followed() as following:
        assert following.ended() == 0
        assert following.out == b"all\n"

    folder.bursar("logs", "one", "0", "--follow", "--json", status=2)
    folder.bursar("logs", "one", "0", "--tail", "3", status=2)
