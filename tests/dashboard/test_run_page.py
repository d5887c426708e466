"""A page that is read on is the page of the whole run; lanes of its bars do not overlap."""

from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.dashboard.run_page import LaneKeeper, RunPage
from bursar.dispatch.journal import JournalPosition, read_additions, read_journal
from bursar.runs.folder import RunFolder


def test_additions_in_parts_are_the_whole_journal(runs: Path) -> None:
    """Whatever the position, what is before and behind it is everything, once."""
    folder = RunFolder.open(runs, "first")
    whole = read_journal(folder.journal_file)
    all_of_it = read_additions(folder.journal_file, JournalPosition())
    for count in range(0, len(whole.records), 7):
        moved = min(count, len(whole.transfers))
        position = JournalPosition(count, moved, 2, 1)
        more = read_additions(folder.journal_file, position)
        assert more.position == all_of_it.position
        assert more.records == all_of_it.records[count:]
        assert more.transfers == whole.transfers[moved:]
        assert more.events == whole.events[2:]
    key = lambda record: (record.outcome.task, record.outcome.attempt)  # noqa: E731
    assert sorted(all_of_it.records, key=key) == whole.records
    assert {start.task for start in all_of_it.starts} >= {r.outcome.task for r in whole.records}


def test_a_page_read_on_is_the_page_of_the_whole_run(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that grows step by step gives, by its events, what a complete read gives."""
    folder = RunFolder.open(runs, "first")
    grown = _Growing(folder, monkeypatch)
    page = RunPage(folder)
    seen = msgspec.json.decode(msgspec.json.encode(page.document()))
    while grown.grow():
        for name, data in page.read_on():
            _apply(seen, name, data)
    _apply(seen, *page.refresh())

    whole = msgspec.json.decode(msgspec.json.encode(RunPage(folder).document()))
    seen = msgspec.json.decode(msgspec.json.encode(seen))
    assert seen["money"] == whole["money"]
    for field in ("messages", "leases", "bill", "failures", "summary"):
        assert seen[field] == whole[field], field
    assert seen["end"] == pytest.approx(whole["end"], abs=0.001)
    # Sums in another order differ in their last digits.
    assert [row[:2] for row in seen["by_kind"]] == [row[:2] for row in whole["by_kind"]]
    assert page.document()["version"] == whole["version"]
    assert _spans(seen) == _spans(whole)


class _Growing:
    """Shows a page only the first rows of the journal, more with each step."""

    def __init__(self, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = folder.journal_file
        self._limits = {"attempts": 0, "transfers": 3, "events": 4, "starts": 0}
        self._sizes = {table: self._count(table) for table in self._limits}
        self._whole = read_journal(self._file)
        monkeypatch.setattr("bursar.dashboard.run_page.read_additions", self._additions)
        monkeypatch.setattr("bursar.runs.run_record.read_journal", self._read)

    def grow(self) -> bool:
        """Show a few more rows; return whether there were any."""
        before = dict(self._limits)
        for table, step in (("attempts", 3), ("transfers", 5), ("events", 2), ("starts", 3)):
            self._limits[table] = min(self._sizes[table], before[table] + step)
        return before != self._limits

    def _count(self, table: str) -> int:
        connection = apsw.Connection(str(self._file), flags=apsw.SQLITE_OPEN_READONLY)
        ((count,),) = connection.execute(f"SELECT max(number) FROM {table}").fetchall()
        connection.close()
        return int(count)

    def _additions(self, path: Path, position: JournalPosition) -> Any:
        more = read_additions(path, position)
        limits = JournalPosition(*self._limits.values())
        kept = [limit - (at or 0) for limit, at in zip(limits, position, strict=True)]
        return type(more)(
            more.records[: kept[0]],
            more.transfers[: kept[1]],
            more.events[: kept[2]],
            more.starts[: kept[3]],
            limits,
        )

    def _read(self, path: Path) -> Any:
        journal = read_journal(path)
        if self._limits == self._sizes:
            return journal
        journal.records.clear()
        del journal.transfers[self._limits["transfers"] :]
        del journal.events[self._limits["events"] :]
        return journal


def _apply(page: dict[str, Any], name: str, data: dict[str, Any]) -> None:
    """Do what the browser does with an event."""
    match name:
        case "ended":
            for site, bars in data["bars"].items():
                page["actual"] = page["actual"] | {site: [*page["actual"].get(site, []), *bars]}
            page |= {key: data[key] for key in ("sites", "kinds", "processors", "end")}
        case "money":
            page["money"] = [*page["money"], *data["points"]]
            page |= {key: data[key] for key in ("leases", "end")}
        case "forecast" | "message":
            field = {"forecast": "forecast", "message": "messages"}[name]
            page[field] = [*page[field], *data["rows"]]
        case "parts":
            page |= data


def _spans(page: dict[str, Any]) -> Counter[tuple[Any, ...]]:
    """Bars without their lanes."""
    return Counter(
        (site, start, end, page["kinds"][kind], status, task)
        for site, bars in page["actual"].items()
        for _, start, end, _, kind, status, task in bars
    )


SPANS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(1, 4)), max_size=40)


@given(SPANS)
def test_lanes_do_not_overlap(spans: list[tuple[int, int, int]]) -> None:
    """Bars in the order of their starts get lanes as processors would have been given."""
    keeper = LaneKeeper(())
    taken: dict[int, float] = {}
    for start, length, width in sorted(spans):
        lanes = [
            first + i
            for first, wide in keeper.take(start, start + length, width)
            for i in range(wide)
        ]
        assert len(set(lanes)) == width
        for lane in lanes:
            assert taken.get(lane, 0) <= start
            taken[lane] = start + length
    busy = max((sum(w for s, n, w in spans if s <= at < s + n) for at in range(61)), default=0)
    assert len(taken) == busy
