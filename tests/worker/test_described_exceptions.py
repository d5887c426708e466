"""Exceptions that are described: made again of the language's own classes, or told in words."""

import builtins
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.worker.call_results import (
    BUILT_IN,
    ValueRefusedError,
    described_error,
    encode_plain,
    result_of_data,
    value_as_data,
)
from bursar.worker.raised import RemoteError, RemoteTraceback


def through(error: BaseException) -> Any:
    """The exception, raised, described and made again."""
    try:
        raise error
    except BaseException as raised:
        return result_of_data(described_error(raised), succeeded=False)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("on top", 3),
        KeyError(("a", 1)),
        FileNotFoundError(2, "No such file", "/x"),
        OSError(28, "full", "/x", None, "/y"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        ZeroDivisionError(),
        ModuleNotFoundError("No module named 'x'"),
        UserWarning("careful"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_of_the_language_is_itself_again(error: Exception) -> None:
    error.add_note("a note")
    made = through(error)
    assert type(made) is type(error)
    assert (made.args, str(made)) == (error.args, str(error))
    assert made.__notes__ == ["a note"]
    assert isinstance(made.__cause__, RemoteTraceback)
    assert "in through" in str(made.__cause__)


class OwnError(ValueError):
    """Of a module of the user's."""


class MuteError(Exception):
    """One that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OwnError("of mine"), "OwnError: of mine"),
        (MuteError(), "MuteError: <exception str() failed>"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(1), "StopIteration: 1"),
        (ExceptionGroup("some", [ValueError("one")]), "ExceptionGroup: some (1 sub-exception)"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_another_one_is_told_in_words(error: BaseException, said: str) -> None:
    error.add_note("a note")
    made = through(error)
    assert type(made) is RemoteError
    assert str(made).endswith(said)


def test_arguments_that_are_no_data_are_told_in_words() -> None:
    made = through(ValueError(object))
    assert type(made) is ValueError
    assert made.args == ("<class 'object'>",)


def test_no_class_of_the_list_ends_a_program_or_runs_anything() -> None:
    for name, kind in BUILT_IN.items():
        assert kind is getattr(builtins, name)
        assert issubclass(kind, Exception)
        assert not issubclass(kind, StopIteration | StopAsyncIteration)


def test_a_value_that_is_no_data_says_why() -> None:
    good, data = value_as_data([object()])
    assert not good
    with pytest.raises(ValueRefusedError, match="holds a value of type object"):
        result_of_data(data, succeeded=False)


TEXTS = st.text(max_size=5) | st.sampled_from(["raised", "refused", "KeyError", "OSError"])
ANY = TEXTS | st.integers() | st.none() | st.lists(TEXTS, max_size=3)


@given(
    st.lists(ANY, max_size=6)
    | st.tuples(
        st.just("raised"),
        TEXTS,
        st.lists(ANY, max_size=5),
        TEXTS,
        TEXTS,
        st.lists(ANY, max_size=2),
    )
)
def test_whatever_is_described_is_an_exception_or_refused(form: Any) -> None:
    try:
        made = result_of_data(encode_plain(form), succeeded=False)
    except ValueRefusedError:
        return
    assert type(made) in {RemoteError, *BUILT_IN.values()}
