"""A run's journal tells what ran when its process was killed, and who writes it."""

from contextlib import closing
from pathlib import Path

from bursar.dispatch.journal import (
    RunJournal,
    count_statuses,
    read_attempts,
    read_journal,
)
from bursar.dispatch.journal_records import (
    AttemptRecord,
    AttemptStart,
    JournalState,
    interrupted_attempts,
)
from bursar.model.task import Outcome, Status


def record(
    task: int, attempt: int = 1, status: Status = Status.SUCCEEDED, *, final: bool = True,
    end: float = 5.0, lease: str = "lease-1",
) -> AttemptRecord:  # fmt: skip
    outcome = Outcome(task=task, attempt=attempt, status=status, start=1.0, end=end)
    return AttemptRecord(outcome, final, "here", lease)


def start(task: int, time: float, *, attempt: int = 1, **more: object) -> AttemptStart:
    usual = {
        "worker": "w",
        "site": "here",
        "lease": "lease-1",
        "processors": 1,
        "room": 2,
    }
    return AttemptStart(task=task, attempt=attempt, time=time, **{**usual, **more})  # type: ignore[arg-type]


def state(
    starts: list[AttemptStart], records: list[AttemptRecord], last_seen: float
) -> JournalState:
    return JournalState(
        records=records, transfers=[], events=[], open_starts=starts, last_seen=last_seen
    )


def test_what_a_worker_had_room_for_was_cut_off() -> None:
    """Two processors: the third task had not begun, a narrower one behind it had, on room."""
    starts = [
        start(0, 10.0),
        start(1, 11.0, processors=2),
        start(2, 12.0),
        start(3, 13.0),
        start(4, 14.0, worker="v", processors=2),
        start(5, 15.0, worker="v"),
    ]
    found = interrupted_attempts(state(starts, [], 20.0), since=10.0)
    assert [r.outcome.task for r in found] == [0, 2, 4]
    assert {(r.outcome.status, r.final, r.outcome.reason) for r in found} == {
        (Status.CANCELLED, False, "the run was killed")
    }


def test_what_an_earlier_process_handed_out_had_never_begun() -> None:
    """Its own end was found when the next process began; what is open still had only waited."""
    starts = [start(0, 10.0), start(1, 15.0)]
    assert [r.outcome.task for r in interrupted_attempts(state(starts, [], 20.0), since=12.0)] == [
        1
    ]


def test_what_was_cut_off_ran_from_the_last_end_on_its_lease_to_the_last_sign() -> None:
    """It waited behind what ended there; never longer than the run was seen."""
    ended = [record(7, end=14.0), record(8, end=13.0), record(9, end=99.0, lease="lease-2")]
    for began, last_seen, ran in (
        (10.0, 20.0, (14.0, 20.0)),
        (15.0, 20.0, (15.0, 20.0)),
        (15.0, 12.0, (15.0, 15.0)),
        (10.0, 12.0, (12.0, 12.0)),
    ):
        (found,) = interrupted_attempts(
            state([start(0, began, attempt=3)], ended, last_seen), since=10.0
        )
        assert (found.outcome.start, found.outcome.end) == ran
        assert (found.outcome.attempt, found.site, found.lease) == (3, "here", "lease-1")


def test_attempts_are_read_back_by_task_and_counted_by_their_last(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    assert count_statuses(path) == {}
    assert read_attempts(path, 0) == []
    with closing(RunJournal(path)) as journal:
        journal.commit(
            starts=[start(0, 1.0), start(1, 1.0), start(2, 1.0), start(2, 2.0, attempt=2)]
        )
        journal.commit([record(0, 2), record(1, 1, Status.FAILED)])
        journal.commit([record(0, 1, Status.FAILED, final=False)])
        journal.commit([record(2, 1, Status.LOST, final=False)])
        assert journal.load() == read_journal(path)
    assert [r.outcome.attempt for r in read_attempts(path, 0)] == [1, 2]
    assert read_attempts(path, 5) == []
    assert count_statuses(path) == {Status.SUCCEEDED: 1, Status.FAILED: 1}
    assert [(s.task, s.attempt) for s in read_journal(path).open_starts] == [(2, 2)]


def test_attempts_are_read_back_task_by_task_whatever_ended_first(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with closing(RunJournal(path)) as journal:
        journal.commit([record(1, 1)])
        journal.commit([record(0, 1, Status.LOST, final=False)])
        journal.commit([record(0, 2)])
    found = [(r.outcome.task, r.outcome.attempt) for r in read_journal(path).records]
    assert found == [(0, 1), (0, 2), (1, 1)]


def test_the_last_sign_is_the_latest_of_all_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with closing(RunJournal(path)) as journal:
        assert journal.load().last_seen == 0.0
        journal.commit([record(0, end=5.0)])
        assert journal.load().last_seen == 5.0
        journal.commit(starts=[start(1, 7.0)])
        assert journal.load().last_seen == 7.0
        journal.commit([record(2, end=6.0)])
        assert journal.load().last_seen == 7.0
