"""Streams of lines, however they are cut."""

from hypothesis import given
from hypothesis import strategies as st

from bursar.remote.transfers import EventStreamDecoder, LineDecoder


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Data in pieces."""
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(0, 300)))
def test_lines_are_whole_however_they_come(lines: list[bytes], places: list[int]) -> None:
    """Each block ends with a line; all of them are all that ended with one."""
    data = b"".join(line.replace(b"\n", b"") + b"\n" for line in lines) + b"unfinished"
    seen = LineDecoder()

    blocks = [seen.feed(piece) for piece in cut(data, places)]

    assert b"".join(blocks) == data.removesuffix(b"unfinished")
    assert all(not block or block.endswith(b"\n") for block in blocks)


@given(st.lists(st.integers(0, 80)))
def test_events_are_whole_however_they_come(places: list[int]) -> None:
    """Comments and names are passed over; data of several lines is joined."""
    data = b': beat\n\nid: 4\ndata: {"a": 1}\n\n: \n\ndata:one\ndata: two\r\n\r\ndata: unfinished\n'
    events = EventStreamDecoder()

    seen = [event for piece in cut(data, places) for event in events.feed(piece)]

    assert seen == [b'{"a": 1}', b"one\ntwo"]
