"""Commands end with one clear line where they may not have the memory or threads they need."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from bursar.cli import main as command
from bursar.memory import LEAST, PER_THREAD, check_address_space, is_resource_shortage
from bursar.model.errors import InputError

CAMPAIGN = """
[campaign]
name = "two"
[tasks.a]
command = "true"
"""


def limited(arguments: list[str], folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """A command in a process that may have so many bytes of address space."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (size, size))

    return subprocess.run(
        [sys.executable, "-m", "bursar", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=limit,
    )


@pytest.mark.parametrize("name", ["plan", "run", "simulate"])
def test_too_little_address_space_is_told_in_one_line(tmp_path: Path, name: str) -> None:
    """
    OpenBLAS would wait for ever for memory that it does not get while it is loaded.
    """
    (tmp_path / "c.toml").write_text(CAMPAIGN)

    ended = limited([name, "c.toml"], tmp_path, 400_000 << 10)

    assert ended.returncode == 2, ended.stderr
    told, hint = ended.stderr.splitlines()
    assert told.startswith("bursar: the limit of address space is 390 MiB (ulimit -v 400000);")
    assert "OPENBLAS_NUM_THREADS=1" in hint
    assert ended.stdout == ""


def test_commands_without_numeric_libraries_need_less(tmp_path: Path) -> None:
    """
    They go on as before.
    """
    ended = limited(["runs", "--json"], tmp_path, 400_000 << 10)

    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_needed_depends_on_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    As many as there are processors, unless somebody says otherwise.
    """
    limit = LEAST + 2 * PER_THREAD
    monkeypatch.setattr(resource, "getrlimit", lambda what: (limit, limit))
    for threads, fits in (("1", True), ("2", True), ("3", False), ("64", False)):
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", threads)
        check_address_space.cache_clear()
        if fits:
            check_address_space()
        else:
            with pytest.raises(InputError, match=f"with {threads} threads"):
                check_address_space()
    check_address_space.cache_clear()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("can't start new thread"),
        OSError(12, "Cannot allocate memory"),
        ImportError("libscipy_openblas.so: failed to map segment from shared object"),
    ],
)
def test_a_shortage_anywhere_ends_a_command_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """
    Other errors that nobody expected still show where they come from.
    """

    def fails(**_: object) -> None:
        raise error

    monkeypatch.setattr(command, "app", fails)
    with pytest.raises(SystemExit) as ended:
        command.main()

    assert ended.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bursar: no more memory, threads or processes are to be had: ")
    assert not is_resource_shortage(RuntimeError("something else"))
