"""Tables of slots, and how many processors slots offer together."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.formats.offer_tables import read_slots
from bursar.formats.sites_toml import read_sites
from bursar.model.errors import InputError
from bursar.model.slot import Slot, find_oversubscription, peak_offered_processors

SITE = '[site.x]\nkind = "advertised"\nunit_price = 2\nfixed_price = 3\nslots = "slots.csv"\n'
HEADING = "start,duration,processors"


def read(folder: Path, table: str, site: str = SITE) -> tuple[Slot, ...]:
    """Slots of a site whose table is this."""
    (folder / "slots.csv").write_bytes(table.encode())
    (folder / "s.toml").write_text(site)
    (facts,) = read_sites(folder / "s.toml")
    return facts.offers


def test_a_row_is_a_slot(tmp_path: Path) -> None:
    """Columns in any order, quantities as in the sites file, empty cells as if not there."""
    table = (
        "processors,start,leased,extensible,duration,divisible,unit_price,fixed_price\n"
        "4,0,,,90,,,\n"
        '\n8, 2h ,,TRUE,"1h30m",yes,3600/core-hour,"1 SU"\n'
        "1,1e5,1,false,60,,,0\n"
    )

    first, second, third = read(tmp_path, table)

    assert first == Slot(
        site="x",
        start=0.0,
        duration=90.0,
        processors=4,
        unit_price=2.0,
        fixed_price=3.0,
        divisible=False,
    )
    assert second == Slot(
        site="x",
        start=7200.0,
        duration=5400.0,
        processors=8,
        unit_price=1.0,
        fixed_price=1.0,
        divisible=True,
        extensible=True,
    )
    assert third == Slot(
        site="x",
        start=1e5,
        duration=60.0,
        processors=1,
        unit_price=2.0,
        fixed_price=0.0,
        divisible=True,
        leased=True,
    )


def test_a_table_may_be_written_by_a_spreadsheet(tmp_path: Path) -> None:
    """With a byte order mark, carriage returns and rows of empty cells at the end."""
    table = f"\ufeff{HEADING}\r\n0,10,1\r\n10,10,1\r\n,,\r\n"

    assert [slot.start for slot in read(tmp_path, table)] == [0.0, 10.0]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", "slots.csv:1: has no column"),
        ("\n\n", 'has no column "start"'),
        (f"{HEADING}\n", "slots.csv: has no slots below"),
        ("0,10,4\n", 'slots.csv:1: unknown column "0", expected start, duration'),
        ("start,duration\n0,1\n", 'slots.csv:1: has no column "processors"'),
        ("start,length,processors\n", 'slots.csv:1: unknown column "length"'),
        ("start,durations,processors\n", 'hint: did you mean "duration"'),
        ("start,start,duration,processors\n", 'slots.csv:1: has the column "start" twice'),
        (f"{HEADING},\n0,1,1,\n", 'slots.csv:1: unknown column ""'),
        (f"{HEADING}\n0,1,1\n\n0,1\n", "slots.csv:4: has 2 cells, expected 3"),
        (f"{HEADING}\n,1,1\n", "slots.csv:2: start: expected a time"),
        (f"{HEADING}\n0,1,1\n-1,1,1\n", "slots.csv:3: start: expected a time"),
        (f"{HEADING}\n0,nan,1\n", "slots.csv:2: duration: expected a time"),
        (f"{HEADING}\n0,inf,1\n", "slots.csv:2: duration: expected a time"),
        (f"{HEADING}\n0,0,1\n", "slots.csv:2: duration: must be positive"),
        (f"{HEADING}\n0,1,0\n", "slots.csv:2: processors: expected 1 to"),
        (f"{HEADING}\n0,1,99999999999\n", "slots.csv:2: processors: expected 1 to"),
        (f"{HEADING}\n0,1,1.5\n", 'slots.csv:2: processors: expected a whole number, got "1.5"'),
        (f"{HEADING}\n0,1,\n", "slots.csv:2: processors: expected a whole number"),
        (f"{HEADING},unit_price\n0,1,1,-2\n", "slots.csv:2: unit_price: expected a price"),
        (f"{HEADING},unit_price\n0,1,1,nan\n", "slots.csv:2: unit_price: expected a price"),
        (f"{HEADING},fixed_price\n0,1,1,dear\n", "slots.csv:2: fixed_price: expected an amount"),
        (f"{HEADING},leased\n0,1,1,maybe\n", "slots.csv:2: leased: expected true or false"),
        (f"{HEADING},leased,divisible\n0,1,1,1,0\n", "slots.csv:2: divisible: a leased slot is"),
        (f'{HEADING}\n0,1,1\n0,"1,1\n', "slots.csv:3: is not CSV"),
        (f"{HEADING}\n0,1,1\n0,1\0,1\n", "slots.csv:3: holds the character NUL"),
        (f"{HEADING},fixed_price\n0,1,1,1 EUR\n1,1,1,1 USD\n", "several currencies: EUR, USD"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(table: str, expected: str, tmp_path: Path) -> None:
    """The file that names the table, the table, the line, the column."""
    with pytest.raises(InputError) as caught:
        read(tmp_path, table)

    line = str(caught.value).replace(f"{tmp_path}/", "")
    assert re.match(r"s\.toml:1: site\.x\.(slots: |currency)", line), line
    assert expected in line


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    """With the line on which it stops to be text."""
    (tmp_path / "slots.csv").write_bytes(HEADING.encode() + b"\n0,1,\xff\n")

    with pytest.raises(InputError, match=r"slots\.csv:2: is not UTF-8"):
        read_slots(tmp_path / "slots.csv")


def test_rows_that_overlap_are_told(tmp_path: Path) -> None:
    """By their lines."""
    site = SITE.replace("unit_price", "processors = 5\nunit_price")

    with pytest.raises(InputError) as caught:
        read(tmp_path, f"{HEADING}\n0,10,3\n10,10,3\n15,10,3\n", site)

    assert str(caught.value) == (
        f"{tmp_path}/s.toml:1: site.x.slots: {tmp_path}/slots.csv:4: overlaps line 3: "
        "from 15 s on 6 processors are offered, the site has 5"
    )


@given(st.text(max_size=80) | st.binary(max_size=80))
def test_any_table_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, table: str | bytes
) -> None:
    """With one line, never with another error."""
    path = tmp_path_factory.getbasetemp() / "any.csv"
    data = table.encode("utf-8", "surrogatepass") if isinstance(table, str) else table
    path.write_bytes(HEADING.encode() + b"\n" + data)
    refused = ""
    try:
        assert read_slots(path)
    except InputError as error:
        refused = str(error)
    assert "\n" not in refused.partition("\nhint: ")[0]


@st.composite
def slots(draw: st.DrawFn) -> list[Slot]:
    """Slots at whole seconds."""
    return [
        Slot(
            site="x",
            start=draw(st.integers(0, 20)),
            duration=draw(st.integers(1, 20)),
            processors=draw(st.integers(1, 5)),
            unit_price=None,
            extensible=draw(st.integers(0, 4)) == 0,
        )
        for _ in range(draw(st.integers(1, 8)))
    ]


@given(slots(), st.integers(1, 12))
def test_what_is_offered_at_once_is_counted_second_by_second(
    offered: list[Slot], processors: int
) -> None:
    """The most, and the first second in which it is too much, with the slots of that second."""
    open_at = {
        second: [
            i
            for i, slot in enumerate(offered)
            if slot.start <= second and (slot.extensible or second < slot.end)
        ]
        for second in range(42)
    }
    counts = {s: sum(offered[i].processors for i in open_) for s, open_ in open_at.items()}
    first = next((s for s, count in counts.items() if count > processors), None)

    assert peak_offered_processors(offered) == max(counts.values())
    expected = None if first is None else (first, open_at[first])
    assert find_oversubscription(offered, processors) == expected
