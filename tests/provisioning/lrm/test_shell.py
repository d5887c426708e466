"""Commands on this machine and on a login node, a real one where there is an ssh server."""

import asyncio
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Coroutine, Iterator
from pathlib import Path

import pytest

from bursar.model.errors import InputError, SiteError
from bursar.provisioning.lrm import command_runner as shells
from bursar.provisioning.lrm.command_runner import CommandRunner

PATIENCE = 20.0
AWKWARD = "a 'b' \"c\" $HOME `id` \\ ; | & * ! é\nnext"
"""What a shell would make something of."""


def run(work: Coroutine[object, object, object]) -> object:
    return asyncio.run(work)  # type: ignore[arg-type]


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ssh that stays on this machine, and keeps what it was told in a file."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "ssh").write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" > "${0%/*}/told"\n'
        '[ -e "${0%/*}/says" ] && { cat "${0%/*}/says" >&2; exit 255; }\n'
        'while [ "$1" != "--" ]; do shift; done; shift\nexec sh -c "$*"\n'
    )
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A private ssh server on the loopback, and a folder with an ssh that goes there."""
    server = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin")
    if server is None or shutil.which("ssh-keygen") is None or shutil.which("ssh") is None:
        pytest.skip("no ssh server here: install Debian's openssh-server to test against one")
    folder = tmp_path_factory.mktemp("sshd")
    for key in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)], check=True
        )
    shutil.copy(folder / "user.pub", folder / "authorized")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it confines itself
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(
        f"#!/bin/sh\nexec {shutil.which('ssh')} -F none -i {folder}/user -p {port} "
        f'-o StrictHostKeyChecking=no -o UserKnownHostsFile={folder}/known "$@"\n'
    )
    (folder / "bin" / "ssh").chmod(0o755)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([server, "-D", "-e", "-f", str(folder / "config")], stderr=log)
    try:
        end = time.monotonic() + PATIENCE
        while "Server listening" not in (folder / "log").read_text():
            if process.poll() is not None or time.monotonic() > end:
                pytest.skip(f"the ssh server does not start: {(folder / 'log').read_text()}")
            time.sleep(0.02)
        yield "127.0.0.1", folder / "bin"
    finally:
        process.terminate()
        process.wait()


async def everything(shell: CommandRunner, folder: Path) -> None:
    """What holds here and there."""
    answer = await shell.run(
        ["sh", "-c", 'cat; printf "%s" "$0" >&2; printf "%s" "$WORD"; exit 3', AWKWARD],
        stdin="said\n",
        environment={"WORD": AWKWARD},
    )
    assert answer == (3, f"said\n{AWKWARD}", AWKWARD)
    assert (await shell.run(["sh", "-c", 'echo "$OWN"'])).stdout == "always\n"
    assert (await shell.run(["sh", "-c", 'echo "${SBATCH_WORD-none}"'])).stdout == "none\n"
    with pytest.raises(SiteError, match=r"no-such-program: not found .*of Slurm") as error:
        await shell.run(["no-such-program"])
    assert not error.value.transient

    place = folder / "some folder" / "deeper"
    await shell.make_folder(str(place))
    await shell.make_folder(str(place))
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    secret = bytes(range(256)) * 100
    file = place / "it's secret"
    await shell.write(str(file), b"old")
    await shell.write(str(file), secret)
    assert file.read_bytes() == secret
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(place) == [file.name]
    with pytest.raises(SiteError):
        await shell.write(str(folder / "absent" / "file"), b"")
    await shell.remove(str(file))
    assert not file.exists()
    await shell.remove(str(folder / "some folder"))
    await shell.remove(str(folder / "some folder"))
    assert not place.exists()
    for bad in ("relative", "", "/", "//", "/a/.."):
        with pytest.raises(InputError):
            await shell.remove(bad)


def shell_of(host: str | None) -> CommandRunner:
    return CommandRunner(
        environment={"OWN": "always"}, without=("SBATCH_WORD",), ssh=host, scheduler="Slurm"
    )


def test_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words arrive as they are; files are their owner's alone."""
    monkeypatch.setenv("SBATCH_WORD", "mine")
    run(everything(shell_of(None), tmp_path))


def test_a_login_node(fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same through ssh; it never asks for a password."""
    monkeypatch.setenv("SBATCH_WORD", "mine")
    run(everything(shell_of("me@login"), tmp_path))
    told = (fake_ssh / "told").read_text().splitlines()
    assert "BatchMode=yes" in told
    assert told[told.index("--") - 1] == "me@login"


@pytest.mark.ci
def test_a_real_login_node(
    sshd: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with a server."""
    host, folder = sshd
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    run(everything(shell_of(host), tmp_path))


def test_what_is_written_is_on_no_command_line(fake_ssh: Path, tmp_path: Path) -> None:
    """A credential goes through standard input."""
    run(CommandRunner(ssh="login").write(str(tmp_path / "file"), b"topsecret"))
    assert (tmp_path / "file").read_bytes() == b"topsecret"
    assert "topsecret" not in (fake_ssh / "told").read_text()


@pytest.mark.parametrize(
    ("said", "transient"),
    [
        ("ssh: connect to host login port 22: Connection refused", True),
        ("ssh: connect to host login port 22: Connection timed out", True),
        ("Connection closed by 10.0.0.1 port 22", True),
        ("kex_exchange_identification: read: Connection reset by peer", True),
        ("ssh: Could not resolve hostname x: Temporary failure in name resolution", True),
        ("ssh: Could not resolve hostname x: Name or service not known", False),
        ("me@login: Permission denied (publickey,password).", False),
        ("Host key verification failed.", False),
    ],
)
def test_an_ssh_that_does_not_get_through(fake_ssh: Path, said: str, transient: bool) -> None:
    """Its words are kept, and trying again is for what may pass."""
    (fake_ssh / "says").write_text(said + "\n")
    with pytest.raises(SiteError) as error:
        run(CommandRunner(ssh="login").run(["true"]))
    assert said in str(error.value)
    assert error.value.transient is transient


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """At its time-out the whole group goes, and trying again may help."""
    pids = tmp_path / "pids"
    script = f'trap "" TERM; sleep 300 & echo $! $$ > {pids}; wait'
    with pytest.raises(SiteError, match=r"no answer within 1 s") as error:
        run(CommandRunner().run(["sh", "-c", script], timeout=1.0))
    assert error.value.transient
    end = time.monotonic() + PATIENCE
    while any(is_alive(int(pid)) for pid in pids.read_text().split()):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_caller_that_goes_takes_its_command_along(tmp_path: Path) -> None:
    """Cancelled, nothing runs on."""
    file = tmp_path / "pid"

    async def leave() -> None:
        task = asyncio.create_task(
            CommandRunner().run(["sh", "-c", f"echo $$ > {file}; sleep 300"])
        )
        end = time.monotonic() + PATIENCE
        while not (file.exists() and file.read_text()) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(leave())
    assert not is_alive(int(file.read_text()))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_what_stays_in_the_background_is_not_waited_for() -> None:
    """As the shared connection of ssh, which keeps the pipes open for hours."""
    answer = run(CommandRunner().run(["sh", "-c", "(setsid sleep 3 &) ; echo done"]))
    assert answer == (0, "done\n", "")


def test_a_flood_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that never stops talking does not fill the memory."""
    monkeypatch.setattr(shells, "MOST_OUTPUT", 1 << 20)
    with pytest.raises(SiteError, match="more than 1 MB") as error:
        run(CommandRunner().run(["yes"]))
    assert error.value.transient


def test_a_few_commands_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for their turn; all are counted."""
    monkeypatch.setattr(shells, "MOST_AT_ONCE", 2)

    async def many() -> int:
        shell = CommandRunner()
        script = f'cd {tmp_path}; mkdir "$0"; ls | wc -l; sleep 0.05; rmdir "$0"'
        answers = await asyncio.gather(
            *(shell.run(["sh", "-c", script, str(number)]) for number in range(8))
        )
        assert shell.commands == 8
        return max(int(answer.stdout) for answer in answers)

    assert run(many()) == 2


def test_bytes_that_are_no_text_do_no_harm() -> None:
    """And a long complaint is one line."""
    answer = asyncio.run(
        CommandRunner().run(["sh", "-c", "printf '\\377ok'; echo; printf 'a\\n\\nb' >&2"])
    )
    assert answer.stdout == "\ufffdok\n"
    assert answer.words == "a; b"
    assert (
        asyncio.run(CommandRunner().run(["false"])).words == "ended with status 1 and said nothing"
    )


@pytest.mark.parametrize("host", ["", "-oProxyCommand=true", "a b", "a\nb"])
def test_a_host_is_no_option(host: str) -> None:
    """What ssh would take for something else is refused."""
    with pytest.raises(InputError):
        CommandRunner(ssh=host)


def test_a_variable_has_a_name() -> None:
    """On a login node it becomes part of a command line."""
    with pytest.raises(InputError):
        CommandRunner(environment={"A B": "c"})
    with pytest.raises(InputError):
        run(CommandRunner().run(["true"], environment={"X;id": "c"}))
