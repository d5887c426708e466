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
