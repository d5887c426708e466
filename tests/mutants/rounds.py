"""
Tests are run on copies of the repository, each run in a process forked for it.

The process that forks has the libraries imported and nothing of Bursar, so that a run begins in
milliseconds and imports the code as the copy has it. Two copies let two runs go on side by side.
"""

import contextlib
import faulthandler
import gc
import importlib
import json
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import coverage
import psutil
import pytest
from hypothesis import Phase, settings

Verdict = Literal["killed", "timeout", "survived", "broken"]

OPTIONS = [
    "-x",
    "-q",
    "--no-header",
    "--tb=line",
    "--hypothesis-seed=0",  # the same examples for every mutant
    "-p",
    "no:cacheprovider",
    # Named here, and none loads itself: such plugins refuse to be imported before the fork.
    "-p",
    "pytest_timeout",
    "-p",
    "_hypothesis_pytestplugin",
]

_PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin", "_pytest", "tests", "bursar", "coverage")
"""What is not imported ahead."""


@dataclass(frozen=True, slots=True)
class Seen:
    """
    What a clean run of an area's tests has shown.

    Attributes
    ----------
    seconds
        How long each test took, by name.
    lines
        Names of the tests that reached each line, by file and line.
    modules
        Libraries that were imported.
    """

    seconds: dict[str, float]
    lines: dict[str, dict[str, list[str]]]
    modules: list[str]


class _Watching:
    """Notes which test runs, how long, and (with ``coverage``) which lines it reaches."""

    def __init__(self, recorder: coverage.Coverage) -> None:
        self._recorder = recorder
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        begin = time.perf_counter()
        self._recorder.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._recorder.switch_context("")
            self.seconds[item.nodeid] = time.perf_counter() - begin


class _Chosen:
    """Runs only some of the tests that were collected, in an order of its own."""

    def __init__(self, names: Iterable[str]) -> None:
        self._places = {name: place for place, name in enumerate(names)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        places = self._places
        items[:] = sorted(
            (item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid]
        )


def sources(root: Path) -> list[Path]:
    """Return the folders from which a repository's packages are imported."""
    return [
        root / "src",
        root / "packages" / "papers" / "src",
        root / "packages" / "devtools" / "src",
    ]


def copy_repository(root: Path, to: Path) -> None:
    """Copy what git knows of, with machine code kept beside it, and nothing else."""
    shutil.rmtree(to, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in listed.stdout.splitlines():
        if (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    for cache in (cache for folder in sources(root) for cache in folder.rglob("__pycache__")):
        shutil.copytree(cache, to / cache.relative_to(root), dirs_exist_ok=True)


def look(copy: Path, tests: Iterable[str], files: Iterable[str]) -> Seen:
    """
    Run an area's tests on the code as it is.

    Raises
    ------
    RuntimeError
        A test fails without any mutation.
    """
    told = copy / "seen.json"

    def run() -> int:
        recorder = coverage.Coverage(
            data_file=str(copy / "coverage"),
            config_file=False,
            include=[str(copy / file) for file in files],
        )
        recorder.start()
        watching = _Watching(recorder)
        status = pytest.main([*OPTIONS, *tests], plugins=[watching])
        recorder.stop()
        data = recorder.get_data()
        lines = {
            str(Path(file).relative_to(copy)): {
                str(line): [name for name in names if name]
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        modules = [name for name in list(sys.modules) if name.partition(".")[0] not in _PLUGINS]
        told.write_text(json.dumps([watching.seconds, lines, modules]))
        return int(status)

    log = copy / "look.log"
    status = _forked(copy, run, log, 1800.0)
    if status != 0:
        raise RuntimeError(f"the tests fail without a mutation (status {status}): see {log}")
    return Seen(*json.loads(told.read_text()))


def import_ahead(modules: Iterable[str]) -> None:
    """Import libraries before any process is forked."""
    for name in modules:
        if not name.startswith("__"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.freeze()  # Collections in the forked processes look at what is theirs only.


def judge(copy: Path, path: str, code: str, tests: list[str], limit: float, log: Path) -> Verdict:
    """
    Run tests on a copy in which one file is another, until one of them fails.

    Parameters
    ----------
    copy
        The copy of the repository; as before when this returns.
    path
        File below its folder.
    code
        What the file holds meanwhile.
    tests
        Names of the tests, in the order in which they run.
    limit
        Seconds of processor time after which a run counts as one that does not end; on the
        clock, six times as many, since others may need the processors, too.
    log
        Where its output goes.
    """
    file = copy / path
    before, times = file.read_text(), file.stat()
    _forget_compiled(file)
    file.write_text(code)  # Numba tells kept machine code apart by this moment.
    files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
    try:
        status = _forked(
            copy, lambda: int(pytest.main([*OPTIONS, *files], plugins=[_Chosen(tests)])), log, limit
        )
    finally:
        file.write_text(before)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
        _forget_compiled(file)
    if status in (None, -signal.SIGXCPU):
        return "timeout"
    if status == 0:
        return "survived"
    # 1: a test failed; 2: a file of tests could not be imported; below 0: ended by a signal.
    return "killed" if status in (1, 2) or status < 0 else "broken"


def _forget_compiled(file: Path) -> None:
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)


def _forked(copy: Path, run: Any, log: Path, limit: float) -> int | None:
    """Exit status of a function in a process of its own; None where it did not end in time."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            os.setsid()
            most = math.ceil(limit)
            resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(copy)
            sys.path[:0] = [*map(str, sources(copy)), str(copy)]
            # Compiled tests are kept: to compile them takes longer than most of them run. What is
            # kept of a mutated file is removed; other processes of a run keep nothing.
            sys.dont_write_bytecode = False
            os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            os.environ["PYTHONPATH"] = os.pathsep.join(map(str, sources(copy)))
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
            # A watchdog of the process that was forked is not there, and waited for for ever.
            faulthandler.cancel_dump_traceback_later = lambda: None
            # What other runs leave in the usual place, and tidy up there, is no concern of ours.
            (copy / "temporary").mkdir(exist_ok=True)
            os.environ["PYTEST_DEBUG_TEMPROOT"] = str(copy / "temporary")
            # A failure is enough: looking for the smallest one takes minutes.
            settings.register_profile(
                "mutants", phases=[Phase.explicit, Phase.generate], database=None
            )
            settings.load_profile("mutants")
            status = run()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    end = time.monotonic() + 6.0 * limit
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    os.waitpid(pid, 0)
    return None
