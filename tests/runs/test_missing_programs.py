"""Programs that this machine does not have are found before a run begins."""

from pathlib import Path

import pytest

from bursar.model.errors import InputError
from bursar.model.task import Copy, Exec, File, Shell, Task
from bursar.runs.task_needs import check_programs


def refused(folder: Path, task: Task) -> str:
    """Return what is said of a task; empty: nothing."""
    try:
        check_programs([task], folder)
    except InputError as error:
        return f"{error} {error.hint or ''}"
    return ""


@pytest.mark.parametrize(
    "line",
    [
        "echo hi",
        "if true; then no-such; fi",
        "X=1 no-such-program",
        "{ echo; }",
        "(cd / && ls)",
        "$PROGRAM x",
        "'quoted name' x",
        ": nothing",
        "",
        "/bin/echo x",
        "for x in 1 2; do echo; done",
        "~/bin/own x",
    ],
)
def test_lines_that_a_shell_may_understand_pass(tmp_path: Path, line: str) -> None:
    """Only a word that can be nothing but the name of a command is judged."""
    assert refused(tmp_path, Task(id="t", steps=(Shell(line),))) == ""


@pytest.mark.parametrize("step", [Shell("no-such-program --x 1"), Exec(("no-such-program",))])
def test_a_program_that_is_nowhere_is_refused(tmp_path: Path, step: Shell | Exec) -> None:
    said = refused(tmp_path, Task(id="t", steps=(step,)))

    assert 'task "t" runs "no-such-program", which is not on PATH' in said
    assert "inputs" in said


def test_a_task_with_a_path_of_its_own_is_left_alone(tmp_path: Path) -> None:
    task = Task(id="t", steps=(Exec(("no-such-program",)),), environment={"PATH": "/opt/bin"})

    assert refused(tmp_path, task) == ""


def test_files_in_the_working_directory_must_be_inputs_that_may_be_executed(
    tmp_path: Path,
) -> None:
    script = tmp_path / "fit.sh"
    script.write_text("#!/bin/sh\n")
    steps = (Shell("./fit.sh 1"),)

    assert "not among its inputs" in refused(tmp_path, Task(id="t", steps=steps))
    stated = Task(id="t", steps=steps, inputs=(File("fit.sh"),))
    assert "chmod +x fit.sh" in refused(tmp_path, stated)
    script.chmod(0o755)
    assert refused(tmp_path, stated) == ""
    # Another task makes the file, or a step brings it: nobody knows before.
    made = Task(id="t", steps=steps, inputs=(File("fit.sh"),))
    script.unlink()
    assert refused(tmp_path, made) == ""
    copied = Copy("x", "fit.sh", source_at_root=True, target_at_root=False)
    assert refused(tmp_path, Task(id="t", steps=(copied, *steps))) == ""


def test_a_folder_among_the_inputs_holds_its_programs(tmp_path: Path) -> None:
    task = Task(id="t", steps=(Exec(("./bin/fit",)),), inputs=(File("bin"),))

    assert refused(tmp_path, task) == ""
