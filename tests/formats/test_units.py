"""Quantities as people write them."""

import contextlib
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.formats.units import (
    DEAREST,
    LARGEST,
    LONGEST,
    format_size,
    parse_amount,
    parse_deadline,
    parse_duration,
    parse_price,
    parse_share,
    parse_size,
)
from bursar.model.errors import InputError

PARSERS = (parse_duration, parse_size, parse_amount, parse_share, parse_price)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90.0),
        (1.5, 1.5),
        (0, 0.0),
        ("90", 90.0),
        ("90s", 90.0),
        ("33m", 1980.0),
        ("2h", 7200.0),
        ("1h30m", 5400.0),
        ("1 h 30 min", 5400.0),
        ("1.5 hours", 5400.0),
        ("1d12h", 129600.0),
        ("2 weeks", 1209600.0),
        ("250ms", 0.25),
        ("0.1s", 0.1),
        ("01:30", 5400.0),
        ("01:30:00", 5400.0),
        ("00:00:07.5", 7.5),
        ("1-02:00:00", 93600.0),
    ],
)
def test_a_time_may_be_written_in_many_ways(written: object, seconds: float) -> None:
    """Numbers are seconds; units add up; colons are hours, minutes, seconds."""
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (123, 123),
        (2.0, 2),
        ("123", 123),
        ("123 bytes", 123),
        ("4 GB", 4 * 10**9),
        ("4gb", 4 * 10**9),
        ("10 MiB", 10 * 2**20),
        ("1.5 KiB", 1536),
        ("0.001 kB", 1),
    ],
)
def test_a_size_may_be_decimal_or_binary(written: object, size: int) -> None:
    """GB is 10^9 bytes, GiB 2^30, whatever the case of the letters."""
    assert parse_size(written) == size


@pytest.mark.parametrize(
    ("written", "amount"),
    [
        (126000, (126000.0, None)),
        ("12.5", (12.5, None)),
        ("40 SU", (40.0, "SU")),
        ("3EUR", (3.0, "EUR")),
        ("1e3", (1000.0, None)),
        ("5000 SU@hpc1", (5000.0, "SU@hpc1")),
    ],
)
def test_an_amount_may_name_its_currency(written: object, amount: tuple[float, str | None]) -> None:
    """The letters after the number are the currency; an exponent is not."""
    assert parse_amount(written) == amount


def test_a_price_becomes_one_per_processor_second() -> None:
    """One core-hour is 3600 processor-seconds; a number is per second already."""
    assert parse_price("3600 EUR/core-hour") == (1.0, "EUR")
    assert parse_price("0.05 SU / processor-hour") == (0.05 / 3600, "SU")
    assert parse_price("2/cpu-second") == (2.0, None)
    assert parse_price("60 X/core-minute") == (1.0, "X")
    assert parse_price(0.01) == (0.01, None)


def test_a_share_is_between_nothing_and_all() -> None:
    """Percent or plain; both ends are shares."""
    assert parse_share("80%") == parse_share("0.8") == parse_share(0.8) == 0.8
    assert parse_share("100%") == parse_share(1) == 1.0
    assert parse_share("0 %") == 0.0
    with pytest.raises(InputError, match="between 0% and 100%"):
        parse_share("150%")


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "wrong",
    [
        True,
        False,
        None,
        [],
        {},
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        10**400,
        "",
        " ",
        "-1",
        "nan",
        "inf",
        "1,5",
        "1..2",
        "x",
        "5 €",
        "1e999",
        "٣",
        "1 h 30",
        "\n",
        "\x00",
    ],
)
def test_what_is_no_quantity_is_refused_on_one_line(
    parse: Callable[[object], object], wrong: object
) -> None:
    """Not a number, negative, boolean, endless: one line that says what was expected."""
    with pytest.raises(InputError) as caught:
        parse(wrong)
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("parse", "wrong", "hint"),
    [
        (parse_duration, "3 huors", '"hours"'),
        (parse_size, "3 MiiB", '"MiB"'),
        (parse_price, "3 EUR/core-huor", '"core-hour"'),
    ],
)
def test_a_misspelt_unit_gets_the_nearest_one(
    parse: Callable[[object], object], wrong: str, hint: str
) -> None:
    """The hint names the unit that was probably meant."""
    with pytest.raises(InputError) as caught:
        parse(wrong)
    assert caught.value.hint is not None
    assert hint in caught.value.hint


def test_what_is_too_large_for_the_books_is_refused() -> None:
    """Past the limits, numbers would overflow the ledger or the files' sizes."""
    for parse, limit in ((parse_duration, LONGEST), (parse_amount, DEAREST)):
        parse(limit)
        with pytest.raises(InputError, match="than"):
            parse(limit * 1.01)
    assert parse_size(LARGEST) == LARGEST
    with pytest.raises(InputError, match="larger"):
        parse_size(LARGEST + 1)
    with pytest.raises(InputError, match="whole"):
        parse_size("0.5 B")
    with pytest.raises(InputError, match="59"):
        parse_duration("01:75:00")


@given(st.integers(0, 2_000_000_000), st.integers(1, 10_000_000), st.integers(0, 9_000))
def test_a_deadline_may_be_a_moment(now: int, left: int, age: int) -> None:
    """Text or a date-time of TOML, with a zone or in this machine's, counted from the begin."""
    there = datetime.fromtimestamp(now + left)
    with_zone = datetime.fromtimestamp(now + left, timezone(timedelta(hours=5)))
    written = (there.isoformat(), there.isoformat(" "), with_zone.isoformat(" "), with_zone)
    for moment in written:
        # An hour of the clock that comes twice a year is the first of both.
        assert (parse_deadline(moment, now) - left) % 3600 == 0
        assert parse_deadline(moment, now, now - age) == parse_deadline(moment, now) + age
    assert parse_deadline(with_zone, now) == left
    assert parse_deadline("2h", now, now - age) == 7200


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("2026-11-28", "expected a date with a time of day"),
        (date(2026, 11, 28), "expected a date with a time of day"),
        ("2026-13-28 10:00", "expected a date with a time of day"),
        ("2026-11-28 at six", "expected a date with a time of day"),
        ("1999-11-28 18:00", "expected a moment to come, got 1999-11-28 18:00"),
        ("tomorrow", "expected a time such as"),
        ("18 o'clock", "expected a time such as"),
    ],
)
def test_what_is_no_deadline_is_refused(written: object, message: str) -> None:
    """A day alone is refused as well, since its begin and its end are a day apart."""
    with pytest.raises(InputError) as caught:
        parse_deadline(written, 1_700_000_000.0)
    assert str(caught.value).startswith(message)


@given(st.integers(0, LARGEST))
def test_a_size_written_reads_back_the_same(size: int) -> None:
    """format_size loses nothing."""
    assert parse_size(format_size(size)) == size


def test_sizes_are_written_short() -> None:
    """Whole units where they fit."""
    assert format_size(4 * 10**9) == "4 GB"
    assert format_size(3 * 2**20) == "3 MiB"
    assert format_size(0) == "0 B"
    with pytest.raises(InputError):
        format_size(-1)


@given(st.sampled_from(PARSERS), st.text())
def test_any_text_gives_a_value_or_an_input_error(
    parse: Callable[[object], object], text: str
) -> None:
    """No other kind of error ever leaves a parser."""
    value: object = None
    with contextlib.suppress(InputError):
        value = parse(text)
    assert value is None or isinstance(value, int | float | tuple)
