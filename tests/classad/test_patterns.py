"""Regular expressions say what Python's say, in linear time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thoroughness import examples

from bursar.classad.patterns import matched

atoms = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "\\d",
        "\\w",
        "\\S",
        "[ab]",
        "[^a]",
        "[a-c1]",
        "^",
        "$",
        "\\b",
        "\\B",
        "\\n",
        "\\.",
        "\\s",
        "\\D",
        "[^\\s]",
        "[\\S\\n]",
        "[^\\n]",
        "\\A",
        "\\v",
    ]
)
patterns = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds(
            "(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}"])
        ),
        st.builds("({}){}?".format, inner, st.sampled_from(["*", "+", "?"])),
    ),
    max_leaves=6,
)


@given(
    pattern=patterns,
    text=st.text(alphabet="abcAB1_ .\n\v", max_size=8),
    options=st.text(alphabet="ims", max_size=3),
)
@settings(max_examples=examples(600))
def test_a_pattern_is_found_where_python_finds_it(pattern: str, text: str, options: str) -> None:
    flags = re.ASCII
    for letter in options:
        flags |= {"i": re.I, "m": re.M, "s": re.S}[letter]

    # Python before 3.14 says that the empty text has no non-boundary.
    if "\\B" in pattern and not text:
        return
    assert matched(pattern, text, options) is (re.search(pattern, text, flags) is not None)


@given(
    pattern=st.text(alphabet="aé[]^-\\\\(|)?:*{2}.$nsSbZ# \n", max_size=12),
    text=st.text(alphabet="aéns \n", max_size=6),
    options=st.text(alphabet="imsx", max_size=2),
)
@settings(deadline=None, max_examples=examples(300))
def test_any_text_is_a_pattern_or_none(pattern: str, text: str, options: str) -> None:
    assert matched(pattern, text, options) in (True, False, None)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("(a+)+$", "a" * 5000 + "b"), ("(a|a)*b", "a" * 5000), ("a*" * 30 + "b", "a" * 5000)],
)
def test_a_hostile_pattern_takes_no_longer_than_another(pattern: str, text: str) -> None:
    """Python's matcher would take longer than the world has been here."""
    assert matched(pattern, text, "") is False


@pytest.mark.parametrize(
    "pattern",
    ["(", ")", "a)", "[", "[a", "*", "a**", "a{2}{3}", "\\", "(?=a)", "(a)\\1", "[b-a]", "a{3,2}",
     "(?P<x>a)", "\\p", "(" * 2000 + ")" * 2000 + "a" * 97, "((a{99}){99}){99}", "[[:nothing:]]",
     "(?<=a)b", "(?!a)", "\ud800", "[]", "[a\\", "a{1001}", "(?:[a-z]{900}|){900}", "(?x", "a(?i)"],
)  # fmt: skip
def test_what_is_no_pattern_or_not_supported_is_none(pattern: str) -> None:
    assert matched(pattern, "a", "") is None


def test_a_few_by_hand() -> None:
    assert matched("^ce[0-9]+\\.(cern|infn)\\.\\w{2}$", "ce01.infn.it", "") is True
    assert matched("[[:alpha:]]+$", "12ab", "") is True
    assert matched("A b", "xab", "ix") is True
    assert matched("(?i)A", "a", "") is True
    assert matched("a$", "a\n", "") is True
    assert matched("a\\Z", "b\na\n", "") is True
    assert matched("a\\z", "a\n", "") is False
    assert matched("a$", "a\nb\n", "") is False
    assert matched("a$", "a\nb\n", "m") is True
    assert matched("a$\\n", "a\n", "") is True
    assert matched("a # comment\n b", "ab", "x") is True
    assert matched("a#b", "a#b", "") is True
    assert matched("^.é[é-ü]$", "xéü", "") is True
    assert matched("[]a]", "]", "") is True
    assert matched("\\e[\\b]", "\x1b\b", "") is True
    assert matched("a{,2}", "a{,2}", "") is True  # no repetition: the text itself
    assert matched("", "", "") is True
