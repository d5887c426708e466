"""Bars of copies: on a terminal only."""

import io

import pytest

from bursar.report.progress import CopyProgress


class Terminal(io.StringIO):
    """Text that counts as a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_each_file_and_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name is printed as it is, and of an unknown size only what has come."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")

    with CopyProgress("copying") as progress:
        progress("run[7]/a", 500, 1000)
        progress.of("b")(10, None)
        progress("run[7]/a", 1000, 1000)

    assert "run[7]/a" in screen.getvalue()
    assert "copying" in screen.getvalue()


def test_elsewhere_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A log file stays readable."""
    with CopyProgress("copying") as progress:
        progress("a", 1, 2)
    assert capsys.readouterr() == ("", "")
