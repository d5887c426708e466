"""The books of a worker that outlives its dispatcher."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.thoroughness import examples

from bursar.dispatch.wire import BATCH_SIZE
from bursar.model.task import Outcome, Status
from bursar.worker.unacknowledged import MOST_OUTCOMES, UnacknowledgedWork, size_of


def outcome(task: int, size: int = 0) -> Outcome:
    """A task's end that printed so many bytes."""
    return Outcome(task=task, attempt=1, status=Status.SUCCEEDED, stdout=b"x" * size)


class Books(RuleBasedStateMachine):
    """
    Beside it, what a dispatcher with a bad line knows: the plainest form of the same.
    """

    def __init__(self) -> None:
        super().__init__()
        self.holding = UnacknowledgedWork()
        self.task = 0
        self.given: list[int] = []
        self.waiting: list[int] = []
        self.ended: list[int] = []  # not durable, the oldest first
        self.said: list[int] = []  # over this connection, not durable

    @rule()
    def take(self) -> None:
        """A job comes; the same again is refused."""
        self.task -= 1  # by falling numbers: the order is not that of the numbers
        self.given.append(self.task)
        assert self.holding.took(self.task, 1)
        assert not self.holding.took(self.task, 1)
        self.waiting.append(self.task)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """One goes back."""
        task = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(task)
        self.holding.returned(task, 1)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), size=st.sampled_from([0, 10, BATCH_SIZE // 2, BATCH_SIZE + 1]))
    def finish(self, data: st.DataObject, size: int) -> None:
        """One ends."""
        task = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(task)
        self.ended.append(task)
        self.holding.finished(outcome(task, size))

    @rule(pieces=st.integers(0, 3))
    def say(self, pieces: int) -> None:
        """Some pieces of what was not said go over the line, in order."""
        for _, piece in zip(range(pieces), self.holding.take_unsent(), strict=False):
            assert piece
            assert len(piece) == 1 or sum(map(size_of, piece)) <= BATCH_SIZE
            self.said += [o.task for o in piece]
            assert self.said == self.ended[: len(self.said)]

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        """Some of what was said is durable."""
        count = data.draw(st.integers(1, len(self.said)))
        self.holding.recorded(count)
        del self.said[:count], self.ended[:count]

    @rule(too_many=st.integers(1, 5))
    def record_too_much(self, too_many: int) -> None:
        """What was not said cannot be durable."""
        for count in (len(self.said) + too_many, -too_many):
            try:
                self.holding.recorded(count)
            except ValueError:
                continue
            raise AssertionError("it believed that")

    @rule()
    def lose(self) -> None:
        """The line breaks: all of it is to be said again."""
        self.holding.lost_connection()
        self.said.clear()

    @invariant()
    def agree(self) -> None:
        """Nothing is forgotten, nothing is there twice."""
        # Whatever ended or went back: in the order in which they came.
        expected = [(task, 1) for task in self.given if task in self.waiting + self.ended]
        assert list(self.holding.holds()) == expected
        assert self.holding.unrecorded == len(self.ended)
        assert self.holding.unsent == len(self.ended) - len(self.said)


Books.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestBooks = Books.TestCase


def test_sizes_come_back_to_nothing() -> None:
    """
    A byte that is not given back would stop a worker some day.
    """
    holding = UnacknowledgedWork()
    for task in range(5):
        holding.took(task, 1)
        holding.finished(outcome(task, BATCH_SIZE // 2))
    assert holding.size == holding.unsent_size == 5 * (size_of(outcome(0)) + BATCH_SIZE // 2)

    assert [len(piece) for piece in holding.take_unsent()] == [1, 1, 1, 1, 1]
    holding.lost_connection()
    list(holding.take_unsent())
    holding.recorded(5)

    assert holding.size == holding.unsent_size == 0


def test_a_worker_that_is_full_begins_nothing() -> None:
    """
    Many small outcomes fill it as well as a few large ones.
    """
    holding = UnacknowledgedWork()
    for task in range(MOST_OUTCOMES):
        assert not holding.is_full
        holding.finished(outcome(task))
    assert holding.is_full

    large = UnacknowledgedWork()
    large.finished(outcome(1, 65 * 1024 * 1024))
    assert large.is_full
