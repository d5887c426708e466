"""The file of a history: what is written is read, once, whoever else writes and whatever breaks."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.history.encoding import STATUSES
from bursar.history.observation import TaskObservation
from bursar.history.selection import Selection
from bursar.history.store import History
from bursar.history.summary import summarise_kinds
from bursar.history.writing import ExecutionFacts, HistoryRules
from bursar.model.errors import BursarError, InputError
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


def test_a_known_attempt_is_replaced_unless_only_new_ones_are_asked_for(tmp_path: Path) -> None:
    """Execution, task and attempt are the key of an observation."""
    history = History(tmp_path / "history.sqlite")
    history.add([seen("a"), seen("a", attempt=2)])
    history.add([seen("a", seconds=11.0)])
    history.add([seen("a", seconds=12.0), seen("b", seconds=13.0)], only_new=True)

    assert sorted(history.observations_of(["align"]).seconds) == [10.0, 11.0, 13.0]


def test_the_newest_of_each_kind_are_kept(tmp_path: Path) -> None:
    """The limit holds for each kind, whatever the order of writing."""
    history = History(tmp_path / "history.sqlite", rules=HistoryRules(rows=3))
    for start in (5, 1, 4, 2, 3):
        history.add([seen(f"t{start}", start=float(start))])
    history.add([seen("other", kind="other", start=1.0)])

    assert history.observations_of(["align"]).start.tolist() == [5, 4, 3]
    assert history.observations_of(["other"]).start.tolist() == [1]


def test_what_is_older_than_the_limit_is_forgotten_and_what_has_no_date_is_not(
    tmp_path: Path,
) -> None:
    """A clock that was far ahead when one task ended makes no other too old."""
    now = time.time()
    history = History(tmp_path / "history.sqlite", rules=HistoryRules(rows=10, days=10))
    history.add([seen("old", start=now - 11 * 86400)])
    history.add([seen("new", start=now - 9 * 86400), seen("undated", start=0.0)])
    history.add([seen("ahead", start=now + 1000 * 86400)])

    assert {one.task for one in history.rows()} == {"new", "undated", "ahead"}


def test_the_newest_of_a_kind_are_read_by_the_index(tmp_path: Path) -> None:
    """A query for the newest of a kind walks the index of kinds and times, and sorts nothing."""
    history = History(tmp_path / "history.sqlite")
    history.add([seen("a")])
    db = apsw.Connection(str(history.path))
    plan = db.execute(
        "EXPLAIN QUERY PLAN SELECT seconds FROM observations WHERE kind = 1 "
        "ORDER BY start DESC LIMIT 5"
    ).fetchall()

    assert "USING INDEX by_kind" in str(plan)
    assert "B-TREE" not in str(plan)


def test_the_newest_of_a_kind_with_several_templates(tmp_path: Path) -> None:
    """Commands of one kind that differ are told apart, and the newest are the newest of all."""
    history = History(tmp_path / "history.sqlite")
    history.add([seen(f"a{i}", template=f"t{i % 2}", start=float(i)) for i in range(1, 9)])

    columns = history.observations_of(["align"], newest=3)

    assert columns.start.tolist() == [8, 7, 6]
    assert [columns.templates[i] for i in columns.template] == ["t0", "t1", "t0"]


def test_digests_keep_values_apart_and_tell_none(tmp_path: Path) -> None:
    """Values and ids are nowhere in the file, equal ones have equal digests, names stay."""
    path = tmp_path / "history.sqlite"
    history = History(path, rules=HistoryRules(hashes=True))
    secret = "patient-4711"
    history.add(
        [
            seen(f"fit-{secret}", parameters={"who": secret}),
            seen("fit-2", parameters={"who": secret}),
            seen("fit-3", parameters={"who": "another"}),
            seen(f"fit-{secret}", parameters={"who": secret}),
        ]
    )

    found = [one.parameters["who"] for one in history.rows()]

    assert len(found) == 3
    assert len(set(found)) == 2
    for file in tmp_path.iterdir():
        assert secret.encode() not in file.read_bytes()


def test_forgetting_removes_what_was_chosen_from_the_file(tmp_path: Path) -> None:
    """What is forgotten is counted first, and its texts are gone from all files afterwards."""
    history = History(tmp_path / "history.sqlite")
    history.add([seen("a-secret-id", execution="gone@1", parameters={"p": "hidden"}), seen("b")])
    chosen = Selection(execution="gone")

    assert history.count(chosen) == {"align": 1}
    assert history.forget(chosen) == {"align": 1}
    assert [one.task for one in history.rows()] == ["b"]
    for file in tmp_path.iterdir():
        assert b"a-secret-id" not in file.read_bytes()
        assert b"hidden" not in file.read_bytes()


def test_a_history_is_readable_by_its_user_only(tmp_path: Path) -> None:
    """Parameters may tell what somebody works on."""
    history = History(tmp_path / "state" / "history.sqlite")
    history.add([seen("a")])

    assert history.path.stat().st_mode & 0o077 == 0


def test_facts_of_an_execution_are_kept_once(tmp_path: Path) -> None:
    """Later batches of one run may say the same again."""
    history = History(tmp_path / "history.sqlite")
    facts = ExecutionFacts(name="run-1", campaign="study", begun=5.0, site_kinds={"a": "local"})
    for task in ("a", "b"):
        history.add([seen(task)], [facts])

    assert history.count_of("run-1") == 2
    assert history.total() == 2
    assert summarise_kinds(history.observations_of(["align"]))[0]["observations"] == 2


def test_the_size_of_an_execution_is_kept_and_forgotten_with_it(tmp_path: Path) -> None:
    """An execution of which some tasks were observed is no smaller for that."""
    history = History(tmp_path / "history.sqlite")
    history.add([seen("a", execution="old")])
    assert history.observations_of(["align"]).sizes == {}
    history.add([seen("a"), seen("b")], [ExecutionFacts(name="run-1", tasks=73)])

    assert history.observations_of(["align"]).sizes == {"run-1": 73}
    history.forget(Selection(execution="run-1"))
    assert history.observations_of(["align"]).sizes == {}
    assert history.total() == 1


# Files that are no history.


def _torn(path: Path) -> None:
    History(path).add([seen(f"t{i}", parameters={"x": "y" * 50}) for i in range(2000)])
    data = bytearray(path.read_bytes())
    data[8192:65536] = b"\xa5" * (65536 - 8192)
    path.write_bytes(data)


def _other_version(path: Path) -> None:
    History(path).add([seen("a")])
    apsw.Connection(str(path)).execute("UPDATE meta SET value = '99'")


def _foreign(path: Path) -> None:
    apsw.Connection(str(path)).execute("CREATE TABLE a (b)")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (
            lambda path: path.write_text("no database, but a text that is long enough\n" * 99),
            "no h",
        ),
        (lambda path: path.mkdir(), "unable to open"),
        (_foreign, "another program's database"),
        (_other_version, "its format is 99; this version reads format 1"),
        (_torn, "is damaged or no history"),
    ],
)
def test_a_file_that_is_no_history_gets_one_line_and_stays(
    tmp_path: Path, spoil: object, expected: str
) -> None:
    """Neither reading nor writing changes what somebody may want to restore."""
    path = tmp_path / "history.sqlite"
    spoil(path)  # type: ignore[operator]
    before = None if path.is_dir() else path.read_bytes()

    with pytest.raises(InputError) as read:
        History(path).observations_of(["align"])
    with pytest.raises(BursarError) as written:
        History(path).add([seen(f"new-{i}") for i in range(1000)])

    for error in (read.value, written.value):
        assert expected in str(error)
        assert str(path) in str(error)
        assert "\n" not in str(error).replace("\nhint: ", "")
    if before is not None:
        assert path.read_bytes() == before


def test_a_lock_that_stays_is_told(tmp_path: Path) -> None:
    """Who holds the file for too long costs a run its patience and no more."""
    path = tmp_path / "history.sqlite"
    History(path).add([seen("a")])
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(BursarError, match="another process has locked it for too long"):
        History(path, patience=0.1).add([seen("b")])

    other.execute("COMMIT")
    assert History(path).total() == 1


def test_reading_before_anything_was_written(tmp_path: Path) -> None:
    """A missing history is an empty one, and reading makes no file."""
    history = History(tmp_path / "history.sqlite")

    assert history.kinds() == []
    assert len(history.observations_of(["align"], parameters=True)) == 0
    assert list(history.rows()) == []
    assert not history.path.exists()


@pytest.mark.parametrize(
    "facts",
    [
        {"seconds": -1.0},
        {"seconds": float("nan")},
        {"start": -5.0},
        {"start": 1e15},
        {"waited": -0.1},
        {"processors": 0},
        {"speed": 0.0},
        {"estimate": float("inf")},
        {"kind": ""},
        {"max_rss": 2**63},
    ],
)
def test_an_impossible_observation_is_refused(facts: dict[str, object]) -> None:
    """Negative times and clocks in another unit never get into the file."""
    with pytest.raises(ValueError, match="must"):
        seen("a", **facts)


# Properties.

_TEXTS = st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=8
)
_SPANS = st.integers(0, 10**12).map(lambda micros: micros / 1e6)
_VALUES = st.one_of(
    st.text(max_size=5).filter(lambda text: text.isprintable()),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.booleans(),
)


@st.composite
def _observations(draw: st.DrawFn) -> TaskObservation:
    return TaskObservation(
        execution=draw(st.sampled_from(["e1", "e2"])),
        task=draw(st.sampled_from(["a", "b", "c", "d"])),
        attempt=draw(st.integers(1, 2)),
        kind=draw(_TEXTS),
        template=draw(st.sampled_from(["", "run {x}"])),
        parameters=draw(st.dictionaries(_TEXTS, _VALUES, max_size=3)),
        input_bytes=draw(st.none() | st.integers(0, 2**53)),
        site=draw(st.sampled_from(["", "here"])),
        processors=draw(st.integers(1, 2**31 - 1)),
        speed=draw(st.floats(0.01, 100)),
        start=draw(_SPANS),
        seconds=draw(_SPANS),
        waited=draw(st.none() | _SPANS),
        transferred=draw(st.none() | _SPANS),
        max_rss=draw(st.none() | st.integers(0, 2**53)),
        user_seconds=draw(st.none() | _SPANS),
        status=draw(st.sampled_from(STATUSES)),
        estimate=draw(st.none() | _SPANS),
    )


_BATCHES = st.lists(st.lists(_observations(), max_size=6), max_size=5)


@settings(max_examples=examples(60))
@given(batches=_BATCHES, tear=st.integers(0, 4))
def test_any_batches_with_duplicates_and_torn_writes(
    tmp_path_factory: pytest.TempPathFactory,
    batches: Sequence[Sequence[TaskObservation]],
    tear: int,
) -> None:
    """The history is a dictionary by key, and a batch whose writing breaks off changes nothing."""
    history = History(tmp_path_factory.mktemp("history") / "history.sqlite")
    twin: dict[tuple[str, str, int], TaskObservation] = {}
    for number, batch in enumerate(batches):
        if number == tear:
            with pytest.raises(RuntimeError):
                history.add(_breaking(batch))
        history.add(batch)
        twin |= {(one.execution, one.task, one.attempt): one for one in batch}

    found = {(one.execution, one.task, one.attempt): one for one in history.rows()}

    assert found == twin
    columns = history.observations_of(history.kinds(), parameters=True)
    assert len(columns) == len(twin)
    assert sorted(columns.seconds.tolist()) == sorted(one.seconds for one in twin.values())


def _breaking(batch: Sequence[TaskObservation]) -> Sequence[TaskObservation]:
    class Broken(list[TaskObservation]):
        """Observations whose last one cannot be had."""

        def __iter__(self):  # type: ignore[no-untyped-def]
            yield from batch
            raise RuntimeError("broken off")

    return Broken()


_WRITER = """
import sys
from pathlib import Path
from bursar.history.observation import TaskObservation
from bursar.history.store import History

history, name = History(Path(sys.argv[1])), sys.argv[2]
for batch in range(10_000):
    history.add(
        TaskObservation(execution=name, task=f"{batch}-{i}", kind="k", seconds=1.0)
        for i in range(10)
    )
    print(batch, flush=True)
"""


def test_writers_that_are_killed_leave_whole_batches(tmp_path: Path) -> None:
    """Two processes write at once; after kill -9, what was acknowledged is there, in tens."""
    path = tmp_path / "history.sqlite"
    script = textwrap.dedent(_WRITER)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path), name], stdout=subprocess.PIPE, text=True
        )
        for name in ("first", "second")
    ]
    told = {}
    for name, writer in zip(("first", "second"), writers, strict=True):
        assert writer.stdout is not None
        for line in writer.stdout:
            told[name] = int(line) + 1
            if told[name] == 5:
                break
    for name, writer in zip(("first", "second"), writers, strict=True):
        os.kill(writer.pid, signal.SIGKILL)
        assert writer.stdout is not None
        with writer.stdout:
            rest = [int(line) + 1 for line in writer.stdout if line.endswith("\n")]
        told[name] = max([told[name], *rest])
        writer.wait()

    history = History(path)
    for name, batches in told.items():
        count = history.count_of(name)
        assert count % 10 == 0
        assert count >= 10 * batches


@pytest.mark.long
def test_a_million_rows(tmp_path: Path) -> None:
    """A million observations are written, read whole, and read in part."""
    history = History(tmp_path / "history.sqlite", rules=HistoryRules(rows=10**6))
    for start in range(0, 10**6, 10_000):
        history.add(
            seen(f"t-{i}", kind=f"k{i % 10}", start=float(i), parameters={"x": i})
            for i in range(start, start + 10_000)
        )

    assert history.total() == 10**6
    assert len(history.observations_of([f"k{i}" for i in range(10)])) == 10**6
    newest = history.observations_of(["k3"], newest=10_000)
    assert newest.start.tolist() == [float(i) for i in range(999_993, 899_993, -10)]
