"""Values that travel as data: back as they were, or refused; and no bytes do anything else."""

import decimal
import enum
import math
import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bursar.worker.call_results import DEPTH, MOST_PARTS, NotPlainError, decode_plain, encode_plain

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.integers(0, 1 << 4000),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),  # half surrogate pairs among them
    st.binary(),
)

DTYPES = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="?"),
    arrays.unsigned_integer_dtypes(endianness="?"),
    arrays.floating_dtypes(endianness="?"),
    arrays.complex_number_dtypes(endianness="?"),
    arrays.datetime64_dtypes(endianness="?"),
    arrays.timedelta64_dtypes(endianness="?"),
)
ARRAYS = arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, min_side=0, max_side=3))
SCALARS = arrays.arrays(DTYPES.map(lambda dtype: dtype.newbyteorder("=")), ()).map(lambda a: a[()])

KEYS = st.recursive(
    ATOMS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
VALUES = st.recursive(
    ATOMS | st.binary().map(bytearray) | ARRAYS | SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
    ),
    max_leaves=12,
)


def are_same(one: Any, other: Any) -> bool:
    """Equal, of the same types throughout, to the bit and in the same order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return bool(
            one.dtype == other.dtype
            and one.dtype.str == other.dtype.str
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, complex):
        return are_same((one.real, one.imag), (other.real, other.imag))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(are_same, one, other))
    if isinstance(one, dict):
        return are_same(list(one.items()), list(other.items()))
    if isinstance(one, set | frozenset):
        left = list(other)
        for item in one:
            twin = next((k for k, found in enumerate(left) if are_same(item, found)), None)
            if twin is None:
                return False
            del left[twin]
        return not left
    return bool(one == other)


@given(VALUES)
@example([True, 1, 1.0, -0.0, 0])
@example({1: "a", (1, frozenset({2})): b""})
@example([-(1 << 63), (1 << 64) - 1, -(1 << 63) - 1, 1 << 64])
@example([[], (), {}, set(), frozenset(), "", b"", bytearray()])
@example(np.zeros((2, 0, 3), ">f4"))
@example(np.arange(6.0).reshape(2, 3).T)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert are_same(decode_plain(encode_plain(value)), value)


def test_the_comparison_above_tells_values_apart() -> None:
    pairs = [(1, True), (0.0, -0.0), ([1], (1,)), ({1, 2}, {1, 2.0}), ({1: 2}, {1: 3}), (1, 1.0)]
    pairs += [(np.int8(1), np.int16(1)), (np.zeros(2), np.zeros((2, 1)))]
    assert not any(are_same(one, other) for one, other in pairs)


def test_an_array_may_be_written_to() -> None:
    array = decode_plain(encode_plain(np.zeros(2)))
    array[0] = 1.0
    assert array.tolist() == [1.0, 0.0]


class Pair(NamedTuple):
    """A subclass of a type that is data."""

    x: int


@dataclass
class Record:
    """Of a class of the user's."""

    x: int


class Colour(enum.IntEnum):
    """A subclass of int."""

    RED = 1


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Pair(1), "Pair"),
        (Record(1), "Record"),
        (Colour.RED, "Colour"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        (decimal.Decimal(1), "decimal.Decimal"),
        (ValueError("x"), "ValueError"),
        (len, "builtin_function_or_method"),
        (range(3), "range"),
        (np.array([None]), "NumPy array of object"),
        (np.array(["a"]), "NumPy array of <U1"),
        (np.zeros(1, [("x", "f8")]), "NumPy array of"),
        (np.ma.masked_array([1]), "MaskedArray"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_by_its_type(value: Any, named: str) -> None:
    for around in (value, [value], ({"x": value},)):
        with pytest.raises(NotPlainError, match=named):
            encode_plain(around)
    if getattr(type(value), "__hash__", None) and not isinstance(value, np.ndarray | Record):
        with pytest.raises(NotPlainError, match=named):
            encode_plain({value: 1})


def test_containers_are_nested_so_deep_and_no_deeper() -> None:
    value: Any = 0
    for _ in range(DEPTH):
        value = [value]
    assert decode_plain(encode_plain(value)) == value
    with pytest.raises(NotPlainError, match=f"more than {DEPTH} deep"):
        encode_plain([value])
    value.append(value)
    with pytest.raises(NotPlainError, match="holds itself"):
        encode_plain(value)


def test_shared_containers_do_not_make_a_value_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_PARTS == 1 << 23
    monkeypatch.setattr("bursar.worker.call_results.MOST_PARTS", 1000)
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    with pytest.raises(NotPlainError, match="more than 1000 parts"):
        encode_plain(value)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_make_a_value(data: bytes) -> None:
    try:
        value = decode_plain(data)
    except NotPlainError:
        return
    assert are_same(decode_plain(encode_plain(value)), value)


FORMS = st.recursive(
    ATOMS | st.integers(0, 12) | st.sampled_from(["<f8", "|O", "|V8", "|b1", "<M8[D]", "<f999"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(st.integers(-1, 12), inner).map(list)
        | st.tuples(st.integers(-1, 12), inner, inner, inner).map(list)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=15,
)


@given(FORMS)
@example([9, "|O", [1], b"\0" * 8])
@example([9, "<f8", [-1, -1], b"\0" * 8])
@example([9, "<f8", [1 << 62, 4], b""])
@example([9, "<f8", [0, 1 << 62], b""])
@example([9, "|b1", [1], b"\x02"])
@example([2, 1, 2, True, 3])
@example([2, [0], 1])
@example([3, [2]])
@example([0, {"a": 1}])
@example([True, 1])
def test_no_message_does_more_than_make_a_value(form: Any) -> None:
    try:
        data = msgspec.msgpack.encode(form)
    except (msgspec.MsgspecError, OverflowError, TypeError, UnicodeEncodeError):
        return
    try:
        value = decode_plain(data)
    except NotPlainError:
        return
    assert are_same(decode_plain(encode_plain(value)), value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x91" * 100_000,  # arrays in arrays
        msgspec.msgpack.encode(msgspec.msgpack.Ext(1, b"x")),
        msgspec.msgpack.encode({"a": 1}),
        encode_plain(1) + b"\0",
    ],
    ids=["nothing", "deep", "extension", "map", "more"],
)
def test_what_is_no_value_is_refused(data: bytes) -> None:
    with pytest.raises(NotPlainError, match="these bytes"):
        decode_plain(data)


def test_a_number_that_is_none_stays_one_key() -> None:
    nan = math.nan
    assert list(decode_plain(encode_plain({nan: 1}))) != [nan]  # another object, as of a pickle
    assert len(decode_plain(encode_plain({nan, float("nan")}))) == 2
