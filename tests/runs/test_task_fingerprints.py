"""Fingerprints: what a result can depend on, what is never reused, and differences in words."""

from pathlib import Path

import pytest

from bursar.model.campaign import Workflow
from bursar.model.task import Copy, Exec, File, Shell, Step, Task
from bursar.runs.file_states import FileState, file_state, is_untouched
from bursar.runs.task_fingerprints import (
    TaskDefinitions,
    count_differences,
    define,
    difference,
    files_of,
)

CONTENT = FileState("0" * 64)


def defined(*tasks: Task, content: FileState = CONTENT) -> TaskDefinitions:
    """Return the definitions of tasks whose files all have one content."""
    workflow = Workflow(tasks)
    files = files_of(workflow)
    names = {name for number in range(len(tasks)) for name in files.initial(number)}
    return define(workflow, files, dict.fromkeys(names, content), {})


def one(*steps: Step, **settings: object) -> Task:
    """Return a task of these steps."""
    return Task(id="t", steps=steps, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        (Exec(("fit", "--seed", "3")), Exec(("fit", "--seed", "4")), "--seed 3 -> 4"),
        (Exec(("fit", "--seed=3")), Exec(("fit", "--seed=4")), "--seed=3 -> --seed=4"),
        (Shell("fit a > b"), Shell("fit -v a > b"), "with -v"),
        (Shell("fit -v a"), Shell("fit a"), "without -v"),
        (Shell("fit a"), Exec(("fit", "a")), "the same words, run in another way"),
        (
            Shell("a b c d e f g h i"),
            Shell("1 b 2 d 3 f 4 h 5"),
            "a -> 1, c -> 2, e -> 3 and 2 more",
        ),
        (Shell("x " * 3000), Shell("x"), "3000 words -> 1 words"),
        (Shell("fit \x1b[31m"), Shell("fit"), "without \\x1b[31m"),
    ],
)
def test_commands_differ_in_words(was: Step, now: Step, said: str) -> None:
    found = difference(defined(one(was)), 0, defined(one(now)), 0)
    assert found is not None
    assert found.why == f"command changed: {said}"


def test_what_says_only_where_and_when_is_no_part_of_a_fingerprint() -> None:
    plain = defined(one(Shell("x"))).fingerprints
    other = one(Shell("x"), runtime=5.0, wall_limit=9.0, memory=1, retries=7, processors=4)
    assert defined(other).fingerprints == plain
    assert defined(one(Shell("y"))).fingerprints != plain


def test_a_task_that_reads_its_number_has_another_result_in_another_place() -> None:
    """By its command, or in a file that it reads."""
    first = Task(id="first", steps=(Shell("true"),))
    for task, content in (
        (one(Shell("echo $BURSAR_TASK")), CONTENT),
        (one(Shell("sh a"), inputs=(File("a"),)), FileState("0" * 64, numbered=True)),
    ):
        alone = defined(task, content=content).fingerprints[0]
        assert alone is not None
        assert defined(first, task, content=content).fingerprints[1] not in (None, alone)
    wide = one(Shell("mpirun -n $BURSAR_PROCESSORS"), processors=2)
    assert defined(wide).fingerprints != defined(one(*wide.steps)).fingerprints


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (one(Shell("x"), data=("lfn:a",)), "logical files"),
        (one(), "it has no command"),
        (one(Shell("x"), Copy("a", "b/", False, True)), 'it copies into the folder "b/"'),
    ],
)
def test_some_results_are_never_reused(task: Task, reason: str) -> None:
    definitions = defined(task)
    assert definitions.fingerprints == [None]
    assert reason in definitions.files.excluded[0]


@pytest.mark.parametrize(
    ("made", "read"), [("out/a", "out/a"), ("out/a", "out"), ("out", "out/a"), ("o/p/a", "o")]
)
def test_files_at_the_root_that_others_write_must_be_waited_for(made: str, read: str) -> None:
    """Without an order, what a task reads there is a matter of chance."""
    writes = Task(id="writes", steps=(Copy("a", made, False, True),))
    reads = Task(id="reads", steps=(Copy(read, "b", True, False),))
    after = Task(id="reads", steps=reads.steps, after=("writes",))

    assert defined(writes, reads).fingerprints[1] is None
    assert None not in defined(writes, after).fingerprints


def test_differences_of_campaigns_are_counted() -> None:
    before = defined(*(Task(id=name, steps=(Shell("x"),)) for name in "abc"))
    now = defined(
        Task(id="a", steps=(Shell("y"),)), *(Task(id=n, steps=(Shell("x"),)) for n in "bd")
    )
    assert count_differences(before, now) == "1 has another command, 1 is new, 1 is gone"
    assert count_differences(before, before) == ""


# Files.


def test_a_folder_has_the_state_of_all_that_lies_in_it(tmp_path: Path) -> None:
    """Links are followed, but not in circles; what Python caches does not count."""
    (tmp_path / "lib/deep").mkdir(parents=True)
    (tmp_path / "lib/deep/a.py").write_text("a")
    (tmp_path / "elsewhere").write_text("b")
    (tmp_path / "lib/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "lib/round").symlink_to(tmp_path / "lib")
    first = file_state(tmp_path / "lib")

    (tmp_path / "lib/__pycache__").mkdir()
    (tmp_path / "lib/__pycache__/a.pyc").write_text("x")
    assert file_state(tmp_path / "lib").digest == first.digest
    for change in (
        lambda: (tmp_path / "elsewhere").write_text("c"),
        lambda: (tmp_path / "lib/deep/a.py").write_text("c"),
        lambda: (tmp_path / "lib/deep/a.py").chmod(0o755),
        lambda: (tmp_path / "lib/new").mkdir(),
    ):
        before = file_state(tmp_path / "lib").digest
        change()
        assert file_state(tmp_path / "lib").digest != before
    assert file_state(tmp_path / "none").digest == ""


def test_a_file_that_was_moved_away_and_back_was_touched(tmp_path: Path) -> None:
    """Somebody may have read another file under its name."""
    file = tmp_path / "a"
    file.write_text("a")
    state = file_state(file)
    assert is_untouched(file, state)
    file.rename(tmp_path / "b")
    (tmp_path / "b").rename(file)
    assert file_state(file).digest == state.digest
    assert file_state(file).stamp == state.stamp
    assert not is_untouched(file, state)
