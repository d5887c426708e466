"""Random expressions and ads, as text."""

from hypothesis import strategies as st

NAMES = ("a", "b", "c", "d", "Load", "absent")

numbers = st.one_of(
    st.integers(-9, 9).map(str),
    st.sampled_from(["100", "0.5", "-2.5", "3.0", "1e3", "0.0"]),
)
strings = st.sampled_from(['"x"', '"X"', '"linux"', '"Linux"', '""', '"3"', '"a, b"', '"x1"'])
words = st.sampled_from(["true", "false", "undefined", "error"])
literals = st.one_of(numbers, strings, words)
lists = st.lists(literals, max_size=3).map(lambda items: "{" + ", ".join(items) + "}")
names = st.builds(
    lambda scope, name: scope + name,
    st.sampled_from(["", "", "MY.", "TARGET.", "other.", "target."]),
    st.sampled_from([*NAMES, *(name.upper() for name in NAMES)]),
)

_BINARY = ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "=?=", "=!=", "is", "isnt"]
_LOGIC = ["&&", "||"]
_ONE = [
    *["isUndefined", "isError", "isString", "isInteger", "isReal", "isBoolean", "isList"],
    *["isClassad", "size", "sum", "min", "max", "toUpper", "tolower", "int", "real", "bool"],
    *["string", "floor", "ceiling", "round", "stringListSize"],
]
_TWO = [
    *["member", "identicalMember", "strcat", "strcmp", "stricmp", "stringListMember"],
    *["stringListIMember", "quantize"],
]


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(_BINARY), inner),
        st.builds("({} {} {})".format, inner, st.sampled_from(_LOGIC), inner),
        st.builds("({} {} {} {} {})".format, inner, st.just("&&"), inner, st.just("&&"), inner),
        st.builds("{}({})".format, st.sampled_from(["-", "!", "+"]), inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("({} ?: {})".format, inner, st.one_of(literals, names, lists)),
        st.builds("ifThenElse({}, {}, {})".format, inner, inner, inner),
        st.builds("{}({})".format, st.sampled_from(_ONE), inner),
        st.builds("{}({}, {})".format, st.sampled_from(_TWO), inner, inner),
        st.builds("substr({}, {})".format, inner, inner),
        st.builds("({{{}, {}}})[{}]".format, inner, inner, inner),
        st.builds("member({}, {{{}, {}}})".format, inner, inner, inner),
        st.builds("sum({{{}, {}}})".format, inner, inner),
        st.builds("({})[{}]".format, inner, inner),
    )


expressions = st.recursive(st.one_of(literals, names, lists), _combined, max_leaves=8)
"""Any of them, most of them senseless."""


def _ad(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.dictionaries(st.sampled_from(NAMES[:-1]), values, max_size=5).map(
        lambda fields: "[ " + "; ".join(f"{k} = {v}" for k, v in fields.items()) + " ]"
    )


plain_ads = _ad(st.one_of(literals, lists))
"""Ads of constants."""

ads = _ad(st.one_of(literals, lists, expressions))
"""Ads whose attributes may be expressions, even of each other."""
