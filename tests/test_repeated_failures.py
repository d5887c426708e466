"""A test that fails is tried once more and named; one that fails twice fails the run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent.parent / "tools" / "second_try.py"

PASSES_SECOND = """
def test_of_a_race():
    try:
        open("tried", "x").close()
    except FileExistsError:
        return
    raise AssertionError("the first try")
"""
PASSES = "def test_of_what_works(): assert True\n"
FAILS = "def test_of_what_is_broken(): assert False\n"
BREAKS = "import no_such_module\n"


SETTINGS = "[pytest]\naddopts = -m 'not long'\nmarkers = long: left out by default\n"


def run(folder: Path, tests: str, *words: str) -> tuple[int, str]:
    """Return the exit status and output of a run of these tests in an empty folder."""
    (folder / "test_them.py").write_text(tests)
    (folder / "pytest.ini").write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, PROGRAM, "-q", *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # they take most of the start
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("tests", "status", "tried_again"),
    [
        (PASSES, 0, False),
        (PASSES + PASSES_SECOND, 0, True),
        (PASSES_SECOND + FAILS, 1, True),
        ("".join(FAILS.replace("broken", f"broken_{n}") for n in range(4)), 1, False),
        (BREAKS, 2, False),
    ],
    ids=["all pass", "one is unstable", "one is broken", "four are broken", "cannot be read"],
)
def test_only_few_failures_are_tried_again(
    tmp_path: Path, tests: str, status: int, tried_again: bool
) -> None:
    """Four failures, or files that cannot be read, are a broken change: no second try."""
    left, said = run(tmp_path, tests)
    assert left == status
    assert ("a second try, each alone" in said) is tried_again


def test_what_passes_only_at_its_second_try_is_named(tmp_path: Path) -> None:
    """Otherwise nobody would mend its race."""
    _, said = run(tmp_path, PASSES_SECOND + FAILS)
    named = [line for line in said.splitlines() if "UNSTABLE" in line]
    assert named == [
        "*** UNSTABLE, passed only at its second try: test_them.py::test_of_a_race ***"
    ]


def test_what_is_left_out_by_default_is_tried_again_where_it_was_chosen(tmp_path: Path) -> None:
    """Else the second try would find no test to run."""
    marked = f"import pytest\n@pytest.mark.long{PASSES_SECOND}"

    status, said = run(tmp_path, marked, "-m", "long")

    assert "UNSTABLE" in said
    assert status == 0
