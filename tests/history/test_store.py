"""The file of a history: what is written is read, once, whoever else writes."""

from pathlib import Path

from bursar.history.columns import STATUSES
from bursar.history.observation import TaskObservation
from bursar.history.store import History
from bursar.history.writing import HistoryRules
from bursar.model.task import Status


def seen(task: str, **facts: object) -> TaskObservation:
    """Return an observation with usual facts."""
    usual = {"execution": "run-1", "kind": "align", "seconds": 10.0, "start": 1e9}
    return TaskObservation(task=task, **{**usual, **facts})  # type: ignore[arg-type]


def test_what_is_written_is_read_as_columns(tmp_path: Path) -> None:
    """All columns come back, newest first, with what is unknown as NaN."""
    history = History(tmp_path / "history.sqlite")
    history.add(
        [
            seen("a", parameters={"x": 1, "mode": "fast"}, estimate=12.0, site="here"),
            seen("b", start=2e9, status=Status.TIMED_OUT, speed=2.0, site="there", host="n1"),
            seen("c", kind="other", template="run ${x}"),
        ]
    )

    columns = history.observations_of(["none", "align"], parameters=True)

    assert columns.kind.tolist() == [1, 1]
    assert [columns.sites[i] for i in columns.site] == ["there", "here"]
    assert [STATUSES[i] for i in columns.status] == [Status.TIMED_OUT, Status.SUCCEEDED]
    assert columns.is_censored.tolist() == [True, False]
    assert columns.start.tolist() == [2e9, 1e9]
    assert str(columns.estimate.tolist()) == "[nan, 12.0]"
    assert columns.parameters == [{}, {"x": 1, "mode": "fast"}]


def test_a_known_attempt_is_replaced(tmp_path: Path) -> None:
    """Execution, task and attempt are the key of an observation."""
    history = History(tmp_path / "history.sqlite")
    history.add([seen("a"), seen("a", attempt=2)])
    history.add([seen("a", seconds=11.0)])

    assert sorted(history.observations_of(["align"]).seconds) == [10.0, 11.0]


def test_the_newest_of_each_kind_are_kept(tmp_path: Path) -> None:
    """The limit holds for each kind, whatever the order of writing."""
    history = History(tmp_path / "history.sqlite", rules=HistoryRules(rows=3))
    for start in (5, 1, 4, 2, 3):
        history.add([seen(f"t{start}", start=float(start))])
    history.add([seen("other", kind="other", start=1.0)])

    assert history.observations_of(["align"]).start.tolist() == [5, 4, 3]
    assert history.observations_of(["other"]).start.tolist() == [1]
