"""Workflows check themselves once, at birth."""

import pytest

from bursar.model.campaign import Workflow
from bursar.model.errors import InputError
from bursar.model.task import File, Task


def test_makers_of_inputs_are_parents() -> None:
    """A task waits for whoever makes its input, without naming it."""
    made = File("a.txt")
    flow = Workflow((Task(id="use", inputs=(made,)), Task(id="make", outputs=(made,))))

    assert flow.parents == ((1,), ())
    assert flow.order == (1, 0)
    assert flow.children == [[], [0]]


def test_a_cycle_is_named_task_by_task() -> None:
    """The message shows the way round, so that the user can cut it."""
    tasks = (
        Task(id="a", after=("c",)),
        Task(id="b", after=("a",)),
        Task(id="c", after=("b",)),
        Task(id="d", after=("c",)),
    )

    with pytest.raises(InputError, match=r"a -> b -> c -> a|b -> c -> a -> b|c -> a -> b -> c"):
        Workflow(tasks)


def test_an_unknown_parent_gets_a_hint() -> None:
    """A misspelt parent is answered with the nearest id."""
    with pytest.raises(InputError, match='unknown parent "trmi"') as caught:
        Workflow((Task(id="trim"), Task(id="align", after=("trmi",))))

    assert caught.value.hint == 'did you mean "trim"?'


def test_ids_and_outputs_are_unique() -> None:
    """Two tasks neither share an id nor make the same file."""
    with pytest.raises(InputError, match='duplicate task id "a"'):
        Workflow((Task(id="a"), Task(id="a")))
    with pytest.raises(InputError, match='"f" is already made by task "a"'):
        Workflow((Task(id="a", outputs=(File("f"),)), Task(id="b", outputs=(File("f"),))))


def test_initial_files_are_those_nobody_makes() -> None:
    """Only files without a maker must be there at the start."""
    flow = Workflow(
        (
            Task(id="a", inputs=(File("raw", 7),), outputs=(File("mid"),)),
            Task(id="b", inputs=(File("mid"), File("raw", 7))),
        )
    )

    assert flow.initial_files == (File("raw", 7),)
