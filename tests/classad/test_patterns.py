"""Regular expressions: what Python's say, in linear time."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.classad.text import matched

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
    text=st.text(alphabet="abcAB1_ .\n", max_size=8),
    options=st.text(alphabet="ims", max_size=3),
)
@settings(max_examples=600)
def test_a_pattern_is_found_where_python_finds_it(pattern: str, text: str, options: str) -> None:
    flags = re.ASCII
    for letter in options:
        flags |= {"i": re.I, "m": re.M, "s": re.S}[letter]

    # Python before 3.14 says that the empty text has no non-boundary.
    if "\\B" in pattern and not text:
        return
    assert matched(pattern, text, options) is (re.search(pattern, text, flags) is not None)


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
     "(?P<x>a)", "\\p", "(" * 60 + ")" * 60, "((a{99}){99}){99}", "[[:nothing:]]"],
)  # fmt: skip
def test_what_is_no_pattern_or_not_supported_is_none(pattern: str) -> None:
    assert matched(pattern, "a", "") is None


def test_a_few_by_hand() -> None:
    assert matched("^ce[0-9]+\\.(cern|infn)\\.\\w{2}$", "ce01.infn.it", "") is True
    assert matched("[[:alpha:]]+$", "12ab", "") is True
    assert matched("A b", "xab", "ix") is True
    assert matched("(?i)A", "a", "") is True
    assert matched("a$", "a\n", "") is True
    assert matched("a{,2}", "a{,2}", "") is True  # no repetition: the text itself
    assert matched("", "", "") is True
