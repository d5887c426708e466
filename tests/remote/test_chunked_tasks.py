"""Tasks in pieces."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.remote import submission
from bursar.remote.messages import MOST_TASKS, TaskSpec
from bursar.remote.submission import split_submission

TASKS = msgspec.json.Decoder(TaskSpec)


def test_a_piece_has_no_more_tasks_than_are_taken() -> None:
    """The last one has the rest."""
    found = list(split_submission(TaskSpec(shell=str(n)) for n in range(MOST_TASKS + 1)))
    assert [len(piece.splitlines()) for piece in found] == [MOST_TASKS, 1]


def test_a_piece_has_no_more_dependencies_than_are_taken() -> None:
    """What is more is divided, in the same order."""
    tasks = [TaskSpec(shell="x", after=tuple(range(n))) for n in range(8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission, "MOST_EDGES", 7)
        pieces = [TASKS.decode_lines(piece) for piece in split_submission(tasks)]

    assert [task for piece in pieces for task in piece] == tasks
    assert len(pieces) > 1
    assert all(sum(len(task.after) for task in piece) <= 7 for piece in pieces)


@given(st.lists(st.integers(0, 300), max_size=40))
def test_pieces_hold_every_task_in_its_order(sizes: list[int]) -> None:
    """Those that are too large are divided; a single task goes whatever its size."""
    tasks = [TaskSpec(shell="x" * size, label=str(n)) for n, size in enumerate(sizes)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(submission, "LARGEST", 500)
        found = list(split_submission(tasks))
        assert list(split_submission(tasks)) == found

    assert [task for piece in found for task in TASKS.decode_lines(piece)] == tasks
    assert all(len(piece) <= 500 or piece.count(b"\n") == 1 for piece in found)
