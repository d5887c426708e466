"""The column of bodies keeps what a list of bodies keeps, in less memory."""

import random
import tracemalloc

import pytest

from bursar.remote.messages import TaskSpec
from bursar.service.engine.body_column import BodyColumn
from bursar.service.engine.tasks import SubmittedTasks, columns_of

TASKS = 20_000


@pytest.mark.parametrize("seed", range(5))
def test_a_column_has_what_was_filled_and_not_cleared(seed: int) -> None:
    chance = random.Random(seed)
    column = BodyColumn()
    expected: list[bytes] = []
    for _ in range(30):
        more = chance.choice((1, 5, 127, 128, 129, 300))
        column.grow(more)
        expected += [b""] * more
        longest = chance.choice((40, 40, 5_000))
        # Runs of absent tasks, of which the last one is long, in any order.
        absent = [task for task, body in enumerate(expected) if not body]
        runs = [[task] for task in chance.sample(absent, min(3, len(absent)))]
        runs.append(list(range(len(expected) - more, len(expected))))
        for run in runs:
            if any(expected[task] for task in run):
                continue
            bodies = [chance.randbytes(chance.randint(1, longest)) for _ in run]
            expected[run[0] : run[-1] + 1] = bodies
            assert column.fill(run[0], bodies) == sum(map(len, bodies))
        gone = chance.sample(range(len(expected)), chance.randint(0, len(expected)))
        assert column.clear(gone) == sum(len(expected[task]) for task in gone)
        for task in gone:
            expected[task] = b""
        assert [column[task] for task in range(len(expected))] == expected


def test_waiting_tasks_take_little_beside_their_bodies() -> None:
    specs = [TaskSpec(command=("/bin/echo", "hello"))] * TASKS
    tasks = SubmittedTasks()
    tracemalloc.start()
    try:
        # As of a decoded record: each body is an object of its own.
        tasks.place(columns_of(1, 0, "", 0.0, specs, [bytes([i & 255]) * 30 for i in range(TASKS)]))
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # 16 bytes of columns, 12 of the place of the body, 30 of the body, and blocks.
    assert taken < 65 * TASKS


def test_most_of_the_memory_of_long_bodies_goes_with_most_of_the_tasks() -> None:
    column = BodyColumn()
    tracemalloc.start()
    try:
        column.grow(256)
        column.fill(0, [bytes(10_000) for _ in range(256)])
        column.clear(task for task in range(256) if task % 32)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < 3 * 8 * 10_000
    assert column[32] == bytes(10_000)
