"""What is recorded, and what a difference says."""

from pathlib import Path

import pytest
from tests.recording import MOST_LINES, WRITE, assert_recorded


@pytest.fixture(autouse=True)
def _comparing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WRITE, raising=False)


def test_what_was_recorded_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording makes its folders, and the last bits of a number do not count."""
    file = tmp_path / "new" / "folder" / "trace.txt"
    with monkeypatch.context() as writing:
        writing.setenv(WRITE, "1")
        assert_recorded(file, ["price 0.30000000000000004", "1234567890123 micros"])

    assert file.read_text() == "price 0.3\n1234567890123 micros\n"
    assert_recorded(file, ["price 0.3", "1234567890123 micros"])


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (["a", "b", "d"], ["-c", "+d"]),
        (["a", "c"], ["-b"]),
        (["a", "b", "c", "e"], ["+e"]),
        (["a", "b", "c 1.25"], ["-c", "+c 1.25"]),
    ],
)
def test_a_difference_is_shown_with_the_way_to_record_it(
    tmp_path: Path, found: list[str], shown: list[str]
) -> None:
    """A reader learns which lines differ and which command records the new ones."""
    file = tmp_path / "trace.txt"
    file.write_text("a\nb\nc\n")

    with pytest.raises(AssertionError) as failure:
        assert_recorded(file, found)

    head, *lines, hint = str(failure.value).splitlines()
    assert str(file) in head
    assert [line for line in lines if line[0] in "+-" and line[1:2] not in "+-"] == shown
    assert f"{WRITE}=1 python -m pytest" in hint
    assert "test_recording.py::test_a_difference" in hint


def test_what_was_never_recorded_is_no_agreement(tmp_path: Path) -> None:
    """Nothing is written unless it is asked for, and a long difference is cut."""
    file = tmp_path / "trace.txt"

    with pytest.raises(AssertionError, match="does not exist yet") as failure:
        assert_recorded(file, [f"line {number}" for number in range(1000)])

    assert not file.exists()
    assert len(str(failure.value).splitlines()) < MOST_LINES + 5
